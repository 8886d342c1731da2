"""One operation in which a parameter meets the batch, as its rule sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from adamcb.gradnorm._layout import Batch, rows, split
from adamcb.gradnorm._record import Origin


class Call:
    """An operation with its arguments and what is known of them.

    Args:
        name: The operation's name, as in `torch`.
        func: The operation.
        args: Its arguments.
        kwargs: Its named arguments.
        marks: By the id of an argument: a `Batch` for what holds samples, an `Origin` for what is made of parameters.

    Attributes:
        out: Where the samples are in the result; known once the operation has run, so for `part` functions.
    """

    def __init__(self, name: str, func: Callable, args: tuple, kwargs: dict, marks: dict[int, Any]) -> None:
        self.name, self.func, self.args, self.kwargs, self.marks = name, func, args, kwargs, marks
        self.out = Batch(-1, 0)

    def batch(self, tensor: Any) -> Batch | None:
        """Return where the samples are in an argument, None if it holds no samples."""
        mark = self.marks.get(id(tensor))
        return mark if isinstance(mark, Batch) else None

    def origin(self, tensor: Any) -> Origin | None:
        """Return what an argument was made of, None for a parameter itself and for everything else."""
        mark = self.marks.get(id(tensor))
        return mark if isinstance(mark, Origin) and not is_parameter(tensor) else None

    def parametric(self, tensor: Any) -> bool:
        """Tell whether an argument is a trainable parameter or made of parameters alone."""
        return isinstance(self.marks.get(id(tensor)), Origin)

    def leaves(self) -> tuple[Parameter, ...]:
        """Return the trainable parameters behind the arguments, each once."""
        origins = (mark for mark in self.marks.values() if isinstance(mark, Origin))
        return tuple({id(leaf): leaf for origin in origins for leaf in origin.leaves}.values())

    def rows(self, tensor: Tensor, batch: Batch | None = None) -> Tensor:
        """Return [K, T, d] from an argument, or from the result's gradient."""
        return rows(tensor, batch or self.out)

    def split(self, tensor: Tensor, batch: Batch | None = None) -> Tensor:
        """Return [K, ...] from an argument, or from the result's gradient."""
        return split(tensor, batch or self.out)

    def may_form(self, weight: Tensor) -> bool:
        """Tell whether the gradient of `weight` may be supplied by its part instead of by autograd.

        Not under autocast, where autograd rounds in its own way, nor where saved tensors are packed: gradient
        checkpointing saves and recomputes exactly what the plain operation saves.
        """
        if not is_parameter(weight) or weight.dtype not in (torch.float32, torch.float64):
            return False
        autograd: Any = torch._C._autograd  # type: ignore[attr-defined]
        packed = autograd._top_saved_tensors_default_hooks(False) is not None
        return weight.requires_grad and not packed and not torch.is_autocast_enabled(weight.device.type)


def is_parameter(tensor: Any) -> bool:
    """Tell a parameter; torch's own check, which allows for tensor subclasses, only where it may matter."""
    kind = type(tensor)
    return kind is Parameter or (kind is not Tensor and isinstance(tensor, Parameter))


def tensors_in(value: Any) -> Sequence[Tensor]:
    """Return the tensors in nested tuples, lists and dictionaries."""
    if isinstance(value, Tensor):
        return (value,)
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (tuple, list)) or isinstance(value, torch.Size):
        return ()
    found = []
    for item in value:
        if isinstance(item, Tensor):
            found.append(item)
        elif isinstance(item, (tuple, list, dict)):
            found.extend(tensors_in(item))
    return found
