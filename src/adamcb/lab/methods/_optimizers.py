"""Optimizers by name, all on torch's fused kernel where the parameters allow it.

That is `AdamCB`'s own default. All methods step the same way, so that their seconds can be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.optim import SGD, Adam, AdamW, Optimizer

from adamcb._torch_compat import can_fuse
from adamcb.lab.errors import LabError
from adamcb.optim import AdamX

# Table 2 of the paper.
_MOMENTS = {"betas": (0.9, 0.999), "eps": 1e-8}


def fused(kind: Callable[..., Optimizer], **settings: Any) -> Callable[..., Optimizer]:
    """Return what builds an optimizer: called with (parameters, lr=..., and other settings)."""

    def build(parameters: Iterable[torch.Tensor], *, lr: float, **more: Any) -> Optimizer:
        listed = list(parameters)
        return kind(listed, lr=lr, fused=can_fuse(listed) or None, **settings, **more)

    return build


adam = fused(Adam, **_MOMENTS)
amsgrad = fused(Adam, amsgrad=True, **_MOMENTS)
adamw = fused(AdamW, **_MOMENTS)
adamx = fused(AdamX, beta1_decay=1 - 1e-8, **_MOMENTS)
adamx_paper = fused(AdamX, beta1_decay=1 - 1e-8, bias_correction=False, **_MOMENTS)
sgd = fused(SGD, momentum=0.9)


def muon(parameters: Iterable[torch.Tensor], *, lr: float, weight_decay: float = 0.0) -> tuple[Optimizer, ...]:
    """Return torch's Muon for the matrices, with steps as large as AdamW's, and AdamW for all other parameters."""
    kind: Any = getattr(torch.optim, "Muon", None)
    if kind is None:
        raise LabError(f"`optimizer` 'muon' must have torch 2.9 or later, got torch {torch.__version__}.")
    listed = list(parameters)
    matrices = [parameter for parameter in listed if parameter.dim() == 2]
    others = [parameter for parameter in listed if parameter.dim() != 2]
    found = []
    if matrices:
        found.append(kind(matrices, lr=lr, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw"))
    if others:
        found.append(adamw(others, lr=lr, weight_decay=weight_decay))
    return tuple(found)


# What --optimizer takes, with what readers see.
BUILDERS: dict[str, Callable[..., Optimizer | tuple[Optimizer, ...]]]
BUILDERS = {"adam": adam, "adamw": adamw, "sgd": sgd, "muon": muon, "adamx": adamx}
LABELS = {"adam": "Adam", "adamw": "AdamW", "sgd": "SGD", "muon": "Muon", "adamx": "AdamX"}
