"""One operation in which parameters meet the batch: its entry in the table, its arguments, what its rule returns."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter

from adamcb.gradnorm import _compat
from adamcb.gradnorm._batch import Batch, Mixed, rows
from adamcb.gradnorm._parts import Part


class Origin(NamedTuple):
    """Which parameters a tensor was made of, and how, where that allows a shortcut.

    Attributes:
        leaves: The parameters.
        transpose_of: The parameter, if the tensor is the parameter with its dimensions in another order.
        order: Then: where each dimension of the parameter is in the tensor.
        expanded_from: The tensor whose entries this one repeats.
        graph: Whose graph leads back to the parameters; None if the tensor's own does.
        rows: The table and the index, if the tensor holds rows of a parameter.
        tiled_from: The tensor of which this one holds copies, one behind the other along the first dimension.
    """

    leaves: tuple[Parameter, ...]
    transpose_of: Parameter | None = None
    order: tuple[int, ...] = ()
    expanded_from: Tensor | None = None
    graph: Any = None
    rows: tuple[Parameter, Tensor] | None = None
    tiled_from: Tensor | None = None


Mark = Batch | Mixed | Origin
"""What is known of a tensor: where its samples are, that they are mixed, or which parameters it was made of."""

Layout = Callable[["Call", Tensor, Batch, Tensor], "Batch | None"]
"""From a call, one of its arguments, where the samples are in that, and the result to where they are in the result.

None where the result no longer keeps samples apart.
"""

Rule = Callable[..., "list[Use] | None"]
"""A function with the operation's own signature behind a `Call`.

It returns a `Use` for each argument that may be a parameter, or None where it does not apply.
"""


class Operation(NamedTuple):
    """What is known of an operation: an entry of the table, `_table.py`.

    Attributes:
        layout: How it moves samples, None if that has to be found out.
        rule: What each use of a parameter in it adds to the gradients, None if it has to be replayed.
        origin: A shortcut of `_origins.py` for results that were made of parameters alone, None if it has none.
        composite: Runs the operation in smaller steps, given a `MarkSource`, the operation and its arguments.
        recurrent: Whether those steps are other operations than torch's own, as for recurrent layers.
        ties: Tells whether samples of the result depend on one another, and are measured by their contributions.
        converts: Whether the other argument says what type, and no more.
        assigns: Whether it changes its first argument and returns nothing.
        cuts: Whether its results may be pieces of the dimension of the samples.
        pools: Whether it is a sum or a mean: over samples it is harmless as a loss.
        is_loss: Whether it is a loss, and so a sum or a mean where one number is left.
    """

    layout: Layout | None
    rule: Rule | None = None
    origin: Callable[[Call, Tensor, bool], Origin] | None = None
    composite: Callable[..., Any] | None = None
    recurrent: bool = False
    ties: Callable[[Call], bool] | None = None
    converts: bool = False
    assigns: bool = False
    cuts: bool = False
    pools: bool = False
    is_loss: bool = False


UNKNOWN = Operation(None)
"""An operation that is not in the table."""


@dataclass
class Use:
    """A parameter, or a tensor made of parameters alone, in one operation with a batch.

    Attributes:
        tensor: The parameter or the tensor made of parameters.
        part: From the gradient of the operation's result, and the tensors in `saved`, to this use's part of the K
            gradients.
        forms: Whether the part should supply the gradient of the batch as well, so that autograd can skip it.
        origin: For a tensor made of parameters: from which, and how.
        saved: What `part` reads, if it forms the gradient. Autograd keeps it, and frees it.
        bias: A parameter whose gradient is the sum of the left factors of the part, an `Outer`.
        run: Runs the operation with its own backward pass; takes the function that supplies the gradients.
    """

    tensor: Any
    part: Callable[..., Part]
    forms: bool = False
    origin: Origin | None = None
    saved: tuple[Tensor, ...] = ()
    bias: Any = None
    run: Callable[[Callable], Tensor] | None = None


class Call:
    """An operation with its arguments and what is known of them.

    Args:
        name: The operation's name, as in `torch`.
        func: The operation.
        args: Its arguments.
        kwargs: Its named arguments.
        marks: What is known of the arguments, by their ids.
        operation: What is known of the operation.
        checked: Whether autograd must compute all gradients itself, so that parts can be compared with them.

    Attributes:
        out: Where the samples are in the result; known once the operation has run, so for `part` functions.
        key: Identifies operations of the same kind, so that an answer can be looked up.
    """

    def __init__(
        self,
        name: str,
        func: Callable,
        args: tuple,
        kwargs: dict,
        marks: dict[int, Any],
        operation: Operation = UNKNOWN,
        *,
        checked: bool = False,
    ) -> None:
        self.name, self.func, self.args, self.kwargs, self.marks = name, func, args, kwargs, marks
        self.operation, self.checked = operation, checked
        self.out: Any = None
        self.key: Any = None

    def argument(self, place: int, name: str, default: Any = None) -> Any:
        """Return an argument, given by place or by name."""
        return self.args[place] if len(self.args) > place else self.kwargs.get(name, default)

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

    def occurrences(self) -> list[Parameter]:
        """Return the trainable parameters behind the arguments, each as often as arguments are made of it."""
        origins = (self.marks.get(id(tensor)) for tensor in tensors_in((self.args, self.kwargs)))
        return [leaf for origin in origins if isinstance(origin, Origin) for leaf in origin.leaves]

    def rows(self, tensor: Tensor, batch: Batch | None = None) -> Tensor:
        """Return [K, T, d] from an argument, or from the result's gradient."""
        return rows(tensor, batch or self.out)

    def may_form(self, weight: Any) -> bool:
        """Tell whether the gradient of `weight` may be supplied by its part instead of by autograd."""
        return not self.checked and may_form(weight)


