"""`adamcb bench budget`: quality at the end of a fully decayed schedule, against samples and seconds.

For every task, method and seed: 25, 50, 75 and 100 % of the budget (after "No Train No Gain", Kaddour et al. 2023).
Rows are appended to a CSV file as they come, and a row that is there is not run again.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import multiprocessing
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from rich.console import Console

from adamcb import _checks
from adamcb._files import whole_file
from adamcb.lab.commands.running import add_running, available_cores, check_running, file_to_write
from adamcb.lab.commands.time_to_loss import TASKS as CLEAN_TASKS
from adamcb.lab.errors import LabError, describe, writing_to
from adamcb.lab.experiment import Experiment
from adamcb.lab.results import Row, append_csv, read_csv
from adamcb.lab.results.budget import HELD_OUT, LEARNING_RATES, SAME_AS_ADAM, best_lrs, tuned_as
from adamcb.lab.runs.budget import LABELS, run_budget
from adamcb.lab.signals import raising
from adamcb.lab.tasks.load import TASKS as OTHER_TASKS
from adamcb.lab.tasks.task import Task

NAME = "budget"
FRACTIONS = (0.25, 0.5, 0.75, 1.0)
IMAGE_TASKS = {
    **CLEAN_TASKS,
    **{
        f"{name}-wrong-labels": {**CLEAN_TASKS[name], "label_noise": 0.1} for name in ("mnist-mlp", "fashion-mnist-mlp")
    },
}
TASKS = (*IMAGE_TASKS, *OTHER_TASKS)
# A run of these takes more than a minute on one core.
_LONG = ("mnist-cnn", "fashion-mnist-cnn", "cifar10-mlp", "shakespeare", "fashion-mnist-cnn-augmented")
_KEY = ("task", "method", "seed", "fraction", "epochs", "lr")
COLUMNS: tuple[str, ...] = (
    *_KEY, "steps", "samples", "seconds", "wall_seconds", "diverged", "train_loss", "test_loss", "train_accuracy",
    "test_accuracy", "test_average_precision", "test_roc_auc", "test_log_loss", "test_perplexity",
)  # fmt: skip
DEFAULT_ROWS = Path("docs") / "evidence" / "budget.csv"


@dataclass(frozen=True)
class Assignment:
    """A run to do, which is one row."""

    task: str
    method: str
    seed: int
    fraction: float
    epochs: int | None
    lr: float | None


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the benchmark's options."""
    parser = argparse.ArgumentParser(
        prog=f"adamcb bench {NAME}",
        description="Quality at the end of a fully decayed schedule, against samples and seconds.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--task", action="append", choices=TASKS, help="may be repeated (default: all)")
    add("--method", action="append", choices=tuple(LABELS), help="may be repeated (default: all)")
    add("--seed", action="append", type=int, metavar="N", help="may be repeated (default: 0 to 4, long tasks 0 to 2)")
    add("--fraction", action="append", type=float, help="part of the budget; may be repeated (default: 0.25 to 1)")
    add("--epochs", type=int, metavar="N", help="the whole budget (default: 10, or the task's)")
    add("--tune", action="store_true", help="first choose a learning rate for each method, on a seed of its own")
    add_running(parser, "--jobs")
    add(
        "--rows",
        type=file_to_write,
        default=DEFAULT_ROWS,
        metavar="FILE.csv",
        help=f"where rows go (default: {DEFAULT_ROWS})",
    )
    add("--report-only", action="store_true", help="run nothing; write the report of the rows that are there")
    add_running(parser, "--data-dir")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Do the missing runs, write the report beside the rows, and return the exit code."""
    from adamcb.lab.output.budget import write_report  # matplotlib is slow to import

    parser = build_parser()
    options = parser.parse_args(arguments)
    check_running(options, parser)
    for fraction in options.fraction or ():
        if not 0.0 < fraction <= 1.0:
            parser.error(f"`--fraction` must be in (0, 1], got {fraction}.")
    try:
        if options.epochs is not None:
            _checks.count("--epochs", options.epochs)
        for seed in options.seed or ():
            _checks.seed("--seed", seed)
    except ValueError as error:
        parser.error(str(error))
    console = Console(stderr=True)
    table = RowFile(options.rows)
    if not options.report_only:
        table.check()
        if options.tune:
            _do(_tuning_assignments(options, table.rows), options, table, console)
        _do(_assignments(options, table.rows), options, table, console)
    if not table.rows:
        raise LabError(f"{options.rows} has no rows yet: there is nothing to report.")
    with writing_to(options.rows, "--rows"):
        paths = write_report(options.rows, table.rows)
    for path in paths:
        print(path)
    return 0


class RowFile:
    """A CSV file that rows are appended to, one command at a time or several."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with writing_to(path, "--rows"):
            self.rows: list[Row] = read_csv(path) if path.is_file() else []
        missing = [name for name in _KEY if self.rows and name not in self.rows[0]]
        if missing:
            raise LabError(f"{path} must have the columns {', '.join(missing)}, got {', '.join(self.rows[0])}.")

    def check(self) -> None:
        """Raise `LabError` if the file cannot be written: now, not after the first run."""
        with writing_to(self.path, "--rows"):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with whole_file(self.path, keep=False):
                pass

    def append(self, row: Row) -> None:
        """Add a row."""
        with writing_to(self.path, "--rows"):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            append_csv(self.path, COLUMNS, row)
        self.rows.append(row)


