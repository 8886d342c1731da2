"""`adamcb compare`: all runs of an experiment, and what is made of them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from adamcb.lab.errors import LabError
from adamcb.lab.experiment import Experiment, digest
from adamcb.lab.output.figures import draw_comparison
from adamcb.lab.output.progress import make_display
from adamcb.lab.output.report import write_report
from adamcb.lab.output.tables import markdown_table
from adamcb.lab.output.tensorboard import TensorBoardLog
from adamcb.lab.results import ResultFolder, Row, result_columns, write_csv, write_json, write_text
from adamcb.lab.results.columns import SELECTION_COLUMNS
from adamcb.lab.results.summary import summarize, summary_columns
from adamcb.lab.runs.ranks import follow, joined, launched, run_together, tell
from adamcb.lab.runs.workers import Event, Job, Task, run_all
from adamcb.lab.tasks.datasets import load_dataset
from adamcb.lab.tasks.models import build_model


@dataclass(frozen=True)
class Options:
    """How to run, which does not change the numbers.

    Attributes:
        out: Result folder; None: one that is named after the experiment.
        data_dir: Where to look for data first.
        jobs: How many processes; None: as many as there are cores, or 1 on an accelerator.
        threads: How many threads each of them computes with; None: so that all cores are used.
        tensorboard: Write event files too.
        checkpoint_seconds: How long to train between checkpoints.
        notes: What the figures and the page should say.
    """

    out: Path | None = None
    data_dir: str | None = None
    jobs: int | None = None
    threads: int | None = None
    tensorboard: bool = False
    checkpoint_seconds: float = 10.0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Comparison:
    """What came out, and where it is."""

    folder: Path
    config: dict[str, Any]
    results: list[Row]
    summary: list[Row]
    files: dict[str, str]


def compare(experiment: Experiment, options: Options, console: Console) -> Comparison:
    """Do all runs that are not done yet, and write the result folder. Under torchrun, all ranks train every run.

    Raises:
        LabError: An option, the data or the folder is not as it should be, or a run failed.
        KeyboardInterrupt: The runs were stopped; all is ready to go on.
        SystemExit: All is done, and this is another rank than the first, which has the results.
    """
    if not launched():
        return _compare(experiment, options, console, run_missing)
    with joined(experiment.device) as ranks:
        if ranks.rank != 0:
            raise SystemExit(follow())
        try:
            _check_shared(experiment, ranks.size)
        except LabError:
            tell(None)
            raise
        return _compare(experiment, options, console, _run_missing_together)


def _check_shared(experiment: Experiment, num_ranks: int) -> None:
    """Raise LabError if the ranks cannot share the runs of an experiment."""
    if experiment.batch_size % num_ranks:
        rule = f"a multiple of the number of processes, {num_ranks}"
        raise LabError(f"`--batch-size` must be {rule}, got {experiment.batch_size}.")
    for method in experiment.resolve_methods():
        if method.scores == "losses" or "scorer" in method.needs:
            raise LabError(f"`--method` must learn from gradient norms with several processes, got {method.name!r}.")


def _compare(
    experiment: Experiment,
    options: Options,
    console: Console,
    do_runs: Callable[[Experiment, Options, ResultFolder, Console], None],
) -> Comparison:
    try:
        if options.tensorboard:
            TensorBoardLog.check()
        config = prepare(experiment, options, console)
        name = f"{Path(experiment.dataset).name}-{_stem(experiment)}-{digest(config)}"
        folder = ResultFolder(options.out or Path("adamcb-runs") / name, config)
    except BaseException:
        if launched():
            tell(None)
        raise
    try:
        do_runs(experiment, options, folder, console)
        return _finish(folder)
    finally:
        folder.close()


def prepare(experiment: Experiment, options: Options, console: Console) -> dict[str, Any]:
    """Check all that can be checked before the first run, and return the configuration."""
    _check_device(experiment.device)
    try:
        data = load_dataset(experiment.dataset, data_dir=options.data_dir, fraction=experiment.fraction)
        # Our own models are only sized up; a user's may need real tensors.
        with torch.random.fork_rng(), torch.device("cpu" if ":" in experiment.model else "meta"):
            build_model(experiment.model, image_shape=data.image_shape, num_classes=data.num_classes)
        config = experiment.as_config(data, list(options.notes))
    except (ValueError, TypeError, OSError) as error:
        raise LabError(str(error)) from error
    if experiment.batch_size >= len(data.train):
        raise LabError(
            f"`--batch-size` must be below the {len(data.train)} training images, got {experiment.batch_size}."
        )
    for note in options.notes:
        console.print(note, markup=False, highlight=False, soft_wrap=True)
    return config


def _check_device(device: str) -> None:
    try:
        torch.zeros(1, device=device).item()
    # What torch raises here differs from device to device; AssertionError where it was built without.
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        first_line = str(error).strip().split("\n")[0]
        raise LabError(f"`--device` must be one that torch can use here, got {device!r}: {first_line}") from error


def _stem(experiment: Experiment) -> str:
    name = experiment.model
    return name.rpartition(":")[2] if ":" in name else name


def _missing(experiment: Experiment, folder: ResultFolder) -> list[Task]:
    names = [method.name for method in experiment.resolve_methods()]
    # All methods of one seed after another: what else the machine does hits them alike.
    return [
        Task(reference, seed)
        for seed in range(experiment.seeds)
        for reference, name in zip(experiment.methods, names, strict=True)
        if not folder.done(name, seed)
    ]


def _run_missing_together(experiment: Experiment, options: Options, folder: ResultFolder, console: Console) -> None:
    """Do the missing runs as rank 0 of a group; every process has as many threads as it was started with."""
    tasks = _missing(experiment, folder)
    job = Job(experiment, folder.path, options.data_dir, torch.get_num_threads(), options.checkpoint_seconds)
    tell((job, tasks))
    if tasks:
        with _listener(experiment, options, folder, console, len(tasks)) as listen:
            run_together(job, tasks, listen)


def run_missing(experiment: Experiment, options: Options, folder: ResultFolder, console: Console) -> None:
    """Do all runs of an experiment that the folder does not hold yet."""
    tasks = _missing(experiment, folder)
    if not tasks:
        return
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    jobs = options.jobs or (cores if experiment.device == "cpu" else 1)
    jobs = min(jobs, len(tasks))
    threads = options.threads or max(1, cores // jobs)
    job = Job(experiment, folder.path, options.data_dir, threads, options.checkpoint_seconds)
    with _listener(experiment, options, folder, console, len(tasks)) as listen:
        run_all(job, tasks, jobs, listen)


@contextlib.contextmanager
def _listener(
    experiment: Experiment, options: Options, folder: ResultFolder, console: Console, num_runs: int
) -> Iterator[Callable[[Event], None]]:
    """Give what shows events, and writes them down where that is wanted."""
    log = TensorBoardLog(folder.path / "tensorboard") if options.tensorboard else None
    with make_display(console, num_runs=num_runs, epochs=experiment.epochs) as display:

        def listen(event: Event) -> None:
            display(event)
            if log is not None:
                log(event)

        yield listen


def _finish(folder: ResultFolder) -> Comparison:
    """Write tables, figures and the page from the runs."""
    results, selection, diverged = folder.gather()
    config = {**folder.config, "notes": [*folder.config["notes"], *diverged]}
    summary = summarize(results, config)
    path = folder.path
    try:
        write_json(path / "config.json", config)
        write_csv(path / "results.csv", result_columns(config), results)
        write_csv(path / "selection.csv", SELECTION_COLUMNS, selection)
        write_csv(path / "summary.csv", summary_columns(config), summary)
        write_text(path / "summary.md", markdown_table(summary, config))
        figures = draw_comparison(path, results, config)
        page = write_report(path)
    except OSError as error:
        raise LabError(f"Results cannot be written to {path}: {error}.") from error
    files = {"results": str(path / "results.csv"), "figures": str(figures[0]), "report": str(page)}
    return Comparison(path, config, results, summary, files)
