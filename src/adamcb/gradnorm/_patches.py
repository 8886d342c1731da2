"""The gradients of convolutions' weights: K of them formed a few at a time, or their norms without forming them."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from adamcb.gradnorm._parts import CHUNK, Direction, accurate, add_up, where_lost

# Measured on one core, in products inside a matrix product: what forming costs for each number of a patch, which is
# copied, and for each number of a gradient, over which two more passes go; with several groups, where it is a
# convolution, for the latter alone. And what it costs to add up shifted Gram matrices.
_PATCH_COST, _FORMED_COST, _GROUPED_COST, _SHIFT_COST = 36, 28, 100, 40
# Patches, and images that are put into groups, are copied in pieces of as many numbers.
PIECE, IMAGES = 1 << 16, 1 << 20
# One convolution in groups is faster than products, if a layer is larger than this and a gradient is not large beside
# few positions. Below, it would need more memory than a small network has.
LARGE_LAYER, FEW_POSITIONS = 1 << 18, 128


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
        return Patches(inputs, grads, self.shape, self.window).formed(summed=False)[1]

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

    def formed(self, *, summed: bool = True) -> tuple[Tensor, Tensor]:
        """Return the batch gradient and float[K] from gradients formed once, a few samples at a time.

        The former is left undefined if it is not wanted.
        """
        samples, size = len(self.inputs), math.prod(self.shape)
        images, results = self.inputs[:1].numel(), self.grads[:1].numel()
        products = size > CHUNK and math.prod(self.grads.shape[3:]) < FEW_POSITIONS
        products |= samples * (images + results) <= LARGE_LAYER
        if products and samples and self.window.groups == 1 == self.inputs.shape[1]:
            inputs, grads = self.inputs.squeeze(1), self.grads.squeeze(1)
            return _formed_products(inputs, grads, self.shape, self.window, summed=summed)
        total, norms = self.grads.new_zeros(size), self.grads.new_empty(samples)
        step = max(1, min(CHUNK // size, IMAGES // max(1, images + results)))
        for start in range(0, samples, step):
            piece = slice(start, start + step)
            formed = _formed(self.inputs[piece], self.grads[piece], self.shape, self.window)
            add_up(formed, total if summed else None, norms[piece], first=start == 0)
        return total.view(self.shape), norms

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
            return Patches(self.inputs[lost], self.grads[lost], self.shape, window).formed(summed=False)[1]

        return where_lost(norms, bound, formed)


def prefers_forming(inputs: Sequence[int], outputs: Sequence[int], shape: Sequence[int], window: Window) -> bool:
    """Tell whether forming K gradients is cheaper than the Gram form, from the spatial sizes and the weight's shape."""
    before, after = math.prod(inputs), math.prod(outputs)
    gram = before * before * shape[1] * window.groups + after * after * shape[0]
    gram += before * after * window.groups * sum(window.kernel) * _SHIFT_COST
    if window.groups > 1:
        return gram > _GROUPED_COST * math.prod(shape)
    return gram > math.prod(shape[1:]) * (_PATCH_COST * after + _FORMED_COST * shape[0])


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


def _formed_products(
    inputs: Tensor, grads: Tensor, shape: Sequence[int], window: Window, *, summed: bool
) -> tuple[Tensor, Tensor]:
    """Return the batch gradient and float[K] of a convolution in one group: products of gradients and patches.

    Patches are copied a few samples at a time, and stay in the cache. What lies side by side in memory is a row of the
    image if channels come first, a row of the kernel with all its channels if they come last: the longer one wins.
    """
    alone = math.prod(window.kernel) == math.prod(window.stride) == 1
    first = alone or (window.stride[-1] == 1 and shape[1] * window.kernel[-1] < grads.shape[-1])
    samples, rows, columns = len(inputs), shape[0], math.prod(shape[1:])
    sizes, positions = grads.shape[2:], math.prod(grads.shape[2:])
    step = min(samples, max(1, PIECE // max(1, columns * max(positions, rows))))
    patches, formed = inputs.new_empty(step, columns * positions), inputs.new_empty(step, rows, columns)
    flat = patches.view(step, columns, positions).transpose(1, 2) if first else patches.view(step, positions, columns)
    total, norms, ones = inputs.new_empty(1, rows * columns), inputs.new_empty(samples), inputs.new_ones(1, step)
    left = grads.reshape(samples, rows, positions)
    for start in range(0, samples, step):
        count = min(step, samples - start)
        windows = _windows_of(inputs[start : start + count], sizes, window, channels_first=first)
        patches[:count].view(windows.shape).copy_(windows)
        torch.bmm(left[start : start + count], flat[:count], out=formed[:count])
        gradients = formed[:count].view(count, -1)
        torch.linalg.vector_norm(gradients, dim=1, out=norms[start : start + count])
        if summed:
            total.addmm_(ones[:, :count], gradients, beta=1 if start else 0)
    ordered = total.view(shape) if first else total.view(rows, *shape[2:], shape[1]).movedim(-1, 1).contiguous()
    return ordered, norms.square_()


def _windows_of(inputs: Tensor, sizes: Sequence[int], window: Window, *, channels_first: bool) -> Tensor:
    """Return a view of what the kernel sees: [n, C, *kernel, *sizes] or [n, *sizes, *kernel, C]."""
    edges = [side for padding in reversed(window.padding) for side in (padding, padding)]
    if channels_first:
        images = F.pad(inputs, edges) if any(edges) else inputs.contiguous()
        batch, channel, *steps = images.stride()
    else:
        images = F.pad(inputs.movedim(1, -1), [0, 0, *edges]).contiguous()
        batch, *steps, channel = images.stride()
    moves = [step * stride for step, stride in zip(steps, window.stride, strict=True)]
    spans = [step * dilation for step, dilation in zip(steps, window.dilation, strict=True)]
    if channels_first:
        return images.as_strided(
            (len(inputs), inputs.shape[1], *window.kernel, *sizes), (batch, channel, *spans, *moves)
        )
    return images.as_strided((len(inputs), *sizes, *window.kernel, inputs.shape[1]), (batch, *moves, *spans, channel))


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
