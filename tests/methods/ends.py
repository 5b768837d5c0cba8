"""What the tests of where training ends share: problems, methods that compare within a batch, closed forms."""

from functools import cache

import numpy as np
import torch

from rung.methods import Method
from tests.methods.helpers import BY_TOKENS, COMPARES
from tests.methods.training import End, Pairs, train
from tests.methods.trees import LONG, Array, C, Tree, softmax

BETA = 0.5
IDS = {id(C): "C", id(LONG): "LONG"}
# What a sampler adds to the logits of toy C, whatever they are: first tokens, then what follows a and b.
SHIFT = torch.tensor([1.5, -1.5, 0.0, 1.0, -1.0, 0.0, 1.0, -1.0, 0.0], dtype=torch.float64)


@cache
def pairs(name: str, one_by_one: bool = False) -> Pairs:
    return Pairs(LONG if name == "LONG" else C, one_by_one=one_by_one)


def whole_batch(name: str) -> bool:
    """Whether an entry's credit or weights depend on all rows, so that each pair is prepared by itself.

    That takes ten times as long: such methods are trained on the smaller problem only.
    """
    return COMPARES[name] == "batch" or name in BY_TOKENS


def trained(method: Method, tree: Tree, step: float, **settings: object) -> End:
    """The end of following the mean update over all pairs."""
    return train(method, pairs(IDS[id(tree)], whole_batch(method.name)), step, **settings)  # type: ignore[arg-type]


def close(actual: object, wanted: object, atol: float = 1e-10) -> None:
    np.testing.assert_allclose(actual, wanted, rtol=0, atol=atol)  # type: ignore[arg-type]


def apart(p: Array, q: Array) -> float:
    """Total-variation distance."""
    return 0.5 * float(np.abs(p - q).sum())


def tilted(tree: Tree, beta: float = BETA) -> tuple[Array, float]:
    """p* of every sequence, and β log Z: p_ref e^(R/β) / Z."""
    weights = tree.sequences(tree.reference) * np.exp(tree.rewards / beta)
    return weights / weights.sum(), beta * float(np.log(weights.sum()))


def tilted_with_a_bonus(tree: Tree, beta: float, bonus: float) -> Array:
    """Where ∇(J − β KL) + c Σ_s p(s) ∇H(π(·|s)) vanishes, a table; the entropy of later prefixes is nobody's reward.

        r + V(s a) − β log π/π_ref − c log π = constant in a    ⇒    π(a|s) ∝ π_ref^(β/(β+c)) e^((r + V(s a))/(β+c))

    with V(s) = Σ_a π(a|s) (r + V(s a) − β log π/π_ref): from the last tokens backwards.
    """
    reward_of = dict(zip(tree.tokens, tree.rewards, strict=True))
    prefixes, policy, value = tree.mdp.prefixes(), np.zeros(tree.reference.shape), {}
    for row in sorted(range(len(prefixes)), key=lambda row: -len(prefixes[row])):
        reference = np.log(tree.reference[row])
        next_ones = [(*prefixes[row], token) for token in range(len(reference))]
        later = np.array([reward_of[s] if s in reward_of else value[s] for s in next_ones])
        policy[row] = softmax((beta * reference + later) / (beta + bonus))
        value[prefixes[row]] = float(policy[row] @ (later - beta * (np.log(policy[row]) - reference)))
    return policy
