"""What is compared: data, model, methods, and how long. All that decides the numbers, and nothing else.

The fields of `Experiment` are the one list of options. The command line takes its options from them (`add_options`),
config.json holds them, and a result folder refuses to go on where one of them differs (`COMPARED`).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import adamcb
from adamcb import _checks
from adamcb.lab.errors import LabError
from adamcb.lab.methods import (
    CONTROLS,
    DEFAULT_METHODS,
    METHODS,
    RIVALS,
    SPECIAL,
    Method,
    SmallBatches,
    get_method,
    label_of,
)
from adamcb.lab.tasks import metrics
from adamcb.lab.tasks.datasets import DATASET_NAMES
from adamcb.lab.tasks.fingerprint import KEYS, fingerprint
from adamcb.lab.tasks.images import AUGMENTATIONS, ImageTask
from adamcb.lab.tasks.load import DEFAULT_TASK, TASKS, load_image_task, load_task
from adamcb.lab.tasks.models import MODEL_NAMES
from adamcb.lab.tasks.schedules import SCHEDULES
from adamcb.lab.tasks.task import OPTIMIZERS, Task
from adamcb.training import SCORES

# What is for images alone, and not for a task.
OF_IMAGES = ("fraction", "label_noise", "augmentation")
# Of config.json: 2 since methods have the names that they have now, 3 since `seconds` are the processor's.
FORMAT = 3


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


# More seeds than anybody waits for; the runs of all are listed before the first.
MOST_SEEDS = 10**6
_SHARE = partial(_checks.real, low=0.0, high=1.0)


def _option(default: Any, help: str, **settings: Any) -> Any:
    return field(default=default, metadata={"option": Option(help, **settings)})


def _count(default: int | None, help: str, **settings: Any) -> Any:
    return _option(default, help, **{"kind": int, "check": _checks.count, "metavar": "N", **settings})


_OF_TASK = "(default: the task's)"


@dataclass(frozen=True)
class Experiment:
    """A comparison of methods: every method is run once with each of the seeds 0, 1, …, seeds − 1.

    Attributes:
        task: A name that `load_task` takes; None: `model` on `dataset`.
        dataset: A name that `load_dataset` takes.
        model: A name that `build_model` takes.
        methods: Names that `get_method` takes, or methods.
        seeds: How many.
        epochs: How many; one has floor(n/K) steps. None: the task's.
        batch_size: K. None: the task's.
        lr: Learning rate. None: each method's own, or the task's.
        schedule: Of the learning rate; a name of `SCHEDULES`. None: the task's.
        optimizer: A name of `OPTIMIZERS`, for all methods that do not bring their own. None: the task's.
        weight_decay: Of the optimizer. None: the task's.
        exploration: γ. None: each method's own.
        scores: What methods learn from that leave it open. None: as `AdamCB` comes.
        min_batch_size: How small the batches of `AdamCB` may become. None: all have K samples.
        fraction: The part of the data that is used.
        device: Where to train.
        max_steps: End every run after this many steps, if they are fewer than those of the epochs.
        label_noise: The part of the training labels that is replaced by another class, chosen by the seed of the run;
            None: they stay as they are. Test labels always do.
        augmentation: A name of `AUGMENTATIONS`: what is done to training images. None: nothing.
        evaluations: How often in an epoch losses and metrics are measured, for curves that are finer than
            results.csv; None: at its end only.
    """

    task: str | None = _option(
        None,
        f"{', '.join(TASKS)}, or FILE.py:NAME; instead of --dataset and --model (default: {DEFAULT_TASK})",
        metavar="NAME",
    )
    dataset: str = _option("digits", f"{', '.join(DATASET_NAMES)}, or a folder of class folders", metavar="NAME")
    model: str = _option("mlp", f"{', '.join(MODEL_NAMES)}, or FILE.py:NAME", metavar="NAME")
    methods: tuple[str | Method, ...] = _option(
        DEFAULT_METHODS,
        f"{', '.join((*METHODS, *RIVALS, *SPECIAL))}, or FILE.py:NAME",
        metavar="NAME",
        flag="--method",
        repeated=True,
    )
    seeds: int = _count(3, "how many", check=partial(_checks.integer, low=1, high=MOST_SEEDS))
    epochs: int | None = _count(None, f"how many {_OF_TASK}")
    batch_size: int | None = _count(None, f"samples in a batch {_OF_TASK}", metavar="K")
    lr: float | None = _option(
        None, f"learning rate {_OF_TASK}", kind=float, check=partial(_checks.real, low=0.0, low_open=True)
    )
    schedule: str | None = _option(None, f"of the learning rate {_OF_TASK}", choices=tuple(SCHEDULES))
    optimizer: str | None = _option(None, f"for all methods that do not bring their own {_OF_TASK}", choices=OPTIMIZERS)
    weight_decay: float | None = _option(
        None, f"of the optimizer {_OF_TASK}", kind=float, check=partial(_checks.real, low=0.0)
    )
    exploration: float | None = _option(
        None,
        "in [0, 1], and above 0 for adamcb (default: each method's own)",
        kind=float,
        check=_SHARE,
        metavar="GAMMA",
    )
    scores: str | None = _option(None, "what adamcb learns from (default: as it comes)", choices=SCORES)
    min_batch_size: int | None = _count(None, "how small adamcb's batches may become (default: all have K samples)")
    fraction: float = _option(
        1.0, "part of the data to use, in (0, 1]", kind=float, check=partial(_SHARE, low_open=True)
    )
    device: str = _option("cpu", "where to train")
    max_steps: int | None = _count(None, "end every run after so many steps", flag="--steps")
    label_noise: float | None = _option(
        None, "part of the training labels to make wrong, in [0, 1]", kind=float, check=_SHARE, metavar="SHARE"
    )
    augmentation: str | None = _option(None, "what is done to training images", choices=tuple(AUGMENTATIONS))
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
        """Return the methods, or raise if there are none, or if two have one name: their results would mix."""
        if not self.methods:
            raise LabError("`methods` must hold at least one method, got none.")
        methods = [get_method(reference) for reference in self.methods]
        names = [method.name for method in methods]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise LabError(f"Every method must be given once, got {twice!r} again.")
        return methods

    @property
    def named_alone(self) -> bool:
        """Whether dataset and model are ours, so that their names say what is computed."""
        return self.task is None and ":" not in self.model

    def load_task(self, data_dir: str | None = None) -> Task:
        """Return the task."""
        if self.task is None:
            settings: Any = {name: getattr(self, name) for name in OF_IMAGES}
            return load_image_task(self.dataset, self.model, data_dir=data_dir, **settings)
        for name in OF_IMAGES:
            if getattr(self, name) not in (None, 1.0):
                raise LabError(f"`{option_of(name)}` must not be given beside --task, got {getattr(self, name)}.")
        return load_task(self.task, data_dir)

    def completed(self, task: Task) -> Experiment:
        """Return the experiment with everything that it leaves to the task."""
        names = ("epochs", "batch_size", "schedule", "optimizer", "weight_decay")
        return replace(self, **{name: getattr(task, name) for name in names if getattr(self, name) is None})

    def steps_per_epoch(self, num_samples: int) -> int:
        """Return how many batches an epoch has."""
        assert self.batch_size is not None
        return num_samples // self.batch_size

    def total_steps(self, num_samples: int) -> int:
        """Return how many steps a run has."""
        assert self.epochs is not None
        steps = self.epochs * self.steps_per_epoch(num_samples)
        return steps if self.max_steps is None else min(steps, self.max_steps)

    def lr_factor(self, steps_done: int, total_steps: int) -> float:
        """Return what the learning rate is multiplied by in the next step."""
        assert self.schedule is not None
        return SCHEDULES[self.schedule](steps_done, total_steps)

    def as_config(self, task: Task, notes: Sequence[str] = ()) -> dict[str, Any]:
        """Return what config.json holds."""
        methods, completed = self.resolve_methods(), self.completed(task)
        own = {name: getattr(completed, name) for name in OPTIONS}
        own["methods"], own["seeds"] = [method.name for method in methods], list(range(self.seeds))
        if self.task is not None:
            own["dataset"] = own["model"] = None
        if self.lr is None and all(method.lr is None for method in methods):
            own["lr"] = task.lr
        references = (self.model if self.task is None else self.task, *self.methods)
        data = task.data if isinstance(task, ImageTask) else None
        return {
            "format": FORMAT,
            **own,
            "task_name": None if self.task is None else task.name,
            "labels": {method.name: label_of(method, completed.optimizer) for method in methods},
            "about": {method.name: [method.about, method.link] for method in methods},
            "chooses": [method.name for method in methods if _chooses(method)],
            "controls": [method.name for method in methods if method.selection is SmallBatches],
            "metrics": metrics.as_config(task.metrics),
            "files": _fingerprints(references),
            **(dict.fromkeys(KEYS) if self.named_alone else fingerprint(task, self.device)),
            "num_train": len(task.train),
            "num_test": len(task.test),
            "image_shape": list(data.image_shape) if data else None,
            "class_names": list(data.class_names) if data else [],
            "versions": versions(),
            "notes": [*([data.note] if data and data.note else []), *notes],
        }


OPTIONS: dict[str, Option] = {
    each.name: each.metadata["option"] for each in fields(Experiment) if "option" in each.metadata
}
# What must be the same for results to belong together, as it stands in config.json.
COMPARED = ("format", *OPTIONS, "files", "metrics", "num_train", "num_test", *KEYS)

_NO_OPTIONS = {
    "format": "the format of the folder",
    "files": "the file of --task, --model or --method",
    "metrics": "the list of metrics",
    "num_train": "the number of training samples",
    "num_test": "the number of test samples",
    "parameters": "the digest of the model's parameters",
    "first_losses": "the list of losses before training",
    "first_scores": "the list of scores before training",
}


def option_of(name: str) -> str:
    """Return what the command line calls a field."""
    if name not in OPTIONS:
        return _NO_OPTIONS[name]
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
    others = defaults or {}
    for name in names:
        option, default = OPTIONS[name], {**own, **others}[name]
        words = ", ".join(default) if isinstance(default, tuple) else default
        text = option.help + (" (may be repeated)" if option.repeated else "")
        text += f"; instead of {instead_of}" if instead_of else f" (default: {words})" if words is not None else ""
        shape: dict[str, Any] = {"action": "append"} if option.repeated else {"type": option.kind}
        if option.choices is not None:
            shape["choices"] = option.choices
        elif option.metavar is not None:
            shape["metavar"] = option.metavar
        # None where the default is the field's: then it can be told what was given.
        preset = None if option.repeated else others.get(name)
        parser.add_argument(option_of(name), dest=name, default=preset, help=text, **shape)


def given_options(parsed: argparse.Namespace, names: Sequence[str] = tuple(OPTIONS)) -> dict[str, Any]:
    """Return the fields of an experiment, of those in `names`, that `parsed` has a value for."""
    found = {name: getattr(parsed, name, None) for name in names}
    return {
        name: tuple(value) if isinstance(value, list) else value for name, value in found.items() if value is not None
    }


def title_of(config: Mapping[str, Any]) -> str:
    """Return what a comparison is of, in words."""
    if config.get("task"):
        return str(config.get("task_name") or str(config["task"]).rpartition(":")[2])
    return f"{config.get('model', 'model')} on {config.get('dataset', 'data')}"


def digest(config: dict[str, Any]) -> str:
    """Return six letters that differ where the compared options differ.

    What the task computes is left out: its numbers are not the same to the last digit on every machine.
    """
    text = json.dumps({name: config[name] for name in COMPARED if name not in KEYS}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:6]


def versions() -> dict[str, str]:
    """Return the versions that numbers may depend on."""
    return {
        "adamcb": adamcb.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def _chooses(method: Method) -> bool:
    """Return whether a method chooses by what it learns from its batches, and by nothing else."""
    return method.selection not in CONTROLS and set(method.needs) <= {"exploration"}


def _fingerprints(references: Sequence[str | Method]) -> dict[str, str]:
    """Return the SHA-256 of every file among FILE.py:NAME references: what it defines decides the numbers too."""
    names = [reference for reference in references if isinstance(reference, str) and ":" in reference]
    files = sorted({name.rpartition(":")[0] for name in names})
    return {file: hashlib.sha256(Path(file).read_bytes()).hexdigest() for file in files}
