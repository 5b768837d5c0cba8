"""Policies as plain functions: prefix → (log-probabilities [V], their Jacobian [V, n]).

Any callable of this kind is a policy. `SoftmaxTable` gives every prefix logits of its own, `LogLinear` lets
prefixes and prompts share parameters, `FixedPolicy` has none.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from rung.errors import InvalidInput
from rung.exact.token_mdp import FloatArray, Prefix

Policy: TypeAlias = Callable[[Prefix], tuple[FloatArray, FloatArray]]

# Probabilities of a row that comes in as log-probabilities may miss 1 by rounding, not by more.
SUM_TOLERANCE = 1e-9


def evaluate(
    policy: Policy, prefix: Prefix, vocabulary_size: int | None = None
) -> tuple[FloatArray, FloatArray]:
    """Ask a policy for one prefix and check the answer, so that a faulty callable is found where it is wrong.

    Args:
        policy: prefix → (log π(·|s) [V], Jacobian [V, n]).
        prefix: the tokens so far.
        vocabulary_size: V, or None to take whatever the policy has.

    Returns:
        log π(·|s) [V] in nats, −∞ for a token that cannot be sampled, and ∂ log π(a|s)/∂θ [V, n].

    Raises:
        InvalidInput: the shapes do not fit, the probabilities do not sum to 1, or a derivative of a token
            that can be sampled is not finite.

    >>> logprobs, jacobian = evaluate(SoftmaxTable([()], [[0.0, 0.0]]), ())
    >>> np.exp(logprobs)
    array([0.5, 0.5])
    >>> jacobian
    array([[ 0.5, -0.5],
           [-0.5,  0.5]])
    """
    logprobs, jacobian = policy(prefix)
    logprobs, jacobian = np.asarray(logprobs, dtype=np.float64), np.asarray(jacobian, dtype=np.float64)
    if logprobs.ndim != 1 or jacobian.ndim != 2 or len(jacobian) != len(logprobs):
        raise InvalidInput(
            f"a policy returns log-probabilities [V] and a Jacobian [V, n], "
            f"but after {prefix} it returned {list(logprobs.shape)} and {list(jacobian.shape)}"
        )
    if vocabulary_size is not None and len(logprobs) != vocabulary_size:
        raise InvalidInput(
            f"the token MDP has {vocabulary_size} tokens, but after {prefix} the policy has {len(logprobs)}"
        )
    total = float(np.exp(logprobs).sum())
    if not abs(total - 1.0) < SUM_TOLERANCE:
        raise InvalidInput(f"the probabilities after {prefix} sum to {total}, not to 1")
    if not np.isfinite(jacobian[logprobs > -np.inf]).all():
        raise InvalidInput(f"the Jacobian after {prefix} is not finite for a token that can be sampled")
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
    """A softmax over logits that each prefix has for itself; the parameters are the logits, row by row.

        π(a|s) = e^θ(s,a) / Σ_b e^θ(s,b)        ∂ log π(a|s)/∂θ(s,b) = [a = b] − π(b|s)

    Source: Sutton and Barto, 2nd edition, section 13.1, equations 13.2 and 13.3 (one-hot features).

    Args:
        prefixes: one per row; their order is the order of the rows.
        logits: [rows, V].

    Raises:
        InvalidInput: rows and prefixes differ in number, a prefix occurs twice, or a logit is not finite.

    >>> table = SoftmaxTable([(), (0,)], [[0.0, 0.0], [0.0, 0.0]])
    >>> table((0,))[1]
    array([[ 0. ,  0. ,  0.5, -0.5],
           [ 0. ,  0. , -0.5,  0.5]])
    """

    def __init__(self, prefixes: Sequence[Prefix], logits: ArrayLike) -> None:
        self.prefixes: tuple[Prefix, ...] = tuple(tuple(prefix) for prefix in prefixes)
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
        self._rows: Mapping[Prefix, int] = {prefix: row for row, prefix in enumerate(self.prefixes)}

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

    def row_of(self, prefix: Prefix) -> int:
        """Which row of the logits belongs to a prefix."""
        row = self._rows.get(tuple(prefix))
        if row is None:
            raise InvalidInput(
                f"the softmax table has no row for prefix {prefix}; it has {list(self.prefixes)}"
            )
        return row

    def __call__(self, prefix: Prefix) -> tuple[FloatArray, FloatArray]:
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
        features: prefix → x(s,·) [V, n].
        parameters: θ [n].

    >>> policy = LogLinear(lambda prefix: np.array([[0.0], [1.0]]), np.array([0.0]))
    >>> policy(())[1]
    array([[-0.5],
           [ 0.5]])
    """

    features: Callable[[Prefix], FloatArray]
    parameters: FloatArray

    def with_parameters(self, parameters: ArrayLike) -> "LogLinear":
        """The same features with these parameters [n]."""
        return LogLinear(self.features, np.array(parameters, dtype=np.float64))

    def __call__(self, prefix: Prefix) -> tuple[FloatArray, FloatArray]:
        """Return log π(·|s) [V] and its Jacobian [V, n]."""
        features = np.asarray(self.features(prefix), dtype=np.float64)
        logprobs = log_softmax(features @ self.parameters)
        return logprobs, features - np.exp(logprobs) @ features


@dataclass(frozen=True)
class FixedPolicy:
    """A policy given by its log-probabilities at each prefix. It has no parameters: its Jacobian is [V, 0].

    >>> FixedPolicy({(): np.log([0.25, 0.75])})(())[1].shape
    (2, 0)
    """

    logprobs: Mapping[Prefix, FloatArray]

    def __call__(self, prefix: Prefix) -> tuple[FloatArray, FloatArray]:
        """Return log π(·|s) [V] and an empty Jacobian."""
        row = self.logprobs.get(tuple(prefix))
        if row is None:
            raise InvalidInput(f"the fixed policy has no row for prefix {prefix}")
        return row, np.zeros((len(row), 0))


def log_softmax(logits: FloatArray) -> FloatArray:
    """Log-probabilities of a softmax: z_a − log Σ_b e^(z_b), shifted by the largest logit against overflow.

    >>> np.exp(log_softmax(np.array([1000.0, 1000.0])))
    array([0.5, 0.5])
    """
    shifted = logits - float(logits.max())
    return shifted - float(np.log(np.exp(shifted).sum()))
