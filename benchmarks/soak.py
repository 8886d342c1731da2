"""Long runs: probabilities that must go on summing to K, and memory that must not grow.

Selections draw up to eight batches ahead of their feedback. Norms span thirty decades, some are 0, and one batch in ten
is never answered. Trainers load with workers, leave epochs unfinished and save checkpoints. Prints a Markdown table,
and exits with 1 if a sum is off by more than 1e-9 or memory grew by more than a twentieth after the first tenth.

    python -m benchmarks.soak [--draws 5000] [--samples 100000] [--steps 2000] [--workers 2]

The long runs: `--draws 200000 --steps 1000000`.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

from adamcb import AdamCB, CombinatorialBandit, QueueBandit, ReplacementBandit, Selection
from benchmarks.timing import markdown

BATCH_SIZE = 128
AHEAD = 8
LARGEST_ERROR, LARGEST_GROWTH = 1e-9, 0.05
SELECTIONS: dict[str, Callable[..., Selection]] = {
    "scale-free": lambda *sizes, **options: CombinatorialBandit(*sizes, gate=None, **options),
    "proof": lambda *sizes, **options: CombinatorialBandit(*sizes, feedback="proof", **options),
    "queue": QueueBandit,
    "AdamBS": ReplacementBandit,
}


class Soaked(NamedTuple):
    """What a long run shows.

    Attributes:
        rounds: Draws or steps.
        error: The largest |Σp − K| that was seen; NaN of a trainer.
        before: Resident MiB after a tenth of the rounds.
        after: Resident MiB at the end.
    """

    rounds: int
    error: float
    before: float
    after: float

    @property
    def is_sound(self) -> bool:
        """Whether the sum held and memory was flat."""
        return not self.error > LARGEST_ERROR and self.after <= (1.0 + LARGEST_GROWTH) * self.before


def resident() -> float:
    """Return the memory that this process has, in MiB; workers have their own."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def soak_selection(make: Callable[..., Selection], num_samples: int, draws: int, seed: int = 0) -> Soaked:
    """Draw and feed back under extreme norms, late and with gaps, and look at the probabilities now and then."""
    selection = make(num_samples, BATCH_SIZE, generator=torch.Generator().manual_seed(seed))
    rng = np.random.default_rng(seed)
    waiting: deque[Any] = deque()
    error, before = 0.0, 0.0
    looks = {round(share * draws) for share in np.linspace(0.01, 1.0, 100)}
    for number in range(1, draws + 1):
        waiting.append(selection.draw())
        while len(waiting) > rng.integers(AHEAD + 1):
            place = int(rng.integers(len(waiting)))  # out of order
            draw = waiting[place]
            del waiting[place]
            if rng.random() >= 0.1:
                selection.update(draw, extreme_norms(rng, len(draw)))
        if number in looks:
            error = max(error, abs(float(selection.inclusion_probs().sum()) - BATCH_SIZE))
        if number == max(1, draws // 10):
            before = resident()
    return Soaked(draws, error, before, resident())


def extreme_norms(rng: np.random.Generator, count: int) -> np.ndarray:
    norms = 10.0 ** rng.uniform(-15.0, 15.0, size=count)
    return np.where(rng.random(count) < 0.1, 0.0, norms)


def soak_trainer(steps: int, workers: int, seed: int = 0) -> Soaked:
    """Train with workers; every third epoch is left in its middle, and every second one is saved and loaded."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(64 * BATCH_SIZE, 16, generator=generator)
    data = TensorDataset(inputs, (inputs.sum(1) > 0.0).long())
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 2))
    before, done = 0.0, 0
    with tempfile.TemporaryDirectory() as folder, AdamCB(model, data, BATCH_SIZE, num_workers=workers) as trainer:
        for epoch in itertools.count():
            for x, y in _left_in_the_middle(trainer) if epoch % 3 == 2 else trainer:
                trainer.step(F.cross_entropy(model(x), y, reduction="none"))
                done += 1
                if done == max(1, steps // 10):
                    before = resident()
                if done == steps:
                    return Soaked(steps, float("nan"), before, resident())
            if epoch % 2:
                trainer.save(Path(folder) / "checkpoint.pt")
                trainer.load(Path(folder) / "checkpoint.pt")
    raise AssertionError


def _left_in_the_middle(trainer: AdamCB) -> Iterator[Any]:
    yield from itertools.islice(trainer, len(trainer) // 2)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=5000, help="of every selection; 0: none")
    parser.add_argument("--samples", type=int, default=100_000)
    parser.add_argument("--steps", type=int, default=2000, help="of the trainer; 0: none")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    found = {}
    for name, make in SELECTIONS.items() if options.draws else ():
        found[f"{name}, n = {options.samples:,}"] = soak_selection(make, options.samples, options.draws)
    if options.steps:
        found[f"trainer, {options.workers} workers"] = soak_trainer(options.steps, options.workers)
    rows = [
        [name, f"{one.rounds:,}", f"{one.error:.1e}", f"{one.before:.0f} MiB", f"{one.after:.0f} MiB"]
        for name, one in found.items()
    ]
    print(markdown(["run", "draws or steps", "largest |Σp − K|", "memory after a tenth", "at the end"], rows))
    return 0 if all(one.is_sound for one in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
