"""Sampled from the weights that are trained: every loss type, scaling of rewards, ratio level, KL term and mask."""

from benchmarks.peers_trl.expected import (
    BETA,
    L_MAX,
    PLAIN,
    REGULARIZED,
    VALUE,
    J,
    credit,
    grpo,
    rloo,
    shared,
)
from benchmarks.peers_trl.parts import (
    MDP,
    POLICY,
    REFERENCE,
    by_batch,
    by_group,
    by_group_then_batch,
    cispo,
    clipped_geometric,
    ended_token_mean,
    high_entropy_half,
    k3_alone,
    k3_times_geometric,
    k3_times_ratio,
    only_ended,
    sapo,
    sequence_mean,
    sequence_sum,
    token_mean,
    vespo,
    whitened_leave_one_out,
)
from rung import exact

PER_TOKEN = credit(lambda x: (x.reward - VALUE) / x.length, "on-policy")
ENDED = credit(lambda x: x.ended * (x.reward - VALUE), "on-policy")
REVERSE_KL = exact.sequence_kl_policy_reference(MDP, POLICY, REFERENCE).immediate
FORWARD_KL = exact.expected_over_prefixes(
    MDP, POLICY, lambda s: exact.prefix_kl_reference_policy(POLICY, REFERENCE, s).gradient
)
K3_PER_TOKEN = credit(lambda x: k3_times_ratio(x) / x.length, "on-policy")
K3_GEOMETRIC = credit(k3_times_geometric, "on-policy")

