"""Tables of Sutton and Barto, 2nd edition, recomputed from their definitions and recorded to more places."""

import numpy as np
import pytest

from rung.exact import (
    FixedPolicy,
    LogLinear,
    SoftmaxTable,
    TabularMDP,
    distribution,
    objective,
    objective_gradient,
    occupancy,
    optimal_action_values,
    optimal_state_values,
    state_values,
)
from tests.exact.helpers import assert_is_derivative
from tests.toys import assert_digits, rows

MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))

EXAMPLE_3_5 = rows(
    "3.30899634 8.78929186 4.42761918 5.32236759 1.49217876 | 1.52158807 2.99231786 2.25013995 1.90757170 .54740271"
    "| .05082249 .73817059 .67311326 .35818621 -.40314114 | -.97359230 -.43549543 -.35488227 -.58560509 -1.18307508"
    "| -1.85770055 -1.34523126 -1.22926726 -1.42291815 -1.97517905"
)
EXAMPLE_3_8 = rows(
    "21.97748529 24.41942810 21.97748529 19.41942810 17.47748529"
    "| 19.77973676 21.97748529 19.77973676 17.80176308 16.02158677"
    "| 17.80176308 19.77973676 17.80176308 16.02158677 14.41942810"
    "| 16.02158677 17.80176308 16.02158677 14.41942810 12.97748529"
    "| 14.41942810 16.02158677 14.41942810 12.97748529 11.67973676"
)
EXAMPLE_4_1 = rows("0 -14 -20 -22 | -14 -18 -20 -20 | -20 -20 -18 -14 | -22 -20 -14 0")
# After as many synchronous sweeps from 0: the expected return of as many moves.
EXAMPLE_4_1_FIRST_ROW = {1: rows("0 -1 -1 -1"), 2: rows("0 -1.75 -2 -2"), 3: rows("0 -2.4375 -2.9375 -3")}


def random_moves(mdp):
    return FixedPolicy({state: np.log(np.full(mdp.actions, 1 / mdp.actions)) for state in range(mdp.states)})


def grid_3_5():
    """5 × 5, four moves; leaving the grid costs 1 and stays; the two special states jump and pay 10 and 5."""
    transitions, rewards = np.zeros((25, 4, 25)), np.zeros((25, 4))
    for row in range(5):
        for column in range(5):
            for action, (down, right) in enumerate(MOVES):
                target, reward = (row + down, column + right), 0.0
                if not (0 <= target[0] < 5 and 0 <= target[1] < 5):
                    target, reward = (row, column), -1.0
                if (row, column) == (0, 1):
                    target, reward = (4, 1), 10.0
                if (row, column) == (0, 3):
                    target, reward = (2, 3), 5.0
                transitions[5 * row + column, action, 5 * target[0] + target[1]] = 1.0
                rewards[5 * row + column, action] = reward
    return TabularMDP(transitions, rewards, np.full(25, 1 / 25))


