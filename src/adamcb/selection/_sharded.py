"""One shard of a stratified design: a selection that chooses from its own part of the dataset only."""

from __future__ import annotations

from typing import Any

import numpy as np

from adamcb import _checks
from adamcb.selection._draw import Draw
from adamcb.selection._selection import Selection


class ShardedSelection(Selection):
    """Draws from one of W shards of a dataset; sample i belongs to shard i mod W.

    Every rank draws K/W samples from its own n/W, and all ranks together draw K: a stratified design. The estimate
    Σⱼ loss_weights[j]·x[indices[j]], summed over the draws of all shards, is unbiased for mean(x) over the dataset,
    because each shard's is unbiased for its share of it. Shards may differ in size, learn independently, and never
    communicate.

    Args:
        selection: Chooses within the shard: its `num_samples` is the size of the shard, its `batch_size` is K/W.
        num_samples: n, the size of the whole dataset.
        shard: Which shard this is.
        num_shards: W.

    Attributes:
        own_samples: The size of the shard.

    Raises:
        ValueError: If `selection.num_samples` is not the size of the shard.

    Example:
        >>> from adamcb.selection import UniformSelection
        >>> shard = ShardedSelection(UniformSelection(3, 2), 10, shard=1, num_shards=4)  # samples 1, 5 and 9
        >>> draw = shard.draw()
        >>> set(draw.indices.tolist()) < {1, 5, 9}, float(draw.loss_weights.sum())
        (True, 0.3)
    """

    def __init__(self, selection: Selection, num_samples: int, *, shard: int, num_shards: int) -> None:
        # Batch sizes and generator are those of the selection inside, so the base class has nothing to set up.
        self.num_samples = _checks.num_samples(num_samples)
        self.num_shards = _checks.integer("num_shards", num_shards, low=1, high=self.num_samples)
        self.shard = _checks.integer("shard", shard, low=0, high=self.num_shards - 1)
        if not isinstance(selection, Selection):
            raise TypeError(f"`selection` must be a Selection, got selection of type {type(selection).__name__}.")
        size = shard_size(num_samples, shard, num_shards)
        if selection.num_samples != size:
            rule = f"choose from the {size} samples of shard {shard} of {num_shards}"
            raise ValueError(f"`selection` must {rule}, got selection.num_samples={selection.num_samples}.")
        self.selection, self.own_samples = selection, size
        self.batch_size, self.min_batch_size = selection.batch_size, selection.min_batch_size
        self.learns, self.repeats, self.generator = selection.learns, selection.repeats, selection.generator

    @property
    def draws_per_epoch(self) -> int:
        """How many draws make an epoch: floor(n/K), the same for all shards, whatever their sizes."""
        return self.num_samples // (self.batch_size * self.num_shards)

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
        """Choose this shard's part of the next batch."""
        own = self.selection.draw()
        share = self.selection.num_samples / self.num_samples
        indices = own.indices * self.num_shards + self.shard
        return Draw(indices, own.probs, own.loss_weights * share, own.origin).frozen()

    def update(self, draw: Draw, scores: Any) -> None:
        """Learn from the scores of this shard's samples."""
        self.selection.update(self._within_shard(draw), scores)

    def check(self, draw: Draw, scores: Any) -> np.ndarray:
        """Return `scores` as float64[k], or raise what `update` would raise. Changes nothing."""
        return self.selection.check(self._within_shard(draw), scores)

    def _within_shard(self, draw: Draw) -> Draw:
        if not isinstance(draw, Draw):
            raise TypeError(f"`draw` must be a Draw, got draw of type {type(draw).__name__}.")
        return Draw(draw.indices // self.num_shards, draw.probs, draw.loss_weights, draw.origin)

    def inclusion_probs(self) -> np.ndarray:
        """Return float64[n], how often every sample is expected in this shard's next part; it sums to K/W. O(n)."""
        probs = np.zeros(self.num_samples)
        probs[self.shard :: self.num_shards] = self.selection.inclusion_probs()
        return probs

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to continue bit for bit, as tensors and plain values."""
        return {**self._settings(), "selection": self.selection.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state`, which the same shard saved.

        Raises:
            ValueError: If another shard saved it, or it does not fit. Nothing is changed then.
        """
        if not isinstance(state, dict) or "selection" not in state:
            raise ValueError("`state` must be that of a ShardedSelection, with the key selection.")
        for name, value in self._settings().items():
            if state.get(name) != value:
                raise ValueError(f"`state` must be saved with {name}={value}, got {name}={state.get(name)!r}.")
        self.selection.load_state_dict(state["selection"])

    def _settings(self) -> dict[str, Any]:
        return {"num_samples": self.num_samples, "shard": self.shard, "num_shards": self.num_shards}

    def __repr__(self) -> str:
        place = ", ".join(f"{name}={value}" for name, value in self._settings().items())
        return f"ShardedSelection({self.selection!r}, {place})"


def shard_size(num_samples: int, shard: int, num_shards: int) -> int:
    """Return how many samples a shard has: those at shard, shard + W, shard + 2W and so on.

    Example:
        >>> [shard_size(10, shard, 4) for shard in range(4)]
        [3, 3, 2, 2]
    """
    num_samples, num_shards = _checks.num_samples(num_samples), _checks.integer("num_shards", num_shards, low=1)
    return len(range(_checks.integer("shard", shard, low=0, high=num_shards - 1), num_samples, num_shards))
