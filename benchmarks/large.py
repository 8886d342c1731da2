"""What a selection of very many samples takes: seconds and bytes a sample of everything that is done with it.

    python -m benchmarks.large [--sizes 1e5 1e6 1e7 1e8] [--kinds queue combinatorial shuffled] [--batch-size 128]
        [--folder DIR] [--computed]

"queue" has weights that differ, and its units end everywhere. "combinatorial" draws every batch by weight, as it does
once its gate is open. "shuffled" is the same with the gate closed: batches are read off a shuffled order, which is much
less work. Draws and updates take turns; their medians count.

Every size runs in a process of its own, on one thread. Seconds are the processor's, without waiting for a disk. "Peak"
is the most memory that the process held during a phase, less what it held before the selection was built, divided by n.
What is saved or loaded counts while it is in memory. Linux only: the peak is reset before every phase. Prints Markdown.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from adamcb.selection import CombinatorialBandit, QueueBandit, Selection
from benchmarks.timing import duration, markdown

KINDS: dict[str, Callable[..., Selection]] = {
    "queue": QueueBandit,
    "combinatorial": partial(CombinatorialBandit, gate=None),
    "shuffled": CombinatorialBandit,
}
PHASES = ("build", "draw", "update", "new epoch", "save", "load")


def memory(field: str) -> int:
    """Return a field of this process's memory in bytes: VmRSS now, VmHWM at the peak."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


class Phases:
    """Runs one phase after the other; keeps the seconds of a call and the peak of each."""

    def __init__(self, n: int) -> None:
        self.n, self.base = n, memory("VmRSS")
        self.rows: dict[str, tuple[float, float]] = {}

    def run(self, name: str, work: Callable[[], Any]) -> Any:
        results: list[Any] = []
        self.alternate(1, **{name: lambda: results.append(work())})
        return results[0]

    def alternate(self, calls: int, **works: Callable[[], Any]) -> None:
        """Call all of these in turns, and keep their medians. They share their peak."""
        Path("/proc/self/clear_refs").write_text("5")  # the peak is now what is held now
        seconds: dict[str, list[float]] = {name: [] for name in works}
        for _ in range(calls):
            for name, work in works.items():
                start = time.process_time()
                work()
                seconds[name].append(time.process_time() - start)
        peak = (memory("VmHWM") - self.base) / self.n
        for name in works:
            self.rows[name] = statistics.median(seconds[name]), peak
            print(f"{self.n:,} {name}: {cell(self.rows[name], self.n)}", file=sys.stderr, flush=True)


def end_epoch(selection: Selection) -> None:
    """Bring a selection to where its next draw begins a new epoch."""
    if isinstance(selection, CombinatorialBandit):
        selection._drawn = selection.draws_per_epoch
    elif isinstance(selection, QueueBandit):
        heap = selection._axis.heap  # all samples visited, and all units end at 1
        heap.keys[:] = 1.0
        np.subtract(-1, heap.events, out=heap.events, where=heap.events >= 0)
        heap.events.sort()


def with_weights(selection: Selection) -> Selection:
    """Return a queue with weights that differ; other selections take as long with equal ones."""
    if isinstance(selection, QueueBandit):
        selection.weights = np.random.default_rng(0).gamma(0.5, size=selection.num_samples) + 0.05
    return selection


def measure(kind: str, n: int, batch_size: int, folder: Path) -> dict[str, tuple[float, float]]:
    make = KINDS[kind]
    small = make(1000, 10)  # compiles
    for _ in range(300):
        draw = small.draw()
        small.update(draw, np.ones(10))
    small.load_state_dict(small.state_dict())
    phases = Phases(n)
    selection = phases.run("build", lambda: make(n, batch_size, generator=torch.Generator().manual_seed(0)))
    end_epoch(with_weights(selection))
    phases.run("new epoch", selection.draw)
    scores = itertools.cycle(np.random.default_rng(0).gamma(0.5, size=(50, batch_size)))
    last: deque[Any] = deque(maxlen=1)
    works = {
        "draw": lambda: last.append(selection.draw()),
        "update": lambda: selection.update(last[0], next(scores)),
    }
    phases.alternate(max(20, 128_000 // batch_size), **works)
    path = folder / f"{kind}-{n}.pt"
    phases.run("save", lambda: torch.save(selection.state_dict(), path))
    expected = selection.draw()
    phases.run("load", lambda: selection.load_state_dict(torch.load(path, mmap=True)))
    assert np.array_equal(selection.draw().indices, expected.indices)
    path.unlink()
    return phases.rows


def cell(row: tuple[float, float], n: int) -> str:
    return f"{duration(row[0])}, {row[1]:.1f}" if n >= 10**6 else duration(row[0])


def main() -> None:
    parser = argparse.ArgumentParser(description="Benchmark selections of very many samples.")
    parser.add_argument("--sizes", type=float, nargs="+", default=[1e5, 1e6, 1e7, 1e8])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=["queue", "combinatorial"])
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="where states are saved")
    parser.add_argument("--computed", action="store_true", help="compute all orders, as for more than 2²⁸ samples")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.one:
        n = int(options.sizes[0])
        if options.computed:
            sys.modules["adamcb.selection._random"].MOST_STORED = 0  # pyright: ignore[reportAttributeAccessIssue]
        rows = measure(options.kinds[0], n, options.batch_size, options.folder)
        print("\t".join([options.kinds[0], f"{n:,}", *(cell(rows[name], n) for name in PHASES)]))
        return
    table = []
    for kind in options.kinds:
        for size in options.sizes:
            command = [sys.executable, "-m", "benchmarks.large", "--one", "--sizes", str(size), "--kinds", kind]
            command += ["--batch-size", str(options.batch_size), "--folder", str(options.folder)]
            command += ["--computed"] if options.computed else []
            run = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ))
            lines = run.stdout.strip().splitlines()
            table.append(lines[-1].split("\t") if run.returncode == 0 else [kind, f"{int(size):,}", "does not fit"])
            print(*table[-1], run.stderr if run.returncode > 0 else "", sep=" | ", flush=True)
    print("\n" + markdown(["selection", "n", *(f"{name}, peak" for name in PHASES)], table))


if __name__ == "__main__":
    main()
