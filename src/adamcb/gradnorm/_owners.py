"""Which sample each entry of the last layer's result belongs to: the graph between it and the model's result tells.

Between the two, a model may transpose, gather or flatten: which dimension of a gradient holds the samples cannot be
told from its shape. So numbers are sent backward through these few operations for some samples at a time: an entry
belongs to the sample whose numbers reach it. One question for each binary digit of the sample's number, and one for its
opposite, is enough. Answers are kept, unless the operations gather.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge
from torch.linalg import vector_norm

from adamcb.gradnorm._compat import age, has_hooks, shape_of_result
from adamcb.gradnorm._parts import accurate

# Nodes that only move or convert numbers, so that norms pass through them unchanged.
VIEWS = {
    *("TBackward0", "TransposeBackward0", "PermuteBackward0", "ViewBackward0", "UnsafeViewBackward0", "AliasBackward0"),
    *("ReshapeAliasBackward0", "SqueezeBackward0", "SqueezeBackward1", "UnsqueezeBackward0", "ToCopyBackward0"),
    *("CloneBackward0", "MovedimBackward0"),
}
# What a module's full backward hooks hang on.
_HOOK = "BackwardHook"
# Which rows these move is in their indices, which differ from batch to batch.
_GATHER = ("Index", "Gather", "Scatter", "Masked", "Select", "Sort", "Where", "Unique", "Nonzero")


class LayerOwners(NamedTuple):
    """The samples of a gradient: `samples[r]` owns row r of its dimension `dim`.

    `samples` is None where row r belongs to sample r. So it is, too, where samples are mixed on the way, as by
    BatchNorm in training: a sample's row is then its contribution. `dim` is None where nothing can be told.
    """

    dim: int | None
    samples: Tensor | None

    def norms(self, grad: Tensor, batch_size: int) -> Tensor | None:
        """Return float[K]; None if nothing can be told."""
        expected = batch_size if self.samples is None else len(self.samples)
        if self.dim is None or grad.size(self.dim) != expected:
            return None
        rows = accurate(grad).movedim(self.dim, 0)
        rows = rows if rows.dim() > 1 else rows.unsqueeze(1)
        norms = vector_norm(rows, 2, tuple(range(1, rows.dim())))
        if self.samples is None:
            return norms
        samples = self.samples.to(norms.device)
        return norms.new_zeros(batch_size).index_add_(0, samples, norms.square()).sqrt()


class Answers:
    """What was found out about a model's last layers.

    Attributes:
        known: Owners by the operations, the shapes of the results of model and layer, and the number of samples.
        judged: Whether losses agreed with what is taken for granted, by the shape of a result and the like.
    """

    def __init__(self) -> None:
        self.known: dict[Any, LayerOwners] = {}
        self.judged: dict[Any, bool] = {}


def owners_by_shape(shape: Sequence[int], batch_size: int) -> LayerOwners:
    """Return whose the rows are by the shape alone; `dim` is None if several dimensions could be the batch, or none."""
    if shape and shape[0] == batch_size:
        return LayerOwners(0, None)
    if shape and batch_size == 1:
        return LayerOwners(0, torch.zeros(shape[0], dtype=torch.long))
    fitting = [dim for dim, size in enumerate(shape) if size == batch_size]
    several = bool(shape) and batch_size > 0 and shape[0] % batch_size == 0
    if several and not fitting:
        return LayerOwners(0, torch.arange(batch_size).repeat_interleave(shape[0] // batch_size))
    return LayerOwners(fitting[0] if len(fitting) == 1 and not (several and len(shape) == 2) else None, None)


def is_ambiguous(shape: Sequence[int], batch_size: int) -> bool:
    """Tell whether more than one dimension could hold the samples, or rows could come in more than one order."""
    several = bool(shape) and shape[0] != batch_size and batch_size > 0 and shape[0] % batch_size == 0
    return several or sum(size == batch_size for size in shape) > 1


def owners_behind(result: Tensor, layer: Any, batch_size: int, known: dict[Any, LayerOwners]) -> LayerOwners | None:
    """Return the owners of a layer's result, which the model made `result` of; None where shapes must tell.

    That is where the layer's result is the model's, where the model's result has no dimension of samples, or where
    hooks are on the way.
    """
    root = result.grad_fn
    if layer is root or batch_size < 2 or not result.dim() or result.size(0) != batch_size:
        return None
    names = _names_between(root, layer)
    if has_hooks(result) or any(_HOOK in name for name in names):
        return None  # hooks would take the question for a backward pass
    key = (names, result.shape, shape_of_result(layer), batch_size)
    if key in known:
        return known[key]
    owners = _asked(result, layer, batch_size)
    if owners is not None and not any(part in name for name in names for part in _GATHER):
        known[key] = owners
    return owners


def _names_between(root: Any, layer: Any) -> tuple[str, ...]:
    """Return the names of all operations from a result to the layer; those of other branches may be among them."""
    names, waiting, seen, oldest = [], [root], {root, layer}, age(layer)
    while waiting:
        node = waiting.pop()
        names.append(type(node).__name__)
        for child, _ in node.next_functions:
            if child is not None and child not in seen and oldest <= age(child) < math.inf:
                seen.add(child)
                waiting.append(child)
    return tuple(names)


def _asked(result: Tensor, layer: Any, batch_size: int) -> LayerOwners | None:
    """Ask the model's result, whose rows are the samples."""
    (told,) = ask(result, [GradientEdge(layer, 0)], batch_size)
    if told is None:
        return None
    if told.is_mixed:
        return LayerOwners(0 if len(told.samples) == batch_size else None, None)
    return told.owners(batch_size)


