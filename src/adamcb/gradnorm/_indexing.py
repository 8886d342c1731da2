"""How indexing moves samples: the same operation on the numbers of the samples tells whose each entry is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from adamcb.gradnorm._batch import Batch, find_owners, place_owners, spread_owners
from adamcb.gradnorm._call import Call, substitute
from adamcb.gradnorm._layouts import appended, embedding_of, first_of, positions, viewed

# Operations that put values into their first argument.
_WRITES = {
    "__setitem__",
    "index_put",
    "index_put_",
    "index_copy",
    "index_copy_",
    "scatter",
    "scatter_",
    "masked_scatter",
}


def moved_along(call: Call, source: Tensor, batch: Batch, out: Tensor) -> Batch | None:
    """Entries change places along some dimensions: `flip`, and `roll`, where the dimensions come last or not at all."""
    given = call.args[1:] if call.name == "flip" else call.args[2:]
    dims = call.kwargs.get("dims", given[0] if given and isinstance(given[0], (tuple, list)) else given)
    if dims not in (None, (), []) and batch.dim not in positions(dims, source.dim()):
        return batch
    return indexed(call, source, batch, out)


def embedded(call: Call, source: Tensor, batch: Batch, out: Tensor) -> Batch | None:
    """Rows of a table come where the index has their numbers."""
    index, table = embedding_of(call)
    if source is not table:
        return appended(call, source, batch, out)
    if batch.dim:
        return batch._replace(dim=out.dim() - 1)
    owner = batch.owner(len(table)).to(index.device)[index]
    return find_owners(owner, batch.size) if owner.dim() else None


def gathered(call: Call, source: Tensor, batch: Batch, out: Tensor) -> Batch | None:
    """`gather`: entries are picked along one dimension; along the others they stay where they are."""
    dim = call.argument(1, "dim")
    if source is first_of(call) and isinstance(dim, int) and out.dim() == source.dim():
        if dim % source.dim() != batch.dim and out.shape[batch.dim] == source.shape[batch.dim]:
            return batch
    return indexed(call, source, batch, out)


def selected(call: Call, source: Tensor, batch: Batch, out: Tensor) -> Batch | None:
    """`index_select`: rows are picked along one dimension; along the others they stay where they are."""
    dim, index = call.argument(1, "dim"), call.argument(2, "index")
    if source is not first_of(call) or not isinstance(dim, int):
        return indexed(call, source, batch, out)
    if dim % source.dim() != batch.dim:
        return batch
    return place_owners(batch.owner(source.shape[batch.dim]).to(index.device)[index], batch.dim, batch.size)


def indexed(call: Call, source: Tensor, batch: Batch, out: Tensor) -> Batch | None:
    """Entries are picked, or put, by an index. Constants, and what is made of parameters, belong to nobody."""
    first, values = first_of(call), _values(call)
    constant = call.name in _WRITES and not isinstance(values, Tensor)
    if call.name.startswith("index_put") and call.argument(3, "accumulate", False):
        return None  # what is written meets what was there

    def numbers(tensor: Tensor) -> Tensor:
        if tensor is not first and tensor is not values:
            return tensor
        mark = call.batch(tensor)
        if mark is None or mark.size != batch.size:
            return torch.full(tensor.shape, -1, device=tensor.device)
        return spread_owners(tensor, mark)

    if source is not first and source is not values:
        return _of_index(call, source, batch, out)
    args: Any
    owners: Any
    try:
        args, kwargs = substitute((call.args, call.kwargs), numbers)
        args = (*args[:-1], -1) if constant else args
        with torch.no_grad():
            owners = call.func(*args, **kwargs)
    except (RuntimeError, TypeError, ValueError, IndexError):
        return None
    owners = owners if isinstance(owners, Tensor) else args[0]  # `__setitem__` returns nothing
    before = call.batch(first)
    if call.name in _WRITES and before is not None and owners.shape == first.shape:
        # Constants that are written over a sample's entries belong to the sample.
        owners = torch.where(owners < 0, spread_owners(first, before), owners)
    return find_owners(owners, batch.size, prefer=batch.dim) if owners.shape == out.shape else None


def _values(call: Call) -> Any:
    """Return what an operation puts into its first argument."""
    if call.name not in _WRITES:
        return None
    named = [call.kwargs[name] for name in ("src", "source", "values", "value") if name in call.kwargs]
    place = 2 if call.name in ("__setitem__", "index_put", "index_put_", "masked_scatter") else 3
    return named[0] if named else call.argument(place, "")


def _of_index(call: Call, source: Tensor, batch: Batch, out: Tensor) -> Batch | None:
    """Whoever owns the index owns what it picks, unless that has an owner of its own: rows of a table."""
    if call.batch(first_of(call)) is not None:
        return None
    if call.name == "index_select":
        dim = call.argument(1, "dim") % out.dim()
        return batch._replace(dim=dim)
    if call.name in ("gather", "take_along_dim"):
        return batch if out.shape == source.shape else None
    start = _start(_indices(call.args[1])) if call.name == "__getitem__" else None
    return None if start is None else _put(batch, start, source, out, _indices(call.args[1]))


def _start(index: Sequence) -> int | None:
    """Return the dimension at which brackets put what tensors pick: theirs, or the first if others are in between."""
    if any(not isinstance(each, (Tensor, int, slice, type(None), type(...))) for each in index):
        return None
    if any(isinstance(each, bool) or (isinstance(each, Tensor) and each.dtype == torch.bool) for each in index):
        return None
    # Numbers take their dimensions away before.
    left = [each for each in index if isinstance(each, Tensor) or not isinstance(each, int)]
    places = [place for place, each in enumerate(left) if isinstance(each, Tensor)]
    if places[-1] - places[0] >= len(places):
        return 0
    return None if any(each is ... for each in left[: places[0]]) else places[0]


def _put(batch: Batch, start: int, source: Tensor, out: Tensor, index: Sequence) -> Batch | None:
    """Return where the samples of an index are; all of them are broadcast together and put at dimension `start`."""
    shape = torch.broadcast_shapes(*(each.shape for each in index if isinstance(each, Tensor)))
    dim = len(shape) - source.dim() + batch.dim
    return batch._replace(dim=start + dim) if shape[dim] == source.shape[batch.dim] else None


def picked(call: Call, source: Tensor, batch: Batch, out: Tensor) -> Batch | None:
    """Indexing with brackets: by numbers and slices, or by other tensors."""
    index = _indices(call.args[1])
    if source is first_of(call) and not any(isinstance(each, (Tensor, list)) for each in index):
        found = viewed(call, source, batch, out)
        return found if found is not None else indexed(call, source, batch, out)
    return indexed(call, source, batch, out)


def _indices(index: Any) -> Sequence:
    return index if isinstance(index, tuple) else (index,)


def added_at(call: Call, source: Tensor, batch: Batch, out: Tensor) -> Batch | None:
    """Rows are added to rows: right if each goes to a row of its own sample."""
    base, dim, index, values = (call.argument(i, n) for i, n in enumerate(("input", "dim", "index", "source")))
    values = call.kwargs.get("src", values)
    into = call.batch(base)
    where, size = dim % base.dim(), batch.size
    mine = batch if source is values else call.batch(values)
    if mine is None or (into is not None and (into.dim != where or mine.dim != where)):
        same = into is None or mine is None or (into.dim == mine.dim and into.agrees(mine))
        either = into or mine
        return either if same and either is not None and either.dim != where else None
    if mine.dim != where or mine.size != size:
        return mine if mine.dim != where else None
    rows = index if index.dim() == 1 else index.movedim(where, 0).flatten(1)[:, 0]
    owner = mine.owner(values.shape[where]).to(index.device)[: len(rows)]
    if index.dim() > 1 and not (index.movedim(where, 0).flatten(1) == rows.unsqueeze(1)).all():
        return None
    found = torch.full((base.shape[where],), -1, device=index.device, dtype=torch.long)
    rows, owner = rows[owner >= 0], owner[owner >= 0]  # constants may be added to anybody's rows
    found[rows] = owner
    if not torch.equal(found[rows], owner):
        return None  # rows of two samples meet in one
    if into is not None:
        mine_before = into.owner(base.shape[where]).to(index.device)
        if ((found >= 0) & (mine_before >= 0) & (found != mine_before)).any():
            return None
        found = torch.where(found >= 0, found, mine_before)
    return place_owners(found, where, size)
