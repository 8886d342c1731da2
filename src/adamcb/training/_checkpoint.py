"""Checkpoint files: written whole or not at all, refused when damaged, read without running code from them."""

from __future__ import annotations

import os
import pickle
import re
from pathlib import Path
from typing import Any, NamedTuple

import torch

from adamcb import _checks
from adamcb._files import check_archive, new_save_id, seal_archive, whole_file

FORMAT = 3
_KIND = "adamcb checkpoint"
_IS_ID = re.compile("[0-9a-f]{32}").fullmatch


class Checkpoint(NamedTuple):
    """What a checkpoint holds, and the id of the save that it belongs to."""

    state: dict[str, Any]
    extra: Any
    save_id: str


def write_checkpoint(
    path: str | os.PathLike[str],
    state: dict[str, Any],
    extra: Any = None,
    *,
    save_id: str | None = None,
    check: bool = False,
) -> None:
    """Write `state` and `extra` to `path`. A crash at any moment leaves the older file whole.

    The new file is written beside the older one and takes its name when it is complete, on the disk, and known to be
    readable. It ends with a digest of its content.

    Args:
        path: A regular file, or nothing yet. Its folder must exist.
        state: Tensors, numbers, strings, None, and lists, tuples and dicts of these.
        extra: As `state`.
        save_id: The id of the save. None: a new one.
        check: Do everything but replace `path`, to see whether it could be written.

    Raises:
        OSError: If the file cannot be written. The older one is untouched then, and nothing is left beside it.
        TypeError: If something in it could not be read back without running code; as above.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_checkpoint(f"{folder}/run.pt", {"step": 3})
        ...     read_checkpoint(f"{folder}/run.pt").state
        {'step': 3}
    """
    path, check = _checks.path("path", path), _checks.boolean("check", check)
    if save_id is not None and not _IS_ID(_checks.instance("save_id", save_id, str, "a str")):
        raise ValueError(f"`save_id` must be 32 hexadecimal digits, got {_checks.shown('save_id', save_id)}.")
    try:
        with whole_file(path, keep=not check) as draft:
            with draft.open("wb") as file:
                torch.save({"kind": _KIND, "format": FORMAT, "state": state, "extra": extra}, file)
            _check_readable(draft)
            seal_archive(draft, new_save_id() if save_id is None else save_id)
    except (OSError, RuntimeError) as error:  # torch.save makes RuntimeErrors of some
        raise OSError(f"The checkpoint {path} could not be written: {_first_line(error)}") from error
    except (AttributeError, pickle.PicklingError) as error:
        raise _unreadable(error) from error


def read_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Return what is in `path`.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If its content has changed since it was written, or it is no checkpoint of this format.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_checkpoint(f"{folder}/run.pt", {"step": 3}, extra="mine")
        ...     read_checkpoint(f"{folder}/run.pt").extra
        'mine'
    """
    path = _checks.path("path", path)
    if not Path(path).is_file():
        raise FileNotFoundError(f"There is no checkpoint at {path}.")
    try:
        with Path(path).open("rb") as file:
            save_id = check_archive(file)
            content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        raise ValueError(f"The file {path} is damaged, or no checkpoint of adamcb: {_first_line(error)}") from error
    if not isinstance(content, dict) or content.get("kind") != _KIND:
        raise ValueError(f"The file {path} is no checkpoint of adamcb.")
    if content.get("format") != FORMAT:
        raise ValueError(f"The checkpoint {path} must have format {FORMAT}, got format {content.get('format')}.")
    return Checkpoint(content["state"], content["extra"], save_id)


def _check_readable(path: Path) -> None:
    """Raise TypeError if the file needs code to be read. Tensors are mapped, not read, so that it is cheap."""
    try:
        os.fspath(path).encode()
    except UnicodeEncodeError as error:
        raise OSError("torch opens paths of Unicode characters only") from error
    try:
        torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:
        raise _unreadable(error) from error


def _unreadable(error: Exception) -> TypeError:
    return TypeError(
        "A checkpoint must hold tensors, numbers, strings, None, and lists, tuples and dicts of these; "
        f"got something else: {_first_line(error)}"
    )


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0][:300] or type(error).__name__