class Told(NamedTuple):
    """What came of a question, for each entry: its sample, and whether it was heard of; and whether any has several."""

    samples: Tensor
    heard: Tensor
    is_mixed: bool

    def owners(self, batch_size: int) -> LayerOwners:
        """Return the owners of rows; `dim` is None if entries of a row have several."""
        return _in_rows(self.samples, self.heard, batch_size)

    def fits(self, taken: LayerOwners) -> bool:
        """Tell whether rows are those of the samples that they are taken for."""
        if taken.dim is None or self.is_mixed:
            return False
        length = self.samples.size(taken.dim)
        expected = torch.arange(length) if taken.samples is None else taken.samples
        if len(expected) != length:
            return False
        lined_up = expected.to(self.samples.device).view(
            [-1 if d == taken.dim else 1 for d in range(self.samples.dim())]
        )
        return bool(((self.samples == lined_up) | ~self.heard).all())


def ask(source: Tensor, edges: Sequence[GradientEdge], batch_size: int) -> list[Told | None]:
    """Send random numbers backward, for half of the samples at a time; None for what they do not reach.

    Args:
        source: Its first dimension holds the samples: the model's result, or the losses.
        edges: What is asked about.
        batch_size: The number of samples.
    """
    generator = torch.Generator().manual_seed(0)
    numbers = torch.randn(source.shape, generator=generator, dtype=torch.float32).to(source)
    sample = torch.arange(batch_size, device=source.device).view(-1, *[1] * (source.dim() - 1))
    told: list[Told | None] = [None] * len(edges)
    for digit in range((batch_size - 1).bit_length()):
        ones = sample >> digit & 1
        halves = [
            torch.autograd.grad(source, edges, numbers * half.to(numbers), retain_graph=True, allow_unused=True)  # type: ignore
            for half in (ones, 1 - ones)
        ]
        told = [_heard(before, digit, *grads) for before, *grads in zip(told, *halves, strict=True)]
        if all(each is None or each.is_mixed for each in told):
            break
    return told


def _heard(before: Told | None, digit: int, ones: Tensor | None, zeros: Tensor | None) -> Told | None:
    """Add a binary digit of the samples' numbers."""
    if ones is None or zeros is None:
        return None
    here, there = ones != 0, zeros != 0
    samples, heard, is_mixed = before or (0, False, False)
    return Told(samples + (here.long() << digit), here | there | heard, is_mixed or bool((here & there).any()))


def _in_rows(number: Tensor, heard: Tensor, batch_size: int) -> LayerOwners:
    """Find the dimension whose rows have one owner each. Entries that nothing reached belong to anyone."""
    for dim in range(number.dim()):
        rows, seen = (tensor.movedim(dim, 0).flatten(1) for tensor in (number, heard))
        largest = rows.masked_fill(~seen, -1).amax(1)
        smallest = rows.masked_fill(~seen, batch_size).amin(1)
        if ((largest == smallest) | (largest < 0)).all() and (number.dim() == 1 or len(largest) >= batch_size):
            own = torch.arange(len(largest), device=largest.device)
            if len(largest) == batch_size and ((largest == own) | (largest < 0)).all():
                return LayerOwners(dim, None)
            return LayerOwners(dim, largest.clamp(min=0))
    return LayerOwners(None, None)
