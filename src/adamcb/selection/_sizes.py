"""Batch sizes by noise: as few chosen samples as are no noisier than K uniform ones.

Chosen by rates r, k samples have a batch gradient of second moment ρ·M/k, where uniform ones have M/k. So k = ρ·K
samples are as noisy as K uniform ones. ρ = E_r[(‖g‖ω)²]/E_r[‖g‖²ω] with ω = Σr/(n r), and every batch estimates both.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from adamcb import _checks
from adamcb.selection._draw import Draw
from adamcb.selection._tree import jit

_SUMS = ("chosen", "uniform", "chosen_squared", "product", "uniform_squared", "trust", "trust_squared")


class NoiseRatio:
    """ρ, the second moment of the batch gradient over that of uniform draws of the same size, with its uncertainty.

    Means over about the last 1/(1 − memory) batches; the standard error is that of a ratio of means.
    """

    def __init__(self, memory: float = 0.98) -> None:
        self.memory = memory
        self._sums = np.zeros(len(_SUMS))

    def note(self, scores: np.ndarray, loss_weights: np.ndarray) -> None:
        """Take note of a batch: the scores of its samples, and the weights of their losses."""
        _note(self._sums, scores, loss_weights, self.memory)

    @property
    def value(self) -> float:
        """The estimate; 1 as long as there is none."""
        return float(self._sums[0] / self._sums[1]) if self._sums[1] > 0.0 else 1.0

    @property
    def error(self) -> float:
        """The standard error of `value`."""
        chosen, uniform, chosen_2, product, uniform_2, trust, trust_2 = self._sums.tolist()
        if uniform == 0.0:
            return 0.0
        ratio = chosen / uniform
        spread = max(chosen_2 - 2.0 * ratio * product + ratio * ratio * uniform_2, 0.0) / trust
        # Batches with weights a, of sum `trust` and sum of squares `trust_2`, count as trust²/trust_2 batches.
        return math.sqrt(spread * trust_2) / uniform

    def state_dict(self) -> dict[str, float]:
        """Return the sums."""
        return dict(zip(_SUMS, self._sums.tolist(), strict=True))

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Continue from `state`."""
        self._sums = np.array([state[name] for name in _SUMS])


@jit
def _note(sums, scores, loss_weights, memory):
    chosen = uniform = 0.0
    k = len(scores)
    for j in range(k):
        weighted = scores[j] * loss_weights[j] * k
        chosen += weighted * weighted
        uniform += weighted * scores[j]
    chosen, uniform, new = chosen / k, uniform / k, 1.0 - memory
    sums[0] = memory * sums[0] + new * chosen
    sums[1] = memory * sums[1] + new * uniform
    sums[2] = memory * sums[2] + new * chosen * chosen
    sums[3] = memory * sums[3] + new * chosen * uniform
    sums[4] = memory * sums[4] + new * uniform * uniform
    sums[5] = memory * sums[5] + new
    sums[6] = memory * memory * sums[6] + new * new


def size_ladder(smallest: int, largest: int, *, multiple: int = 1, count: int = 12) -> tuple[int, ...]:
    """Return at most `count` sizes from `smallest` to `largest`, about equal in ratio.

    All are multiples of `multiple`, and those between the ends also of 8 where that leaves sizes to choose from.

    Example:
        >>> size_ladder(16, 128)
        (16, 24, 32, 40, 48, 56, 72, 88, 104, 128)
        >>> size_ladder(32, 32)
        (32,)
    """
    smallest = multiple * math.ceil(smallest / multiple)
    unit = math.lcm(8, multiple)
    if largest < 4 * unit:
        unit = multiple
    steps = max(count - 1, 1)
    ideal = (largest * (smallest / largest) ** (j / steps) for j in range(steps))
    sizes = {unit * round(size / unit) for size in ideal}
    return tuple(sorted({smallest, largest, *(size for size in sizes if smallest < size < largest)}))


class BatchSizes:
    """Chooses the size of every batch from a ladder, such that noise is on average that of K uniform samples.

    A batch of k has ρK/k times that noise, with ρ an upper confidence bound. The size needed, ρK, mostly lies between
    two of the ladder: the smaller is taken as often as what larger ones saved pays for it.

    Args:
        smallest: The smallest size.
        largest: K.
        multiple: All sizes are multiples of it.
        margin: How many standard errors the bound lies above the estimate.
    """

    def __init__(self, smallest: int, largest: int, *, multiple: int = 1, margin: float = 1.0, memory: float = 0.98):
        self.ladder = size_ladder(smallest, largest, multiple=multiple)
        self.ratio = NoiseRatio(memory)
        self.margin = margin
        self._saved = 0.0

    def note(self, scores: np.ndarray, draw: Draw) -> None:
        """Take note of the scores of a draw."""
        self.ratio.note(scores, draw.loss_weights)

    def needed(self) -> float:
        """Return how many chosen samples are as noisy as K uniform ones."""
        return min(self.ratio.value + self.margin * self.ratio.error, 1.0) * self.ladder[-1]

    def peek(self) -> int:
        """Return the size of the next batch."""
        return self._choose()[0]

    def next(self) -> int:
        """Return the size of the next batch, and take it as made."""
        size, self._saved = self._choose()
        return size

    def _choose(self) -> tuple[int, float]:
        needed = self.needed()
        upper = next((j for j, size in enumerate(self.ladder) if size >= needed), len(self.ladder) - 1)
        for j in (upper - 1, upper):
            saved = self._saved + 1.0 - needed / self.ladder[j]
            if j >= 0 and saved >= 0.0:
                return self.ladder[j], min(saved, 1.0)
        return self.ladder[upper], max(saved, 0.0)

    def state_dict(self) -> dict[str, float]:
        """Return what was learned."""
        return {**self.ratio.state_dict(), "saved": self._saved}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Continue from `state`."""
        self.ratio.load_state_dict(state)
        self._saved = state["saved"]

    def check_state(self, state: Any, name: str = "state") -> None:
        """Raise unless `state` can be loaded; the message calls it `name`."""
        for key in self.state_dict():
            _checks.real(f"{name}['{key}']", state.get(key) if isinstance(state, dict) else None, low=0.0)
