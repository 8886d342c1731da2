"""What one use of a parameter adds to each sample's gradient, and the norms of sums of such parts.

A part is never larger than it needs to be: `Dense` holds K gradients, `Outer` the two factors that the gradient of a
matrix is made of, `Lookup` the rows of a table that were read. All of them sum over the positions of a sample, and the
loss is summed, not averaged, over the samples: weights are in the incoming gradients already.

Letters: K samples, B blocks (groups of a convolution), T positions, a × b the matrix.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

from adamcb.gradnorm import _fused

Direction = Sequence[Tensor]
"""One vector for each dimension of a parameter. Their outer product is a direction in the parameter's space."""

# Products are cut so that a piece stays in the cache of one core.
CHUNK = 1 << 18


class Part(Protocol):
    """One use of one parameter: K gradients in some form."""

    def square_norms(self) -> Tensor:
        """Return float[K]: the squared norms."""
        ...

    def dense(self) -> Tensor:
        """Return float[K, ...]: the gradients, in the parameter's shape."""
        ...

    def project(self, direction: Direction) -> Tensor:
        """Return float[K]: the inner products with a direction."""
        ...


def accurate(tensor: Tensor) -> Tensor:
    """Return `tensor` in float32 or better: squares of half-precision gradients overflow and vanish."""
    exact = tensor.dtype in (torch.float32, torch.float64) or tensor.is_complex()
    return tensor if exact else tensor.float()


@functools.cache
def _device_types() -> tuple[str, ...]:
    """Return the kinds of devices here. Torch for CUDA names an accelerator, or raises, where there is no driver."""
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return ("cpu",) if found is None else ("cpu", found.type)


@contextlib.contextmanager
def without_autocast() -> Iterator[None]:
    """Let operations keep the precision of what they are given, on every device."""
    casting = [device for device in _device_types() if torch.is_autocast_enabled(device)]
    for device in casting:
        torch.set_autocast_enabled(device, False)
    try:
        yield
    finally:
        for device in casting:
            torch.set_autocast_enabled(device, True)


def squares(tensor: Tensor) -> Tensor:
    """Return Σ |tensor|² over all but the first dimension."""
    if tensor.dim() == 1:
        return tensor.abs().square()
    return torch.linalg.vector_norm(tensor.flatten(1), dim=1).square_()


def contract(gradients: Tensor, direction: Direction) -> Tensor:
    """Return the inner products of gradients, in the last dimensions of a tensor, with a direction."""
    for vector in reversed(direction):
        gradients = gradients @ vector.to(gradients.dtype)
    return gradients


def where_lost(norms: Tensor, bound: Tensor, again: Callable[[Tensor], Tensor]) -> Tensor:
    """Return squared norms, those that cancellation may have spoiled taken anew.

    Args:
        norms: float[K], sums of terms of either sign.
        bound: float[K], the sums of the terms' absolute values, or more.
        again: From bool[K] to the exact squared norms of the samples chosen.
    """
    digits = 1e-4 if norms.dtype == torch.float32 else 1e-10
    lost = norms < digits * bound
    if lost.any():
        norms[lost] = again(lost)
    return norms.clamp_(min=0)


class Dense:
    """K gradients as they are."""

    def __init__(self, gradients: Tensor) -> None:
        self.gradients = gradients

    def square_norms(self) -> Tensor:
        """Return float[K]."""
        return squares(accurate(self.gradients))

    def dense(self) -> Tensor:
        """Return float[K, ...]."""
        return accurate(self.gradients)

    def project(self, direction: Direction) -> Tensor:
        """Return float[K]."""
        return contract(self.dense(), direction)

    def total(self) -> Tensor:
        """Return the gradient of the batch."""
        return self.gradients.sum(0)

    def formed(self) -> tuple[Tensor, Tensor]:
        """Return the batch gradient and float[K]."""
        return self.total(), self.square_norms()


