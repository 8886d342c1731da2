"""The design of sharded weights in one process: all shards side by side, their draws joined."""

from __future__ import annotations

from typing import Any

import numpy as np

from adamcb.selection import Draw, Selection, ShardedSelection


class Stratified(Selection):
    """W shards in one process. Row r + j·W of a batch is row j of shard r: what W ranks make of a whole draw."""

    def __init__(self, shards: list[ShardedSelection]) -> None:
        super().__init__(shards[0].num_samples, sum(shard.batch_size for shard in shards))
        self.shards = shards

    def draw(self) -> Draw:
        draws = [shard.draw() for shard in self.shards]
        self._origins = [draw.origin for draw in draws]
        indices, probs, weights = (
            np.stack([getattr(draw, name) for draw in draws], axis=1).ravel()
            for name in ("indices", "probs", "loss_weights")
        )
        return Draw(indices, probs, weights, origin=0).frozen()

    def update(self, draw: Draw, scores: Any) -> None:
        for rank, shard in enumerate(self.shards):
            rows = slice(rank, None, len(self.shards))
            own = Draw(draw.indices[rows], draw.probs[rows], draw.loss_weights[rows], self._origins[rank])
            shard.update(own, np.asarray(scores)[rows])

    def inclusion_probs(self) -> np.ndarray:
        return np.sum([shard.inclusion_probs() for shard in self.shards], axis=0)

    def state_dict(self) -> dict[str, Any]:
        return {"shards": [shard.state_dict() for shard in self.shards]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for shard, saved in zip(self.shards, state["shards"], strict=True):
            shard.load_state_dict(saved)
