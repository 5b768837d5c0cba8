"""What each recorded number means, in one place: terminal, documentation and report all read it here.

Axis words: B completions in a step, T tokens after the prompt, m the mask (1 where the policy sampled the
token, end token included), π the policy, π_ref the reference, q the distribution that was sampled from.
Logarithms are natural, so divergences and entropies are in nats. Only the standard library is imported.
"""

from rung.tracking.metric import Metric
from rung.tracking.update_metrics import DIVERGENCE, UPDATE

__all__ = ["METRICS", "Metric"]

# A metric reads better as a paragraph than as ten lines.
# fmt: off
_POSITION = [
    Metric(
        "step", "Step", "Training steps finished when the line was written", "steps",
        "1, 2, 3, …; 0 before training", "none: a count", "grows by one a line of its kind",
        "a repeated step: the run was resumed from an earlier checkpoint",
    ),
    Metric(
        "kind", "Kind of line", "Whether the line describes a training step or an evaluation",
        "“train” or “eval”", "written as it is", "none", "one train line a step",
        "none of one kind: that part never ran",
    ),
    Metric(
        "split", "Split", "Which problems an evaluation used; no problem is in two splits",
        "“validation” or “test”", "written as it is", "none", "test only where a final figure is needed",
        "test looked at often: it has become a second validation set",
    ),
]

_REWARD = [
    Metric(
        "reward_mean", "Reward", "Mean outcome reward of the completions, before any KL penalty",
        "reward units", "Σᵢ Rᵢ / n",
        "n = completions that got a reward (errors, timeouts and abstentions are not in it)",
        "the task's reward range; for a right-or-wrong task, the fraction that is right",
        "training rises while held-out stays: it learns the training prompts, or a weakness of the judge",
    ),
    Metric(
        "reward_std", "Spread of the reward",
        "Standard deviation of the outcome reward over the step's completions", "reward units",
        "√(Σᵢ (Rᵢ − R̄)² / (n − 1))", "n = completions that got a reward",
        "above 0 while there is something to learn",
        "0: all completions got the same reward: beside a KL penalty there is nothing to learn from",
    ),
    Metric(
        "reward_errors", "Not judged",
        "Completions without a reward: the judge failed, ran out of time or abstained", "completions",
        "#{outcome is error, timeout or abstain}", "none: a count", "0",
        "above 0: the judge does not cope with some text; these carry no credit and never count as wrong",
    ),
    Metric(
        "groups_drawn", "Groups drawn", "Prompts drawn for a step whose method leaves groups out", "groups",
        "rounds × prompts per step", "none: a count", "prompts per step to max_rounds times as many",
        "max_rounds times as many, all the time: prompts are too easy or too hard, and steps train on few of them",
    ),
    Metric(
        "groups_dropped", "Groups left out", "Drawn prompts that the method's selection left out", "groups",
        "#{g : no completion of g is selected}", "none: a count",
        "grows as the task is solved; of the others the first prompts_per_step train",
        "equal to the groups drawn: the step had nothing to train on",
    ),
    Metric(
        "greedy_reward_mean", "Reward, greedy",
        "Mean outcome reward of the greedy completions of the step's prompts, which are subtracted as baselines",
        "reward units", "Σ R(greedy) / n", "n = greedy completions that got a reward",
        "near the reward of the samples, usually above it", "far below it: the most likely answer is a bad one",
    ),
    Metric(
        "greedy_errors", "Not judged, greedy",
        "Greedy completions without a reward; the samples of their prompts are left out of the update", "completions",
        "#{greedy outcome is error, timeout or abstain}", "none: a count", "0",
        "above 0: the judge does not cope with some text, and prompts are lost",
    ),
    Metric(
        "greedy_tokens", "Tokens, greedy", "Tokens of the greedy completions, which are sampled beside the others",
        "tokens", "Σ length of greedy completions", "none: a count", "tokens / samples per prompt, or less",
        "at the cap for every prompt: the most likely answer does not end",
    ),
    Metric(
        "groups_without_signal", "Groups without signal",
        "Groups whose completions all got the same reward, or that have fewer than two rewards", "groups",
        "#{g : fewer than two rewards in g, or max R = min R}", "none: a count per step",
        "below the number of prompts; grows as the task is solved",
        "near the number of prompts: they are all too easy or all too hard; only a KL penalty still acts",
    ),
    Metric(
        "completions", "Completions", "Completions sampled for the step or the evaluation", "completions",
        "prompts × samples per prompt", "none: a count", "constant; a multiple where a method leaves groups out",
        "fewer than configured: the data ran out or sampling was cut short",
    ),
    Metric(
        "tokens", "Tokens", "Tokens that count: sampled by the policy (RL), or of the answers (SFT)", "tokens",
        "Σ m", "none: a count", "completions × mean length (RL), answers with their end token (SFT)",
        "0: nothing was trained on",
    ),
]

