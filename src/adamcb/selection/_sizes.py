"""Batch sizes by noise: as few chosen samples as are no noisier than K uniform ones.

If choosing lowers the second moment of the batch gradient to ρ of its value for uniform sampling, then ρ·K chosen
samples are as noisy as K uniform ones. `SecondMoment` estimates ρ from the batches themselves.
"""

from __future__ import annotations

import math
from typing import Any

from adamcb import _checks
from adamcb.selection._moment import SecondMoment

# One rare sample in one batch may have all the noise of an epoch. Larger batches afterwards do not undo that.
_MOST_EXCESS = 2.0


def size_ladder(smallest: int, largest: int, *, multiple: int = 1, count: int = 12) -> tuple[int, ...]:
    """Return at most `count` sizes from `smallest` to `largest`, about equal in ratio.

    All are multiples of `multiple`, and those between the ends also of 8 where that leaves sizes to choose from.

    Example:
        >>> size_ladder(16, 128)
        (16, 24, 32, 40, 48, 64, 72, 88, 104, 128)
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
    """Chooses the size of every batch from a ladder, so that on average batches are as noisy as K uniform samples.

    Where earlier estimates of ρ were too small, it is raised by as much (`SecondMoment.excess`), up to twofold. The
    size that is needed, ρK, mostly lies between two of the ladder. The larger one is quieter than needed, by 1 − ρK/k,
    and the smaller one is taken whenever what was saved that way pays for it.

    Args:
        smallest: The smallest size; rounded up to a multiple of `multiple`.
        largest: K, a multiple of `multiple`.
        multiple: All sizes are multiples of it.
    """

    def __init__(self, smallest: int, largest: int, *, multiple: int = 1) -> None:
        if largest % multiple:
            raise ValueError(f"`batch_size` must be a multiple of size_multiple={multiple}, got batch_size={largest}.")
        self.ladder = size_ladder(smallest, largest, multiple=multiple)
        self._saved = 0.0
        self._planned: float | None = None

    def needed(self, moment: SecondMoment) -> float:
        """Return how many chosen samples are as noisy as K uniform ones."""
        ratio = min(moment.excess, _MOST_EXCESS) * moment.ratio
        return self.ladder[-1] * (ratio if ratio < 1.0 else 1.0)  # NaN, nothing known yet: K

    def peek(self, moment: SecondMoment) -> int:
        """Return the size of the next batch."""
        return self._choose(self.needed(moment))[0]

    def plan(self, needed: float) -> None:
        """Take this as needed for the next batch, whatever the estimate says."""
        self._planned = min(_checks.real("needed", needed, low=0.0), float(self.ladder[-1]))

    def next(self, moment: SecondMoment) -> int:
        """Return the size of the next batch, and take it as drawn."""
        needed, self._planned = self.needed(moment) if self._planned is None else self._planned, None
        size, self._saved = self._choose(needed)
        return size

    def _choose(self, needed: float) -> tuple[int, float]:
        """Return the size of a batch, and what is saved after it."""
        upper = next(j for j, size in enumerate(self.ladder) if size >= needed)
        if upper > 0:
            saved = self._saved + 1.0 - needed / self.ladder[upper - 1]
            if saved >= 0.0:
                return self.ladder[upper - 1], saved
        return self.ladder[upper], min(self._saved + 1.0 - needed / self.ladder[upper], 1.0)

    def state_dict(self) -> dict[str, float]:
        """Return what is needed to continue."""
        return {"saved": self._saved}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Continue from `state`; an error leaves everything as it was."""
        self.check_state(state)
        self._saved = state["saved"]

    def check_state(self, state: Any, name: str = "state") -> None:
        """Raise unless `state` can be loaded; the message calls it `name`."""
        saved = state.get("saved") if isinstance(state, dict) else None
        _checks.real(f"{name}['saved']", saved, low=0.0, high=1.0)
