"""What a forward pass leaves behind for `take`: squared norms, added up as gradients arrive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import Parameter

from adamcb.gradnorm._call import Origin, Use
from adamcb.gradnorm._guard import Guard, unheard
from adamcb.gradnorm._parts import Dense, Outer, Part, joint_square_norms, without_autocast

ADVICE = 'Last-layer norms need less: mode="last-layer", or scores="last-layer" of a loader.'
GRADIENTS_OF_GRADIENTS = (
    "gradients of gradients were taken (`create_graph=True`, as for a gradient penalty): what of them belongs to which "
    "sample cannot be told."
)
SECOND_BACKWARD = "a second backward pass went through the same forward pass; call take() after each forward."


class Record(Protocol):
    """One forward pass that has gone backward, whichever way it was followed.

    Attributes:
        index: Its place among the forward passes.
        finish: Called with this record when its first gradient arrives, None from then on.
    """

    index: int
    finish: Finish | None

    def settle(self) -> None:
        """Finish what waits for other gradients, and let go of what that needs."""
        ...

    def norms(self) -> Tensor:
        """Return float[K]; raise what went wrong during the backward pass, which it did not disturb."""
        ...


Finish = Callable[[Any], None]
"""Called with a record when its first gradient arrives."""


def arrive(record: Record) -> bool:
    """Note that a gradient has arrived; tell whether it is the record's first."""
    finish = record.finish
    if finish is None:
        return False
    record.finish = None  # drop it first, or the engine and this record would hold each other
    finish(record)
    return True


class Check:
    """Holds the guard of the passes since the last `take`, None where they are not checked.

    Records share this object instead of the engine: the engine holds the records, and that would be a cycle.
    """

    def __init__(self) -> None:
        self.guard: Guard | None = None


def unavailable(reason: str | None) -> RuntimeError:
    """Return the error that `take` raises when a backward pass could not be measured."""
    return RuntimeError(f"Per-sample norms are not available: {reason or 'no gradient reached a parameter.'}")


