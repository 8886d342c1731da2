"""The graph that autograd builds: which node sees an operation's gradient, and how gradients are put in."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Parameter

from adamcb.gradnorm import _compat
from adamcb.gradnorm._call import Call, substitute, tensors_in, trains

Pick = Callable[[tuple], "Tensor | None"]
"""From the gradients that arrive at a node to that of one tensor."""


def node_of(call: Call, out: Tensor, *, custom: bool = False) -> tuple[Any, Pick]:
    """Return the node at which the gradient of an operation's result arrives, and how to pick it there.

    Some operations return a view of what they compute: a dense layer on sequences, `einsum`. After an operation in
    place autograd makes the node of a view anew, but not the one that its base had.
    """
    base = None if custom else _compat.base_of(out)
    if base is None or not _stays(call, out, base):
        return out.grad_fn, operator.itemgetter(out.output_nr)
    return base.grad_fn, _picker(base, out)


def _stays(call: Call, out: Tensor, base: Tensor) -> bool:
    """Tell whether the node of `base` is the one that will see the gradient."""
    arguments = tensors_in((call.args, call.kwargs))
    in_place = any(argument is out for argument in arguments)
    new = not any(argument is base or _compat.base_of(argument) is base for argument in arguments)
    # Not for what repeats numbers, which nobody can change in place, nor for complex numbers seen as pairs.
    return (new or in_place) and out.dtype == base.dtype and out.numel() <= base.numel()


def _picker(base: Tensor, out: Tensor) -> Pick:
    """Return a function from the gradients that arrive at the node of `base` to the gradient of `out`, its view."""
    place, shape, strides = base.output_nr, base.shape, base.stride()
    view = out.shape, out.stride()
    start = out.storage_offset() - base.storage_offset()

    def pick(grads: tuple) -> Tensor | None:
        grad = grads[place]
        if grad is not None and grad.stride() != strides:
            grad = grad.new_empty_strided(shape, strides).copy_(grad)
        return None if grad is None else grad.as_strided(*view, grad.storage_offset() + start)

    return pick


def leaves_behind(node: Any) -> tuple[Parameter, ...]:
    """Return the trainable parameters that a node's graph leads to."""
    found, seen, waiting = {}, {node}, [node]
    while waiting:
        node = waiting.pop()
        leaf = getattr(node, "variable", None)
        if trains(leaf):
            found[id(leaf)] = leaf
        for child, _ in node.next_functions:
            if child is not None and child not in seen:
                seen.add(child)
                waiting.append(child)
    return tuple(found.values())


class _Tap(torch.autograd.Function):
    """The identity on the result of an operation whose parameters were detached; supplies their gradients.

    With create_graph=True the operation runs again with the parameters, and the way through its first run is closed:
    it would lead past them.
    """

    @staticmethod
    def forward(ctx: Any, result: Tensor, supply: Any, saved: list[Tensor], again: Again, *operands: Tensor) -> Tensor:
        ctx.supply, ctx.again = supply, again
        # What the rules do not read, autograd need not keep: it may be changed in place.
        ctx.places = [next((i for i, each in enumerate(saved) if each is operand), None) for operand in again.operands]
        ctx.others = [operand if at is None else None for operand, at in zip(again.operands, ctx.places, strict=True)]
        again.operands.clear()
        ctx.save_for_backward(*saved)
        return result.data  # not a view for autograd, so that an activation may work on it in place

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        saved = ctx.saved_tensors
        supplied = dict(zip(ctx.again.supplied, ctx.supply(grads[0], saved), strict=True))
        if torch.is_grad_enabled():
            pairs = zip(ctx.others, ctx.places, strict=True)
            operands = [other if at is None else saved[at] for other, at in pairs]
            return None, None, None, None, *_differentiated(ctx.again.run, operands, grads[0])
        return grads[0], None, None, None, *(supplied.get(place) for place in range(len(ctx.places)))


class Again:
    """How to run an operation once more: with which tensors, and which of them get gradients from their rules."""

    def __init__(self, func: Callable, args: tuple, kwargs: dict, supplied: Sequence[Tensor]) -> None:
        self.operands = list({id(tensor): tensor for tensor in tensors_in((args, kwargs))}.values())
        places = {id(tensor): place for place, tensor in enumerate(self.operands)}
        self._func, self._arguments = func, substitute((args, kwargs), lambda tensor: _Slot(places[id(tensor)]))
        # In the order in which their gradients come.
        self.supplied = [places[id(tensor)] for tensor in supplied]

    def run(self, *operands: Tensor) -> Tensor:
        """Run the operation."""
        args, kwargs = _filled(self._arguments, operands)
        return self._func(*args, **kwargs)


