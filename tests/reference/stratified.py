"""The design of sharded weights in one process: all strata side by side, their draws joined."""

from __future__ import annotations

from typing import Any

import numpy as np

from adamcb.selection import Draw, Selection, Stratum


class Stratified(Selection):
    """W strata in one process. Row r + j·W of a batch is row j of stratum r: what W ranks make of a whole draw."""

    def __init__(self, strata: list[Stratum]) -> None:
        super().__init__(strata[0].num_samples, sum(stratum.batch_size for stratum in strata))
        self.strata = strata

    def draw(self) -> Draw:
        draws = [stratum.draw() for stratum in self.strata]
        self._origins = [draw.origin for draw in draws]
        indices, probs, weights = (
            np.stack([getattr(draw, name) for draw in draws], axis=1).ravel()
            for name in ("indices", "probs", "loss_weights")
        )
        return Draw(indices, probs, weights, origin=0).frozen()

    def update(self, draw: Draw, scores: Any) -> None:
        for rank, stratum in enumerate(self.strata):
            rows = slice(rank, None, len(self.strata))
            own = Draw(draw.indices[rows], draw.probs[rows], draw.loss_weights[rows], self._origins[rank])
            stratum.update(own, np.asarray(scores)[rows])

    def inclusion_probs(self) -> np.ndarray:
        return np.sum([stratum.inclusion_probs() for stratum in self.strata], axis=0)

    def state_dict(self) -> dict[str, Any]:
        return {"strata": [stratum.state_dict() for stratum in self.strata]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for stratum, saved in zip(self.strata, state["strata"], strict=True):
            stratum.load_state_dict(saved)
