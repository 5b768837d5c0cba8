"""More problems to enumerate or to solve: turns with a tool in between, and tables.

TOOL  V = 3, at most three sampled tokens, token 2 ends a turn. After the sampled token 0 a tool answers 1, or 2 1,
      at random; after a turn that consists of 1 2 somebody says 0 2 and the policy goes on. So the tool writes the
      end token too, answers have several lengths, and prefixes of one number of sampled tokens have several.
D     a corridor of three states, intended moves succeed with 0.8; digits computed elsewhere, as in tests/toys.py
"""

import numpy as np

from rung.exact import LogLinear, SoftmaxTable, TabularMDP, TokenMDP, Trajectory
from tests.toys import rows, shared_features

TOOL_ANSWERS = {(0,): {(1,): 0.7, (2, 1): 0.3}, (1, 2): {(0, 2): 1.0}}

TOOL_MDP = TokenMDP(
    3,
    end_token=2,
    max_length=3,
    reward=lambda tokens: 0.3 * tokens[-1] - 0.7 * (tokens[0] == tokens[-1]) + 0.2 * len(tokens) ** 2 / 4,
    step_reward=lambda prefix, token: 0.1 * token - 0.05 * len(prefix),
    environment=lambda prefix: TOOL_ANSWERS.get(prefix, {}),
)
TOOL_PREFIXES = TOOL_MDP.prefixes()
_DRAWN = np.random.default_rng(7).normal(size=(3, len(TOOL_PREFIXES), 3)).round(2)
TOOL_POLICY, TOOL_REFERENCE, TOOL_BEHAVIOUR = (SoftmaxTable(TOOL_PREFIXES, logits) for logits in _DRAWN)
TOOL_SHARED_POLICY = LogLinear(shared_features, np.array([0.2, -0.4, 0.9, 0.5]))

# Written by hand: who wrote which token, and where each sequence ends.
TOOL_STARTS = [
    Trajectory((0, 1, 0, 0), "length", (True, False, True, True)),
    Trajectory((0, 1, 0, 1), "length", (True, False, True, True)),
    Trajectory((0, 1, 0, 2), "stop", (True, False, True, True)),
]
TOOL_OTHERS = {
    (0, 1, 2): "stop",
    (0, 2, 1, 2): "stop",
    (1, 2, 0, 2, 0): "length",
    (1, 2, 0, 2, 1): "length",
    (1, 2, 0, 2, 2): "stop",
    (1, 0, 2): "stop",
    (2,): "stop",
}

# --- D ---------------------------------------------------------------------------------------------------------------

LEFT, RIGHT = 0, 1


def corridor() -> TabularMDP:
    """States 0, 1, 2 and the end 3: leaving left pays 0.3, leaving right 1, every other move −0.05."""
    transitions, rewards = np.zeros((4, 2, 4)), np.full((4, 2, 4), -0.05)
    for state in range(3):
        for action, chances in ((LEFT, (0.8, 0.2)), (RIGHT, (0.2, 0.8))):
            left, right = (state - 1 if state > 0 else 3), state + 1
            transitions[state, action, left] += chances[0]
            transitions[state, action, right] += chances[1]
    rewards[0, :, 3], rewards[2, :, 3] = 0.3, 1.0
    return TabularMDP(transitions, rewards, [0.5, 0.3, 0.2, 0.0], [False, False, False, True])


TOY_D = corridor()
D_GAMMA = 0.9
D_VALUES, D_OBJECTIVE = rows(".29138655 .36974790 .64138655"), 0.384894957983
D_ACTION_VALUES = rows(".29655462 .28621849 | .27524790 .46424790 | .42621849 .85655462")
D_VISITS = rows(".96512605 1.03361345 .66512605")
D_GRADIENT = rows(".00249392 -.00249392 | -.04883824 .04883824 | -.07155694 .07155694")
D_UNDISCOUNTED_VISITS = rows("1.15 1.3 .85")
D_GRADIENT_WITHOUT_TIME_DISCOUNT = rows(".00297164 -.00297164 | -.061425 .061425 | -.09144643 .09144643")
D_OPTIMAL_VALUES, D_OPTIMAL_OBJECTIVE = rows(".52773218 .70518359 .91693305"), 0.658807775378
D_OPTIMAL_ACTION_VALUES = rows(".35693305 .52773218 | .49501512 .70518359 | .66773218 .91693305")
D_OBJECTIVES = {"LLL": 0.251089632829, "LRR": 0.557779474940, "RRR": 0.658807775378}
D_SOFT_VALUES, D_SOFT_OBJECTIVE = rows(".49887058 .67585942 .89840290"), 0.631873694359  # right with 0.95
D_ACTOR_GRADIENT_OF_A_ZERO_CRITIC = rows(".05066912 -.05066912 | 0 0 | -.10475735 .10475735")
