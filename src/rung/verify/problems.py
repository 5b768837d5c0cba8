"""Problems small enough to enumerate, on which estimators are verified.

Three tokens, at most two a sequence, one of them ends it: seven sequences of two lengths, six reward values. Equal
lengths or two reward values would hide most faults. A second prompt has sequences of up to three tokens: as long as
only one sequence of a prompt is shorter than the batch, a mean over padding would pass for a matter of scale. What is
verified on them holds for any problem where a proof says so, and is refuted for all where the numbers say so.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from rung.exact import (
    LogLinear,
    Policy,
    Prefix,
    SoftmaxTable,
    TokenMDP,
    after,
    evaluate,
    sequence_kl_policy_reference,
)
from rung.exact.token_mdp import FloatArray

ParametricPolicy = SoftmaxTable | LogLinear
Critic = Callable[[int, Prefix], float]


@dataclass(frozen=True)
class Sequence:
    """One sequence that a prompt may give.

    Attributes:
        prompt: which of the problem's prompts.
        tokens: after the prompt, the end token included.
        reward: R of the whole.
    """

    prompt: int
    tokens: Prefix
    reward: float


@dataclass(frozen=True)
class Problem:
    """One or more prompts whose sequences one parameter vector describes.

    Attributes:
        prompts: each as (tokens before, what can follow and what it is worth).
        policy: π, which is differentiated.
        reference: π_ref, frozen.
        behaviour: μ, another policy over the same prefixes: an older one, or a sampler that differs.
        critic: (prompt, prefix) → an imperfect estimate of V.
    """

    prompts: tuple[tuple[Prefix, TokenMDP], ...]
    policy: ParametricPolicy
    reference: ParametricPolicy
    behaviour: ParametricPolicy
    critic: Critic

    @cached_property
    def sequences(self) -> list[Sequence]:
        """Every sequence of every prompt, prompt by prompt."""
        return [
            Sequence(k, tau.tokens, mdp.total_return(tau.tokens))
            for k, (_, mdp) in enumerate(self.prompts)
            for tau in mdp.trajectories()
        ]

    @property
    def max_length(self) -> int:
        """The longest sequence's tokens."""
        return max(mdp.max_length for _, mdp in self.prompts)

    def oracles(self, policy: Policy | None = None) -> list[tuple[TokenMDP, Policy, Policy]]:
        """For each prompt its problem, a policy (π unless given) and the reference, as the oracle takes them."""
        chosen = self.policy if policy is None else policy
        return [(mdp, after(chosen, prompt), after(self.reference, prompt)) for prompt, mdp in self.prompts]

    def mean_over_prompts(self, quantity: Callable[[TokenMDP, Policy, Policy], FloatArray]) -> FloatArray:
        """The oracle's quantity(problem, policy, reference), averaged over prompts."""
        found: FloatArray = np.mean([quantity(*oracle) for oracle in self.oracles()], axis=0)
        return found

    def distance(self) -> float:
        """KL(μ‖π) of whole sequences, nats, averaged over prompts: how far off policy μ's samples are."""
        return float(
            np.mean(
                [
                    sequence_kl_policy_reference(
                        mdp, after(self.behaviour, prompt), after(self.policy, prompt)
                    ).value
                    for prompt, mdp in self.prompts
                ]
            )
        )

    def table(
        self, policy: Policy, function: Callable[[FloatArray, FloatArray, int], FloatArray]
    ) -> FloatArray:
        """[sequences, T, …] of function(log-probs [V], Jacobian [V, n], token) at each token; 0 after each end."""
        rows = [
            [
                function(*evaluate(after(policy, self.prompts[s.prompt][0]), s.tokens[:t]), token)
                for t, token in enumerate(s.tokens)
            ]
            for s in self.sequences
        ]
        out: FloatArray = np.zeros((len(rows), self.max_length, *np.shape(rows[0][0])))
        for i, row in enumerate(rows):
            out[i, : len(row)] = row
        return out


_PI = [[0.5, -0.3, 1.0], [-0.2, 0.8, 0.1], [1.2, 0.0, -0.5]]
_REFERENCE = [[0.0, 0.2, -0.4], [0.5, -0.1, 0.3], [-0.3, 0.7, 0.2]]
_BEHAVIOUR = [[0.1, 0.4, 0.3], [0.0, 0.2, -0.2], [0.6, -0.1, 0.2]]
_REWARDS = {(2,): 0.0, (0, 0): 0.2, (0, 1): -0.5, (0, 2): 1.0, (1, 0): 0.0, (1, 1): 2.0, (1, 2): 0.4}
_LONGER_REWARDS = {(1,): 0.7, (0, 1): 2.2, (0, 0, 0): -0.4, (0, 0, 1): 1.3}
_WRONG_VALUES = {(): 0.3, (0,): 0.0, (1,): 1.0}
_MDP = TokenMDP(3, end_token=2, max_length=2, reward=_REWARDS.__getitem__)


def one_prompt() -> Problem:
    """One prompt; a policy with logits of its own at each prefix."""
    policy, reference, behaviour = (
        SoftmaxTable(_MDP.prefixes(), logits) for logits in (_PI, _REFERENCE, _BEHAVIOUR)
    )
    return Problem((((), _MDP),), policy, reference, behaviour, lambda prompt, prefix: _WRONG_VALUES[prefix])


def _features(prefix: Prefix) -> FloatArray:
    """Four features of a token and of what stands before it; the first token is the prompt, 7 or 8."""
    features = np.array([[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.7]])
    features[:, 2] = [0.3 * sum(prefix), -0.2, 0.1 * len(prefix)]
    features[1, 3] = 0.5 if 0 in prefix else -0.4
    features[:, 0] += [0.0, 0.4 if prefix[0] == 8 else -0.3, 0.2]
    return features if prefix[0] == 7 else features[:2]


def two_prompts() -> Problem:
    """Two prompts that share all parameters; the second has two tokens, and sequences of one to three."""
    longer = TokenMDP(2, end_token=1, max_length=3, reward=_LONGER_REWARDS.__getitem__)
    policy, reference, behaviour = (
        LogLinear(_features, np.array(theta))
        for theta in ([0.2, -0.4, 0.9, 0.5], [-0.1, 0.3, 0.4, -0.6], [0.1, 0.1, 0.5, 0.2])
    )

    def critic(prompt: int, prefix: Prefix) -> float:
        return _WRONG_VALUES.get(prefix, 0.2) + 0.1 * prompt

    return Problem((((7,), _MDP), ((8,), longer)), policy, reference, behaviour, critic)


def moved(problem: Problem, share: float) -> Problem:
    """The same problem with μ moved towards π: 0 leaves it, 1 is on policy. Logits are interpolated."""
    theta = (1.0 - share) * problem.behaviour.parameters + share * problem.policy.parameters
    return replace(problem, behaviour=problem.behaviour.with_parameters(theta))
