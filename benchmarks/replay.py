"""Prioritized replay beside torchrl: do draws have the probabilities that they promise, and what do they cost?

    python -m benchmarks.replay [--batches 20000] [--sizes 10000 100000 1000000] [--seconds 1]

Priorities of 1,000 transitions are lognormal (σ = 1.5) and are replaced 20,000 times, 32 at a time, so that the trees
have a history. Then batches of 32 are drawn, and the priorities stay. z is how far the count of a transition is from
its expectation, in standard errors; the largest of 1,000 is 3.4 on average where all is right. The estimate is that of
the mean TD error over the buffer, from the weights that undo the bias (β = 1). Needs torchrl. Prints Markdown.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from adamcb import WeightedSelection
from benchmarks.selection_peers import torchrl_loads, torchrl_step
from benchmarks.timing import duration, interleaved, markdown
from benchmarks.weighted import BATCH_SIZE, ours_with_changes

CAPACITY, DRAWN, CHANGES = 1000, 32, 20_000


@dataclass(frozen=True)
class Buffer:
    """A prioritized buffer.

    Attributes:
        draw: Returns the indices of a batch, and a weight for each, 1/(n·p) but for a factor.
        change: Gives transitions new priorities.
        expected: From priorities to how often each transition should be in a batch.
        variance: From that expectation to the variance of the count.
    """

    draw: Callable[[], tuple[np.ndarray, np.ndarray]]
    change: Callable[[np.ndarray, np.ndarray], object]
    expected: Callable[[np.ndarray], np.ndarray]
    variance: Callable[[np.ndarray], np.ndarray]


def ours(priorities: np.ndarray) -> Buffer:
    """WeightedSelection: 32 that differ, each with probability min(1, c·priority)."""
    selection = WeightedSelection(priorities, DRAWN, generator=torch.Generator().manual_seed(0))

    def draw() -> tuple[np.ndarray, np.ndarray]:
        found = selection.draw()
        return found.indices, found.loss_weights

    return Buffer(draw, selection.set_weights, lambda _: selection.inclusion_probs(), lambda p: p * (1.0 - p))


def torchrl(priorities: np.ndarray) -> Buffer:
    """Torchrl's PrioritizedSampler: 32 draws, each proportional to the priority."""
    from torchrl.data.replay_buffers import LazyTensorStorage  # pyright: ignore[reportMissingImports]
    from torchrl.data.replay_buffers.samplers import PrioritizedSampler  # pyright: ignore[reportMissingImports]

    np.random.seed(0)  # noqa: NPY002 - what it draws from
    storage = LazyTensorStorage(CAPACITY, device="cpu")
    storage.set(slice(0, CAPACITY), torch.zeros(CAPACITY, dtype=torch.uint8))
    sampler = PrioritizedSampler(CAPACITY, 1.0, 1.0, eps=0.0)
    sampler.update_priority(torch.arange(CAPACITY), torch.from_numpy(priorities).float())

    def draw() -> tuple[np.ndarray, np.ndarray]:
        indices, info = sampler.sample(storage, DRAWN)
        return indices.numpy(), info["priority_weight"].double().numpy()

    def change(indices: np.ndarray, values: np.ndarray) -> None:
        sampler.update_priority(torch.from_numpy(indices), torch.from_numpy(values).float())

    def expected(priorities: np.ndarray) -> np.ndarray:
        return DRAWN * priorities / priorities.sum()

    return Buffer(draw, change, expected, lambda count: count * (1.0 - count / DRAWN))


def check(build: Callable[[np.ndarray], Buffer], batches: int) -> dict[str, float]:
    """Return how far counts are from what is promised, how many draws are copies, and how noisy an estimate is."""
    source = np.random.default_rng(0)
    priorities = source.lognormal(sigma=1.5, size=CAPACITY)
    buffer = build(priorities)
    for _ in range(CHANGES):
        indices, values = source.choice(CAPACITY, DRAWN, replace=False), source.lognormal(sigma=1.5, size=DRAWN)
        priorities[indices] = values
        buffer.change(indices, values)
    errors = priorities * source.uniform(0.5, 1.5, size=CAPACITY)  # the priorities know them roughly
    counts, copies, estimates = np.zeros(CAPACITY), 0, []
    for _ in range(batches):
        indices, weights = buffer.draw()
        np.add.at(counts, indices, 1.0)
        copies += len(indices) - len(np.unique(indices))
        estimates.append(float(weights @ errors[indices]))
    expected = buffer.expected(priorities)
    sure = expected > 1.0 - 1e-9 if build is ours else np.zeros(CAPACITY, dtype=bool)
    assert (counts[sure] == batches).all(), "a transition whose probability is 1 was left out"
    deviation = (counts - batches * expected)[~sure] / np.sqrt(batches * buffer.variance(expected)[~sure])
    return {
        "largest z": float(np.abs(deviation).max()),
        "mean z²": float(np.square(deviation).mean()),
        "copies": copies / (batches * DRAWN),
        "noise of the estimate": float(np.std(estimates) / np.mean(estimates)),
    }


def speed(n: int, seconds: float) -> list[str]:
    """Return a row: draw 128 of n and set their priorities."""
    calls: dict[str, Any] = {"ours": ours_with_changes(n), "torchrl": torchrl_step(n, BATCH_SIZE)}
    costs = interleaved(calls, seconds=seconds, clock=time.process_time)
    return [f"{n:,}", *map(duration, costs.values()), f"{costs['ours'] / costs['torchrl']:.2f}"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what was found."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replay", description="Prioritized replay.")
    parser.add_argument("--batches", type=int, default=20_000)
    parser.add_argument("--sizes", type=int, nargs="+", default=(10**4, 10**5, 10**6), metavar="N")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each candidate and size")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if not torchrl_loads():
        return 1
    found = {"WeightedSelection": check(ours, options.batches), "torchrl": check(torchrl, options.batches)}
    rows = [[name, *(f"{value:.3g}" for value in row.values())] for name, row in found.items()]
    print(markdown(["", *found["torchrl"]], rows))
    header = ["n", "WeightedSelection", "torchrl", "ratio"]
    print("\n" + markdown(header, [speed(n, options.seconds) for n in options.sizes]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