def grid_4_1(start=1):
    """4 × 4, four moves, −1 each; two corners end the episode."""
    transitions = np.zeros((16, 4, 16))
    for state in range(16):
        for action, (down, right) in enumerate(MOVES):
            row, column = min(max(state // 4 + down, 0), 3), min(max(state % 4 + right, 0), 3)
            transitions[state, action, 4 * row + column] = 1.0
    return TabularMDP(transitions, np.full((16, 4), -1.0), np.eye(16)[start], np.isin(np.arange(16), [0, 15]))


def chain(size, left_pays):
    """A walk over `size` states between two ends, half to each side; leaving right pays 1."""
    transitions, rewards = np.zeros((size + 2, 1, size + 2)), np.zeros((size + 2, 1, size + 2))
    for state in range(1, size + 1):
        transitions[state, 0, [state - 1, state + 1]] = 0.5
    rewards[size, 0, size + 1], rewards[1, 0, 0] = 1.0, left_pays
    ends = [True, *[False] * size, True]
    return TabularMDP(transitions, rewards, np.eye(size + 2)[(size + 1) // 2], ends)


def test_example_3_5_the_random_policy_on_the_grid():
    grid = grid_3_5()
    assert_digits(state_values(grid, random_moves(grid), gamma=0.9), EXAMPLE_3_5, 8)


def test_example_3_8_the_optimum_on_the_grid():
    best = optimal_state_values(grid_3_5(), gamma=0.9)
    assert_digits(best, EXAMPLE_3_8, 8)
    assert best[1] == pytest.approx(10 / (1 - 0.9**5), abs=1e-12)


def test_example_4_1_the_random_policy_on_the_small_grid():
    grid = grid_4_1()
    np.testing.assert_allclose(state_values(grid, random_moves(grid)), EXAMPLE_4_1, rtol=0, atol=1e-12)
    np.testing.assert_allclose(optimal_state_values(grid)[:4], [0, -1, -2, -3], rtol=0, atol=0)


@pytest.mark.parametrize(("moves", "recorded"), EXAMPLE_4_1_FIRST_ROW.items())
def test_example_4_1_the_first_sweeps_are_expected_returns_of_that_many_moves(moves, recorded):
    for start in (1, 2, 3):
        grid = grid_4_1(start)
        found = sum(p * sum(e.rewards) for e, p in distribution(grid, random_moves(grid), horizon=moves))
        assert found == pytest.approx(recorded[start], abs=1e-14)


def test_example_6_2_the_random_walk():
    walk = chain(5, left_pays=0.0)
    values = state_values(walk, random_moves(walk))[1:-1]
    np.testing.assert_allclose(values, np.arange(1, 6) / 6, rtol=0, atol=1e-14)
    assert_digits(np.sqrt(((values - 0.5) ** 2).mean()), 0.2357022604, 10)
    long = chain(19, left_pays=-1.0)
    found = state_values(long, random_moves(long))[1:-1]
    np.testing.assert_allclose(found, np.arange(-0.9, 0.95, 0.1), rtol=0, atol=1e-13)
    # Nine moves outwards from the middle at least: 10² on average.
    assert occupancy(long, random_moves(long)).sum() == pytest.approx(100.0, abs=1e-10)


def test_example_6_4_the_predictor():
    """The process that eight episodes suggest: A goes to B and earns nothing, B ends with 1 in six of eight."""
    a, b, end = 0, 1, 2
    transitions, rewards = np.zeros((3, 1, 3)), np.zeros((3, 1))
    transitions[a, 0, b] = transitions[b, 0, end] = 1.0
    rewards[b] = 6 / 8
    suggested = TabularMDP(transitions, rewards, [1 / 8, 7 / 8, 0.0], [False, False, True])
    found = state_values(suggested, random_moves(suggested))
    np.testing.assert_allclose(found, [0.75, 0.75, 0.0], rtol=0, atol=1e-15)


def corridor():
    """Example 13.1: three states that look alike, −1 a move; in the second one left and right are exchanged."""
    transitions = np.zeros((4, 2, 4))
    for state, (left, right) in enumerate([(0, 1), (2, 0), (1, 3)]):
        transitions[state, 0, left] = transitions[state, 1, right] = 1.0
    return TabularMDP(transitions, np.full((4, 2), -1.0), [1, 0, 0, 0], [False, False, False, True])


def alike(p):
    """Right with probability p wherever one is: one parameter for all states."""
    return LogLinear(lambda state: np.array([[0.0], [1.0]]), np.array([np.log(p / (1 - p))]))


@pytest.mark.parametrize(("p", "recorded"), [(0.95, -44.2105263158), (0.05, -82.1052631579), (0.5, -12.0)])
def test_example_13_1_the_short_corridor(p, recorded):
    found = objective(corridor(), alike(p))
    assert_digits(found, recorded, 10)
    assert found == pytest.approx(2 * (p - 2) / (p * (1 - p)), abs=1e-12)
    # dJ/dp · dp/dθ with dp/dθ = p(1 − p).
    slope = 2 * (p * p - 4 * p + 2) / (p * (1 - p))
    gradient = objective_gradient(corridor(), alike(p))
    np.testing.assert_allclose(gradient, [slope], rtol=0, atol=1e-11)
    # Numbers near 50, and third derivatives to match.
    assert_is_derivative(gradient, lambda policy: objective(corridor(), policy), alike(p), 1e-7)


def test_example_13_1_the_best_chance():
    best = alike(2 - np.sqrt(2))
    assert_digits(objective(corridor(), best), -11.6568542495, 10)
    np.testing.assert_allclose(objective_gradient(corridor(), best), [0.0], rtol=0, atol=1e-13)
    # Who sees the states apart needs three moves.
    assert corridor().start @ optimal_state_values(corridor()) == pytest.approx(-3.0, abs=0.0)


def test_example_8_1_the_maze_is_fourteen_moves_long():
    """.95¹³ for a goal that pays 1 on the fourteenth move."""
    walls = {(1, 2), (2, 2), (3, 2), (4, 5), (0, 7), (1, 7), (2, 7)}
    transitions, rewards = np.zeros((54, 4, 54)), np.zeros((54, 4, 54))
    for row in range(6):
        for column in range(9):
            for action, (down, right) in enumerate(MOVES):
                target = (row + down, column + right)
                if not (0 <= target[0] < 6 and 0 <= target[1] < 9) or target in walls:
                    target = (row, column)
                transitions[9 * row + column, action, 9 * target[0] + target[1]] = 1.0
    rewards[:, :, 8] = 1.0
    maze = TabularMDP(transitions, rewards, np.eye(54)[18], np.arange(54) == 8)
    assert_digits(maze.start @ optimal_state_values(maze, gamma=0.95), 0.5133420833, 10)


def test_example_4_3_the_gambler():
    transitions, rewards = np.zeros((101, 51, 101)), np.zeros((101, 51, 101))
    for capital in range(1, 100):
        for stake in range(51):
            wager = max(min(stake, capital, 100 - capital), 1)
            transitions[capital, stake, capital + wager] += 0.4
            transitions[capital, stake, capital - wager] += 0.6
    rewards[:, :, 100] = 1.0
    game = TabularMDP(transitions, rewards, np.eye(101)[50], np.isin(np.arange(101), [0, 100]))
    found = optimal_state_values(game)[[1, 25, 50, 51, 75, 99]]
    recorded = rows(".0020656248 .16 .4 .4030984372 .64 .9643329672")
    assert_digits(found, recorded, 10)


def test_frozen_lake_with_and_without_a_discount():
    """4 × 4 and slippery: a third each for the move and for the two at right angles to it."""
    lake = "SFFFFHFHFFFHHFFG"
    transitions, rewards = np.zeros((16, 4, 16)), np.zeros((16, 4, 16))
    around = ((0, -1), (1, 0), (0, 1), (-1, 0))
    for state in range(16):
        for action in range(4):
            for turn in (-1, 0, 1):
                down, right = around[(action + turn) % 4]
                row, column = min(max(state // 4 + down, 0), 3), min(max(state % 4 + right, 0), 3)
                transitions[state, action, 4 * row + column] += 1 / 3
    rewards[:, :, 15] = 1.0
    over = [square in "HG" for square in lake]
    mdp = TabularMDP(transitions, rewards, np.eye(16)[0], over)
    for gamma, recorded in {1.0: 14 / 17, 0.99: 0.5420259320, 0.95: 0.1804715784}.items():
        assert_digits(mdp.start @ optimal_state_values(mdp, gamma=gamma), recorded, 10)
    assert_digits(objective(mdp, random_moves(mdp)), 0.0139397962, 10)
    best = optimal_action_values(mdp)
    assert best[14].max() == pytest.approx(best.max(), abs=1e-12)


def test_the_gradient_of_a_table_on_the_small_grid():
    """Sixteen rows of logits, two of which no episode chooses in."""
    grid, table = grid_4_1(start=5), SoftmaxTable(range(16), np.zeros((16, 4)))
    gradient = objective_gradient(grid, table)
    assert not gradient.reshape(16, 4)[[0, 15]].any()
    assert_is_derivative(gradient, lambda p: objective(grid, p), table, 1e-7)


def test_example_6_5_the_windy_grid():
    """7 × 10, the wind lifts by the column one leaves: 15 moves of four kinds, 7 of the king's."""
    wind = (0, 0, 0, 1, 1, 1, 2, 2, 1, 0)
    king = (*MOVES, (-1, -1), (-1, 1), (1, -1), (1, 1))
    for moves, length in ((MOVES, 15), (king, 7), ((*king, (0, 0)), 7)):
        transitions = np.zeros((70, len(moves), 70))
        for state in range(70):
            for action, (down, right) in enumerate(moves):
                row = min(max(state // 10 + down - wind[state % 10], 0), 6)
                column = min(max(state % 10 + right, 0), 9)
                transitions[state, action, 10 * row + column] = 1.0
        grid = TabularMDP(transitions, np.full((70, len(moves)), -1.0), np.eye(70)[30], np.arange(70) == 37)
        assert grid.start @ optimal_state_values(grid) == -length


def test_example_6_6_the_cliff():
    """4 × 12: thirteen moves along the edge; a fall costs 100 and leads back to the start."""
    transitions, rewards = np.zeros((48, 4, 48)), np.full((48, 4), -1.0)
    for state in range(48):
        for action, (down, right) in enumerate(MOVES):
            row, column = min(max(state // 12 + down, 0), 3), min(max(state % 12 + right, 0), 11)
            fell = row == 3 and 1 <= column <= 10
            transitions[state, action, 36 if fell else 12 * row + column] = 1.0
            rewards[state, action] = -100.0 if fell else -1.0
    cliff = TabularMDP(transitions, rewards, np.eye(48)[36], np.arange(48) == 47)
    assert cliff.start @ optimal_state_values(cliff) == -13.0