ON_POLICY = [
    rloo({"beta": 0.0}, "∇J", closed=lambda size: J),
    rloo(
        {"beta": BETA},
        "∇(J − β KL) of whole sequences: k1 is taken out of the reward",
        closed=lambda size: REGULARIZED,
    ),
    rloo(
        {"beta": 0.0, "normalize_advantages": True},
        "∇J with each batch's advantages less their mean and over their deviation; with one prompt the same as "
        "scaling by the group's deviation",
        advantage=whitened_leave_one_out,
    ),
    rloo(
        {"beta": 0.0, "normalize_advantages": True},
        "the same over two prompts: mean and deviation of four advantages",
        advantage=whitened_leave_one_out,
        prompts=2,
        sizes=(2,),
    ),
    rloo(
        {"beta": 0.0, "mask_truncated_completions": True},
        "the part of ∇J from sequences that reach the end token; the baseline counts all",
        factor=only_ended,
        closed=lambda size: ENDED,
    ),
    grpo("dr_grpo", PLAIN, "(G−1)/(G L_max) ∇J", closed=shared(J, 1 / L_MAX)),
    grpo(
        "luspo",
        PLAIN | {"importance_sampling_level": "sequence"},
        "(G−1)/G ∇J: summing over L tokens cancels the mean in the sequence's ratio",
        slope=clipped_geometric(),
        weight=sequence_sum,
        closed=shared(J),
    ),
    grpo(
        "grpo",
        PLAIN,
        "(G−1)/G E[(R − J)/L · ∇ log p]: each sequence's mean over tokens",
        weight=sequence_mean,
        closed=shared(PER_TOKEN),
    ),
    grpo(
        "grpo",
        PLAIN | {"importance_sampling_level": "sequence"},
        "as at token level: GSPO's ratio is 1 here, its slope 1/L for each token",
        slope=clipped_geometric(),
        weight=sequence_mean,
        closed=shared(PER_TOKEN),
    ),
    grpo(
        "sapo",
        PLAIN,
        "as grpo: the gate's slope is 1 at a ratio of 1",
        slope=sapo,
        weight=sequence_mean,
        closed=shared(PER_TOKEN),
    ),
    grpo(
        "bnpo",
        PLAIN,
        "the batch's sum over its number of tokens: a ratio of two random sums, a little off ∇J in direction",
        weight=token_mean,
    ),
    grpo("dapo", PLAIN, "as bnpo with one process and one batch an update", weight=token_mean),
    grpo(
        "dapo",
        PLAIN | {"importance_sampling_level": "sequence"},
        "as dapo: L tokens times a slope of 1/L each, over the batch's number of tokens",
        slope=clipped_geometric(),
        weight=token_mean,
    ),
    grpo("vespo", PLAIN, "as dapo: φ(1) = 1", slope=vespo, weight=token_mean),
    grpo(
        "cispo",
        PLAIN | {"epsilon_high": 5.0},
        "as dapo: 1 is below the cap",
        slope=cispo(5.0),
        weight=token_mean,
    ),
    grpo(
        "cispo",
        PLAIN,
        "0.2 times dapo: epsilon_high is the cap itself, and its default is epsilon = 0.2",
        slope=cispo(0.2),
        weight=token_mean,
    ),
    grpo(
        "dr_grpo",
        {},
        "(R − mean)/(deviation + 1e-4) of each group, summed over tokens and divided by G L_max",
        advantage=by_group,
    ),
    grpo(
        "dr_grpo",
        {"scale_rewards": "batch"},
        "centered by group, over the deviation of the batch's rewards: four of two prompts",
        advantage=by_batch,
        prompts=2,
        sizes=(2,),
    ),
    grpo(
        "dr_grpo",
        {"multi_objective_aggregation": "normalize_then_sum"},
        "scaled by group, then standardized over the batch again: with one prompt nearly the same as once",
        advantage=by_group_then_batch,
    ),
    grpo(
        "grpo",
        {},
        "scaled by group, each sequence's mean over tokens",
        advantage=by_group,
        weight=sequence_mean,
    ),
    grpo(
        "dapo",
        {},
        "TRL's default loss and scaling: scaled by group, over the batch's number of tokens",
        advantage=by_group,
        weight=token_mean,
    ),
    grpo(
        "dr_grpo",
        PLAIN | {"beta": BETA},
        "(G−1)/(G L_max) ∇J less β/L_max times the reverse KL's gradient at the visited prefixes: ρ k3 in the loss",
        kl=k3_times_ratio,
        closed=shared(J, 1 / L_MAX, BETA / L_MAX * REVERSE_KL),
    ),
    grpo(
        "dr_grpo",
        PLAIN | {"beta": BETA, "use_bias_correction_kl": False},
        "the same with the forward KL's gradient at the visited prefixes: k3 alone in the loss",
        kl=k3_alone,
        closed=shared(J, 1 / L_MAX, BETA / L_MAX * FORWARD_KL),
    ),
    grpo(
        "grpo",
        PLAIN | {"beta": BETA},
        "(G−1)/G E[(R − J)/L · ∇ log p] less β times the sequence's mean of ρ k3",
        weight=sequence_mean,
        kl=k3_times_ratio,
        closed=shared(PER_TOKEN, 1.0, BETA * K3_PER_TOKEN),
    ),
    grpo(
        "luspo",
        PLAIN | {"importance_sampling_level": "sequence", "beta": BETA},
        "(G−1)/G ∇J less β times the gradient of Σ_t s k3_t, s = exp(mean log ρ)",
        slope=clipped_geometric(),
        weight=sequence_sum,
        kl=k3_times_geometric,
        closed=shared(J, 1.0, BETA * K3_GEOMETRIC),
    ),
    grpo(
        "dr_grpo",
        PLAIN | {"mask_truncated_completions": True},
        "(G−1)/(G L_max) times the part of ∇J from sequences that reach the end token",
        factor=only_ended,
        closed=shared(ENDED, 1 / L_MAX),
    ),
    grpo(
        "dapo",
        PLAIN | {"mask_truncated_completions": True},
        "that part over the number of tokens of such sequences",
        factor=only_ended,
        weight=ended_token_mean,
    ),
    grpo(
        "dr_grpo",
        PLAIN | {"top_entropy_quantile": 0.5},
        "the part of (G−1)/(G L_max) ∇J from tokens whose entropy is at least the batch's median",
        factor=high_entropy_half,
    ),
]
