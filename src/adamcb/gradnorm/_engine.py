"""`PerSampleNorms`: the norm of each sample's gradient, from the backward pass that training does anyway."""

from __future__ import annotations

import weakref
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from adamcb import _checks
from adamcb.gradnorm._mode import Tracer
from adamcb.gradnorm._record import Pass


class PerSampleNorms:
    """Gives ‖∇ lossⱼ‖ for every sample of a batch after an ordinary `backward()`.

    Args:
        model: The model. Its inputs hold the samples along their first dimension.
        mode: "exact" or "last-layer".
    """

    def __init__(self, model: nn.Module, *, mode: str = "exact") -> None:
        self._mode = _checks.one_of("mode", mode, ("exact", "last-layer"))
        self._tracers: list[Tracer] = []
        self._done: list[Pass] = []
        self._passes = 0
        self._handles = [
            model.register_forward_pre_hook(self._enter, with_kwargs=True),
            model.register_forward_hook(self._leave, with_kwargs=True, always_call=True),
        ]

    def _enter(self, model: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        if torch.is_grad_enabled():
            for record in self._done:
                record.settle()
            tracer = Tracer(Pass(self._passes, self._done.append), exact=self._mode == "exact")
            self._passes += 1
            tracer.mark_inputs((args, kwargs))
            self._tracers.append(tracer)
            tracer.__enter__()

    def _leave(self, model: nn.Module, args: tuple, kwargs: dict[str, Any], output: Any) -> None:
        if self._tracers:
            self._tracers.pop().__exit__(None, None, None)

    def take(self, loss_weights: Any = None) -> Tensor:
        records, self._done = sorted(self._done, key=lambda r: r.index), []
        return torch.cat([r.square_norms() for r in records]).sqrt()

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()
