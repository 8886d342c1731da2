"""What a draw and its update cost against the number of samples, beside the peers.

    python -m benchmarks.selection [--quick] [--out docs/figures]

One thread; all candidates of a size in one interleaved run; medians. Prints Markdown; with --out it also writes the
figure `selection.svg` and `.png`.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from adamcb.lab.tasks.models import build_model
from adamcb.selection import CombinatorialBandit
from benchmarks.selection_peers import LARGEST, PEERS, adamcb_step
from benchmarks.timing import duration, interleaved, markdown

SIZES = (10**4, 60_000, 10**5, 10**6, 10**7, 10**8)
BATCHES = (32, 128, 1024)
Costs = dict[tuple[int, int], dict[str, float]]


def measure_costs(sizes: tuple[int, ...], batches: tuple[int, ...], seconds: float) -> Costs:
    costs: Costs = {}
    for n in sizes:
        for k in batches if n < 10**8 else (128,):  # to fill the peers' tables takes minutes there
            steps = {name: make(n, k) for name, make in PEERS.items() if n <= LARGEST.get(name, n)}
            candidates = {name: step for name, step in steps.items() if step is not None}
            costs[n, k] = interleaved(candidates, seconds=seconds)
            print(f"n = {n:,}, K = {k}: " + ", ".join(f"{m} {duration(s)}" for m, s in costs[n, k].items()), flush=True)
    return costs


def share_of_adam_step(k: int = 128) -> list[list[str]]:
    """Return rows: a draw and update beside a plain Adam step of the paper's MLP on MNIST's shape, fused Adam.

    In turns of a millisecond each, as all peers are timed; and one by one, as training calls them, where the draw finds
    the caches as a training step leaves them.
    """
    torch.manual_seed(0)
    model = build_model("mlp", image_shape=(1, 28, 28), num_classes=10)
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    x, y = torch.rand(k, 1, 28, 28), torch.randint(10, (k,))

    def adam_step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    select, times = adamcb_step(60_000, k), ([], [])
    turns = interleaved({"selection": select, "adam": adam_step}, seconds=4.0)
    for _ in range(500):
        for call, spent in zip((select, adam_step), times, strict=True):
            start = time.perf_counter()
            call()
            spent.append(time.perf_counter() - start)
    single = {"selection": statistics.median(times[0]), "adam": statistics.median(times[1])}
    return [
        [f"draw and update ÷ plain Adam step, MNIST MLP, {name}", _share(cost)]
        for name, cost in (("in turns", turns), ("one by one", single))
    ]


def _share(cost: dict[str, float]) -> str:
    share = 100 * cost["selection"] / cost["adam"]
    return f"{share:.1f} % ({duration(cost['selection'])} of {duration(cost['adam'])})"


def subprocess_seconds(code: str, *, repeats: int, cache: str | None = None) -> float:
    """Return the median seconds that `code` prints when run in a fresh interpreter."""
    environment = dict(os.environ, **({} if cache is None else {"NUMBA_CACHE_DIR": cache}))
    command = [sys.executable, "-c", f"import time, torch; start = time.perf_counter(); {code}; "]
    command[-1] += "print(time.perf_counter() - start)"
    runs = [
        subprocess.run(command, env=environment, capture_output=True, text=True, check=True) for _ in range(repeats)
    ]
    return statistics.median(float(run.stdout) for run in runs)


def start_up() -> list[list[str]]:
    """Return rows: what `import adamcb` adds to `import torch`, and the first use with and without compiled code."""
    use = "from adamcb import CombinatorialBandit as B; b = B(1000, 8); d = b.draw(); b.update(d, [1.0] * 8)"
    with tempfile.TemporaryDirectory() as empty:
        first = subprocess_seconds(use, repeats=1, cache=empty)
        again = subprocess_seconds(use, repeats=3, cache=empty)
    added = subprocess_seconds("from adamcb import AdamCB", repeats=5)
    return [
        ["`import adamcb` after `import torch`", duration(added)],
        ["import and first use, nothing compiled yet", duration(first)],
        ["import and first use, compiled code cached", duration(again)],
    ]


def memory(n: int) -> list[list[str]]:
    """Return rows: time to build, bytes a sample that are kept, and at the peak over a new epoch."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    bandit = CombinatorialBandit(n, 128, generator=torch.Generator().manual_seed(0))
    seconds = time.perf_counter() - start
    arrays = [*bandit._tree, bandit._order, bandit._position_of]
    kept = sum(array.nbytes for array in arrays if isinstance(array, np.ndarray))
    del arrays
    start = time.perf_counter()
    bandit._start_epoch(1, bandit.weights)
    epoch = time.perf_counter() - start
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    return [
        [f"build, n = {n:,}", duration(seconds)],
        [f"redraw the order, once an epoch, n = {n:,}", duration(epoch)],
        ["kept", f"{kept / n:.1f} bytes a sample"],
        ["at the peak, new order included", f"{peak / n:.1f} bytes a sample"],
    ]


def report(costs: Costs) -> None:
    names = list(PEERS)
    rows = [
        [f"{n:,}", str(k), *(duration(cost[m]) if m in cost else "–" for m in names)] for (n, k), cost in costs.items()
    ]
    print("\n" + markdown(["n", "K", *names], rows))
    small, large = min(n for n, _ in costs), max(n for n, _ in costs)
    lines = [
        [f"n = {large:,} against n = {small:,}", f"{costs[large, 128]['adamcb'] / costs[small, 128]['adamcb']:.2f}"]
    ]
    for (n, k), cost in costs.items():
        if k == 128:
            lines += [
                [f"{name} against adamcb, n = {n:,}", f"{cost[name] / cost['adamcb']:,.1f}"]
                for name in names[1:]
                if name in cost
            ]
    print("\n" + markdown(["ratio, K = 128", "times"], lines))


def draw_figure(costs: Costs, folder: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    marks = ("o", "s", "^", "D", "v")
    colors = ("#0072B2", "#666666", "#E69F00", "#CC79A7", "#009E73")  # Okabe and Ito: told apart by everyone
    for name, mark, color in zip(PEERS, marks, colors, strict=True):
        points = [(n, cost[name]) for (n, k), cost in costs.items() if k == 128 and name in cost]
        if points:
            axes.loglog(
                *zip(*points, strict=True), marker=mark, color=color, label=name, lw=2.4 if mark == "o" else 1.4
            )
    axes.set(xlabel="samples in the dataset, n", ylabel="seconds a draw and update", title="Choosing 128 samples of n")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    folder.mkdir(parents=True, exist_ok=True)
    for suffix in ("svg", "png"):
        figure.savefig(folder / f"selection.{suffix}", dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description="Benchmark batch selection against its peers.")
    parser.add_argument("--quick", action="store_true", help="sizes up to a million, K = 128 only")
    parser.add_argument("--out", type=Path, help="folder for the figure")
    options = parser.parse_args()
    torch.set_num_threads(1)
    sizes, batches = (SIZES[:4], (128,)) if options.quick else (SIZES, BATCHES)
    facts = memory(sizes[-1])  # first, so that the peak is its own
    costs = measure_costs(sizes, batches, seconds=1.0)
    report(costs)
    print("\n" + markdown(["fact", "measured"], facts + share_of_adam_step() + start_up()))
    if options.out:
        draw_figure(costs, options.out)


if __name__ == "__main__":
    main()