class TracedPass:
    """The record of a forward pass whose operations were traced.

    Args:
        index: Its place among the forward passes.
        finish: Called with this record when the first gradient arrives.
        check: Holds the guard that compares parts with gradients.
    """

    def __init__(self, index: int, finish: Finish, check: Check | None = None) -> None:
        self.index = index
        self.uses: dict[int, int] = {}
        self.error: str | None = None
        self.finish: Finish | None = finish
        self._check = check or Check()
        self._squares: list[Tensor] = []
        self._pending: dict[int, list[Part]] = {}
        self._fired: set[int] = set()
        self._recorded = False  # whether a backward pass was recorded itself: create_graph=True

    def count(self, leaves: Sequence[Parameter]) -> None:
        """Note that an operation uses these parameters: one used twice, be it in one of them, needs cross terms."""
        for leaf in leaves:
            self.uses[id(leaf)] = self.uses.get(id(leaf), 0) + 1

    def begin(self, operation: int) -> bool:
        """Note that the gradient of an operation's result has arrived; tell whether it is the first."""
        first = operation not in self._fired
        self._recorded |= torch.is_grad_enabled()
        if not first:
            self.error = GRADIENTS_OF_GRADIENTS if self._recorded else SECOND_BACKWARD
        self._fired.add(operation)
        arrive(self)
        return first

    def reject(self, why: str) -> None:
        """Note that a gradient has arrived where samples cannot be told apart."""
        self.error = self.error or why
        arrive(self)

    def observe(self, uses: Sequence[Use], grad: Tensor) -> None:
        """Add the parts of these uses."""
        for use in uses:
            part = use.part(grad)
            if use.bias is not None:
                self._add_with_bias(use, part)
            else:
                self.add(use.tensor, part, use.origin)

    def supply(self, use: Use, grad: Tensor, saved: Sequence[Tensor]) -> list[Tensor]:
        """Add the part of a use that forms the gradient, and return the gradients of the batch: its own, its bias's."""
        part: Any = use.part(grad, *saved)
        if self._alone(use.tensor) and (use.bias is None or self._alone(use.bias)):
            *gradients, square_norms = part.formed(with_bias=True) if use.bias is not None else part.formed()
            self.add_squares(square_norms)
            return gradients
        self._pending.setdefault(id(use.tensor), []).append(part)
        if use.bias is not None:
            self._pending.setdefault(id(use.bias), []).append(part.bias())
        return totals(use, part)

    def add(self, tensor: Any, part: Part, origin: Origin | None) -> None:
        """Add one part, pulled back to the parameters that `tensor` was made of."""
        if origin is None:
            self._compare(tensor, part)
            if self._alone(tensor):
                self.add_squares(part.square_norms())
            else:
                self._pending.setdefault(id(tensor), []).append(part)
        elif origin.transpose_of is not None and isinstance(part, Outer) and part.axes is None:
            self.add(origin.transpose_of, part.reordered(origin.transpose_of.shape, origin.order), None)
        else:
            pulled = pull_back(tensor, origin, part.dense())
            if not pulled:
                self.reject(
                    "a tensor made of parameters inside one reentrant checkpoint is used in another, where autograd "
                    "does not show the way back; set use_reentrant=False."
                )
            for leaf, gradients in pulled:
                self.add(leaf, Dense(gradients), None)

    def add_squares(self, square_norms: Tensor) -> None:
        """Add float[K] to the total."""
        self._squares.append(square_norms)

    def settle(self) -> None:
        """Add the parameters that were used more than once, and let go of what they held."""
        if self._pending:
            with torch.no_grad(), without_autocast():
                for parts in self._pending.values():
                    self.add_squares(joint_square_norms(parts))
            self._pending.clear()

    def norms(self) -> Tensor:
        """Return float[K]."""
        self.settle()
        sizes = {len(squares) for squares in self._squares}
        if len(sizes) > 1 and self.error is None:
            self.error = (
                f"the size of the batch cannot be told: the parameters' operations saw {sorted(sizes)} samples. "
                "The first dimension of every input must be the batch."
            )
        if self.error is not None or not self._squares:
            advised = self.error is not None and self.error != SECOND_BACKWARD
            raise unavailable(f"{self.error} {ADVICE}" if advised else self.error)
        device = self._squares[0].device
        return torch.stack([squares.to(device) for squares in self._squares]).sum(0).sqrt_()

    def _add_with_bias(self, use: Use, part: Any) -> None:
        if self._alone(use.tensor) and self._alone(use.bias):
            self._compare(use.tensor, part)
            if self._check.guard is not None:
                self._compare(use.bias, part.bias())
            self.add_squares(part.square_norms(with_bias=True))
        else:
            self.add(use.tensor, part, None)
            self.add(use.bias, part.bias(), None)

    def _alone(self, leaf: Any) -> bool:
        # What a checkpoint's second run uses was not counted if its first run had no reason to.
        return self.uses.get(id(leaf), 2) == 1

    def _compare(self, leaf: Any, part: Part) -> None:
        if self._check.guard is not None:
            self._check.guard.measure(leaf, part)


def totals(use: Use, part: Any) -> list[Tensor]:
    """Return the gradients of the batch: of the parameter, and of its bias if the use has one."""
    return [part.total()] if use.bias is None else [part.total(), part.bias().total()]


def pull_back(tensor: Any, origin: Origin, gradients: Tensor) -> list[tuple[Parameter, Tensor]]:
    """Return the K gradients of each parameter that `tensor` was made of, from those of `tensor`."""
    if tensor is not None:
        gradients = gradients.to(tensor.dtype).reshape(-1, *tensor.shape)
    output: Any = tensor if origin.graph is None else origin.graph
    options = {"retain_graph": True, "allow_unused": True}
    with unheard():
        try:
            pulled = torch.autograd.grad(output, origin.leaves, gradients, is_grads_batched=True, **options)
        except RuntimeError:  # a custom function on the way takes no batches
            each = [torch.autograd.grad(output, origin.leaves, gradient, **options) for gradient in gradients]
            pulled = [None if grads[0] is None else torch.stack(grads) for grads in zip(*each, strict=True)]
    return [(leaf, grad) for leaf, grad in zip(origin.leaves, pulled, strict=True) if grad is not None]
