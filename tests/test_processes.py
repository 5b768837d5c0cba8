"""Several real processes give the numbers of one: statistics that are gathered, losses and gradients that only add.

Each process holds some rows of one batch, and one of them none that counts. A hang fails: collectives and processes
have a time limit.
"""

import os
import sys
import time
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

from rung.aggregation import Totals, constant_length, count, sequence_mean, sequence_sum, token_mean
from rung.masked import Statistics, merge, statistics, whiten
from rung.policy_losses import cispo_loss, clipped_loss, sequence_clipped_loss
from tests.batches import NAN, close, f64, flags

SECONDS = 30  # for everything; a collective that waits for half of it has failed
# Which rows each process holds. The last row of the batch has no token that counts: with three, it is alone.
SHARES = {2: ([0, 1, 2], [3, 4]), 3: ([0, 3], [1, 2], [4])}

MASK = flags([[1, 1, 1, 0], [1, 0, 1, 1], [1, 1, 0, 0], [0, 1, 0, 0], [0, 0, 0, 0]])
FEATURES = 3
AGGREGATIONS = {
    "sequence_sum": sequence_sum,
    "sequence_mean": sequence_mean,
    "token_mean": token_mean,
    "constant_length": partial(constant_length, length=4),
}
LOSSES = {
    "clipped": lambda policy, old, credit, mask: clipped_loss(policy, old, credit),
    "sequence_clipped": partial(sequence_clipped_loss, clip_low=0.3, clip_high=0.3),
    "cispo": lambda policy, old, credit, mask: cispo_loss(policy, old, credit, cap=1.1),
}


def batch():
    """Features [5, 4, 3], old log-probs and raw credit [5, 4]; NaN off the mask, as careless code might leave it."""
    generator = torch.Generator().manual_seed(5)
    features = torch.randn(*MASK.shape, FEATURES, generator=generator, dtype=torch.float64)
    old = -2.0 * torch.rand(MASK.shape, generator=generator, dtype=torch.float64)
    credit = torch.randn(MASK.shape, generator=generator, dtype=torch.float64)
    return features, old, torch.where(MASK, credit, NAN)


def gradients(rows, totals, whole):
    """∂ loss / ∂ parameters of some rows, for every loss and aggregation; credit whitened over the whole batch."""
    features, old, credit = (x[rows] for x in batch())
    mask = MASK[rows]
    psi = whiten(credit, mask, statistics=whole)
    found = {}
    for name, loss in LOSSES.items():
        for weights_name, aggregation in AGGREGATIONS.items():
            parameters = f64([0.3, -0.2, 0.5]).requires_grad_()
            policy = old + 0.3 * (features @ parameters)
            total = (aggregation(mask, totals=totals) * loss(policy, old, psi, mask)).sum()
            (found[f"{name} {weights_name}"],) = torch.autograd.grad(total, parameters)
    return found


def gathered(own):
    """The statistics of every process, in the order of ranks."""
    parts = [torch.zeros(3, dtype=torch.float64) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, f64([own.count, own.mean, own.squares]))
    return [Statistics(int(n), float(mean), float(squares)) for n, mean, squares in parts]


def added(value):
    value = value.clone()
    dist.all_reduce(value)
    return value


