"""The gradient at the last layer's result, found in the graph after an ordinary forward pass: nothing is watched.

‖∂lossⱼ/∂zⱼ‖ times a constant bounds the norm of the whole gradient (Katharopoulos and Fleuret 2018, equation 16), z
being what the last layer with parameters computes, before any activation. A model with several heads has a last layer
for each of them, and z is what those compute that the losses use.
"""

from __future__ import annotations

import math
from collections import deque
from functools import partial
from heapq import heapify, heappop, heappush
from typing import Any

import torch
from torch import Tensor
from torch.linalg import vector_norm
from torch.nn import Parameter

from adamcb.gradnorm._call import is_parameter, tensors_in
from adamcb.gradnorm._compat import ACCUMULATES, age
from adamcb.gradnorm._from_losses import Met
from adamcb.gradnorm._owners import VIEWS, Answers, LayerOwners, owners_behind, owners_by_shape
from adamcb.gradnorm._record import SECOND_BACKWARD, Finish, arrive, unavailable


class LastPass:
    """The record of one forward pass whose last layers alone are measured.

    Args:
        index: Its place among the forward passes.
        finish: Called with this record when the first gradient arrives.
        batch_size: The number of samples.
        answers: What was found out about the owners of gradients so far.

    Attributes:
        met: The last layers.
    """

    __slots__ = ("__weakref__", "_arrived", "_norms", "answers", "batch_size", "error", "finish", "index", "met")

    def __init__(self, index: int, finish: Finish, batch_size: int, answers: Answers | None = None) -> None:
        self.index, self.batch_size = index, batch_size
        self.error: str | None = None
        self.finish: Finish | None = finish
        self.answers = answers or Answers()
        self.met: list[Met] = []
        self._arrived: set[int] = set()
        self._norms: Tensor | None = None

    def watch(self, output: Any) -> None:
        """Wait for the gradients of the last layers' results, given what the model returned."""
        root = output.grad_fn if type(output) is Tensor else None
        if root is not None and _has_parameter(root):
            return self._wait_for(root, output, frozenset(), None)
        results = [tensor for tensor in tensors_in(output) if tensor.grad_fn is not None]
        layers: dict[Any, Tensor] = {}
        # A model may return its mean loss as well. Nobody goes backward on that and on losses of samples.
        for result in [tensor for tensor in results if tensor.dim()] or results:
            layer = _last_layer(result.grad_fn)
            if layer is not None:
                layers.setdefault(layer, result)
        above = _layers_above(list(layers))
        for place, (layer, result) in enumerate(layers.items()):
            owners = owners_behind(result, layer, self.batch_size, self.answers.known)
            self._wait_for(layer, result, above[place], owners)

    def _wait_for(self, layer: Any, result: Tensor, above: frozenset[int], owners: LayerOwners | None) -> None:
        self.met.append(Met(layer, result, above, owners))
        layer.register_prehook(partial(self._arrive, len(self.met) - 1))

    def _arrive(self, place: int, grads: tuple[Tensor | None, ...]) -> None:
        grad, met = grads[0], self.met[place]
        if grad is None:
            return
        arrive(self)
        if place in self._arrived or self.error is not None:
            self.error = self.error or SECOND_BACKWARD
            return
        # If the gradient came through another measured layer, as into a hidden state that is also returned, this is no
        # last layer.
        inner = not met.above.isdisjoint(self._arrived)
        self._arrived.add(place)
        if inner:
            return
        norms = self._norms_of(grad, met.owners)
        if norms is not None:
            norms = norms.detach() if norms.requires_grad else norms  # create_graph=True
            self._norms = norms if self._norms is None else torch.hypot(self._norms, norms)

    def _norms_of(self, grad: Tensor, owners: LayerOwners | None) -> Tensor | None:
        if owners is None and grad.dim() == 2 and grad.size(0) == self.batch_size and grad.dtype is torch.float32:
            return vector_norm(grad, 2, 1)
        norms = (owners or owners_by_shape(grad.shape, self.batch_size)).norms(grad, self.batch_size)
        if norms is None and owners is None:
            self.error = f"the size of the batch cannot be told from a gradient of shape {tuple(grad.shape)}."
        elif norms is None:
            self.error = "samples are mixed between the last layer and the result of the model."
        return norms

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


def _last_layer(root: Any) -> Any:
    """Return the node nearest a result that has parameters among its inputs, views after it included."""
    waiting, seen = deque([(root, root)]), set()
    while waiting:
        node, top = waiting.popleft()
        children = [child for child, _ in node.next_functions if child is not None]
        for child in children:
            if _is_parameter(child):
                return top
        below = type(node).__name__ in VIEWS
        for child in children:
            if child not in seen:
                seen.add(child)
                waiting.append((child, top if below else child))
    return None


def _layers_above(layers: list[Any]) -> list[frozenset[int]]:
    """Return for each layer, by place, those others whose results are made from its own.

    Nodes are older than what is made of them, so one look from the youngest to the oldest of the layers is enough.
    """
    if len(layers) < 2:
        return [frozenset() for _ in layers]
    oldest = min(age(layer) for layer in layers)
    places = {layer: place for place, layer in enumerate(layers)}
    masks: dict[Any, frozenset[int]] = {}
    found = [frozenset[int]()] * len(layers)
    waiting = [(-age(layer), place, layer) for layer, place in places.items()]
    heapify(waiting)
    met, order = set(layers), len(layers)
    while waiting:
        _, _, node = heappop(waiting)
        mask = masks.pop(node, frozenset())
        if node in places:
            found[places[node]] = mask
            mask |= {places[node]}
        for child, _ in node.next_functions:
            if child is None or not oldest <= age(child) < math.inf:
                continue
            masks[child] = masks.get(child, frozenset()) | mask
            if child not in met:
                met.add(child)
                order += 1
                heappush(waiting, (-age(child), order, child))
    return found


def _is_parameter(node: Any) -> bool:
    while type(node).__name__ in VIEWS:
        node = node.next_functions[0][0]
        if node is None:
            return False
    return is_parameter(getattr(node, "variable", None))
