"""What a method is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch.optim import Optimizer

from adamcb import _checks
from adamcb.lab.methods import _optimizers
from adamcb.selection import Selection

# What a selection can be scored by, and what it can be called with beside its sizes.
SCORES = ("exact", "last-layer", "losses")
NEEDS = ("total_steps", "scorer")


@dataclass(frozen=True)
class Method:
    """A way to train.

    Attributes:
        name: What it is called on the command line and in results.
        label: What it is called in figures and tables; the name if empty.
        selection: Called with (num_samples, batch_size, generator=...), and exploration=... where one is set. None: as
            `AdamCB` comes.
        optimizer: Called with (parameters, lr=...), and weight_decay=... where the experiment has one.
        scores: What the selection learns from, as `AdamCB` takes it: "exact" or "last-layer" gradient norms, "losses",
            or a function of the losses. None: as the experiment says, or as `AdamCB` comes.
        lr: Learning rate, if the experiment does not set one. None: the task's.
        exploration: γ, if the experiment does not set one. None: the selection's own.
        min_batch_size: How small batches may become; for `selection=None` only. None: as the experiment says.
        keeps_optimizer: Whether the method is about its optimizer, which no other may replace.
        needs: What else the selection is called with: "total_steps", how many batches will be drawn, and "scorer", a
            `Scorer` that tells what the model makes of samples before they are chosen.
    """

    name: str
    label: str = ""
    selection: Callable[..., Selection] | None = None
    optimizer: Callable[..., Optimizer] = _optimizers.adamx
    scores: str | Callable[..., Any] | None = None
    lr: float | None = None
    exploration: float | None = None
    min_batch_size: int | None = None
    keeps_optimizer: bool = False
    needs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.label:
            object.__setattr__(self, "label", self.name)
        if not all(part.isalnum() for part in self.name.replace("_", "-").split("-")):
            raise ValueError(f"`name` of a method must be letters, digits and dashes, got name={self.name!r}.")
        if isinstance(self.scores, str):
            _checks.one_of("scores", self.scores, SCORES)
        for need in self.needs:
            _checks.one_of("needs", need, NEEDS)