def may_form(weight: Any) -> bool:
    """Tell whether the gradient of `weight` may be supplied by its part, in a pass that is not checked.

    Not under autocast, where autograd rounds in its own way, nor where saved tensors are packed: gradient checkpointing
    saves and recomputes exactly what the plain operation saves.
    """
    if not trains(weight) or weight.dtype not in (torch.float32, torch.float64):
        return False
    return not _compat.packs_saved_tensors() and not torch.is_autocast_enabled(weight.device.type)


def is_in_place(name: str) -> bool:
    """Tell whether an operation changes its first argument, from its name."""
    return name.startswith("__i") or (name.endswith("_") and not name.endswith("__"))


def operator_name(func: Any) -> str:
    """Return the name of an operator from `torch.ops`; with its namespace, unless it is one of torch's own."""
    space, name, *_ = f"{func}.".split(".")
    return name if space == "aten" else f"{space}.{name}"


def is_parameter(tensor: Any) -> bool:
    """Tell a parameter; torch's own check, which allows for tensor subclasses, only where it may matter."""
    kind = type(tensor)
    return kind is Parameter or (kind is not Tensor and isinstance(tensor, Parameter))


def trains(tensor: Any) -> bool:
    """Tell a parameter that gets gradients."""
    return is_parameter(tensor) and tensor.requires_grad


_NO_TENSORS = frozenset((int, float, bool, str, type(None), slice, torch.dtype, torch.device, torch.Size))


def tensors_in(value: Any) -> Sequence[Tensor]:
    """Return the tensors in nested tuples, lists, dictionaries, other mappings and dataclasses."""
    kind = type(value)
    if kind is Tensor or isinstance(value, Tensor):
        return (value,)
    if kind in _NO_TENSORS:
        return ()
    if not isinstance(value, (tuple, list)):  # asked first: whether something is a mapping takes long to tell
        value = value.values() if isinstance(value, (dict, Mapping)) else _fields(value)
    found = []
    for item in value:
        kind = type(item)
        if kind is Tensor or kind is Parameter:
            found.append(item)
        elif kind not in _NO_TENSORS:
            found.extend(tensors_in(item))
    return found


def _fields(value: Any) -> tuple:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return tuple(getattr(value, field.name, None) for field in dataclasses.fields(value))
    return ()


def substitute(value: Any, new: Callable[[Tensor], Any]) -> Any:
    """Return `value` with new(tensor) for every tensor in nested tuples, lists and dictionaries."""
    if isinstance(value, Tensor):
        return new(value)
    if isinstance(value, dict):
        return {key: substitute(item, new) for key, item in value.items()}
    if isinstance(value, (tuple, list)) and not isinstance(value, torch.Size):
        items = [substitute(item, new) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value
