"""A loaded batch together with the draw that chose it."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

import torch

from adamcb import _checks
from adamcb.selection import Draw


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class SelectedBatch:
    """What `collate_fn` returned, with the draw that chose it.

    It behaves as `data` does: it unpacks (`for x, y in loader`), has its length, its items (`batch["x"]`, `batch[0]`),
    its keys (`model(**batch)`) and its attributes (`batch.labels`). Where the thing itself is needed, as when samples
    are single tensors, take `batch.data`.

    Attributes:
        data: What `collate_fn` returned; row j belongs to sample `draw.indices[j]`.
        draw: The draw: indices, and the probabilities of the moment when it was made.

    Example:
        >>> from adamcb.selection import UniformSelection
        >>> batch = SelectedBatch({"x": torch.zeros(4, 2)}, UniformSelection(10, 4).draw())
        >>> batch["x"].shape, batch.to("meta")["x"].device
        (torch.Size([4, 2]), device(type='meta'))
    """

    data: Any
    draw: Draw

    def __post_init__(self) -> None:
        _checks.instance("draw", self.draw, Draw, "a Draw")

    def to(self, device: torch.device | str | int, non_blocking: bool = False) -> SelectedBatch:
        """Return the batch with every tensor in it on `device`; the draw stays on the CPU.

        Tensors are found in lists, tuples, mappings and dataclasses; objects with a `to` of their own do it themselves.
        """
        place = _checks.device("device", device)
        return SelectedBatch(_move(self.data, place, _checks.boolean("non_blocking", non_blocking)), self.draw)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.data)

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, key: Any) -> Any:
        return self.data[key]

    def __contains__(self, item: Any) -> bool:
        return item in self.data

    def __getattr__(self, name: str) -> Any:
        # Do not forward dunder lookups to `data`; during unpickling `data` does not exist yet.
        if name.startswith("__") or name in ("data", "draw"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.data, name)


def _move(data: Any, device: Any, non_blocking: bool) -> Any:
    """Return `data` with every tensor in it on `device`."""
    if isinstance(data, torch.Tensor):
        return data.to(device, non_blocking=non_blocking)
    if callable(getattr(data, "to", None)):
        moved = data.to(device)
        return data if moved is None else moved  # Some move themselves in place and return nothing.
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(_move(item, device, non_blocking) for item in data))
    if isinstance(data, (list, tuple)):
        return type(data)(_move(item, device, non_blocking) for item in data)
    if isinstance(data, Mapping):
        return _replace_items(data, {key: _move(item, device, non_blocking) for key, item in data.items()})
    if dataclasses.is_dataclass(data) and not isinstance(data, type):
        fields = [field.name for field in dataclasses.fields(data)]
        return replace_fields(data, {name: _move(getattr(data, name), device, non_blocking) for name in fields})
    return data


def _replace_items(data: Mapping[Any, Any], items: dict[Any, Any]) -> Mapping[Any, Any]:
    if type(data) is dict or not isinstance(data, MutableMapping):
        return items
    clone = copy.copy(data)  # The type may have more to it than its items.
    clone.update(items)
    return clone


def replace_fields(record: Any, values: dict[str, Any]) -> Any:
    """Return a copy of a dataclass instance with other values in its fields.

    Not `dataclasses.replace`: that runs `__post_init__`, which is written for one sample, and refuses `init=False`.
    """
    clone = copy.copy(record)
    for name, value in values.items():
        object.__setattr__(clone, name, value)
    return clone
