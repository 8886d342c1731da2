"""Rules for convolutions and their transposes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from adamcb.gradnorm._batch import split
from adamcb.gradnorm._call import Call, Use
from adamcb.gradnorm._parts import Dense, accurate
from adamcb.gradnorm._patches import Patches, Window, prefers_forming


def convolution(
    call: Call,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> list[Use] | None:
    """Σₚ gₚ ⊗ patchₚ."""
    batch, space = call.batch(input), weight.dim() - 2
    if batch is None or batch.dim != 0 or input.dim() != weight.dim() or weight.is_complex():
        return None
    window, edges = _window(weight, stride, padding, dilation, groups)
    sizes = tuple(
        _windows(input.shape[2 + d] + 2 * window.padding[d] + sum(edges[2 * (space - 1 - d) :][:2]), window, d)
        for d in range(space)
    )
    forms = input.shape[0] != batch.size or prefers_forming(input.shape[2:], sizes, weight.shape, window)
    forms = forms and call.may_form(weight)
    held = None if forms else input.detach()

    def part(grad: Tensor, x: Any = held) -> Patches:
        padded = F.pad(x, edges) if any(edges) else x
        return Patches(split(padded, batch), split(grad, call.out), weight.shape, window)

    return [Use(weight, part, forms=forms, saved=(input,)), *_bias_uses(call, bias, forms)]


def transposed_convolution(
    call: Call,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> list[Use] | None:
    """Σₚ xₚ ⊗ patchₚ of g: a convolution with the two sides changed over."""
    batch = call.batch(input)
    if batch is None or batch.dim != 0 or input.dim() != weight.dim() or weight.is_complex():
        return None
    window, _ = _window(weight, stride, padding, dilation, groups)
    space = input.shape[2:]
    forms = prefers_forming(space, space, weight.shape, window) and call.may_form(weight)
    held = None if forms else input.detach()

    def part(grad: Tensor, x: Any = held) -> Patches:
        for d in range(len(window.kernel)):  # a large output_padding makes room for windows that are not there
            room = space[d] * window.stride[d] + window.dilation[d] * (window.kernel[d] - 1)
            grad = grad.narrow(2 + d, 0, min(grad.shape[2 + d], room - 2 * window.padding[d]))
        return Patches(split(grad, call.out), split(x, batch), weight.shape, window)

    return [Use(weight, part, forms=forms, saved=(input,)), *_bias_uses(call, bias, forms)]


def _bias_uses(call: Call, bias: Tensor | None, forms: bool) -> list[Use]:
    def part(grad: Tensor) -> Dense:
        images = split(accurate(grad), call.out)
        return Dense(images.sum([1, *range(3, images.dim())]))

    return [] if bias is None else [Use(bias, part, forms=forms and call.may_form(bias))]


def _windows(length: int, window: Window, dim: int) -> int:
    return (length - window.dilation[dim] * (window.kernel[dim] - 1) - 1) // window.stride[dim] + 1


def _window(weight: Tensor, stride: Any, padding: Any, dilation: Any, groups: int) -> tuple[Window, list[int]]:
    """Return the window, and what to pad by hand where padding="same" is not the same on both sides."""
    kernel = tuple(weight.shape[2:])
    each = [
        tuple(x) * (len(kernel) // len(x)) if isinstance(x, Sequence) else (x,) * len(kernel)
        for x in (stride, dilation)
    ]
    edges = [0] * (2 * len(kernel))
    if padding == "same":
        spare = [d * (k - 1) for d, k in zip(each[1], kernel, strict=True)]
        edges = list(itertools.chain.from_iterable((s // 2, s - s // 2) for s in reversed(spare)))
        sides = (0,) * len(kernel)
        if all(s % 2 == 0 for s in spare):
            sides, edges = tuple(s // 2 for s in spare), [0] * (2 * len(kernel))
    elif padding == "valid":
        sides = (0,) * len(kernel)
    else:
        sides = (
            tuple(padding) * (len(kernel) // len(padding))
            if isinstance(padding, Sequence)
            else (padding,) * len(kernel)
        )
    return Window(kernel, each[0], sides, each[1], groups), edges
