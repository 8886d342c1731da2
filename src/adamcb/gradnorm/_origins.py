"""Tensors made of parameters alone: which parameters, and which ways of making them have a shortcut.

A shortcut is a function of a `Call` on parameters alone, its result, and whether a checkpoint runs a second time. Which
operation has which: `_table.py`.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from adamcb.gradnorm._call import Call, Origin, is_parameter


def origin_of(call: Call, result: Tensor, *, again: bool) -> Origin:
    """Return what a result was made of.

    Args:
        call: An operation on parameters, or on what was made of them.
        result: Its result.
        again: Whether a checkpoint runs a second time.
    """
    shortcut = call.operation.origin
    return Origin(call.leaves()) if shortcut is None else shortcut(call, result, again)


def transposed(call: Call, result: Tensor, again: bool) -> Origin:
    """The dimensions are in another order."""
    source: Any = call.args[0] if call.args else None
    order = _order(source, result) if is_parameter(source) else ()
    before, tiled = call.origin(source), None
    if before is not None and before.tiled_from is not None:
        tiled = _tiled(call.func(before.tiled_from, *call.args[1:], **call.kwargs), result)
    return Origin(call.leaves(), transpose_of=source if order else None, order=order, tiled_from=tiled)


def expanded(call: Call, result: Tensor, again: bool) -> Origin:
    """The entries are repeated along dimensions of size one."""
    return Origin(call.leaves(), expanded_from=_repeated_by(call.args[0], result))


def repeated(call: Call, result: Tensor, again: bool) -> Origin:
    """Copies lie one behind the other."""
    source: Any = call.args[0]
    return Origin(call.leaves(), expanded_from=_repeated_by(source, result), tiled_from=_tiled(source, result))


def summed(call: Call, result: Tensor, again: bool) -> Origin:
    """Constants were added, and the entries perhaps repeated."""
    made = [arg for arg in call.args if call.parametric(arg)]  # twice, if it is added to itself
    source = made[0] if len(made) == 1 and not call.kwargs else None
    return Origin(call.leaves(), expanded_from=_repeated_by(source, result))


def looked_up(call: Call, result: Tensor, again: bool) -> Origin:
    """The rows come from a table, where that is plainly a parameter."""
    rows = None
    if len(call.args) >= 2 and is_parameter(call.args[1]):
        padded = call.argument(2, "padding_idx") not in (None, -1)
        changed = call.argument(3, "max_norm") is not None or call.argument(5, "scale_grad_by_freq", False)
        rows = (call.args[1], call.args[0]) if result.requires_grad and not padded and not changed else None
    return Origin(call.leaves(), rows=rows)


def detached(call: Call, result: Tensor, again: bool) -> Origin:
    """What a checkpoint detaches when it runs again is an argument, whose graph leads on."""
    return Origin(call.leaves(), graph=call.args[0] if again and call.args else None)


def _order(source: Tensor, result: Tensor) -> tuple[int, ...]:
    """Return where each dimension of `source` is in its transpose, () if it is no other order, or cannot be told."""
    strides = source.stride()
    if len(set(strides)) < len(strides) or result.stride() == strides or sorted(strides) != sorted(result.stride()):
        return ()
    return tuple(result.stride().index(stride) for stride in strides)


def _tiled(base: Tensor, result: Tensor) -> Tensor | None:
    """Return `base` if the result holds copies of it along its first dimension."""
    same = base.dim() == result.dim() > 1 and base.shape[1:] == result.shape[1:]
    return base if same and 1 < base.shape[0] < result.shape[0] else None


def _repeated_by(source: Any, result: Tensor) -> Tensor | None:
    """Return `source` if the result only repeats it along dimensions of size one."""
    if not isinstance(source, Tensor):
        return None
    pairs = zip(reversed(source.shape), reversed(result.shape), strict=False)
    same = source.dtype == result.dtype and all(size in (1, full) for size, full in pairs)
    return source if same else None
