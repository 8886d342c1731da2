"""Finds the samples in the results of operations, from where they are in the arguments."""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from adamcb.gradnorm import _indexing, _layouts, _product_layouts
from adamcb.gradnorm._batch import Batch, Mixed, find_owners, place_owners, spread_owners
from adamcb.gradnorm._call import Call, Mark, is_in_place, is_parameter, substitute, tensors_in
from adamcb.gradnorm._packed import packs_in, rows_of
from adamcb.gradnorm._probe import Probe
from adamcb.gradnorm._table import OPERATIONS

# Where other arguments than the first must hold no samples, and how many dimensions the first must have.
_DIMS = {
    _layouts.leading: 1,
    _product_layouts.dense: 2,
    _layouts.convolved_1d: 3,
    _layouts.convolved_2d: 4,
    _layouts.convolved_3d: 5,
}
_QUICK = {_layouts.kept, _layouts.lined_up, *_DIMS}
# What reads shapes and settings alone. Numbers of repetitions are read themselves, and so is an index that is a tensor:
# `_key_of` looks for that.
_PLAIN_FILES = (_layouts.__name__, _product_layouts.__name__)
_BY_SHAPE = {
    layout
    for layout in (operation.layout for operation in OPERATIONS.values())
    if layout is not None and layout.__module__ in _PLAIN_FILES and layout is not _layouts.interleaved
} | {_indexing.picked}
_SETTINGS = frozenset((int, float, bool, str, type(None), type(...), torch.dtype, torch.device))


def same_shape(call: Call, out: Tensor) -> Batch | None:
    """Answer the most common case at once: samples in front of the first argument, and a result like it."""
    layout: Any = call.operation.layout
    if layout not in _QUICK or not call.args:
        return None
    first = call.args[0]
    batch = call.marks.get(id(first))
    if type(batch) is not Batch or batch.dim != 0 or out.dim() != first.dim() or out.shape[0] != first.shape[0]:
        return None
    dims = _DIMS.get(layout, 0)
    if first.dim() < dims:
        return None
    if dims or len(call.marks) > 1:
        for tensor in tensors_in((call.args[1:], call.kwargs)):
            mark = call.marks.get(id(tensor))
            if type(mark) is Mixed:
                return None
            if type(mark) is Batch and (dims or mark is not batch or tensor.dim() != first.dim()):
                return None
    return batch


_Sources = list[tuple[Tensor, Batch]]


