"""What each recorded number means, in one place: terminal, documentation and report all read it here.

Axis words: B completions in a step, T tokens after the prompt, m the mask (1 where the policy sampled the
token, end token included), π the policy, π_ref the reference, q the distribution that was sampled from.
Logarithms are natural, so divergences and entropies are in nats. Only the standard library is imported.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    """One recorded number.

    Attributes:
        name: the key in metrics.jsonl or timing.jsonl.
        label: what a person calls it.
        meaning: one line, without the formula.
        unit: what one of it is.
        formula: how it is computed.
        normaliser: what the sum is divided by, or why nothing divides it.
        expected: range and healthy behavior.
        odd: what it means when it leaves them.
    """

    name: str
    label: str
    meaning: str
    unit: str
    formula: str
    normaliser: str
    expected: str
    odd: str

    @property
    def one_line(self) -> str:
        """The definition in one line: meaning and unit.

        >>> METRICS["entropy"].one_line
        'How undecided the policy is before each token that it sampled (nats per token).'
        """
        return f"{self.meaning} ({self.unit})."


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
        "groups_without_signal", "Groups without signal",
        "Groups whose completions all got the same reward, or that have fewer than two rewards", "groups",
        "#{g : fewer than two rewards in g, or max R = min R}", "none: a count per step",
        "below the number of prompts; grows as the task is solved",
        "near the number of prompts: they are all too easy or all too hard; only a KL penalty still acts",
    ),
    Metric(
        "completions", "Completions", "Completions sampled for the step or the evaluation", "completions",
        "prompts × samples per prompt", "none: a count", "constant",
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

_UPDATE = [
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
        "Fraction of tokens whose gradient the clipped objective sets to zero", "fraction",
        "#{A > 0 and ρ > 1+ε, or A < 0 and ρ < 1−ε} / Σ m", "counted tokens",
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
        "it stays: the step was skipped",
    ),
]

_DIVERGENCE = [
    Metric(
        "kl_policy_reference_k1", "KL(π‖π_ref), k1",
        "Distance of the policy from the reference on the step's samples, before the update, by k1",
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
        "Tokens trained on in each second of the step",
        "tokens per second",
        "tokens / total",
        "seconds of the whole step",
        "steady",
        "falls: fewer completions are in flight at the end of a batch, or the machine is shared",
    ),
]

METRICS: dict[str, Metric] = {
    metric.name: metric
    for part in (_POSITION, _REWARD, _HELD_OUT, _LENGTH, _UPDATE, _DIVERGENCE, _TIMING)
    for metric in part
}