_HELD_OUT = [
    Metric(
        "reward_low", "Reward, lower end", "Lower end of the 95 % interval of the held-out mean reward",
        "reward units", "Wilson's score interval if all rewards are 0 or 1, otherwise R̄ − 1.96 s/√n",
        "n = completions that got a reward", "narrows as 1/√n",
        "before and after overlap: the difference may be chance",
    ),
    Metric(
        "reward_high", "Reward, upper end", "Upper end of the 95 % interval of the held-out mean reward",
        "reward units", "Wilson's score interval if all rewards are 0 or 1, otherwise R̄ + 1.96 s/√n",
        "n = completions that got a reward", "narrows as 1/√n",
        "before and after overlap: the difference may be chance",
    ),
    Metric(
        "full_reward", "Full reward", "Fraction of held-out completions that got the reward 1", "fraction",
        "#{R = 1} / n", "n = completions that got a reward", "0 to 1; equals the reward if the task gives 0 or 1 only",
        "flat while the reward rises: partial credit is what improves",
    ),
    Metric(
        "full_reward_low", "Full reward, lower end", "Lower end of the 95 % interval of the full reward",
        "fraction", "Wilson's score interval", "n = completions that got a reward", "narrows as 1/√n",
        "before and after overlap: the difference may be chance",
    ),
    Metric(
        "full_reward_high", "Full reward, upper end", "Upper end of the 95 % interval of the full reward",
        "fraction", "Wilson's score interval", "n = completions that got a reward", "narrows as 1/√n",
        "before and after overlap: the difference may be chance",
    ),
    Metric(
        "n", "Judged", "Held-out completions behind the mean", "completions", "#{outcome is a reward}",
        "none: a count", "the same at every evaluation of a split",
        "it changes: judging failed for some, so two evaluations are not over the same problems",
    ),
    Metric(
        "kl_policy_reference", "KL(π‖π_ref), held out",
        "Distance of the policy from the reference on held-out prompts, by k1 on its own samples",
        "nats per sequence", "meanᵢ Σ_t m (log π − log π_ref)", "completions: a sum over tokens, not a mean",
        "0 before training, then grows; non-negative up to sampling noise",
        "grows much faster than the reward: the policy drifts without gain",
    ),
    Metric(
        "kl_policy_reference_low", "KL(π‖π_ref), lower end", "Lower end of the 95 % interval of the held-out KL",
        "nats per sequence", "mean − 1.96 s/√n over sequences", "n = completions", "narrows as 1/√n",
        "clearly below 0: the samples are not from the policy",
    ),
    Metric(
        "kl_policy_reference_high", "KL(π‖π_ref), upper end",
        "Upper end of the 95 % interval of the held-out KL", "nats per sequence", "mean + 1.96 s/√n over sequences",
        "n = completions", "narrows as 1/√n", "far above the mean: a few sequences dominate it",
    ),
]

_LENGTH = [
    Metric(
        "length_mean", "Length", "Mean number of sampled tokens in a completion, end token included",
        "tokens", "Σ m / B", "B completions", "between 1 and the length cap",
        "drifts with the reward flat: the loss or the judge favors a length, not an answer",
    ),
    Metric(
        "stop_fraction", "Stopped by itself",
        "Fraction of completions that ended with an end token and not at the length cap", "fraction",
        "#{end reason is stop} / B", "B completions", "0 to 1, near 1 for a trained model",
        "low: completions are cut, so their reward judges an unfinished answer; raise the cap",
    ),
]
# fmt: on


def _seconds(name: str, label: str, meaning: str, odd: str) -> Metric:
    return Metric(name, label, meaning, "seconds", "wall time of the phase", "none: per step", "steady", odd)


_TIMING = [
    _seconds("collect", "Collect", "Time to sample the step's completions", "grows: completions get longer"),
    _seconds(
        "reward",
        "Reward (time)",
        "Time to judge the completions",
        "grows: the judge hangs on some text",
    ),
    _seconds(
        "annotate",
        "Annotate",
        "Time to compute old and reference log-probabilities",
        "above the update: the batch is split too finely",
    ),
    _seconds("update", "Update", "Time for forward, backward and optimizer", "grows: completions get longer"),
    _seconds(
        "record",
        "Record",
        "Time to write metrics and completions",
        "a share you notice: the disk is slow",
    ),
    _seconds(
        "total",
        "Total",
        "Time of the whole step, without evaluations and checkpoints",
        "more than its phases: something is not measured",
    ),
    Metric(
        "tokens_per_second",
        "Speed",
        "Tokens sampled (RL) or imitated (SFT) in each second of the step",
        "tokens per second",
        "(tokens + greedy_tokens) / total",
        "seconds of the whole step",
        "steady",
        "falls: fewer completions are in flight at the end of a batch, or the machine is shared",
    ),
]

METRICS: dict[str, Metric] = {
    metric.name: metric
    for part in (_POSITION, _REWARD, _HELD_OUT, _LENGTH, UPDATE, DIVERGENCE, _TIMING)
    for metric in part
}
