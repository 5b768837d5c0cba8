"""rlax's side of core.py, run by the interpreter that has rlax.

Reads arrays from a folder, then lines: `result NAME` computes and writes out0.npy, … and answers their number;
`time NAME CALLS` answers the mean seconds a call, after one that does not count.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import rlax

jax.config.update("jax_enable_x64", True)


def functions(
    folder: Path, gamma: float, lam: float, clip: float
) -> dict[str, tuple[Callable[..., Any], list[Any]]]:
    """Compiled functions with their arguments, on the device."""
    data = {path.stem: np.load(path) for path in folder.glob("*.npy")}
    mask = data["mask"]
    last = mask & ~np.pad(mask[:, 1:], ((0, 0), (0, 1)))
    discounts = np.where(mask & ~last, gamma, 0.0)  # an end is a discount of 0
    values = np.pad(data["values"], ((0, 0), (0, 1)))

    def loss(policy: Any, old: Any, credit: Any) -> Any:
        ratios = jnp.exp(policy - old)
        return jax.vmap(rlax.clipped_surrogate_pg_loss, in_axes=(0, 0, None))(ratios, credit, clip).mean()

    advantages = jax.vmap(rlax.truncated_generalized_advantage_estimation, in_axes=(0, 0, None, 0))
    to_go = jax.vmap(rlax.discounted_returns)
    found = {
        "gae": (jax.jit(lambda r, d, v: advantages(r, d, lam, v)), [data["rewards"], discounts, values]),
        "reward_to_go": (jax.jit(to_go), [data["rewards"], discounts, np.zeros_like(discounts)]),
        "clipped_loss": (jax.jit(jax.value_and_grad(loss)), [data["policy"], data["old"], data["credit"]]),
    }
    return {
        name: (function, [jnp.asarray(a) for a in arguments]) for name, (function, arguments) in found.items()
    }


def main() -> None:
    folder, (gamma, lam, clip) = Path(sys.argv[1]), map(float, sys.argv[2:])
    known = functions(folder, gamma, lam, clip)
    for line in sys.stdin:
        what, name, *calls = line.split()
        function, arguments = known[name]
        if what == "result":
            found = jax.tree.leaves(function(*arguments))
            for i, array in enumerate(found):
                np.save(folder / f"out{i}.npy", np.asarray(array))
            print(len(found), flush=True)
        else:
            jax.block_until_ready(function(*arguments))
            begin = time.perf_counter()
            for _ in range(int(calls[0])):
                jax.block_until_ready(function(*arguments))
            print((time.perf_counter() - begin) / int(calls[0]), flush=True)


if __name__ == "__main__":
    main()
