"""`adamcb compare --config run.toml`: the options of a comparison in a file, under the names of the command line."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from adamcb import _checks
from adamcb.lab.commands.running import folder_to_write, place
from adamcb.lab.errors import LabError
from adamcb.lab.experiment import OPTIONS, Experiment, option_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pyright: ignore[reportMissingImports]

NAME = "run.toml"
# Options that say how to run, not what. By the file's name for them, that of the parsed options.
RUNNING = {"jobs": "jobs", "out": "out", "data-dir": "data_dir", "log": "log"}
_FIELDS = {option_of(name).removeprefix("--"): name for name in OPTIONS if name != "evaluations"}
_KEYS = {**_FIELDS, **RUNNING}


def apply_config(path: Path, options: argparse.Namespace) -> None:
    """Give parsed options the values of a file, where the command line gave none.

    Raises:
        LabError: The file cannot be read, or it holds what is no option or no value of one.
    """
    # A task brings data and model: either of these on the command line replaces the other in the file.
    replaced = {"task"} if options.dataset or options.model else {"dataset", "model"} if options.task else set()
    for key, value in _read(path).items():
        name = key.replace("_", "-")
        if name not in _KEYS:
            raise LabError(f"{path} must hold options of `adamcb compare`, got {key!r}.{_checks.nearest(name, _KEYS)}")
        if name not in replaced and getattr(options, _KEYS[name]) is None:
            setattr(options, _KEYS[name], _value(path, name, value))


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise LabError(f"`--config` must name a file that can be read, got {path}: {error.strerror}.") from error
    except ValueError as error:
        raise LabError(f"{path} must be TOML: {error}.") from error


def _value(path: Path, name: str, value: Any) -> Any:
    """Return a value as the command line would have parsed it."""
    if name == "log" or (name in _FIELDS and OPTIONS[_FIELDS[name]].repeated):
        value = [value] if isinstance(value, str) else value
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise LabError(f"`{name}` in {path} must be a list of names, got {value!r}.")
        return value
    kind = {"out": folder_to_write, "data-dir": place, "jobs": int}.get(name) or OPTIONS[_FIELDS[name]].kind
    words, kinds = {int: ("a whole number", int), float: ("a number", (int, float))}.get(kind, ("text", str))
    if not isinstance(value, kinds) or isinstance(value, bool):
        raise LabError(f"`{name}` in {path} must be {words}, got {value!r}.")
    try:
        return kind(value)
    except argparse.ArgumentTypeError as error:
        raise LabError(f"`{name}` in {path} {error}") from error
    except OverflowError as error:
        raise LabError(f"`{name}` in {path} must be a finite number, got {_checks.shown(name, value)}.") from error


def config_text(experiment: Experiment, *, data_dir: str | None = None, logs: Sequence[str] = ()) -> str | None:
    """Return a file that repeats an experiment; None where no names lead to its methods."""
    if not all(isinstance(method, str) for method in experiment.methods):
        return None
    left_out = ("dataset", "model") if experiment.task is not None else ("task",)
    values = {key: getattr(experiment, name) for key, name in _FIELDS.items() if name not in left_out}
    values |= {"data-dir": data_dir, "log": list(logs) or None}
    lines = [f"{key} = {_toml(value)}" for key, value in values.items() if value is not None]
    return "\n".join([f"# adamcb compare --config {NAME} --out FOLDER", *lines, ""])


def _toml(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)
