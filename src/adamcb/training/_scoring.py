"""What a sample is scored by: the norm of its gradient, its loss, or a function of the user's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from adamcb import _checks
from adamcb._warn import warn_user
from adamcb.gradnorm import PerSampleNorms
from adamcb.training._ranks import unwrapped
from adamcb.training._state import Stateful

SCORES = ("exact", "last-layer", "losses")
_PASSED = (
    "AdaptiveLoader: the model went backward before `weigh`, as for a gradient penalty or the residual of an equation. "
    'Norms are of one backward pass, so nothing is learned from such a batch. Use scores="losses".'
)


class Scoring(Protocol):
    """How the samples of a batch get their scores, in two steps: before its backward pass, and after it.

    Attributes:
        divides: Whether what `finish` returns must be divided by the gradient that arrived at each loss: the loss
            weight times whatever the loop multiplied the loss by (a GradScaler's scale, one over the number of
            accumulated batches, and so on).
        part: What has a state to be saved with the loader's. None, or left out: nothing.
    """

    divides: bool
    part: Stateful | None

    def begin(self, losses: Tensor) -> Any:
        """Return what `finish` will need of this batch, now that its losses are known."""
        ...

    def finish(self, begun: Any, size: int) -> Tensor | None:
        """Return float[k], what was measured of a batch of k = `size` samples, given what `begin` returned.

        None: the backward pass failed on its way through the model.
        """
        ...

    def pause(self, paused: bool) -> None:
        """Ignore forward passes, or measure them again."""
        ...

    def clear(self) -> None:
        """Forget backward passes that belong to no batch."""
        ...

    def close(self) -> None:
        """Let go of the model."""
        ...


class GradientNorms:
    """Scores a sample by the norm of its gradient, of all parameters or at the last layer."""

    divides = True

    def __init__(self, model: nn.Module, mode: str) -> None:
        self._engine, self._mode = PerSampleNorms(unwrapped(model), mode=mode), mode
        self._last, self._said = 0, False
        self.part: Stateful | None = self._engine if mode == "exact" else None

    def begin(self, losses: Tensor) -> range | None:
        """Return the numbers of the forward passes that these losses came from.

        None: the last of them went backward already, for a gradient that is a part of the losses.

        Raises:
            RuntimeError: If the model's forward was not called since the last batch.
        """
        passed = self._engine.passes > self._last and self._engine.is_done(
            self._engine.passes, first=self._engine.passes
        )
        self._engine.forget()
        if self._engine.passes == self._last:
            raise RuntimeError(
                "`losses` must come from a forward pass of the model that the loader was given, and none was seen "
                "since the last batch. Call the model itself, not `model.forward`, with gradients enabled. With "
                "torch.compile, give the loader what it returned."
            )
        first, self._last = self._last + 1, self._engine.passes
        if not passed:
            self._engine.compare(losses, first=first)
            return range(first, self._last + 1)
        if not self._said:
            self._said = True
            warn_user(_PASSED)
        return None

    def finish(self, begun: range, size: int) -> Tensor | None:
        """Return the norms; None: the backward pass failed on its way through the model.

        If a batch went through the model several times, each sample has several results at the last layer. Its norm is
        that of its gradient at all of them.
        """
        if not self._engine.is_done(begun[-1]):
            return None
        norms = self._engine.take(until=begun[-1])
        if len(norms) == size:
            return norms
        if self._mode == "last-layer" and len(norms) == size * len(begun):
            return torch.linalg.vector_norm(norms.view(len(begun), size), dim=0)
        raise RuntimeError(
            f"Each batch must go through the model once, forward and backward, got {size} losses and gradients of "
            f"{len(norms)} samples, by the first dimension of the model's inputs and results. With "
            'scores="last-layer" it may go through it several times.'
        )

    def pause(self, paused: bool) -> None:
        """Ignore forward passes, or measure them again."""
        self._engine.is_paused = paused

    def clear(self) -> None:
        """Forget backward passes that belong to no batch."""
        self._engine.clear()

    def close(self) -> None:
        """Take the hooks off the model."""
        self._engine.close()


class LossScores:
    """Scores a sample by its loss, or by a function of the losses."""

    divides = False
    part: Stateful | None = None

    def __init__(self, function: Callable[[Tensor], Any] | None = None) -> None:
        self._function = function

    def begin(self, losses: Tensor) -> Tensor:
        """Return the scores."""
        losses = losses.detach()
        if self._function is None:
            return losses
        scores = self._function(losses)
        if not isinstance(scores, Tensor) or scores.shape != losses.shape:
            got = f"shape {tuple(scores.shape)}" if isinstance(scores, Tensor) else f"type {type(scores).__name__}"
            rule = f"return a tensor of {len(losses)} scores, one per loss"
            raise ValueError(f"`scores` must {rule}, got a result of {got}.")
        if scores.is_complex() or scores.dtype == torch.bool:
            raise TypeError(f"`scores` must return a tensor of floats, got a result of {scores.dtype}.")
        return scores.detach() if scores.is_floating_point() else scores.to(losses.dtype)

    def finish(self, begun: Tensor, size: int) -> Tensor:
        """Return the scores."""
        return begun

    def pause(self, paused: bool) -> None:
        """Do nothing: losses cost nothing."""

    def clear(self) -> None:
        """Do nothing: no pass is watched."""

    def close(self) -> None:
        """Do nothing: nothing hangs on the model."""


def make_scoring(scores: Any, model: nn.Module, *, learns: bool) -> Scoring | None:
    """Return the scoring that the argument `scores` names, or raise; None for a selection that does not learn."""
    if not (callable(scores) or (isinstance(scores, str) and scores in SCORES)):
        names, got = ", ".join(map(repr, SCORES)), _checks.shown("scores", scores)
        raise ValueError(f"`scores` must be one of {names}, or a function of the losses, got {got}.")
    if not learns:
        return None
    if callable(scores):
        return LossScores(scores)
    return LossScores() if scores == "losses" else GradientNorms(model, scores)
