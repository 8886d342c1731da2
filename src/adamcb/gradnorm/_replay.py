"""The exact way for operations without a rule: the vector–Jacobian product of each sample's own slice.

Sample j's part of the batch gradient is the product with the incoming gradient of sample j alone, all else zero. Where
the operation treats samples apart, which is checked on the values, only that sample's slice is computed again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from adamcb.gradnorm._batch import only, split
from adamcb.gradnorm._call import Call, Origin, Use, is_in_place, substitute
from adamcb.gradnorm._parts import Dense


def uses(call: Call) -> list[Use]:
    """Return one use for each parameter, or tensor made of parameters, among the arguments."""
    replay = _Replay(call)
    targets: dict[int, Tensor] = {}
    substitute((call.args, call.kwargs), lambda t: targets.setdefault(id(t), t) if call.parametric(t) else t)
    return [Use(tensor, lambda grad, t=tensor: Dense(replay.gradients(t, grad))) for tensor in targets.values()]


def custom_use(call: Call, node: Callable[[], Any], place: int, target: Any, origin: Origin | None) -> Use:
    """Return the use of the input number `place` of a custom autograd function.

    Args:
        call: Says where the samples are in the function's result.
        node: Returns the function's node in the graph.
        place: Which of the node's inputs.
        target: The parameter, or a stand-in for what was made of parameters.
        origin: What that was made of.
    """

    def part(grad: Tensor) -> Dense:
        results = (node().apply(only(grad, call.out, sample)) for sample in range(call.out.size))
        return Dense(torch.stack([(row if isinstance(row, tuple) else (row,))[place] for row in results]))

    return Use(target, part, origin=origin)


class _Replay:
    """Runs an operation again, on all samples or on one, with the numbers it had."""

    def __init__(self, call: Call) -> None:
        self._call = call
        # An operation in place is about to overwrite its first argument.
        self._first = call.args[0].detach().clone() if is_in_place(call.name) else None
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
        if self._call.out.owners is not None:
            return None
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
        alone = (only(grad, self._call.out, sample) for sample in range(self._call.out.size))
        return torch.stack([torch.autograd.grad(whole, leaf, one, retain_graph=True)[0] for one in alone])
