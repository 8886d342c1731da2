"""Long runs: probabilities that must go on summing to K, and memory that must not grow.

Selections draw up to eight batches ahead of their feedback. Norms span thirty decades, some are 0, and one batch in ten
is never answered. Trainers load with workers, leave epochs unfinished and save checkpoints. Prints a Markdown table,
and exits with 1 if a sum is off by more than 1e-9 or memory grew by more than a twentieth after the first tenth.

    python -m benchmarks.soak [--draws 5000] [--samples 100000] [--steps 2000] [--workers 2] [--out soak.csv]
    python -m benchmarks.soak --draw soak.csv --out docs/figures/soak.svg

The long runs: `--draws 200000 --steps 1000000`. `--out` writes every look at once, so a run may be watched.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import itertools
import os
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

from adamcb import AdamCB, CombinatorialBandit, QueueBandit, ReplacementBandit, Selection
from benchmarks.timing import markdown

BATCH_SIZE, TRAINER_BATCH_SIZE = 128, 16
AHEAD, LOOKS = 8, 100
LARGEST_ERROR, LARGEST_GROWTH = 1e-9, 0.05
SELECTIONS: dict[str, Callable[..., Selection]] = {
    "scale-free": lambda *sizes, **options: CombinatorialBandit(*sizes, gate=None, **options),
    "proof": lambda *sizes, **options: CombinatorialBandit(*sizes, feedback="proof", gate=None, **options),
    "queue": QueueBandit,
    "AdamBS": ReplacementBandit,
}


class Look(NamedTuple):
    """What is seen in the course of a run.

    Attributes:
        run: The name of the run.
        rounds: Draws or steps so far.
        error: |Σp − K| now; NaN of a trainer.
        memory: Resident MiB now.
    """

    run: str
    rounds: int
    error: float
    memory: float


class Soaked(NamedTuple):
    """What a long run shows.

    Attributes:
        rounds: Draws or steps.
        error: The largest |Σp − K| that was seen; NaN of a trainer.
        before: The most resident MiB up to a tenth of the rounds.
        after: The most resident MiB after it.
    """

    rounds: int
    error: float
    before: float
    after: float

    @classmethod
    def of(cls, looks: list[Look]) -> Soaked:
        """Return what all looks at one run show."""
        rounds = looks[-1].rounds
        first = [look.memory for look in looks if look.rounds <= rounds / 10] or [looks[0].memory]
        rest = [look.memory for look in looks if look.rounds > rounds / 10]
        return cls(rounds, max(look.error for look in looks), max(first), max(rest))

    @property
    def is_sound(self) -> bool:
        """Whether the sum held and memory was flat."""
        return not self.error > LARGEST_ERROR and self.after <= (1.0 + LARGEST_GROWTH) * self.before


def resident() -> float:
    """Return the memory that this process has, in MiB; workers have their own."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def looks_of(rounds: int) -> set[int]:
    """Return after which rounds to look."""
    return {max(1, round(share * rounds)) for share in np.linspace(1.0 / LOOKS, 1.0, LOOKS)}


def soak_selection(name: str, num_samples: int, draws: int, seed: int = 0) -> Iterator[Look]:
    """Draw and feed back under extreme norms, late and with gaps, and look at the probabilities now and then."""
    selection = SELECTIONS[name](num_samples, BATCH_SIZE, generator=torch.Generator().manual_seed(seed))
    rng = np.random.default_rng(seed)
    waiting: deque[Any] = deque()
    looks = looks_of(draws)
    for number in range(1, draws + 1):
        waiting.append(selection.draw())
        while len(waiting) > rng.integers(AHEAD + 1):
            place = int(rng.integers(len(waiting)))  # out of order
            draw = waiting[place]
            del waiting[place]
            if rng.random() >= 0.1:
                selection.update(draw, extreme_norms(rng, len(draw)))
        if number in looks:
            error = abs(float(selection.inclusion_probs().sum()) - BATCH_SIZE)
            yield Look(f"{name}, n = {num_samples:,}", number, error, resident())


def extreme_norms(rng: np.random.Generator, count: int) -> np.ndarray:
    norms = 10.0 ** rng.uniform(-15.0, 15.0, size=count)
    return np.where(rng.random(count) < 0.1, 0.0, norms)


class Rows(Dataset):
    """Points in 16 dimensions, in two classes. Workers give batches of them as arrays, which are quickest to send."""

    def __init__(self, num_samples: int, seed: int) -> None:
        self.inputs = np.random.default_rng(seed).normal(size=(num_samples, 16)).astype(np.float32)
        self.targets = (self.inputs.sum(1) > 0.0).astype(np.int64)

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])

    def __getitems__(self, indices: list[int]) -> Any:
        return self.inputs[indices], self.targets[indices]


