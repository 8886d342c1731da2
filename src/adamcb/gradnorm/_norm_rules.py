"""Rules for normalization layers: what is normalized is scaled and shifted, by feature or by channel.

BatchNorm in training ties the samples of a batch together: there, as everywhere, a sample's gradient is its own
contribution to the gradient of the batch, the slice of the product that the backward pass sums over samples.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from adamcb.gradnorm import _fused
from adamcb.gradnorm._batch import Batch, split
from adamcb.gradnorm._call import Call, Use
from adamcb.gradnorm._graph import layer_norm as run_layer_norm
from adamcb.gradnorm._parts import Dense, accurate

# Below this share of the squared mean, the difference that gives a variance has lost digits.
_CANCELED = 1e-6


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
    uses = _affine(call, input, weight, bias, lambda x: F.layer_norm(x, normalized_shape, eps=eps), width)
    if uses is None or len(uses) < 2 or not (call.may_form(weight) and call.may_form(bias)):
        return uses

    def scaled(grad: Tensor, normalized: Tensor) -> Dense:
        return _reduced(normalized.mul_(grad), call.out, width)

    def run(supply: Any) -> Tensor:
        return run_layer_norm(supply, input, weight, bias, normalized_shape, eps)  # type: ignore[arg-type]

    uses[0] = Use(weight, scaled, forms=True, saved=(input,), run=run)
    uses[1].forms = True
    return uses


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

    def pool(means: Tensor) -> Tensor:
        grouped = means.unflatten(1, (num_groups, -1))
        return grouped.mean(2, keepdim=True).expand_as(grouped).flatten(1)

    return _by_channel(call, input, weight, bias, lambda x: F.group_norm(x, num_groups, eps=eps), pool, eps)


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
        return _by_channel(call, input, weight, bias, lambda x: F.instance_norm(x, eps=eps), lambda means: means, eps)
    return batch_norm(call, input, running_mean, running_var, weight, bias, eps=eps)


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
    if training or running_mean is None or running_var is None:
        normalize = functools.partial(F.batch_norm, running_mean=None, running_var=None, training=True, eps=eps)
        return _by_channel(call, input, weight, bias, normalize, lambda means: means.mean(0), eps)
    mean, var = running_mean, running_var
    return _affine(call, input, weight, bias, lambda x: F.batch_norm(x, accurate(mean), accurate(var), eps=eps), None)


def ties_samples(call: Call) -> bool:
    """Tell whether a BatchNorm normalizes by the samples of this batch."""
    return bool(call.argument(5, "training", False))


def _by_channel(
    call: Call,
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    normalize: Callable[[Tensor], Tensor],
    pool: Callable[[Tensor], Tensor],
    eps: float,
) -> list[Use] | None:
    """Return the uses of y = weight · normalize(x) + bias over channels, where x decides how it is normalized.

    `pool` makes the means over what is normalized together from those over the positions of each sample and channel.
    """
    uses = _affine(call, input, weight, bias, normalize, None)

    def scale(grad: Tensor) -> Dense:
        x, grad = accurate(input.detach()), accurate(grad)
        if _fused.applies(x, grad):
            products, sums, means, squares = _fused.sum_products(grad, x)
            mean = pool(means)
            square = mean.square()
            var = (pool(squares) - square).clamp_(min=0.0)
            if not (var < _CANCELED * square).any():
                return _reduced(((products - mean * sums) * (var + eps).rsqrt()).to(x.dtype), call.out, None)
        return _reduced(normalize(x).mul_(grad), call.out, None)

    if uses is not None and weight is not None:
        uses[0] = Use(weight, scale)
    return uses


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
        return _reduced(product, call.out, width)

    uses = []
    if weight is not None:
        uses.append(Use(weight, lambda grad: reduce(normalize(accurate(input.detach())).mul_(accurate(grad)))))
    if bias is not None:
        uses.append(Use(bias, reduce))
    return uses


def _reduced(product: Tensor, batch: Batch, width: int | None) -> Dense:
    """Return the sums over all but the samples and the last `width` dimensions, or the channels."""
    parts = split(accurate(product), batch)
    kept = {2} if width is None else set(range(parts.dim() - width, parts.dim()))
    dropped = [dim for dim in range(1, parts.dim()) if dim not in kept]
    return Dense(parts.sum(dropped) if dropped else parts)
