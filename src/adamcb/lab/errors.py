"""What can go wrong in the lab and is the user's to put right."""

from __future__ import annotations

import errno


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
