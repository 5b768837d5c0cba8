"""Completions over time: a few prompts, first against last, every step in between one key press away."""

from collections.abc import Sequence

from rung.report.rollouts import Rollouts, Sample, Story
from rung.report.scales import format_number
from rung.report.series import spread
from rung.report.text import escape, one_line, visible

SAMPLES, STEPS_BETWEEN, SECTION_BYTES = 3, 6, 300_000
_ENDS = {"stop": "stopped by itself", "length": "cut at the length cap"}
_TURNS = {1: ("up", "▲ better"), -1: ("down", "▼ worse"), 0: ("same", "= same")}


def _reward(sample: Sample) -> str:
    if sample.reward is None:
        return (
            f'<b class="pill bad">{escape(sample.outcome or "no reward")}</b> {one_line(sample.message, 200)}'
        )
    pill = f'<b class="pill" data-reward="{sample.reward!r}">reward {format_number(sample.reward)}</b>'
    strange = sample.outcome not in ("", "reward")
    return pill + (f'<b class="pill bad">{escape(sample.outcome)}</b>' if strange else "")


def _facts(sample: Sample) -> str:
    facts = [_ENDS.get(sample.end_reason, sample.end_reason)]
    if sample.tokens is not None:
        facts.append(f"{sample.tokens:,} tokens")
    if sample.given:
        facts.append(f"{sample.given:,} of them not sampled")
    if sample.logprob is not None:
        facts.append(f"log-prob {format_number(sample.logprob)}")
    return escape(" · ".join(fact for fact in facts if fact))


def _completion(sample: Sample) -> str:
    return (
        f'<div class="completion"><p>{_reward(sample)} <span class="note">{_facts(sample)}</span></p>'
        f'<div class="text" dir="auto">{visible(sample.completion)}</div></div>'
    )


def _step(story: Story, step: int) -> str:
    """A step's samples; of many the first few, and the rewards of all."""
    samples = story.by_step[step]
    parts = [_completion(sample) for sample in samples[:SAMPLES]]
    if len(samples) > SAMPLES:
        rewards = " ".join("–" if s.reward is None else format_number(s.reward) for s in samples[:32])
        parts.append(f'<p class="note">{SAMPLES} of {len(samples)} samples; rewards of all: {rewards}</p>')
    return "".join(parts)


def _when(story: Story, step: int) -> str:
    held_out = story.first.split != "train"
    return "before training (step 0)" if held_out and step == 0 else f"step {step:,}"


def _turn(story: Story, first: int, last: int) -> str:
    """From which reward to which, in words and with a direction."""
    before, after = story.reward(first), story.reward(last)
    if before is None or after is None:
        return '<span class="turn">a reward is missing</span>'
    kind, word = _TURNS[(after > before) - (after < before)]
    numbers = f"{format_number(before)} → {format_number(after)}"
    return f'<span class="turn {kind}">{numbers} <b>{word}</b></span>'


def _between(story: Story, steps: Sequence[int]) -> str:
    middle = steps[1:-1]
    shown = [middle[index] for index in spread(len(middle), STEPS_BETWEEN)]
    parts = []
    for step in shown:
        reward = story.reward(step)
        words = "" if reward is None else f' <span class="note">reward {format_number(reward)}</span>'
        parts.append(f"<details><summary>{_when(story, step)}{words}</summary>{_step(story, step)}</details>")
    return "".join(parts)


def story_card(story: Story, *, opened: bool) -> str:
    """One prompt: first and last side by side, the steps between them folded."""
    steps = list(story.by_step)
    first, last, sample = steps[0], steps[-1], story.first
    if first == last:
        reward = story.reward(first)
        turn = "" if reward is None else f'<span class="turn">mean reward {format_number(reward)}</span>'
    else:
        turn = _turn(story, first, last)
    columns = "".join(
        f"<div><h4>{_when(story, step)}</h4>{_step(story, step)}</div>"
        for step in dict.fromkeys((first, last))
    )
    answer = f'<h4>answer</h4><div class="text" dir="auto">{visible(sample.reference, 300)}</div>'
    return (
        f'<details class="story"{" open" if opened else ""}>'
        f"<summary>{one_line(sample.prompt, 48)} {turn}</summary>"
        f'<p class="note">Data row {sample.row}, {escape(sample.split)}: {escape(story.why)}.</p>'
        f'<h4>prompt</h4><div class="text" dir="auto">{visible(sample.prompt, 800)}</div>'
        f"{answer if sample.reference else ''}"
        f'<div class="sides">{columns}</div>{_between(story, steps)}</details>'
    )


def _cards(stories: Sequence[Story], budget: int) -> str:
    """As many cards as fit, the first one open."""
    cards: list[str] = []
    for story in stories:
        card = story_card(story, opened=not cards)
        if sum(map(len, cards)) + len(card) > budget:
            left = len(stories) - len(cards)
            cards.append(f'<p class="note">{left} more prompt(s) left out to keep this page small.</p>')
            break
        cards.append(card)
    return "".join(cards)


def completions(rollouts: Rollouts) -> str:
    """The section's content; empty if no completion was stored."""
    parts: list[str] = []
    if rollouts.held_out or rollouts.training:
        parts.append(
            '<p class="note">Marks for what would be overlooked: <i class="ws" data-mark="·"></i> space at an'
            ' end or repeated, <i class="ws" data-mark="↵"></i> line end, <i class="ws" data-mark="→"></i> tab.'
            " Copying a text leaves the marks out.</p>"
        )
    if rollouts.held_out:
        parts.append(f"<h3>Held-out prompts</h3>{_cards(rollouts.held_out, SECTION_BYTES * 2 // 3)}")
    if rollouts.training:
        parts.append(f"<h3>Training prompts</h3>{_cards(rollouts.training, SECTION_BYTES // 3)}")
    return "".join(parts)