def soak_trainer(steps: int, workers: int, seed: int = 0) -> Iterator[Look]:
    """Train with workers; every third epoch is left in its middle, and every second one is saved and loaded."""
    data = Rows(512 * TRAINER_BATCH_SIZE, seed)
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 2))
    looks, done = looks_of(steps), 0
    with (
        tempfile.TemporaryDirectory() as folder,
        AdamCB(model, data, TRAINER_BATCH_SIZE, num_workers=workers, collate_fn=_as_it_is) as trainer,
    ):
        for epoch in itertools.count():
            for x, y in itertools.islice(trainer, len(trainer) // (2 if epoch % 3 == 2 else 1)):
                inputs, targets = torch.from_numpy(x), torch.from_numpy(y)
                trainer.step(F.cross_entropy(model(inputs), targets, reduction="none"))
                done += 1
                if done in looks:
                    yield Look(f"trainer, {workers} workers", done, float("nan"), resident())
                if done == steps:
                    return
            if epoch % 2:
                trainer.save(Path(folder) / "checkpoint.pt")
                trainer.load(Path(folder) / "checkpoint.pt")


def _as_it_is(batch: Any) -> Any:
    return batch


def write(looks: Iterator[Look], file: TextIO | None) -> Iterator[Look]:
    """Write every look to a CSV file when it is made."""
    for look in looks:
        if file is not None:
            csv.writer(file).writerow(look)
            file.flush()
        yield look


def draw(looks: list[Look], path: Path) -> None:
    """Draw how far the sums were off, and how much memory there was, over the runs."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"font.size": 9, "svg.hashsalt": "adamcb", "axes.spines.top": False}):
        figure = Figure(figsize=(8, 3.2), layout="constrained")
        errors, memory = figure.subplots(1, 2)
        for name in dict.fromkeys(look.run for look in looks):
            own = [look for look in looks if look.run == name]
            done = [look.rounds / own[-1].rounds for look in own]
            label = f"{name}: {own[-1].rounds:,}"
            if not np.isnan(own[0].error):
                errors.plot(done, [max(look.error, 1e-16) for look in own], ".", markersize=3, label=label)
            memory.plot(done, [look.memory for look in own], label=label)
        errors.axhline(LARGEST_ERROR, color="black", linestyle="--", linewidth=1)
        errors.set(yscale="log", ylim=(1e-17, 1e-8), ylabel="|Σp − K|", xlabel="share of the draws")
        memory.set(ylim=(0, None), ylabel="resident memory in MiB", xlabel="share of the draws or steps")
        memory.legend(frameon=False, fontsize=7, loc="lower right")
        figure.savefig(path, metadata={"Date": None})


def read(path: Path) -> list[Look]:
    """Return the looks that `write` wrote."""
    with path.open(encoding="utf-8", newline="") as file:
        return [Look(run, int(rounds), float(error), float(memory)) for run, rounds, error, memory in csv.reader(file)]


def report(looks: list[Look]) -> int:
    """Print what the runs show; return 0 if all of them are sound."""
    found = {
        name: Soaked.of([look for look in looks if look.run == name]) for name in {look.run: None for look in looks}
    }
    rows = [
        [name, f"{one.rounds:,}", f"{one.error:.1e}", f"{one.before:.0f} MiB", f"{one.after:.0f} MiB"]
        for name, one in found.items()
    ]
    print(markdown(["run", "draws or steps", "largest |Σp − K|", "most memory, first tenth", "most, the rest"], rows))
    return 0 if all(one.is_sound for one in found.values()) else 1


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=5000, help="of every selection; 0: none")
    parser.add_argument("--samples", type=int, default=100_000)
    parser.add_argument("--steps", type=int, default=2000, help="of the trainer; 0: none")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--draw", type=Path, metavar="CSV", help="draw what a run wrote, instead of running")
    parser.add_argument("--out", type=Path, help="where to write looks to, or with --draw the figure")
    options = parser.parse_args(arguments)
    if options.draw:
        looks = read(options.draw)
        draw(looks, options.out)
        return report(looks)
    torch.set_num_threads(1)
    runs = [soak_selection(name, options.samples, options.draws) for name in SELECTIONS if options.draws]
    runs += [soak_trainer(options.steps, options.workers)] if options.steps else []
    with options.out.open("w", encoding="utf-8", newline="") if options.out else contextlib.nullcontext() as file:
        return report([look for run in runs for look in write(run, file)])


if __name__ == "__main__":
    sys.exit(main())
