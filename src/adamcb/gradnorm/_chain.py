"""The shortest way, for plain sequences of dense layers: nothing is watched, the graph is read after the forward.

A small dense network takes a few milliseconds a step, of which watching every operation would take a tenth. Where the
types of the modules say what the forward pass does, the graph that autograd built holds all there is to know: each
dense layer on vectors is one node, with its input saved in it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as module_internals

from adamcb.gradnorm._record import Pass

# Exact types: a subclass, or a module under parametrization, may do anything.
_ONE_INPUT = {
    *(nn.ReLU, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Tanh, nn.Sigmoid, nn.Softplus),
    *(nn.Hardtanh, nn.ReLU6, nn.LogSigmoid, nn.Tanhshrink, nn.Identity, nn.LogSoftmax, nn.Softmax),
}


class Chain:
    """Tells whether a model is a sequence of dense layers and activations, each used once; remembers the answer."""

    def __init__(self) -> None:
        self._layers: list[Any] = []
        self._answer = False

    def applies(self, model: nn.Module, args: tuple, kwargs: dict[str, Any]) -> bool:
        """Tell it for one forward pass, given its inputs: one vector for each sample, or what the model flattens."""
        if type(model) is not nn.Sequential or kwargs or len(args) != 1 or not isinstance(args[0], Tensor):
            return False
        layers: list[Any] = []
        for module in model._modules.values():
            if module is None or module._forward_hooks or module._forward_pre_hooks or module._backward_hooks:
                return False
            layers += (module, *module._parameters.values())
        if len(layers) != len(self._layers) or any(a is not b for a, b in zip(layers, self._layers, strict=True)):
            self._layers, self._answer = layers, _is_plain(model)
        if not self._answer or (args[0].dim() != 2 and type(model[0]) is not nn.Flatten):
            return False
        return not _interfered(args[0])


def _is_plain(model: nn.Sequential) -> bool:
    modules = list(model)
    linears = [module for module in modules if type(module) is nn.Linear]
    parts = [id(part) for module in linears for part in (module, *module.parameters())]
    flattens = [module for module in modules if type(module) is nn.Flatten]
    known = all(type(module) in _ONE_INPUT for module in modules if module not in (*linears, *flattens))
    once = len(set(parts)) == len(parts) and all((m.start_dim, m.end_dim) == (1, -1) for m in flattens)
    return bool(linears) and known and once


def _interfered(inputs: Tensor) -> bool:
    """Tell whether something else changes what operations do, or what they save."""
    autograd: Any = torch._C._autograd  # type: ignore[attr-defined]
    packed = autograd._top_saved_tensors_default_hooks(False) is not None
    return packed or torch.is_autocast_enabled(inputs.device.type) or bool(module_internals._has_any_global_hook())


def watch(record: Pass, output: Tensor) -> None:
    """Send the norms of every dense layer behind `output` to `record`."""
    node: Any = output.grad_fn
    operation = 0
    while node is not None:
        edges = node.next_functions
        if len(edges) == 1:
            node = edges[0][0]
            continue
        # A bias, the input and the matrix; or the input and the matrix. The node of what is frozen is None.
        bias = len(edges) == 3 and edges[0][0] is not None
        matrix = edges[-1][0] is not None
        inputs = (node._saved_mat1 if len(edges) == 3 else node._saved_self) if matrix else None
        if matrix or bias:
            operation += 1
            node.register_prehook(_Observer(record, operation, inputs, bias))
        node = edges[-2][0]


class _Observer:
    """Takes the norms of a layer's input and of the gradient of its result: their product is the weight's."""

    def __init__(self, record: Pass, operation: int, inputs: Tensor | None, bias: bool) -> None:
        self.record, self.operation, self.inputs, self.bias = record, operation, inputs, bias

    def __call__(self, grads: tuple[Tensor, ...]) -> None:
        self.record.begin(self.operation)
        inner = None if self.inputs is None else torch.linalg.vector_norm(self.inputs.detach(), dim=1)
        self.record.add_product(torch.linalg.vector_norm(grads[0].detach(), dim=1), inner, self.bias)
        self.inputs = None  # autograd lets go of it at this point, too
