"""The exact way for operations without a rule: the vector–Jacobian product of each sample's own slice.

Sample j's part of the batch gradient is the product with the incoming gradient of sample j alone, all else zero. Where
the operation treats samples apart, which is checked on the values, only that sample's slice is computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from adamcb.gradnorm._call import Call
from adamcb.gradnorm._factors import Dense
from adamcb.gradnorm._layout import split
from adamcb.gradnorm._record import Use


def uses(call: Call) -> list[Use]:
    """Return one use for each parameter, or tensor made of parameters, among the arguments."""
    replay = _Replay(call)
    targets: dict[int, Tensor] = {}
    substitute((call.args, call.kwargs), lambda t: targets.setdefault(id(t), t) if call.parametric(t) else t)
    return [Use(tensor, lambda grad, t=tensor: Dense(replay.gradients(t, grad))) for tensor in targets.values()]


def custom_use(call: Call, node: Callable[[], Any], place: int, leaf: Parameter) -> Use:
    """Return the use of `leaf`, the input number `place` of a custom autograd function.

    Args:
        call: Says where the samples are in the function's result.
        node: Returns the function's node in the graph.
        place: Which of the node's inputs.
        leaf: The parameter.
    """

    def part(grad: Tensor) -> Dense:
        rows = (node().apply(alone) for alone in _one_by_one(grad, call))
        return Dense(torch.stack([(row if isinstance(row, tuple) else (row,))[place] for row in rows]))

    return Use(leaf, part)


def _one_by_one(grad: Tensor, call: Call) -> Iterator[Tensor]:
    """Yield the gradient of the result with all samples but one set to zero, for each sample."""
    for sample in range(call.out.size):
        alone = torch.zeros_like(grad)
        split(alone, call.out)[sample] = split(grad, call.out)[sample]
        yield alone


def substitute(value: Any, new: Callable[[Tensor], Any]) -> Any:
    """Return `value` with new(tensor) for every tensor in nested tuples, lists and dictionaries."""
    if isinstance(value, Tensor):
        return new(value)
    if isinstance(value, dict):
        return {key: substitute(item, new) for key, item in value.items()}
    if isinstance(value, (tuple, list)) and not isinstance(value, torch.Size):
        return type(value)(substitute(item, new) for item in value)
    return value


class _Replay:
    """Runs an operation again, on all samples or on one, with the numbers it had."""

    def __init__(self, call: Call) -> None:
        self._call = call
        in_place = call.name.startswith("__i") or (call.name.endswith("_") and not call.name.endswith("__"))
        # An operation in place is about to overwrite its first argument.
        self._first = call.args[0].detach().clone() if in_place else None
        self._random = torch.get_rng_state()
        self._device = call.leaves()[0].device.type
        self._autocast = torch.is_autocast_enabled(self._device), torch.get_autocast_dtype(self._device)

    def gradients(self, target: Tensor, grad: Tensor) -> Tensor:
        """Return float[K, ...]: each sample's part of the gradient of `target`."""
        leaf = target.detach().requires_grad_()
        enabled, dtype = self._autocast
        with torch.enable_grad(), torch.autocast(self._device, dtype, enabled), torch.random.fork_rng(devices=[]):
            whole = self._run(target, leaf, None)
            sliced = self._sliced(target, leaf, whole.detach(), grad)
            return sliced if sliced is not None else self._masked(leaf, whole, grad)

    def _run(self, target: Tensor, leaf: Tensor, sample: int | None) -> Tensor:
        call = self._call

        def new(tensor: Tensor) -> Tensor:
            if tensor is target:
                return leaf
            value = tensor.detach()
            if self._first is not None and tensor is call.args[0]:
                value = self._first.clone()
            batch = call.batch(tensor)
            return split(value, batch)[sample] if batch is not None and sample is not None else value

        torch.set_rng_state(self._random)
        args, kwargs = substitute((call.args, call.kwargs), new)
        return call.func(*args, **kwargs)

    def _sliced(self, target: Tensor, leaf: Tensor, whole: Tensor, grad: Tensor) -> Tensor | None:
        """Return the gradients from one slice at a time, None where a slice is not what the whole holds there."""
        rows = []
        for sample, (expected, incoming) in enumerate(
            zip(split(whole, self._call.out), split(grad, self._call.out), strict=True)
        ):
            try:
                result = self._run(target, leaf, sample)
            except (RuntimeError, ValueError, IndexError):  # the operation needs the whole batch
                return None
            if result.shape != expected.shape or not torch.allclose(result, expected, rtol=1e-4, atol=1e-6):
                return None
            rows.append(torch.autograd.grad(result, leaf, incoming)[0])
        return torch.stack(rows)

    def _masked(self, leaf: Tensor, whole: Tensor, grad: Tensor) -> Tensor:
        alone = _one_by_one(grad, self._call)
        return torch.stack([torch.autograd.grad(whole, leaf, one, retain_graph=True)[0] for one in alone])
