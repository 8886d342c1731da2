"""Where the samples lie inside a tensor, and how each operation moves them.

Most tensors of a forward pass hold the samples along their first dimension, but not all: recurrent and attention code
puts time first, and views fold heads or positions into the batch. A `Batch` says where they are; `follow` says where
they are in an operation's result. Nothing here looks at values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Batch(NamedTuple):
    """Entry i of dimension `dim` belongs to sample (i // inner) mod size.

    `dim` is −1 where the operations that led here no longer say (a mean over the batch, say). `sure` marks what an
    operation's own convention tells (a recurrent layer knows its batch dimension) against what was taken from the
    inputs of the model, where the first dimension is the batch by convention.
    """

    dim: int
    size: int
    inner: int = 1
    sure: bool = False


def split(tensor: Tensor, batch: Batch) -> Tensor:
    """Return `tensor` with the samples in front: [K, ...], where `batch.dim`, now one further, keeps the rest."""
    if batch.dim == 0 and tensor.shape[0] == batch.size:
        return tensor.unsqueeze(1)
    folded = tensor.unflatten(batch.dim, (-1, batch.size, batch.inner)).movedim(batch.dim + 1, 0)
    return folded.flatten(batch.dim + 1, batch.dim + 2)


def rows(tensor: Tensor, batch: Batch, features: int = 1) -> Tensor:
    """Return [K, T, ...]: the samples, all other dimensions but the last `features` as one, and those."""
    if batch.dim == 0 and tensor.shape[0] == batch.size:
        return tensor.flatten(1, -1 - features) if tensor.dim() > 1 + features else tensor.unsqueeze(1)
    moved = split(tensor, batch)
    return moved.reshape(batch.size, -1, *moved.shape[moved.dim() - features :])


# Views that keep the row-major order of the elements: where the samples are follows from the shapes alone.
_RESHAPES = {"reshape", "view", "flatten", "unflatten", "squeeze", "unsqueeze", "view_as", "reshape_as", "ravel"}
# Views that do not: asked of a probe whose only nonzero stride marks the dimension.
_VIEWS = {
    *("transpose", "permute", "movedim", "moveaxis", "swapaxes", "swapdims", "t", "T", "mT", "H", "mH", "adjoint"),
    *("select", "narrow", "__getitem__", "unbind", "chunk", "split", "tensor_split", "split_with_sizes"),
    *("expand", "expand_as", "broadcast_to", "diagonal", "unfold", "hsplit", "vsplit", "dsplit"),
}
_REDUCTIONS = {
    *("sum", "mean", "nansum", "nanmean", "prod", "amax", "amin", "max", "min", "argmax", "argmin", "median", "mode"),
    *("var", "std", "var_mean", "std_mean", "logsumexp", "norm", "vector_norm", "any", "all", "count_nonzero"),
}
# Operations that line dimensions up from the right.
ELEMENTWISE = {
    *("add", "__add__", "__radd__", "__iadd__", "add_", "sub", "__sub__", "__rsub__", "__isub__", "sub_", "rsub"),
    *("mul", "__mul__", "__rmul__", "__imul__", "mul_", "multiply", "subtract", "true_divide", "divide"),
    *("div", "__truediv__", "__rtruediv__", "__itruediv__", "div_", "__div__", "__rdiv__", "__idiv__"),
    *("pow", "__pow__", "__rpow__", "pow_", "maximum", "minimum", "where", "lerp", "addcmul", "addcdiv", "atan2"),
    *("sigmoid", "tanh", "exp", "relu", "gelu", "silu", "softplus", "clamp", "fmax", "fmin", "hypot", "xlogy"),
}


def follow(name: str, func: Callable, args: Sequence, kwargs: dict, source: Tensor, batch: Batch, out: Tensor) -> Batch:
    """Return where `source`'s samples are in `out`, one result of func(*args, **kwargs).

    Args:
        name: The operation's name, as in `torch`.
        func: The operation.
        args: Its arguments.
        kwargs: Its named arguments.
        source: One of the arguments.
        batch: Where the samples are in `source`.
        out: The result, or one of several.
    """
    before, after, dim = source.shape, out.shape, batch.dim
    if name == "embedding_bag":  # its rows are the bags, however the indices came
        return Batch(0, after[0], sure=True)
    if name.endswith("_as") and len(args) > 1 and source is args[1]:
        return batch
    if dim < 0 or name == "einsum":
        return _follow_einsum(args, source, batch) if dim >= 0 else batch
    if name in _RESHAPES:
        return _refold(before, batch, after)
    if name in _VIEWS:
        return _follow_view(func, args, kwargs, source, batch, out)
    if name in _DIMENSIONS:
        return _DIMENSIONS[name](args, kwargs, source, batch)
    if len(after) < len(before):
        dim = _reduced(name, args, kwargs, len(before), dim)
    elif len(after) > len(before) and name in ELEMENTWISE:
        dim += len(after) - len(before)
    kept = 0 <= dim < len(after) and after[dim] == before[batch.dim]
    return (batch if dim == batch.dim else batch._replace(dim=dim)) if kept else batch._replace(dim=-1)


def _refold(before: Sequence[int], batch: Batch, after: Sequence[int]) -> Batch:
    """Find the dimension of the shape `after` that holds the samples, which lie `stride` elements apart."""
    stride = batch.inner * math.prod(before[batch.dim + 1 :])
    fitting = []
    for dim, size in enumerate(after):
        suffix = math.prod(after[dim + 1 :])
        if size and suffix and stride % suffix == 0 and size % (stride // suffix * batch.size) == 0:
            fitting.append(batch._replace(dim=dim, inner=stride // suffix))
    # A single sample fits in many places; the one that holds nothing else keeps other dimensions what they are.
    fitting.sort(key=lambda found: after[found.dim] != batch.size)
    return fitting[0] if fitting else batch._replace(dim=-1)


def _follow_view(func: Callable, args: Sequence, kwargs: dict, source: Tensor, batch: Batch, out: Tensor) -> Batch:
    strides = [int(dim == batch.dim) for dim in range(source.dim())]
    probe = torch.empty(source.shape[batch.dim], device="meta").as_strided(source.shape, strides)
    try:
        seen = func(*(probe if arg is source else arg for arg in args), **kwargs)
    except RuntimeError:  # an index on another device, or a view that a meta tensor does not have
        return batch._replace(dim=-1)
    for view in seen if isinstance(seen, (tuple, list)) else (seen,):
        if view.shape == out.shape and view._is_view():
            dims = [dim for dim, stride in enumerate(view.stride()) if stride]
            if len(dims) == 1 and _whole(view.storage_offset(), view.shape[dims[0]], batch):
                return batch._replace(dim=dims[0])
    if batch.dim == 0 and out.dim() and out.shape[0] == source.shape[0] and _indexes_later_dims(args):
        return batch
    return batch._replace(dim=-1)


def _whole(start: int, length: int, batch: Batch) -> bool:
    """Tell whether a piece of the batch dimension holds every sample, in order."""
    period = batch.size * batch.inner
    return start % period == 0 and length % period == 0


def _indexes_later_dims(args: Sequence) -> bool:
    """Tell whether an index such as x[:, positions] leaves the first dimension as it is."""
    index = args[1] if len(args) > 1 else None
    return isinstance(index, tuple) and isinstance(index[0], slice) and index[0] == slice(None)


def _reduced(name: str, args: Sequence, kwargs: dict, ndim: int, dim: int) -> int:
    """Return where dimension `dim` goes when an operation drops others, −1 if it drops `dim` itself."""
    if name not in _REDUCTIONS:
        return 0 if dim == 0 else -1
    dropped: Any = kwargs.get("dim", kwargs.get("axis", args[1] if len(args) > 1 else None))
    if name in ("norm", "vector_norm") and "dim" not in kwargs:
        dropped = args[2] if len(args) > 2 else None
    if dropped is None:
        return -1
    positions = {d % ndim for d in (dropped if isinstance(dropped, (tuple, list)) else (dropped,))}
    return -1 if dim in positions else dim - sum(d < dim for d in positions)


def _dim_of(args: Sequence, kwargs: dict, place: int, default: int) -> int:
    return kwargs.get("dim", kwargs.get("axis", args[place] if len(args) > place else default))


def _follow_stack(args: Sequence, kwargs: dict, source: Tensor, batch: Batch) -> Batch:
    new = _dim_of(args, kwargs, 1, 0) % (source.dim() + 1)
    return batch._replace(dim=batch.dim + (new <= batch.dim))


def _follow_cat(args: Sequence, kwargs: dict, source: Tensor, batch: Batch) -> Batch:
    tensors = args[0] if args else kwargs["tensors"]
    joined = _dim_of(args, kwargs, 1, 0) % source.dim() == batch.dim
    same = all(tensor.shape[batch.dim] == source.shape[batch.dim] for tensor in tensors)
    return batch._replace(dim=-1) if joined and not same else batch


def _follow_repeat(args: Sequence, kwargs: dict, source: Tensor, batch: Batch) -> Batch:
    repeats = args[1] if isinstance(args[1], (tuple, list)) else args[1:]
    return batch._replace(dim=batch.dim + len(repeats) - source.dim())


def _follow_repeat_interleave(args: Sequence, kwargs: dict, source: Tensor, batch: Batch) -> Batch:
    repeats = kwargs.get("repeats", args[1] if len(args) > 1 else None)
    dim = _dim_of(args, kwargs, 2, -source.dim() - 1)
    if not isinstance(repeats, int) or dim < -source.dim():
        return batch._replace(dim=-1)
    return batch._replace(inner=batch.inner * repeats) if dim % source.dim() == batch.dim else batch


def _follow_mover(args: Sequence, kwargs: dict, source: Tensor, batch: Batch) -> Batch:
    """Lose the samples where an operation moves entries along the batch dimension, or may."""
    dims = kwargs.get("dims", kwargs.get("dim", args[-1] if len(args) > 1 else None))
    dims = dims if isinstance(dims, (tuple, list)) else (dims,)
    moved = any(not isinstance(d, int) or d % source.dim() == batch.dim for d in dims)
    return batch._replace(dim=-1) if moved else batch


_DIMENSIONS = {
    "stack": _follow_stack,
    "cat": _follow_cat,
    "concat": _follow_cat,
    "concatenate": _follow_cat,
    "repeat": _follow_repeat,
    "repeat_interleave": _follow_repeat_interleave,
    "flip": _follow_mover,
    "roll": _follow_mover,
}
# Which entries these pick depends on values.
_DIMENSIONS |= dict.fromkeys(("index_select", "masked_select", "take", "nonzero"), _follow_mover)


# Everything else leaves dimensions in their places, or drops or broadcasts some.
MOVING = _RESHAPES | _VIEWS | set(_DIMENSIONS) | {"einsum", "embedding_bag"}


def _follow_einsum(args: Sequence, source: Tensor, batch: Batch) -> Batch:
    operands = args[1] if len(args) == 2 and isinstance(args[1], (tuple, list)) else args[1:]
    lost = batch._replace(dim=-1)
    if not isinstance(args[0], str) or "->" not in args[0]:
        return lost
    inputs, output = args[0].replace(" ", "").split("->")
    for letters, operand in zip(inputs.split(","), operands, strict=True):
        if operand is source:
            if "..." in letters or "..." in output:
                leading = batch.dim == 0 and output[:1] == letters[:1] != "."
                leading |= batch.dim == 0 and output.startswith("...") and letters.startswith("...")
                return batch if leading else lost
            return batch._replace(dim=output.find(letters[batch.dim]))
    return lost
