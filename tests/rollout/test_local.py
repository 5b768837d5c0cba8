"""The engine in this process, on a float64 decoder: what it samples, what it records, and what it computes for it."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from rung.errors import InvalidInput, ModelError
from rung.models.layout import Row
from rung.models.policy import Policy
from rung.rollout import local
from rung.rollout.engine import Request
from rung.rollout.local import LocalEngine
from tests.decoders import exact_llama, naive_logprobs, plain
from tests.sampled import ENDS, LONG, REQUESTS, SHORT, sample


def uniform(key: int, position: int) -> float:
    """SplitMix64 at one position, in Python's own integers."""
    x = (key + 0x9E3779B97F4A7C15 * (position + 1)) % 2**64
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
    return ((x ^ x >> 31) >> 11) / 2**53


def one_by_one(
    request: Request, sample: int, ends: set[int], temperature: float
) -> tuple[list[int], list[float]]:
    """The same completion without batch, cache or padding: the whole text again for every token."""
    model = plain(exact_llama())
    tokens: list[int] = []
    logprobs: list[float] = []
    for position in range(request.max_new_tokens):
        with torch.no_grad():
            text = torch.tensor([[*request.prompt_ids, *tokens]])
            logits = model(input_ids=text, use_cache=False).logits[0, -1] / temperature
        weights = [math.exp(z) for z in logits.tolist()]
        total, below, number = math.fsum(weights), 0.0, uniform(request.keys[sample], position)
        token = -1
        while below <= number:
            token += 1
            below += weights[token] / total
        tokens.append(token)
        logprobs.append(math.log(weights[token] / total))
        if token in ends:
            break
    return tokens, logprobs


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_every_token_is_what_its_key_and_the_text_before_it_say(temperature: float) -> None:
    found = sample(temperature=temperature)
    assert len(found) == 12
    for (group, number), completion in found.items():
        tokens, logprobs = one_by_one(REQUESTS[group], number, ENDS, temperature)
        assert list(completion.token_ids) == tokens
        np.testing.assert_allclose(completion.behaviour_logprobs, logprobs, rtol=0, atol=1e-12)
        assert completion.sampling_key == REQUESTS[group].keys[number]
        assert completion.prompt_ids == REQUESTS[group].prompt_ids


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_a_greedy_request_takes_the_most_likely_token_and_disturbs_no_other(temperature: float) -> None:
    """Its log-probabilities are those of the policy at the engine's temperature, which moves no greedy token."""
    greedy = [Request(LONG, (101,), 7, 12, greedy=True), Request(SHORT, (5,), 8, 5, greedy=True)]
    found = sample([*REQUESTS, *greedy], temperature=temperature)
    model = plain(exact_llama())
    for request in greedy:
        completion = found.pop((request.group, 0))
        for position in range(len(completion.token_ids)):
            with torch.no_grad():
                text = torch.tensor([[*request.prompt_ids, *completion.token_ids[:position]]])
                logits = model(input_ids=text, use_cache=False).logits[0, -1]
            assert completion.token_ids[position] == int(logits.argmax())
        row = Row(request.prompt_ids, completion.token_ids)
        np.testing.assert_allclose(
            completion.behaviour_logprobs,
            naive_logprobs(model, row, temperature).detach(),
            rtol=0,
            atol=1e-12,
        )
        ended = completion.token_ids[-1] in ENDS
        assert completion.end_reason == ("stop" if ended else "length")
        assert ended or len(completion.token_ids) == request.max_new_tokens
    expected = sample(temperature=temperature)
    assert {key: c.token_ids for key, c in found.items()} == {key: c.token_ids for key, c in expected.items()}


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_behaviour_is_the_policy_at_that_temperature(temperature: float) -> None:
    model = exact_llama()
    done = list(sample(model=model, temperature=temperature).values())
    policy = Policy(model, temperature=temperature)
    assert policy.path == "grouped"
    with torch.no_grad():
        logprobs = policy([Row(c.prompt_ids, c.token_ids) for c in done]).logprobs
        other = Policy(model, temperature=1.3)([Row(c.prompt_ids, c.token_ids) for c in done]).logprobs
    for i, completion in enumerate(done):
        behaviour = torch.tensor(completion.behaviour_logprobs, dtype=torch.float64)
        torch.testing.assert_close(logprobs[i, : len(behaviour)], behaviour, rtol=0, atol=1e-10)
    assert float((other - logprobs).abs().max()) > 0.1


