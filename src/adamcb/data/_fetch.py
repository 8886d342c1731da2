"""Turning indices into a batch: what happens in a worker, or in the main process without workers."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch.utils.data import Subset, TensorDataset, default_collate, get_worker_info

from adamcb._seeds import derived_words
from adamcb.data._batch import replace_fields

# A draw's number, the loader's seed, and the draw's indices: all that goes to a worker.
Order = tuple[int, int, np.ndarray]


class Fetcher:
    """Stands in for the dataset in the workers: fetches a whole batch, and gives it back with the draw's number.

    Everything else passes through to the dataset, so that a `worker_init_fn` can use `get_worker_info().dataset`.
    """

    __slots__ = ("_collate_fn", "_dataset")

    def __init__(self, dataset: Any, collate_fn: Callable[[list[Any]], Any] | None) -> None:
        object.__setattr__(self, "_dataset", dataset)
        object.__setattr__(self, "_collate_fn", collate_fn)

    def __getitems__(self, order: Order) -> tuple[int, Any]:
        number, seed, indices = order
        if get_worker_info() is not None:
            seed_worker(seed, number)
        return number, fetch(self._dataset, self._collate_fn, indices)

    def __getitem__(self, index: Any) -> Any:
        return self._dataset[index]

    def __len__(self) -> int:
        return len(self._dataset)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dataset, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._dataset, name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        return Fetcher, (self._dataset, self._collate_fn)


def as_fetched(batch: tuple[int, Any]) -> tuple[int, Any]:
    """Return `batch`: the `Fetcher` has collated already."""
    return batch


def seed_worker(seed: int, number: int) -> None:
    """Seed this worker's own generators for one batch.

    Random transforms then depend on the draw's number alone: not on how many workers there are, which of them works on
    the batch, or what it did before. So a resumed run repeats them.
    """
    state = derived_words(seed, number, count=8)
    # Not torch.manual_seed: in a process without an accelerator's context it queues a call for every device each time.
    torch.default_generator.manual_seed(int(state[0]) << 32 | int(state[1]))
    random.seed(int(state[2]) << 32 | int(state[3]))
    np.random.seed(state[4:])


def fetch(dataset: Any, collate_fn: Callable[[list[Any]], Any] | None, indices: np.ndarray) -> Any:
    """Return the collated batch of the samples at `indices`; by one gather where the dataset allows it."""
    tensors = _tensors_below(dataset)
    if tensors is not None:
        columns = _gather(tensors, _positions(dataset, indices))
        if collate_fn is None:
            return columns
        return collate_fn(list(zip(*(column.unbind() for column in columns), strict=True)))
    batched = getattr(dataset, "__getitems__", None)
    if batched is None:
        samples = [dataset[index] for index in indices.tolist()]
    elif collate_fn is None:
        samples = _read_ascending(batched, indices)
    else:  # which may take whole batches: their order cannot be changed here
        samples = batched(indices.tolist())
    return collate(samples) if collate_fn is None else collate_fn(samples)


def _read_ascending(batched: Callable[[list[int]], list[Any]], indices: np.ndarray) -> list[Any]:
    """Ask for the samples in ascending order, as files are read best; return them in the order of the draw."""
    order = np.argsort(indices, kind="stable")
    found = batched(indices[order].tolist())
    if len(found) != len(order):
        raise ValueError(
            f"`dataset.__getitems__` must return one sample per index, got {len(found)} for {len(order)} indices. "
            "If it returns whole batches, give a `collate_fn` that takes them."
        )
    samples: list[Any] = [None] * len(order)
    for place, sample in zip(order.tolist(), found, strict=True):
        samples[place] = sample
    return samples


def collate(samples: list[Any]) -> Any:
    """Merge samples as torch's `default_collate` does; samples that are dataclasses too, field by field."""
    first = samples[0]
    if not dataclasses.is_dataclass(first) or isinstance(first, (type, Mapping)):
        return default_collate(samples)
    names = [field.name for field in dataclasses.fields(first)]
    return replace_fields(first, {name: collate([getattr(sample, name) for sample in samples]) for name in names})


def _tensors_below(dataset: Any) -> tuple[torch.Tensor, ...] | None:
    """Return the tensors of a `TensorDataset`, or of the one below a `Subset`; None for any other dataset.

    A subclass that fetches in its own way is another dataset.
    """
    while type(dataset) is Subset:
        dataset = dataset.dataset
    kind = type(dataset)
    if isinstance(dataset, TensorDataset) and kind.__getitem__ is TensorDataset.__getitem__:
        own = getattr(kind, "__getitems__", None)
        return dataset.tensors if own is getattr(TensorDataset, "__getitems__", None) else None
    return None


def _positions(dataset: Any, indices: np.ndarray) -> np.ndarray:
    """Return where the samples at `indices` stand in the dataset below all `Subset`s."""
    while type(dataset) is Subset:
        chosen = dataset.indices
        if isinstance(chosen, (np.ndarray, torch.Tensor)):
            indices = np.asarray(chosen)[indices]
        else:
            indices = np.array([chosen[index] for index in indices.tolist()])
        dataset = dataset.dataset
        indices = np.where(indices < 0, indices + len(dataset), indices)
    return indices


def _gather(tensors: tuple[torch.Tensor, ...], positions: np.ndarray) -> list[torch.Tensor]:
    # A copy, since a draw's arrays are read-only, which tensors cannot be. index_select takes a half to a twentieth of
    # the time of tensor[index].
    index = torch.from_numpy(positions.astype(np.int64))
    return [tensor.index_select(0, index.to(tensor.device)) for tensor in tensors]
