"""The guard: compares what was measured with what autograd computed, so that no norm is wrong without a word.

In a checked pass autograd computes every gradient itself. Each parameter has one fixed random direction r, and
Σⱼ⟨partⱼ, r⟩ must be ⟨gradient, r⟩. A part that is lost, counted twice, or made of two samples' factors shows; so does a
parameter that got a gradient and was never measured. Only what this backward pass adds is compared, so it does not
matter what `param.grad` held before, nor what happens to it later.
"""

from __future__ import annotations

import contextlib
import functools
import math
import weakref
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from adamcb._seeds import derived_seed
from adamcb.gradnorm import _compat
from adamcb.gradnorm._parts import Direction, Part, accurate, contract, without_autocast

# How far parts and gradients may be apart, relative to their size: rounding, with room to spare.
_TOLERANCES = {torch.float64: 1e-7, torch.complex128: 1e-7, torch.float32: 1e-3, torch.complex64: 1e-3}
_COARSE = 3e-2
_ADVICE = (
    'Last-layer norms always work: mode="last-layer". A rule of your own that is wrong is replaced by `register_rule`.'
)


class Schedule:
    """Says which forward passes are checked.

    "auto" checks the first three passes, then new shapes of inputs as long as checks are rarer than one in a hundred
    passes, and every five hundredth pass. After a check that failed it checks until one succeeds.

    Args:
        check: "auto", "always" or "never".
    """

    def __init__(self, check: str) -> None:
        self._check = check
        self._passes = self._checks = self._last = 0
        self._seen: set[Hashable] = set()
        self._failed = False

    def wants(self, shapes: Hashable) -> bool:
        """Tell whether the pass that begins now is checked."""
        if self._check != "auto":
            return self._check == "always"
        self._passes += 1
        new = shapes not in self._seen
        if new and len(self._seen) < 10_000:
            self._seen.add(shapes)
        affordable = self._checks < 3 + self._passes // 100
        return self._failed or self._checks < 3 or (new and affordable) or self._passes - self._last >= 500

    def report(self, *, failed: bool) -> None:
        """Note how a check went."""
        self._checks += 1
        self._last, self._failed = self._passes, failed


class Guard:
    """One check: of all passes between two calls of `take`.

    Args:
        coarse: Whether gradients are rounded to half precision.
    """

    def __init__(self, *, coarse: bool = False) -> None:
        self._coarse = coarse
        self._watched: dict[int, _Watched] = {}

    def watch(self, leaves: Sequence[Parameter], operation: str | None = None) -> None:
        """Wait for the gradients of these parameters, which an operation uses."""
        for leaf in leaves:
            watched = self._watched.get(id(leaf))
            if watched is None:
                watched = self._watched[id(leaf)] = _Watched(leaf, len(self._watched))
            if operation is not None:
                watched.operations[operation] = None

    def measure(self, leaf: Any, part: Part) -> None:
        """Add up a part that was measured."""
        watched = self._watched.get(id(leaf))
        if watched is not None:
            watched.measure(part)

    def verdict(self, names: Any) -> tuple[bool, str | None]:
        """Return whether there was something to compare, and what is wrong."""
        arrived = [watched for watched in self._watched.values() if watched.arrived]
        whole = math.sqrt(sum(watched.norm**2 for watched in arrived))
        if not arrived or not math.isfinite(whole):  # no backward pass, or one that overflowed
            return False, None
        wrong = [watched for watched in arrived if not watched.agrees(whole, self._coarse)]
        if not wrong:
            return True, None
        found = "; ".join(f"{names([watched.leaf])} {watched.finding()}" for watched in wrong[:3])
        more = f"; and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        return True, f"what was measured is not what autograd computed. {found}{more}. {_ADVICE}"

    def close(self) -> None:
        """Take the hooks off the parameters."""
        for watched in self._watched.values():
            watched.handle.remove()


class _Watched:
    """What arrived at one parameter, and what was measured of it, along its direction."""

    def __init__(self, leaf: Parameter, number: int) -> None:
        self.leaf = leaf
        self.operations: dict[str, None] = {}
        self.arrived, self.measured = 0, 0
        self.norm, self._size = 0.0, 0.0
        self._coarse = False
        self._sum, self._parts = 0.0 + 0.0j, 0.0 + 0.0j
        self._direction = _direction(leaf, number)
        self.handle = leaf.register_hook(functools.partial(_arrive, weakref.ref(self)))

    def arrive(self, grad: Tensor) -> None:
        """Add up a gradient that autograd computed."""
        self._coarse |= _compat.autocasting()  # the backward pass itself runs under autocast
        with torch.no_grad(), without_autocast():
            grad = accurate(grad.detach().to_dense() if grad.is_sparse else grad.detach())
            self.arrived += 1
            self.norm += float(torch.linalg.vector_norm(grad))
            self._sum += complex(contract(grad.unsqueeze(0), self._direction)[0])

    def measure(self, part: Part) -> None:
        """Add up a part."""
        with torch.no_grad(), without_autocast():
            products = part.project(self._direction)
            self.measured += 1
            self._parts += complex(products.sum())
            self._size += float(products.abs().sum())

    def agrees(self, whole: float, coarse: bool) -> bool:
        """Tell whether both are the same, up to rounding; `whole` is the norm of the gradient of all parameters."""
        tolerance = _COARSE if coarse or self._coarse else _TOLERANCES.get(self.leaf.dtype, _COARSE)
        if self.leaf.device.type != "cpu":
            tolerance = max(tolerance, 1e-2 if self.leaf.dtype == torch.float32 else tolerance)
        # What is small against the whole gradient is mostly rounding, and moves no norm.
        return abs(self._sum - self._parts) <= tolerance * (self._size + self.norm + whole)

    def finding(self) -> str:
        """Say what does not agree."""
        used = ", ".join(f"`{name}`" for name in self.operations)
        if not self.measured:
            reason = f"although it was seen in {used}" if used else "because no operation was seen to use it"
            return f"got a gradient but was not measured, {reason}"
        return f"(used in {used or 'no operation that was seen'}): its parts do not sum to its gradient"


def _arrive(watched: weakref.ref, grad: Tensor | None) -> None:
    mine = watched()
    if mine is not None and grad is not None and not _unheard:
        mine.arrive(grad)


_unheard: list[None] = []


@contextlib.contextmanager
def unheard() -> Iterator[None]:
    """Let no guard hear of gradients that the engine itself takes, inside the backward pass that is checked."""
    _unheard.append(None)
    try:
        yield
    finally:
        _unheard.pop()


def _direction(leaf: Tensor, number: int) -> Direction:
    generator = torch.Generator().manual_seed(derived_seed(0, number))
    return [torch.randn(size, generator=generator).to(leaf.device) for size in leaf.shape]
