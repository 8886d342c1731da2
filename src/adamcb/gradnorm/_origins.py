"""Tensors made of parameters alone: which parameters, and which ways of making them have a shortcut."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from adamcb.gradnorm._call import Call, Origin, is_parameter

_EXPANSIONS = {"expand", "expand_as", "broadcast_to", "repeat"}
_SUMS = {"add", "__add__", "__radd__"}
_TRANSPOSES = {"t", "T", "mT", "transpose", "permute", "swapaxes", "swapdims"}


def origin_of(call: Call, result: Tensor, *, again: bool) -> Origin:
    """Return what a result was made of.

    Args:
        call: An operation on parameters, or on what was made of them.
        result: Its result.
        again: Whether a checkpoint runs a second time: what it detaches is an argument, whose graph leads on.
    """
    source: Any = call.args[0] if call.args else None
    order = _order(source, result) if call.name in _TRANSPOSES and is_parameter(source) else ()
    detached = again and call.name == "detach"
    return Origin(
        call.leaves(),
        transpose_of=source if order else None,
        order=order,
        expanded_from=_expanded(call, result),
        graph=source if detached else None,
        rows=_rows(call, result),
        tiled_from=_tiled(call, result),
    )


def _order(source: Tensor, result: Tensor) -> tuple[int, ...]:
    """Return where each dimension of `source` is in its transpose, () if it is no other order, or cannot be told."""
    strides = source.stride()
    if len(set(strides)) < len(strides) or result.stride() == strides or sorted(strides) != sorted(result.stride()):
        return ()
    return tuple(result.stride().index(stride) for stride in strides)


def _rows(call: Call, result: Tensor) -> tuple[Any, Tensor] | None:
    """Return the table and the index, if the result is a plain look-up in a parameter."""
    if call.name != "embedding" or len(call.args) < 2 or not is_parameter(call.args[1]):
        return None
    padded = call.argument(2, "padding_idx") not in (None, -1)
    changed = call.argument(3, "max_norm") is not None or call.argument(5, "scale_grad_by_freq", False)
    return (call.args[1], call.args[0]) if result.requires_grad and not padded and not changed else None


def _tiled(call: Call, result: Tensor) -> Tensor | None:
    """Return the tensor of which the result holds copies along its first dimension: before or after a transpose."""
    source: Any = call.args[0] if call.args else None
    if call.name == "repeat":
        base = source
    elif call.name in _TRANSPOSES and (origin := call.origin(source)) is not None and origin.tiled_from is not None:
        base = call.func(origin.tiled_from, *call.args[1:], **call.kwargs)
    else:
        return None
    same = base.dim() == result.dim() > 1 and base.shape[1:] == result.shape[1:]
    return base if same and 1 < base.shape[0] < result.shape[0] else None


def _expanded(call: Call, result: Tensor) -> Any:
    """Return the tensor whose entries the result repeats, constants perhaps added to them; None if there is none."""
    if call.name in _EXPANSIONS:
        source: Any = call.args[0]
    elif call.name in _SUMS and not call.kwargs:
        made = [arg for arg in call.args if call.parametric(arg)]  # twice, if it is added to itself
        source = made[0] if len(made) == 1 else None
    else:
        source = None
    return source if isinstance(source, Tensor) and _broadcasts(source, result) else None


def _broadcasts(source: Tensor, result: Tensor) -> bool:
    """Tell whether `result` only repeats `source` along dimensions of size one."""
    pairs = zip(reversed(source.shape), reversed(result.shape), strict=False)
    return source.dtype == result.dtype and all(size in (1, full) for size, full in pairs)
