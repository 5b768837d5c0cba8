"""Policies as plain functions: state → (log-probabilities [V], their Jacobian [V, n]).

Any callable of this kind is a policy. A state is the prefix of a token MDP or the number of a tabular MDP's state.
`SoftmaxTable` gives every state logits of its own, `LogLinear` lets states and prompts share parameters,
`FixedPolicy` has none.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from rung.errors import InvalidInput
from rung.exact.token_mdp import SUM_TOLERANCE, FloatArray, Prefix

State: TypeAlias = Any  # a prefix (tuple of tokens) or the number of a state
Policy: TypeAlias = Callable[[State], tuple[FloatArray, FloatArray]]


def evaluate(policy: Policy, state: State, actions: int | None = None) -> tuple[FloatArray, FloatArray]:
    """Ask a policy for one state and check the answer, so that a faulty callable is found where it is wrong.

    Args:
        policy: state → (log π(·|s) [V], Jacobian [V, n]).
        state: the tokens so far, or the number of a state.
        actions: V, the number of tokens or actions, or None to take whatever the policy has.

    Returns:
        log π(·|s) [V] in nats, −∞ for an action that cannot be sampled, and ∂ log π(a|s)/∂θ [V, n].

    Raises:
        InvalidInput: the shapes do not fit, the probabilities do not sum to 1, or a derivative of an
            action that can be sampled is not finite.

    >>> logprobs, jacobian = evaluate(SoftmaxTable([()], [[0.0, 0.0]]), ())
    >>> np.exp(logprobs)
    array([0.5, 0.5])
    >>> jacobian
    array([[ 0.5, -0.5],
           [-0.5,  0.5]])
    """
    logprobs, jacobian = policy(state)
    logprobs, jacobian = np.asarray(logprobs, dtype=np.float64), np.asarray(jacobian, dtype=np.float64)
    if logprobs.ndim != 1 or jacobian.ndim != 2 or len(jacobian) != len(logprobs):
        raise InvalidInput(
            f"a policy returns log-probabilities [V] and a Jacobian [V, n], "
            f"but after {state} it returned {list(logprobs.shape)} and {list(jacobian.shape)}"
        )
    if actions is not None and len(logprobs) != actions:
        raise InvalidInput(
            f"the MDP has {actions} tokens or actions, but after {state} the policy has {len(logprobs)}"
        )
    total = float(np.exp(logprobs).sum())
    if not abs(total - 1.0) < SUM_TOLERANCE:
        raise InvalidInput(f"the probabilities after {state} sum to {total}, not to 1")
    if not np.isfinite(jacobian[logprobs > -np.inf]).all():
        raise InvalidInput(f"the Jacobian after {state} is not finite for an action that can be sampled")
    return logprobs, jacobian


def after(policy: Policy, prompt: Prefix) -> Policy:
    """The same policy once `prompt` has been read: prefix → policy(prompt + prefix).

    Several prompts share one parameter vector this way.

    >>> table = SoftmaxTable([(7,), (8,)], [[0.0, 0.0], [0.0, 9.0]])
    >>> np.exp(after(table, (7,))(())[0])
    array([0.5, 0.5])
    """
    return lambda prefix: policy((*prompt, *prefix))


class SoftmaxTable:
    """A softmax over logits that each state has for itself; the parameters are the logits, row by row.

        π(a|s) = e^θ(s,a) / Σ_b e^θ(s,b)        ∂ log π(a|s)/∂θ(s,b) = [a = b] − π(b|s)

    Source: Sutton and Barto, 2nd edition, section 13.1, equations 13.2 and 13.3 (one-hot features).

    Args:
        prefixes: one per row, prefixes or numbers of states; their order is the order of the rows.
        logits: [rows, V].

    Raises:
        InvalidInput: rows and prefixes differ in number, a prefix occurs twice, or a logit is not finite.

    >>> table = SoftmaxTable([(), (0,)], [[0.0, 0.0], [0.0, 0.0]])
    >>> table((0,))[1]
    array([[ 0. ,  0. ,  0.5, -0.5],
           [ 0. ,  0. , -0.5,  0.5]])
    >>> np.exp(SoftmaxTable(range(2), [[0.0, 0.0], np.log([1.0, 3.0])])(1)[0])  # state 1 of a tabular MDP
    array([0.25, 0.75])
    """

    def __init__(self, prefixes: Sequence[State], logits: ArrayLike) -> None:
        self.prefixes: tuple[State, ...] = tuple(_as_key(prefix) for prefix in prefixes)
        self.logits: FloatArray = np.array(logits, dtype=np.float64)
        if self.logits.ndim != 2 or len(self.logits) != len(self.prefixes):
            raise InvalidInput(
                f"a softmax table needs one row of logits for each prefix: "
                f"{len(self.prefixes)} prefixes, logits of shape {list(self.logits.shape)}"
            )
        if len(set(self.prefixes)) < len(self.prefixes):
            raise InvalidInput("a softmax table has one row for each prefix; one prefix occurs twice")
        if not np.isfinite(self.logits).all():
            raise InvalidInput("the logits of a softmax table must be finite")
        self.logits.flags.writeable = False
        self._rows: Mapping[State, int] = {prefix: row for row, prefix in enumerate(self.prefixes)}

    @property
    def parameters(self) -> FloatArray:
        """θ [n], the logits row by row."""
        return self.logits.ravel().copy()

    def with_parameters(self, parameters: ArrayLike) -> "SoftmaxTable":
        """The table with these parameters [n] in place of its own."""
        new = np.asarray(parameters, dtype=np.float64)
        if new.shape != (self.logits.size,):
            raise InvalidInput(f"this table has {self.logits.size} parameters [n], not {list(new.shape)}")
        return SoftmaxTable(self.prefixes, new.reshape(self.logits.shape))

    def row_of(self, prefix: State) -> int:
        """Which row of the logits belongs to a prefix or to the number of a state."""
        row = self._rows.get(_as_key(prefix))
        if row is None:
            raise InvalidInput(
                f"the softmax table has no row for prefix {prefix}; it has {list(self.prefixes)}"
            )
        return row

    def __call__(self, prefix: State) -> tuple[FloatArray, FloatArray]:
        """Return log π(·|s) [V] and its Jacobian [V, n]."""
        row = self.row_of(prefix)
        vocabulary_size = self.logits.shape[1]
        logprobs = log_softmax(self.logits[row])
        jacobian = np.zeros((vocabulary_size, self.logits.size))
        for a in range(vocabulary_size):
            for b in range(vocabulary_size):
                jacobian[a, row * vocabulary_size + b] = float(a == b) - np.exp(logprobs[b])
        return logprobs, jacobian


@dataclass(frozen=True)
class LogLinear:
    """A softmax over logits linear in features, so that prefixes and prompts share parameters.

        π(a|s) ∝ e^(θ·x(s,a))        ∂ log π(a|s)/∂θ = x(s,a) − Σ_b π(b|s) x(s,b)

    Source: Sutton and Barto, 2nd edition, section 13.1, equations 13.2 and 13.3, exercise 13.3.

    Attributes:
        features: state → x(s,·) [V, n].
        parameters: θ [n].

    >>> policy = LogLinear(lambda prefix: np.array([[0.0], [1.0]]), np.array([0.0]))
    >>> policy(())[1]
    array([[-0.5],
           [ 0.5]])
    """

    features: Callable[[State], FloatArray]
    parameters: FloatArray

    def with_parameters(self, parameters: ArrayLike) -> "LogLinear":
        """The same features with these parameters [n]."""
        return LogLinear(self.features, np.array(parameters, dtype=np.float64))

    def __call__(self, prefix: State) -> tuple[FloatArray, FloatArray]:
        """Return log π(·|s) [V] and its Jacobian [V, n]."""
        features = np.asarray(self.features(prefix), dtype=np.float64)
        logprobs = log_softmax(features @ self.parameters)
        return logprobs, features - np.exp(logprobs) @ features


@dataclass(frozen=True)
class FixedPolicy:
    """A policy given by its log-probabilities at each prefix or state. It has no parameters: its Jacobian is [V, 0].

    >>> FixedPolicy({(): np.log([0.25, 0.75])})(())[1].shape
    (2, 0)
    """

    logprobs: Mapping[State, FloatArray]

    def __call__(self, prefix: State) -> tuple[FloatArray, FloatArray]:
        """Return log π(·|s) [V] and an empty Jacobian."""
        row = self.logprobs.get(_as_key(prefix))
        if row is None:
            raise InvalidInput(f"the fixed policy has no row for prefix {prefix}")
        return row, np.zeros((len(row), 0))


def _as_key(state: State) -> State:
    """Prefixes may come as lists, numbers of states as numpy integers."""
    return int(state) if isinstance(state, int | np.integer) else tuple(state)


def log_softmax(logits: FloatArray) -> FloatArray:
    """Log-probabilities of a softmax: z_a − log Σ_b e^(z_b), shifted by the largest logit against overflow.

    >>> np.exp(log_softmax(np.array([1000.0, 1000.0])))
    array([0.5, 0.5])
    """
    shifted = logits - float(logits.max())
    return shifted - float(np.log(np.exp(shifted).sum()))
