"""Optimizers by name, all on torch's fused kernel where the parameters allow it.

That is `AdamCB`'s own default. All methods step the same way, so that their seconds can be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.optimizer import _default_to_fused_or_foreach

from adamcb.optim import AdamX

# Table 2 of the paper.
_MOMENTS = {"betas": (0.9, 0.999), "eps": 1e-8}


def fused(kind: Callable[..., Optimizer], **settings: Any) -> Callable[..., Optimizer]:
    """Return what builds an optimizer: called with (parameters, lr=..., and other settings)."""

    def build(parameters: Iterable[torch.Tensor], *, lr: float, **more: Any) -> Optimizer:
        listed = list(parameters)
        can_fuse, _ = _default_to_fused_or_foreach(listed, differentiable=False, use_fused=True)
        return kind(listed, lr=lr, fused=can_fuse or None, **settings, **more)

    return build


adam = fused(Adam, **_MOMENTS)
amsgrad = fused(Adam, amsgrad=True, **_MOMENTS)
adamw = fused(AdamW, **_MOMENTS)
adamx = fused(AdamX, beta1_decay=1 - 1e-8, **_MOMENTS)
adamx_paper = fused(AdamX, beta1_decay=1 - 1e-8, bias_correction=False, **_MOMENTS)
sgd = fused(SGD, momentum=0.9)

# What --optimizer takes, with what readers see.
BUILDERS = {"adam": adam, "adamw": adamw, "sgd": sgd, "adamx": adamx}
LABELS = {"adam": "Adam", "adamw": "AdamW", "sgd": "SGD", "adamx": "AdamX"}
