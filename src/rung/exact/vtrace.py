"""The policy that V-trace evaluates: neither the target nor the sampler."""

import numpy as np

from rung.errors import InvalidInput
from rung.exact.policies import Policy, State, evaluate
from rung.exact.token_mdp import FloatArray


def vtrace_target_policy(policy: Policy, behaviour: Policy, *, rho_cap: float = 1.0) -> Policy:
    """The policy whose values are the fixed point of V-trace.

        π_ρ̄(a|s) = min(ρ̄ μ(a|s), π(a|s)) / Σ_b min(ρ̄ μ(b|s), π(b|s))

    Near μ for small ρ̄, π for ρ̄ at or above every ratio π/μ.

    Source: Espeholt et al. 2018, arXiv:1802.01561, equation 2.

    Args:
        policy: π, the target.
        behaviour: μ, the sampler.
        rho_cap: ρ̄ > 0.

    Returns:
        A policy without parameters, for prefixes or states.

    Raises:
        InvalidInput: ρ̄ is not positive, or the two policies have no action in common.

    Exactness:
        Checked by tests/exact/test_vtrace.py::test_the_target_policy_of_toy_a and
        ::test_the_fixed_point_is_the_value_of_the_target_policy.

    >>> from rung.exact import SoftmaxTable
    >>> half, most = SoftmaxTable([()], [[0.0, 0.0]]), SoftmaxTable([()], np.log([[0.2, 0.8]]))
    >>> np.exp(vtrace_target_policy(most, half)(())[0]).round(6)  # min(½, .2) : min(½, .8)
    array([0.285714, 0.714286])
    """
    if not rho_cap > 0.0:
        raise InvalidInput(f"the cap ρ̄ must be positive, not {rho_cap}")

    def capped(state: State) -> tuple[FloatArray, FloatArray]:
        target, sampled = (np.exp(evaluate(chosen, state)[0]) for chosen in (policy, behaviour))
        kept = np.minimum(rho_cap * sampled, target)
        if not kept.sum() > 0.0:
            raise InvalidInput(f"after {state} no action is possible under both policies")
        logprobs = np.array([np.log(x) if x > 0.0 else -np.inf for x in kept / kept.sum()])
        return logprobs, np.zeros((len(logprobs), 0))

    return capped
