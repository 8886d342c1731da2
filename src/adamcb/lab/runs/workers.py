"""Processes that do the runs: each asks for the next one when it is free, reports as it goes, and stops when told.

Parent and worker talk over one pipe. The parent sends runs, `STOP` or `END`; the worker sends events. A worker whose
parent is gone ends at once: two generations of workers would write to the same files.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import threading
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from adamcb.lab.errors import Interrupted, LabError, describe
from adamcb.lab.experiment import Experiment
from adamcb.lab.methods import Method, get_method
from adamcb.lab.runs.building import warm_up
from adamcb.lab.runs.run import Progress, Run
from adamcb.lab.signals import SIGNALS, Bell, unreachable
from adamcb.lab.tasks.check import same_lengths
from adamcb.lab.tasks.datasets import DataFileError
from adamcb.lab.tasks.task import Task

STOP, END = "stop", "end"
# How long a worker may take to save itself before it is ended from outside; nothing is lost but the last epoch.
PATIENCE_SECONDS = 20.0

# What is the user's to put right: the message says it, without a traceback.
EXPECTED = (LabError, OSError, DataFileError)

# Nobody compares the seconds of fewer steps, so they need no warming up.
WORTH_TIMING = 10


@dataclass(frozen=True)
class Assignment:
    """A run to do: a method as `get_method` takes it, and a seed."""

    method: str | Method
    seed: int


@dataclass(frozen=True)
class Finished:
    """A run is complete."""

    method: str
    seed: int


@dataclass(frozen=True)
class Failed:
    """A worker met an error and ends."""

    message: str


@dataclass(frozen=True)
class Note:
    """Something that the user should read."""

    text: str


Event = Progress | Finished | Note


@dataclass(frozen=True)
class Job:
    """What a worker needs to know."""

    experiment: Experiment
    folder: Path
    data_dir: str | None
    threads: int
    checkpoint_seconds: float
    task: Task | None = None  # one that no name leads to

    def load_task(self) -> Task:
        """Return what to train on."""
        return self.task or self.experiment.load_task(self.data_dir)


def run_all(job: Job, assignments: Sequence[Assignment], jobs: int, listen: Callable[[Event], None]) -> None:
    """Do all runs in `jobs` processes; `listen` hears every event.

    Raises:
        LabError: A run failed, or a process died. What was complete stays so, and the same command goes on.
        KeyboardInterrupt: Somebody pressed Ctrl-C; every worker has saved itself.
    """
    waiting = deque(assignments)
    workers: dict[Any, BaseProcess] = {}
    with Bell() as bell:
        try:
            for _ in range(min(jobs, len(assignments))):
                connection, process = _start_worker(job)
                workers[connection] = process
                connection.send(waiting.popleft())
            while workers:
                for connection in wait([bell.heard, *workers]):
                    bell.answer()
                    _hear(connection, workers, waiting, listen)
        except BaseException:
            _stop(workers)
            raise


def _start_worker(job: Job) -> tuple[Connection, BaseProcess]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(job, theirs), daemon=True)
    # Ctrl-C reaches every process of a terminal. Workers hear from the parent instead, from their first moment on.
    with unreachable():
        process.start()
    theirs.close()  # so that the pipe ends when the worker does
    return ours, process


def _hear(
    connection: Any, workers: dict[Any, BaseProcess], waiting: deque[Assignment], listen: Callable[[Event], None]
) -> None:
    """Take one event from a worker, and give it the next run if it is free."""
    try:
        event = connection.recv()
    except (EOFError, ConnectionError):
        process = workers.pop(connection)
        process.join()
        hint = "; perhaps the memory ran out" if process.exitcode == -9 else ""
        raise LabError(f"A worker process died with exit code {process.exitcode}{hint}.") from None
    if isinstance(event, Failed):
        raise LabError(event.message)
    listen(event)
    if isinstance(event, Finished):
        if waiting:
            connection.send(waiting.popleft())
        else:
            connection.send(END)
            workers.pop(connection).join()


def _stop(workers: dict[Any, BaseProcess]) -> None:
    """Let every worker save itself and end, and end those that do not."""
    for connection in workers:
        with contextlib.suppress(OSError):
            connection.send(STOP)
    deadline = time.monotonic() + PATIENCE_SECONDS
    try:
        for process in workers.values():
            process.join(max(0.0, deadline - time.monotonic()))
    finally:  # also on a second Ctrl-C
        for process in workers.values():
            process.kill()


def _tell_of_compiling(connection: Any) -> logging.Handler:
    """Let the screen say why the first run on a machine begins late."""
    compiling, handler = logging.getLogger("adamcb._jit"), logging.Handler()
    handler.emit = lambda record: connection.send(Note(record.getMessage()))
    compiling.addHandler(handler)
    return handler


def _work(job: Job, connection: Connection) -> None:
    """Be a worker: do the runs that come over the pipe."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(job.threads)
    logging.getLogger("adamcb").addHandler(logging.NullHandler())  # the parent has told the same already
    _tell_of_compiling(connection)
    warnings.showwarning = lambda message, category, *_: connection.send(Note(f"{category.__name__}: {message}"))
    assignment = None
    try:
        runner = Runner(job)
        while isinstance(assignment := connection.recv(), Assignment):
            runner.do(assignment, partial(_report, connection))
            connection.send(Finished(get_method(assignment.method).name, assignment.seed))
    except (Interrupted, EOFError):
        return
    except Exception as error:
        who = f"{_worded(assignment)}: " if isinstance(assignment, Assignment) else ""
        details = "" if isinstance(error, EXPECTED) else "\n" + traceback.format_exc()
        connection.send(Failed(f"{who}{describe(error)}{details}"))


def _worded(assignment: Assignment) -> str:
    return f"{get_method(assignment.method).name} with seed {assignment.seed}"


def _report(connection: Connection, progress: Progress) -> None:
    if connection.poll():
        raise Interrupted("stopped")
    connection.send(progress)


class Runner:
    """Does runs, one after another; what all of them share is loaded once."""

    def __init__(self, job: Job) -> None:
        self.job, self.task = job, job.load_task()
        self.experiment = job.experiment.completed(self.task)
        self._warm: set[str | Method] = set()

    def do(self, assignment: Assignment, report: Callable[[Progress], None]) -> None:
        """Do one run. The first of a method that is worth timing is warmed up.

        Raises:
            LabError: A dataset did not keep its length, which may be the reason for any other error.
        """
        with same_lengths(self.task):
            self._do(assignment, report)

    def _do(self, assignment: Assignment, report: Callable[[Progress], None]) -> None:
        if assignment.method not in self._warm and self.experiment.total_steps(len(self.task.train)) >= WORTH_TIMING:
            warm_up(self.experiment, get_method(assignment.method), self.task)
            self._warm.add(assignment.method)
        settings = (self.experiment, assignment.method, assignment.seed, self.task, self.job.folder, report)
        Run(*settings, checkpoint_seconds=self.job.checkpoint_seconds).train()


def run_here(job: Job, assignments: Sequence[Assignment], listen: Callable[[Event], None]) -> None:
    """Do all runs in this process, one after another; `listen` hears every event."""
    runner = Runner(job)
    for assignment in assignments:
        try:
            runner.do(assignment, listen)
        except EXPECTED as error:
            raise LabError(f"{_worded(assignment)}: {describe(error)}") from error
        listen(Finished(get_method(assignment.method).name, assignment.seed))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
