"""The methods that the experiments compare: who chooses batches, from which norms it learns, and who steps.

Every method runs through `adamcb.AdamCB`, so that nothing but the method differs. Defaults are those of the paper's
Table 2; the rivals, which others published, all step with Adam, as the baseline does. A method of your own, in a file:
`mine = Method("mine", selection=..., optimizer=...)`, and then `adamcb compare --method FILE.py:mine`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.optim import Adam, Optimizer
from torch.optim.optimizer import _default_to_fused_or_foreach

from adamcb import _checks
from adamcb.lab.models import load_object
from adamcb.lab.rivals import InfoBatch, LastSeen, Presampling, SelectiveBackprop, VarianceReducerBandit
from adamcb.optim import AdamX
from adamcb.selection import CombinatorialBandit, ReplacementBandit, Selection, UniformSelection

# What a selection can learn from, and what it can be called with beside its sizes.
FEEDBACK = ("exact", "last-layer", "losses")
NEEDS = ("total_steps", "scorer")


@dataclass(frozen=True)
class Method:
    """A way to train.

    Attributes:
        name: What it is called on the command line and in results.
        label: What it is called in figures and tables; the name if empty.
        selection: Called with (num_samples, batch_size, exploration=..., generator=...).
        optimizer: Called with (parameters, lr=...).
        norms: What the selection learns from: "exact", "last-layer", "losses" (the losses of the batch in place of
            norms), or None: nothing is measured.
        lr: Learning rate, if the experiment does not set one.
        exploration: γ, if the experiment does not set one.
        needs: What the selection is called with besides: "total_steps", how many batches will be drawn, and "scorer",
            a `Scorer` that tells what the model makes of samples before they are chosen.
    """

    name: str
    label: str = ""
    selection: Callable[..., Selection] = UniformSelection
    optimizer: Callable[..., Optimizer] = Adam
    norms: str | None = None
    lr: float = 1e-3
    exploration: float = 0.4
    needs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.label:
            object.__setattr__(self, "label", self.name)


def _uniform(
    num_samples: int, batch_size: int, *, exploration: float, generator: torch.Generator | None
) -> UniformSelection:
    """Return reshuffled epochs, which have nothing to explore."""
    return UniformSelection(num_samples, batch_size, generator=generator)


def _fused(kind: Callable[..., Optimizer], **settings: Any) -> Callable[..., Optimizer]:
    """Return what builds an optimizer with Table 2's moments, on torch's fused kernel where the parameters allow it.

    That is `AdamCB`'s own default. All methods step the same way, so that their seconds can be compared.
    """

    def build(parameters: Iterable[torch.Tensor], *, lr: float) -> Optimizer:
        listed = list(parameters)
        fused, _ = _default_to_fused_or_foreach(listed, differentiable=False, use_fused=True)
        return kind(listed, lr=lr, betas=(0.9, 0.999), eps=1e-8, fused=fused or None, **settings)

    return build


# Table 2 of the paper; lr and exploration are on `Method`, the batch size on the experiment.
_adam, _amsgrad = _fused(Adam), _fused(Adam, amsgrad=True)
_adamx = _fused(AdamX, beta1_decay=1 - 1e-8, bias_correction=False)
_adamx_corrected = _fused(AdamX, beta1_decay=1 - 1e-8, bias_correction=True)

_REGISTERED = (
    Method("adam", "Adam", _uniform, _adam),
    Method("amsgrad", "AMSGrad", _uniform, _amsgrad),
    Method("adamx", "AdamX", _uniform, _adamx),
    Method("adambs", "AdamBS (original)", partial(ReplacementBandit, form="original"), _adam, "exact"),
    Method("adambs-corrected", "AdamBS (corrected)", partial(ReplacementBandit, form="corrected"), _adamx, "exact"),
    Method("adamcb", "AdamCB (paper)", partial(CombinatorialBandit, feedback="bandit"), _adamx, "exact"),
    Method("adamcb-listing", "AdamCB (listing)", partial(CombinatorialBandit, feedback="listing"), _adamx, "exact"),
    Method(
        "adamcb-scale-free",
        "AdamCB (scale-free)",
        partial(CombinatorialBandit, feedback="scale-free"),
        _adamx_corrected,
        "exact",
    ),
)
METHODS = {method.name: method for method in _REGISTERED}
_PUBLISHED = (
    Method("last-norm", "last-seen norm", LastSeen, _adam, "exact"),
    Method("last-loss", "last-seen loss", LastSeen, _adam, "losses"),
    Method("vrb", "VRB", VarianceReducerBandit, _adam, "exact", needs=("total_steps",)),
    Method("infobatch", "InfoBatch", InfoBatch, _adam, "losses", needs=("total_steps",)),
    Method("selective-backprop", "Selective-Backprop", SelectiveBackprop, _adam, None, needs=("scorer",)),
    Method("presampling", "presampling", Presampling, _adam, "last-layer", needs=("scorer",)),
)
RIVALS = {method.name: method for method in _PUBLISHED}
# What is compared if nothing is asked for.
DEFAULT_METHODS = ("adam", "adamx", "adambs-corrected", "adamcb", "adamcb-scale-free")


def get_method(reference: str) -> Method:
    """Return a method by name, or from a file as "FILE.py:NAME".

    Raises:
        ValueError: The name is unknown, or the file has no such name.
        FileNotFoundError: There is no such file.
        TypeError: What the file holds under that name is not a `Method`.

    Example:
        >>> get_method("adamcb-scale-free").label
        'AdamCB (scale-free)'
    """
    if ":" not in reference:
        known = {**METHODS, **RIVALS}
        _checks.one_of("method", reference, (*known, "FILE.py:NAME"))
        return known[reference]
    method = load_object(reference)
    if not isinstance(method, Method):
        raise TypeError(f"`method` must name a Method, got method={reference!r}, a {type(method).__name__}.")
    if not all(part.isalnum() for part in method.name.replace("_", "-").split("-")):
        raise ValueError(f"`name` of a method must be letters, digits and dashes, got name={method.name!r}.")
    if method.norms is not None:
        _checks.one_of("norms", method.norms, FEEDBACK)
    for need in method.needs:
        _checks.one_of("needs", need, NEEDS)
    return method
