"""Seconds of whole trainings: the loop that everybody writes, and the same loop on smaller chosen batches, in turns.

Both loops train the same model with the same fused optimizer, the same number of steps and the same cosine schedule.
The plain one takes shuffled batches of K from a `DataLoader` over the same samples. The other one changes two lines:
`AdaptiveLoader(..., min_batch_size=16)` and `weigh`. A third loop takes random batches of the same sizes, and neither
measures nor learns. It shows what smaller batches alone can save, and so about the least time that as many steps take.

All take turns of a few steps, in one process with one thread, from the first step to the last. So whatever else the
machine does hits them alike. Processor time counts.

    ADAMCB_DATA=... python -m benchmarks.seconds [--task mnist-mlp] [--seed 0] [--out docs/evidence/seconds.csv]
"""

from __future__ import annotations

import argparse
import csv
import itertools
import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from adamcb import AdaptiveLoader, BanditLoader, Selection
from adamcb.lab.commands.budget import TASKS, load
from adamcb.lab.experiment import Experiment
from adamcb.lab.methods import METHODS
from adamcb.lab.runs.budget import SMALLEST_BATCH
from adamcb.lab.runs.building import build_optimizer, initial_model, warm_up
from adamcb.lab.tasks.schedules import cosine
from adamcb.lab.tasks.task import Task
from adamcb.selection import Draw
from benchmarks.timing import markdown

TURN = 20  # steps
COLUMNS = ("task", "seed", "steps", "adam_seconds", "adamcb_seconds", "random_seconds", "samples")


class AsMany(Selection):
    """Draws as many samples at random as another loop did a turn before: an observer of that loop."""

    learns, repeats = False, True

    def __init__(self, num_samples: int, batch_size: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        super().__init__(num_samples, batch_size, min_batch_size=1, generator=generator)
        self._sizes: deque[int] = deque()

    def note_draw(self, draw: Draw) -> None:
        self._sizes.append(len(draw))

    def note_scores(self, draw: Draw, scores: Any) -> None:
        """Do nothing."""

    def draw(self) -> Draw:
        size = self._sizes.popleft()
        # Twice in a batch is rare, and costs what two samples cost.
        indices = torch.randint(self.num_samples, (size,), generator=self.generator).numpy()
        return self.make_draw(indices, size / self.num_samples)


def training(task: Task, epochs: int, seed: int, batches: Any, weigh: Callable, model: Any) -> Iterator[None]:
    """Train a model to the end of its schedule; yield after every step."""
    experiment = Experiment(batch_size=task.batch_size, epochs=epochs, optimizer=task.optimizer).completed(task)
    optimizer = build_optimizer(experiment, METHODS["adam"], task, model)
    steps = epochs * (len(task.train) // task.batch_size)
    endless = itertools.chain.from_iterable(itertools.repeat(batches))
    model.train()
    for done, batch in enumerate(itertools.islice(endless, steps)):
        for group in optimizer.param_groups:
            group["lr"] = task.lr * cosine(done / steps, 1.0)
        optimizer.zero_grad()
        weigh(task.losses(model, getattr(batch, "data", batch))).backward()
        optimizer.step()
        yield


def take_turns(trainings: list[Iterator[None]]) -> list[float]:
    """Run all trainings to their ends, in turns of a few steps; return the processor seconds of each."""
    seconds = [0.0] * len(trainings)
    left = set(range(len(trainings)))
    while left:
        for which in sorted(left):
            start = time.process_time()
            done = sum(1 for _ in itertools.islice(trainings[which], TURN))
            seconds[which] += time.process_time() - start
            if done < TURN:
                left.remove(which)
    return seconds


def measure(name: str, seed: int, data_dir: str | None) -> dict[str, Any]:
    """Return a row: what all trainings of a task took."""
    task, epochs = load(name, data_dir)
    task = task.prepared(seed)
    warm_up(Experiment(batch_size=task.batch_size, epochs=epochs).completed(task), METHODS["adamcb"], task)
    torch.manual_seed(seed)
    shuffled = DataLoader(task.train, batch_size=task.batch_size, shuffle=True, drop_last=True)
    plain = training(task, epochs, seed, shuffled, torch.mean, initial_model(task, seed, "cpu"))
    model = initial_model(task, seed, "cpu")
    sizes = AsMany(len(task.train), task.batch_size, seed)
    random = training(task, epochs, seed, BanditLoader(task.train, sizes), torch.mean, initial_model(task, seed, "cpu"))
    options: Any = {"min_batch_size": min(SMALLEST_BATCH, task.batch_size), "seed": seed, "observers": (sizes,)}
    with AdaptiveLoader(model, task.train, task.batch_size, **options) as loader:
        ours = training(task, epochs, seed, loader, loader.weigh, model)
        seconds = take_turns([plain, ours, random])
        counts = {"steps": loader.meter.steps, "samples": loader.meter.as_dict()["samples"]}
    names = ("adam_seconds", "adamcb_seconds", "random_seconds")
    return {"task": name, "seed": seed, **dict(zip(names, seconds, strict=True)), **counts}


def read(path: Path) -> list[dict[str, Any]]:
    """Return the rows that are there already."""
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return [{**row, "seed": int(row["seed"])} for row in csv.DictReader(file)]


def append(path: Path, row: dict[str, Any]) -> None:
    """Add a row to the file."""
    is_new = not path.is_file()
    with path.open("a", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerow(row)


def summary(rows: list[dict[str, Any]]) -> str:
    """Return a table: for every task the ratio of the seconds, as a geometric mean over seeds, and its range."""
    lines = []
    for task in dict.fromkeys(row["task"] for row in rows):
        own = [row for row in rows if row["task"] == task]
        ratios = [float(row["adamcb_seconds"]) / float(row["adam_seconds"]) for row in own]
        least = mean_of([float(row["random_seconds"]) / float(row["adam_seconds"]) for row in own])
        step = sum(1000 * float(row["adam_seconds"]) / int(row["steps"]) for row in own) / len(own)
        samples = sum(float(row["samples"]) for row in own) / len(own)
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        ratio = f"{mean_of(ratios):.2f}"
        lines.append([task, f"{len(own)}", f"{step:.2f} ms", f"{samples:.2f}", ratio, spread, f"{least:.2f}"])
    titles = ["samples ÷ Adam's", "seconds ÷ Adam's", "of single seeds", "the same sizes at random ÷ Adam's"]
    return markdown(["task", "seeds", "Adam's step", *titles], lines)


def mean_of(ratios: list[float]) -> float:
    """Return the geometric mean."""
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def main() -> None:
    """Measure what has no row yet, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", action="append", choices=TASKS, help="may be repeated (default: all)")
    parser.add_argument("--seed", action="append", type=int, help="may be repeated (default: 0, 1 and 2)")
    parser.add_argument("--data-dir", metavar="DIR", help="where to look for data files first")
    parser.add_argument("--out", type=Path, default=Path("docs/evidence/seconds.csv"), help="where rows go")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for task, seed in itertools.product(options.task or TASKS, options.seed or (0, 1, 2)):
        if not any((row["task"], row["seed"]) == (task, seed) for row in read(options.out)):
            append(options.out, measure(task, seed, options.data_dir))
    print(summary(read(options.out)))


if __name__ == "__main__":
    main()
