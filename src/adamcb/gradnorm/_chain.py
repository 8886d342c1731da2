"""A shortcut for plain sequences of layers: nothing is traced, the graph is read after the forward pass.

A small network takes a few milliseconds a step, and tracing every operation would take a good part of that. Where the
types of the modules say what the forward pass does, autograd's graph holds all there is to know: each dense layer on
vectors is one node, with its input saved in it, and so is each convolution on images.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.linalg import vector_norm

from adamcb.gradnorm import _compat
from adamcb.gradnorm._parts import Dense, Outer
from adamcb.gradnorm._patches import Patches, Window
from adamcb.gradnorm._record import SECOND_BACKWARD, Check, Finish, arrive, unavailable

# A dense layer: its inputs, None if its matrix is frozen, and whether its bias trains.
Layer = tuple[Tensor | None, bool]
# A convolution: the shape of its weight, how the kernel moves, and as above.
ConvolutionLayer = tuple[tuple[int, ...], Window, Tensor | None, bool]

# Where the inputs of all layers hold fewer numbers than this, the layers wait for one another.
_SMALL = 1 << 20
# Convolutions with more products than this are traced: gradients that are formed then need not be computed twice.
_FEW_PRODUCTS = 1 << 26
# Exact types: a subclass, or a module under parametrization, may do anything.
_ONE_INPUT = {
    *(nn.ReLU, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Tanh, nn.Sigmoid, nn.Softplus),
    *(nn.Hardtanh, nn.ReLU6, nn.LogSigmoid, nn.Tanhshrink, nn.Identity, nn.LogSoftmax, nn.Softmax),
}
_ON_IMAGES = {nn.Conv2d, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d}


class Chain:
    """Tells whether a model is a sequence of known layers and activations, each used once; remembers the answer."""

    def __init__(self) -> None:
        self._modules: tuple = ()
        self._tables: list = []
        self._hooks: list[dict] = []
        self._parameters: list[int] = []
        self._plain = False
        self._width = 0
        self._buffers = Buffers()
        self._heavy: set[torch.Size] = set()

    @property
    def heavy(self) -> list[tuple[int, ...]]:
        """The shapes of inputs whose passes are traced, though the model is a chain; may be set."""
        return sorted(map(tuple, self._heavy))

    @heavy.setter
    def heavy(self, shapes: Iterable[Sequence[int]]) -> None:
        self._heavy = {torch.Size(shape) for shape in shapes}

    def enter(
        self, model: nn.Module, args: tuple, kwargs: dict[str, Any], index: int, finish: Finish, check: Check
    ) -> ChainPass | None:
        """Return the record of a forward pass that begins with these inputs, None if the model is no chain for them."""
        if type(model) is not nn.Sequential or kwargs or len(args) != 1 or not _compat.READS_GRAPH:
            return None
        modules, inputs = _compat.children(model), args[0]
        if modules != self._modules:
            self._look_at(modules)
        parameters = list(map(id, itertools.chain.from_iterable(self._tables)))
        if parameters != self._parameters:
            self._parameters, self._plain = parameters, _is_plain(modules)
        if not self._plain or any(self._hooks) or _interfered() or not isinstance(inputs, Tensor):
            return None
        if any("forward" in vars(module) for module in (model, *modules) if module is not None):  # it was wrapped
            return None
        if inputs.grad_fn is not None:  # the graph goes on behind the model, where its end cannot be told
            return None
        images = type(modules[0]) in _ON_IMAGES
        if images and (inputs.dim() != 4 or inputs.shape in self._heavy):
            return None
        if not images and inputs.dim() != 2 and type(modules[0]) is not nn.Flatten:  # one vector for each sample
            return None
        small = inputs.size(0) * self._width < _SMALL
        heavy = functools.partial(self._heavy.add, inputs.shape)
        return ChainPass(index, finish, check, self._buffers, heavy, small=small)

    def _look_at(self, modules: tuple) -> None:
        """Keep hold of what may change from one pass to the next, so that a look at it costs next to nothing."""
        present, known = [module for module in modules if module is not None], bool(self._modules)
        self._modules, self._plain = modules, _is_plain(modules)
        linears = [module for module in present if type(module) is nn.Linear]
        if known:  # at the first look, what was loaded stays
            self._heavy.clear()
        self._tables = [_compat.parameter_table(module) for module in present if type(module) in _WITH_PARAMETERS]
        self._hooks = [table for module in present for table in _compat.hook_tables(module)]
        self._width = sum(module.in_features for module in linears)


_WITH_PARAMETERS = {nn.Linear, nn.Conv2d}


def _is_plain(modules: Sequence[nn.Module | None]) -> bool:
    layers = [module for module in modules if type(module) in _WITH_PARAMETERS]
    flattens = [module for module in modules if type(module) is nn.Flatten]
    others = {type(module) for module in modules} - _WITH_PARAMETERS - _ON_IMAGES - {nn.Flatten}
    parts = [id(part) for module in layers for part in (module, *module.parameters())]  # type: ignore[union-attr]
    flat = all((module.start_dim, module.end_dim) == (1, -1) for module in flattens)
    apart = all(module.dim in (1, -1, None) for module in modules if isinstance(module, (nn.Softmax, nn.LogSoftmax)))
    known = others <= _ONE_INPUT and flat and apart
    return bool(layers) and known and len(set(parts)) == len(parts) and _in_order(modules)


def _in_order(modules: Sequence[Any]) -> bool:
    """Tell whether images, if there are any, come first and alone, and are flattened before dense layers see them."""
    kinds = [type(module) for module in modules]
    on_images = [place for place, kind in enumerate(kinds) if kind in _ON_IMAGES]
    if not on_images:
        return True
    flattened = kinds.index(nn.Flatten) if nn.Flatten in kinds else len(kinds)
    usual = all(module.padding_mode == "zeros" for module in modules if type(module) is nn.Conv2d)
    single = not any(module.return_indices for module in modules if type(module) is nn.MaxPool2d)
    return on_images[0] == 0 and on_images[-1] < flattened and nn.Linear not in kinds[:flattened] and usual and single


def _interfered() -> bool:
    """Tell whether something else changes what operations do, or what they save."""
    return _compat.packs_saved_tensors() or _compat.autocasting() or _compat.has_global_module_hooks()


class ChainPass:
    """The record of one forward pass through a chain, filled by its backward pass.

    In small networks gradients are only picked up as they arrive, and the norms taken all at once when the last one is
    there: small operations strewn over the backward pass would each find the caches full of something else.

    Args:
        index: Its place among the forward passes.
        finish: Called with this record when the first gradient arrives.
        check: Holds the guard that compares parts with gradients.
        buffers: Where the norms are computed.
        heavy: Called if the next pass like this one should be traced.
        small: Whether the layers wait for one another.
    """

    def __init__(
        self, index: int, finish: Finish, check: Check, buffers: Buffers, heavy: Callable[[], None], *, small: bool
    ) -> None:
        self.index = index
        self._buffers, self._small, self._check, self._heavy = buffers, small, check, heavy
        self._products = 0
        self._leaves: list[tuple[Any, Any]] = []
        self.error: str | None = None
        self.finish: Finish | None = finish
        self._layers: list[Layer | ConvolutionLayer] = []  # from the last to the first, as gradients arrive
        self._gradients: list[tuple[Tensor | None, ...]] = []
        self._total: Tensor | None = None

    def watch(self, output: Tensor) -> None:
        """Wait for the gradients of all layers behind `output`."""
        nodes: list[Any] = []
        node: Any = output.grad_fn
        while node is not None and (edges := node.next_functions):  # without edges: the input wants a gradient itself
            if len(edges) == 1:
                node = edges[0][0]
                continue
            if _compat.is_convolution(node):
                if self._add_convolution(node, edges):
                    nodes.append(node)
                node = edges[0][0]
                continue
            # A bias, the input and the matrix; or the input and the matrix. The node of what is frozen is None.
            bias = len(edges) == 3 and edges[0][0] is not None
            inputs = None
            if edges[-1][0] is not None:
                # Detached, or this record and the nodes that call it would hold each other.
                inputs = _compat.saved_inputs(node, len(edges))
            if bias or inputs is not None:
                self._layers.append((inputs, bias))
                if self._check.guard is not None:
                    weight = edges[-1][0].next_functions[0][0].variable if inputs is not None else None
                    self._leaves.append((weight, edges[0][0].variable if bias else None))
                nodes.append(node)
            node = edges[-2][0]
        for place, node in enumerate(nodes, start=1):
            if place == len(nodes) or not self._small:
                node.register_prehook(self._settle_first if place == 1 else self._settle_next)
            else:
                node.register_prehook(self._begin if place == 1 else self._gradients.append)

    def _add_convolution(self, node: Any, edges: Sequence[Any]) -> bool:
        """Note a convolution; tell whether something of it trains."""
        weight, bias = (None if edge[0] is None else edge[0].variable for edge in edges[1:])
        if weight is None and bias is None:
            return False
        shape, window, inputs = (), Window((), (), (), (), 1), None
        if weight is not None:
            inputs, (stride, padding, dilation), groups = _compat.saved_convolution(node)
            shape, window = tuple(weight.shape), Window(tuple(weight.shape[2:]), stride, padding, dilation, groups)
            pixels = inputs.numel() // inputs.shape[1]
            self._products += pixels * weight.numel() // math.prod(window.stride)
            if self._products > _FEW_PRODUCTS:
                self._heavy()
        self._layers.append((shape, window, inputs, bias is not None))
        if self._check.guard is not None:
            self._leaves.append((weight, bias))
        return True

    def _begin(self, grads: tuple[Tensor | None, ...]) -> None:
        if not arrive(self):
            self.error = SECOND_BACKWARD
        self._gradients.append(grads)

    def _settle_first(self, grads: tuple[Tensor | None, ...]) -> None:
        self._begin(grads)
        self.settle()

    def _settle_next(self, grads: tuple[Tensor | None, ...]) -> None:
        self._gradients.append(grads)
        self.settle()

    def settle(self) -> None:
        """Take the norms of the gradients that have arrived, and let go of what they need."""
        layers, gradients = self._layers, self._gradients
        if torch.is_grad_enabled():  # create_graph=True
            with torch.no_grad():
                return self.settle()
        if len(gradients) < len(layers):
            layers = layers[: len(gradients)]
        if layers and gradients[0][0] is not None:  # a gradient that is not defined leaves all behind it undefined
            if self._leaves:
                self._compare(layers, gradients)
            for norms in self._norms(layers, gradients):
                self._total = norms if self._total is None else torch.hypot(self._total, norms)
        del self._layers[: len(layers)]
        gradients.clear()

    def _norms(self, layers: list[Any], gradients: list[tuple[Any, ...]]) -> Iterator[Tensor]:
        """Yield the norms of all dense layers together, and those of each convolution."""
        pairs = list(zip(layers, gradients, strict=False))
        dense = [pair for pair in pairs if len(pair[0]) == 2]
        if dense:
            yield self._buffers.norms([layer for layer, _ in dense], [grads for _, grads in dense])
        for (shape, window, inputs, bias), (grad,) in (pair for pair in pairs if len(pair[0]) == 4):
            squares = [Dense(grad.sum((2, 3))).square_norms()] if bias else []
            if inputs is not None:
                squares.append(_patches(shape, window, inputs, grad).square_norms())
            yield (squares[0] if len(squares) == 1 else squares[0].add_(squares[1])).sqrt_()

    def _compare(self, layers: list[Any], gradients: list[tuple[Any, ...]]) -> None:
        guard: Any = self._check.guard
        for layer, (grad,), (weight, bias) in zip(layers, gradients, self._leaves, strict=False):
            if guard is None:
                return
            inputs = layer[-2]
            if inputs is not None and len(layer) == 2:
                guard.measure(weight, Outer(grad[:, None, None], inputs[:, None, None], weight.shape))
            elif inputs is not None:
                guard.measure(weight, _patches(layer[0], layer[1], inputs, grad))
            if bias is not None:
                guard.measure(bias, Dense(grad if len(layer) == 2 else grad.sum((2, 3))))
        del self._leaves[: len(layers)]

    def norms(self) -> Tensor:
        """Return float[K]."""
        if self._gradients:
            self.settle()
        if self.error is not None or self._total is None:
            raise unavailable(self.error)
        return self._total


def _patches(shape: tuple[int, ...], window: Window, inputs: Tensor, grad: Tensor) -> Patches:
    return Patches(inputs.unsqueeze(1), grad.unsqueeze(1), shape, window)


class Buffers:
    """Buffers for the norms of the layers of a chain, used again in every pass: the fewest operations that will do."""

    __slots__ = ("_device", "_dtype", "_inner", "_inners", "_kinds", "_outer", "_outers", "_size", "_wide")

    def __init__(self) -> None:
        self._size = -1

    def norms(self, layers: list[Layer], gradients: list[tuple[Any, ...]]) -> Tensor:
        """Return float[K]: √Σ ‖g‖² (‖x‖² + 1) over the layers, x their inputs and g the gradients of their results."""
        grad = gradients[0][0]
        kinds = [bias if inputs is None else 2 + bias for inputs, bias in layers]
        same = grad.size(0) == self._size and grad.dtype is self._dtype and kinds == self._kinds
        if not same or grad.device != self._device:
            self._allocate(grad, kinds)
        wide = self._wide
        for (inputs, _), (grad,), inner, outer in zip(layers, gradients, self._inner, self._outer, strict=False):
            vector_norm(grad, dim=1, dtype=wide, out=outer)
            if inputs is not None:
                vector_norm(inputs, dim=1, dtype=wide, out=inner)
        return vector_norm(self._inners * self._outers, dim=(1, 2))

    def _allocate(self, grad: Tensor, kinds: list[int]) -> None:
        self._size, self._dtype, self._device, self._kinds = grad.size(0), grad.dtype, grad.device, kinds
        self._wide = grad.dtype if grad.dtype == torch.float64 else torch.float32
        space = torch.zeros(self._size, 3, len(kinds), dtype=self._wide, device=self._device)
        space[:, 1] = torch.tensor([kind % 2 for kind in kinds])
        self._inners, self._outers = space[:, :2], space[:, 2:]
        self._inner, self._outer = space[:, 0].unbind(1), space[:, 2].unbind(1)