def _assignments(options: argparse.Namespace, rows: Sequence[Row]) -> list[Assignment]:
    """Return the runs that were asked for and have no row, with the learning rates that were tuned."""
    tuned = best_lrs(rows)
    assignments = []
    for task in options.task or TASKS:
        for seed in options.seed or range(3 if task in _LONG else 5):
            for fraction in options.fraction or FRACTIONS:
                for method in options.method or LABELS:
                    if fraction == 1.0 and method in SAME_AS_ADAM:
                        continue
                    lr = tuned.get((task, tuned_as(method)))
                    assignments.append(Assignment(task, method, seed, fraction, options.epochs, lr))
    return _without_rows(assignments, rows)


def _tuning_assignments(options: argparse.Namespace, rows: Sequence[Row]) -> list[Assignment]:
    assignments = [
        Assignment(task, method, HELD_OUT, 1.0, options.epochs, lr)
        for task in options.task or TASKS
        for method in dict.fromkeys(tuned_as(method) for method in options.method or LABELS)
        for lr in LEARNING_RATES
    ]
    return _without_rows(assignments, rows)


def _without_rows(assignments: Sequence[Assignment], rows: Sequence[Row]) -> list[Assignment]:
    """Return the assignments that no row answers. What one leaves open is the task's own, which a row may have."""

    def answers(assignment: Assignment, row: Row) -> bool:
        wanted = {name: value for name, value in asdict(assignment).items() if value is not None}
        return all(row[name] == value for name, value in wanted.items())

    return [assignment for assignment in assignments if not any(answers(assignment, row) for row in rows)]


def _do(assignments: Sequence[Assignment], options: argparse.Namespace, table: RowFile, console: Console) -> None:
    """Do the runs in processes, and append a row for each that ends."""
    if not assignments:
        return
    with _pool(min(options.jobs or available_cores(), len(assignments))) as pool:
        waiting = {pool.submit(do_assignment, assignment, options.data_dir): assignment for assignment in assignments}
        for count, future in enumerate(as_completed(waiting), start=1):
            assignment = waiting[future]
            words = f"{assignment.task}, {assignment.method}, seed {assignment.seed}, {100 * assignment.fraction:g} %"
            try:
                row = future.result()
            except (OSError, ValueError, LabError, BrokenProcessPool) as error:
                raise LabError(f"{words}: {describe(error)}") from error
            table.append(row)
            loss = row["diverged"] or f"training loss {row['train_loss']:.4g}"
            console.print(f"[{count}/{len(assignments)}] {words}: {loss}, {row['samples']} samples, "
                          f"{row['seconds']:.1f} s", markup=False, highlight=False, soft_wrap=True)  # fmt: skip


@contextlib.contextmanager
def _pool(jobs: int) -> Iterator[ProcessPoolExecutor]:
    """Give processes of one thread each; an error, or Ctrl-C, ends them at once."""
    pool = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), initializer=_start_worker)
    try:
        with raising():
            yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in multiprocessing.active_children():
            process.terminate()
        raise
    pool.shutdown()


def _start_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)


def do_assignment(assignment: Assignment, data_dir: str | None) -> Row:
    """Do one run, and return its row."""
    task, epochs = load(assignment.task, data_dir)
    found = run_budget(
        assignment.method,
        task,
        epochs=epochs if assignment.epochs is None else assignment.epochs,
        fraction=assignment.fraction,
        seed=assignment.seed,
        lr=assignment.lr,
    )
    return {**asdict(assignment), **found}


@functools.lru_cache(maxsize=1)
def load(name: str, data_dir: str | None) -> tuple[Task, int]:
    """Return a task of the bench, and how many epochs its whole budget has."""
    if name not in IMAGE_TASKS:
        task = OTHER_TASKS[name](data_dir)
        return task, task.epochs
    experiment = Experiment(**IMAGE_TASKS[name])
    task = experiment.load_task(data_dir)
    return replace(task, batch_size=experiment.completed(task).batch_size), 10