class Outer:
    """Gradients Σₜ leftₜ ⊗ rightₜ of a matrix, or of B matrices one below the other.

    ‖Σₜ lₜ ⊗ rₜ‖² = Σₜₛ ⟨lₜ, lₛ⟩⟨rₜ, rₛ⟩, which needs no gradient: T²(a + b) products against T·a·b.

    Args:
        left: [K, B, T, a].
        right: [K, B, T, b].
        shape: The parameter's.
        transposed: Whether the parameter is b × a.
        axes: Where the parameter's dimensions are not those of B × a × b in order: into which sizes that is taken
            apart, and in which order they are the parameter's.
    """

    def __init__(
        self,
        left: Tensor,
        right: Tensor,
        shape: Sequence[int],
        *,
        transposed: bool = False,
        axes: tuple[Sequence[int], Sequence[int]] | None = None,
    ) -> None:
        self.left, self.right = (right, left) if transposed else (left, right)
        self.shape, self.axes = tuple(shape), axes

    @staticmethod
    def prefers_forming(positions: int, rows: int, columns: int) -> bool:
        """Tell whether forming the K gradients, which also saves the ordinary product, beats the Gram form."""
        # Forming replaces a product that is done anyway; what it adds is passing over K·a·b numbers.
        gram = positions * positions * (rows + columns)
        return positions > 1 and gram > 0.25 * positions * rows * columns

    def square_norms(self, *, with_bias: bool = False) -> Tensor:
        """Return float[K], by the cheaper of the two forms.

        With a bias, whose gradient is Σₜ leftₜ: as if `right` had one more entry, always 1.
        """
        left, right = accurate(self.left), accurate(self.right)
        positions, a, b = left.shape[2], left.shape[3], right.shape[3]
        if positions == 1 == left.shape[1]:
            squared = torch.linalg.vector_norm(right, dim=(1, 2, 3)).square_()
            squared = squared.add_(1) if with_bias else squared
            return squared.mul_(torch.linalg.vector_norm(left, dim=(1, 2, 3)).square_())
        per_sample = left.shape[1] * min(positions * positions, a * b)
        step = max(1, CHUNK // max(1, per_sample))
        norms = _gram_norms if positions * (a + b) < a * b else _formed_norms
        pieces = zip(left.split(step), right.split(step), strict=True)
        return torch.cat([norms(*piece, with_bias) for piece in pieces])

    def bias(self) -> Dense:
        """Return the part of a bias that is added to what the matrix gives."""
        return Dense(accurate(self.left).sum((1, 2)))

    def dense(self) -> Tensor:
        """Return float[K, ...]."""
        product = torch.matmul(accurate(self.left).transpose(2, 3), accurate(self.right))
        return self._ordered(product)

    def _ordered(self, product: Tensor) -> Tensor:
        """Return [n, *shape] from [n, B, a, b], or [1, *shape] from [B, a, b]."""
        if self.axes is not None:
            sizes, order = self.axes
            product = product.reshape(-1, *sizes).permute(0, *(1 + axis for axis in order))
        return product.reshape(-1, *self.shape)

    def reordered(self, shape: Sequence[int], order: Sequence[int]) -> Outer:
        """Return the part of a parameter of another shape, whose dimension i is dimension order[i] of this one's."""
        if len(order) == 2:
            return Outer(self.left, self.right, shape, transposed=True)
        return Outer(self.left, self.right, shape, axes=(self.shape, order))

    def project(self, direction: Direction) -> Tensor:
        """Return float[K]: Σₜ ⟨leftₜ, D rightₜ⟩."""
        left, right = accurate(self.left), accurate(self.right)
        blocks, a, b = left.shape[1], left.shape[3], right.shape[3]
        if self.axes is not None:
            return contract(self.dense(), direction)
        if self.shape == (blocks * a, b):
            first, second = (vector.to(left.dtype) for vector in direction)
            return ((left * first.view(blocks, 1, a)).sum(3) * (right @ second)).sum((1, 2))
        whole = functools.reduce(torch.kron, (vector.to(left.dtype) for vector in direction))
        return ((left @ whole.view(blocks, a, b)) * right).sum((1, 2, 3))

    def total(self) -> Tensor:
        """Return the gradient of the batch, as autograd would."""
        left, right = (side.transpose(0, 1).flatten(1, 2) for side in (self.left, self.right))
        return self._ordered(torch.matmul(left.transpose(1, 2), right).unsqueeze(0))[0]

    def formed(self, *, with_bias: bool = False) -> tuple[Tensor, ...]:
        """Return the batch gradient, that of a bias if there is one, and float[K].

        The gradients are formed once, a few samples at a time.
        """
        total, norms = form(self.left, self.right)
        total = total.view(self.shape) if self.axes is None else self._ordered(total)[0]
        if not with_bias:
            return total, norms
        bias, squared = sum_positions(self.left)
        return total, bias, norms.add_(squared)


def form(left: Tensor, right: Tensor, *, summed: bool = True) -> tuple[Tensor, Tensor]:
    """Form leftᵀ right for a few samples at a time, in a buffer that stays in the cache.

    Args:
        left: [K, B, T, a].
        right: [K, B, T, b].
        summed: Whether the sum over the samples is wanted.

    Returns:
        [B, a, b], the sum over the samples or zeros, and float[K], the squared norms.
    """
    samples, blocks, _, rows = left.shape
    columns = right.shape[3]
    size = blocks * rows * columns
    first, second = (side.squeeze(1) if blocks == 1 else side.flatten(0, 1) for side in (left, right))
    first = first.transpose(1, 2)
    step = max(1, min(samples, CHUNK // max(1, size)))
    buffer, norms = left.new_empty(step * blocks, rows, columns), left.new_empty(samples)
    total = left.new_empty(size) if samples and summed else left.new_zeros(size)
    wanted = total if summed else None
    if step == samples:  # in one piece, as in most layers
        torch.bmm(first, second, out=buffer)
        add_up(buffer.view(samples, size), wanted, norms, first=True)
        return total.view(blocks, rows, columns), norms
    for start in range(0, samples, step):
        count = min(step, samples - start)
        piece, formed = slice(start * blocks, (start + count) * blocks), buffer[: count * blocks]
        torch.bmm(first[piece], second[piece], out=formed)
        add_up(formed.view(count, size), wanted, norms[start : start + count], first=start == 0)
    return total.view(blocks, rows, columns), norms


def add_up(gradients: Tensor, total: Tensor | None, square_norms: Tensor, *, first: bool) -> None:
    """Add [n, size] to total[size], which is overwritten if `first`, and put the squared norms in float[n]."""
    if total is not None and _fused.applies(gradients):
        return _fused.add_up(gradients, total, square_norms, first=first)
    torch.linalg.vector_norm(gradients, dim=1, out=square_norms)
    square_norms.square_()
    if total is not None:
        total.unsqueeze(0).addmm_(gradients.new_ones(1, len(gradients)), gradients, beta=0 if first else 1)


def sum_positions(left: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradient of a bias, and the squared norms of each sample's, from [K, B, T, a]."""
    if left.shape[1] == 1 and _fused.applies(left):
        return _fused.sum_positions(left.squeeze(1))
    sums = left.sum((1, 2))
    return sums.sum(0), squares(sums)


def _gram_norms(left: Tensor, right: Tensor, with_bias: bool) -> Tensor:
    first, second = torch.matmul(left, left.transpose(2, 3)), torch.matmul(right, right.transpose(2, 3))
    second = second.add_(1) if with_bias else second
    largest = first.diagonal(0, 2, 3) * second.diagonal(0, 2, 3)
    norms = first.mul_(second).flatten(1).sum(1)
    bound = largest.clamp_(min=0).sqrt_().flatten(1).sum(1).square_()
    return where_lost(norms, bound, lambda lost: _formed_norms(left[lost], right[lost], with_bias))


def _formed_norms(left: Tensor, right: Tensor, with_bias: bool) -> Tensor:
    norms = form(left, right, summed=False)[1]
    return norms.add_(squares(left.sum(2))) if with_bias else norms


class Lookup:
    """Gradients of a table: row indices[k, t] gets values[k, t].

    Args:
        indices: int64[K, T].
        values: [K, T, d].
        shape: The table's.
    """

    def __init__(self, indices: Tensor, values: Tensor, shape: Sequence[int]) -> None:
        self.indices, self.values, self.shape = indices, values, tuple(shape)

    def square_norms(self) -> Tensor:
        """Return float[K]: rows that a sample read more than once are added up first."""
        samples, count = self.indices.shape
        keys = self.indices + self.shape[0] * torch.arange(samples, device=self.indices.device).unsqueeze(1)
        found, where = torch.unique(keys, return_inverse=True)
        values = accurate(self.values).reshape(samples * count, -1)
        added = values.new_zeros(len(found), values.shape[1]).index_add_(0, where.flatten(), values)
        return values.new_zeros(samples).index_add_(0, found // self.shape[0], squares(added))

    def dense(self) -> Tensor:
        """Return float[K, rows, d]."""
        samples, count = self.indices.shape
        offsets = self.shape[0] * torch.arange(samples, device=self.indices.device).unsqueeze(1)
        values = accurate(self.values).reshape(samples * count, -1)
        table = values.new_zeros(samples * self.shape[0], values.shape[1])
        return table.index_add_(0, (self.indices + offsets).flatten(), values).view(samples, *self.shape)

    def project(self, direction: Direction) -> Tensor:
        """Return float[K]."""
        values = contract(accurate(self.values).reshape(*self.indices.shape, *self.shape[1:]), direction[1:])
        return (values * direction[0].to(values.dtype)[self.indices]).sum(1)


def joint_square_norms(parts: Sequence[Part]) -> Tensor:
    """Return float[K]: the squared norms of the sum of several parts of one parameter, cross terms and all.

    Factors of the same kind are joined along T. A tied embedding, read as a table and used as a matrix, needs no
    gradient of its size either: ⟨Outer, Lookup⟩ = Σₜₛ leftₜ[indexₛ]⟨rightₜ, valueₛ⟩.
    """
    outers = [part for part in parts if isinstance(part, Outer)]
    lookups = [part for part in parts if isinstance(part, Lookup)]
    blocks = {(part.left.shape[1], part.left.shape[3], part.right.shape[3], str(part.axes)) for part in outers}
    crossing = bool(lookups) and any(part.axes is not None or part.left.shape[1] > 1 for part in outers)
    if len(outers) + len(lookups) < len(parts) or len(blocks) > 1 or crossing:
        return squares(_summed(parts))
    if not lookups:
        return _join_outers(outers).square_norms()
    lookup = _join_lookups(lookups)
    if not outers:
        return lookup.square_norms()
    outer = _join_outers(outers)
    first, second = outer.square_norms(), lookup.square_norms()
    norms = first + second + 2 * _cross(outer, lookup)
    return where_lost(norms, (first.sqrt() + second.sqrt()).square(), lambda lost: _one_by_one(outer, lookup, lost))


def _summed(parts: Sequence[Part]) -> Tensor:
    total = parts[0].dense().clone()
    for part in parts[1:]:
        total += part.dense()
    return total


def _join_outers(parts: Sequence[Outer]) -> Outer:
    if len(parts) == 1:
        return parts[0]
    left, right = torch.cat([part.left for part in parts], 2), torch.cat([part.right for part in parts], 2)
    return Outer(left, right, parts[0].shape, axes=parts[0].axes)


def _join_lookups(parts: Sequence[Lookup]) -> Lookup:
    indices, values = torch.cat([p.indices for p in parts], 1), torch.cat([p.values for p in parts], 1)
    return Lookup(indices, values, parts[0].shape) if len(parts) > 1 else parts[0]


def _cross(outer: Outer, lookup: Lookup) -> Tensor:
    left, right = accurate(outer.left).flatten(0, 1), accurate(outer.right).flatten(0, 1)
    index = lookup.indices.unsqueeze(1).expand(-1, left.shape[1], -1)
    products = torch.bmm(right, accurate(lookup.values).transpose(1, 2))
    return left.gather(2, index).mul_(products).flatten(1).sum(1)


def _one_by_one(outer: Outer, lookup: Lookup, chosen: Tensor) -> Tensor:
    norms = []
    for k in chosen.nonzero().flatten():
        one = Outer(outer.left[k : k + 1], outer.right[k : k + 1], outer.shape)
        norms.append(squares(_summed([one, Lookup(lookup.indices[k : k + 1], lookup.values[k : k + 1], lookup.shape)])))
    return torch.cat(norms)
