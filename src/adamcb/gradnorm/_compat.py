"""The private names of torch that the room uses, all of them, each with what happens where torch lacks it.

All hold for torch 2.8 to 2.15. A later torch that drops one costs speed or a shortcut, never a wrong norm.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.nn.modules import module as _module
from torch.overrides import TorchFunctionMode

_C: Any = torch._C


def _unknown(*_: Any) -> bool:
    """Answer a question about the state of torch where torch no longer tells: better slow than wrong."""
    return True


autocasting: Callable[[], bool] = getattr(_C, "_is_any_autocast_enabled", _unknown)
"""Whether autocast is on, on some device."""

_GLOBAL = ("_global_forward_pre_hooks", "_global_forward_hooks", "_global_backward_pre_hooks", "_global_backward_hooks")
_global_hooks: list[Any] = [getattr(_module, name, True) for name in _GLOBAL]
_top_saved_hooks: Callable | None = getattr(getattr(_C, "_autograd", None), "_top_saved_tensors_default_hooks", None)
_modes: Callable[[], list] | None = getattr(torch.overrides, "_get_current_function_mode_stack", None)
_count_modes: Callable[[], int] | None = getattr(_C, "_len_torch_function_stack", None)


def has_global_module_hooks() -> bool:
    """Tell whether hooks run for every module of the process."""
    return any(_global_hooks)


def packs_saved_tensors() -> bool:
    """Tell whether autograd's saved tensors go through hooks, as in gradient checkpointing and offloading."""
    return _top_saved_hooks is None or _top_saved_hooks(False) is not None


def function_modes() -> list[TorchFunctionMode]:
    """Return the function modes at work, the outermost first; none where torch does not tell."""
    if _count_modes is not None and not _count_modes():
        return []
    return [] if _modes is None else list(_modes())


def is_custom(node: Any) -> bool:
    """Tell whether a node of the graph belongs to a custom `torch.autograd.Function`."""
    return isinstance(node, BackwardCFunction)


def is_foreign(node: Any) -> bool:
    """Tell whether a node is none of torch's own: a custom function, be it in Python or C++."""
    return is_custom(node) or type(node).__name__ == "CppFunction"


def count_results(node: Any) -> int:
    """Return how many results a custom function has; 1 where torch does not tell."""
    return len(getattr(node, "_input_metadata", (None,)))


def shape_of_result(node: Any) -> tuple[int, ...] | None:
    """Return the shape of what a node of the graph computed; None where torch does not tell."""
    metadata = getattr(node, "_input_metadata", None)
    return tuple(metadata[0].shape) if metadata else None


def made_before(node: Any, time: int) -> bool:
    """Tell whether a node is older than `now()` returned; False where torch does not number its nodes."""
    number = getattr(node, "_sequence_nr", None)
    return number is not None and number() < time


def has_hooks(tensor: Tensor) -> bool:
    """Tell whether somebody waits for the gradient of a tensor, as `fully_shard` does."""
    return bool(tensor._backward_hooks)


def age(node: Any) -> float:
    """Return a number that grows from each node to those made of it; infinite for leaves, 0 where torch has none."""
    number = getattr(node, "_sequence_nr", None)
    return math.inf if type(node) is ACCUMULATES else 0.0 if number is None else float(number())


def now() -> int:
    """Return a number that no node made so far has reached, and that every later node reaches."""
    with torch.enable_grad():
        node: Any = torch.zeros((), requires_grad=True).view(()).grad_fn
    number = getattr(node, "_sequence_nr", None)
    return 0 if number is None else number()


def base_of(view: Tensor) -> Tensor | None:
    """Return the tensor that autograd knows `view` to be a view of, None if it is no view."""
    return view._base


def version_of(tensor: Tensor) -> int:
    """Return how often a tensor, or what it shares its numbers with, was changed in place; 0 where nobody counts."""
    try:
        return tensor._version
    except (RuntimeError, AttributeError):  # made in inference mode
        return 0


def storage_of(tensor: Tensor) -> torch.UntypedStorage | None:
    """Return what holds a tensor's numbers, None where it has no storage of its own."""
    try:
        return tensor.untyped_storage()
    except (RuntimeError, NotImplementedError):  # sparse, or a subclass
        return None


def saved_inputs(node: Any, edges: int) -> Tensor:
    """Return the inputs that the node of a dense layer keeps for its weight's gradient.

    Raises:
        AttributeError: If torch names them otherwise; then the layer has to be traced.
    """
    return (node._saved_mat1 if edges == 3 else node._saved_self).detach()


def is_convolution(node: Any) -> bool:
    """Tell whether a node of the graph belongs to a convolution; its inputs are the images, the weight and the bias."""
    return type(node).__name__ == "ConvolutionBackward0"


def saved_convolution(node: Any) -> tuple[Tensor, tuple[tuple[int, ...], ...], int]:
    """Return the inputs that the node of a convolution keeps; its stride, padding and dilation; and its groups."""
    return (
        node._saved_input.detach(),
        (node._saved_stride, node._saved_padding, node._saved_dilation),
        node._saved_groups,
    )


READS_GRAPH = hasattr(torch.zeros(1, 1, requires_grad=True).mm(torch.zeros(1, 1)).grad_fn, "_saved_mat2") and hasattr(
    torch.conv1d(torch.zeros(1, 1, 1), torch.zeros(1, 1, 1, requires_grad=True)).grad_fn, "_saved_stride"
)
"""Whether nodes show what they saved."""


ACCUMULATES: Any = type(torch.zeros(1, requires_grad=True).view(1).grad_fn.next_functions[0][0])  # type: ignore
"""The type of the nodes that add to the gradients of leaves."""


def children(model: nn.Module) -> tuple[nn.Module | None, ...]:
    """Return the submodules by name, None where one is missing, without the copies that `children()` leaves out."""
    return tuple(model._modules.values())


def parameter_table(module: nn.Module) -> Any:
    """Return a live view of a module's own parameters."""
    return module._parameters.values()


def hook_tables(module: nn.Module) -> list[dict]:
    """Return the dictionaries that hold a module's hooks."""
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return [vars(module)[kind] for kind in kinds]


def forward_hooks(module: nn.Module) -> Iterator[Any]:
    """Yield the forward hooks of a module."""
    yield from module._forward_hooks.values()


def is_compiled(model: nn.Module) -> bool:
    """Tell whether `model` is what `torch.compile(model)` returned."""
    return hasattr(model, "_orig_mod")


def is_compiled_in_place(model: nn.Module) -> bool:
    """Tell whether `model.compile()` was called."""
    return getattr(model, "_compiled_call_impl", None) is not None
