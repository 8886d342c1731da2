"""What is compared: data, model, methods, and how long. All that decides the numbers, and nothing else.

The fields of `Experiment` are the one list of options. The command line takes its options from them (`add_options`),
config.json holds them, and a result folder refuses to go on where one of them differs (`COMPARED`).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import adamcb
from adamcb import _checks
from adamcb.lab.errors import LabError
from adamcb.lab.methods import DEFAULT_METHODS, METHODS, RIVALS, Method, get_method
from adamcb.lab.tasks import metrics
from adamcb.lab.tasks.datasets import DATASET_NAMES, ImageData
from adamcb.lab.tasks.models import MODEL_NAMES

SCHEDULES = ("constant", "inverse-sqrt", "cosine")
# Of config.json: 2 since methods have the names that they have now.
FORMAT = 2


@dataclass(frozen=True)
class Option:
    """What the command line says and checks of a field.

    Attributes:
        help: What it says.
        kind: Turns the text of the command line into the value.
        check: Called with (name, value) where there is a value; raises what is wrong with it.
        metavar: What stands for the value in the help.
        flag: The option, if it is not called as the field is.
        choices: The values that it may have.
        repeated: Whether it may be given several times.
    """

    help: str
    kind: Callable[[str], Any] = str
    check: Callable[[str, Any], Any] | None = None
    metavar: str | None = None
    flag: str = ""
    choices: tuple[str, ...] | None = None
    repeated: bool = False


_COUNT = partial(_checks.integer, low=1)
_SHARE = partial(_checks.real, low=0.0, high=1.0)


def _option(default: Any, help: str, **settings: Any) -> Any:
    return field(default=default, metadata={"option": Option(help, **settings)})


def _count(default: int | None, help: str, **settings: Any) -> Any:
    return _option(default, help, **{"kind": int, "check": _COUNT, "metavar": "N", **settings})


@dataclass(frozen=True)
class Experiment:
    """A comparison of methods: every method is run once with each of the seeds 0, 1, …, seeds − 1.

    Attributes:
        dataset: A name that `load_dataset` takes.
        model: A name that `build_model` takes.
        methods: Names that `get_method` takes.
        seeds: How many.
        epochs: How many; one has floor(n/K) steps.
        batch_size: K.
        lr: Learning rate; None: each method's own.
        schedule: "constant", "inverse-sqrt" (α/√t) or "cosine" (to 0 at the last step).
        exploration: γ; None: each method's own.
        fraction: The part of the data that is used.
        device: Where to train.
        max_steps: End every run after this many steps, if they are fewer than those of the epochs.
        label_noise: The part of the training labels that is replaced by another class, chosen by the seed of the run;
            None: they stay as they are. Test labels always do.
        evaluations: How often in an epoch loss and accuracy are measured, for curves that are finer than
            results.csv; None: at its end only.
    """

    dataset: str = _option("digits", f"{', '.join(DATASET_NAMES)}, or a folder of class folders", metavar="NAME")
    model: str = _option("mlp", f"{', '.join(MODEL_NAMES)}, or FILE.py:NAME", metavar="NAME")
    methods: tuple[str, ...] = _option(
        DEFAULT_METHODS,
        f"{', '.join((*METHODS, *RIVALS))}, or FILE.py:NAME",
        metavar="NAME",
        flag="--method",
        repeated=True,
    )
    seeds: int = _count(3, "how many")
    epochs: int = _count(10, "how many; for digits 30")
    batch_size: int = _count(128, "samples in a batch", metavar="K")
    lr: float | None = _option(
        None, "learning rate (default: 0.001)", kind=float, check=partial(_checks.real, low=0.0, low_open=True)
    )
    schedule: str = _option("constant", "of the learning rate", choices=SCHEDULES)
    exploration: float | None = _option(None, "in [0, 1] (default: 0.4)", kind=float, check=_SHARE, metavar="GAMMA")
    fraction: float = _option(
        1.0, "part of the data to use, in (0, 1]", kind=float, check=partial(_SHARE, low_open=True)
    )
    device: str = _option("cpu", "where to train")
    max_steps: int | None = _count(None, "end every run after so many steps", flag="--steps")
    label_noise: float | None = _option(
        None, "part of the training labels to make wrong, in [0, 1]", kind=float, check=_SHARE, metavar="SHARE"
    )
    evaluations: int | None = _count(None, "evaluations in an epoch")

    def __post_init__(self) -> None:
        for name, option in OPTIONS.items():
            value = getattr(self, name)
            if value is None:
                continue
            if option.check is not None:
                option.check(name, value)
            if option.choices is not None:
                _checks.one_of(name, value, option.choices)

    def resolve_methods(self) -> list[Method]:
        """Return the methods, or raise if two have one name: their results would mix."""
        methods = [get_method(reference) for reference in self.methods]
        names = [method.name for method in methods]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise LabError(f"Every method must be given once, got {twice!r} again.")
        return methods

    def total_steps(self, num_samples: int) -> int:
        """Return how many steps a run has."""
        steps = self.epochs * (num_samples // self.batch_size)
        return steps if self.max_steps is None else min(steps, self.max_steps)

    def lr_factor(self, steps_done: int, total_steps: int) -> float:
        """Return what the learning rate is multiplied by in the next step."""
        if self.schedule == "inverse-sqrt":
            return (steps_done + 1) ** -0.5
        if self.schedule == "cosine":
            return 0.5 * (1.0 + math.cos(math.pi * steps_done / total_steps))
        return 1.0

    def as_config(self, data: ImageData, notes: list[str]) -> dict[str, Any]:
        """Return what config.json holds."""
        methods = self.resolve_methods()
        own = {name: getattr(self, name) for name in OPTIONS}
        own["methods"], own["seeds"] = [method.name for method in methods], list(range(self.seeds))
        for name in ("lr", "exploration"):
            if own[name] is None:
                own[name] = _common([getattr(method, name) for method in methods])
        return {
            "format": FORMAT,
            **own,
            "labels": {method.name: method.label for method in methods},
            "metrics": metrics.as_config({"accuracy": metrics.accuracy}),
            "files": _fingerprints((self.model, *self.methods)),
            "num_train": len(data.train),
            "num_test": len(data.test),
            "image_shape": list(data.image_shape),
            "class_names": list(data.class_names),
            "versions": versions(),
            "notes": [*([data.note] if data.note else []), *notes],
        }


OPTIONS: dict[str, Option] = {
    each.name: each.metadata["option"] for each in fields(Experiment) if "option" in each.metadata
}
# What must be the same for results to belong together, as it stands in config.json.
COMPARED = ("format", *OPTIONS, "files")


def option_of(name: str) -> str:
    """Return what the command line calls a field."""
    if name == "files":
        return "the file of --model or --method"
    if name == "format":
        return "the format of the folder"
    return OPTIONS[name].flag or "--" + name.replace("_", "-")


def add_options(
    parser: argparse.ArgumentParser,
    names: Sequence[str] = tuple(OPTIONS),
    *,
    defaults: Mapping[str, Any] | None = None,
    instead_of: str = "",
) -> None:
    """Add the options of an experiment; what is parsed has the fields' names.

    Args:
        parser: Where to.
        names: Which.
        defaults: Where the default is not the field's.
        instead_of: Whose values the options replace; all defaults are None then.
    """
    own = {each.name: each.default for each in fields(Experiment)}
    for name in names:
        option, default = OPTIONS[name], {**own, **(defaults or {})}[name]
        words = ", ".join(default) if isinstance(default, tuple) else default
        text = option.help + (" (may be repeated)" if option.repeated else "")
        text += f"; instead of {instead_of}" if instead_of else f" (default: {words})" if words is not None else ""
        shape: dict[str, Any] = {"action": "append"} if option.repeated else {"type": option.kind}
        if option.choices is not None:
            shape["choices"] = option.choices
        elif option.metavar is not None:
            shape["metavar"] = option.metavar
        parser.add_argument(
            option_of(name), dest=name, default=None if instead_of or option.repeated else default, help=text, **shape
        )


def given_options(parsed: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of an experiment that `parsed` has a value for."""
    found = {name: getattr(parsed, name, None) for name in OPTIONS}
    return {
        name: tuple(value) if isinstance(value, list) else value for name, value in found.items() if value is not None
    }


def title_of(config: Mapping[str, Any]) -> str:
    """Return what a comparison is of, in words."""
    return f"{config.get('model', 'model')} on {config.get('dataset', 'data')}"


def digest(config: dict[str, Any]) -> str:
    """Return six letters that differ where the compared options differ."""
    text = json.dumps({name: config[name] for name in COMPARED}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:6]


def versions() -> dict[str, str]:
    """Return the versions that numbers may depend on."""
    return {
        "adamcb": adamcb.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def _common(values: list[float]) -> float | None:
    return values[0] if len(set(values)) == 1 else None


def _fingerprints(references: tuple[str, ...]) -> dict[str, str]:
    """Return the SHA-256 of every file among FILE.py:NAME references: what it defines decides the numbers too."""
    files = sorted({reference.rpartition(":")[0] for reference in references if ":" in reference})
    return {file: hashlib.sha256(Path(file).read_bytes()).hexdigest() for file in files}
