"""Small datasets of every kind; sample i can be told from what it holds."""

from __future__ import annotations

import dataclasses
import multiprocessing
import random
from collections import namedtuple
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, TensorDataset, get_worker_info

Pair = namedtuple("Pair", ["x", "y"])


@dataclasses.dataclass(frozen=True)
class Record:
    x: torch.Tensor
    name: str
    index: int


def row(index: int) -> torch.Tensor:
    return torch.tensor([index, index + 0.5])


SAMPLES = {
    "tensor": row,
    "tuple": lambda i: (row(i), i),
    "namedtuple": lambda i: Pair(row(i), i),
    "dict": lambda i: {"x": row(i), "y": i},
    "dataclass": lambda i: Record(row(i), f"sample {i}", i),
}
# Where the index is, in a batch of such samples.
INDEX_OF = {
    "tensor": lambda batch: batch.data[:, 0],
    "tuple": lambda batch: batch[1],
    "namedtuple": lambda batch: batch.y,
    "dict": lambda batch: batch["y"],
    "dataclass": lambda batch: batch.index,
}


class Made(Dataset):
    """Samples made by a function of the index; counts calls."""

    def __init__(self, size: int, kind: str = "tuple") -> None:
        self.size, self.kind, self.calls = size, kind, 0

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        assert type(index) is int
        self.calls += 1
        return SAMPLES[self.kind](index)


class Batched(Made):
    """Fetches a list of samples at once."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        assert [type(index) for index in indices] == [int] * len(indices)
        self.calls += 1
        return [SAMPLES[self.kind](index) for index in indices]


class Sorted(Made):
    """Fetches ascending indices only, as HDF5 does; notes what it was asked for."""

    def __init__(self, size: int, kind: str = "tuple") -> None:
        super().__init__(size, kind)
        self.asked: list[list[int]] = []

    def __getitems__(self, indices: list[int]) -> list[Any]:
        assert all(first <= second for first, second in pairwise(indices))
        self.asked.append(indices)
        return [SAMPLES[self.kind](index) for index in indices]


class Short(Made):
    """Loses a sample of every batch."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [SAMPLES[self.kind](index) for index in indices[1:]]


class Uneven(Made):
    """Worker 0 waits until another one has read 8 samples, two batches of 4, and so is overtaken."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.read, self.overtaken = 0, multiprocessing.get_context("fork").Event()

    def __getitem__(self, index: int) -> Any:
        worker = get_worker_info()
        self.read += 1
        if worker is not None and worker.id == 0:
            self.overtaken.wait()
        elif self.read == 8:
            self.overtaken.set()
        return super().__getitem__(index)


class Noisy(Made):
    """A random transform from each of the three global generators."""

    def __getitem__(self, index: int) -> Any:
        return index, torch.rand(()), np.random.rand(), random.random()


class Seeds(Made):
    """The seed that the worker started with."""

    def __getitem__(self, index: int) -> Any:
        worker = get_worker_info()
        assert worker is not None
        return worker.seed


class Broken(Made):
    """Sample `bad` cannot be read."""

    def __init__(self, size: int, bad: int) -> None:
        super().__init__(size)
        self.bad = bad

    def __getitem__(self, index: int) -> Any:
        if index == self.bad:
            raise OSError(f"cannot read sample {index}")
        return super().__getitem__(index)


class Doubled(TensorDataset):
    """A TensorDataset that does more than index."""

    def __getitem__(self, index: Any) -> Any:
        return tuple(2 * tensor for tensor in super().__getitem__(index))


def tensors(size: int) -> TensorDataset:
    return TensorDataset(torch.stack([row(i) for i in range(size)]), torch.arange(size))
