"""Watches the operations of one forward pass and attaches a rule to each that uses a parameter.

Nothing is left on modules or parameters: rules hang on the graph of this forward pass and go with it.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.nn import Parameter
from torch.overrides import TorchFunctionMode

from adamcb.gradnorm import _fallback, _rules
from adamcb.gradnorm._call import Call, is_parameter, tensors_in
from adamcb.gradnorm._factors import autocasting, without_autocast
from adamcb.gradnorm._layout import MOVING, Batch, follow
from adamcb.gradnorm._opening import OPENINGS
from adamcb.gradnorm._record import Origin, Pass, Use

Grads = tuple[Tensor | None, ...]
Pick = Callable[[Grads], Tensor | None]

_EXPANSIONS = {"expand", "expand_as", "broadcast_to", "repeat"}
_CONVERSIONS = {"to", "type_as"}
_TRANSPOSES = {"t", "T", "mT", "transpose", "permute", "swapaxes", "swapdims"}


class Tracer(TorchFunctionMode):
    """Follows the batch through one forward pass.

    Args:
        record: Where the norms go.
        watcher: Who set the tracer to work.
    """

    def __init__(self, record: Pass, watcher: Any = None) -> None:
        super().__init__()
        self.record, self.watcher = record, watcher
        self._marks: dict[int, tuple[weakref.ref, Any]] = {}
        self._noticed: weakref.WeakSet = weakref.WeakSet()
        self._operations = 0
        self._again = False

    def mark_inputs(self, inputs: Any) -> None:
        """Take the first dimension of every input tensor as its batch."""
        for tensor in tensors_in(inputs):
            if tensor.dim() and not isinstance(tensor, Parameter):
                self.mark(tensor, Batch(0, tensor.shape[0]))

    def mark(self, tensor: Tensor, mark: Any) -> None:
        """Note what is known of a tensor, for as long as it lives."""
        self._marks[id(tensor)] = (weakref.ref(tensor), mark)

    def mark_samples(self, tensor: Tensor, batch: Batch) -> None:
        """Note where an operation's convention puts the samples; what is made of parameters alone holds none."""
        if type(self.mark_of(tensor)) is not Origin:
            self.mark(tensor, batch)

    def mark_of(self, tensor: Tensor) -> Any:
        """Return a `Batch`, an `Origin` or None."""
        found = self._marks.get(id(tensor))
        if found is not None and found[0]() is tensor:
            return found[1]
        if is_parameter(tensor):
            leaf: Any = tensor
            return Origin((leaf,)) if tensor.requires_grad else None
        return None

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        name = func.__name__
        if name == "__get__":
            name = func.__self__.__name__
        elif name in OPENINGS:
            with self:
                return OPENINGS[name](self.mark_samples, func, *args, **kwargs)
        marks, samples, made = {}, False, False
        for tensor in tensors_in((args, kwargs) if kwargs else args):
            mark = self.mark_of(tensor)
            if mark is not None:
                marks[id(tensor)] = mark
                samples |= type(mark) is Batch
                made |= type(mark) is Origin
            if tensor.requires_grad:
                self.notice(tensor)
        if samples and made and name in _CONVERSIONS:
            samples = type(marks.get(id(args[0]))) is Batch  # the other argument says what kind, and no more
            made = not samples
        if samples and made:
            return self._meet(Call(name, func, args, kwargs, marks))
        out = func(*args, **kwargs)
        if marks and isinstance(out, (Tensor, tuple, list)):
            call = Call(name, func, args, kwargs, marks)
            self._mark_results(call, out) if samples else self._mark_made(call, out)
        return out

    def notice(self, tensor: Tensor) -> None:
        """Look for what a mode cannot see: the nodes of custom functions, reentrant checkpoints among them."""
        node = tensor.grad_fn
        if not isinstance(node, BackwardCFunction) or type(node) is _TAP or node in self._noticed:
            return
        self._noticed.add(node)
        if type(node).__name__ == "CheckpointFunctionBackward":
            inputs = [(saved, self.mark_of(saved)) for saved in node.saved_tensors]
            node.register_prehook(functools.partial(self._reenter, inputs))
            node.register_hook(self._exit)
        else:
            self._meet_custom(node, tensor)

    def _reenter(self, inputs: list[tuple[Tensor, Any]], grads: Any) -> None:
        """Watch the forward pass that a checkpoint runs again inside the backward pass."""
        for tensor, mark in inputs:
            if mark is not None:
                self.mark(tensor, mark)
        self._again = True
        self.__enter__()

    def _exit(self, grads: Any, more: Any) -> None:
        self.__exit__(None, None, None)
        self._again = False

    def _mark_results(self, call: Call, out: Any) -> None:
        """Say where the samples are in the results of an operation on the batch."""
        if isinstance(out, Tensor) and call.args and call.name not in MOVING:
            # By far the most common case: the samples in front of the first argument, and a result like it.
            first, batch = call.args[0], call.batch(call.args[0])
            alone = len(call.marks) == 1 or (batch is not None and batch.sure)
            if alone and batch is not None and batch.dim == 0 and out.shape[:1] == first.shape[:1]:
                if out.dim() == first.dim():
                    self._marks[id(out)] = (weakref.ref(out), batch)
                    return
        sources = [(t, found) for t in tensors_in((call.args, call.kwargs)) if (found := call.batch(t)) is not None]
        # What an operation knew for certain goes first, then the argument that spans the result's dimensions.
        sources.sort(key=lambda pair: (pair[1].dim < 0, not pair[1].sure, -pair[0].dim()))
        for result in tensors_in(out):
            marks = (follow(call.name, call.func, call.args, call.kwargs, *pair, result) for pair in sources)
            self.mark(result, next((mark for mark in marks if mark.dim >= 0), Batch(-1, sources[0][1].size)))

    def _mark_made(self, call: Call, out: Any) -> None:
        """Remember that a tensor was made of parameters alone."""
        leaves = call.leaves()
        source: Any = call.args[0] if call.args else None
        for result in tensors_in(out):
            if result.requires_grad and not isinstance(result, Parameter):
                swapped = call.name in _TRANSPOSES and isinstance(source, Parameter) and source.dim() == 2
                swapped = swapped and result.stride() != source.stride()
                expanded = call.name in _EXPANSIONS and _broadcasts(source, result)
                self.mark(result, Origin(leaves, source if swapped else None, source if expanded else None))

    def _meet(self, call: Call) -> Any:
        """Run an operation in which parameters meet the batch, with its rule attached."""
        if not self._again:  # a checkpoint's second run uses nothing that its first has not
            self.record.count(call.leaves())
        uses = _rules.uses_of(call) if torch.is_grad_enabled() else []
        forming = [use for use in uses if use.forms]
        out = self._run(call, forming) if forming else call.func(*call.args, **call.kwargs)
        self._mark_results(call, out)
        if uses:
            call.out = self.mark_of(out)
            self._attach(call, [use for use in uses if not use.forms], out)
        return out

    def _meet_custom(self, node: Any, out: Tensor) -> None:
        """Attach the fallback to the result of a custom autograd function that has parameters among its inputs."""
        places = [(place, getattr(edge[0], "variable", None)) for place, edge in enumerate(node.next_functions)]
        places = [(place, leaf) for place, leaf in places if isinstance(leaf, Parameter)]
        if places:
            call = Call(type(node).__name__, node, (), {}, {})
            mark = self.mark_of(out)
            call.out = mark if isinstance(mark, Batch) else call.out
            self.record.count([leaf for _, leaf in places])
            uses = [_fallback.custom_use(call, weakref.ref(node), place, leaf) for place, leaf in places]
            self._attach(call, uses, out, custom=True)

    def _run(self, call: Call, forming: list[Use]) -> Any:
        """Run the operation with the parameters detached whose gradients will be supplied, so that autograd skips them.

        A convolution's bias has to go with its weight: autograd computes both to get one.
        """
        swap = {id(use.tensor): use.tensor.detach() for use in forming}
        args = [swap.get(id(arg), arg) for arg in call.args]
        kwargs = {key: swap.get(id(arg), arg) for key, arg in call.kwargs.items()}
        self._operations += 1
        supply = functools.partial(self._supply, forming, self._operations)
        saved = [tensor for use in forming for tensor in use.saved]
        return _Tap.apply(call.func(*args, **kwargs), supply, saved, *(use.tensor for use in forming))

    def _attach(self, call: Call, uses: list[Use], out: Any, *, custom: bool = False) -> None:
        if not isinstance(out, Tensor) or call.out.dim < 0:
            shapes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors_in(out))
            raise NotImplementedError(
                f"`{call.name}` meets parameters where the samples cannot be told apart: its result {shapes} "
                "does not show which sample its numbers belong to."
            )
        if uses:
            whole = _whole(call, out) if out._is_view() and not custom else out
            pick = operator.itemgetter(out.output_nr) if whole is out else _picker(whole, out)
            self._operations += 1
            # Before the node runs, and so after whatever hooks the user puts on the result.
            node: Any = whole.grad_fn
            node.register_prehook(functools.partial(self._observe, uses, self._operations, pick, custom))

    def _observe(self, uses: list[Use], operation: int, pick: Pick, custom: bool, grads: Grads) -> None:
        grad = pick(grads)
        if grad is None:
            return
        self.record.begin(operation)
        if torch.is_grad_enabled() or autocasting():  # create_graph=True, or a backward pass inside autocast
            # The backward of a custom function finds autocast as autograd leaves it.
            with torch.no_grad(), contextlib.nullcontext() if custom else without_autocast():
                self.record.observe(uses, grad)
        else:
            self.record.observe(uses, grad)
        uses.clear()  # autograd lets go of what it saved at this point; so do the rules

    def _supply(self, uses: list[Use], operation: int, grad: Tensor) -> list[Tensor]:
        self.record.begin(operation)
        with without_autocast() if autocasting() else contextlib.nullcontext():
            supplied = [self.record.supply(use, grad) for use in uses]
        uses.clear()
        return supplied


