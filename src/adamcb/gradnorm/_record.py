"""One forward pass and what its backward pass brings: squared norms, added up as gradients arrive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from adamcb.gradnorm._factors import Dense, Outer, Part, joint_square_norms, without_autocast

SECOND_BACKWARD = "a second backward pass went through the same forward pass; call take() after each forward."


def unavailable(reason: str | None) -> RuntimeError:
    """Return the error that `take` raises when a backward pass could not be measured."""
    return RuntimeError(f"Per-sample norms are not available: {reason or 'no gradient reached a parameter.'}")


@dataclass
class Use:
    """A parameter, or a tensor made of parameters alone, in one operation with a batch.

    Attributes:
        tensor: The parameter or the tensor made of parameters.
        part: From the gradient of the operation's result to this use's part of the K gradients.
        forms: Whether the part should supply the gradient of the batch as well.
        origin: For a tensor made of parameters: from which, and how.
        saved: What `part` reads, if it forms the gradient: autograd keeps watch over it.
        bias: A parameter whose gradient is the sum of the left factors of the part, an `Outer`.
    """

    tensor: Tensor
    part: Callable[[Tensor], Part]
    forms: bool = False
    origin: Origin | None = None
    saved: tuple[Tensor, ...] = ()
    bias: Tensor | None = None


@dataclass(frozen=True)
class Origin:
    """Which parameters a tensor was made of, and the two ways of making one that have a shortcut."""

    leaves: tuple[Parameter, ...]
    transpose_of: Parameter | None = None
    expanded_from: Tensor | None = None


class Pass:
    """The record of one forward pass, filled by its backward pass.

    Args:
        index: Its place among the forward passes.
        finish: Called with this record when the first gradient arrives.
    """

    def __init__(self, index: int, finish: Callable[[Pass], None]) -> None:
        self.index = index
        self.uses: dict[int, int] = {}
        self.error: str | None = None
        self._finish = finish
        self._total: Tensor | None = None
        self._pending: dict[int, list[Part]] = {}
        self._fired: set[int] = set()

    def count(self, leaves: Sequence[Parameter]) -> None:
        """Note that an operation uses these parameters: one used twice needs cross terms."""
        for leaf in leaves:
            self.uses[id(leaf)] = self.uses.get(id(leaf), 0) + 1

    def begin(self, operation: int) -> None:
        """Note that the gradient of an operation's result has arrived."""
        if operation in self._fired:
            self.error = SECOND_BACKWARD
        if not self._fired:
            self._finish(self)
        self._fired.add(operation)

    def observe(self, uses: Sequence[Use], grad: Tensor) -> None:
        """Add the parts of these uses."""
        for use in uses:
            part = use.part(grad)
            if use.bias is not None:
                self._add_with_bias(use, part)
            else:
                self.add(use.tensor, part, use.origin)

    def _add_with_bias(self, use: Use, part: Any) -> None:
        if self.uses[id(use.tensor)] == 1 == self.uses[id(use.bias)]:
            self.add_squares(part.square_norms(with_bias=True))
        else:
            self.add(use.tensor, part, None)
            self.add(use.bias, part.bias(), None)

    def supply(self, use: Use, grad: Tensor) -> Tensor:
        """Add the part of a use that forms the gradient, and return the gradient of the batch."""
        part: Any = use.part(grad)
        if self.uses[id(use.tensor)] > 1:
            self._pending.setdefault(id(use.tensor), []).append(part)
            return part.total()
        total, square_norms = part.total_and_square_norms()
        self.add_squares(square_norms)
        return total

    def add(self, tensor: Any, part: Part, origin: Origin | None) -> None:
        """Add one part, pulled back to the parameters that `tensor` was made of."""
        if origin is None:
            if self.uses[id(tensor)] > 1:
                self._pending.setdefault(id(tensor), []).append(part)
            else:
                self.add_squares(part.square_norms())
        elif origin.transpose_of is not None and isinstance(part, Outer):
            parameter = origin.transpose_of
            self.add(parameter, Outer(part.left, part.right, parameter.shape, transposed=True), None)
        else:
            for leaf, gradients in pull_back(tensor, origin.leaves, part.dense()):
                self.add(leaf, Dense(gradients), None)

    def add_squares(self, square_norms: Tensor) -> None:
        """Add float[K] to the total."""
        if self._total is None:
            self._total = square_norms
        elif self._total.shape != square_norms.shape:
            self.error = (
                f"the size of the batch cannot be told: the parameters' operations saw {len(self._total)} and "
                f"{len(square_norms)} samples. The first dimension of every input must be the batch."
            )
        else:
            self._total = self._total + square_norms.to(self._total.device)

    def settle(self) -> None:
        """Add the parameters that were used more than once, and let go of what they held."""
        if self._pending:
            with torch.no_grad(), without_autocast():
                for parts in self._pending.values():
                    self.add_squares(joint_square_norms(parts))
            self._pending.clear()

    def norms(self) -> Tensor:
        """Return float[K]; raise what went wrong during the backward pass, which it did not disturb."""
        self.settle()
        if self.error is not None or self._total is None:
            raise unavailable(self.error)
        return self._total.sqrt()


def pull_back(tensor: Tensor, leaves: Sequence[Parameter], gradients: Tensor) -> list[tuple[Parameter, Tensor]]:
    """Return the K gradients of each parameter that `tensor` was made of, from those of `tensor`."""
    gradients = gradients.to(tensor.dtype).reshape(-1, *tensor.shape)
    pulled = torch.autograd.grad(tensor, leaves, gradients, retain_graph=True, allow_unused=True, is_grads_batched=True)
    return [(leaf, grad) for leaf, grad in zip(leaves, pulled, strict=True) if grad is not None]
