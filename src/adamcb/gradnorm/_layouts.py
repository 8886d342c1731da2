"""How operations move samples: from where they are in an argument to where they are in the result.

A layout is a function of a `Call`, one of its arguments, where the samples are in that argument, and the result. It
returns a `Batch`, or None where the result no longer keeps samples apart. Nothing here looks at the numbers in the
batch. Indexing, which looks at the index, has a file of its own. Which operation has which layout: `_table.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from adamcb.gradnorm._batch import Batch, place_owners, reshape_owners
from adamcb.gradnorm._call import Call, substitute, tensors_in

Layout = Callable[[Call, Tensor, Batch, Tensor], "Batch | None"]


def kept(call: Call, source: Tensor, batch: Batch, out: Tensor) -> Batch | None:
    """Dimensions stay where they are; some behind the samples may come or go."""
    return _at(batch, batch.dim, source, out)


def leading(call: Call, source: Tensor, batch: Batch, out: Tensor) -> Batch | None:
    """Samples are images, or rows: they stay if they come first, and are mixed if not, or if they are weights."""
    if batch.dim != 0 or (source is not first_of(call) and source.dim() != out.dim()):
        return None
    return _at(batch, 0, source, out)


def convolved(call: Call, source: Tensor, batch: Batch, out: Tensor) -> Batch | None:
    """Samples are images. What comes without a batch has channels first, and those are summed over."""
    batched = source is first_of(call) and source.dim() == dims_needed(call.name)
    return leading(call, source, batch, out) if batched else None


def dims_needed(name: str) -> int:
    """Return how many dimensions the first argument must have for its first one to be the batch."""
    if name.startswith("conv"):
        return int(name[-2]) + 2
    return 2 if name == "linear" else 1


def by_channel(call: Call, source: Tensor, batch: Batch, out: Tensor) -> Batch | None:
    """`prelu`: dimensions stay, and a weight belongs to a channel."""
    return kept(call, source, batch, out) if source is first_of(call) else None


def bilinear(call: Call, source: Tensor, batch: Batch, out: Tensor) -> Batch | None:
    """Features come last, in both of the tensors that are multiplied."""
    factors = call.argument(0, "input1"), call.argument(1, "input2")
    multiplied = any(source is factor for factor in factors) and batch.dim < source.dim() - 1
    return kept(call, source, batch, out) if multiplied else None


def lined_up(call: Call, source: Tensor, batch: Batch, out: Tensor) -> Batch | None:
    """Dimensions are lined up from the right."""
    return _at(batch, batch.dim + out.dim() - source.dim(), source, out)


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
        return _at(batch, moved, source, out)

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
    if call.name == "gaussian_nll_loss" and source is call.argument(2, "var") and source.shape == out.shape[:-1]:
        return batch  # one variance for each row
    return lined_up(call, source, batch, out) if out.dim() else None


def loss_of_rows(call: Call, source: Tensor, batch: Batch, out: Tensor) -> Batch | None:
    """One loss for each row, or for each position of it; none is left if they were summed or averaged."""
    if call.name == "triplet_margin_loss":
        return paired(call, source, batch, out) if out.dim() else None
    weight = call.argument(4 if call.name == "multi_margin_loss" else 2, "weight")
    if not out.dim() or (source is weight and call.name != "cosine_embedding_loss"):
        return None
    if source.dim() == out.dim():
        return kept(call, source, batch, out)
    return None if batch.dim == 1 else _at(batch, batch.dim - (batch.dim > 1), source, out)  # classes are gone


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
        if view.shape == out.shape and view._is_view():
            dims = [dim for dim, stride in enumerate(view.stride()) if stride]
            if len(dims) == 1 and _whole(view.storage_offset(), view, dims[0], source, batch):
                return batch._replace(dim=dims[0])
    return None


def pieces(call: Call, source: Tensor, batch: Batch, out: Tensor) -> Batch | None:
    """`split` and its like: a piece of the batch dimension holds the samples that it was cut from."""
    found = viewed(call, source, batch, out)
    if found is not None or not out._is_view() or not out.dim() or not source.stride(batch.dim):
        return found
    # Only the dimension that is cut has another length; `unbind` takes it away.
    cut = call.argument(1 if call.name == "unbind" else 2, "dim", 0)
    if not isinstance(cut, int) or cut % source.dim() != batch.dim:
        return None
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


def reduced(call: Call, source: Tensor, batch: Batch, out: Tensor) -> Batch | None:
    """Some dimensions are summed up, averaged or searched."""
    dim = dim_of(call, 2 if call.name.endswith("norm") else 1, None)
    if isinstance(dim, Tensor):  # torch.max(x, y)
        return lined_up(call, source, batch, out)
    if dim is None or batch.dim in (dropped := positions(dim, source.dim())):
        return None
    kept_dims = out.dim() == source.dim()
    return _at(batch, batch.dim if kept_dims else batch.dim - sum(d < batch.dim for d in dropped), source, out)


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
    """Distances of rows: lined up from the right, then one dimension is summed over."""
    dims = max(tensor.dim() for tensor in tensors_in((call.args, call.kwargs)))
    gone = (dim_of(call, 2, 1) if call.name == "cosine_similarity" else -1) % dims
    place = batch.dim + dims - source.dim()
    return None if place == gone else _at(batch, place - (place > gone and out.dim() < dims), source, out)


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


def matrix_product(call: Call, source: Tensor, batch: Batch, out: Tensor) -> Batch | None:
    """Leading dimensions are lined up from the right; what is summed over is gone."""
    first, second = _factors(call)
    if source is not first and source is not second:
        return lined_up(call, source, batch, out)  # what the product is added to
    place = batch.dim - source.dim()
    if source is first:
        if place == -1:
            return None
        place += second.dim() == 1
    else:
        if source.dim() == 1 or place == -2:
            return None
        place += first.dim() == 1 and place < -2
    return _at(batch, out.dim() + place, source, out)


def _factors(call: Call) -> tuple[Tensor, Tensor]:
    """Return the two tensors that are multiplied, in any of torch's products of matrices."""
    if call.name in ("addmm", "baddbmm", "addmv", "addbmm"):
        named = [call.kwargs[key] for key in ("mat1", "mat2", "mat", "vec", "batch1", "batch2") if key in call.kwargs]
        first, second = (*call.args[1:3], *named)
    else:
        first, second = (*call.args, *call.kwargs.values())[:2]
    return (second, first) if call.name == "__rmatmul__" else (first, second)


