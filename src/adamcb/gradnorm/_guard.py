"""The guard: compares what was measured with what autograd computed, so that no norm is silently wrong.

In a checked pass autograd computes every gradient itself. Each parameter has one fixed random direction r, and
Σⱼ⟨partⱼ, r⟩ must be ⟨gradient, r⟩. A part that is lost, counted twice, or made of two samples' factors shows; so does a
parameter that got a gradient and was never measured. Only what this backward pass adds is compared, so it does not
matter what `param.grad` held before, nor what happens to it later.

If two samples are swapped completely, that sum does not change. So the first checks send the gradient of the model's
result backward twice more: with a random weight wⱼ per sample, and with 1 − wⱼ. Σⱼ wⱼ⟨partⱼ, r⟩ must equal what the
first pass brings. The result counts only if both passes together bring the real gradient: not if a part of it came past
the model's result, or a hook on the way does more than scale it. Several results are checked one by one. What one
result passes on to another is subtracted first.
"""

from __future__ import annotations

import contextlib
import functools
import math
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter

from adamcb import _checks
from adamcb._seeds import derived_seed
from adamcb.gradnorm import _compat
from adamcb.gradnorm._batch import Batch
from adamcb.gradnorm._parts import Direction, Part, accurate, contract, without_autocast

# How far parts and gradients may be apart, relative to their size: rounding, with room to spare.
_TOLERANCES = {torch.float64: 1e-7, torch.complex128: 1e-7, torch.float32: 1e-3, torch.complex64: 1e-3}
_COARSE = 3e-2
_ADVICE = (
    'Last-layer norms always work: mode="last-layer". A rule of your own that is wrong is replaced by `register_rule`.'
)


