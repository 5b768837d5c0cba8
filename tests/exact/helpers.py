"""Central differences: the only thing that the tests of gradients have to believe in."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from rung.exact import LogLinear, SoftmaxTable

# Truncation leaves h²/6 · f''' and rounding about ε·|f|/h: near 1e-10 for numbers of order 1.
STEP = 1e-5
TOLERANCE = 2e-9


def finite_difference(
    function: Callable[[SoftmaxTable | LogLinear], float], policy: SoftmaxTable | LogLinear
) -> NDArray[np.float64]:
    """∂f/∂θ_i ≈ (f(θ + h e_i) − f(θ − h e_i)) / 2h."""
    parameters = np.array(policy.parameters)
    gradient = np.zeros(len(parameters))
    for i in range(len(parameters)):
        up, down = parameters.copy(), parameters.copy()
        up[i] += STEP
        down[i] -= STEP
        gradient[i] = (function(policy.with_parameters(up)) - function(policy.with_parameters(down))) / (
            2 * STEP
        )
    return gradient


def assert_is_derivative(
    gradient: NDArray[np.float64],
    function: Callable[[SoftmaxTable | LogLinear], float],
    policy: SoftmaxTable | LogLinear,
    tolerance: float = TOLERANCE,
) -> None:
    np.testing.assert_allclose(gradient, finite_difference(function, policy), rtol=0, atol=tolerance)
