"""Checkpoints of sharded weights: one file for what all ranks share, and one for each rank's own.

The shards of a checkpoint carry its step in their names, and the common file says which step it is of. It is written
when all shards are, and the shards of older steps go when it is: whenever a rank is killed, what the common file names
is whole.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from adamcb.training._checkpoint import read_checkpoint, write_checkpoint
from adamcb.training._ranks import Ranks

_COMMON = ("model", "optimizers", "epoch")


def write(
    path: str | os.PathLike[str], state: dict[str, Any], extra: Any, ranks: Ranks, step: int, device: torch.device
) -> None:
    """Write this rank's share of a checkpoint. All ranks call it.

    Raises:
        OSError, TypeError: If a rank could not write: on every rank, so that none waits for ever.
    """
    own = {name: value for name, value in state.items() if name not in _COMMON}
    common = {name: state[name] for name in _COMMON} | {"shards": ranks.size, "step": step}
    place = _place(path, ranks.rank, ranks.size, step)
    _together(lambda: write_checkpoint(place, own), path, device)
    _together(lambda: None if ranks.rank else write_checkpoint(path, common, extra), path, device)
    for older in _siblings(path, ranks.rank, ranks.size):
        if older != place:
            with contextlib.suppress(OSError):
                older.unlink()


def read(path: str | os.PathLike[str], common: dict[str, Any], ranks: Ranks) -> dict[str, Any]:
    """Return this rank's whole state, given the content of the common file.

    Raises:
        ValueError: If it was saved by another number of ranks, or the shard is damaged.
        FileNotFoundError: If the shard is missing.
    """
    if common["shards"] != ranks.size:
        raise ValueError(
            f"The checkpoint {path} has sharded weights, which continue on as many ranks as they were saved by: "
            f"{common['shards']}, got {ranks.size}."
        )
    own, _ = read_checkpoint(_place(path, ranks.rank, ranks.size, common["step"]))
    return {**own, **{name: common[name] for name in _COMMON}}


def _place(path: str | os.PathLike[str], rank: int, size: int, step: int | str) -> Path:
    whole = Path(os.path.realpath(path))
    return whole.with_name(f"{whole.name}.shard{rank}of{size}-{step}")


def _siblings(path: str | os.PathLike[str], rank: int, size: int) -> list[Path]:
    pattern = _place(path, rank, size, "*")
    return [place for place in pattern.parent.glob(pattern.name) if place.name.rpartition("-")[2].isdigit()]


def _together(action: Callable[[], None], path: str | os.PathLike[str], device: torch.device) -> None:
    """Do something that may fail on some ranks, and raise on all if it did on one."""
    error: Exception | None = None
    try:
        action()
    except (OSError, TypeError) as failure:
        error = failure
    failed = torch.tensor([error is not None], dtype=torch.int64, device=device)
    dist.all_reduce(failed)
    if error is not None:
        raise error
    if failed.item():
        raise OSError(f"The checkpoint {path} could not be written by {failed.item()} of the other ranks.")
