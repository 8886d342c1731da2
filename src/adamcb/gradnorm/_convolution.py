"""Convolutions and their transposes: K weight gradients formed as one grouped convolution, or norms without them."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from adamcb.gradnorm._batch import split
from adamcb.gradnorm._call import Call, Use
from adamcb.gradnorm._parts import CHUNK, Dense, Direction, accurate, squares, where_lost

# Measured on one core, per sample: a pass of the K formed gradients through memory costs about as much per number
# as a hundred products inside a matrix product; adding up shifted Gram matrices about forty.
_FORMED_COST, _SHIFT_COST = 100, 40


@dataclass(frozen=True)
class Window:
    """How the kernel moves over the input: one entry for each spatial dimension, and the groups."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int


class Patches:
    """The gradient of a convolution's weight, from its input and the gradient of its result.

    Args:
        inputs: [K, M, channels, *space], M images for each sample.
        grads: [K, M, out channels, *space].
        shape: The weight's: out channels, channels / groups, *kernel.
        window: How the kernel moves.
    """

    def __init__(self, inputs: Tensor, grads: Tensor, shape: Sequence[int], window: Window) -> None:
        self.inputs, self.grads, self.shape, self.window = inputs, grads, tuple(shape), window

    def square_norms(self) -> Tensor:
        """Return float[K], by the cheaper of the two forms."""
        inputs, grads = accurate(self.inputs.detach()), accurate(self.grads)
        images, spaces = inputs.shape[1], (inputs.shape[3:], grads.shape[3:])
        if images == 1 and not prefers_forming(spaces[0], spaces[1], self.shape, self.window):
            step = max(1, CHUNK // (self.window.groups * math.prod(spaces[0]) ** 2))
            pieces = zip(inputs.split(step), grads.split(step), strict=True)
            return torch.cat([Patches(*piece, self.shape, self.window)._gram_norms() for piece in pieces])
        return Patches(inputs, grads, self.shape, self.window).formed()[1]

    def dense(self) -> Tensor:
        """Return float[K, ...]."""
        formed = _formed(accurate(self.inputs.detach()), accurate(self.grads), self.shape, self.window)
        return formed.view(-1, *self.shape)

    def project(self, direction: Direction) -> Tensor:
        """Return float[K]: channels are contracted first, so that one kernel for each group is left."""
        inputs, grads = accurate(self.inputs.detach()), accurate(self.grads)
        groups, space = self.window.groups, len(self.window.kernel)
        first, second, *sides = (vector.to(inputs.dtype) for vector in direction)
        pixels = torch.einsum("kmgc...,c->kmg...", inputs.unflatten(2, (groups, -1)), second)
        results = torch.einsum("kmgo...,go->kmg...", grads.unflatten(2, (groups, -1)), first.view(groups, -1))
        kernel = functools.reduce(torch.kron, sides).view(1, 1, *self.window.kernel)
        convolve: Any = (F.conv1d, F.conv2d, F.conv3d)[space - 1]
        options = {"stride": self.window.stride, "padding": self.window.padding, "dilation": self.window.dilation}
        windows = convolve(pixels.flatten(0, 2).unsqueeze(1), kernel, **options).squeeze(1)
        windows = windows[tuple(slice(size) for size in (None, *results.shape[3:]))]
        return (windows.view(results.shape) * results).flatten(1).sum(1)

    def total(self) -> Tensor:
        """Return the gradient of the batch, as autograd would."""
        inputs, grads = self.inputs.flatten(0, 1), self.grads.flatten(0, 1)
        return _weight_gradient(inputs, grads, self.shape, self.window, self.window.groups)

    def formed(self) -> tuple[Tensor, Tensor]:
        """Return the batch gradient and float[K] from gradients formed once, a few samples at a time."""
        size = math.prod(self.shape)
        step = max(1, CHUNK // size)
        total, norms = self.grads.new_zeros(size), []
        for inputs, grads in zip(self.inputs.split(step), self.grads.split(step), strict=True):
            formed = _formed(inputs, grads, self.shape, self.window)
            norms.append(squares(formed))
            total += formed[0] if len(formed) == 1 else formed.sum(0)
        return total.view(self.shape), torch.cat(norms)

    def _gram_norms(self) -> Tensor:
        """Return Σₚ_q ⟨patchₚ, patch_q⟩⟨gₚ, g_q⟩ without the patches: their products are sums of products of pixels."""
        inputs, grads, window = self.inputs.squeeze(1), self.grads.squeeze(1), self.window
        samples, space = len(inputs), len(window.kernel)
        pixels = inputs.reshape(samples * window.groups, -1, math.prod(inputs.shape[2:]))
        results = grads.reshape(samples * window.groups, -1, math.prod(grads.shape[2:]))
        gram = torch.bmm(pixels.transpose(1, 2), pixels).view(-1, *inputs.shape[2:], *inputs.shape[2:])
        for dim in range(space):
            gram = _slide(gram, dim, space, grads.shape[2 + dim], window)
        incoming = torch.bmm(results.transpose(1, 2), results)
        patches = gram.reshape(incoming.shape)
        largest = patches.diagonal(0, 1, 2) * incoming.diagonal(0, 1, 2)
        norms = incoming.mul_(patches).view(samples, -1).sum(1)
        bound = largest.clamp_(min=0).sqrt_().view(samples, -1).sum(1).square_()

        def formed(lost: Tensor) -> Tensor:
            return Patches(self.inputs[lost], self.grads[lost], self.shape, window).formed()[1]

        return where_lost(norms, bound, formed)


def prefers_forming(inputs: Sequence[int], outputs: Sequence[int], shape: Sequence[int], window: Window) -> bool:
    """Tell whether forming K gradients is cheaper than the Gram form, from the spatial sizes and the weight's shape."""
    before, after = math.prod(inputs) ** 2, math.prod(outputs) ** 2
    gram = before * shape[1] * window.groups + after * shape[0]
    gram += after * window.groups * sum(window.kernel) * _SHIFT_COST
    return gram > _FORMED_COST * math.prod(shape)


def _weight_gradient(inputs: Tensor, grads: Tensor, shape: Sequence[int], window: Window, groups: int) -> Tensor:
    weight = inputs.new_empty(()).expand(shape)  # only its shape is read
    none = [0] * len(window.kernel)
    wanted = [False, True, False]
    return torch.ops.aten.convolution_backward(
        grads, inputs, weight, None, window.stride, window.padding, window.dilation, False, none, groups, wanted
    )[1]


def _formed(inputs: Tensor, grads: Tensor, shape: Sequence[int], window: Window) -> Tensor:
    """Return the K weight gradients, flat, as those of one convolution with K times the groups."""
    samples = len(inputs)
    if shape[0] == window.groups and shape[1] == 1 and inputs.shape[1] == 1:
        return _formed_depthwise(inputs, grads, window)
    images, kernels = (t.transpose(0, 1).reshape(t.shape[1], -1, *t.shape[3:]) for t in (inputs, grads))
    stacked = (samples * shape[0], *shape[1:])
    return _weight_gradient(images, kernels, stacked, window, samples * window.groups).view(samples, -1)


def _formed_depthwise(inputs: Tensor, grads: Tensor, window: Window) -> Tensor:
    """Return the same where every channel has one kernel: the input, convolved with the gradient as the kernel."""
    samples = len(inputs)
    edges = [side for padding in reversed(window.padding) for side in (padding, padding)]
    images = F.pad(inputs.flatten(0, 2).unsqueeze(0), edges)
    kernels = grads.flatten(0, 2).unsqueeze(1)
    convolve = (F.conv1d, F.conv2d, F.conv3d)[len(window.kernel) - 1]
    formed = convolve(images, kernels, stride=window.dilation, dilation=window.stride, groups=len(kernels))
    for dim, size in enumerate(window.kernel):
        formed = formed.narrow(2 + dim, 0, size)
    return formed.reshape(samples, -1)


def _slide(gram: Tensor, dim: int, space: int, size: int, window: Window) -> Tensor:
    """Replace pixels by windows along one dimension: Σ over the kernel of `gram` moved along both of its copies."""
    kernel, stride, padding, dilation = (
        x[dim] for x in (window.kernel, window.stride, window.padding, window.dilation)
    )
    if kernel == 1 and stride == 1 and padding == 0:
        return gram
    length, first, second = gram.shape[1 + dim], 1 + dim, 1 + space + dim
    shape = list(gram.shape)
    shape[first] = shape[second] = size
    total = gram.new_zeros(shape)
    for offset in range(-padding, kernel * dilation - padding, dilation):
        low = max(0, -(offset // stride))  # the first window whose pixel at this offset is inside
        high = min(size, (length - 1 - offset) // stride + 1)
        if low < high:
            start, count = low * stride + offset, high - low
            moved = _every(gram, first, start, count, stride)
            moved = _every(moved, second, start, count, stride)
            total.narrow(first, low, count).narrow(second, low, count).add_(moved)
    return total


def _every(tensor: Tensor, dim: int, start: int, count: int, stride: int) -> Tensor:
    index = [slice(None)] * tensor.dim()
    index[dim] = slice(start, start + (count - 1) * stride + 1, stride)
    return tensor[tuple(index)]


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
