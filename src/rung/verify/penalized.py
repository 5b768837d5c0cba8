"""A problem whose rewards have a KL in them, for a critic that knows it."""

from dataclasses import replace

from rung.exact import Policy, Prefix, TokenMDP, evaluate


def less_k1(mdp: TokenMDP, policy: Policy, reference: Policy, beta: float) -> TokenMDP:
    """The problem with the rewards r_t − β (log π(a_t|s_t) − log π_ref(a_t|s_t))."""

    def reward_of_step(prefix: Prefix, token: int) -> float:
        reward = 0.0 if mdp.step_reward is None else mdp.step_reward(prefix, token)
        log_ratio = evaluate(policy, prefix)[0][token] - evaluate(reference, prefix)[0][token]
        return float(reward - beta * log_ratio)

    return replace(mdp, step_reward=reward_of_step)
