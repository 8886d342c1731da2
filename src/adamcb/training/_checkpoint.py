"""Checkpoint files: written whole or not at all, read without running code from them."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import Any

import torch

FORMAT = 1
_KIND = "adamcb checkpoint"


def write(path: str | os.PathLike[str], state: dict[str, Any]) -> None:
    """Write `state` to `path`. A crash at any moment leaves the older file whole.

    Raises:
        OSError: If the file cannot be written; the older one is untouched, and nothing is left beside it.
    """
    path = Path(path)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            torch.save({"kind": _KIND, "format": FORMAT, "state": state}, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(name)
        if isinstance(error, RuntimeError):  # what torch.save makes of a full disk
            raise OSError(f"The checkpoint {path} could not be written: {error}") from error
        raise
    with contextlib.suppress(OSError):  # the new name, too, survives a power cut; not every system can do it
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the state in `path`.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is truncated, not a checkpoint of adamcb, or of another format.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"There is no checkpoint at {path}.")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise ValueError(f"The checkpoint {path} is damaged or not one of adamcb: {_first_line(error)}") from error
    if not isinstance(content, dict) or content.get("kind") != _KIND:
        raise ValueError(f"The file {path} is not a checkpoint of adamcb.")
    if content.get("format") != FORMAT:
        raise ValueError(f"The checkpoint {path} must have format {FORMAT}, got format {content.get('format')}.")
    return content["state"]


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0][:200] or type(error).__name__
