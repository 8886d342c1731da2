"""How operations move samples: from where they are in an argument to where they are in the result.

A layout is a function of a `Call`, one of its arguments, where the samples are in that argument, and the result. It
returns a `Batch`, or None where the result no longer keeps samples apart. Nothing here looks at the numbers in the
batch. Products have a file of their own, and so has indexing, which looks at the index. Which operation has which
layout: `_table.py`.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from adamcb.gradnorm import _compat
from adamcb.gradnorm._batch import Batch, place_owners, reshape_owners
from adamcb.gradnorm._call import Call, Layout, substitute, tensors_in


def kept(call: Call, source: Tensor, batch: Batch, out: Tensor) -> Batch | None:
    """Dimensions stay where they are; some behind the samples may come or go."""
    return at(batch, batch.dim, source, out)


def leading(call: Call, source: Tensor, batch: Batch, out: Tensor) -> Batch | None:
    """Samples are images, or rows: they stay if they come first, and are mixed if not, or if they are weights."""
    if batch.dim != 0 or (source is not first_of(call) and source.dim() != out.dim()):
        return None
    return at(batch, 0, source, out)


def _convolved(dims: int) -> Layout:
    """Return the layout of convolutions whose input has `dims` dimensions if it has a batch.

    Samples are images. What comes without a batch has channels first, and those are summed over.
    """

    def layout(call: Call, source: Tensor, batch: Batch, out: Tensor) -> Batch | None:
        batched = source is first_of(call) and source.dim() == dims
        return leading(call, source, batch, out) if batched else None

    return layout


convolved_1d, convolved_2d, convolved_3d = _convolved(3), _convolved(4), _convolved(5)


def by_channel(call: Call, source: Tensor, batch: Batch, out: Tensor) -> Batch | None:
    """`prelu`: dimensions stay, and a weight belongs to a channel."""
    return kept(call, source, batch, out) if source is first_of(call) else None


def lined_up(call: Call, source: Tensor, batch: Batch, out: Tensor) -> Batch | None:
    """Dimensions are lined up from the right."""
    return at(batch, batch.dim + out.dim() - source.dim(), source, out)


def chosen(call: Call, source: Tensor, batch: Batch, out: Tensor) -> Batch | None:
    """`where`: dimensions are lined up; with the condition alone it returns positions."""
    return lined_up(call, source, batch, out) if len(call.args) > 1 else None


def along(place: int, default: int | None) -> Layout:
    """Return the layout of operations that work along a dimension, given as argument number `place`, and keep it."""

    def layout(call: Call, source: Tensor, batch: Batch, out: Tensor) -> Batch | None:
        dim = dim_of(call, place, default)
        return None if dim is None or batch.dim in positions(dim, source.dim()) else kept(call, source, batch, out)

    return layout


def shrunk(place: int, default: int | None) -> Layout:
    """Return the layout of operations that work along a dimension, and halve or drop it."""

    def layout(call: Call, source: Tensor, batch: Batch, out: Tensor) -> Batch | None:
        dim = dim_of(call, place, default)
        if dim is None or batch.dim in (dropped := positions(dim, source.dim())):
            return None
        moved = batch.dim - sum(d < batch.dim for d in dropped) if out.dim() < source.dim() else batch.dim
        return at(batch, moved, source, out)

    return layout


def normalized(call: Call, source: Tensor, batch: Batch, out: Tensor) -> Batch | None:
    """The last dimensions, as many as the shape that is given, are normalized together."""
    width = len(call.argument(1, "normalized_shape", ()))
    return kept(call, source, batch, out) if batch.dim < source.dim() - width else None


def of_first(layout: Layout) -> Layout:
    """Return the layout of operations whose second argument says what shape or type, and no more."""

    def found(call: Call, source: Tensor, batch: Batch, out: Tensor) -> Batch | None:
        first = first_of(call)
        mine = batch if source is first else call.batch(first)
        if mine is not None:
            return layout(call, first, mine, out)
        return batch if call.parametric(first) else None

    return found


def expanded_like(call: Call, source: Tensor, batch: Batch, out: Tensor) -> Batch | None:
    """The second argument says what shape, and the first is broadcast to it. A constant has copies for the samples."""
    first = first_of(call)
    mine = batch if source is first else call.batch(first)
    return batch if mine is None else lined_up(call, first, mine, out)


def copied(call: Call, source: Tensor, batch: Batch, out: Tensor) -> Batch | None:
    """`copy_`: the second argument is broadcast to the first. Constants written over samples belong to those."""
    return lined_up(call, source, batch, out) if source is call.argument(1, "src") else batch


def bags(call: Call, source: Tensor, batch: Batch, out: Tensor) -> Batch | None:
    """The rows of the result are the bags, however the indices came; rows of a table may be in any of them."""
    return None if source is embedding_of(call)[1] else Batch(0, out.shape[0], sure=True)


def embedding_of(call: Call) -> tuple[Tensor, Tensor]:
    """Return the index and the table of an embedding; `torch.nn.functional` and `torch` have them in other orders."""
    if getattr(call.func, "__module__", None) == F.__name__:
        return call.argument(0, "input"), call.argument(1, "weight")
    return call.argument(1, "indices"), call.argument(0, "weight")


def loss(call: Call, source: Tensor, batch: Batch, out: Tensor) -> Batch | None:
    """One loss for each element, dimensions lined up from the right; none is left if they were summed or averaged."""
    return lined_up(call, source, batch, out) if out.dim() else None


def gaussian_loss(call: Call, source: Tensor, batch: Batch, out: Tensor) -> Batch | None:
    """As `loss`, with a variance for each element, or for each row."""
    of_rows = source is call.argument(2, "var") and source.shape == out.shape[:-1]
    return batch if of_rows else loss(call, source, batch, out)


def loss_of_rows(call: Call, source: Tensor, batch: Batch, out: Tensor) -> Batch | None:
    """One loss for each row, or for each position of it; none is left if they were summed or averaged."""
    if not out.dim():
        return None
    if source.dim() == out.dim():
        return kept(call, source, batch, out)
    return None if batch.dim == 1 else at(batch, batch.dim - (batch.dim > 1), source, out)  # classes are gone


def loss_of_classes(place: int) -> Layout:
    """Return the layout of losses of rows that weight the classes, by argument number `place`."""

    def layout(call: Call, source: Tensor, batch: Batch, out: Tensor) -> Batch | None:
        return None if source is call.argument(place, "weight") else loss_of_rows(call, source, batch, out)

    return layout


def loss_of_distances(call: Call, source: Tensor, batch: Batch, out: Tensor) -> Batch | None:
    """One loss for each distance of two rows; none is left if they were summed or averaged."""
    return paired(call, source, batch, out) if out.dim() else None


def reshaped(call: Call, source: Tensor, batch: Batch, out: Tensor) -> Batch | None:
    """The row-major order of the elements stays: the samples lie as many elements apart as before."""
    if batch.owners is not None:
        return reshape_owners(batch, batch.owners.samples, source.shape, out.shape)
    stride = batch.inner * math.prod(source.shape[batch.dim + 1 :])
    fitting = []
    for dim, size in enumerate(out.shape):
        suffix = math.prod(out.shape[dim + 1 :])
        if size and suffix and stride % suffix == 0 and size % (stride // suffix * batch.size) == 0:
            fitting.append(batch._replace(dim=dim, inner=stride // suffix))
    # A single sample fits in many places; the one that holds nothing else keeps other dimensions what they are.
    fitting.sort(key=lambda found: out.shape[found.dim] != batch.size)
    return fitting[0] if fitting else None


def viewed(call: Call, source: Tensor, batch: Batch, out: Tensor) -> Batch | None:
    """Ask a probe without numbers, whose only nonzero stride marks the dimension."""
    strides = [int(dim == batch.dim) for dim in range(source.dim())]
    probe = torch.empty(source.shape[batch.dim], device="meta").as_strided(source.shape, strides)
    args, kwargs = substitute((call.args, call.kwargs), lambda tensor: probe if tensor is source else tensor)
    try:
        seen = call.func(*args, **kwargs)
    except RuntimeError:  # an index on another device, or a view that a meta tensor does not have
        return None
    for view in seen if isinstance(seen, (tuple, list)) else (seen,):
        if view.shape == out.shape and _compat.base_of(view) is not None:
            dims = [dim for dim, stride in enumerate(view.stride()) if stride]
            if len(dims) == 1 and _whole(view.storage_offset(), view, dims[0], source, batch):
                return batch._replace(dim=dims[0])
    return None


def pieces(place: int) -> Layout:
    """Return the layout of operations that cut a dimension, given as argument number `place`, into pieces."""

    def layout(call: Call, source: Tensor, batch: Batch, out: Tensor) -> Batch | None:
        found = viewed(call, source, batch, out)
        if found is not None or _compat.base_of(out) is None or not out.dim() or not source.stride(batch.dim):
            return found
        cut = call.argument(place, "dim", 0)
        return _cut(source, batch, out) if isinstance(cut, int) and cut % source.dim() == batch.dim else None

    return layout


def _cut(source: Tensor, batch: Batch, out: Tensor) -> Batch:
    """Return the samples that a piece of the batch dimension was cut from; `unbind` takes that dimension away."""
    start = int(out.storage_offset() - source.storage_offset()) // source.stride(batch.dim)
    owner = batch.owner(source.shape[batch.dim])
    if out.dim() == source.dim():
        return place_owners(owner[start : start + out.shape[batch.dim]], batch.dim, batch.size)
    return place_owners(owner[start].expand(len(out)), 0, batch.size)


def _whole(start: int, view: Tensor, dim: int, source: Tensor, batch: Batch) -> bool:
    """Tell whether a piece of the batch dimension holds every sample, in order."""
    if view.stride(dim) != 1:
        return False
    if batch.owners is not None:
        return start == 0 and view.shape[dim] == source.shape[batch.dim]
    period = batch.size * batch.inner
    return start % period == 0 and view.shape[dim] % period == 0


def reduced(place: int) -> Layout:
    """Return the layout of operations that sum up, average or search dimensions, given as argument number `place`."""

    def layout(call: Call, source: Tensor, batch: Batch, out: Tensor) -> Batch | None:
        dim = dim_of(call, place, None)
        if isinstance(dim, Tensor):  # torch.max(x, y)
            return lined_up(call, source, batch, out)
        if dim is None or batch.dim in (dropped := positions(dim, source.dim())):
            return None
        kept_dims = out.dim() == source.dim()
        return at(batch, batch.dim if kept_dims else batch.dim - sum(d < batch.dim for d in dropped), source, out)

    return layout


def unfolded(call: Call, source: Tensor, batch: Batch, out: Tensor) -> Batch | None:
    """`Tensor.unfold` is a view; `torch.nn.functional.unfold` takes patches of images."""
    found = viewed(call, source, batch, out)
    return found if found is not None or source.dim() < 4 else leading(call, source, batch, out)


def stacked(call: Call, source: Tensor, batch: Batch, out: Tensor) -> Batch | None:
    """A new dimension comes in."""
    new = dim_of(call, 1, 0) % (source.dim() + 1)
    return batch._replace(dim=batch.dim + (new <= batch.dim))


def joined(call: Call, source: Tensor, batch: Batch, out: Tensor) -> Batch | None:
    """One dimension is as long as that of all tensors together."""
    tensors = call.argument(0, "tensors")
    if dim_of(call, 1, 0) % source.dim() != batch.dim:
        return batch
    batches: list[Any] = [call.batch(tensor) for tensor in tensors]
    if all(other is not None and other.agrees(batch) for other in batches):
        if all(t.shape[batch.dim] == source.shape[batch.dim] for t in tensors) and batch.owners is None:
            return batch
    if any(other is None or other.size != batch.size for other in batches):
        return None
    owners = [other.owner(tensor.shape[batch.dim]) for other, tensor in zip(batches, tensors, strict=True)]
    return place_owners(torch.cat(owners), batch.dim, batch.size)


def repeated(call: Call, source: Tensor, batch: Batch, out: Tensor) -> Batch | None:
    """Copies lie one after the other, and new dimensions in front."""
    moved = batch._replace(dim=batch.dim + out.dim() - source.dim())
    copies = out.shape[moved.dim] // max(1, source.shape[batch.dim])
    if batch.owners is not None and copies != 1:
        return place_owners(batch.owners.samples.repeat(copies), moved.dim, batch.size)
    return moved


def padded(call: Call, source: Tensor, batch: Batch, out: Tensor) -> Batch | None:
    """Entries come in before and behind, or go. Those that come in along the batch would belong to nobody."""
    widths = call.argument(1, "pad")
    start = 2 * (source.dim() - 1 - batch.dim)
    before, behind = widths[start : start + 2] if len(widths) > start else (0, 0)
    if not before and not behind:
        return kept(call, source, batch, out)
    if before > 0 or behind > 0:
        return None
    return place_owners(F.pad(batch.owner(source.shape[batch.dim]), (before, behind)), batch.dim, batch.size)


def paired(call: Call, source: Tensor, batch: Batch, out: Tensor) -> Batch | None:
    """Distances of rows: lined up from the right, then the last dimension is summed over."""
    return _paired(-1, call, source, batch, out)


def paired_along(call: Call, source: Tensor, batch: Batch, out: Tensor) -> Batch | None:
    """As `paired`, along a dimension that may be named."""
    return _paired(dim_of(call, 2, 1), call, source, batch, out)


def _paired(dim: int, call: Call, source: Tensor, batch: Batch, out: Tensor) -> Batch | None:
    dims = max(tensor.dim() for tensor in tensors_in((call.args, call.kwargs)))
    gone, place = dim % dims, batch.dim + dims - source.dim()
    return None if place == gone else at(batch, place - (place > gone and out.dim() < dims), source, out)


def interleaved(call: Call, source: Tensor, batch: Batch, out: Tensor) -> Batch | None:
    """Every entry is followed by its copies."""
    repeats, dim = call.argument(1, "repeats"), dim_of(call, 2, None)
    if dim is None:
        return None
    if dim % source.dim() != batch.dim:
        return batch
    if isinstance(repeats, int) and batch.owners is None:
        return batch._replace(inner=batch.inner * repeats)
    owner = batch.owner(source.shape[batch.dim]).to(source.device)
    return place_owners(torch.repeat_interleave(owner, repeats), batch.dim, batch.size)


def transformed(*last: int) -> Layout:
    """Return the layout of Fourier transforms: along the `last` dimensions, or all, unless others are named."""

    def layout(call: Call, source: Tensor, batch: Batch, out: Tensor) -> Batch | None:
        dim = call.kwargs.get("dim", call.args[2] if len(call.args) > 2 else last or None)
        dim = tuple(range(source.dim())) if dim is None else dim
        return None if batch.dim in positions(dim, source.dim()) else kept(call, source, batch, out)

    return layout


def appended(call: Call, source: Tensor, batch: Batch, out: Tensor) -> Batch | None:
    """Features come behind all dimensions that there are."""
    return batch if out.shape[: source.dim()] == source.shape else None


def at(batch: Batch, dim: int, source: Tensor, out: Tensor) -> Batch | None:
    """Return `batch` at another dimension, None if that has another size."""
    if not 0 <= dim < out.dim() or out.shape[dim] != source.shape[batch.dim]:
        return None
    return batch if dim == batch.dim else batch._replace(dim=dim)


def first_of(call: Call) -> Any:
    """Return the first argument, which may have been given by its name."""
    return call.args[0] if call.args else next(iter(call.kwargs.values()))


def dim_of(call: Call, place: int, default: Any) -> Any:
    return call.kwargs.get("dim", call.kwargs.get("axis", call.args[place] if len(call.args) > place else default))


def positions(dims: Any, ndim: int) -> set[int]:
    return {d % max(1, ndim) for d in (dims if isinstance(dims, (tuple, list)) else (dims,))}
