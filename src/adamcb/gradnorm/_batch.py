"""Where the samples lie inside a tensor.

Most tensors of a forward pass hold the samples along their first dimension, but not all: recurrent and attention code
puts time first, views fold heads or positions into the batch, and indexing gathers rows of some samples.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


class Owners:
    """Says for each entry of a dimension which sample it belongs to.

    Args:
        samples: int64[n], −1 for entries that belong to no sample.
        size: The number of samples.
    """

    def __init__(self, samples: Tensor, size: int) -> None:
        self.samples, self.size = samples, size
        order = torch.argsort(samples, stable=True)
        owner = samples[order]
        self.order = order[owner >= 0]
        owner = owner[owner >= 0]
        counts = torch.bincount(owner, minlength=size)
        self.longest = int(counts.max()) if size else 0
        first = counts.cumsum(0) - counts
        self.slots = owner * self.longest + torch.arange(len(owner), device=owner.device) - first[owner]

    def gather(self, tensor: Tensor, dim: int) -> Tensor:
        """Return [K, ...]: each sample's entries along `dim`, now one further, filled up with zeros."""
        moved = tensor.movedim(dim, 0)
        padded = moved.new_zeros(self.size * self.longest, *moved.shape[1:])
        padded[self.slots] = moved[self.order]
        return padded.view(self.size, self.longest, *moved.shape[1:]).movedim(1, dim + 1)


class Batch(NamedTuple):
    """Entry i of dimension `dim` belongs to sample (i // inner) mod size, or to owners.samples[i] if there are owners.

    `sure`: an operation's own convention says so, as of a recurrent layer that knows its batch dimension. Otherwise it
    was inferred from the model's inputs, whose first dimension is the batch by convention.
    """

    dim: int
    size: int
    inner: int = 1
    sure: bool = False
    owners: Owners | None = None

    def agrees(self, other: Batch) -> bool:
        """Tell whether both put the same samples in the same places."""
        if self.dim != other.dim or self.size != other.size:
            return False
        if self.owners is None or other.owners is None:
            return self.owners is other.owners and self.inner == other.inner
        return self.owners is other.owners or torch.equal(self.owners.samples, other.owners.samples)

    def owner(self, length: int) -> Tensor:
        """Return int64[length]: the sample of each entry of the dimension."""
        if self.owners is not None:
            return self.owners.samples
        return torch.arange(length).div(self.inner, rounding_mode="floor").remainder(max(1, self.size))


class Mixed(NamedTuple):
    """A tensor made of several samples at once, or of samples that the engine lost sight of.

    `pooled` marks sums and means over the batch: as a loss they are fine, beside single samples they are not. `silent`
    marks what was computed without a graph: a constant, unless a custom function returns it. `place` says where its
    samples would be then, if the function's backward pass keeps them apart.
    """

    size: int
    why: str
    pooled: bool = False
    silent: bool = False
    place: Batch | None = None


def split(tensor: Tensor, batch: Batch) -> Tensor:
    """Return `tensor` with the samples in front: [K, ...], where `batch.dim`, now one further, keeps the rest."""
    if batch.owners is not None:
        return batch.owners.gather(tensor, batch.dim)
    if batch.dim == 0 and tensor.shape[0] == batch.size:
        return tensor.unsqueeze(1)
    folded = tensor.unflatten(batch.dim, (-1, batch.size, batch.inner)).movedim(batch.dim + 1, 0)
    return folded.flatten(batch.dim + 1, batch.dim + 2)


def rows(tensor: Tensor, batch: Batch, features: int = 1) -> Tensor:
    """Return [K, T, ...]: the samples, all other dimensions but the last `features` as one, and those."""
    if batch.dim == 0 and batch.owners is None and tensor.shape[0] == batch.size:
        return tensor.flatten(1, -1 - features) if tensor.dim() > 1 + features else tensor.unsqueeze(1)
    moved = split(tensor, batch)
    return moved.reshape(batch.size, -1, *moved.shape[moved.dim() - features :])


def only(tensor: Tensor, batch: Batch, sample: int) -> Tensor:
    """Return `tensor` with all samples but one set to zero."""
    shape = [1] * tensor.dim()
    shape[batch.dim] = -1
    others = batch.owner(tensor.shape[batch.dim]).to(tensor.device) != sample
    return tensor.masked_fill(others.view(shape), 0)


def spread_owners(tensor: Tensor, batch: Batch) -> Tensor:
    """Return int64 like `tensor`: the sample of each element."""
    shape = [1] * tensor.dim()
    shape[batch.dim] = -1
    return batch.owner(tensor.shape[batch.dim]).to(tensor.device).view(shape).expand(tensor.shape).clone()


def find_owners(owners: Tensor, size: int, prefer: int = 0) -> Batch | None:
    """Return the dimension along which alone the samples differ, and whose each of its entries is."""
    dims = range(owners.dim())
    for dim in sorted(dims, key=lambda d: d != prefer):
        others = [d for d in dims if d != dim]
        along_dim = owners.amax(others) if others and owners.numel() else owners.reshape(-1)
        shape = [1] * owners.dim()
        shape[dim] = -1
        if owners.numel() and ((owners == along_dim.view(shape)) | (owners < 0)).all():
            return place_owners(along_dim, dim, size)
    return None


def place_owners(owner: Tensor, dim: int, size: int) -> Batch:
    """Return a batch from int64[n], in the regular form if the samples come in order, all with as many entries."""
    inner, rest = divmod(len(owner), size) if size else (0, 1)
    if not rest and inner:
        regular, seen = Batch(dim, size, inner), owner.cpu()
        expected = regular.owner(len(owner))
        if torch.equal(expected, seen if inner > 1 else torch.where(seen < 0, expected, seen)):
            return regular
    return Batch(dim, size, owners=Owners(owner, size))


def reshape_owners(batch: Batch, owner: Tensor, source: torch.Size, out: torch.Size) -> Batch | None:
    """Follow owners: their dimension may be joined with others, and split where it was joined."""
    before, behind = math.prod(source[: batch.dim]), math.prod(source[batch.dim + 1 :])
    if not len(owner):
        return None
    changes = torch.nonzero(owner[1:] != owner[:-1]).flatten() + 1
    stretch = math.gcd(len(owner), *changes.tolist())
    parts = owner[::stretch]  # each stands for a stretch of entries, and all of them perhaps for several rounds
    period = next(
        size
        for size in range(1, len(parts) + 1)
        if len(parts) % size == 0 and torch.equal(parts[size:], parts[: len(parts) - size])
    )
    before, behind, parts = before * len(parts) // period, behind * stretch, parts[:period]
    for dim, size in enumerate(out):
        start, rest = math.prod(out[:dim]), math.prod(out[dim + 1 :])
        if start and rest and before % start == 0 and behind % rest == 0:
            entries = parts.repeat_interleave(behind // rest).repeat(before // start)
            if len(entries) == size:
                return place_owners(entries, dim, batch.size)
    return None
