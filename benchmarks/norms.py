"""How much per-sample gradient norms cost: forward plus backward with the engine, and with its peers, against without.

    python -m benchmarks.norms [--rounds 15] [--models MLP CNN] [--ways exact opacus ...] [--clock cpu] [--no-memory]

One thread; in every round each way has a turn of some steps on the same batch, as training takes one step after the
other; the table holds ratios of medians. The C library is told to keep freed memory: returning it to the kernel after
every step and getting it back costs all ways the same, up to a third of a step, and that by chance.

Peak memory is what steps take above what the process held before them, after steps that have loaded all there is to
load. For this, in a process of its own, every large block goes back to the kernel as soon as it is freed, so that the
process is as large as its live blocks, gaps between them and caches not counted.

A way that cannot do a model shows "–", one that is not installed is left out.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import statistics
import subprocess
import sys
import time

import torch

from benchmarks.norms_models import PROBLEMS, Problem
from benchmarks.norms_ways import OURS, WAYS

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
# Read by the C library when a process begins.
KEEP_FREED = {"MALLOC_MMAP_THRESHOLD_": str(2**32), "MALLOC_TRIM_THRESHOLD_": str(2**32)}
RETURN_FREED = {
    "MALLOC_MMAP_THRESHOLD_": str(2**16),
    "MALLOC_TRIM_THRESHOLD_": str(2**16),
    "MALLOC_MMAP_MAX_": "1000000",
}


def timed(step, clock: str, *, turn: float = 0.03) -> float:
    """Return the time of one step, over a turn of at least `turn` seconds."""
    start, count, elapsed = CLOCKS[clock](), 0, 0.0
    while elapsed < turn:
        step()
        count, elapsed = count + 1, CLOCKS[clock]() - start
    return elapsed / count


def prepare(problem: Problem, names: list[str]) -> dict:
    """Return a step for each way, all on the same initial weights and the same batch."""
    steps = {}
    for name in names:
        torch.manual_seed(0)
        model = problem.model()
        batch = problem.inputs(problem.batch_size), problem.targets(problem.batch_size)
        try:
            steps[name] = WAYS[name](model, *batch)
            steps[name]()
        except Exception as error:
            if name in OURS:
                raise
            print(f"{name} cannot do {problem.name}: {type(error).__name__}", file=sys.stderr)
            steps.pop(name, None)
    return steps


def measure(problem: Problem, names: list[str], rounds: int, clock: str) -> tuple[float, dict[str, float]]:
    """Return the plain step's median time in milliseconds, and each way's median over it."""
    steps = prepare(problem, names)
    times: dict[str, list[float]] = {name: [] for name in steps}
    gc.disable()
    for turn in range(rounds):
        order = list(steps) if turn % 2 else list(reversed(steps))
        for name in order:
            times[name].append(timed(steps[name], clock))
    gc.enable()
    plain = statistics.median(times["plain"])
    return 1e3 * plain, {name: statistics.median(values) / plain for name, values in times.items()}


def peak_of(problem: Problem, name: str) -> float:
    """Return the peak memory of a step in megabytes, measured in a new process."""
    command = [sys.executable, "-m", "benchmarks.norms", "--peak", problem.name, name]
    environment = os.environ | RETURN_FREED
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    return float(result.stdout.split()[-1]) if result.returncode == 0 else float("nan")


def print_peak(name: str, way: str) -> None:
    problem = next(p for p in PROBLEMS if p.name == name)
    torch.manual_seed(0)
    model, inputs, targets = problem.model(), problem.inputs(problem.batch_size), problem.targets(problem.batch_size)
    step = WAYS[way](model, inputs, targets)
    step()
    step()
    model.zero_grad()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/clear_refs", "w") as references:
        references.write("5")  # the peak begins again at the present size
    before = _kilobytes("VmRSS")
    step()
    step()
    print((_kilobytes("VmHWM") - before) / 2**10)


def _kilobytes(field: str) -> int:
    """Return a field of this process's status; unlike `getrusage`, its peak does not begin with the parent's."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(field))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15, help="timed rounds for each model")
    parser.add_argument("--models", nargs="+", default=[], help="only models whose name holds one of these")
    parser.add_argument("--ways", nargs="+", default=list(WAYS), help="only these ways (plain is always there)")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu: for machines with other work to do")
    parser.add_argument("--no-memory", action="store_true", help="skip the peaks")
    parser.add_argument("--peak", nargs=2, metavar=("MODEL", "WAY"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.peak:
        print_peak(*options.peak)
        return
    if any(os.environ.get(name) != value for name, value in KEEP_FREED.items()):
        os.execve(sys.executable, [sys.executable, "-m", "benchmarks.norms", *sys.argv[1:]], os.environ | KEEP_FREED)
    names = ["plain", *(name for name in WAYS if name in options.ways and name != "plain")]
    others = names[1:]
    memory = [] if options.no_memory else [name for name in ("exact",) if name in others]
    print("| model | plain, ms | " + " | ".join(others) + "".join(f" | peak memory, {n}" for n in memory) + " |")
    print("|---" * (2 + len(others) + len(memory)) + "|")
    for problem in PROBLEMS:
        if options.models and not any(word in problem.name for word in options.models):
            continue
        print_row(problem, others, memory, options)


def print_row(problem: Problem, others: list[str], memory: list[str], options: argparse.Namespace) -> None:
    torch.manual_seed(0)
    milliseconds, ratios = measure(problem, ["plain", *others], options.rounds, options.clock)
    cells = [f"{ratios[name]:.3f}" if name in ratios else "–" for name in others]
    plain = peak_of(problem, "plain") if memory else 1.0
    cells += [f"{peak_of(problem, name) / plain:.2f}" for name in memory]
    print(f"| {problem.name} | {milliseconds:.1f} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
