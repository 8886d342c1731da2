"""What hangs on the model: hooks that follow its forward passes and collect what their backward passes bring."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode, _get_current_function_mode_stack

from adamcb.gradnorm._call import tensors_in
from adamcb.gradnorm._chain import Chain, ChainPass
from adamcb.gradnorm._last import LastPass
from adamcb.gradnorm._mode import Tracer
from adamcb.gradnorm._record import Pass


class Watcher:
    """Follows the forward passes of a model.

    The hooks hold the watcher, and the watcher does not know its engine: one that nobody uses any more can go while
    the model stays.

    Args:
        model: The model.
        exact: Whether every operation is followed, or only the last layer found.

    Attributes:
        done: The passes that have gone backward.
        passes: How many forward passes were followed.
    """

    def __init__(self, model: nn.Module, *, exact: bool) -> None:
        self.done: list[Pass | ChainPass | LastPass] = []
        self._open: list[ChainPass | _Watch | None] = []
        self.passes = 0
        self._chain = Chain()
        self._compiled = hasattr(model, "_orig_mod")
        self._retired = False
        leave = _Hook(self._leave if exact else self._leave_last)
        self._handles = [model.register_forward_hook(leave, with_kwargs=True, always_call=True)]
        if exact:
            self._handles.append(model.register_forward_pre_hook(_Hook(self._enter), with_kwargs=True))

    def abandon(self) -> None:
        """Give up a forward pass that never came to its end: after a KeyboardInterrupt torch runs no hooks."""
        while isinstance(mode := _get_current_function_mode(), Tracer) and mode.watcher is self:
            mode.record.error = "the forward pass was broken off."
            mode.__exit__(None, None, None)
        for entry in self._open:
            if isinstance(entry, _Watch):
                entry.release()
        self._open.clear()
        if self._retired:
            self.retire()

    def retire(self) -> None:
        """Take the hooks off the model; not before its forward pass ends, if a tracer is at work."""
        self._retired = True
        if not any(isinstance(entry, _Watch) for entry in self._open):
            for handle in self._handles:
                handle.remove()

    def _enter(self, model: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        if torch.compiler.is_compiling():
            return
        # An open entry means that the model calls itself.
        if not torch.is_grad_enabled() or any(self._open):
            self._open.append(None)
            return
        for record in self.done:  # let go of what past passes hold
            record.settle()
        if torch._C._len_torch_function_stack():
            _refuse_outer_engine()
        self.passes += 1
        entry = self._chain.enter(model, args, kwargs, self.passes, self.done.append)
        if entry is None:
            tracer = Tracer(Pass(self.passes, self.done.append), watcher=self)
            entry = _Watch(tracer, (args, kwargs), uncompiled=self._compiled)
        self._open.append(entry)

    def _leave(self, model: nn.Module, args: tuple, kwargs: dict[str, Any], output: Any) -> None:
        entry = self._open.pop() if self._open and not torch.compiler.is_compiling() else None
        if isinstance(entry, ChainPass):
            if isinstance(output, Tensor):
                entry.watch(output)
        elif entry is not None:
            entry.end(output)
            if self._retired:
                self.retire()

    def _leave_last(self, model: nn.Module, args: tuple, kwargs: dict[str, Any], output: Any) -> None:
        if not torch.is_grad_enabled() or torch.compiler.is_compiling():
            return
        self.passes += 1
        size = next((tensor.size(0) for tensor in tensors_in((args, kwargs) if kwargs else args) if tensor.dim()), 0)
        LastPass(self.passes, self.done.append, size).watch(tensors_in(output))


def watched_parts(model: nn.Module) -> list[str]:
    """Return the paths of the modules, the model itself among them, that a watcher hangs on."""
    return [
        path or "the model itself"
        for path, module in model.named_modules()
        if any(isinstance(hook, _Hook) for hook in module._forward_hooks.values())
    ]


def abandon_interrupted() -> None:
    """Give up forward passes whose tracers an interrupt left at work, in whichever model."""
    for mode in reversed(_get_current_function_mode_stack()):
        if isinstance(mode, Tracer):
            mode.watcher.abandon()


def _refuse_outer_engine() -> None:
    if any(isinstance(mode, Tracer) for mode in _get_current_function_mode_stack()):
        raise RuntimeError(
            "The model is part of another model that PerSampleNorms measures, or the forward pass of another was "
            "interrupted; call `close()` of one of the two."
        )


class _Watch:
    """A tracer at work, from before the forward pass to its end."""

    def __init__(self, tracer: Tracer, inputs: Any, *, uncompiled: bool) -> None:
        self._tracer, self._stance = tracer, contextlib.ExitStack()
        if uncompiled:
            self._stance.enter_context(torch.compiler.set_stance("force_eager"))
        tracer.mark_inputs(inputs)
        tracer.__enter__()

    def end(self, output: Any) -> None:
        """Stop watching; look at what the model returned."""
        self._tracer.__exit__(None, None, None)
        self.release()
        for tensor in tensors_in(output):
            self._tracer.notice(tensor)

    def release(self) -> None:
        """Let the model run compiled again."""
        self._stance.close()


class _Hook(functools.partial):
    """A forward hook that stays behind when the model is copied or pickled."""

    def __reduce__(self) -> tuple:
        return _left_behind, ()


def _left_behind() -> Callable[..., None]:
    return _nothing


def _nothing(*args: Any) -> None:
    """Stand in a copied model for the hooks of an engine that stayed with the original."""
