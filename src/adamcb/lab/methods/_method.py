"""What a method is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch.optim import Adam, Optimizer

from adamcb import _checks
from adamcb.selection import Selection, UniformSelection

# What a selection can be scored by, and what it can be called with beside its sizes.
SCORES = ("exact", "last-layer", "losses")
NEEDS = ("total_steps", "scorer")


@dataclass(frozen=True)
class Method:
    """A way to train.

    Attributes:
        name: What it is called on the command line and in results.
        label: What it is called in figures and tables; the name if empty.
        selection: Called with (num_samples, batch_size, exploration=..., generator=...).
        optimizer: Called with (parameters, lr=...).
        scores: What the selection learns from, as `AdamCB` takes it: "exact" or "last-layer" gradient norms, "losses",
            or a function of the losses. None: as `AdamCB` comes. A selection that learns nothing needs none.
        lr: Learning rate, if the experiment does not set one.
        exploration: γ, if the experiment does not set one.
        needs: What else the selection is called with: "total_steps", how many batches will be drawn, and "scorer", a
            `Scorer` that tells what the model makes of samples before they are chosen.
    """

    name: str
    label: str = ""
    selection: Callable[..., Selection] = UniformSelection
    optimizer: Callable[..., Optimizer] = Adam
    scores: str | Callable[..., Any] | None = None
    lr: float = 1e-3
    exploration: float = 0.4
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
