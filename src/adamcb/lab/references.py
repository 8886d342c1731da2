"""Objects from a user's own file, written FILE.py:NAME."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

from adamcb._checks import nearest
from adamcb.lab.paths import fault_of


def load_object(reference: str, option: str) -> Any:
    """Run the Python file of `reference`, "FILE.py:NAME", and return its NAME; errors name the `option` it is for.

    The file runs as a module that is named by its whole path, so two files of the same name do not get in each
    other's way. It is entered in `sys.modules`, where dataclasses look up their annotations. Errors that the file
    raises are not wrapped.

    Raises:
        ValueError: `reference` is not of that form, or the file has no such name.
        FileNotFoundError: there is no such file.
    """
    path, name = split_reference(reference, option)
    spec = importlib.util.spec_from_file_location(str(path.resolve()), path)
    if spec is None or spec.loader is None:
        raise ValueError(f"`{option}` must name a Python file, got {option}={reference!r}.")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not hasattr(module, name):
        near = nearest(name, [each for each in vars(module) if not each.startswith("_")])
        raise ValueError(f"`{option}` must name something that {path} defines, got {option}={reference!r}.{near}")
    return getattr(module, name)


def split_reference(reference: str, option: str) -> tuple[Path, str]:
    """Return the file and the name of "FILE.py:NAME"; raises as `load_object` does, without running the file."""
    # The last colon, because a Windows path has one of its own.
    filename, _, name = reference.rpartition(":")
    if not filename.endswith(".py") or not name.isidentifier():
        raise ValueError(f"`{option}` must be of the form FILE.py:NAME, got {option}={reference!r}.")
    fault = fault_of(filename)
    if fault is not None:
        raise ValueError(f"`{option}` {fault}")
    if not os.path.isfile(filename):  # unlike Path.is_file, False for a name that is too long
        raise FileNotFoundError(f"`{option}` must name an existing file, got {option}={reference!r}.")
    return Path(filename), name
