"""The methods that the experiments compare, by name.

Every method runs through `adamcb.AdamCB`, so that nothing but the method differs. All step with the experiment's
optimizer, unless the method is one (AMSGrad, AdamX) or is the paper's, to the letter. Constants are those of the
paper's Table 2. A method of your own, in a file: `mine = Method("mine", selection=...)`, and then
`adamcb compare --method FILE.py:mine`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from adamcb import _checks
from adamcb.lab.methods._about import described
from adamcb.lab.methods._controls import SmallBatches
from adamcb.lab.methods._method import Method
from adamcb.lab.methods._optimizers import LABELS, adam, adamx, adamx_paper, amsgrad
from adamcb.lab.methods.rivals import (
    ClassBalanced,
    InfoBatch,
    LastSeen,
    Presampling,
    ResidualDistribution,
    SelectiveBackprop,
    Undersampling,
    VarianceReducerBandit,
    WeightedLoss,
    focal,
)
from adamcb.lab.references import load_object
from adamcb.selection import CombinatorialBandit, ReplacementBandit, UniformSelection

# Names of the past, and what they are called now.
RENAMED = {"adambs-corrected": "adambs", "adamcb-scale-free": "adamcb"}


def _paper(name: str, label: str, *parts: Any) -> Method:
    """Return one of the paper's methods, with its γ, its optimizer and exact norms."""
    return Method(name, label, *parts, scores="exact", exploration=0.4)


def _bandit(feedback: str) -> Any:
    return partial(CombinatorialBandit, feedback=feedback, gate=None)


_REGISTERED = (
    Method("adam", "Adam", UniformSelection),
    Method("amsgrad", "AMSGrad", UniformSelection, amsgrad),
    Method("adamx", "AdamX", UniformSelection, adamx),
    Method("adamx-paper", "AdamX (paper)", UniformSelection, adamx_paper),
    _paper("adambs", "AdamBS", partial(ReplacementBandit, form="corrected"), adamx_paper),
    _paper("adambs-original", "AdamBS (original)", partial(ReplacementBandit, form="original"), adam),
    _paper("adamcb-paper", "AdamCB (paper)", _bandit("proof"), adamx_paper),
    _paper("adamcb-listing", "AdamCB (listing)", _bandit("listing"), adamx_paper),
    Method("adamcb", "AdamCB"),
    Method("adamcb-smaller", "AdamCB, smaller batches", min_batch_size=16),
    Method("small-batches", "Adam, smaller batches", SmallBatches),
)
METHODS = described(_REGISTERED)
# This package as it comes.
OURS = "adamcb"
_PUBLISHED = (
    Method("last-norm", "last-seen norm", LastSeen, scores="exact", needs=("exploration",)),
    Method("last-loss", "last-seen loss", LastSeen, scores="losses", needs=("exploration",)),
    Method("vrb", "VRB", VarianceReducerBandit, scores="exact", needs=("total_steps",)),
    Method("infobatch", "InfoBatch", InfoBatch, scores="losses", needs=("total_steps",)),
    Method("selective-backprop", "Selective-Backprop", SelectiveBackprop, needs=("scorer",)),
    Method("presampling", "presampling", Presampling, scores="last-layer", needs=("scorer",)),
)
RIVALS = described(_PUBLISHED)
# What people do about rare classes, and about the points of an equation.
_OF_A_KIND = (
    Method("balanced-sampler", "balanced sampler", ClassBalanced, needs=("labels",)),
    Method("weighted-loss", "weighted loss", WeightedLoss, needs=("labels",)),
    Method("focal-loss", "focal loss", UniformSelection, loss=focal),
    Method("undersampling", "undersampling", Undersampling, needs=("labels",)),
    Method("rad", "RAD", ResidualDistribution, needs=("losses",)),
)
SPECIAL = described(_OF_A_KIND)
# What `adamcb compare` compares if nothing is asked for.
DEFAULT_METHODS = ("adam", "small-batches", "adamcb", "adamcb-smaller")


def label_of(method: Method, optimizer: str | None) -> str:
    """Return what readers see of a method where the experiment asks for an optimizer."""
    if optimizer is None or method.name not in ("adam", "small-batches"):
        return method.label
    return method.label.replace("Adam", LABELS[optimizer])


def get_method(reference: str | Method, argument: str = "method") -> Method:
    """Return a method by name, or from a file as "FILE.py:NAME"; a method itself is returned as it is.

    Errors name the `argument` that the reference was.

    Raises:
        ValueError: The name is unknown, or the file has no such name.
        FileNotFoundError: There is no such file.
        TypeError: The reference is no name, or what the file holds under that name is not a `Method`.

    Example:
        >>> get_method("adamcb-paper").label
        'AdamCB (paper)'
    """
    if isinstance(reference, Method):
        return reference
    if not isinstance(reference, str):
        raise _checks.wrong_type(argument, "be a name or a Method", reference)
    if ":" not in reference:
        known = {**METHODS, **RIVALS, **SPECIAL}
        check_renamed(reference, RENAMED)
        _checks.one_of(argument, reference, (*known, "FILE.py:NAME"))
        return known[reference]
    method = load_object(reference, argument)
    if not isinstance(method, Method):
        raise TypeError(f"`{argument}` must name a Method, got {argument}={reference!r}, a {type(method).__name__}.")
    return method


def check_renamed(name: str, renamed: dict[str, str]) -> None:
    """Raise ValueError if `name` is a method's name of the past; the message tells what it is called now."""
    if name in renamed:
        raise ValueError(f"`method` {name!r} is called {renamed[name]!r} now, got method={name!r}.")
