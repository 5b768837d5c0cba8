"""The numbers of a step's updates, and of how far they went. Words and symbols as in `definitions`."""

from rung.tracking.metric import Metric

# A metric reads better as a paragraph than as ten lines.
# fmt: off
UPDATE = [
    Metric(
        "loss", "Loss", "What the optimizer step minimizes, before the step",
        "reward units × nats in RL, nats per token in SFT",
        "RL: Σ weights · token loss, with a KL term that stands in the loss; SFT: −Σ m log π / Σ m",
        "the method's aggregation; mean over the step's updates",
        "RL: any sign, near 0, not a measure of progress; SFT: falls from about log V",
        "not finite: the run has diverged; SFT rises: the learning rate is too high",
    ),
    Metric(
        "grad_norm", "Gradient norm", "Length of the whole gradient before clipping",
        "loss units per parameter unit", "√(Σ g²) over all trained parameters",
        "mean over the step's updates", "same order of magnitude all along",
        "jumps: a bad batch; 0: no credit arrived; not finite: diverged",
    ),
    Metric(
        "clip_fraction", "Clipped tokens",
        "Fraction of tokens on which the clip acts: it sets their gradient to zero (CISPO: it caps their ratio)",
        "fraction",
        "#{A > 0 and ρ > 1+ε, or A < 0 and ρ < 1−ε (with a dual clip c also ρ > c)} / Σ m; GSPO: ρ and A are those of "
        "the token's sequence; CISPO: #{ρ > cap} / Σ m", "counted tokens",
        "0 in the first update of a step, then usually below 0.2",
        "high: the policy moves far within one step; lower the learning rate or do fewer updates",
    ),
    Metric(
        "learning_rate", "Learning rate", "Step size of the optimizer in the step's last update",
        "parameter units per update", "the schedule at this update", "none", "follows the schedule",
        "0: nothing is learned",
    ),
    Metric(
        "updates", "Updates", "Optimizer updates since the run began", "updates",
        "steps × epochs × mini-batches", "none: a running count", "grows by the same number every step",
        "it stays: the step had nothing to train on, or its trust region accepted no step",
    ),
    Metric(
        "baseline", "Baseline", "What is subtracted from the step's returns: an average of the batches before it",
        "reward units", "b ← m b + (1 − m) mean R after each batch", "completions that got a reward",
        "follows the reward, KL penalty subtracted, some steps behind", "stays: no completion got a reward",
    ),
    Metric(
        "backtracks", "Backtracks", "How often the step of the trust region was shortened before it was accepted",
        "times", "smallest n for which the step × 0.8ⁿ keeps KL(old‖π) ≤ δ and lowers the loss", "none: a count",
        "0 to 3", "the most there may be: no step was accepted",
    ),
    Metric(
        "accepted", "Step accepted", "Whether the trust region accepted a step; if not, no weight was changed",
        "0 or 1", "1 if a step kept KL(old‖π) ≤ δ and lowered the loss", "none", "1",
        "0: the batch says too little; larger batches, or another max_kl",
    ),
]

DIVERGENCE = [
    Metric(
        "kl_policy_reference_k1", "KL(π‖π_ref), k1",
        "Distance of the policy from the reference on the samples that train, before the update, by k1",
        "nats per sequence",
        "meanᵢ Σ_t m (log π − log π_ref)", "completions: a sum over tokens, not a mean",
        "0 at step 1, then grows; unbiased, so single steps may be slightly negative",
        "clearly negative: the samples are not from the policy; very large: the penalty is too weak",
    ),
    Metric(
        "kl_policy_reference_k3", "KL(π‖π_ref), k3",
        "The same distance by estimator k3, which is never negative", "nats per sequence",
        "meanᵢ Σ_t m (π_ref/π − 1 + log π − log π_ref)", "completions: a sum over tokens, not a mean",
        "close to k1, often steadier",
        "far above k1: a few tokens that the policy finds very unlikely dominate it",
    ),
    Metric(
        "kl_old_policy", "KL(old‖π)",
        "How far the step's updates moved the policy, by k3 on the step's samples, after the updates",
        "nats per token", "Σ m (π/π_old − 1 − log π + log π_old) / Σ m", "counted tokens",
        "around the target of the method, or below the bound of its trust region",
        "far above: the updates went where the samples say nothing",
    ),
    Metric(
        "kl_coefficient", "KL coefficient", "The coefficient β of the KL penalty in this step, where it is steered",
        "reward units per nat", "changed after each step by the KL that was measured against its target", "none",
        "settles where the divergence is at its target", "grows or falls without end: the target is out of reach",
    ),
    Metric(
        "kl_capped_tokens", "Capped by k3",
        "Tokens whose KL in the loss was capped, because its exponential would overflow", "tokens",
        "#{log q − log p > 40} over the step's updates, with k3 an estimate of KL(p‖q)", "none: a count", "0",
        "above 0: the policy finds tokens next to impossible that the other finds likely; the penalty is too weak",
    ),
    Metric(
        "entropy", "Entropy", "How undecided the policy is before each token that it sampled",
        "nats per token", "−Σ_t m Σ_v π log π / Σ m", "counted tokens",
        "0 to log V; falls slowly as the policy settles",
        "falls to 0 early: no variety left to learn from; rises without end: the policy turns to noise",
    ),
    Metric(
        "sampler_logratio_max", "Sampler–trainer, largest",
        "Largest disagreement of sampler and trainer on a sampled token's log-probability", "nats",
        "max |log π − log q| over counted tokens", "none: a maximum", "rounding: 1e-5 to 1e-4 in float32",
        "large: sampler and trainer are not the same distribution (weights, temperature, template)",
    ),
    Metric(
        "sampler_logratio_p99", "Sampler–trainer, 99th percentile",
        "Disagreement of sampler and trainer that 99 % of tokens stay under", "nats",
        "99th percentile of |log π − log q| over counted tokens", "counted tokens",
        "rounding, below the largest", "close to the largest: all tokens disagree, not a few",
    ),
    Metric(
        "sampler_logratio_mean", "Sampler–trainer, mean",
        "Mean signed difference of trainer and sampler log-probability", "nats per token",
        "Σ m (log π − log q) / Σ m", "counted tokens", "around 0 with either sign",
        "clearly off 0: a systematic mismatch, so every importance weight is biased the same way",
    ),
]
# fmt: on
