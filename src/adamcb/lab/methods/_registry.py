"""The methods that the experiments compare, by name.

Every method runs through `adamcb.AdamCB`, so that nothing but the method differs. Constants are those of the paper's
Table 2; the rivals, which others published, all step with Adam, as the baseline does. A method of your own, in a file:
`mine = Method("mine", selection=..., optimizer=...)`, and then `adamcb compare --method FILE.py:mine`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch.optim import Adam, Optimizer
from torch.optim.optimizer import _default_to_fused_or_foreach

from adamcb import _checks
from adamcb.lab.methods._method import Method
from adamcb.lab.methods.rivals import InfoBatch, LastSeen, Presampling, SelectiveBackprop, VarianceReducerBandit
from adamcb.lab.references import load_object
from adamcb.optim import AdamX
from adamcb.selection import CombinatorialBandit, ReplacementBandit, UniformSelection

# Names of the past, and what they are called now.
RENAMED = {"adambs-corrected": "adambs", "adamcb-scale-free": "adamcb"}


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
_adamx = _fused(AdamX, beta1_decay=1 - 1e-8, bias_correction=True)
_adamx_paper = _fused(AdamX, beta1_decay=1 - 1e-8, bias_correction=False)

_REGISTERED = (
    Method("adam", "Adam", _uniform, _adam),
    Method("amsgrad", "AMSGrad", _uniform, _amsgrad),
    Method("adamx", "AdamX", _uniform, _adamx),
    Method("adamx-paper", "AdamX (paper)", _uniform, _adamx_paper),
    Method("adambs", "AdamBS", partial(ReplacementBandit, form="corrected"), _adamx_paper, "exact"),
    Method("adambs-original", "AdamBS (original)", partial(ReplacementBandit, form="original"), _adam, "exact"),
    Method("adamcb-paper", "AdamCB (paper)", partial(CombinatorialBandit, feedback="bandit"), _adamx_paper, "exact"),
    Method(
        "adamcb-listing", "AdamCB (listing)", partial(CombinatorialBandit, feedback="listing"), _adamx_paper, "exact"
    ),
    Method("adamcb", "AdamCB", partial(CombinatorialBandit, feedback="scale-free"), _adamx),
)
METHODS = {method.name: method for method in _REGISTERED}
_PUBLISHED = (
    Method("last-norm", "last-seen norm", LastSeen, _adam, "exact"),
    Method("last-loss", "last-seen loss", LastSeen, _adam, "losses"),
    Method("vrb", "VRB", VarianceReducerBandit, _adam, "exact", needs=("total_steps",)),
    Method("infobatch", "InfoBatch", InfoBatch, _adam, "losses", needs=("total_steps",)),
    Method("selective-backprop", "Selective-Backprop", SelectiveBackprop, _adam, needs=("scorer",)),
    Method("presampling", "presampling", Presampling, _adam, "last-layer", needs=("scorer",)),
)
RIVALS = {method.name: method for method in _PUBLISHED}
# What `adamcb compare` compares if nothing is asked for.
DEFAULT_METHODS = ("adam", "adamx", "adambs", "adamcb-paper", "adamcb")


def get_method(reference: str) -> Method:
    """Return a method by name, or from a file as "FILE.py:NAME".

    Raises:
        ValueError: The name is unknown, or the file has no such name.
        FileNotFoundError: There is no such file.
        TypeError: What the file holds under that name is not a `Method`.

    Example:
        >>> get_method("adamcb-paper").label
        'AdamCB (paper)'
    """
    if ":" not in reference:
        known = {**METHODS, **RIVALS}
        check_renamed(reference, RENAMED)
        _checks.one_of("method", reference, (*known, "FILE.py:NAME"))
        return known[reference]
    method = load_object(reference)
    if not isinstance(method, Method):
        raise TypeError(f"`method` must name a Method, got method={reference!r}, a {type(method).__name__}.")
    return method


def check_renamed(name: str, renamed: dict[str, str]) -> None:
    """Raise ValueError if `name` is a method's name of the past; the message tells what it is called now."""
    if name in renamed:
        raise ValueError(f"`method` {name!r} is called {renamed[name]!r} now, got method={name!r}.")
