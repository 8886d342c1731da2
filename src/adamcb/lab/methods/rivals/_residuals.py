"""RAD: collocation points of an equation, drawn where its residual is large."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from adamcb import _checks
from adamcb.selection import Draw, Selection

_AT_ONCE = 4096


class ResidualDistribution(Selection):
    """RAD (Wu et al. 2023, "A comprehensive study of … residual-based adaptive sampling for PINNs").

    Points are drawn in proportion to ε/mean(ε) + c, where ε = √loss is the size of the residual, with c = 1 as
    published. All residuals are measured anew every `period` batches. The losses of the points that were drawn all
    count the same. The authors draw a training set at each such moment and train on all of it; here batches are drawn.

    Args:
        num_samples: n.
        batch_size: K.
        losses: Returns float64[m], the losses of samples by the model as it is now.
        period: How many batches pass between two measurements.
        floor: c.
        generator: Where all random numbers come from.
    """

    learns = False  # from batches; it learns from its own forward passes
    repeats = True

    def __init__(
        self,
        num_samples: int,
        batch_size: int,
        *,
        losses: Callable[[np.ndarray], np.ndarray],
        period: int = 500,
        floor: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(num_samples, batch_size, generator=generator)
        self._losses = losses
        self.period = _checks.integer("period", period, low=1)
        self.floor = _checks.real("floor", floor, low=0.0)
        self._drawn = 0
        self._set(np.full(self.num_samples, 1.0 / self.num_samples))

    def draw(self) -> Draw:
        """Draw K points, with replacement; measure all residuals first if it is time."""
        if self._drawn % self.period == 0:
            self._measure()
        self._drawn += 1
        places = torch.rand(self.batch_size, dtype=torch.float64, generator=self.generator).numpy()
        indices = np.searchsorted(self._cumulative, places * self._cumulative[-1], side="right")
        indices = np.minimum(indices, self.num_samples - 1)
        return self.make_draw(indices, self.batch_size * self._probs[indices], 1.0 / self.batch_size)

    def _measure(self) -> None:
        everything = np.arange(self.num_samples)
        parts = [self._losses(everything[start : start + _AT_ONCE]) for start in range(0, len(everything), _AT_ONCE)]
        residuals = np.sqrt(np.concatenate(parts))
        density = residuals / max(float(residuals.mean()), 1e-300) + self.floor
        self._set(density / density.sum())

    def _set(self, probs: np.ndarray) -> None:
        self._probs, self._cumulative = probs, np.cumsum(probs)

    def inclusion_probs(self) -> np.ndarray:
        """Return float64[n], how often each point is expected in a batch."""
        return self.batch_size * self._probs

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "period": self.period, "floor": self.floor}

    def learned(self) -> dict[str, Any]:
        return {"probs": torch.from_numpy(self._probs.copy()), "drawn": self._drawn}

    def restore(self, state: dict[str, Any]) -> None:
        self._set(state["probs"].numpy().copy())
        self._drawn = state["drawn"]
