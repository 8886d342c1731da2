"""What hangs on the model: hooks that follow its forward passes and collect what their backward passes bring."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from adamcb import _checks
from adamcb.gradnorm import _compat, _from_losses
from adamcb.gradnorm._call import tensors_in
from adamcb.gradnorm._chain import Chain, ChainPass
from adamcb.gradnorm._guard import Guard, Schedule
from adamcb.gradnorm._last_layer import LastPass
from adamcb.gradnorm._owners import Answers
from adamcb.gradnorm._places import Places
from adamcb.gradnorm._record import Check, Record, TracedPass, unavailable
from adamcb.gradnorm._trace import Tracer

# So many passes may belong to one batch.
_MOST_PASSES = 1000


class Watcher:
    """Follows the forward passes of a model.

    The hooks hold the watcher, and the watcher holds neither its engine nor the model: when nobody uses the engine any
    more, it goes at once, and the model stays.

    Args:
        model: The model.
        exact: Whether every operation is followed, or only the last layer found.
        check: Which passes the guard checks: "auto", "always" or "never".
        samples: From the model's inputs to the sample of each of their rows; None if rows are samples.

    Attributes:
        done: The passes that have gone backward.
        passes: How many forward passes were followed.
        is_paused: Whether forward passes are let by.
    """

    def __init__(
        self, model: nn.Module, *, exact: bool, check: str = "auto", samples: Callable[..., Tensor] | None = None
    ) -> None:
        self.done: list[Record] = []
        self._open: list[ChainPass | _Watch | None] = []
        self.passes = 0
        self.is_paused = False
        self._chain, self._places = Chain(), Places()
        self._answers = Answers()
        self._recent: deque[weakref.ref[LastPass]] = deque(maxlen=_MOST_PASSES)
        self._asks = False  # whether losses of recent passes are to be compared with last layers in doubt
        self._asks_all = False  # or with all last layers
        self._model, self._samples = weakref.ref(model), samples
        self._schedule, self._check = Schedule(check), Check()
        self._reopens = False  # whether a check was under way in the state that was loaded
        self._compiled = _compat.is_compiled(model)
        self._retired = False
        leave = _Hook(self._leave if exact else self._leave_last)
        self._handles = [model.register_forward_hook(leave, with_kwargs=True, always_call=exact)]
        if exact:
            self._handles.append(model.register_forward_pre_hook(_Hook(self._enter), with_kwargs=True))

    def judge(self) -> None:
        """End the check that is under way, if there is one.

        Raises:
            RuntimeError: If what was measured is not what autograd computed.
        """
        guard = self._check.guard
        if guard is not None:
            self._reopens = False
            compared, wrong = guard.verdict(self._names)
            self.drop_check()
            if compared:
                self._schedule.report(failed=wrong is not None)
            if wrong is not None:
                raise unavailable(wrong)

    def drop_check(self) -> None:
        """Give up the check that is under way, if there is one."""
        if self._check.guard is not None:
            self._check.guard.close()
            self._check.guard = None

    def state_dict(self) -> dict[str, Any]:
        """Return what decides how the next passes are followed: that decides in which order their parts are summed."""
        is_open = self._reopens or self._check.guard is not None
        return {"schedule": self._schedule.state_dict(), "is_open": is_open, "heavy": self._chain.heavy}

    def load_state_dict(self, state: Any) -> None:
        """Continue from `state`; an error leaves everything as it was."""
        saved = state if isinstance(state, dict) else {}
        self._schedule.check_state(saved.get("schedule"), "state['schedule']")
        is_open = _checks.boolean("state['is_open']", saved.get("is_open"))
        shapes = _checks.sequence("state['heavy']", saved.get("heavy"), "be a list of shapes")
        heavy = [_checks.shape("state['heavy']", shape) for shape in shapes]
        self._schedule.load_state_dict(saved["schedule"])
        self._reopens, self._chain.heavy = is_open, heavy

    def abandon(self) -> None:
        """Give up a forward pass that never came to its end: after a KeyboardInterrupt torch runs no hooks."""
        for mode in reversed(_compat.function_modes()):
            if not isinstance(mode, Tracer) or mode.owner is not self:
                break
            mode.record.error = "the forward pass was broken off."
            mode.__exit__(None, None, None)
        for entry in self._open:
            if isinstance(entry, _Watch):
                entry.release()
        self._open.clear()
        self.drop_check()
        if self._retired:
            self.retire()

    def retire(self) -> None:
        """Take the hooks off the model; not before its forward pass ends, if a tracer is at work."""
        self._retired = True
        if not any(isinstance(entry, _Watch) for entry in self._open):
            self.drop_check()
            for handle in self._handles:
                handle.remove()

    def _enter(self, model: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        if torch.compiler.is_compiling():
            return
        # An open entry means that the model calls itself.
        if self.is_paused or not torch.is_grad_enabled() or any(self._open):
            self._open.append(None)
            return
        for record in self.done:  # let go of what past passes hold
            record.settle()
        _refuse_outer_engine()
        self.passes += 1
        self._consider_check(model, args, kwargs)
        entry = None
        if self._samples is None:
            entry = self._chain.enter(model, args, kwargs, self.passes, self.done.append, self._check)
        self._open.append(self._trace(args, kwargs) if entry is None else entry)

    def _trace(self, args: tuple, kwargs: dict[str, Any]) -> _Watch:
        samples = None if self._samples is None else self._samples(*args, **kwargs)
        record = TracedPass(self.passes, self.done.append, self._check)
        tracer = Tracer(record, self, places=self._places, guard=self._check.guard, names=self._names)
        return _Watch(tracer, (args, kwargs), samples, uncompiled=self._compiled)

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
        if self.is_paused or not torch.is_grad_enabled() or torch.compiler.is_compiling():
            return
        self.passes = index = self.passes + 1
        first = args[0] if args else None
        if type(first) is Tensor and first.dim() and type(output) is Tensor and output.shape[:1] == first.shape[:1]:
            size = first.size(0)
        else:
            size = _count_samples((args, kwargs), output)
        record = LastPass(index, self.done.append, size, self._answers)
        record.watch(output)
        self._recent.append(weakref.ref(record))
        if self._schedule.wants((model.training, *[met.sizes for met in record.met])):
            self._asks = self._asks_all = True
        elif _from_losses.is_doubtful(record):
            self._asks = True

    def compare(self, losses: Tensor, first: int) -> None:
        """Compare the last layers of the passes from number `first` on with what their losses tell, if it is time."""
        if len(self._recent) == 1 and not self._asks:
            return self._recent.clear()
        records = [record for reference in self._recent if (record := reference()) is not None]
        records = [record for record in records if record.index >= first and record.finish is not None]
        asks, everything = self._asks and not self._schedule.is_off, self._asks_all
        self._asks = self._asks_all = False
        self._recent.clear()
        places = _from_losses.places_of(records, len(losses))
        if asks and records and places is not None:
            pairs = zip(records, places, strict=True)
            agreed = [_from_losses.compare(losses, *pair, everything=everything) for pair in pairs]
            self._schedule.report(failed=not all(agreed))

    def _consider_check(self, model: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        reopens, self._reopens = self._reopens, False
        if self._check.guard is not None:
            return
        shapes = (model.training, *(tensor.shape for tensor in tensors_in((args, kwargs) if kwargs else args)))
        if reopens or self._schedule.wants(shapes):
            self._check.guard = guard = Guard(coarse=_compat.autocasting(), weighs=self._schedule.weighs())
            # What is spread over ranks gets its gradient elsewhere; what stands for it is met in the forward pass.
            guard.watch([p for p in model.parameters() if p.requires_grad and type(p) is Parameter])

    def _names(self, leaves: Sequence[Any]) -> str:
        """Return the names of parameters, for messages."""
        model = self._model()
        known = {} if model is None else {id(p): name for name, p in model.named_parameters()}
        names = [f"`{known[id(leaf)]}`" if id(leaf) in known else "a parameter from outside" for leaf in leaves]
        return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def watched_parts(model: nn.Module) -> list[str]:
    """Return the paths of the modules, the model itself among them, that a watcher hangs on."""
    return [
        path or "the model itself"
        for path, module in model.named_modules()
        if any(isinstance(hook, _Hook) for hook in _compat.forward_hooks(module))
    ]


def abandon_interrupted() -> None:
    """Give up forward passes whose tracers an interrupt left at work, in whichever model."""
    for mode in reversed(_compat.function_modes()):
        if isinstance(mode, Tracer):
            mode.owner.abandon()


def _count_samples(inputs: Any, output: Any) -> int:
    """Return how many rows the first result has that has as many as an input; else how many the first input has."""
    sizes = [tensor.size(0) for tensor in tensors_in(inputs) if tensor.dim()]
    made = (tensor.size(0) for tensor in tensors_in(output) if tensor.dim() and tensor.grad_fn is not None)
    return next((size for size in made if size in sizes), sizes[0] if sizes else 0)


def _refuse_outer_engine() -> None:
    if any(isinstance(mode, Tracer) for mode in _compat.function_modes()):
        raise RuntimeError(
            "The model is part of another model that PerSampleNorms measures, or the forward pass of another was "
            "interrupted; call `close()` of one of the two."
        )


class _Watch:
    """A tracer at work, from before the forward pass to its end."""

    def __init__(self, tracer: Tracer, inputs: Any, samples: Tensor | None, *, uncompiled: bool) -> None:
        self._tracer, self._stance = tracer, contextlib.ExitStack()
        if uncompiled:
            self._stance.enter_context(torch.compiler.set_stance("force_eager"))
        tracer.mark_inputs(inputs, samples)
        tracer.__enter__()

    def end(self, output: Any) -> None:
        """Stop watching; look at what the model returned."""
        self._tracer.__exit__(None, None, None)
        self.release()
        self._tracer.finish(output)

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
