"""What can go wrong in the lab and is the user's to put right."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path


class LabError(Exception):
    """An error whose message is for the user: no traceback is shown."""


class Interrupted(LabError):
    """Somebody stopped the runs; the same command goes on."""


def describe(error: BaseException) -> str:
    """Return one sentence on `error`, with its kind where the message alone would not do."""
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return f"the disk is full: {error}"
    if isinstance(error, (LabError, OSError)):
        return str(error)
    return f"{type(error).__name__}: {error}"


@contextlib.contextmanager
def writing_to(place: Path, option: str = "--out") -> Iterator[None]:
    """Turn an error of a file in the block into one that names where results go, and the option that says so."""
    try:
        yield
    except OSError as error:
        raise LabError(f"Results cannot be written to {place} (`{option}`): {describe(error)}.") from error
