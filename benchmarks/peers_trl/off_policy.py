"""Sampled from μ, trained at π.

Stale: μ are earlier weights, and TRL holds their log-probs as old (`num_iterations=2`, the second pass over a batch).
Mismatch: μ is an engine whose distribution differs from the trainer's (`use_vllm`); old is the trainer's own.
"""

from typing import Any

import numpy as np

from benchmarks.peers_trl.expected import (
    BEHAVIOUR_VALUE,
    BETA,
    L_MAX,
    PLAIN,
    Closed,
    J,
    Row,
    credit,
    grpo,
    rloo,
    shared,
)
from benchmarks.peers_trl.parts import (
    BEHAVIOUR,
    MDP,
    POLICY,
    REFERENCE,
    Factor,
    Sample,
    by_group,
    cispo,
    clipped,
    clipped_geometric,
    clipped_sequence,
    engine_sequence,
    engine_token,
    k3_alone,
    k3_times_ratio,
    near_or_positive,
    sapo,
    sequence_mean,
    sequence_sum,
    token_mean,
    vespo,
    vespo_engine,
)
from rung import exact

# --- stale -----------------------------------------------------------------------------------------------------------


def whole_ratio(x: Sample) -> float:
    return float(np.exp((x.policy - x.behaviour).sum()))


TOKEN_RATIO = credit(lambda x: x.ratio * (x.reward - BEHAVIOUR_VALUE), "stale")
OLD_PENALTY = credit(
    lambda x: whole_ratio(x) * (x.reward - BETA * (x.behaviour - x.reference).sum()), "stale"
)
REVERSE_KL = exact.expected_over_prefixes(
    MDP, BEHAVIOUR, lambda s: exact.prefix_kl_policy_reference(POLICY, REFERENCE, s).gradient
)
K3_ALONE = credit(k3_alone, "stale")


def stale_rloo(config: dict[str, Any], estimates: str, **parts: Any) -> Row:
    return rloo({"num_iterations": 2} | config, estimates, situation="stale", **parts)


def stale(loss_type: str, config: dict[str, Any], estimates: str, **parts: Any) -> Row:
    return grpo(loss_type, {"num_iterations": 2} | config, estimates, situation="stale", **parts)


STALE = [
    stale_rloo(
        {"beta": 0.0, "epsilon": 10.0},
        "∇J: the ratio of whole sequences, never clipped",
        slope=clipped_sequence(10.0, 10.0),
        closed=lambda size: J,
    ),
    stale_rloo(
        {"beta": 0.0},
        "∇J without the sequences whose ratio left 1 ± 0.2 on the side of their advantage",
    ),
    stale_rloo(
        {"beta": BETA, "epsilon": 10.0},
        "∇E_π[R − β Σ log(π_old/π_ref)] with the penalty a number of each sequence, at the weights that sampled",
        slope=clipped_sequence(10.0, 10.0),
        closed=lambda size: OLD_PENALTY,
    ),
    stale(
        "dr_grpo",
        PLAIN | {"epsilon": 10.0},
        "(G−1)/(G L_max) E_μ[Σ_t ρ_t (R − J(μ)) ∇ log π]: prefix from μ, token from π, rest from μ",
        slope=clipped(10.0, 10.0),
        closed=shared(TOKEN_RATIO, 1 / L_MAX),
    ),
    stale("dr_grpo", PLAIN, "the same without the tokens that are clipped at 1 ± 0.2"),
    stale(
        "dr_grpo",
        PLAIN | {"epsilon_high": 0.5},
        "the same, clipped below 0.8 and above 1.5",
        slope=clipped(0.2, 0.5),
    ),
    stale(
        "dr_grpo",
        PLAIN | {"delta": 1.5},
        "clipped at 1 ± 0.2, and for negative advantages also above 1.5",
        slope=clipped(delta=1.5),
    ),
    stale(
        "dr_grpo",
        PLAIN | {"off_policy_mask_threshold": 0.1},
        "clipped at 1 ± 0.2, without sequences of negative advantage whose mean log(π_old/π) is above 0.1",
        factor=near_or_positive(0.1),
    ),
    stale("grpo", PLAIN, "token ratios clipped at 1 ± 0.2, each sequence's mean", weight=sequence_mean),
    stale(
        "grpo",
        PLAIN | {"importance_sampling_level": "sequence"},
        "GSPO: (1/L) s A with s = exp(mean log ρ), clipped at 1 ± 0.2",
        slope=clipped_geometric(),
        weight=sequence_mean,
    ),
    stale(
        "luspo",
        PLAIN | {"importance_sampling_level": "sequence"},
        "s A summed over tokens, s = exp(mean log ρ) clipped at 1 ± 0.2",
        slope=clipped_geometric(),
        weight=sequence_sum,
    ),
    stale(
        "bnpo",
        PLAIN,
        "token ratios clipped at 1 ± 0.2, over the batch's number of tokens",
        weight=token_mean,
    ),
    stale("dapo", PLAIN, "as bnpo with one process and one batch an update", weight=token_mean),
    stale(
        "dapo",
        {},
        "TRL's default loss and scaling: scaled by group, token ratios clipped at 1 ± 0.2, over the number of tokens",
        advantage=by_group,
        weight=token_mean,
    ),
    stale(
        "cispo",
        PLAIN | {"epsilon_high": 5.0},
        "min(ρ_t, 5) A, over the batch's number of tokens",
        slope=cispo(5.0),
        weight=token_mean,
    ),
    stale(
        "cispo",
        PLAIN,
        "min(ρ_t, 0.2) A, over the batch's number of tokens",
        slope=cispo(0.2),
        weight=token_mean,
    ),
    stale(
        "sapo",
        PLAIN,
        "4 σ(1 − σ) ρ_t A, σ = σ(τ(ρ_t − 1)), each sequence's mean",
        slope=sapo,
        weight=sequence_mean,
    ),
    stale(
        "vespo",
        PLAIN,
        "φ(w) A with w the ratio of the whole sequence, over the batch's number of tokens",
        slope=vespo,
        weight=token_mean,
    ),
    stale(
        "dr_grpo",
        PLAIN | {"epsilon": 10.0, "beta": BETA},
        "token ratios as above, less β/L_max times the reverse KL's gradient at the prefixes of μ",
        slope=clipped(10.0, 10.0),
        kl=k3_times_ratio,
        closed=shared(TOKEN_RATIO, 1 / L_MAX, BETA / L_MAX * REVERSE_KL),
    ),
    stale(
        "dr_grpo",
        PLAIN | {"epsilon": 10.0, "beta": BETA, "use_bias_correction_kl": False},
        "token ratios as above, less β/L_max E_μ[Σ_t (1 − π_ref/π) ∇ log π]",
        slope=clipped(10.0, 10.0),
        kl=k3_alone,
        closed=shared(TOKEN_RATIO, 1 / L_MAX, BETA / L_MAX * K3_ALONE),
    ),
]


