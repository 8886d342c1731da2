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

from adamcb.gradnorm._factors import accurate
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
    roots = [output.grad_fn for output in outputs if output.grad_fn is not None]
    node = _last_layer(roots) if roots else None
    if node is not None:
        node.register_prehook(_Observer(record, next((tensor.shape[0] for tensor in inputs if tensor.dim()), 0)))


class _Observer:
    """Takes the norms of the gradient of one node's result."""

    def __init__(self, record: Pass, batch_size: int) -> None:
        self.record, self.batch_size = record, batch_size

    def __call__(self, grads: tuple[Tensor | None, ...]) -> None:
        grad = grads[0]
        if grad is None:
            return
        self.record.begin(0)
        moved = grad if grad.shape[:1] == (self.batch_size,) else _samples_first(grad, self.batch_size)
        if moved is None:
            self.record.error = f"the size of the batch cannot be told from a gradient of shape {tuple(grad.shape)}."
        else:
            flat = accurate(moved.detach() if moved.dim() == 2 else moved.detach().reshape(self.batch_size, -1))
            self.record.add_norms(torch.linalg.vector_norm(flat, dim=1))


def _last_layer(roots: list[Any]) -> Any:
    """Return the node nearest the outputs that has parameters among its inputs, views after it included."""
    waiting = deque((root, root) for root in roots)
    seen = set()
    while waiting:
        node, top = waiting.popleft()
        children = [child for child, _ in node.next_functions if child is not None]
        for child in children:
            if _is_parameter(child):
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