class Places:
    """Finds the samples in the results of one model's operations.

    Attributes:
        size: The number of samples in the inputs.
    """

    def __init__(self) -> None:
        self.size = 0
        self._ragged: Tensor | None = None
        self._probe = Probe()
        self._known: dict[Hashable, Batch] = {}

    def recall(self, call: Call, out: Tensor) -> Batch | None:
        """Return where the samples are if the same operation on arguments of the same kind was seen before."""
        call.key = _key_of(call, out)
        return None if call.key is None else self._known.get(call.key)

    def remember(self, call: Call, out: Tensor, batch: Batch) -> None:
        """Keep what was found for `recall`, which has been asked before."""
        if call.key is not None and batch.owners is None:
            if len(self._known) > 10_000:  # every batch has a new shape
                self._known.clear()
            self._known[call.key] = batch

    def of_inputs(self, inputs: Any, samples: Tensor | None) -> Iterator[tuple[Tensor, Mark]]:
        """Yield the input tensors that hold samples, and where: along the first dimension.

        Args:
            inputs: What the model was given. A packed sequence says itself whose its rows are.
            samples: int64[n], the sample of each row of the tensors that have n rows; None if rows are samples.
        """
        tensors = [tensor for tensor in tensors_in(inputs) if tensor.dim() and not is_parameter(tensor)]
        self._ragged = samples
        if samples is not None:
            self.size = int(samples.max()) + 1 if len(samples) else 0
            ragged = place_owners(samples.long(), 0, self.size)
        elif packs := list(packs_in(inputs)):
            of_packs = {id(tensor) for pack in packs for tensor in pack if tensor is not None}
            tensors = [tensor for tensor in tensors if id(tensor) not in of_packs]
            self.size, ragged = int(packs[0].batch_sizes[0]), None
            yield from ((pack.data, rows_of(pack)) for pack in packs)
        else:
            sizes = [tensor.shape[0] for tensor in tensors if tensor.dim() > 1] or [t.shape[0] for t in tensors]
            self.size = next((size for size in sizes if size != 1), 1 if sizes else 0)
            ragged = None
        for tensor in tensors:
            if ragged is not None and samples is not None and tensor.shape[0] == len(samples):
                yield tensor, ragged
            elif tensor.shape[0] == self.size:
                yield tensor, Batch(0, self.size)
            elif tensor.requires_grad or (tensor.dim() > 1 and tensor.shape[0] != 1 and samples is None):
                why = f"the inputs have {self.size} and {tensor.shape[0]} rows"
                yield tensor, Mixed(self.size, f"the size of the batch cannot be told: {why}")

    def reordered(self, batch: Batch, length: int) -> str | None:
        """Return in which order samples come along a dimension, None if it is that of the model's inputs."""
        if batch.owners is None or self._ragged is not None:
            return None
        owner = batch.owner(length).tolist()
        if length == batch.size:
            right = all(mine in (-1, place) for place, mine in enumerate(owner))
        else:  # several rows of a sample, as of tokens that a mask picked
            firsts = list(dict.fromkeys(mine for mine in owner if mine >= 0))
            right = firsts == sorted(firsts)
        return None if right else ", ".join(map(str, owner[:8])) + (", …" if length > 8 else "")

    def find(self, call: Call, number: int, out: Tensor) -> tuple[Mark | None, str | None]:
        """Return what is known of result number `number`, and why a gradient must not reach it, if so."""
        call = _told_apart(call)
        marked = [(t, call.marks[id(t)]) for t in tensors_in((call.args, call.kwargs)) if id(t) in call.marks]
        sources = [(t, mark) for t, mark in marked if type(mark) is not type(None) and not _made(mark)]
        live = [(t, mark) for t, mark in sources if t.requires_grad]
        quiet = []
        if live and out.requires_grad:  # what wants no gradient mixes nothing, unless it has the samples elsewhere
            quiet = [(t, mark) for t, mark in sources if not t.requires_grad and isinstance(mark, Batch)]
            sources = live
        if not out.requires_grad and not torch.is_grad_enabled():
            return self._unrecorded(call, sources, number, out), None
        if not out.requires_grad:
            # A constant for gradients. If its samples are lost, its rows get gradients as rows of a constant do.
            batches = [(t, mark) for t, mark in sources if isinstance(mark, Batch)]
            return self._agreed(call, batches, [], number, out) if batches else None, None
        mixed = [mark for _, mark in sources if isinstance(mark, Mixed)]
        batches = [(t, mark) for t, mark in sources if isinstance(mark, Batch)]
        if mixed:
            alone = all(mark.pooled for mark in mixed) and not batches
            worst = next((mark for mark in mixed if not mark.pooled), mixed[0])
            again = None if alone else f"samples are mixed in `{call.name}`: {worst.why}."
            return worst._replace(pooled=alone, silent=False), again
        found = self._agreed(call, batches, quiet, number, out)
        if found is not None:
            return found, None
        size = batches[0][1].size
        if size == 1 and out.dim() and not any(mark.owners for _, mark in batches):
            return Batch(0, 1), None
        shapes = " and ".join(str(tuple(t.shape)) for t, _ in batches[:3])
        why = f"`{call.name}` makes {tuple(out.shape)} of {shapes}, and does not keep samples apart"
        # Sums over samples are harmless as a loss. Losses are sums if one number is left.
        pooled = call.operation.pools or (call.operation.is_loss and not out.dim())
        return Mixed(size, why, pooled=pooled), None if pooled else f"samples are mixed: {why}."

    def _unrecorded(self, call: Call, sources: list[tuple[Tensor, Any]], number: int, out: Tensor) -> Mark | None:
        """Judge a result without a graph: most are constants, but a custom function may return it."""
        known = [(t, mark if isinstance(mark, Batch) else mark.place) for t, mark in sources]
        batches = [(t, place) for t, place in known if place is not None]
        found = self._agreed(call, batches, [], number, out) if batches else None
        layout, apart = call.operation.layout, found is not None
        for tensor, mark in sources:
            place = layout(call, tensor, mark, out) if layout is not None and isinstance(mark, Batch) else None
            apart = apart and place is not None and place.agrees(found)  # type: ignore[arg-type]
        why = f"samples are mixed: a custom autograd function runs `{call.name}`, which does not keep them apart"
        return found if apart else Mixed(self.size, why, silent=True, place=found)

    def _agreed(self, call: Call, batches: _Sources, quiet: _Sources, number: int, out: Tensor) -> Batch | None:
        layout = call.operation.layout
        if layout is None and not out.requires_grad:
            return None
        if layout is None:
            return self._probe.place(call, batches, number, out)
        places = [layout(call, tensor, batch, out) for tensor, batch in batches]
        places += [place for tensor, batch in quiet if (place := layout(call, tensor, batch, out)) is not None]
        sure = [place for place in places if place is not None and place.sure]
        if not out.requires_grad:
            places = [place for place in (*sure, *places) if place is not None][:1]
        if not places or any(place is None or not place.agrees(places[0]) for place in places):
            return None
        found = sure[0] if sure else places[0]
        return found if self._ragged is None or found is None else self._filled(call, found)

    def _filled(self, call: Call, found: Batch) -> Batch:
        """Give rows to which nothing was added, as nodes without a message, to whom the inputs give them."""
        rows: Any = self._ragged
        if found.owners is None or call.operation.layout is not _indexing.added_at:
            return found
        mine = found.owners.samples.cpu()
        same = len(mine) == len(rows) and bool(((mine < 0) | (mine == rows.cpu())).all())
        return place_owners(rows.long(), found.dim, found.size) if same else found


