"""What the text of a path must be, wherever an option or an argument of the lab names one."""

from __future__ import annotations

from typing import Any

from adamcb import _checks


def fault_of(path: str) -> str | None:
    """Return what is wrong with a path, as the rest of a message that begins with its option; None: nothing is.

    Example:
        >>> fault_of("")
        'must name a place, got an empty path.'
    """
    if not path:
        return "must name a place, got an empty path."
    if "\0" in path:
        return f"must be a path without null characters, got {path[:80]!r}."
    try:
        path.encode()  # it is written to files of UTF-8
    except UnicodeEncodeError:
        return f"must be a path of Unicode characters, got {path[:80]!r}."
    return None


def checked_path(name: str, value: Any) -> str:
    """Return `value` as a str, or raise unless it can name a place; the message names the argument."""
    path = _checks.path(name, value)
    fault = fault_of(path)
    if fault is not None:
        raise ValueError(f"`{name}` {fault}")
    return path
