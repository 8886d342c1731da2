"""Remembers what is known of tensors, and forgets it where something that cannot be seen changed their numbers."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from torch import Tensor

from adamcb.gradnorm import _compat
from adamcb.gradnorm._call import Mark, Operation, is_in_place, tensors_in


class Marks:
    """What is known of tensors, for as long as they live and nobody else changes them.

    Autograd counts the changes in place of a tensor and its views. A mark holds the count, and changes by operations
    that were seen are noted: any other change makes what was known worthless.
    """

    def __init__(self) -> None:
        self._marks: dict[int, tuple[weakref.ref, Mark, int]] = {}
        self._changes: dict[int, tuple[weakref.ref, int, int]] = {}

    def put(self, tensor: Tensor, mark: Mark) -> None:
        """Note what is known of a tensor."""
        self._marks[id(tensor)] = (weakref.ref(tensor), mark, _compat.version_of(tensor))

    def get(self, tensor: Tensor) -> Mark | None:
        """Return what is known of a tensor, None if nothing is. A constant has no gradient that could be misread."""
        found = self._marks.get(id(tensor))
        if found is None or found[0]() is not tensor:
            return None
        if tensor.requires_grad and found[2] != (count := _compat.version_of(tensor)):
            if not self._explains(tensor, found[2], count):
                del self._marks[id(tensor)]
                return None
        return found[1]

    def drop(self, tensor: Tensor) -> None:
        """Forget what is known of a tensor."""
        self._marks.pop(id(tensor), None)

    def run(self, func: Callable, *args: Any, **kwargs: Any) -> Any:
        """Run an operation, and note what it changes in place: its first argument, or what it writes into."""
        targets = [(each, _compat.version_of(each)) for each in tensors_in((args[:1], kwargs.get("out")))]
        out = func(*args, **kwargs)
        for tensor, before in targets:
            after, storage = _compat.version_of(tensor), _compat.storage_of(tensor)
            if after != before and storage is not None:
                known = self._changes.get(id(storage))
                # Given twice, it was noted already.
                goes_on = known is not None and known[0]() is storage and known[2] in (before, after)
                start = min(known[1], before) if known is not None and goes_on else before
                self._changes[id(storage)] = (weakref.ref(storage), start, after)
        return out

    def _explains(self, tensor: Tensor, before: int, after: int) -> bool:
        storage: Any = _compat.storage_of(tensor)
        known = self._changes.get(id(storage))
        return storage is None or (
            known is not None and known[0]() is storage and known[1] <= before and known[2] == after
        )


def changes(name: str, operation: Operation, kwargs: dict) -> bool:
    """Tell whether an operation may change a tensor in place."""
    return is_in_place(name) or operation.assigns or (bool(kwargs) and ("out" in kwargs or "inplace" in kwargs))
