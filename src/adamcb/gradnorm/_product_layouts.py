"""How products move samples: which dimensions are lined up, and which are summed over and gone.

The layouts of all other operations, and what a layout is: `_layouts.py`.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from adamcb.gradnorm._batch import Batch
from adamcb.gradnorm._call import Call
from adamcb.gradnorm._layouts import at, first_of, kept, lined_up, positions


def dense(call: Call, source: Tensor, batch: Batch, out: Tensor) -> Batch | None:
    """`linear`: features come last, and the rows of a matrix that holds samples become the last dimension."""
    if source is first_of(call):
        return kept(call, source, batch, out) if batch.dim < source.dim() - 1 else None
    if source is call.argument(1, "weight"):
        return at(batch, out.dim() - 1, source, out) if batch.dim == 0 and source.dim() == 2 else None
    return lined_up(call, source, batch, out)


def matrix_product(call: Call, source: Tensor, batch: Batch, out: Tensor) -> Batch | None:
    """Leading dimensions are lined up from the right; what is summed over is gone."""
    first, second = (*call.args, *call.kwargs.values())[:2]
    return _multiplied(first, second, call, source, batch, out)


def swapped_product(call: Call, source: Tensor, batch: Batch, out: Tensor) -> Batch | None:
    """As `matrix_product`, with the second factor given first."""
    second, first = (*call.args, *call.kwargs.values())[:2]
    return _multiplied(first, second, call, source, batch, out)


def added_product(call: Call, source: Tensor, batch: Batch, out: Tensor) -> Batch | None:
    """As `matrix_product`, behind a tensor to which the product is added."""
    named = [call.kwargs[key] for key in ("mat1", "mat2", "batch1", "batch2") if key in call.kwargs]
    first, second = (*call.args[1:3], *named)
    return _multiplied(first, second, call, source, batch, out)


def _multiplied(first: Tensor, second: Tensor, call: Call, source: Tensor, batch: Batch, out: Tensor) -> Batch | None:
    if source is not first and source is not second:
        return lined_up(call, source, batch, out)  # what the product is added to
    place = batch.dim - source.dim()
    if source is first:
        if place == -1:
            return None
        place += second.dim() == 1
    else:
        if source.dim() == 1 or place == -2:
            return None
        place += first.dim() == 1 and place < -2
    return at(batch, out.dim() + place, source, out)


def bilinear(call: Call, source: Tensor, batch: Batch, out: Tensor) -> Batch | None:
    """Features come last, in both of the tensors that are multiplied."""
    factors = call.argument(0, "input1"), call.argument(1, "input2")
    multiplied = any(source is factor for factor in factors) and batch.dim < source.dim() - 1
    return kept(call, source, batch, out) if multiplied else None


def distances(call: Call, source: Tensor, batch: Batch, out: Tensor) -> Batch | None:
    """`cdist`: rows of the first against rows of the second."""
    place = batch.dim - source.dim()
    if place == -1:
        return None
    return at(batch, out.dim() + (place if source is first_of(call) or place < -2 else -1), source, out)


def attention(call: Call, source: Tensor, batch: Batch, out: Tensor) -> Batch | None:
    """The last two dimensions are positions and features, the others are lined up."""
    place = batch.dim - source.dim()
    if place < -2 or (place == -2 and source is call.argument(0, "query")):
        return at(batch, out.dim() + place, source, out)
    return None


def einsum(call: Call, source: Tensor, batch: Batch, out: Tensor) -> Batch | None:
    """The samples' letter says where they go."""
    operands = call.args[1] if len(call.args) == 2 and isinstance(call.args[1], (tuple, list)) else call.args[1:]
    if not isinstance(call.args[0], str) or "->" not in call.args[0]:
        return None
    inputs, output = call.args[0].replace(" ", "").split("->")
    for letters, operand in zip(inputs.split(","), operands, strict=True):
        if operand is source:
            before, after = letters_of(letters, source.dim()), letters_of(output, out.dim())
            return batch._replace(dim=after.index(before[batch.dim])) if before[batch.dim] in after else None
    return None


def letters_of(equation: str, dims: int) -> list[Any]:
    """Return one name for each dimension: letters, and numbers from the right for what an ellipsis stands for."""
    if "..." not in equation:
        return list(equation)
    left, right = equation.split("...")
    hidden = dims - len(left) - len(right)
    return [*left, *range(-hidden, 0), *right]


def tensordot(call: Call, source: Tensor, batch: Batch, out: Tensor) -> Batch | None:
    """Dimensions that are summed over are gone; those of the second tensor come behind those of the first."""
    first, dims = call.argument(0, "a"), call.argument(2, "dims", 2)
    if isinstance(dims, int):
        dims = list(range(first.dim() - dims, first.dim())), list(range(dims))
    gone = positions(dims[0 if source is first else 1], source.dim())
    if batch.dim in gone:
        return None
    start = 0 if source is first else first.dim() - len(dims[0])
    return at(batch, start + batch.dim - sum(d < batch.dim for d in gone), source, out)
