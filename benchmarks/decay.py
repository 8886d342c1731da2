"""Which weight decay suits Adam on protein homology and KDD Cup 1999, chosen on rows that are not in the test set.

    python -m benchmarks.decay protein|kddcup99 [--decays 0 0.1 1 2] [--seeds N] [--out DIR] [--rows FILE.csv]

A fifth of the training rows is held out: of protein homology whole blocks. Adam alone trains on the rest, and the decay
with the lowest log loss there is what `benchmarks.tasks` gives to all methods. Goes on where it was stopped; one row
for each run goes to docs/evidence/TASK-decay.csv.
"""

from __future__ import annotations

import argparse
import csv
import statistics
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from adamcb.lab.commands.compare import Options, run_comparison
from adamcb.lab.experiment import Experiment
from adamcb.lab.results import Row
from adamcb.lab.tasks.kddcup99 import kddcup99
from adamcb.lab.tasks.protein import protein
from benchmarks.tasks import GROUPS
from benchmarks.timing import markdown

TASKS = {"protein": protein, "kddcup99": kddcup99}


def rows_of(name: str, decay: float, seeds: int, place: Path) -> list[Row]:
    """Return the losses at the end of Adam's runs with a weight decay, on the rows to train on and on the others."""
    task = TASKS[name](validation=True)
    settings = {**GROUPS["rare-events"][name], "methods": ("adam",), "weight_decay": decay, "seeds": seeds}
    found = run_comparison(Experiment(task=task.name, **settings), Options(out=place, jobs=0), Console(), task=task)
    last = max(row["step"] for row in found.results)
    ends = [row for row in found.results if row["step"] == last]
    names = {"train_loss": "train_loss", "test_loss": "held_out_loss", "test_average_precision": "held_out_precision"}
    return [
        {"weight_decay": decay, "seed": row["seed"], **{name: row[column] for column, name in names.items()}}
        for row in ends
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Do the missing runs, write their rows and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.decay", description="Choose the weight decay.")
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--decays", type=float, nargs="+", default=(0.0, 0.1, 1.0, 2.0), metavar="W")
    parser.add_argument("--seeds", type=int, default=1, metavar="N")
    parser.add_argument("--out", type=Path, default=Path("runs"), metavar="DIR", help="where result folders go")
    parser.add_argument("--rows", type=Path, metavar="FILE.csv", help="default: docs/evidence/TASK-decay.csv")
    options = parser.parse_args(arguments)
    task = options.task
    rows = [
        row
        for decay in options.decays
        for row in rows_of(task, decay, options.seeds, options.out / f"{task}-decay-{decay}")
    ]
    path = options.rows or Path("docs") / "evidence" / f"{task}-decay.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    names = list(rows[0])[2:]
    body = []
    for decay in options.decays:
        own = [row for row in rows if row["weight_decay"] == decay]
        body.append([f"{decay:g}", *(f"{statistics.mean(row[name] for row in own):.4g}" for name in names)])
    print(markdown(["weight decay", *names], body))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
