"""From operation to rule: what each use of a parameter adds to every sample's gradient.

A rule is a function with the operation's own signature behind a `Call`. It returns a `Use` for each argument that may
be a parameter: the argument, and a function from the gradient of the result to a part (`Dense`, `Outer`, `Lookup`).
It returns None where it does not apply; then, as for operations without a rule, `_fallback` computes the same numbers
slowly. To add a rule: write the function and enter it in RULES at the end of this file.

BatchNorm in training ties the samples of a batch together: there, as everywhere, a sample's gradient is its own
contribution to the gradient of the batch, the slice of the product that the backward pass sums over samples.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from adamcb.gradnorm import _fallback
from adamcb.gradnorm._call import Call, is_parameter
from adamcb.gradnorm._conv import convolution, transposed_convolution
from adamcb.gradnorm._factors import Dense, Lookup, Outer, accurate
from adamcb.gradnorm._layout import ELEMENTWISE, Batch, split
from adamcb.gradnorm._record import Origin, Use

Rule = Callable[..., "list[Use] | None"]


def uses_of(call: Call) -> list[Use]:
    """Return the uses of parameters in one operation, by its rule or by the fallback."""
    rule = RULES.get(call.name)
    uses = rule(call, *call.args, **call.kwargs) if rule is not None else None
    if uses is None:
        uses = _fallback.uses(call)
    kept = [use for use in uses if call.parametric(use.tensor) or use.origin is not None or _trains(use.tensor)]
    for use in kept:
        use.origin = use.origin or call.origin(use.tensor)
    return kept


def _trains(tensor: Any) -> bool:
    return is_parameter(tensor) and tensor.requires_grad


def linear(call: Call, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> list[Use] | None:
    """Σₜ gₜ ⊗ xₜ."""
    batch = call.batch(input)
    if batch is None or batch.dim == input.dim() - 1:
        return None

    def part(grad: Tensor) -> Outer:
        return Outer(call.rows(grad).unsqueeze(1), call.rows(input, batch).unsqueeze(1), weight.shape)

    positions = input.numel() // max(1, input.shape[-1] * batch.size)
    forms = Outer.prefers_forming(positions, *weight.shape) and call.may_form(weight)
    if not forms and _trains(weight) and _trains(bias):
        return [Use(weight, part, bias=bias)]
    uses = [Use(weight, part, forms=forms, saved=(input,))]
    if bias is not None:
        forms = forms and call.may_form(bias)
        uses.append(Use(bias, lambda grad: Dense(_sum_rows(call.rows(grad))), forms=forms))
    return uses


def _sum_rows(rows: Tensor) -> Tensor:
    return rows.squeeze(1) if rows.shape[1] == 1 else accurate(rows).sum(1)


def matmul(call: Call, input: Tensor, other: Tensor) -> list[Use] | None:
    """Σₜ xₜ ⊗ gₜ for a matrix on the right."""
    batch = call.batch(input)
    if batch is None or batch.dim == input.dim() - 1 or other.dim() != 2:
        return None

    def part(grad: Tensor) -> Outer:
        return Outer(call.rows(input, batch).unsqueeze(1), call.rows(grad).unsqueeze(1), other.shape)

    return [Use(other, part)]


def embedding(
    call: Call,
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> list[Use] | None:
    """Row xₜ gets gₜ."""
    batch = call.batch(input)
    if batch is None:
        return None

    def part(grad: Tensor) -> Lookup:
        indices = call.rows(input.unsqueeze(-1), batch).squeeze(-1)
        values = accurate(call.rows(grad))
        if scale_grad_by_freq:
            values = values / torch.bincount(indices.flatten())[indices].unsqueeze(-1)
        if padding_idx is not None:
            values = values * (indices != padding_idx % weight.shape[0]).unsqueeze(-1)
        return Lookup(indices, values, weight.shape)

    return [Use(weight, part)]


def embedding_bag(
    call: Call,
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> list[Use] | None:
    """Row xₜ gets its share of the gradient of its bag; the greatest of a bag (mode "max") is left to the fallback."""
    if input.is_floating_point() or mode == "max" or scale_grad_by_freq or call.parametric(per_sample_weights):
        return None

    def part(grad: Tensor) -> Lookup:
        shares = torch.ones(input.shape, dtype=grad.dtype) if per_sample_weights is None else per_sample_weights
        indices, shares = _bags(input, shares.detach(), offsets, len(grad))
        if padding_idx is not None:
            shares = shares * (indices != padding_idx % weight.shape[0])
        if mode == "mean":
            shares = shares / shares.sum(1, keepdim=True).clamp(min=1)
        return Lookup(indices, shares.unsqueeze(2) * accurate(grad).unsqueeze(1), weight.shape)

    return [Use(weight, part)]


def _bags(input: Tensor, shares: Tensor, offsets: Tensor | None, bags: int) -> tuple[Tensor, Tensor]:
    """Return indices and shares as [bags, longest], filled up with shares of zero."""
    if offsets is None:
        return input, shares
    places = torch.arange(len(input), device=input.device)
    bag = torch.searchsorted(offsets[:bags].contiguous(), places, right=True) - 1
    within = places - offsets[bag]
    longest = int(within.max()) + 1 if len(within) else 0
    indices, padded = input.new_zeros(bags, longest), shares.new_zeros(bags, longest)
    indices[bag, within], padded[bag, within] = input, shares
    return indices, padded


def layer_norm(
    call: Call,
    input: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> list[Use] | None:
    """Σₜ gₜ x̂ₜ and Σₜ gₜ."""
    width = len(normalized_shape)
    return _affine(call, input, weight, bias, lambda x: F.layer_norm(x, normalized_shape, eps=eps), width)


def rms_norm(
    call: Call, input: Tensor, normalized_shape: Any, weight: Tensor | None = None, eps: float | None = None
) -> list[Use] | None:
    """Σₜ gₜ x̂ₜ."""
    width = len(normalized_shape)
    return _affine(call, input, weight, None, lambda x: F.rms_norm(x, normalized_shape, eps=eps), width)


def group_norm(
    call: Call,
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> list[Use] | None:
    """Σₜ gₜ x̂ₜ and Σₜ gₜ, by channel."""
    return _affine(call, input, weight, bias, lambda x: F.group_norm(x, num_groups, eps=eps), None)


def instance_norm(
    call: Call,
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> list[Use] | None:
    """Σₜ gₜ x̂ₜ and Σₜ gₜ, by channel."""
    if use_input_stats:
        return _affine(call, input, weight, bias, lambda x: F.instance_norm(x, eps=eps), None)
    mean, var = running_mean, running_var
    return _affine(call, input, weight, bias, lambda x: F.batch_norm(x, mean, var, eps=eps), None)


def batch_norm(
    call: Call,
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> list[Use] | None:
    """Σₜ gₜ x̂ₜ and Σₜ gₜ, by channel; x̂ from the batch in training, from the running averages in evaluation."""
    mean, var = (None, None) if training else (running_mean, running_var)
    return _affine(call, input, weight, bias, lambda x: F.batch_norm(x, mean, var, training=training, eps=eps), None)


def _affine(
    call: Call,
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    normalize: Callable[[Tensor], Tensor],
    width: int | None,
) -> list[Use] | None:
    """Return the uses of y = weight · normalize(x) + bias over the last `width` dimensions, or over channels."""
    batch = call.batch(input)
    if batch is None or (batch.dim != 0 if width is None else batch.dim >= input.dim() - width):
        return None

    def reduce(product: Tensor) -> Dense:
        parts = split(accurate(product), call.out)
        kept = {2} if width is None else set(range(parts.dim() - width, parts.dim()))
        dropped = [dim for dim in range(1, parts.dim()) if dim not in kept]
        return Dense(parts.sum(dropped) if dropped else parts)

    uses = []
    if weight is not None:
        uses.append(Use(weight, lambda grad: reduce(accurate(grad) * normalize(accurate(input.detach())))))
    if bias is not None:
        uses.append(Use(bias, reduce))
    return uses


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


def elementwise(call: Call, *args: Any, **kwargs: Any) -> list[Use] | None:
    """Σ of what the operation passes back at each element, over those that share an entry of the parameter."""
    operands = [arg for arg in (*args, *kwargs.values()) if isinstance(arg, Tensor)]
    targets = [operand for operand in operands if call.parametric(operand)]
    if call.name.endswith("_") and call.name not in _SUMS or len({id(t) for t in targets}) < len(targets):
        return None
    shapes = [operand.shape for operand in operands]
    return [spread(call, t, lambda grad, t=t: _local(call, t, shapes, grad)) for t in targets]


_SUMS = {"add", "__add__", "__radd__", "__iadd__", "add_"}


def _local(call: Call, target: Tensor, shapes: list[torch.Size], grad: Tensor) -> Tensor:
    """Return the gradient of `target` as if every element of the result had its own copy."""
    if call.name in _SUMS and "alpha" not in call.kwargs:
        return grad
    shape = torch.broadcast_shapes(*shapes)
    with torch.enable_grad():
        leaf = target.detach().expand(shape).requires_grad_()
        swapped = _fallback.substitute((call.args, call.kwargs), lambda t: leaf if t is target else t.detach())
        return torch.autograd.grad(call.func(*swapped[0], **swapped[1]), leaf, grad)[0]


def spread(call: Call, target: Tensor, local: Callable[[Tensor], Tensor]) -> Use:
    """Return the use of a tensor that was broadcast against the batch: local gradients are summed back.

    A tensor that was expanded to K copies beforehand (a class token) counts as what it was expanded from.
    """
    origin = call.origin(target)
    base = target
    if origin is not None and origin.expanded_from is not None:
        base = origin.expanded_from
        origin = None if is_parameter(base) else Origin(origin.leaves)

    def part(grad: Tensor) -> Dense:
        gradients = accurate(local(grad))
        at = call.out.dim - (gradients.dim() - base.dim())
        if at >= 0 and base.shape[at] > 1:  # the tensor has rows of its own for the samples
            return Dense(_own_rows(gradients.sum_to_size(base.shape), call.out._replace(dim=at)))
        parts = split(gradients, call.out)
        lead = parts.dim() - base.dim()
        dropped = [dim for dim in range(1, parts.dim()) if dim < lead or base.shape[dim - lead] == 1]
        return Dense((parts.sum(dropped) if dropped else parts).reshape(-1, *base.shape))

    return Use(base, part, origin=origin)


def _own_rows(gradient: Tensor, batch: Batch) -> Tensor:
    """Return [K, ...]: the gradient with all rows but the sample's set to zero."""
    alone = gradient.new_zeros(batch.size, *gradient.shape)
    for sample in range(batch.size):
        split(alone[sample], batch)[sample] = split(gradient, batch)[sample]
    return alone


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


RULES: dict[str, Rule] = {
    "linear": linear,
    "matmul": matmul,
    "__matmul__": matmul,
    "mm": matmul,
    "conv1d": convolution,
    "conv2d": convolution,
    "conv3d": convolution,
    "conv_transpose1d": transposed_convolution,
    "conv_transpose2d": transposed_convolution,
    "conv_transpose3d": transposed_convolution,
    "embedding": embedding,
    "embedding_bag": embedding_bag,
    "layer_norm": layer_norm,
    "rms_norm": rms_norm,
    "group_norm": group_norm,
    "instance_norm": instance_norm,
    "batch_norm": batch_norm,
    "prelu": prelu,
    "cat": cat,
    "expand_as": expand_as,
    **dict.fromkeys(ELEMENTWISE, elementwise),
}
