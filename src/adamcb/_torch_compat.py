"""The private names of torch that optimizers and training use, each with what happens where torch lacks it.

All hold for torch 2.8 to 2.15. A later torch that drops one costs speed or an option, never a wrong step.
`torch._foreach_*` and `torch._fused_adamw_`, which torch.optim is written with, are called where they are needed. The
names that norms of gradients use are in `gradnorm/_compat.py`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_optimizer: Any = importlib.import_module("torch.optim.optimizer")
_default: Callable[..., tuple[bool, bool]] | None = getattr(_optimizer, "_default_to_fused_or_foreach", None)

with_grad_if_differentiable: Callable[[Any], Any] = getattr(_optimizer, "_use_grad_for_differentiable", torch.no_grad())
"""Decorates `step`: gradients flow through it with `differentiable=True`, and never where torch lacks the name."""

check_fusible: Callable[..., None] = getattr(_optimizer, "_device_dtype_check_for_fused", lambda *_, **__: None)
"""Raises if torch's fused kernels do not take a parameter; where torch lacks the name, they raise when they step."""


def scalar_dtype() -> torch.dtype:
    """Return what torch.optim counts steps in."""
    return torch.float64 if torch.get_default_dtype() == torch.float64 else torch.float32


def can_fuse(params: list[Tensor]) -> bool:
    """Tell whether torch's fused kernels take these parameters; False where torch does not tell."""
    return _default is not None and _default(params, differentiable=False, use_fused=True)[0]


def prefers_lists(params: list[Tensor], *, differentiable: bool) -> bool:
    """Tell whether torch would step all parameters together; False where torch does not tell."""
    return _default is not None and _default(params, differentiable, use_fused=False)[1]


def call_after_backward(callback: Callable[[], None]) -> None:
    """Call back at the end of the backward pass that is under way, unless it fails.

    FSDP relies on this name too. A torch without it raises here, in the first backward pass.
    """
    engine: Any = torch.autograd.Variable._execution_engine  # type: ignore[attr-defined]
    engine.queue_callback(callback)


def without_dynamo(function: Callable[..., Any]) -> Any:
    """Return `function` such that torch.compile leaves it alone."""
    try:
        from torch._compile import _disable_dynamo
    except ImportError:  # this one imports the whole compiler at once
        return torch.compiler.disable(function)
    return _disable_dynamo(function)


def check_graph_capture(optimizer: torch.optim.Optimizer) -> None:
    """Raise if `optimizer` is captured in a graph without `capturable`. Until torch 2.8 it knew of CUDA only."""
    for name in ("_accelerator_graph_capture_health_check", "_cuda_graph_capture_health_check"):
        check = getattr(optimizer, name, None)
        if check is not None:
            check()
            return
