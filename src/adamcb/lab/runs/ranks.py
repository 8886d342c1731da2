"""`torchrun -m adamcb compare`: a group of processes that trains every run of an experiment together.

Rank 0 reads the options, keeps the result folder and tells how things stand; the others hear from it what to train.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist

from adamcb.lab.runs.run import Progress
from adamcb.lab.runs.workers import Assignment, Event, Job, run_here
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


def tell(work: tuple[Job, Sequence[Assignment]] | None) -> None:
    """Tell the other ranks what to train; None: there is an error, and nothing to do."""
    dist.broadcast_object_list([work])


def hear() -> tuple[Job, Sequence[Assignment]] | None:
    """Return what rank 0 tells."""
    heard: list[Any] = [None]
    dist.broadcast_object_list(heard)
    return heard[0]


def follow() -> int:
    """Run as a rank other than 0: follow rank 0's assignments silently, and return the exit code."""
    work = hear()
    if work is None:
        return 1
    run_here(*work, listen=_ignore)
    return 0


def _ignore(event: Event | Progress) -> None:
    """Ignore an event: rank 0 reports it."""
