"""One shard of a stratified design: a selection that knows its own part of the dataset alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from adamcb import _checks
from adamcb.selection._draw import Draw, Selection


class ShardedSelection:
    """Draws from one of W shards of a dataset; sample i belongs to shard i mod W.

    Every rank draws K/W samples of its own n/W, and all ranks together draw K: a stratified design. The estimate
    Σⱼ loss_weights[j]·x[indices[j]], summed over the draws of all shards, is unbiased for mean(x) over the dataset,
    because that of each shard is unbiased for its share of it. Shards need not be equally large, learn apart from each
    other, and never have to talk.

    Args:
        selection: Chooses within the shard: its `num_samples` is that of the shard, its `batch_size` is K/W.
        num_samples: n, the size of the whole dataset.
        shard: Which shard this is.
        num_shards: W.

    Raises:
        ValueError: If `selection.num_samples` is not the size of the shard.

    Example:
        >>> from adamcb.selection import UniformSelection
        >>> shard = ShardedSelection(UniformSelection(3, 2), 10, shard=1, num_shards=4)  # samples 1, 5 and 9
        >>> draw = shard.draw()
        >>> set(draw.indices.tolist()) < {1, 5, 9}, draw.loss_weights.sum()
        (True, np.float64(0.3))
    """

    def __init__(self, selection: Selection, num_samples: int, *, shard: int, num_shards: int) -> None:
        self.num_samples = _checks.integer("num_samples", num_samples, low=1)
        self.num_shards = _checks.integer("num_shards", num_shards, low=1, high=self.num_samples)
        self.shard = _checks.integer("shard", shard, low=0, high=self.num_shards - 1)
        size = shard_size(num_samples, shard, num_shards)
        if selection.num_samples != size:
            rule = f"choose from the {size} samples of shard {shard} of {num_shards}"
            raise ValueError(f"`selection` must {rule}, got selection.num_samples={selection.num_samples}.")
        self.selection = selection
        self.batch_size = selection.batch_size
        self.draws_per_epoch = num_samples // (self.batch_size * num_shards)

    @property
    def generator(self) -> torch.Generator | None:
        """The selection's generator, if it has one."""
        return getattr(self.selection, "generator", None)

    def draw(self) -> Draw:
        """Choose the shard's part of the next batch."""
        own = self.selection.draw()
        share = self.selection.num_samples / self.num_samples
        indices = own.indices * self.num_shards + self.shard
        return Draw(indices, own.probs, own.loss_weights * share, own.origin).frozen()

    def update(self, draw: Draw, norms: Any) -> None:
        """Learn from the norms of this shard's samples."""
        self.selection.update(self._own_draw(draw), norms)

    def check(self, draw: Draw, norms: Any) -> None:
        """Raise what `update` would, if this shard's selection can tell. Nothing is changed."""
        if check := getattr(self.selection, "check", None):
            check(self._own_draw(draw), norms)

    def _own_draw(self, draw: Draw) -> Draw:
        if not isinstance(draw, Draw):
            raise TypeError(f"`draw` must be a Draw, got draw of type {type(draw).__name__}.")
        return Draw(draw.indices // self.num_shards, draw.probs, draw.loss_weights, draw.origin)

    def inclusion_probs(self) -> np.ndarray:
        """Return float64[n], how often every sample is expected in this shard's next part; it sums to K/W. O(n)."""
        probs = np.zeros(self.num_samples)
        probs[self.shard :: self.num_shards] = self.selection.inclusion_probs()
        return probs

    def state_dict(self) -> dict[str, Any]:
        """Return all that is needed to continue bit for bit, as tensors and plain values."""
        return {**self._place(), "selection": self.selection.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state`, saved by the same shard.

        Raises:
            ValueError: If it was saved by another, or does not fit. Nothing is changed then.
        """
        if not isinstance(state, dict) or "selection" not in state:
            raise ValueError("`state` must be that of a ShardedSelection, with the key selection.")
        for name, value in self._place().items():
            if state.get(name) != value:
                raise ValueError(f"`state` must be saved with {name}={value}, got {name}={state.get(name)!r}.")
        self.selection.load_state_dict(state["selection"])

    def _place(self) -> dict[str, int]:
        return {"num_samples": self.num_samples, "shard": self.shard, "num_shards": self.num_shards}


def shard_size(num_samples: int, shard: int, num_shards: int) -> int:
    """Return how many samples a shard has: those at shard, shard + W, shard + 2W and so on."""
    return len(range(shard, num_samples, num_shards))