def test_e3_a_model_left_in_training_mode_samples_without_its_dropout() -> None:
    model = exact_llama(attention_dropout=0.1).train()
    found = sample(model=model)
    for completion in found.values():
        own = naive_logprobs(plain(model.eval()), Row(completion.prompt_ids, completion.token_ids))
        np.testing.assert_allclose(completion.behaviour_logprobs, own.tolist(), rtol=0, atol=1e-12)


# --- ends ---


def test_ends_and_caps() -> None:
    found = sample()
    reasons = {completion.end_reason for completion in found.values()}
    assert reasons == {"stop", "length"}
    last = {completion.token_ids[-1] for completion in found.values() if completion.end_reason == "stop"}
    assert last == ENDS  # both ends occur
    for (group, _), completion in found.items():
        assert not ENDS & set(completion.token_ids[:-1])
        assert (completion.token_ids[-1] in ENDS) == (completion.end_reason == "stop")
        if completion.end_reason == "length":
            assert len(completion.token_ids) == REQUESTS[group].max_new_tokens
        assert completion.sampled == (True,) * len(completion.token_ids)


def script(monkeypatch: pytest.MonkeyPatch, texts: Sequence[Sequence[int]]) -> None:
    """Let the rows, known by their keys 0, 1, …, say these tokens; log-probabilities stay the model's."""
    seen: list[np.ndarray] = []
    true_uniforms = local.uniforms

    def remember(keys: np.ndarray, positions: np.ndarray) -> np.ndarray:
        seen.append(keys)
        assert len(set(positions.tolist())) == 1
        return true_uniforms(keys, positions)

    def say(
        logits: torch.Tensor, uniform: np.ndarray, temperature: float, *_: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        position = len(seen) - 1
        tokens = torch.tensor([texts[int(key)][position] for key in seen[-1]])
        table = (logits / temperature).log_softmax(-1)
        return tokens, table.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)

    monkeypatch.setattr(local, "uniforms", remember)
    monkeypatch.setattr(local, "draw", say)


def test_c3_every_declared_end_token_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    script(monkeypatch, [[5, 6, 32], [5, 33, 77], [5, 6, 7]])
    model = exact_llama(vocab_size=80)
    found = sample([Request((1, 2), (0, 1, 2), 0, 3)], model=model, ends={32, 33})
    assert [found[0, i].token_ids for i in range(3)] == [(5, 6, 32), (5, 33), (5, 6, 7)]
    assert [found[0, i].end_reason for i in range(3)] == ["stop", "stop", "length"]
    finished = [len(c.token_ids) for c in found.values() if c.end_reason == "stop"]
    assert sum(finished) / len(finished) == 2.5


def test_c2_only_the_completion_is_searched_for_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    script(monkeypatch, [[7, 8, 6], [7, 8, 9], [7, 5, 0]])
    model = exact_llama(vocab_size=60)
    found = sample([Request((1, 50, 9, 9), (0, 1, 2), 0, 3)], model=model, ends={9, 5})
    assert [found[0, i].end_reason for i in range(3)] == ["length", "stop", "stop"]
    assert found[0, 2].token_ids == (7, 5)


def test_c12_the_end_token_is_an_action_with_its_log_probability(monkeypatch: pytest.MonkeyPatch) -> None:
    script(monkeypatch, [[6, 7, 12]])
    model = exact_llama()
    found = sample([Request(SHORT, (0,), 0, 9)], model=model)[0, 0]
    assert found.token_ids == (6, 7, 12)
    own = naive_logprobs(plain(model), Row(SHORT, (6, 7, 12)))
    assert len(found.behaviour_logprobs) == 3
    assert math.fsum(found.behaviour_logprobs) == pytest.approx(float(own.detach().sum()), abs=1e-12)


def test_an_end_at_the_cap_is_a_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    script(monkeypatch, [[6, 12], [6, 7]])
    found = sample([Request(SHORT, (0, 1), 0, 2)])
    assert [found[0, i].end_reason for i in range(2)] == ["stop", "length"]


