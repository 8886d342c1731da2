"""`torchrun -m adamcb compare`: a group of processes that trains every run of an experiment together.

Rank 0 reads the options, keeps the result folder and tells how things stand; the others hear from it what to train.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist

from adamcb.lab.methods import get_method
from adamcb.lab.runs.building import warm_up
from adamcb.lab.runs.run import Progress, Run
from adamcb.lab.runs.workers import WORTH_TIMING, Event, Finished, Job, Task
from adamcb.lab.tasks.datasets import load_dataset
from adamcb.training import Ranks


def launched() -> bool:
    """Return whether torchrun, or something like it, started several processes."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


@contextlib.contextmanager
def joined(device: str) -> Iterator[Ranks]:
    """Be a rank of the group that the environment describes."""
    on_gpu = device.startswith("cuda")
    if on_gpu:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("nccl" if on_gpu else "gloo")
    try:
        yield Ranks.current()
    finally:
        dist.destroy_process_group()


def tell(work: tuple[Job, Sequence[Task]] | None) -> None:
    """Tell the other ranks what to train; None: there is an error, and nothing to do."""
    dist.broadcast_object_list([work])


def hear() -> tuple[Job, Sequence[Task]] | None:
    """Return what rank 0 tells."""
    heard: list[Any] = [None]
    dist.broadcast_object_list(heard)
    return heard[0]


def run_together(job: Job, tasks: Sequence[Task], listen: Callable[[Event], None]) -> None:
    """Do all tasks, one after another, each by all ranks; `listen` hears every event of this one."""
    data = load_dataset(job.experiment.dataset, data_dir=job.data_dir, fraction=job.experiment.fraction)
    warm: set[str] = set()
    for task in tasks:
        if task.method not in warm and job.experiment.total_steps(len(data.train)) >= WORTH_TIMING:
            warm_up(job.experiment, get_method(task.method), data)
            warm.add(task.method)
        run = Run(
            job.experiment, task.method, task.seed, data, job.folder, listen, checkpoint_seconds=job.checkpoint_seconds
        )
        run.train()
        listen(Finished(run.method.name, task.seed))


def follow() -> int:
    """Be another rank than the first: train what it says, tell nobody, and return the exit code."""
    work = hear()
    if work is None:
        return 1
    run_together(*work, listen=_ignore)
    return 0


def _ignore(event: Event | Progress) -> None:
    """Hear an event of which rank 0 tells."""
