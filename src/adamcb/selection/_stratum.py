"""One stratum of a stratified design: a selection that chooses from its own part of the dataset only."""

from __future__ import annotations

from typing import Any

import numpy as np

from adamcb import _checks
from adamcb.selection._draw import Draw
from adamcb.selection._selection import Selection


class Stratum(Selection):
    """Draws from one of V strata of a dataset; sample i belongs to stratum i mod V.

    Each draws K/V samples from its own n/V, and all together draw K: a stratified design. The estimate
    Σⱼ loss_weights[j]·x[indices[j]], summed over the draws of all strata, is unbiased for mean(x) over the dataset,
    because each stratum's is unbiased for its share of it. Strata may differ in size, learn independently, and never
    communicate.

    Args:
        selection: Chooses within the stratum: its `num_samples` is the size of the stratum, its `batch_size` is K/V.
        num_samples: n, the size of the whole dataset.
        number: Which stratum this is, from 0 to V − 1.
        num_strata: V.

    Attributes:
        own_samples: The size of the stratum.

    Raises:
        ValueError: If `selection.num_samples` is not the size of the stratum.

    Example:
        >>> from adamcb.selection import UniformSelection
        >>> stratum = Stratum(UniformSelection(3, 2), 10, number=1, num_strata=4)  # samples 1, 5 and 9
        >>> draw = stratum.draw()
        >>> set(draw.indices.tolist()) < {1, 5, 9}, float(draw.loss_weights.sum())
        (True, 0.3)
    """

    def __init__(self, selection: Selection, num_samples: int, *, number: int, num_strata: int) -> None:
        # Batch sizes and generator are those of the selection inside, so the base class has nothing to set up.
        self.num_samples = _checks.num_samples(num_samples)
        self.num_strata = _checks.integer("num_strata", num_strata, low=1, high=self.num_samples)
        self.number = _checks.integer("number", number, low=0, high=self.num_strata - 1)
        if not isinstance(selection, Selection):
            raise TypeError(f"`selection` must be a Selection, got selection of type {type(selection).__name__}.")
        size = stratum_size(num_samples, number, num_strata)
        if selection.num_samples != size:
            rule = f"choose from the {size} samples of stratum {number} of {num_strata}"
            raise ValueError(f"`selection` must {rule}, got selection.num_samples={selection.num_samples}.")
        self.selection, self.own_samples = selection, size
        self.batch_size, self.min_batch_size = selection.batch_size, selection.min_batch_size
        self.learns, self.repeats, self.generator = selection.learns, selection.repeats, selection.generator

    @property
    def draws_per_epoch(self) -> int:
        """How many draws make an epoch: floor(n/K), the same for all strata, whatever their sizes."""
        return self.num_samples // (self.batch_size * self.num_strata)

    @property
    def listens(self) -> bool:
        """Whether the scores of the batch that was drawn last are worth measuring."""
        return self.selection.listens

    @property
    def origin(self) -> int:
        """What names the draws."""
        return self.selection._origin

    @property
    def _origin(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.origin

    def draw(self) -> Draw:
        """Choose this stratum's part of the next batch."""
        own = self.selection.draw()
        share = self.selection.num_samples / self.num_samples
        indices = own.indices * self.num_strata + self.number
        return Draw(indices, own.probs, own.loss_weights * share, own.origin).frozen()

    def update(self, draw: Draw, scores: Any) -> None:
        """Learn from the scores of this stratum's samples."""
        self.selection.update(self._within(draw), scores)

    def check(self, draw: Draw, scores: Any) -> np.ndarray:
        """Return `scores` as float64[k], or raise what `update` would raise. Changes nothing."""
        return self.selection.check(self._within(draw), scores)

    def _within(self, draw: Draw) -> Draw:
        if not isinstance(draw, Draw):
            raise TypeError(f"`draw` must be a Draw, got draw of type {type(draw).__name__}.")
        return Draw(draw.indices // self.num_strata, draw.probs, draw.loss_weights, draw.origin)

    def inclusion_probs(self) -> np.ndarray:
        """Return float64[n], how often every sample is expected in this stratum's next part; it sums to K/V. O(n)."""
        probs = np.zeros(self.num_samples)
        probs[self.number :: self.num_strata] = self.selection.inclusion_probs()
        return probs

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to continue bit for bit, as tensors and plain values."""
        return {**self.settings(), "selection": self.selection.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state`, which the same stratum saved.

        Raises:
            ValueError: If another stratum saved it, or it does not fit. Nothing is changed then.
        """
        if not isinstance(state, dict) or "selection" not in state:
            raise ValueError("`state` must be that of a Stratum, with the key selection.")
        for name, value in self.settings().items():
            if state.get(name) != value:
                raise ValueError(f"`state` must be saved with {name}={value}, got {name}={state.get(name)!r}.")
        self.selection.load_state_dict(state["selection"])

    def settings(self) -> dict[str, Any]:
        return {"num_samples": self.num_samples, "number": self.number, "num_strata": self.num_strata}

    def __repr__(self) -> str:
        place = ", ".join(f"{name}={value}" for name, value in self.settings().items())
        return f"Stratum({self.selection!r}, {place})"


def stratum_size(num_samples: int, number: int, num_strata: int) -> int:
    """Return how many samples a stratum has: samples s, s + V, s + 2V and so on, for number s.

    Example:
        >>> [stratum_size(10, number, 4) for number in range(4)]
        [3, 3, 2, 2]
    """
    num_samples, num_strata = _checks.num_samples(num_samples), _checks.integer("num_strata", num_strata, low=1)
    return len(range(_checks.integer("number", number, low=0, high=num_strata - 1), num_samples, num_strata))