_MOST_SHAPES = 10_000
_MOST_PASSES = 10**15


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
        self._seen: dict[tuple[Any, ...], None] = {}
        self._failed = False

    @property
    def is_off(self) -> bool:
        """Whether nothing is ever checked."""
        return self._check == "never"

    def wants(self, shapes: tuple[Any, ...]) -> bool:
        """Tell whether the pass that begins now is checked.

        Args:
            shapes: Whether the model trains, and the shapes of its inputs.
        """
        self._passes += 1
        if self._check != "auto":
            return self._check == "always"
        new = shapes not in self._seen
        if new and len(self._seen) < _MOST_SHAPES:
            self._seen[shapes] = None
        affordable = self._checks < 3 + self._passes // 100
        return self._failed or self._checks < 3 or (new and affordable) or self._passes - self._last >= 500

    def weighs(self) -> bool:
        """Tell whether the check that begins now looks for exchanged samples: the first three, and after a failure."""
        return self._check == "always" or self._failed or self._checks < 3

    def report(self, *, failed: bool) -> None:
        """Note how a check went."""
        self._checks += 1
        self._last, self._failed = self._passes, failed

    def state_dict(self) -> dict[str, Any]:
        """Return what the choice of the next passes depends on.

        Shapes of ragged tensors are left out: their lengths are names that mean nothing in another process.
        """
        plain = [key for key in self._seen if all(type(size) is int for shape in key[1:] for size in shape)]
        shapes = [(key[0], *map(tuple, key[1:])) for key in plain]
        counts = {"passes": self._passes, "checks": self._checks, "last": self._last}
        return {**counts, "failed": self._failed, "shapes": shapes}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state`; an error leaves everything as it was."""
        self.check_state(state)
        self._passes, self._checks, self._last = (int(state[name]) for name in ("passes", "checks", "last"))
        self._failed = bool(state["failed"])
        self._seen = {(key[0], *map(tuple, key[1:])): None for key in state["shapes"]}

    @staticmethod
    def check_state(state: Any, name: str = "state") -> None:
        """Raise unless `state` can be loaded; the message calls it `name`."""
        saved = state if isinstance(state, dict) else {}
        passes = _checks.integer(f"{name}['passes']", saved.get("passes"), low=0, high=_MOST_PASSES)
        last = _checks.integer(f"{name}['last']", saved.get("last"), low=0, high=passes)
        failed = _checks.boolean(f"{name}['failed']", saved.get("failed"))
        # A check takes a pass at least, and nothing fails before the first.
        _checks.integer(f"{name}['checks']", saved.get("checks"), low=int(last > 0 or failed), high=last)
        shapes = _checks.sequence(f"{name}['shapes']", saved.get("shapes"), "be a list")
        if len(shapes) > min(passes, _MOST_SHAPES):
            most = min(passes, _MOST_SHAPES)
            raise ValueError(f"`{name}['shapes']` must hold at most {most} entries, got {len(shapes)}.")
        for key in shapes:
            training, *sizes = _checks.sequence(f"{name}['shapes']", key, "hold sequences") or (None,)
            if not isinstance(training, bool):
                raise ValueError(
                    f"`{name}['shapes']` must hold a bool and shapes each, got {_checks.shown('one', key)}."
                )
            for size in sizes:
                _checks.shape(f"{name}['shapes']", size)


class _Result(NamedTuple):
    """A tensor that the model returned: in which pass, its place in the graph, and where its samples are, if known."""

    number: int
    edge: torch.autograd.graph.GradientEdge
    batch: Batch | None


class Guard:
    """One check: of all passes between two calls of `take`.

    Args:
        coarse: Whether gradients are rounded to half precision.
        weighs: Whether samples that were exchanged are looked for.
    """

    def __init__(self, *, coarse: bool = False, weighs: bool = False) -> None:
        self._coarse, self._weighs = coarse, weighs
        self._watched: dict[int, _Watched] = {}
        self._results: dict[Hashable, _Result] = {}
        self._came: dict[Hashable, Tensor] = {}
        self._passes, self._weighed, self._weighing = 0, set(), False

    def watch(self, leaves: Sequence[Parameter], operation: str | None = None) -> None:
        """Wait for the gradients of these parameters, which an operation uses."""
        for leaf in leaves:
            watched = self._watched.get(id(leaf))
            self._weighs &= type(leaf) is Parameter  # what is spread over ranks goes backward on all of them at once
            if watched is None:
                watched = self._watched[id(leaf)] = _Watched(leaf, len(self._watched))
            if operation is not None:
                watched.operations[operation] = None

    def measure(self, leaf: Any, part: Part) -> None:
        """Add up a part that was measured."""
        watched = self._watched.get(id(leaf))
        if watched is not None:
            watched.measure(part)

    def allow_rounding(self) -> None:
        """Compare as where gradients are rounded to half precision: autocast is on inside the forward pass."""
        self._coarse = True

    def give_up_weighing(self) -> None:
        """Do not look for exchanged samples: they depend on one another, or the pass cannot go backward again."""
        self._weighs = False

    def expect(self, results: Sequence[tuple[Tensor, Any]], quiet: Callable[[], Any]) -> None:
        """Weigh the results of a forward pass when their gradients arrive.

        Args:
            results: What the model returned that wants a gradient, and where the samples are in it.
            quiet: Makes a context in which nothing that arrives is measured.
        """
        self._passes += 1
        if not self._weighs or any(result.grad_fn is None for result, _ in results):
            return self.give_up_weighing()
        once: dict[Any, Any] = {(result.grad_fn, result.output_nr): mark for result, mark in results}
        for place, ((node, output), mark) in enumerate(once.items()):
            edge = torch.autograd.graph.GradientEdge(node, output)
            key = self._passes, place
            self._results[key] = _Result(self._passes, edge, mark if isinstance(mark, Batch) else None)
            node.register_prehook(functools.partial(_weigh, weakref.ref(self), key, quiet))

    def weigh(self, key: Hashable, quiet: Callable[[], Any], grads: tuple[Tensor | None, ...]) -> None:
        """Let the gradient of a result go backward twice more. The node at which it arrived runs again in there."""
        if self._weighing or key not in self._results:
            return
        result, came = self._results.pop(key), self._came.pop(key, None)
        grad = grads[result.edge.output_nr]
        if grad is None or torch.is_grad_enabled() or not self._weighs:
            return
        own = grad if came is None else grad - came
        if came is not None and _negligible(own, grad):
            return
        weights = None if result.batch is None else _spread_weights(own, result.batch)
        if weights is None:  # samples that cannot be told apart, or were averaged already
            return self.give_up_weighing()
        self._weighing = True
        try:
            with quiet(), unheard():
                self._go_backward(result, weights * own, (1 - weights) * own)
        except RuntimeError:  # on the way is something that runs once only
            self.give_up_weighing()
        finally:
            self._weighing = False

    def _go_backward(self, result: _Result, *shares: Tensor) -> None:
        """Note what two shares of a gradient bring to parameters, and to those results that it was made of."""
        behind = {key: other.edge for key, other in self._results.items() if other.number == result.number}
        targets: Any = [*(watched.leaf for watched in self._watched.values()), *behind.values()]
        weighed, others = (
            torch.autograd.grad(result.edge, targets, share, retain_graph=True, allow_unused=True) for share in shares
        )
        self._weighed.add(result.number)
        count = len(self._watched)
        for watched, *gradients in zip(self._watched.values(), weighed[:count], others[:count], strict=True):
            watched.arrive_again(*gradients)
        for key, *gradients in zip(behind, weighed[count:], others[count:], strict=True):
            for gradient in gradients:
                if gradient is not None:
                    self._came[key] = self._came[key] + gradient if key in self._came else gradient

    def verdict(self, names: Any) -> tuple[bool, str | None]:
        """Return whether there was something to compare, and what is wrong."""
        arrived = [watched for watched in self._watched.values() if watched.arrived]
        total = math.sqrt(sum(watched.norm**2 for watched in arrived))
        if not arrived or not math.isfinite(total):  # no backward pass, or one that overflowed
            return False, None
        wrong = [watched for watched in arrived if not watched.agrees(total, self._coarse)]
        if not wrong and self._weighs and len(self._weighed) == self._passes:
            explained = all(watched.comes_from_results(total, self._coarse) for watched in arrived)
            wrong = [each for each in arrived if explained and not each.keeps_samples(total, self._coarse)]
        if not wrong:
            return True, None
        found = "; ".join(f"{names([watched.leaf])} {watched.finding()}" for watched in wrong[:3])
        more = f"; and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        return True, f"what was measured is not what autograd computed. {found}{more}. {_ADVICE}"

    def close(self) -> None:
        """Take the hooks off the parameters, and let go of results."""
        self._results.clear()
        self._came.clear()
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
        self._sum_again, self._weighed_sum, self._weighed_parts = 0.0 + 0.0j, 0.0 + 0.0j, 0.0 + 0.0j
        self._exchanged = False
        self._direction = _direction(leaf, number)
        self.handle = leaf.register_hook(functools.partial(_arrive, weakref.ref(self)))

    def arrive(self, grad: Tensor) -> None:
        """Add up a gradient that autograd computed."""
        self._coarse |= _compat.autocasting()  # the backward pass itself runs under autocast
        with torch.no_grad(), without_autocast():
            grad = _plain(grad)
            self.arrived += 1
            self.norm += float(torch.linalg.vector_norm(grad))
            self._sum += complex(contract(grad.unsqueeze(0), self._direction)[0])

    def arrive_again(self, weighed: Tensor | None, other: Tensor | None) -> None:
        """Add up what the gradient of the model's result brings with weights, and with what is left of them."""
        with torch.no_grad(), without_autocast():
            sums = [
                0.0 if grad is None else complex(contract(_plain(grad).unsqueeze(0), self._direction)[0])
                for grad in (weighed, other)
            ]
            self._weighed_sum += sums[0]
            self._sum_again += sum(sums)

    def measure(self, part: Part) -> None:
        """Add up a part."""
        with torch.no_grad(), without_autocast():
            products = part.project(self._direction)
            self.measured += 1
            self._parts += complex(products.sum())
            self._weighed_parts += complex((products * _weights(len(products)).to(products)).sum())
            self._size += float(products.abs().sum())

    def agrees(self, total: float, coarse: bool) -> bool:
        """Tell whether both are the same, up to rounding; `total` is the norm of the gradient of all parameters."""
        return self._close(self._sum, self._parts, total, coarse)

    def comes_from_results(self, total: float, coarse: bool) -> bool:
        """Tell whether all of the gradient came through what the model returned, and shares of it add up."""
        return self._close(self._sum, self._sum_again, total, coarse)

    def keeps_samples(self, total: float, coarse: bool) -> bool:
        """Tell whether the parts are those of the samples that they are taken for."""
        self._exchanged = not self._close(self._weighed_sum, self._weighed_parts, total, coarse)
        return not self._exchanged

    def _close(self, first: complex, second: complex, total: float, coarse: bool) -> bool:
        tolerance = _COARSE if coarse or self._coarse else _TOLERANCES.get(self.leaf.dtype, _COARSE)
        if self.leaf.device.type != "cpu":
            tolerance = max(tolerance, 1e-2 if self.leaf.dtype == torch.float32 else tolerance)
        # What is small against the gradient of all parameters is mostly rounding, and moves no norm.
        return abs(first - second) <= tolerance * (self._size + self.norm + total)

    def finding(self) -> str:
        """Say what does not agree."""
        used = ", ".join(f"`{name}`" for name in self.operations)
        if not self.measured:
            reason = f"although it was seen in {used}" if used else "because no operation was seen to use it"
            return f"got a gradient but was not measured, {reason}"
        seen = f"(used in {used or 'no operation that was seen'})"
        if self._exchanged:
            return f"{seen}: its parts belong to other samples than they are taken for"
        outside = "a penalty on weights that is added to the loss belongs in the optimizer, as `weight_decay`"
        return f"{seen}: its parts do not sum to its gradient ({outside})"


def _plain(grad: Tensor) -> Tensor:
    return accurate(grad.detach().to_dense() if grad.is_sparse else grad.detach())


def _weights(size: int) -> Tensor:
    """Return float[size]: a weight for each sample, between 0 and 1, always the same."""
    return torch.rand(size, generator=torch.Generator().manual_seed(derived_seed(1, size)))


def _spread_weights(grad: Tensor, batch: Batch) -> Tensor | None:
    """Return the weights of the samples so that they can be multiplied with a gradient, None if some have no sample."""
    owner = batch.owner(grad.shape[batch.dim]).to(grad.device)
    shape = [1] * grad.dim()
    shape[batch.dim] = -1
    return None if (owner < 0).any() else _weights(batch.size).to(grad)[owner].view(shape)


def _negligible(own: Tensor, total: Tensor) -> bool:
    """Tell whether a result's own gradient is but the rounding of what came from results that were made of it."""
    tolerance = _TOLERANCES.get(total.dtype, 10 * _COARSE) / 10
    return float(torch.linalg.vector_norm(own)) <= tolerance * float(torch.linalg.vector_norm(total))


def _weigh(guard: weakref.ref, key: Hashable, quiet: Callable[[], Any], grads: tuple[Tensor | None, ...]) -> None:
    mine = guard()
    if mine is not None:
        mine.weigh(key, quiet, grads)


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