# --- mismatch --------------------------------------------------------------------------------------------------------

NO_RATIO = credit(lambda x: x.reward - BEHAVIOUR_VALUE, "mismatch")


def by_engine(factor: Factor) -> Closed:
    """(G−1)/(G L_max) E_μ[weight · (R − J(μ)) ∇ log π]."""
    return shared(credit(lambda x: factor(x, 0.0, []) * (x.reward - BEHAVIOUR_VALUE), "mismatch"), 1 / L_MAX)


def engine(config: dict[str, Any], estimates: str, factor: Factor) -> Row:
    """dr_grpo, so that only the sampler's weights differ from row to row."""
    config = PLAIN | {"use_vllm": True} | {f"vllm_importance_sampling_{k}": v for k, v in config.items()}
    return grpo("dr_grpo", config, estimates, situation="mismatch", factor=factor, closed=by_engine(factor))


MISMATCH = [
    rloo(
        {"beta": 0.0, "use_vllm": True},
        "E_μ[(R − J(μ)) ∇ log p_π]: the sampler's log-probs are not asked for",
        situation="mismatch",
        closed=lambda size: NO_RATIO,
    ),
    engine(
        {"correction": False},
        "(G−1)/(G L_max) E_μ[(R − J(μ)) ∇ log p_π]",
        lambda x, a, batch: 1.0,
    ),
    engine(
        {"mode": "sequence_truncate", "clip_max": 100.0},
        "(G−1)/(G L_max) ∇J: the weight of whole sequences, never cut",
        engine_sequence(100.0),
    ),
    engine(
        {},
        "(G−1)/(G L_max) E_μ[w (R − J(μ)) ∇ log p_π] by TRL's default: w the weight of a sequence, or 0 above 3, "
        "where no weight of toy C is",
        engine_sequence(3.0, mask=True),
    ),
    engine(
        {"mode": "sequence_mask", "clip_max": 1.2},
        "the same with the weight of a sequence, or 0 above 1.2",
        engine_sequence(1.2, mask=True),
    ),
    engine(
        {"mode": "sequence_truncate", "clip_max": 1.2},
        "the same with the weight of a sequence, at most 1.2",
        engine_sequence(1.2),
    ),
    engine(
        {"mode": "token_truncate", "clip_max": 1.2},
        "the same with the weight of each token, at most 1.2",
        engine_token(1.2),
    ),
    engine(
        {"mode": "token_mask", "clip_max": 1.2, "clip_min": 0.5},
        "the same with the weight of each token, or 0 outside 0.5 to 1.2",
        engine_token(1.2, low=0.5, mask=True),
    ),
    grpo(
        "vespo",
        PLAIN | {"use_vllm": True, "vllm_importance_sampling_mode": "token_truncate"},
        "φ(w) A with w the product of token weights, each at most 3, over the batch's number of tokens",
        slope=vespo_engine,
        weight=token_mean,
        situation="mismatch",
    ),
]