def work(rank, world, folder):
    """What a process of a training run does, and everything it found out, into a file."""
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    store = dist.FileStore(str(folder / "store"), world)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=SECONDS / 2)
    )
    found = {}

    # B5: tokens 1, 2, 3, 4 beside 10, beside nothing.
    x, mask = [
        (f64([1.0, 2.0, 3.0, 4.0]), flags([1, 1, 1, 1])),
        (f64([10.0, NAN]), flags([1, 0])),
        (f64([NAN, 5.0]), flags([0, 0])),
    ][rank]
    merged = merge(gathered(statistics(x, mask)))
    found["merged"] = merged
    found["whitened"] = [whiten(x, mask, correction=c, statistics=merged)[mask] for c in (0, 1)]

    # D2: sums of 2 over two tokens, of 24 over six, of nothing.
    losses, mask = [
        (torch.ones(1, 2, dtype=torch.float64), flags([[1, 1]])),
        (torch.full((1, 6), 4.0, dtype=torch.float64), flags([[1] * 6])),
        (f64([[50.0]]), flags([[0]])),
    ][rank]
    own = count(mask)
    sequences, tokens = added(torch.tensor([own.sequences, own.tokens])).tolist()
    local = (token_mean(mask, Totals(sequences, tokens)) * losses).sum()
    found["scaled"], found["total"] = local * world, added(local)

    # A step: counts and statistics of the whole, then gradients that are only added.
    rows = SHARES[world][rank]
    own = count(MASK[rows])
    totals = Totals(*added(torch.tensor([own.sequences, own.tokens])).tolist())
    whole = merge(gathered(statistics(batch()[2][rows], MASK[rows])))
    found["gradients"] = {name: added(slope) for name, slope in gradients(rows, totals, whole).items()}
    torch.save(found, folder / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module", params=[2, 3], ids=["two processes", "three processes"])
def processes(request, tmp_path_factory):
    """What each of two or three processes found."""
    world = request.param
    folder = Path(tmp_path_factory.mktemp(f"processes-{world}"))
    # Each process is fresh, forked off a server that has imported torch and done nothing with it.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.distributed"])
    started = [context.Process(target=work, args=(rank, world, folder)) for rank in range(world)]
    for process in started:
        process.start()
    deadline = time.monotonic() + SECONDS
    for process in started:
        process.join(max(deadline - time.monotonic(), 0.0))
    hung = [rank for rank, process in enumerate(started) if process.is_alive()]
    for process in started:
        if process.is_alive():
            process.kill()
            process.join()
    assert hung == [], f"processes {hung} of {world} hang"
    assert [process.exitcode for process in started] == [0] * world
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(world)]


def test_case_B5_whitening_over_processes_is_that_of_one(processes):
    """Mean 4, squares 50: variance 10, or 12.5 as an estimate. The process without a token gets the same and adds 0."""
    for found in processes:
        assert found["merged"] == Statistics(5, 4.0, 50.0)
    for which, variance in ((0, 10.0), (1, 12.5)):
        s = variance**0.5
        close(processes[0]["whitened"][which], [-3 / s, -2 / s, -1 / s, 0.0])
        close(processes[1]["whitened"][which], [6 / s])
        assert processes[-1]["whitened"][which].numel() == (1 if len(processes) == 2 else 0)


def test_case_D2_losses_of_processes_add_up_to_the_token_mean(processes):
    """Scaled by the number of processes: 0.5 and 6.0 for two, 0.75, 9.0 and 0 for three. Their sum unscaled is 3.25."""
    scaled = {2: [0.5, 6.0], 3: [0.75, 9.0, 0.0]}[len(processes)]
    for found, wanted in zip(processes, scaled, strict=True):
        close(found["scaled"], wanted)
        close(found["total"], 3.25)


def test_case_D2_gradients_of_processes_add_up_to_those_of_one(processes):
    """Every loss and aggregation, credit whitened over all: equal to one process, and on all of them the same bits."""
    everything = list(range(len(MASK)))
    alone = gradients(everything, None, None)
    assert len(alone) == 12
    for name, wanted in alone.items():
        assert wanted.abs().max() > 1e-2
        for found in processes:
            close(found["gradients"][name], wanted, atol=1e-10)
            assert torch.equal(found["gradients"][name], processes[0]["gradients"][name])


def test_statistics_of_a_share_alone_would_give_another_gradient():
    """So that the tests above mean something: whitened and counted by itself, a share does not add up."""
    alone = gradients(list(range(len(MASK))), None, None)
    for shares in SHARES.values():
        parts = [gradients(rows, None, None) for rows in shares]
        for name, wanted in alone.items():
            assert (sum(part[name] for part in parts) - wanted).abs().max() > 1e-3
