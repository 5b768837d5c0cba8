"""Sampling keys, uniforms and draws: a function of what they are given, and the right distribution."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rung.errors import ModelError
from rung.rollout.sampling import STREAMS, draw, sampling_key, uniforms

# The first outputs of SplitMix64 started at 1234567, as published with its reference implementations.
PUBLISHED = [
    6457827717110365317,
    3203168211198807973,
    9817491932198370423,
    4593380528125082431,
    16408922859458223821,
]


def test_uniforms_are_the_published_splitmix64_stream() -> None:
    keys = np.full(5, 1234567, dtype=np.uint64)
    found = uniforms(keys, np.arange(5))
    assert found.tolist() == [(output >> 11) / 2**53 for output in PUBLISHED]


def test_uniforms_lie_in_the_half_open_interval() -> None:
    keys = np.arange(10_000, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    found = uniforms(keys, np.arange(10_000))
    assert found.min() >= 0.0
    assert found.max() < 1.0
    assert len(set(found.tolist())) == 10_000


def test_a_position_does_not_depend_on_its_batch() -> None:
    keys = np.array([5, 2**63 + 1, 7], dtype=np.uint64)
    together = uniforms(keys, np.array([0, 9, 3]))
    alone = [uniforms(keys[i : i + 1], np.array([position]))[0] for i, position in enumerate((0, 9, 3))]
    assert together.tolist() == alone


def test_each_part_of_a_key_changes_it() -> None:
    parts = itertools.product((0, 1, 10**12), STREAMS, (0, 1, 2), (0, 1, 2), (0, 1, 2))
    keys = [sampling_key(*part) for part in parts]
    assert len(set(keys)) == len(keys) == 3 * 3 * 27
    assert all(0 <= key < 2**64 for key in keys)


def test_parts_of_a_key_do_not_stand_in_for_each_other() -> None:
    assert sampling_key(0, "train", 1, 2, 3) != sampling_key(0, "train", 3, 2, 1)
    assert sampling_key(0, "train", 0, 0, 1) != sampling_key(0, "train", 0, 1, 0)
    assert sampling_key(1, "train", 0, 0, 0) != sampling_key(0, "train", 1, 0, 0)


def test_keys_stay_as_they_are() -> None:
    """A change here would change every run: the values were computed with integers of any size, outside the library."""

    def mix(x: int) -> int:
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
        return x ^ x >> 31

    key = 0
    for part in (17, 2, 5, 1, 3):
        key = mix((key + 0x9E3779B97F4A7C15 + part) % 2**64)
    assert sampling_key(17, "eval", 5, 1, 3) == key == 15035097083121904800


# --- draw ---

QUARTERS = torch.tensor([[0.25, 0.0, 0.5, 0.25, 0.0]], dtype=torch.float64).log()


@pytest.mark.parametrize(
    ("uniform", "token"),
    [
        (0.0, 0),
        (np.nextafter(0.25, 0), 0),
        (0.25, 2),
        (0.5, 2),
        (np.nextafter(0.75, 0), 2),
        (0.75, 3),
        (1 - 2**-53, 3),
    ],
)
def test_a_draw_inverts_the_cumulative_distribution(uniform: float, token: int) -> None:
    tokens, logprobs = draw(QUARTERS, np.array([uniform]), 1.0)
    assert tokens.tolist() == [token]
    assert logprobs.item() == pytest.approx(math.log(0.5 if token == 2 else 0.25), abs=1e-15)


def test_tokens_of_probability_zero_are_never_drawn() -> None:
    logits = torch.tensor([-torch.inf, 0.0, -1e30, 0.3, -torch.inf], dtype=torch.float32)
    edges = np.array([0.0, 2**-53, 0.42555, 0.42556, 0.5, 1 - 2**-53])
    tokens, logprobs = draw(logits.expand(len(edges), -1), edges, 1.0)
    assert set(tokens.tolist()) <= {1, 3}
    assert bool(logprobs.isfinite().all())


some_logits = st.lists(st.floats(-30, 30), min_size=1, max_size=8)


@given(some_logits, st.integers(0, 2**53 - 1), st.sampled_from([0.3, 1.0, 2.5]))
def test_a_draw_is_the_first_token_whose_cumulative_probability_exceeds_the_number(
    logits: list[float], bits: int, temperature: float
) -> None:
    uniform = bits / 2**53
    weights = [math.exp((z - max(logits)) / temperature) for z in logits]
    below = np.cumsum([0.0, *weights]) / math.fsum(weights)
    tokens, logprobs = draw(torch.tensor([logits], dtype=torch.float64), np.array([uniform]), temperature)
    token = int(tokens)
    assert below[token] - 1e-12 <= uniform <= below[token + 1] + 1e-12
    assert float(logprobs) == pytest.approx(math.log(weights[token] / math.fsum(weights)), abs=1e-10)


def test_e1_the_log_probability_is_that_of_the_tempered_distribution() -> None:
    # The middle of three tokens at temperature 0.7 holds the numbers from 0.7655 to 0.9500.
    tokens, logprobs = draw(torch.tensor([[2.0, 1.0, 0.0]], dtype=torch.float64), np.array([0.9]), 0.7)
    assert tokens.tolist() == [1]
    assert logprobs.item() == pytest.approx(-1.68868983, abs=5e-9)


def test_a_tiny_temperature_is_greedy() -> None:
    logits = torch.tensor([[0.1, 0.3, 0.2]]).expand(200, -1)
    tokens, logprobs = draw(logits, np.linspace(0, 1 - 2**-53, 200), 1e-4)
    assert tokens.tolist() == [1] * 200
    assert float(logprobs.abs().max()) == 0.0


def test_a_greedy_row_takes_the_most_likely_token_whatever_the_number_and_the_others_their_draw() -> None:
    """Probabilities ¼, 0, ½, ¼: ½ is likeliest at any temperature; at ½ it has ½² / (¼² + ½² + ¼²) = 2/3."""
    greedy = torch.tensor([True, False, True, False])
    tokens, logprobs = draw(QUARTERS.expand(4, -1), np.array([0.0, 0.0, 0.99, 0.99]), 1.0, greedy)
    assert tokens.tolist() == [2, 0, 2, 3]
    assert logprobs.exp().tolist() == pytest.approx([0.5, 0.25, 0.5, 0.25], abs=1e-15)
    tokens, logprobs = draw(QUARTERS, np.array([0.0]), 0.5, torch.tensor([True]))
    assert (tokens.item(), logprobs.exp().item()) == (2, pytest.approx(2 / 3, abs=1e-15))


def test_of_equally_likely_tokens_the_greedy_one_is_the_first() -> None:
    tokens, _ = draw(torch.tensor([[0.0, 3.0, 3.0, 1.0]]), np.array([0.9]), 1.0, torch.tensor([True]))
    assert tokens.item() == 1


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_logits_that_are_no_distribution_are_refused(bad: float) -> None:
    with pytest.raises(ModelError, match="not finite"):
        draw(torch.tensor([[0.0, bad, 1.0]]), np.array([0.5]), 1.0)


# --- statistics ---

SAMPLES = 200_000


@pytest.mark.slow
def test_frequencies_over_keys_match_the_distribution() -> None:
    """200,000 keys of two prompts, G = 4; every count within 4.5 standard deviations of its expectation (21 counts)."""
    probabilities = torch.tensor([0.5, 0.2, 0.15, 0.1, 0.04, 0.009, 0.001], dtype=torch.float64)
    keys = np.array(
        [
            sampling_key(3, "train", row % 2, row // 2, sample)
            for row in range(SAMPLES // 4)
            for sample in range(4)
        ],
        dtype=np.uint64,
    )
    for position in (0, 1, 100):
        numbers = uniforms(keys, np.full(SAMPLES, position))
        tokens, _ = draw(probabilities.log().expand(SAMPLES, -1), numbers, 1.0)
        counts = torch.bincount(tokens, minlength=7).double()
        deviation = (SAMPLES * probabilities * (1 - probabilities)).sqrt()
        z = (counts - SAMPLES * probabilities) / deviation
        assert float(z.abs().max()) < 4.5


@pytest.mark.slow
def test_neighboring_samples_positions_rows_and_visits_are_uncorrelated() -> None:
    """100,000 pairs each; the correlation of two independent uniforms is within 4.5/√n of 0."""
    n = SAMPLES // 2

    def numbers(row: int, visit: int, sample: int, position: int) -> np.ndarray:
        keys = [sampling_key(i, "train", row, visit, sample) for i in range(n)]
        return uniforms(np.array(keys, dtype=np.uint64), np.full(n, position))

    base = numbers(0, 0, 0, 0)
    for other in (numbers(1, 0, 0, 0), numbers(0, 1, 0, 0), numbers(0, 0, 1, 0), numbers(0, 0, 0, 1)):
        assert abs(np.corrcoef(base, other)[0, 1]) < 4.5 / math.sqrt(n)
