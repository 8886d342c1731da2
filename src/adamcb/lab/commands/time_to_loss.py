"""`adamcb bench time-to-loss`: how soon each method reaches Adam's final loss, on tasks agreed on beforehand.

Every task, schedule and share of wrong labels has a folder of runs as `adamcb compare` makes them, so that a bench that
was stopped goes on, and methods and seeds can be added later: the tables tell of all complete runs in the folder.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from adamcb.lab.commands.compare import Options, prepare, run_missing
from adamcb.lab.commands.running import add_running, check_running
from adamcb.lab.errors import LabError, writing_to
from adamcb.lab.experiment import Experiment, add_options, given_options
from adamcb.lab.methods import METHODS, OURS, RIVALS, get_method
from adamcb.lab.output.time_to_loss import write_report
from adamcb.lab.results import RUNS, ResultFolder, Row, read_json
from adamcb.lab.results.statistics import CLOCKS, reach, value_at
from adamcb.lab.results.summary import BASELINE
from adamcb.lab.tasks.schedules import SCHEDULES

NAME = "time-to-loss"
DEFAULT_METHODS = (BASELINE, OURS, *RIVALS)


# Options that all experiments of the bench share.
SHARED = ("methods", "seeds", "epochs", "label_noise", "evaluations", "max_steps")


# The tasks of docs/evidence.md, as options of an experiment.
TASKS: dict[str, dict[str, Any]] = {
    "mnist-mlp": {"dataset": "mnist", "model": "mlp"},
    "fashion-mnist-mlp": {"dataset": "fashion-mnist", "model": "mlp"},
    "cifar10-mlp": {"dataset": "cifar10", "model": "mlp"},
    "mnist-cnn": {"dataset": "mnist", "model": "cnn"},
    "fashion-mnist-cnn": {"dataset": "fashion-mnist", "model": "cnn"},
    "mnist-logistic": {"dataset": "mnist", "model": "logistic"},
    "digits-mlp": {"dataset": "digits", "model": "mlp", "batch_size": 32},
}


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the benchmark's options."""
    parser = argparse.ArgumentParser(
        prog=f"adamcb bench {NAME}", description="How soon each method reaches Adam's final loss.", allow_abbrev=False
    )
    add = parser.add_argument
    add("--task", action="append", choices=TASKS, help="may be repeated (default: all)")
    add_options(parser, SHARED, defaults={"methods": DEFAULT_METHODS, "seeds": 5, "epochs": 10, "evaluations": 2})
    add("--schedule", action="append", choices=tuple(SCHEDULES), help="may be repeated (default: constant and cosine)")
    add("--clock", choices=CLOCKS, default="cpu", help="cpu: processor time, fair on a shared machine (default: cpu)")
    add_running(parser, "--jobs")
    add_running(parser, "--out", default=Path("adamcb-runs") / NAME, help=f"default: adamcb-runs/{NAME}")
    add_running(parser, "--data-dir", "--checkpoint-seconds")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Do the missing runs, write tables and figures, and return the exit code."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    check_running(options, parser)
    methods = tuple(options.methods or DEFAULT_METHODS)
    methods = methods if BASELINE in methods else (BASELINE, *methods)
    try:
        experiments = {place: experiment for place, experiment in _experiments(options, methods)}
        next(iter(experiments.values())).resolve_methods()
    except (ValueError, TypeError, FileNotFoundError, LabError) as error:
        parser.error(str(error))
    errors = Console(stderr=True)
    running = Options(
        data_dir=options.data_dir, jobs=options.jobs, threads=1, checkpoint_seconds=options.checkpoint_seconds
    )
    for place, experiment in experiments.items():
        errors.print(f"{place.parent.name}: {place.name}", markup=False, highlight=False)
        _run(place, experiment, running, errors)
    known = (*METHODS.values(), *RIVALS.values(), *map(get_method, methods))
    labels = {method.name: method.label for method in known}
    with writing_to(options.out):
        paths = write_report(options.out, gather(options.out, options.clock), labels, options.clock)
    for path in paths:
        print(path)
    return 0


def _experiments(options: argparse.Namespace, methods: tuple[str, ...]) -> Iterator[tuple[Path, Experiment]]:
    """Yield the folder and the experiment of every task under every condition."""
    noise = options.label_noise or None
    shared = {**given_options(options, SHARED), "methods": methods, "label_noise": noise}
    for schedule in options.schedule or ("constant", "cosine"):
        condition = schedule if noise is None else f"{schedule}-noise{noise:g}"
        for name in options.task or TASKS:
            yield options.out / condition / name, Experiment(**{**shared, **TASKS[name], "schedule": schedule})


def _run(place: Path, experiment: Experiment, options: Options, console: Console) -> None:
    """Do the missing runs of one task. Methods and seeds are left out of what a folder's results must agree on."""
    task, config = prepare(experiment, options, console)
    shared = {"methods": [], "labels": {}, "seeds": [], "lr": experiment.lr, "exploration": experiment.exploration}
    folder = ResultFolder(place, {**config, **shared})
    try:
        run_missing(experiment.completed(task), options, folder, console)
    finally:
        folder.close()


def gather(out: Path, clock: str) -> list[Row]:
    """Return one record for every complete run below `out` that has a run of Adam to be measured against."""
    records = []
    for place in sorted(out.glob(f"*/*/{RUNS}")):
        names = {"condition": place.parent.parent.name, "task": place.parent.name}
        files = {path.parent.name: read_json(path) for path in sorted(place.glob("*/done.json"))}
        runs = {run: _curve(done) for run, done in files.items()}
        for run, rows in runs.items():
            method, _, seed = run.rpartition("-seed")
            baseline = runs.get(f"{BASELINE}-seed{seed}")
            if baseline is None or files[f"{BASELINE}-seed{seed}"]["diverged"]:
                continue
            if baseline[-1]["step"] == max(curve[-1]["step"] for curve in runs.values()):
                found = measure(rows, baseline, clock, diverged=bool(files[run]["diverged"]))
                records.append({**names, "method": method, "seed": int(seed), **found})
    return records


def _curve(done: Mapping[str, Any]) -> list[Row]:
    return sorted([*done["results"], *done.get("between", [])], key=lambda row: row["step"])


def measure(rows: Sequence[Row], baseline: Sequence[Row], clock: str, *, diverged: bool = False) -> Row:
    """Return what a run is measured by, against the run of Adam with the same seed.

    `steps` and `seconds` are Adam's, its whole budget; `own_seconds` the run's. A loss that it did not reach has None
    for the time. What is measured `at_equal_seconds` is what the run had when Adam ended, or at its own end if that
    came first. `best_test_loss` is the least of all evaluations. `diverged`: it says so, or did not make all its
    steps; it has nothing else to tell.
    """
    budget, last, column = baseline[-1], rows[-1], CLOCKS[clock]
    record: Row = {"steps": budget["step"], "seconds": budget[column], "own_seconds": last[column]}
    record["diverged"] = diverged or last["step"] < budget["step"]
    for split in ("train", "test"):
        hit = None if record["diverged"] else reach(rows, f"{split}_loss", budget[f"{split}_loss"], "step", column)
        record[f"steps_to_{split}_loss"], record[f"seconds_to_{split}_loss"] = hit or (None, None)
    for name in ("train_loss", "test_loss", "test_accuracy"):
        record[name], record[f"adam_{name}"] = last[name], budget[name]
        record[f"{name}_at_equal_seconds"] = value_at(rows, name, budget[column], clock)
    record["best_test_loss"], record["adam_best_test_loss"] = (
        min(row["test_loss"] for row in curve) for curve in (rows, baseline)
    )
    return record
