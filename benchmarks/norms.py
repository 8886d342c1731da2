"""How much per-sample gradient norms cost: forward plus backward with the engine, and with its peers, against without.

    python -m benchmarks.norms [--rounds 15] [--models MLP CNN] [--ways exact opacus ...] [--clock cpu] [--no-memory]

One thread. Each way runs in a process of its own, so that none works on memory that another has left in pieces; in
every round each has a turn of some steps on the same batch, as training takes one step after the other, while the rest
wait, in an order drawn anew: in turns forwards and backwards, the first and the last would follow themselves and find
their caches warm. The table holds ratios of medians. The C library is told to keep freed memory: returning it to the
kernel after every step and getting it back costs all ways the same, up to a third of a step, and that by chance.

Peak memory is what steps take above what the process held before them, after steps that have loaded all there is to
load. For this every large block goes back to the kernel as soon as it is freed, so that the process is as large as its
live blocks, the gaps between them not counted.

A way that cannot do a model shows "–", one that is not installed is left out.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import random
import statistics
import subprocess
import sys
import time

import torch

from benchmarks import norms_models, norms_transformers
from benchmarks.norms_models import Problem
from benchmarks.norms_ways import OURS, WAYS, Step

PROBLEMS = norms_models.PROBLEMS + norms_transformers.PROBLEMS
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
# Read by the C library when a process begins.
KEEP_FREED = {"MALLOC_MMAP_THRESHOLD_": str(2**32), "MALLOC_TRIM_THRESHOLD_": str(2**32)}
RETURN_FREED = {
    "MALLOC_MMAP_THRESHOLD_": str(2**16),
    "MALLOC_TRIM_THRESHOLD_": str(2**16),
    "MALLOC_MMAP_MAX_": "1000000",
}


class Runner:
    """A process that holds one way of doing a model's step, and takes a turn when told to.

    Args:
        problem: The model and its batch.
        way: The name of the way.
        clock: "wall" or "cpu".
    """

    def __init__(self, problem: Problem, way: str, clock: str) -> None:
        self._process = _start("--turns", problem.name, way, clock, settings=KEEP_FREED)
        self.obstacle = self._answer()

    def turn(self) -> float:
        """Return the seconds of one step, over a turn of steps."""
        print(file=self._process.stdin, flush=True)
        return float(self._answer())

    def close(self) -> None:
        """End the process."""
        self._process.communicate()

    def _answer(self) -> str:
        stdout = self._process.stdout
        return "" if stdout is None else stdout.readline().strip()


def _start(*arguments: str, settings: dict[str, str]) -> subprocess.Popen:
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.norms", *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=os.environ | settings)


def ready(name: str, way: str) -> tuple[torch.nn.Module, Step]:
    """Return a model and its step after four steps, the first three of which are checked, always on the same batch."""
    problem = next(p for p in PROBLEMS if p.name == name)
    torch.manual_seed(0)
    model, inputs, targets = problem.model(), problem.inputs(problem.batch_size), problem.targets(problem.batch_size)
    step = WAYS[way](model, inputs, targets)
    for _ in range(4):
        step()
    return model, step


def take_turns(name: str, way: str, clock: str) -> None:
    """Say what stands in the way, nothing if all is well; then answer each line with the seconds of a step."""
    try:
        _, step = ready(name, way)
    except Exception as error:
        if way in OURS:
            raise
        print(type(error).__name__, flush=True)
        return
    print(flush=True)
    gc.disable()
    for _ in sys.stdin:
        print(timed(step, clock), flush=True)


def timed(step: Step, clock: str, *, turn: float = 0.03) -> float:
    """Return the time of one step, over a turn of at least `turn` seconds.

    The first step finds the caches full of what another process left: it counts only if it fills the turn alone.
    """
    now = CLOCKS[clock]
    start = now()
    step()
    alone = now() - start
    if alone >= turn:
        return alone
    start, count, elapsed = now(), 0, 0.0
    while elapsed < turn:
        step()
        count, elapsed = count + 1, now() - start
    return elapsed / count


def measure(problem: Problem, names: list[str], rounds: int, clock: str) -> tuple[float, dict[str, float]]:
    """Return the plain step's median time in milliseconds, and each way's median over it."""
    runners = {name: Runner(problem, name, clock) for name in names}
    for name in [name for name, runner in runners.items() if runner.obstacle]:
        print(f"{name} cannot do {problem.name}: {runners[name].obstacle}", file=sys.stderr)
        runners.pop(name).close()
    times: dict[str, list[float]] = {name: [] for name in runners}
    chance = random.Random(0)
    for _ in range(rounds):
        for name in chance.sample(list(runners), len(runners)):
            times[name].append(runners[name].turn())
    for runner in runners.values():
        runner.close()
    plain = statistics.median(times["plain"])
    return 1e3 * plain, {name: statistics.median(values) / plain for name, values in times.items()}


def peak_of(problem: Problem, way: str) -> float:
    """Return the peak memory of a step in megabytes, measured in a new process."""
    answer, _ = _start("--peak", problem.name, way, settings=RETURN_FREED).communicate()
    return float(answer) if answer.strip() else float("nan")


def print_peak(name: str, way: str) -> None:
    """Print the peak memory of two steps in megabytes."""
    model, step = ready(name, way)
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
    parser.add_argument("--models", nargs="+", default=[], help="only models of these names, or with these words in it")
    parser.add_argument("--ways", nargs="+", default=list(WAYS), help="only these ways (plain is always there)")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu: for machines with other work to do")
    parser.add_argument("--no-memory", action="store_true", help="skip the peaks")
    parser.add_argument("--turns", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--peak", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.turns:
        take_turns(*options.turns)
    elif options.peak:
        print_peak(*options.peak)
    else:
        print_table(options)


def print_table(options: argparse.Namespace) -> None:
    others = [name for name in WAYS if name in options.ways and name != "plain"]
    memory = [] if options.no_memory else [name for name in ("exact",) if name in others]
    print("| model | plain, ms | " + " | ".join(others) + "".join(f" | peak memory, {n}" for n in memory) + " |")
    print("|---" * (2 + len(others) + len(memory)) + "|")
    for problem in PROBLEMS:
        if not options.models or any(is_meant(word, problem) for word in options.models):
            print_row(problem, others, memory, options)


def is_meant(word: str, problem: Problem) -> bool:
    """Tell whether a word stands for a problem: its name, or else a part of it."""
    return word == problem.name or (word in problem.name and word not in {other.name for other in PROBLEMS})


def print_row(problem: Problem, others: list[str], memory: list[str], options: argparse.Namespace) -> None:
    milliseconds, ratios = measure(problem, ["plain", *others], options.rounds, options.clock)
    cells = [f"{ratios[name]:.3f}" if name in ratios else "–" for name in others]
    plain = peak_of(problem, "plain") if memory else 1.0
    cells += [f"{peak_of(problem, name) / plain:.2f}" for name in memory]
    print(f"| {problem.name} | {milliseconds:.1f} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
