"""Comparing methods: all runs of an experiment, and what is made of them."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from adamcb import _checks
from adamcb.lab.commands.config import NAME, config_text
from adamcb.lab.commands.running import available_cores
from adamcb.lab.errors import LabError, writing_to
from adamcb.lab.experiment import Experiment, digest, title_of
from adamcb.lab.methods import DEFAULT_METHODS, Method, get_method
from adamcb.lab.output.figures import draw_comparison
from adamcb.lab.output.logs import check_logs, open_logs
from adamcb.lab.output.progress import make_display
from adamcb.lab.output.report import write_report
from adamcb.lab.output.tables import markdown_table
from adamcb.lab.paths import checked_path
from adamcb.lab.results import ResultFolder, Row, copy_results, result_columns, write_csv, write_json, write_text
from adamcb.lab.results.columns import SELECTION_COLUMNS
from adamcb.lab.results.summary import summarize, summary_columns
from adamcb.lab.results.verdict import noise_of, verdict
from adamcb.lab.runs.building import check_methods, labels_of
from adamcb.lab.runs.ranks import follow, joined, launched, tell
from adamcb.lab.runs.workers import Assignment, Event, Job, run_all, run_here
from adamcb.lab.tasks.check import check_task
from adamcb.lab.tasks.load import load_task
from adamcb.lab.tasks.task import Task, initial_model
from adamcb.training import Ranks


@dataclass(frozen=True)
class Options:
    """How to run, which does not change the numbers.

    Attributes:
        out: Result folder; None: one that is named after the experiment.
        data_dir: Where to look for data first.
        jobs: How many processes; None: as many as there are cores, or 1 on an accelerator. 0: none but this one.
        threads: How many threads each of them computes with; None: so that all cores are used.
        logs: Where rows are written to as they come: names of `adamcb.lab.output.logs.LOGS`.
        checkpoint_seconds: How long to train between checkpoints.
        notes: What the figures and the page should say.
    """

    out: Path | None = None
    data_dir: str | None = None
    jobs: int | None = None
    threads: int | None = None
    logs: tuple[str, ...] = ()
    checkpoint_seconds: float = 10.0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Comparison:
    """What came out, and where it is.

    Attributes:
        folder: The result folder.
        config: Every option, and versions.
        results: One row for each evaluation of each run.
        summary: One row for each method: means over seeds and their spread.
        verdict: What it says, in words: one line for each method but the baseline, or that there is none.
        files: Where the most important files are.

    Example:
        >>> comparison = compare("rare-events", seeds=5)  # doctest: +SKIP
        >>> [(row["method"], row["samples"]) for row in comparison.summary]  # doctest: +SKIP
        >>> comparison.save("runs/rare-events")  # doctest: +SKIP
    """

    folder: Path
    config: dict[str, Any]
    results: list[Row]
    summary: list[Row]
    verdict: str
    files: dict[str, str]

    def save(self, out: str | os.PathLike[str]) -> Path:
        """Copy the result folder to `out`: table, figures, page, and all that going on needs. Returns its path.

        Args:
            out: A new or empty folder, or one that this comparison was saved to before.

        Raises:
            LabError: `out` is none of them, or cannot be written to.
        """
        try:
            place = Path(checked_path("out", out))
        except (ValueError, TypeError) as error:
            raise LabError(str(error)) from error
        with writing_to(place, "out"):
            if self.folder.resolve() in (place.resolve(), *place.resolve().parents):
                raise LabError(f"`out` must be outside of the result folder, {self.folder}, got {place}.")
            copy_results(self.folder, self.config, place)
        return place

    def __str__(self) -> str:
        return f"{title_of(self.config)}: {self.verdict}"


def compare(
    task: Task | str,
    methods: Sequence[str | Method] = DEFAULT_METHODS,
    seeds: int = 3,
    out: str | os.PathLike[str] | None = None,
    jobs: int | None = None,
) -> Comparison:
    """Train a task with several methods and seeds, and tell which of them to use.

    Args:
        task: The task, or a name that `adamcb compare --task` takes.
        methods: Names that `adamcb compare --method` takes, or `Method`s. The first is the baseline if Adam is not
            among them.
        seeds: Every method is run with the seeds 0, 1, …, seeds − 1.
        out: Result folder. If it was stopped, the same call goes on where it stopped. None: a temporary folder, which
            lives as long as the result; `save` keeps it.
        jobs: How many processes. None: the runs are done here, one after another. More than one needs a task that can
            be pickled and, in a script, `if __name__ == "__main__":`.

    Returns:
        A `Comparison`: `print(comparison.verdict)`.

    Raises:
        LabError: The task, an option or the folder is not as it should be, or a run failed.

    Example:
        >>> comparison = compare("mine.py:task", seeds=5)  # doctest: +SKIP
        >>> print(comparison.verdict)  # doctest: +SKIP
    """
    console = Console(stderr=True, quiet=True)
    try:
        task = load_task(task) if isinstance(task, str) else _checks.instance("task", task, Task, "a Task or its name")
        experiment = Experiment(task=task.name, methods=_checked_methods(methods), seeds=_checks.count("seeds", seeds))
        experiment.resolve_methods()
        given = None if out is None else checked_path("out", out)
        options = Options(jobs=0 if jobs is None else _checks.count("jobs", jobs))
    except (ValueError, TypeError, FileNotFoundError) as error:
        raise LabError(str(error)) from error
    place = Path(tempfile.mkdtemp(prefix="adamcb-") if given is None else given)
    with torch.random.fork_rng():
        comparison = run_comparison(experiment, replace(options, out=place), console, task=task)
    if out is None:
        weakref.finalize(comparison, shutil.rmtree, place, ignore_errors=True)
    return comparison


def _checked_methods(methods: Any) -> tuple[str | Method, ...]:
    """Return methods as a tuple. A set is refused: the first one may be the baseline, and a set has no order."""
    rule = "be a sequence of names or Methods"
    if isinstance(methods, (set, frozenset)):
        raise TypeError(f"`methods` must {rule}, got a set, which has no order.")
    chosen = _checks.sequence("methods", methods, rule)
    for number, reference in enumerate(chosen):
        get_method(reference, f"methods[{number}]")
    return chosen


def run_comparison(
    experiment: Experiment, options: Options, console: Console, *, task: Task | None = None
) -> Comparison:
    """Do all runs that are not done yet, and write the result folder. Under torchrun, all ranks train every run.

    Raises:
        LabError: An option, the data or the folder is not as it should be, or a run failed.
        KeyboardInterrupt: The runs were stopped; all is ready to go on.
        SystemExit: All is done, and this is another rank than the first, which has the results.
    """
    if not launched():
        return _compare(experiment, options, console, run_missing, task)
    with joined(experiment.device) as ranks:
        if ranks.rank != 0:
            raise SystemExit(follow())
        return _compare(experiment, options, console, _run_missing_together, task)


def _check_shared(experiment: Experiment, num_ranks: int) -> None:
    """Raise LabError if there are several ranks, and they cannot share the runs of an experiment."""
    if num_ranks == 1:
        return
    assert experiment.batch_size is not None
    if experiment.batch_size % num_ranks:
        rule = f"a multiple of the number of processes, {num_ranks}"
        raise LabError(f"`--batch-size` must be {rule}, got {experiment.batch_size}.")
    for method in experiment.resolve_methods():
        if "scorer" in method.needs:
            raise LabError(f"`--method` must not look at the model with several processes, got {method.name!r}.")


def _compare(
    experiment: Experiment,
    options: Options,
    console: Console,
    do_runs: Callable[[Experiment, Options, ResultFolder, Console, Task | None], None],
    task: Task | None,
) -> Comparison:
    try:
        check_logs(options.logs)
        prepared, config = prepare(experiment, options, console, task)
        experiment = experiment.completed(prepared)
        folder = ResultFolder(options.out or Path("adamcb-runs") / f"{prepared.name}-{digest(config)}", config)
    except BaseException:
        if launched():
            tell(None)
        raise
    try:
        # The task's learning rate too, unless a method has its own: one for all would replace that.
        exact = replace(experiment, lr=config["lr"])
        if task is None and (text := config_text(exact, data_dir=options.data_dir, logs=options.logs)):
            with writing_to(folder.path):
                write_text(folder.path / NAME, text)
        do_runs(experiment, options, folder, console, task)
        return _finish(folder)
    finally:
        folder.close()


def prepare(
    experiment: Experiment, options: Options, console: Console, task: Task | None = None
) -> tuple[Task, dict[str, Any]]:
    """Check all that can be checked before the first run, and return the task and the configuration."""
    _check_device(experiment.device)
    try:
        task = task or experiment.load_task(options.data_dir)
        if experiment.named_alone:
            # Our own models are only sized up.
            with torch.random.fork_rng(), torch.device("meta"):
                model = task.model()
        else:
            check_task(task, experiment.device)
            model = initial_model(task, 0, experiment.device)
        config = experiment.as_config(task, options.notes)
    except (ValueError, TypeError, OSError) as error:
        raise LabError(str(error)) from error
    if config["batch_size"] >= len(task.train):
        size = config["batch_size"]
        raise LabError(f"`--batch-size` must be below the {len(task.train)} training samples, got {size}.")
    for method in experiment.resolve_methods():
        if "scorer" in method.needs and not task.is_plain:
            raise LabError(
                f"`--method` {method.name} needs the logits of a classifier, and {task.name} has its own loss."
            )
        if "labels" in method.needs:
            labels_of(task)
    completed = experiment.completed(task)
    _check_shared(completed, Ranks.current().size)
    check_methods(completed, task, model)
    for note in options.notes:
        console.print(note, markup=False, highlight=False, soft_wrap=True)
    return task, config


def _check_device(device: str) -> None:
    try:
        torch.zeros(1, device=device).item()
    # What torch raises here differs from device to device; AssertionError where it was built without.
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        first_line = str(error).strip().split("\n")[0]
        raise LabError(f"`--device` must be one that torch can use here, got {device!r}: {first_line}") from error


def _missing(experiment: Experiment, folder: ResultFolder) -> list[Assignment]:
    names = [method.name for method in experiment.resolve_methods()]
    # All methods of one seed after another: what else the machine does hits them alike.
    return [
        Assignment(reference, seed)
        for seed in range(experiment.seeds)
        for reference, name in zip(experiment.methods, names, strict=True)
        if not folder.done(name, seed)
    ]


def _run_missing_together(
    experiment: Experiment, options: Options, folder: ResultFolder, console: Console, task: Task | None
) -> None:
    """Do the missing runs as rank 0 of a group; every process has as many threads as it was started with."""
    assignments = _missing(experiment, folder)
    job = Job(experiment, folder.path, options.data_dir, torch.get_num_threads(), options.checkpoint_seconds, task)
    tell((job, assignments))
    if assignments:
        with _listener(experiment, options, folder, console, len(assignments)) as listen:
            run_here(job, assignments, listen)


def run_missing(
    experiment: Experiment, options: Options, folder: ResultFolder, console: Console, task: Task | None = None
) -> None:
    """Do all runs of an experiment that the folder does not hold yet."""
    assignments = _missing(experiment, folder)
    if not assignments:
        return
    cores = available_cores()
    jobs = options.jobs if options.jobs is not None else cores if experiment.device == "cpu" else 1
    threads = options.threads or max(1, cores // max(1, min(jobs, len(assignments))))
    job = Job(experiment, folder.path, options.data_dir, threads, options.checkpoint_seconds, task)
    with _listener(experiment, options, folder, console, len(assignments)) as listen:
        if jobs == 0:
            run_here(job, assignments, listen)
        else:
            run_all(job, assignments, jobs, listen)


@contextlib.contextmanager
def _listener(
    experiment: Experiment, options: Options, folder: ResultFolder, console: Console, num_runs: int
) -> Iterator[Callable[[Event], None]]:
    """Give what shows events, and writes them down where that is wanted."""
    assert experiment.epochs is not None
    with (
        open_logs(options.logs, folder.path, folder.config) as log,
        make_display(console, num_runs=num_runs, epochs=experiment.epochs, labels=folder.config["labels"]) as display,
    ):

        def listen(event: Event) -> None:
            display(event)
            log(event)

        yield listen


def _finish(folder: ResultFolder) -> Comparison:
    """Write tables, figures and the page from the runs."""
    path = folder.path
    try:
        found = folder.gather()
    except FileNotFoundError as error:
        raise LabError(f"{path} was changed while adamcb was writing to it: {error}.") from error
    if not found.results:
        raise LabError(f"Every run diverged before its first step: {found.notes[0]}")
    words = verdict(found.results, folder.config, found.batches, noise_of(found.selection, folder.config))
    config = {**folder.config, "notes": [*folder.config["notes"], *found.notes], "verdict": words}
    summary = summarize(found.results, config)
    with writing_to(path):
        write_json(path / "config.json", config)
        write_csv(path / "results.csv", result_columns(config), found.results)
        write_csv(path / "selection.csv", SELECTION_COLUMNS, found.selection)
        write_csv(path / "summary.csv", summary_columns(config), summary)
        write_text(path / "summary.md", f"{_paragraphs(words)}{markdown_table(summary, config)}")
        figures = draw_comparison(path, found.results, config)
        page = write_report(path)
    files = {"results": str(path / "results.csv"), "figures": str(figures[0]), "report": str(page)}
    return Comparison(path, config, found.results, summary, words, files)


def _paragraphs(words: str) -> str:
    return "".join(f"{line}\n\n" for line in words.split("\n") if line)
