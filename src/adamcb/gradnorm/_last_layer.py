"""The gradient at the last layer's result, found in the graph after an ordinary forward pass: nothing is watched.

‖∂lossⱼ/∂zⱼ‖ times a constant bounds the norm of the whole gradient (Katharopoulos and Fleuret 2018, equation 16), z
being what the last layer with parameters computes, before any activation.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
from torch import Tensor
from torch.linalg import vector_norm
from torch.nn import Parameter

from adamcb.gradnorm._call import is_parameter, tensors_in
from adamcb.gradnorm._compat import ACCUMULATES
from adamcb.gradnorm._parts import accurate
from adamcb.gradnorm._record import SECOND_BACKWARD, Finish, unavailable

# Nodes that only move or convert numbers, so that norms pass through them unchanged.
_VIEWS = {
    *("TBackward0", "TransposeBackward0", "PermuteBackward0", "ViewBackward0", "UnsafeViewBackward0", "AliasBackward0"),
    *("ReshapeAliasBackward0", "SqueezeBackward0", "SqueezeBackward1", "UnsqueezeBackward0", "ToCopyBackward0"),
    *("CloneBackward0", "MovedimBackward0"),
}


class LastPass:
    """The record of one forward pass whose last layer alone is measured.

    Args:
        index: Its place among the forward passes.
        finish: Called with this record when the gradient arrives.
        batch_size: The number of samples.
    """

    __slots__ = ("_finish", "_norms", "batch_size", "error", "index")

    def __init__(self, index: int, finish: Finish, batch_size: int) -> None:
        self.index, self.batch_size = index, batch_size
        self.error: str | None = None
        self._finish: Finish | None = finish
        self._norms: Tensor | None = None

    def watch(self, output: Any) -> None:
        """Wait for the gradient of the last layer's result, given what the model returned."""
        if type(output) is Tensor and (root := output.grad_fn) is not None:
            node = root if _has_parameter(root) else _last_layer([root])
        else:
            node = _last_layer([root for tensor in tensors_in(output) if (root := tensor.grad_fn) is not None])
        if node is not None:
            node.register_prehook(self._arrive)

    def _arrive(self, grads: tuple[Tensor | None, ...]) -> None:
        grad = grads[0]
        if grad is None:
            return
        if self._norms is not None or self.error is not None:
            self.error = SECOND_BACKWARD
            return
        if self._finish is not None:
            # Let go of it first: whoever is told keeps this record.
            finish, self._finish = self._finish, None
            finish(self)
        if grad.dim() == 2 and grad.size(0) == self.batch_size and grad.dtype is torch.float32:
            norms = vector_norm(grad, 2, 1)
        else:
            moved = _samples_first(grad, self.batch_size)
            if moved is None:
                self.error = f"the size of the batch cannot be told from a gradient of shape {tuple(grad.shape)}."
                return
            # By dimensions: reshaping would copy a gradient that lies in another order, as losses of tokens leave it.
            moved = moved if moved.dim() > 1 else moved.unsqueeze(1)
            norms = vector_norm(accurate(moved), 2, tuple(range(1, moved.dim())))
        self._norms = norms.detach() if norms.requires_grad else norms  # create_graph=True

    def settle(self) -> None:
        """Do nothing: no other gradient is waited for."""

    def norms(self) -> Tensor:
        """Return float[K]."""
        if self.error is not None or self._norms is None:
            raise unavailable(self.error)
        return self._norms


def _has_parameter(node: Any) -> bool:
    """Answer the most common case at once: the bias or the matrix of a dense layer, or of a convolution."""
    for child, _ in node.next_functions:
        if type(child) is ACCUMULATES and type(child.variable) is Parameter:
            return True
    return False


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
        below = type(node).__name__ in _VIEWS
        for child in children:
            if child not in seen:
                seen.add(child)
                waiting.append((child, top if below else child))
    return None


def _is_parameter(node: Any) -> bool:
    while type(node).__name__ in _VIEWS:
        node = node.next_functions[0][0]
        if node is None:
            return False
    return is_parameter(getattr(node, "variable", None))


def _samples_first(grad: Tensor, batch_size: int) -> Tensor | None:
    """Return [K, ...], None if several dimensions could be the batch, or none."""
    if grad.dim() and grad.shape[0] == batch_size:
        return grad
    fitting = [dim for dim, size in enumerate(grad.shape) if size == batch_size]
    if grad.dim() and not fitting and batch_size and grad.shape[0] % batch_size == 0:
        return grad.unflatten(0, (batch_size, -1))
    return grad.movedim(fitting[0], 0) if len(fitting) == 1 else None
