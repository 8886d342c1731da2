"""What a method is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from adamcb import _checks
from adamcb.lab.tasks.task import check_scores
from adamcb.selection import Selection

# What a selection can be called with beside its sizes.
NEEDS = ("exploration", "total_steps", "scorer", "labels", "losses")


@dataclass(frozen=True)
class Method:
    """A way to train.

    Attributes:
        name: What it is called on the command line and in results.
        label: What it is called in figures and tables; the name if empty.
        selection: Called with (num_samples, batch_size, generator=...), and what it `needs`. None: as `AdamCB` comes.
        optimizer: Called with (parameters, lr=...), and weight_decay=... where the experiment has one. None: the
            experiment's optimizer, which is the same for all methods, so that only the batches differ.
        scores: What the selection learns from, as `AdamCB` takes it: "exact" or "last-layer" gradient norms, "losses",
            or a function of the losses. None: as the experiment says, or as `AdamCB` comes.
        lr: Learning rate, if the experiment does not set one. None: the task's.
        exploration: γ, if the experiment does not set one. None: the selection's own. A method that sets it needs it.
        min_batch_size: How small batches may become, but not below an eighth of K, or K if that is less; for
            `selection=None` only. None: as the experiment says.
        loss: A function of the losses, float[k], that returns k others, which are trained on instead.
        needs: What else the selection is called with: "exploration", γ, where the experiment or the method sets one;
            "total_steps", how many batches will be drawn; "scorer", a `Scorer` that tells what a classifier makes of
            samples before they are chosen; "losses", a function from indices to their losses now; "labels", int64[n],
            the class of every sample.
        about: What it is, in a sentence, for the report page.
        link: The address of a page that says more.

    Example:
        >>> from functools import partial
        >>> from adamcb import QueueBandit
        >>> Method("bold", selection=partial(QueueBandit, exploration=0.05)).label
        'bold'
    """

    name: str
    label: str = ""
    selection: Callable[..., Selection] | None = None
    optimizer: Callable[..., Optimizer] | None = None
    scores: str | Callable[..., Any] | None = None
    lr: float | None = None
    exploration: float | None = None
    min_batch_size: int | None = None
    loss: Callable[[Tensor], Tensor] | None = None
    needs: tuple[str, ...] = ()
    about: str = ""
    link: str = ""

    def __post_init__(self) -> None:
        _checks.instance("name", self.name, str, "a str")
        for text in ("label", "about", "link"):
            _checks.instance(text, getattr(self, text), str, "a str")
        if not self.label:
            object.__setattr__(self, "label", self.name)
        if not all(part.isalnum() for part in self.name.replace("_", "-").split("-")):
            raise ValueError(f"`name` of a method must be letters, digits and dashes, got name={self.name!r}.")
        for role in ("selection", "optimizer", "loss"):
            if getattr(self, role) is not None:
                _checks.function(role, getattr(self, role))
        if self.lr is not None:
            _checks.real("lr", self.lr, low=0.0, low_open=True)
        if self.exploration is not None:
            _checks.real("exploration", self.exploration, low=0.0, high=1.0)
        if self.min_batch_size is not None:
            _checks.count("min_batch_size", self.min_batch_size)
        if not isinstance(self.needs, (tuple, list)):
            raise _checks.wrong_type("needs", "be a tuple of words", self.needs)
        check_scores(self.scores)
        for need in self.needs:
            _checks.one_of("needs", need, NEEDS)

    @property
    def takes_exploration(self) -> bool:
        """Whether the selection is called with γ, where there is one."""
        return self.exploration is not None or "exploration" in self.needs
