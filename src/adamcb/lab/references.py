"""Objects from a user's own file, written FILE.py:NAME."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any


def load_object(reference: str) -> Any:
    """Run the Python file of `reference`, "FILE.py:NAME", and return its NAME.

    The file runs as a module of its own that is not entered in `sys.modules`, so two files of the same name do not
    get in each other's way. Errors that the file raises are not wrapped.

    Raises:
        ValueError: `reference` is not of that form, or the file has no such name.
        FileNotFoundError: there is no such file.
    """
    # The last colon, because a Windows path has one of its own.
    filename, _, name = reference.rpartition(":")
    if not filename.endswith(".py") or not name.isidentifier():
        raise ValueError(f"`reference` must be of the form FILE.py:NAME, got reference={reference!r}.")
    path = Path(filename)
    if not path.is_file():
        raise FileNotFoundError(f"`reference` must name an existing file, got reference={reference!r}.")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"`reference` must name a Python file, got reference={reference!r}.")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not hasattr(module, name):
        raise ValueError(f"`reference` must name something that {path} defines, got reference={reference!r}.")
    return getattr(module, name)
