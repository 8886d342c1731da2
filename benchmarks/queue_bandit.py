"""What a draw and update of QueueBandit cost beside CombinatorialBandit's, and how many bytes a sample takes.

    python -m benchmarks.queue_bandit [--quick] [--huge]

One thread; both in one interleaved run; medians. Both have seen every sample and learned from it, so that rates differ
and the queue is not aligned any more. Prints Markdown.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch

from adamcb.selection import CombinatorialBandit, QueueBandit, Selection
from benchmarks.timing import duration, interleaved, markdown

SIZES = (10**5, 10**6, 10**7)
BATCH_SIZE = 128


def make(n: int) -> dict[str, Selection]:
    """Return both bandits, with weights of very different sizes."""
    weights = np.random.default_rng(0).gamma(0.5, size=n) + 0.05
    combinatorial = CombinatorialBandit(n, BATCH_SIZE, gate=None, generator=torch.Generator().manual_seed(0))
    queue = QueueBandit(n, BATCH_SIZE, generator=torch.Generator().manual_seed(0))
    combinatorial.weights = queue.weights = weights
    return {"queue": queue, "combinatorial": combinatorial}


def first_epoch(queue: QueueBandit) -> tuple[float, float]:
    """Go through everyone's first unit; return the seconds it took, and those of the longest draw.

    All units end at one place as long as rates are equal, so one draw begins n units.
    """
    start, longest = time.perf_counter(), 0.0
    for _ in range(queue.draws_per_epoch + 2):
        before = time.perf_counter()
        queue.draw()
        longest = max(longest, time.perf_counter() - before)
    return time.perf_counter() - start, longest


def bytes_per_sample(queue: QueueBandit) -> float:
    axis = queue._axis
    return sum(array.nbytes for array in (*axis.heap, *axis[1:])) / queue.num_samples


def step_of(selection: Selection, scores: np.ndarray):
    def step() -> None:
        draw = selection.draw()
        selection.update(draw, scores[draw.indices])

    return step


def measure(n: int, seconds: float) -> list[str]:
    start = time.perf_counter()
    QueueBandit(n, BATCH_SIZE, generator=torch.Generator().manual_seed(0))
    build = time.perf_counter() - start
    bandits = make(n)
    epoch, longest = first_epoch(bandits["queue"])
    scores = bandits["queue"].weights
    cost = interleaved({name: step_of(bandit, scores) for name, bandit in bandits.items()}, seconds=seconds)
    ratio = cost["queue"] / cost["combinatorial"]
    costs = [duration(cost["queue"]), duration(cost["combinatorial"]), f"{ratio:.2f}"]
    row = [f"{n:,}", *costs, f"{bytes_per_sample(bandits['queue']):.1f}", duration(build), duration(longest)]
    print(f"n = {n:,}: {', '.join(row[1:])}; first epoch {duration(epoch)}", flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description="Benchmark QueueBandit against CombinatorialBandit.")
    parser.add_argument("--quick", action="store_true", help="sizes up to a million")
    parser.add_argument("--huge", action="store_true", help="a hundred million samples, too")
    options = parser.parse_args()
    torch.set_num_threads(1)
    sizes = SIZES[:2] if options.quick else (*SIZES, 10**8) if options.huge else SIZES
    QueueBandit(1000, 8).draw()  # compile
    header = ["n", "queue", "combinatorial", "ratio", "bytes a sample", "build", "longest draw"]
    print("\n" + markdown(header, [measure(n, seconds=2.0) for n in sizes]))


if __name__ == "__main__":
    main()
