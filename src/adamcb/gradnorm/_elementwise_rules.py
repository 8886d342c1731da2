"""Rules for parameters that are broadcast against the batch, put beside it, or written into it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from adamcb.gradnorm._batch import Batch, only, rows, split
from adamcb.gradnorm._call import Call, Origin, Use, is_in_place, is_parameter, substitute
from adamcb.gradnorm._indexing import picked
from adamcb.gradnorm._parts import Dense, Lookup, accurate


def elementwise(call: Call, *args: Any, **kwargs: Any) -> list[Use] | None:
    """Σ of what the operation passes back at each element, over those that share an entry of the parameter."""
    operands = _tensors(args, kwargs)
    if is_in_place(call.name):
        return None
    return _spread_each(call, operands, lambda target, grad: _passed_back(call, target, operands, grad))


def added(call: Call, *args: Any, **kwargs: Any) -> list[Use] | None:
    """Σ of g over the elements that share an entry of the parameter."""
    if "alpha" in kwargs:
        return elementwise(call, *args, **kwargs)
    return _spread_each(call, _tensors(args, kwargs), lambda target, grad: grad)


def multiplied(call: Call, *args: Any, **kwargs: Any) -> list[Use] | None:
    """Σ of g times the other factor, over the elements that share an entry of the parameter."""
    factors = _tensors(args, kwargs)

    def local(target: Tensor, grad: Tensor) -> Tensor:
        if len(factors) < 2 or grad.is_complex():
            return _passed_back(call, target, factors, grad)
        return accurate(grad) * accurate(factors[factors[0] is target].detach())

    return _spread_each(call, factors, local)


def _tensors(args: tuple, kwargs: dict[str, Any]) -> list[Tensor]:
    return [arg for arg in (*args, *kwargs.values()) if isinstance(arg, Tensor)]


def _spread_each(call: Call, operands: list[Tensor], local: Callable[[Tensor, Tensor], Tensor]) -> list[Use] | None:
    """Return the uses of operands that are made of parameters; None if one of them is given twice.

    Args:
        call: The operation.
        operands: The tensors among its arguments.
        local: From an operand and the gradient of the result to the gradient of the operand, as if every element of
            the result had its own copy.
    """
    targets = [operand for operand in operands if call.parametric(operand)]
    if len({id(target) for target in targets}) < len(targets):
        return None
    return [spread(call, target, lambda grad, target=target: local(target, grad)) for target in targets]


def _passed_back(call: Call, target: Tensor, operands: list[Tensor], grad: Tensor) -> Tensor:
    """Return what autograd passes back to `target` as if every element of the result had its own copy."""
    shape = torch.broadcast_shapes(*(operand.shape for operand in operands))
    with torch.enable_grad():
        leaf = target.detach().expand(shape).requires_grad_()
        swapped = substitute((call.args, call.kwargs), lambda t: leaf if t is target else t.detach())
        return torch.autograd.grad(call.func(*swapped[0], **swapped[1]), leaf, grad)[0]


def spread(call: Call, target: Tensor, local: Callable[[Tensor], Tensor], place: Batch | None = None) -> Use:
    """Return the use of a tensor that was broadcast against the batch: local gradients are summed back.

    A tensor that was expanded to K copies beforehand (a class token) counts as what it was expanded from.

    Args:
        call: The operation.
        target: The parameter, or what was made of parameters.
        local: From the gradient of the result to that of `target` as if it had been expanded.
        place: Where the samples are in local gradients; None if they are where the result has them.
    """
    origin = call.origin(target)
    base = target
    if origin is not None and origin.rows is not None:
        return _spread_rows(call, target, origin.rows, local, place)
    if origin is not None and origin.expanded_from is not None:
        base = origin.expanded_from
        origin = None if is_parameter(base) else Origin(origin.leaves)

    def part(grad: Tensor) -> Dense:
        batch = place or call.out
        gradients = accurate(local(grad))
        at = batch.dim - (gradients.dim() - base.dim())
        if at >= 0 and base.shape[at] > 1:  # the tensor has rows of its own for the samples
            total, mine = gradients.sum_to_size(base.shape), batch._replace(dim=at)
            return Dense(torch.stack([only(total, mine, sample) for sample in range(batch.size)]))
        return Dense(_summed(gradients, batch, base))

    return Use(base, part, origin=origin)


def _summed(gradients: Tensor, batch: Batch, base: Tensor) -> Tensor:
    """Return [K, *base.shape]: local gradients, summed over the dimensions along which `base` was broadcast."""
    parts = split(gradients, batch)
    lead = parts.dim() - base.dim()
    dropped = [dim for dim in range(1, parts.dim()) if dim < lead or base.shape[dim - lead] == 1]
    return (parts.sum(dropped) if dropped else parts).reshape(-1, *base.shape)


def _spread_rows(
    call: Call, target: Tensor, rows_of: tuple[Any, Tensor], local: Callable[[Tensor], Tensor], place: Batch | None
) -> Use:
    """Return the use of rows of a table, read once for all samples or row by row: position embeddings, say."""
    table, index = rows_of

    def part(grad: Tensor) -> Lookup:
        batch = place or call.out
        gradients = accurate(local(grad))
        at = batch.dim - (gradients.dim() - target.dim())
        if at < 0 or target.shape[at] == 1:
            values = _summed(gradients, batch, target)
            indices = index.reshape(1, -1).expand(batch.size, -1)
        else:
            mine = batch._replace(dim=at)
            values = rows(gradients.sum_to_size(target.shape), mine)
            indices = rows(index.unsqueeze(-1), mine).squeeze(-1)
        return Lookup(indices, values.reshape(*indices.shape, -1), table.shape)

    return Use(table, part)


def expand_as(call: Call, input: Tensor, other: Tensor) -> list[Use] | None:
    """Σ of g over the copies."""
    return [spread(call, input, lambda grad: grad)] if call.parametric(input) else None


def cat(call: Call, tensors: Any, dim: int = 0) -> list[Use] | None:
    """The slice of g that a parameter filled."""
    batches = [batch for tensor in tensors if (batch := call.batch(tensor)) is not None]
    dim = dim % tensors[0].dim()
    if not batches or batches[0].dim == dim:
        return None
    uses, start = [], 0
    for tensor in tensors:
        if call.parametric(tensor):
            uses.append(spread(call, tensor, lambda grad, s=start, n=tensor.shape[dim]: grad.narrow(dim, s, n)))
        start += tensor.shape[dim]
    return uses


def setitem(call: Call, tensor: Tensor, index: Any, value: Any) -> list[Use] | None:
    """The entries of g that the parameter was written to."""
    batch = call.batch(tensor)
    if batch is None or not call.parametric(value):
        return []
    seen = tensor.detach()[index]
    reading = Call(call.name, Tensor.__getitem__, (tensor, index), {}, call.marks)
    place = picked(reading, tensor, batch, seen)
    return None if place is None else [spread(call, value, lambda grad: grad[index], place)]


def prelu(call: Call, input: Tensor, weight: Tensor) -> list[Use] | None:
    """Σ g·x over negative inputs, by channel."""
    batch = call.batch(input)
    if batch is None or (batch.dim != 0 and weight.numel() > 1):
        return None

    def part(grad: Tensor) -> Dense:
        parts = split(accurate(grad) * accurate(input.detach()).clamp(max=0), batch)
        if weight.numel() == 1 or input.dim() < 2:
            return Dense(parts.flatten(1).sum(1, keepdim=True))
        return Dense(parts.sum([dim for dim in range(1, parts.dim()) if dim != 2]))

    return [Use(weight, part)]
