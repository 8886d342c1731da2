"""Which sample each entry of the last layer's result belongs to: the graph between it and the model's result tells.

Between the two, a model may transpose, gather or flatten: which dimension of a gradient holds the samples cannot be
told from its shape. So numbers are sent backward through these few operations for some samples at a time: an entry
belongs to the sample whose numbers reach it. One question for each binary digit of the sample's number, and one for its
opposite, is enough. Answers are kept, unless the operations gather.
"""

from __future__ import annotations

import math
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
        return norms.new_zeros(batch_size).index_add_(0, self.samples, norms.square()).sqrt()


Answers = dict[Any, LayerOwners]
"""Answers by the operations, the shapes of the results of model and layer, and the number of samples."""


def owners_behind(result: Tensor, layer: Any, batch_size: int, known: Answers) -> LayerOwners | None:
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
    """Send random numbers backward, for half of the samples at a time."""
    generator = torch.Generator().manual_seed(0)
    numbers = torch.randn(result.shape, generator=generator, dtype=torch.float32).to(result)
    edge = GradientEdge(layer, 0)
    number = heard = torch.zeros((), dtype=torch.long, device=result.device)
    for digit in range((batch_size - 1).bit_length()):
        ones = torch.arange(batch_size, device=result.device) >> digit & 1
        reached = []
        for half in (ones, 1 - ones):
            told = numbers * half.view(-1, *[1] * (result.dim() - 1)).to(numbers)
            grad = torch.autograd.grad(result, edge, told, retain_graph=True, allow_unused=True)[0]  # type: ignore
            if grad is None:
                return None
            reached.append(grad != 0)
        if (reached[0] & reached[1]).any():
            return LayerOwners(0 if len(grad) == batch_size else None, None)
        number, heard = number + (reached[0].long() << digit), heard | reached[0] | reached[1]
    return _in_rows(number, heard > 0, batch_size)


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
