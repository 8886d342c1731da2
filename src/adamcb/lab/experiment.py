"""What is compared: data, model, methods, and how long. All that decides the numbers, and nothing else."""

from __future__ import annotations

import hashlib
import json
import math
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import adamcb
from adamcb import _checks
from adamcb.lab.datasets import ImageData
from adamcb.lab.errors import LabError
from adamcb.lab.methods import DEFAULT_METHODS, Method, get_method

SCHEDULES = ("constant", "inverse-sqrt", "cosine")
FORMAT = 1
# Options whose results belong together, as they stand in config.json.
COMPARED = (
    "dataset",
    "model",
    "methods",
    "seeds",
    "epochs",
    "batch_size",
    "lr",
    "schedule",
    "exploration",
    "fraction",
    "device",
    "max_steps",
    "label_noise",
    "evaluations",
    "files",
)


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

    dataset: str = "digits"
    model: str = "mlp"
    methods: tuple[str, ...] = DEFAULT_METHODS
    seeds: int = 3
    epochs: int = 10
    batch_size: int = 128
    lr: float | None = None
    schedule: str = "constant"
    exploration: float | None = None
    fraction: float = 1.0
    device: str = "cpu"
    max_steps: int | None = None
    label_noise: float | None = None
    evaluations: int | None = None

    def __post_init__(self) -> None:
        for name in ("seeds", "epochs", "batch_size"):
            _checks.integer(name, getattr(self, name), low=1)
        if self.lr is not None:
            _checks.real("lr", self.lr, low=0.0, low_open=True)
        if self.exploration is not None:
            _checks.real("exploration", self.exploration, low=0.0, high=1.0)
        for name in ("max_steps", "evaluations"):
            if getattr(self, name) is not None:
                _checks.integer(name, getattr(self, name), low=1)
        if self.label_noise is not None:
            _checks.real("label_noise", self.label_noise, low=0.0, high=1.0)
        _checks.real("fraction", self.fraction, low=0.0, high=1.0, low_open=True)
        _checks.one_of("schedule", self.schedule, SCHEDULES)

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
        return {
            "format": FORMAT,
            "dataset": self.dataset,
            "model": self.model,
            "methods": [method.name for method in methods],
            "labels": {method.name: method.label for method in methods},
            "seeds": list(range(self.seeds)),
            "epochs": self.epochs,
            "batch_size": self.batch_size,
            "lr": _common([method.lr for method in methods]) if self.lr is None else self.lr,
            "schedule": self.schedule,
            "exploration": (
                _common([method.exploration for method in methods]) if self.exploration is None else self.exploration
            ),
            "fraction": self.fraction,
            "device": self.device,
            "max_steps": self.max_steps,
            "label_noise": self.label_noise,
            "evaluations": self.evaluations,
            "files": _fingerprints((self.model, *self.methods)),
            "num_train": len(data.train),
            "num_test": len(data.test),
            "image_shape": list(data.image_shape),
            "class_names": list(data.class_names),
            "versions": versions(),
            "notes": [*([data.note] if data.note else []), *notes],
        }


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
