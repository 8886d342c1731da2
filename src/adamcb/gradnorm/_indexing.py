"""How indexing moves samples: the same operation on the numbers of the samples tells whose each entry is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from adamcb.gradnorm._batch import Batch, find_owners, place_owners, spread_owners
from adamcb.gradnorm._call import Call, Layout, substitute
from adamcb.gradnorm._layouts import appended, embedding_of, first_of, positions, viewed


def moved_along(place: int) -> Layout:
    """Return the layout of operations that exchange entries along dimensions, given from argument `place` on."""

    def layout(call: Call, source: Tensor, batch: Batch, out: Tensor) -> Batch | None:
        given = call.args[place:]
        dims = call.kwargs.get("dims", given[0] if given and isinstance(given[0], (tuple, list)) else given)
        if dims not in (None, (), []) and batch.dim not in positions(dims, source.dim()):
            return batch
        return indexed(call, source, batch, out)

    return layout


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
    return taken_along(call, source, batch, out)


def taken_along(call: Call, source: Tensor, batch: Batch, out: Tensor) -> Batch | None:
    """`take_along_dim`: an index has an entry for each that is picked, from a table of nobody's if it owns them."""
    if source is first_of(call):
        return indexed(call, source, batch, out)
    return batch if _of_nobody(first_of(call), call) and out.shape == source.shape else None


def selected(call: Call, source: Tensor, batch: Batch, out: Tensor) -> Batch | None:
    """`index_select`: rows are picked along one dimension; along the others they stay where they are."""
    dim, index = call.argument(1, "dim"), call.argument(2, "index")
    if not isinstance(dim, int):
        return indexed(call, source, batch, out)
    if source is not first_of(call):
        return batch._replace(dim=dim % out.dim()) if _of_nobody(first_of(call), call) else None
    if dim % source.dim() != batch.dim:
        return batch
    return place_owners(batch.owner(source.shape[batch.dim]).to(index.device)[index], batch.dim, batch.size)


def indexed(call: Call, source: Tensor, batch: Batch, out: Tensor) -> Batch | None:
    """Entries are picked by an index."""
    owners = _run_on_numbers(call, batch) if source is first_of(call) else None
    return _same_shape(owners, batch, out)


def written(place: int) -> Layout:
    """Entries are put into the first argument by an index; argument number `place` is what is put there."""

    def found(call: Call, source: Tensor, batch: Batch, out: Tensor) -> Batch | None:
        named = [call.kwargs[name] for name in ("src", "source", "values", "value") if name in call.kwargs]
        first, values = first_of(call), named[0] if named else call.argument(place, "")
        if source is not first and source is not values:
            return None
        owners, before = _run_on_numbers(call, batch, values=values, writes=True), call.batch(first)
        if owners is not None and before is not None and owners.shape == first.shape:
            # Constants that are written over a sample's entries belong to the sample.
            owners = torch.where(owners < 0, spread_owners(first, before), owners)
        return _same_shape(owners, batch, out)

    return found


_written_second = written(2)


def put(call: Call, source: Tensor, batch: Batch, out: Tensor) -> Batch | None:
    """`index_put`: entries are written; or added, and meet what was there."""
    return None if call.argument(3, "accumulate", False) else _written_second(call, source, batch, out)


def _run_on_numbers(call: Call, batch: Batch, *, values: Any = None, writes: bool = False) -> Tensor | None:
    """Run an operation on the numbers of the samples; return whose each entry is, None if it does not run on numbers.

    Constants, and what is made of parameters, belong to nobody: −1.
    """
    first, constant = first_of(call), writes and not isinstance(values, Tensor)

    def numbers(tensor: Tensor) -> Tensor:
        if tensor is not first and tensor is not values:
            return tensor
        mark = call.batch(tensor)
        if mark is None or mark.size != batch.size:
            return torch.full(tensor.shape, -1, device=tensor.device)
        return spread_owners(tensor, mark)

    args: Any
    owners: Any
    try:
        args, kwargs = substitute((call.args, call.kwargs), numbers)
        args = (*args[:-1], -1) if constant else args
        with torch.no_grad():
            owners = call.func(*args, **kwargs)
    except (RuntimeError, TypeError, ValueError, IndexError):
        return None
    return owners if isinstance(owners, Tensor) else args[0]  # `__setitem__` returns nothing


def _same_shape(owners: Tensor | None, batch: Batch, out: Tensor) -> Batch | None:
    if owners is None or owners.shape != out.shape:
        return None
    return find_owners(owners, batch.size, prefer=batch.dim)


def _of_nobody(table: Tensor, call: Call) -> bool:
    """Tell whether rows of a table belong to whoever owns the index that picks them: no sample owns them already."""
    return call.batch(table) is None


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


def _at_index(batch: Batch, start: int, source: Tensor, out: Tensor, index: Sequence) -> Batch | None:
    """Return where the samples of an index are; all of them are broadcast together and put at dimension `start`."""
    shape = torch.broadcast_shapes(*(each.shape for each in index if isinstance(each, Tensor)))
    dim = len(shape) - source.dim() + batch.dim
    return batch._replace(dim=start + dim) if shape[dim] == source.shape[batch.dim] else None


def picked(call: Call, source: Tensor, batch: Batch, out: Tensor) -> Batch | None:
    """Indexing with brackets: by numbers and slices, or by other tensors."""
    index = _indices(call.args[1])
    if source is not first_of(call):
        start = _start(index) if _of_nobody(first_of(call), call) else None
        return None if start is None else _at_index(batch, start, source, out, index)
    if not any(isinstance(each, (Tensor, list)) for each in index):
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
