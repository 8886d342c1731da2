"""Custom autograd functions: whether their backward may run again, and whether it keeps samples apart."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor

from adamcb.gradnorm import _compat
from adamcb.gradnorm._batch import Batch
from adamcb.gradnorm._call import trains
from adamcb.gradnorm._probe import halves

_SETTINGS = (int, float, bool, str, type(None), torch.dtype, torch.device, torch.Size)


def repeats(node: Any) -> bool:
    """Tell whether a function's backward does the same again: it has one result, and keeps no state of its own."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return False  # it may talk to others, who do not run it again
    plain = all(isinstance(value, _SETTINGS) for value in vars(node).values())
    return plain and _compat.count_results(node) == 1 and type(node).__name__ != "CheckpointFunctionBackward"


def watch(node: Any, place: Batch, made: Collection[Any], reject: Callable[[], None]) -> None:
    """Look for mixing when the gradient arrives at the node of a function; `made` are nodes of what parameters made."""
    edges = enumerate(child for child, _ in node.next_functions)
    parameters = {at for at, child in edges if child in made or trains(getattr(child, "variable", None))}
    node.register_prehook(functools.partial(look_for_mixing, weakref.ref(node), place, parameters, reject))


def look_for_mixing(
    node: Callable[[], Any],
    place: Batch,
    parameters: Collection[int],
    reject: Callable[[], None],
    grads: tuple[Tensor | None, ...],
) -> None:
    """Send the gradients of some samples alone through a function's backward, and reject it if they reach others.

    Args:
        node: Returns the function's node in the graph.
        place: Where the samples are in its result.
        parameters: Which of its inputs are parameters, or made of them.
        reject: Called if samples are mixed, or it cannot be told.
        grads: What arrived.
    """
    grad = grads[0]
    if grad is None or not bool(grad.isfinite().all()):
        return
    kept = dict(vars(node()))
    owner = place.owner(grad.shape[place.dim]).to(grad.device)
    try:
        for chosen in halves(place.size):
            mine = chosen.to(owner.device)[owner] & (owner >= 0)
            with torch.no_grad():
                passed = node().apply(grad * _lined_up(mine, place.dim, grad))
            _put_back(node(), kept)
            passed = passed if isinstance(passed, tuple) else (passed,)
            inputs = [each for number, each in enumerate(passed) if each is not None and number not in parameters]
            if not all(_stays(each, mine, place.dim) for each in inputs):
                return reject()
    except Exception:  # whatever the function raises when it runs again must not end training
        reject()
    finally:
        _put_back(node(), kept)


def _put_back(node: Any, kept: dict[str, Any]) -> None:
    """Let a node have what its backward may have let go of."""
    vars(node).clear()
    vars(node).update(kept)


def _lined_up(mine: Tensor, dim: int, tensor: Tensor) -> Tensor:
    return mine.view([-1 if d == dim else 1 for d in range(tensor.dim())])


def _stays(passed: Tensor, mine: Tensor, dim: int) -> bool:
    """Tell whether an input's gradient, with the samples where the result has them, is zero for all others."""
    if passed.dim() <= dim or passed.shape[dim] != len(mine):
        return False
    return not bool((passed * ~_lined_up(mine, dim, passed)).any())


def why_not(node: Any, *, packed: bool) -> str | None:
    """Return why the backward of a custom function cannot be called for each sample, None if it can.

    Args:
        node: Its node in the graph.
        packed: Whether autograd's saved tensors went through hooks so far, as in a checkpoint.
    """
    if _compat.count_results(node) != 1:
        return "has several results, and gradients of all of them would be needed at once"
    if packed or _compat.packs_saved_tensors():
        return "stands in a forward pass with checkpoints, whose saved tensors can be read once only"
    return None