def _whole(call: Call, out: Tensor) -> Tensor:
    """Return the tensor whose node stays where it is when an operation in place follows.

    Some operations return a view of what they compute: a dense layer on sequences, `einsum`. After an operation in
    place autograd makes the node of a view anew, but not the one that its base had.
    """
    base: Any = out._base
    arguments = tensors_in((call.args, call.kwargs))
    in_place = any(argument is out for argument in arguments)
    new = not any(argument is base or argument._base is base for argument in arguments)
    # Not for what repeats numbers, which nobody can change in place, nor for complex numbers seen as pairs.
    return base if (new or in_place) and out.dtype == base.dtype and out.numel() <= base.numel() else out


def _picker(base: Tensor, out: Tensor) -> Pick:
    """Return a function from the gradients that arrive at the node of `base` to the gradient of `out`, its view."""
    place, shape, strides = base.output_nr, base.shape, base.stride()
    view = out.shape, out.stride()
    start = out.storage_offset() - base.storage_offset()

    def pick(grads: Grads) -> Tensor | None:
        grad = grads[place]
        if grad is not None and grad.stride() != strides:
            grad = grad.new_empty_strided(shape, strides).copy_(grad)
        return None if grad is None else grad.as_strided(*view, grad.storage_offset() + start)

    return pick


class _Tap(torch.autograd.Function):
    """The identity on the result of an operation whose parameters were detached; supplies their gradients."""

    @staticmethod
    def forward(ctx: Any, result: Tensor, supply: Any, saved: list[Tensor], *parameters: Tensor) -> Tensor:
        ctx.supply = supply
        ctx.save_for_backward(*saved)  # the rules hold them too; saved so that autograd notices a change in place
        return result.data  # not a view for autograd, so that an activation may work on it in place

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        if torch.is_grad_enabled():
            raise RuntimeError("create_graph=True is not supported while PerSampleNorms is attached; close it first.")
        _ = ctx.saved_tensors
        return grads[0], None, None, *ctx.supply(grads[0])


_TAP = _Tap._backward_cls  # type: ignore[attr-defined]


def _broadcasts(source: Any, result: Tensor) -> bool:
    """Tell whether `result` only repeats `source` along dimensions of size one."""
    if not isinstance(source, Tensor):
        return False
    pairs = zip(reversed(source.shape), reversed(result.shape), strict=False)
    return all(size in (1, full) for size, full in pairs)
