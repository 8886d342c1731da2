"""Checkpoints of sharded weights: one file for what all ranks share, and one for each rank's own.

Every save has an id. The shards carry it in their names and, as the common file, in their digests: shards of two saves
are never put together. The common file is written when all shards are, and the shards of other saves go when it is:
whenever a rank is killed, what the common file names is complete. Two runs that save under one name take turns.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from adamcb._files import folder_lock, new_save_id
from adamcb.training._checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from adamcb.training._ranks import Ranks

_COMMON = ("model", "optimizers", "epoch")


def write(
    path: str | os.PathLike[str],
    state: dict[str, Any],
    extra: Any,
    ranks: Ranks,
    device: torch.device,
    *,
    check: bool = False,
) -> None:
    """Write this rank's share of a checkpoint. All ranks call it.

    Raises:
        OSError, TypeError: If a rank could not write: on every rank, so that none waits for ever.
    """
    own = {name: value for name, value in state.items() if name not in _COMMON}
    common = {name: state[name] for name in _COMMON} | {"shards": ranks.size}
    with contextlib.nullcontext() if ranks.rank else folder_lock(path):
        save_id = _agree_on_id(device)
        place = _place(path, ranks.rank, ranks.size, save_id)
        options: dict[str, Any] = {"save_id": save_id, "check": check}
        _together(lambda: write_checkpoint(place, own, **options), path, device)
        _together(lambda: None if ranks.rank else write_checkpoint(path, common, extra, **options), path, device)
        if not check:
            _remove_others(place, path, ranks)
        _together(lambda: None, path, device)  # rank 0 holds the folder until all have removed theirs


def read(path: str | os.PathLike[str], common: Checkpoint, ranks: Ranks) -> dict[str, Any]:
    """Return all of this rank's state, given the content of the common file.

    Raises:
        ValueError: If it was saved by another number of ranks, or the shard is damaged or of another save.
        FileNotFoundError: If the shard is missing.
    """
    if common.state["shards"] != ranks.size:
        raise ValueError(
            f"The checkpoint {path} has sharded weights, which continue on as many ranks as they were saved by: "
            f"{common.state['shards']}, got {ranks.size}. To change their number, save by "
            'torch.distributed.checkpoint: `dcp.save({"trainer": trainer}, checkpoint_id=folder)`.'
        )
    place = _place(path, ranks.rank, ranks.size, common.save_id)
    own = read_checkpoint(place)
    if own.save_id != common.save_id:
        raise ValueError(f"The shard {place} must be of the save {common.save_id}, got one of {own.save_id}.")
    return {**own.state, **{name: common.state[name] for name in _COMMON}}


def _agree_on_id(device: torch.device) -> str:
    """Return the id that rank 0 made up."""
    halves = torch.frombuffer(bytearray.fromhex(new_save_id()), dtype=torch.int64).to(device)
    dist.broadcast(halves, src=0)
    return halves.cpu().numpy().tobytes().hex()


def _place(path: str | os.PathLike[str], rank: int, size: int, save_id: str) -> Path:
    common = Path(os.path.realpath(path))
    return common.with_name(f"{common.name}.shard{rank}of{size}-{save_id}")


def _remove_others(place: Path, path: str | os.PathLike[str], ranks: Ranks) -> None:
    """Remove this rank's shards of other saves under the same name."""
    prefix = _place(path, ranks.rank, ranks.size, "").name
    for other in place.parent.iterdir():
        if other.name.startswith(prefix) and len(other.name) == len(place.name) and other.name != place.name:
            with contextlib.suppress(OSError):
                other.unlink()


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
