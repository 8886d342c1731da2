"""What weighted sampling costs a batch: WeightedSelection beside torch's WeightedRandomSampler and torchrl.

    python -m benchmarks.weighted [--sizes 10000 100000] [--seconds 2]

One thread; all candidates of a size take turns; medians of processor time, K = 128. Prints Markdown. The column of
torchrl needs torchrl.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch
from torch.utils.data import WeightedRandomSampler

from adamcb import WeightedSelection
from benchmarks.selection_peers import torchrl_step
from benchmarks.timing import duration, interleaved, markdown

SIZES = (10**4, 10**5, 10**6, 10**7)
BATCH_SIZE = 128
Call = Callable[[], object]


def weights_of(n: int) -> np.ndarray:
    return np.random.default_rng(0).uniform(0.5, 1.0, size=n)


def ours(n: int) -> WeightedSelection:
    return WeightedSelection(weights_of(n), BATCH_SIZE, generator=torch.Generator().manual_seed(0))


def torch_draw(n: int, *, replacement: bool) -> Call:
    weights, generator = torch.from_numpy(weights_of(n)), torch.Generator().manual_seed(0)
    sampler = WeightedRandomSampler(weights, BATCH_SIZE, replacement=replacement, generator=generator)  # pyright: ignore
    return lambda: list(sampler)


def torch_epoch(n: int) -> Call:
    """An epoch at a time, as a DataLoader asks for it; its time is shared out among its batches."""
    weights, generator = torch.from_numpy(weights_of(n)), torch.Generator().manual_seed(0)
    sampler = WeightedRandomSampler(weights, n, replacement=True, generator=generator)  # pyright: ignore
    return lambda: list(sampler)


def ours_with_changes(n: int) -> Call:
    selection, weights = ours(n), weights_of(64 * BATCH_SIZE).reshape(64, BATCH_SIZE)
    count = 0

    def step() -> None:
        nonlocal count
        count += 1
        selection.set_weights(selection.draw().indices, weights[count % 64])

    return step


def measure(n: int, seconds: float) -> tuple[list[str], list[str]]:
    """Return a row for drawing, and a row for drawing and changing the weights that were drawn."""
    draws = {
        "ours": ours(n).draw,
        "distinct": torch_draw(n, replacement=False),
        "repeats": torch_draw(n, replacement=True),
        "epoch": torch_epoch(n),
    }
    changes: dict[str, Call] = {"ours": ours_with_changes(n)}
    peer = torchrl_step(n, BATCH_SIZE)
    if peer is not None:
        changes["torchrl"] = peer
    costs = interleaved(draws, seconds=seconds, clock=time.process_time)
    costs["epoch"] /= n / BATCH_SIZE
    changing = interleaved(changes, seconds=seconds, clock=time.process_time)
    return (
        [f"{n:,}", *(duration(cost) for cost in costs.values())],
        [f"{n:,}", duration(changing["ours"]), duration(changing["torchrl"]) if peer is not None else "–"],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Benchmark weighted sampling.")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, metavar="N")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each candidate")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = [measure(n, options.seconds) for n in options.sizes]
    header = ["WeightedSelection", "torch, 128 distinct", "torch, 128 with repeats", "torch, an epoch with repeats"]
    print(markdown(["n", *header], [row for row, _ in rows]))
    print("\n" + markdown(["n", "WeightedSelection, draw and set", "torchrl, draw and set"], [row for _, row in rows]))


if __name__ == "__main__":
    main()
