"""A third problem: one prompt, up to three tokens, rewards on steps too.

Three steps tell a token's effect on the next one from that on the token after it, and γ^t from γ. Rewards before the
last token tell the total return from the return from each token on.
"""

from rung.exact import SoftmaxTable, TokenMDP
from rung.verify.problems import Problem

_POLICY = [[0.5, -0.3, 1.0], [-0.2, 0.8, 0.1], [1.2, 0.0, -0.5], [0.3, -0.9, 0.6]]
_REFERENCE = [[0.0, 0.2, -0.4], [0.5, -0.1, 0.3], [-0.3, 0.7, 0.2], [0.1, 0.4, -0.6]]
_BEHAVIOUR = [[0.1, 0.4, 0.3], [0.0, 0.2, -0.2], [0.6, -0.1, 0.2], [-0.3, 0.1, 0.5]]
_REWARDS = {
    (2,): -0.6,
    (0, 2): 0.4,
    (1, 2): 1.1,
    (0, 0, 0): 0.0,
    (0, 0, 1): 1.7,
    (0, 0, 2): -0.9,
    (0, 1, 0): 0.8,
    (0, 1, 1): -1.3,
    (0, 1, 2): 0.4,
    (1, 0, 0): 2.1,
    (1, 0, 1): 0.0,
    (1, 0, 2): -0.2,
    (1, 1, 0): 0.5,
    (1, 1, 1): 1.1,
    (1, 1, 2): -1.8,
}
_STEP_REWARDS = ((0.1, -0.2, 0.05), (0.0, 0.3, -0.1), (-0.15, 0.25, 0.2))  # [step][token]
_WRONG_VALUES = {(): 0.3, (0,): -0.2, (1,): 0.8, (0, 0): 0.6, (0, 1): -0.5, (1, 0): 0.2, (1, 1): 0.4}
_MDP = TokenMDP(
    3,
    end_token=2,
    max_length=3,
    reward=_REWARDS.__getitem__,
    step_reward=lambda prefix, token: _STEP_REWARDS[len(prefix)][token],
)


def three_tokens() -> Problem:
    """Fifteen sequences of one to three tokens, the third token of the vocabulary ends one; 21 parameters."""
    policy, reference, behaviour = (
        SoftmaxTable(_MDP.prefixes(), [*rows, *more])
        for rows, more in (
            (_POLICY, [[0.7, 0.2, -0.1], [-0.6, 0.1, 0.9], [0.0, 1.1, 0.4]]),
            (_REFERENCE, [[0.2, -0.3, 0.6], [0.3, 0.3, -0.2], [0.8, -0.4, 0.1]]),
            (_BEHAVIOUR, [[0.5, 0.0, -0.4], [-0.1, 0.6, 0.2], [0.3, 0.4, -0.5]]),
        )
    )
    return Problem((((), _MDP),), policy, reference, behaviour, lambda prompt, prefix: _WRONG_VALUES[prefix])
