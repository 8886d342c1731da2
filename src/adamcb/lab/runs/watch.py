"""Looking over a selection's shoulder: what it drew, what it heard, and what that says about it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from adamcb.lab.results.columns import METER_READINGS, QUANTILES
from adamcb.selection import Draw, Selection, UniformSelection
from adamcb.training import Meter

_ARRAYS = ("indices", "probs", "loss_weights")


class WatchedSelection:
    """A selection that keeps a log of the epoch, so that looking at it costs no training time.

    Log and counts are part of its state: a resumed run reads the same as an undisturbed one.

    Attributes:
        counts: int64[n], how often each sample was drawn in the epochs that `read` has closed.
        num_draws: How many draws were made.
        samples_drawn: How many samples they had together: batches may differ in size.
    """

    def __init__(self, selection: Selection) -> None:
        self.selection = selection
        self.num_samples, self.batch_size = selection.num_samples, selection.batch_size
        self.learns = getattr(selection, "learns", not isinstance(selection, UniformSelection))
        self.counts = np.zeros(self.num_samples, dtype=np.int64)
        self.num_draws = self.samples_drawn = 0
        self._drawn: list[Draw] = []
        self._heard: list[tuple[Draw, np.ndarray]] = []

    def draw(self) -> Draw:
        """Choose the next batch."""
        draw = self.selection.draw()
        self._drawn.append(draw)
        self.num_draws += 1
        self.samples_drawn += len(draw)
        return draw

    def update(self, draw: Draw, norms: Any) -> None:
        """Learn from the norms of a batch."""
        self.selection.update(draw, norms)
        self._heard.append((draw, np.array(norms, dtype=np.float64)))

    def inclusion_probs(self) -> np.ndarray:
        """Return float64[n], the expected number of occurrences of every sample in the next batch."""
        return self.selection.inclusion_probs()

    def read(self) -> dict[str, float | None]:
        """Return how the selection behaved since the last call, and start a new log.

        Moving averages start anew with the log. Probabilities are in units of uniform sampling's K/n.
        """
        meter = Meter(self.num_samples, self.batch_size)
        for draw in self._drawn:
            meter.note_draw(draw)
            np.add.at(self.counts, draw.indices, 1)
        for draw, norms in self._heard:
            meter.note_norms(draw, norms)
        self._drawn, self._heard = [], []
        now = meter.as_dict()
        readings: dict[str, float | None] = {
            name: None if math.isnan(now[name]) else float(now[name]) for name in METER_READINGS
        }
        relative = self.inclusion_probs() * (self.num_samples / self.batch_size)
        quantiles = np.quantile(relative, list(QUANTILES.values()))
        return {**readings, **dict(zip(QUANTILES, quantiles.tolist(), strict=True))}

    def state_dict(self) -> dict[str, Any]:
        """Return the selection's state, the counts and the log."""
        return {
            "selection": self.selection.state_dict(),
            "counts": torch.from_numpy(self.counts.copy()),
            "num_draws": self.num_draws,
            "samples_drawn": self.samples_drawn,
            "drawn": _pack(self._drawn),
            "heard": _pack([draw for draw, _ in self._heard]),
            "norms": torch.from_numpy(np.stack([norms for _, norms in self._heard])) if self._heard else None,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state`."""
        self.selection.load_state_dict(state["selection"])
        self.counts = state["counts"].numpy().copy()
        self.num_draws, self.samples_drawn = state["num_draws"], state["samples_drawn"]
        self._drawn = _unpack(state["drawn"])
        norms = [] if state["norms"] is None else state["norms"].numpy()
        self._heard = list(zip(_unpack(state["heard"]), norms, strict=True))


def _pack(draws: list[Draw]) -> dict[str, torch.Tensor]:
    if not draws:
        return {}
    return {name: torch.from_numpy(np.stack([getattr(draw, name) for draw in draws])) for name in _ARRAYS}


def _unpack(packed: dict[str, torch.Tensor]) -> list[Draw]:
    if not packed:
        return []
    rows = zip(*(packed[name].numpy().copy() for name in _ARRAYS), strict=True)
    return [Draw(*arrays, origin=0) for arrays in rows]