def _told_apart(call: Call) -> Call:
    """Return the call with another tensor wherever one was given before: layouts ask which argument they look at."""
    given = tensors_in((call.args, call.kwargs))
    if len(given) < 2 or len({id(tensor) for tensor in given}) == len(given):
        return call
    marks, seen = dict(call.marks), set()

    def alias(tensor: Tensor) -> Tensor:
        if id(tensor) not in seen:
            seen.add(id(tensor))
            return tensor
        again = tensor.detach().requires_grad_(tensor.requires_grad)
        if id(tensor) in marks:
            marks[id(again)] = marks[id(tensor)]
        return again

    args, kwargs = substitute((call.args, call.kwargs), alias)
    apart = Call(call.name, call.func, args, kwargs, marks, call.operation)
    apart.key = call.key
    return apart


class Written:
    """What operations in place put into views of a tensor that nobody had marked.

    Args:
        base: The tensor.
    """

    def __init__(self, base: Tensor) -> None:
        self.base = weakref.ref(base)
        self._writes: list[tuple[Any, Mark]] = []

    def add(self, view: Tensor, mark: Mark) -> None:
        """Note that a view of the tensor, of which `base` is still alive, holds what `mark` says."""
        base: Any = self.base()
        offset = view.storage_offset() - base.storage_offset()
        self._writes.append(((view.shape, view.stride(), offset), mark))

    def mark(self) -> Mark | None:
        """Return what is known of the tensor as a whole."""
        base: Any = self.base()
        batches = [mark for _, mark in self._writes if isinstance(mark, Batch)]
        if len(batches) < len(self._writes):
            return next(mark for _, mark in self._writes if isinstance(mark, Mixed))
        owners = torch.empty_strided(base.shape, base.stride(), dtype=torch.long).fill_(-1)
        for geometry, batch in zip(self._writes, batches, strict=True):
            place = owners.as_strided(*geometry[0])
            place.copy_(spread_owners(place, batch))
        found = find_owners(owners, batches[0].size)
        return found or Mixed(batches[0].size, "rows of several samples were written into one tensor")


def _key_of(call: Call, out: Tensor) -> Hashable:
    """Return all that a layout depends on: shapes, settings, where the samples are. None if it may be more."""
    layout = call.operation.layout
    if layout not in _BY_SHAPE or is_in_place(call.name):
        return None
    if layout is _indexing.picked and (len(call.args) < 2 or tensors_in(call.args[1])):
        return None
    key: list[Hashable] = [call.name, out.shape, out.requires_grad, torch.is_grad_enabled()]
    seen: list[int] = []
    known = _add_to_key(key, call.args, call.marks, seen)
    for name, value in call.kwargs.items():
        key.append(name)
        known = known and _add_to_key(key, (value,), call.marks, seen)
    return tuple(key) if known else None


def _add_to_key(key: list[Hashable], values: Sequence[Any], marks: dict[int, Any], seen: list[int]) -> bool:
    for value in values:
        kind = type(value)
        if kind is Tensor or kind is Parameter:
            mark = marks.get(id(value))
            if type(mark) is Mixed or (type(mark) is Batch and mark.owners is not None):
                return False
            if id(value) not in seen:
                seen.append(id(value))
            key += (value.shape, value.requires_grad, mark if type(mark) is Batch else mark is None)
            key.append(seen.index(id(value)))
        elif kind in _SETTINGS:
            key.append(value)
        elif kind is slice:
            key += ("slice", value.start, value.stop, value.step)
            if not {type(value.start), type(value.stop), type(value.step)} <= _SETTINGS:
                return False
        elif kind in (tuple, list, torch.Size):
            key.append(len(value))
            if not _add_to_key(key, value, marks, seen):
                return False
        else:
            return False
    return True


def _made(mark: Any) -> bool:
    return not isinstance(mark, (Batch, Mixed))


def alike(call: Call, mark: Mark | None, piece: Tensor) -> bool:
    """Tell whether a piece holds the samples as the one before, of the same size: unless it was their dimension's."""
    source = call.marks.get(id(call.args[0])) if call.operation.cuts and call.args else None
    if type(source) is not Batch or type(mark) is not Batch or source.owners is not None or mark.owners is not None:
        return type(source) is Mixed
    return piece.shape[mark.dim] == call.args[0].shape[source.dim]
