"""Checkpoint files: written whole or not at all, read without running code from them."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import torch

FORMAT = 2
_KIND = "adamcb checkpoint"


def write_checkpoint(path: str | os.PathLike[str], state: dict[str, Any], extra: Any = None) -> None:
    """Write `state` and `extra` to `path`. A crash at any moment leaves the older file whole.

    The new file is written beside the older one and takes its name when it is complete, on the disk, and known to be
    readable. Its own name is always the same, so what a killed process left behind is overwritten by the next.

    Raises:
        OSError: If the file cannot be written. The older one is untouched then, and nothing is left beside it.
        TypeError: If something in it could not be read back without running code; as above.
    """
    place = Path(os.path.realpath(path))  # a link stays one
    draft = place.with_name(f".{place.name}.tmp")
    try:
        with open(draft, "wb") as file:
            torch.save({"kind": _KIND, "format": FORMAT, "state": state, "extra": extra}, file)
            file.flush()
            os.fsync(file.fileno())
        _check_readable(draft)
        os.replace(draft, place)
    except BaseException as error:
        with contextlib.suppress(OSError):
            draft.unlink()
        if isinstance(error, (OSError, RuntimeError)):  # torch.save makes RuntimeErrors of some
            raise OSError(f"The checkpoint {path} could not be written: {_first_line(error)}") from error
        raise
    _sync_folder(place.parent)


def read_checkpoint(path: str | os.PathLike[str]) -> tuple[dict[str, Any], Any]:
    """Return the state and the extra in `path`.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is truncated, not a checkpoint of adamcb, or of another format.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"There is no checkpoint at {path}.")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise ValueError(f"The file {path} is damaged, or no checkpoint of adamcb: {_first_line(error)}") from error
    if not isinstance(content, dict) or content.get("kind") != _KIND:
        raise ValueError(f"The file {path} is no checkpoint of adamcb.")
    if content.get("format") != FORMAT:
        raise ValueError(f"The checkpoint {path} must have format {FORMAT}, got format {content.get('format')}.")
    return content["state"], content["extra"]


def _check_readable(path: Path) -> None:
    """Raise TypeError if the file needs code to be read. Tensors are mapped, not read, so that it is cheap."""
    try:
        torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:
        raise TypeError(
            "A checkpoint must hold tensors, numbers, strings, None, and lists, tuples and dicts of these; "
            f"got something else: {_first_line(error)}"
        ) from error


def _sync_folder(folder: Path) -> None:
    """Make the new name survive a power cut, where the system can."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0][:300] or type(error).__name__
