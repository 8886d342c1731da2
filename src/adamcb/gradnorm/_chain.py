"""The shortest way, for plain sequences of dense layers: nothing is watched, the graph is read after the forward.

A small dense network takes a few milliseconds a step, of which watching every operation would take a tenth. Where the
types of the modules say what the forward pass does, the graph that autograd built holds all there is to know: each
dense layer on vectors is one node, with its input saved in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from adamcb.gradnorm._record import Pass

# Exact types: a subclass, or a module under parametrization, may do anything.
_ONE_INPUT = {
    *(nn.ReLU, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Tanh, nn.Sigmoid, nn.Softplus),
    *(nn.Hardtanh, nn.ReLU6, nn.LogSigmoid, nn.Tanhshrink, nn.Identity, nn.LogSoftmax, nn.Softmax),
}


class Chain:
    """Tells whether a model is a sequence of dense layers and activations, each used once; remembers the answer."""

    def __init__(self) -> None:
        self._modules: tuple = ()
        self._parameters: list[tuple] = []
        self._answer = False

    def applies(self, model: nn.Module, args: tuple, kwargs: dict[str, Any]) -> bool:
        """Tell it for one forward pass, given its inputs: one vector for each sample, or what the model flattens."""
        if type(model) is not nn.Sequential or kwargs or len(args) != 1 or not isinstance(args[0], Tensor):
            return False
        modules, parameters = tuple(model._modules.values()), []
        for module in modules:
            if module is None or module._forward_hooks or module._forward_pre_hooks or module._backward_hooks:
                return False
            parameters.append(tuple(map(id, module._parameters.values())))
        if modules != self._modules or parameters != self._parameters:
            self._modules, self._parameters, self._answer = modules, parameters, _is_plain(modules)
        flat = args[0].dim() == 2 or type(modules[0]) is nn.Flatten
        return self._answer and flat and not _interfered()


def _is_plain(modules: Sequence[nn.Module]) -> bool:
    linears = [module for module in modules if type(module) is nn.Linear]
    flattens = [module for module in modules if type(module) is nn.Flatten]
    others = {type(module) for module in modules} - {nn.Linear, nn.Flatten}
    parts = [id(part) for module in linears for part in (module, *module.parameters())]
    whole = all((module.start_dim, module.end_dim) == (1, -1) for module in flattens)
    return bool(linears) and others <= _ONE_INPUT and len(set(parts)) == len(parts) and whole


def _interfered() -> bool:
    """Tell whether something else changes what operations do, or what they save."""
    internals: Any = torch._C
    packed = internals._autograd._top_saved_tensors_default_hooks(False) is not None
    return packed or internals._is_any_autocast_enabled() or bool(_has_any_global_hook())


def watch(record: Pass, output: Tensor) -> None:
    """Send the norms of every dense layer behind `output` to `record`."""
    node: Any = output.grad_fn
    operation = 0
    while node is not None:
        edges = node.next_functions
        if not edges:  # the input wants a gradient itself
            return
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
        with nullcontext() if not torch.is_grad_enabled() else torch.no_grad():  # create_graph=True
            inner = None if self.inputs is None else torch.linalg.vector_norm(self.inputs, dim=1)
            self.record.add_factors(torch.linalg.vector_norm(grads[0], dim=1), inner, self.bias)
        self.inputs = None  # autograd lets go of it at this point, too