def dense(call: Call, source: Tensor, batch: Batch, out: Tensor) -> Batch | None:
    """`linear`: features come last, and the rows of a matrix that holds samples become the last dimension."""
    if source is first_of(call):
        return kept(call, source, batch, out) if batch.dim < source.dim() - 1 else None
    if source is call.argument(1, "weight"):
        return _at(batch, out.dim() - 1, source, out) if batch.dim == 0 and source.dim() == 2 else None
    return lined_up(call, source, batch, out)


def distances(call: Call, source: Tensor, batch: Batch, out: Tensor) -> Batch | None:
    """`cdist`: rows of the first against rows of the second."""
    place = batch.dim - source.dim()
    if place == -1:
        return None
    return _at(batch, out.dim() + (place if source is first_of(call) or place < -2 else -1), source, out)


def attention(call: Call, source: Tensor, batch: Batch, out: Tensor) -> Batch | None:
    """The last two dimensions are positions and features, the others are lined up."""
    place = batch.dim - source.dim()
    if place < -2 or (place == -2 and source is call.argument(0, "query")):
        return _at(batch, out.dim() + place, source, out)
    return None


def einsum(call: Call, source: Tensor, batch: Batch, out: Tensor) -> Batch | None:
    """The samples' letter says where they go."""
    operands = call.args[1] if len(call.args) == 2 and isinstance(call.args[1], (tuple, list)) else call.args[1:]
    if not isinstance(call.args[0], str) or "->" not in call.args[0]:
        return None
    inputs, output = call.args[0].replace(" ", "").split("->")
    for letters, operand in zip(inputs.split(","), operands, strict=True):
        if operand is source:
            before, after = letters_of(letters, source.dim()), letters_of(output, out.dim())
            return batch._replace(dim=after.index(before[batch.dim])) if before[batch.dim] in after else None
    return None


def letters_of(equation: str, dims: int) -> list[Any]:
    """Return one name for each dimension: letters, and numbers from the right for what an ellipsis stands for."""
    if "..." not in equation:
        return list(equation)
    left, right = equation.split("...")
    hidden = dims - len(left) - len(right)
    return [*left, *range(-hidden, 0), *right]


def tensordot(call: Call, source: Tensor, batch: Batch, out: Tensor) -> Batch | None:
    """Dimensions that are summed over are gone; those of the second tensor come behind those of the first."""
    first, dims = call.argument(0, "a"), call.argument(2, "dims", 2)
    if isinstance(dims, int):
        dims = list(range(first.dim() - dims, first.dim())), list(range(dims))
    gone = positions(dims[0 if source is first else 1], source.dim())
    if batch.dim in gone:
        return None
    start = 0 if source is first else first.dim() - len(dims[0])
    return _at(batch, start + batch.dim - sum(d < batch.dim for d in gone), source, out)


def transformed(call: Call, source: Tensor, batch: Batch, out: Tensor) -> Batch | None:
    """Fourier transforms: along the last dimension, the last two, or those that are named."""
    width = 2 if call.name.endswith("2") else source.dim() if call.name.endswith("n") else 1
    dim = call.kwargs.get("dim", call.args[2] if len(call.args) > 2 else tuple(range(-width, 0)))
    dim = tuple(range(source.dim())) if dim is None else dim
    return None if batch.dim in positions(dim, source.dim()) else kept(call, source, batch, out)


def appended(call: Call, source: Tensor, batch: Batch, out: Tensor) -> Batch | None:
    """Features come behind all dimensions that there are."""
    return batch if out.shape[: source.dim()] == source.shape else None


def _at(batch: Batch, dim: int, source: Tensor, out: Tensor) -> Batch | None:
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