class _Slot:
    """Stands for a tensor among arguments."""

    def __init__(self, place: int) -> None:
        self.place = place


def _filled(value: Any, tensors: Sequence[Tensor]) -> Any:
    if isinstance(value, _Slot):
        return tensors[value.place]
    if isinstance(value, dict):
        return {key: _filled(item, tensors) for key, item in value.items()}
    return type(value)(_filled(item, tensors) for item in value) if type(value) in (tuple, list) else value


def _differentiated(run: Callable, operands: Sequence[Tensor | None], grad: Tensor) -> list[Tensor | None]:
    """Return the gradients of an operation's operands so that they have gradients themselves.

    Aliases stand for the operands: hooks on those belong to the backward pass that goes on from here.
    """
    aliases = [t.view_as(t) if t is not None and t.requires_grad else t for t in operands]
    wanted = [t for t in aliases if t is not None and t.requires_grad]
    found = iter(torch.autograd.grad(run(*aliases), wanted, grad, create_graph=True, allow_unused=True))
    return [next(found) if t is not None and t.requires_grad else None for t in aliases]


class _Dense(torch.autograd.Function):
    """A dense layer that supplies the gradients of its parameters: one node instead of four."""

    @staticmethod
    def forward(ctx: Any, supply: Any, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.supply, ctx.bias = supply, bias
        ctx.save_for_backward(input, weight)
        return F.linear(input, weight, bias).data

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        # Losses of tokens leave the gradient in another order: brought into this one once, not in every product.
        grad, (input, weight) = grads[0].contiguous(), ctx.saved_tensors
        if torch.is_grad_enabled():
            ctx.supply(grad, (input,))
            return None, *_differentiated(F.linear, (input, weight, ctx.bias), grad)
        passed = torch.matmul(grad, weight) if ctx.needs_input_grad[1] else None
        return None, passed, *ctx.supply(grad, (input,)), *([None] if not ctx.needs_input_grad[3] else [])


class _LayerNorm(torch.autograd.Function):
    """A layer norm that supplies the gradients of its parameters."""

    @staticmethod
    def forward(ctx: Any, supply: Any, input: Tensor, weight: Tensor, bias: Tensor, shape: Any, eps: float) -> Tensor:
        result, mean, scale = torch.native_layer_norm(input, shape, weight, bias, eps)
        ctx.supply, ctx.shape, ctx.eps = supply, shape, eps
        ctx.save_for_backward(input, mean, scale, weight, bias)
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        input, mean, scale, weight, bias = ctx.saved_tensors
        if torch.is_grad_enabled():
            with torch.no_grad():
                ctx.supply(grads[0], ((input - mean).mul_(scale),))
            run = functools.partial(_norm, ctx.shape, ctx.eps)
            return None, *_differentiated(run, (input, weight, bias), grads[0]), None, None
        passed = None
        if ctx.needs_input_grad[1]:
            wanted = [True, False, False]
            passed = torch.ops.aten.native_layer_norm_backward(
                grads[0], input, ctx.shape, mean, scale, weight, bias, wanted
            )[0]
        normalized = (input - mean).mul_(scale)
        return None, passed, *ctx.supply(grads[0], (normalized,)), None, None


def _norm(shape: Any, eps: float, input: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(input, shape, weight, bias, eps)


def refuse_graph() -> None:
    """Raise inside a backward pass that is itself recorded."""
    if torch.is_grad_enabled():
        raise RuntimeError(
            "create_graph=True is not supported while PerSampleNorms measures an LSTM by exact norms; use "
            'mode="last-layer", or close it first.'
        )


def supply_gradients(result: Tensor, supply: Callable, saved: list[Tensor], again: Again) -> Tensor:
    """Return `result`, through which supply(grad, saved) gives the parameters their gradients."""
    tapped: Any = _Tap.apply(result, supply, saved, again, *again.operands)
    return tapped


def dense(supply: Callable, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return what `linear` does; supply(grad, (input,)) gives the parameters their gradients."""
    result: Any = _Dense.apply(supply, input, weight, bias)
    return result


def layer_norm(supply: Callable, input: Tensor, weight: Tensor, bias: Tensor, shape: Any, eps: float) -> Tensor:
    """Return what `layer_norm` does; supply(grad, (normalized,)) gives the parameters their gradients."""
    result: Any = _LayerNorm.apply(supply, input, weight, bias, tuple(shape), eps)
    return result


_SUPPLIERS = {"_TapBackward", "_DenseBackward", "_LayerNormBackward", "_ScanBackward"}


def supplies(node: Any) -> bool:
    """Tell whether a node is one of those that supply gradients."""
    return type(node).__name__ in _SUPPLIERS
