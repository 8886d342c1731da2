"""Where choosing pays: the tasks that ship, with the methods that people use on them.

    python -m benchmarks.tasks rare-events|pinn|regression|text [--seeds N] [--out DIR] [--rows FILE.csv]

Every task is an `adamcb compare` of its own, which goes on where it was stopped. One row for each run goes to
docs/evidence/GROUP.csv, with samples and processor seconds until the training loss was Adam's final one, and the table
of docs/GROUP.md is printed.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from adamcb.lab.commands.compare import Options, prepare, run_missing
from adamcb.lab.experiment import Experiment
from adamcb.lab.results import RUNS, ResultFolder, Row, read_json
from adamcb.lab.results.statistics import estimate, reach

RARE = ("adam", "adamcb-smaller", "balanced-sampler", "adamcb", "small-batches", "weighted-loss", "focal-loss")
# Twelve epochs are 2,340 steps; docs/pinn.md says how optimizer and learning rates were chosen.
_OF_EQUATIONS = {"methods": ("adam", "rad", "adamcb", "adamcb-smaller"), "epochs": 12, "optimizer": "muon"}
_FRESH = {"methods": ("adam",), "epochs": 1, "optimizer": "muon"}  # the same number of steps
# Group → row's name → what is compared there. `task` is the lab's task, if the row is not named after it.
GROUPS: dict[str, dict[str, dict[str, Any]]] = {
    "rare-events": {
        "rare-events": {"methods": (*RARE, "undersampling")},
        # Weight decays are those that suit Adam best on rows held out for it: `python -m benchmarks.decay`.
        "protein": {
            "methods": (*RARE, "undersampling"),
            "batch_size": 512,
            "optimizer": "adamw",
            "weight_decay": 1.0,
        },
        "kddcup99": {"methods": RARE, "optimizer": "adamw", "weight_decay": 0.3},
    },
    "pinn": {
        "burgers": {**_OF_EQUATIONS, "lr": 0.01},
        "burgers-fresh": {**_FRESH, "lr": 0.01, "task": "benchmarks/fresh_points.py:burgers"},
        "allen-cahn": {**_OF_EQUATIONS, "lr": 0.02},
        "allen-cahn-fresh": {**_FRESH, "lr": 0.02, "task": "benchmarks/fresh_points.py:allen_cahn"},
    },
    "regression": {"heavy-tails": {"methods": ("adam", "adamcb-smaller", "adamcb", "small-batches")}},
    "text": {
        "speakers": {"methods": ("adam", "adamcb-smaller")},
        "shakespeare": {"methods": ("adam", "adamcb-smaller"), "epochs": 2},
    },
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Do the missing runs of a group, write its rows and print its table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tasks", description="Where choosing pays.")
    parser.add_argument("group", choices=tuple(GROUPS))
    parser.add_argument("--task", action="append", help="only this task of the group; may be repeated")
    parser.add_argument("--method", action="append", help="only this method; may be repeated")
    parser.add_argument("--seeds", type=int, default=3, metavar="N")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes of one thread each; 0: here")
    parser.add_argument("--out", type=Path, default=Path("runs"), metavar="DIR", help="where result folders go")
    parser.add_argument("--report-only", action="store_true", help="run nothing; write rows of what is there")
    parser.add_argument("--rows", type=Path, metavar="FILE.csv", help="default: docs/evidence/GROUP.csv")
    options = parser.parse_args(arguments)
    rows: list[Row] = []
    for task, settings in GROUPS[options.group].items():
        if options.task is None or task in options.task:
            place = options.out / f"{options.group}-{task}"
            if not options.report_only:
                methods = [name for name in settings["methods"] if name in (options.method or settings["methods"])]
                own = {"task": task, **settings, "methods": tuple(methods), "seeds": options.seeds}
                do_missing(place, Experiment(**own), options.jobs)
            rows += final_rows(task, place, settings["methods"])
    path = options.rows or Path("docs") / "evidence" / f"{options.group}.csv"
    rows = with_others(rows, path)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(name for row in rows for name in row)), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print("\n".join(table(rows)))
    return 0


def do_missing(place: Path, experiment: Experiment, jobs: int) -> None:
    """Do the runs that a folder does not hold yet. Methods and seeds may be added to it later."""
    options, console = Options(jobs=jobs, threads=1), Console(stderr=True)
    task, config = prepare(experiment, options, console)
    folder = ResultFolder(place, {**config, "methods": [], "labels": {}, "seeds": []})
    try:
        run_missing(experiment.completed(task), options, folder, console, None if jobs else task)
    finally:
        folder.close()


def final_rows(task: str, place: Path, methods: Sequence[str]) -> list[Row]:
    """Return one row for each run that is done: what it took, how soon it was where Adam ended, and how good it is."""
    done = {path.parent.name: read_json(path)["results"] for path in sorted(place.glob(f"{RUNS}/*/done.json"))}
    measured = set.intersection(*(set(curve[-1]) for curve in done.values())) if done else set()
    rows = []
    for run, curve in sorted(done.items(), key=lambda item: methods.index(item[0].rpartition("-seed")[0])):
        method, _, seed = run.rpartition("-seed")
        last, adam = curve[-1], done.get(f"adam-seed{seed}")
        row: Row = {"task": task, "method": method, "seed": int(seed), "steps": last["step"]}
        row |= {name: last[name] for name in ("samples", "seconds", "train_loss")}
        if adam is not None:
            end = adam[-1]
            hit = reach(curve, "train_loss", end["train_loss"], "samples", "seconds") or (None, None)
            row["samples_to_adam"] = hit[0] and hit[0] / end["samples"]
            row["seconds_to_adam"] = hit[1] and hit[1] / end["seconds"]
            row["seconds_of_adam"] = last["seconds"] / end["seconds"]
        rows.append(row | {name: last[name] for name in last if name.startswith("test_") and name in measured})
    return rows


def with_others(rows: Sequence[Row], path: Path) -> list[Row]:
    """Return the rows, and those of a file whose runs are not among them: their folders may be elsewhere."""
    found = {(row["task"], row["method"], row["seed"]): row for row in rows}
    if path.is_file():
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                key = (row["task"], row["method"], int(row["seed"]))
                found.setdefault(key, {**row, **{name: _number(row[name]) for name in list(row)[2:]}})
    tasks = [task for group in GROUPS.values() for task in group]
    methods = [name for group in GROUPS.values() for task in group.values() for name in task["methods"]]
    return sorted(found.values(), key=lambda row: (tasks.index(row["task"]), methods.index(row["method"]), row["seed"]))


def _number(text: str) -> float | int | None:
    return None if not text else int(text) if text.isdigit() else float(text)


def table(rows: Sequence[Row]) -> list[str]:
    """Return the rows as tables of means with 95 % intervals over seeds, one for each task."""
    lines: list[str] = []
    for task in dict.fromkeys(row["task"] for row in rows):
        own = [row for row in rows if row["task"] == task]
        metrics = [name for name in own[0] if name.startswith("test_") and own[0][name] is not None]
        names = ("samples", "seconds_of_adam", "samples_to_adam", "seconds_to_adam", "train_loss", *metrics)
        body = []
        for method in dict.fromkeys(row["method"] for row in own):
            runs = [row for row in own if row["method"] == method]
            body.append([method, str(len(runs)), *(_cell([row.get(name) for row in runs]) for name in names)])
        cells = [["method", "seeds", *names], ["---"] * (2 + len(names)), *body]
        lines += [f"## {task}", "", *(f"| {' | '.join(row)} |" for row in cells), ""]
    return lines


def _cell(values: Sequence[float | None]) -> str:
    found = [value for value in values if value is not None]
    if len(found) < len(values) or not found:
        return "–"
    mean = estimate(found)
    return f"{mean.mean:.4g}" + (f" ± {mean.margin:.2g}" if len(found) > 1 else "")


if __name__ == "__main__":
    raise SystemExit(main())
