"""The gradient at the last layer's result, found in the graph after an ordinary forward pass: nothing is watched.

‖∂lossⱼ/∂zⱼ‖ times a constant bounds the norm of the whole gradient (Katharopoulos and Fleuret 2018, equation 16), z
being what the last layer with parameters computes, before any activation.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from adamcb.gradnorm._factors import accurate, squares
from adamcb.gradnorm._record import Pass

# Nodes that only move or convert numbers, so that norms pass through them unchanged.
_VIEWS = {
    *("TBackward0", "TransposeBackward0", "PermuteBackward0", "ViewBackward0", "UnsafeViewBackward0", "AliasBackward0"),
    *("ReshapeAliasBackward0", "SqueezeBackward0", "SqueezeBackward1", "UnsqueezeBackward0", "ToCopyBackward0"),
    *("CloneBackward0", "MovedimBackward0"),
}


def watch(record: Pass, outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
    """Send the norms of the gradient at the last layer's result to `record`.

    Args:
        record: Where they go.
        outputs: The tensors that the model returned.
        inputs: The tensors that it was given; the first dimension of the first is the batch.
    """
    batch_size = next((tensor.shape[0] for tensor in inputs if tensor.dim()), 0)

    def observe(grads: tuple[Tensor | None, ...]) -> None:
        grad = grads[0]
        if grad is not None:
            record.begin(0)
            moved = grad if grad.shape[:1] == (batch_size,) else _samples_first(grad, batch_size)
            if moved is None:
                record.error = f"the size of the batch cannot be told from a gradient of shape {tuple(grad.shape)}."
            else:
                record.add_squares(squares(accurate(moved.detach())))

    node = _last_layer([output.grad_fn for output in outputs if output.grad_fn is not None])
    if node is not None:
        node.register_prehook(observe)


def _last_layer(roots: list[Any]) -> Any:
    """Return the node nearest the outputs that has parameters among its inputs, views after it included."""
    waiting = deque((root, root) for root in roots)
    seen = set()
    while waiting:
        node, top = waiting.popleft()
        children = [child for child, _ in node.next_functions if child is not None]
        if any(_is_parameter(child) for child in children):
            return top
        for child in children:
            if child not in seen:
                seen.add(child)
                waiting.append((child, top if node.name() in _VIEWS else child))
    return None


def _is_parameter(node: Any) -> bool:
    while node.name() in _VIEWS:
        node = node.next_functions[0][0]
        if node is None:
            return False
    return isinstance(getattr(node, "variable", None), torch.nn.Parameter)


def _samples_first(grad: Tensor, batch_size: int) -> Tensor | None:
    """Return [K, ...], None if several dimensions could be the batch, or none."""
    fitting = [dim for dim, size in enumerate(grad.shape) if size == batch_size]
    if grad.dim() and not fitting and batch_size and grad.shape[0] % batch_size == 0:
        return grad.unflatten(0, (batch_size, -1))
    return grad.movedim(fitting[0], 0) if len(fitting) == 1 else None