@pytest.mark.slow
def test_pairs_of_tokens_have_their_exact_frequencies() -> None:
    """8,192 samples of two tokens over 5 words; each of the 25 pairs within 4.5 standard deviations (z) of exact."""
    n, words = 8192, 5
    model = exact_llama(vocab_size=words, pad_token_id=None, eos_token_id=1)
    done = sample([Request((3, 1), tuple(range(n)), 0, 2)], model=model, ends=set(), max_rows=n)
    counts = torch.zeros(words, words, dtype=torch.float64)
    for completion in done.values():
        counts[completion.token_ids] += 1
    exact = torch.zeros_like(counts)
    for a in range(words):
        for b in range(words):
            exact[a, b] = naive_logprobs(plain(model), Row((3, 1), (a, b))).detach().sum().exp()
    assert float(exact.sum()) == pytest.approx(1.0, abs=1e-12)
    z = (counts - n * exact) / (n * exact * (1 - exact)).sqrt()
    assert float(z.abs().max()) < 4.5


# --- weights ---


def test_load_copies_foreign_weights_and_counts_the_version() -> None:
    model, other = exact_llama(seed=0), exact_llama(seed=1)
    engine = LocalEngine(model, ENDS)
    before = {(c.group, c.sample): c for c in engine.generate(REQUESTS)}
    engine.load(7, other.named_parameters())
    after = {(c.group, c.sample): c for c in engine.generate(REQUESTS)}
    expected = sample(model=other)
    for which, completion in after.items():
        assert completion.token_ids == expected[which].token_ids
        assert completion.behaviour_logprobs == expected[which].behaviour_logprobs
        assert completion.policy_versions == (7,) * len(completion.token_ids)
        assert set(before[which].policy_versions) == {0}
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs)
        assert mine.data_ptr() != theirs.data_ptr()


def test_load_takes_a_whole_state_with_tied_weights() -> None:
    model, other = (exact_llama(seed=seed, tie_word_embeddings=True) for seed in (0, 1))
    LocalEngine(model, ENDS).load(1, other.state_dict().items())
    assert torch.equal(model.lm_head.weight, other.lm_head.weight)
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()


def test_a_version_that_changes_on_the_way_is_recorded_token_by_token() -> None:
    model = exact_llama()
    engine = LocalEngine(model, ENDS)
    stream = engine.generate(REQUESTS)
    first = next(stream)
    engine.load(1, [])
    rest = list(stream)
    assert set(first.policy_versions) == {0}
    longest = max(rest, key=lambda completion: len(completion.token_ids))
    at = len(first.token_ids)
    assert longest.policy_versions == (0,) * at + (1,) * (len(longest.token_ids) - at)


def test_weights_that_do_not_fit_are_refused() -> None:
    engine = LocalEngine(exact_llama(), ENDS)
    with pytest.raises(InvalidInput, match="not there"):
        engine.load(1, [("model.nothing", torch.zeros(1))])
    with pytest.raises(InvalidInput, match=r"\(1,\) does not fit this model: \(16,\)"):
        engine.load(1, [("model.norm.weight", torch.zeros(1))])
    assert engine.version == 0


# --- refusals ---


@pytest.mark.parametrize(
    "wrong", [{"prompt_ids": ()}, {"keys": ()}, {"max_new_tokens": 0}], ids=lambda wrong: next(iter(wrong))
)
def test_requests_that_nobody_can_serve(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="at least one"):
        Request(**({"prompt_ids": (1,), "keys": (1,), "group": 0, "max_new_tokens": 1} | wrong))


def test_a_greedy_request_has_one_sample() -> None:
    with pytest.raises(InvalidInput, match="one sample, as all would be the same; got 2 keys"):
        Request((1,), (1, 2), 0, 1, greedy=True)


@pytest.mark.parametrize("wrong", [{"temperature": 0.0}, {"temperature": -1.0}, {"max_rows": 0}], ids=str)
def test_settings_that_make_no_sense(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(wrong))):
        LocalEngine(exact_llama(), ENDS, **wrong)


def test_more_tokens_than_positions() -> None:
    with pytest.raises(InvalidInput, match="64 positions"):
        sample([Request(LONG, (1,), 0, 58)])
    assert sample([Request(LONG, (1,), 0, 57)])


def test_damaged_weights_are_an_error_and_no_token() -> None:
    model = exact_llama()
    with torch.no_grad():
        model.model.norm.weight[0] = torch.nan
    with pytest.raises(ModelError, match="not finite"):
        sample(model=model)
