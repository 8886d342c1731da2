"""Packed sequences: which rows of the data belong to whom, and in which order a recurrent layer reads them.

The data of a `PackedSequence` holds step after step: the first rows of all sequences, then the second rows of those
that have one, and so on. The sequences stand in an order of their own, the longest first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from adamcb.gradnorm._batch import Batch, find_owners, place_owners
from adamcb.gradnorm._call import Call


def packed(call: Call, source: Tensor, batch: Batch, out: Tensor) -> Batch | None:
    """`_pack_padded_sequence`: the same operation on the numbers of the samples tells whose each row is."""
    first = call.argument(0, "input")
    if source is not first or batch.dim > 1 or out.dim() != source.dim() - 1:
        return None
    shape = [1, 1]
    shape[batch.dim] = -1
    owner = batch.owner(source.shape[batch.dim]).view(shape).expand(source.shape[:2])
    rows = call.func(owner.contiguous(), *call.args[1:], **call.kwargs)[0]
    return place_owners(rows.to(source.device), 0, batch.size) if len(rows) == len(out) else None


def padded_back(call: Call, source: Tensor, batch: Batch, out: Tensor) -> Batch | None:
    """`_pad_packed_sequence`: rows go back to where they came from, and a sequence's padding belongs to its sample."""
    data, sizes, first = call.argument(0, "data"), call.argument(1, "batch_sizes"), call.argument(2, "batch_first")
    if source is not data or batch.dim:
        return None
    owner = batch.owner(len(data))
    if out.dim() == 1:  # the lengths
        return place_owners(owner[: int(sizes[0])], 0, batch.size)
    rows = call.func(owner.cpu(), sizes, first, -1, out.shape[1 if first else 0])[0]
    found = find_owners(rows.to(source.device), batch.size, prefer=0 if first else 1)
    return found if found is not None and found.dim < 2 else None


def padded_rows(call: Call, source: Tensor, batch: Batch, out: Tensor) -> Batch | None:
    """`pad_sequence`: every tensor of the list becomes a row, which must belong to one sample."""
    sequences = call.argument(0, "sequences")
    batches: list[Any] = [call.batch(each) for each in sequences]
    if any(each is None or each.dim or each.size != batch.size for each in batches):
        return None
    owners = [each.owner(len(tensor)).cpu() for each, tensor in zip(batches, sequences, strict=True)]
    if any(not len(owner) or bool((owner != owner[0]).any()) for owner in owners):
        return None
    rows = torch.stack([owner[0] for owner in owners]).to(source.device)
    return place_owners(rows, 0 if call.argument(1, "batch_first", False) else 1, batch.size)


def packs_in(value: Any) -> Iterator[PackedSequence]:
    """Yield the packed sequences in nested tuples, lists and mappings."""
    if isinstance(value, PackedSequence):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from packs_in(item)
    elif isinstance(value, Mapping):
        yield from packs_in(list(value.values()))


def rows_of(pack: PackedSequence) -> Batch:
    """Return whose each row of the data is. The samples are the sequences in their order before the sort."""
    count = int(pack.batch_sizes[0])
    order = torch.arange(count) if pack.sorted_indices is None else pack.sorted_indices.cpu()
    rows = torch.cat([order[: int(size)] for size in pack.batch_sizes])
    return place_owners(rows.to(pack.data.device), 0, count)


class Steps:
    """How a recurrent layer goes through packed data: T steps of n sequences, of which some have ended.

    Args:
        sizes: int64[T], how many sequences have a row at each step.
        device: Where the data are.

    Attributes:
        active: bool[T, n, 1], whether a sequence has a row at a step.
        ends: int64[n], the entry of [T·n, …] at which each sequence ends.
    """

    def __init__(self, sizes: Tensor, device: torch.device) -> None:
        count = int(sizes[0])
        step, sequence = torch.arange(len(sizes)).unsqueeze(1), torch.arange(count)
        lengths = (sizes.unsqueeze(1) > sequence).sum(0)
        first = sizes.cumsum(0) - sizes
        self.shape = len(sizes), count
        self.active = (step < lengths).unsqueeze(2).to(device)
        self.ends = ((lengths - 1) * count + sequence).to(device)
        self._rows, self._entries = [], []
        for at in (step.minimum(lengths - 1), (lengths - 1 - step).clamp(min=0)):  # forward, and from the end
            self._rows.append((first[at] + sequence).flatten().to(device))
            self._entries.append((at * count + sequence)[self.active.squeeze(2).cpu()].to(device))

    def spread(self, data: Tensor, *, reverse: bool) -> Tensor:
        """Return [T, n, …]: the rows of each sequence as the layer reads them. After its last, one comes again."""
        return data.index_select(0, self._rows[reverse]).unflatten(0, self.shape)

    def gather(self, results: Tensor, *, reverse: bool) -> Tensor:
        """Return the rows of the data from what the layer made of [T, n, …]."""
        return results.flatten(0, 1).index_select(0, self._entries[reverse])
