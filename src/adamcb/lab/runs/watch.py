"""Watching a selection: what it drew, what it learned, and what that says about it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from adamcb.lab.results.columns import METER_READINGS, QUANTILES
from adamcb.selection import Draw, Selection
from adamcb.training import Meter

_ARRAYS = ("indices", "probs", "loss_weights")


class Watch:
    """An observer that keeps a log of the epoch, so that looking at it costs no training time.

    The log is part of its state: a resumed run reads the same as an undisturbed one.

    Args:
        num_samples: n.
        batch_size: K.
        norms: Whether the scores that it hears are norms of gradients; if not, they are not kept.

    Attributes:
        num_draws: How many batches were drawn.
        num_chosen: How many of them were not uniform.
        samples_drawn: How many samples they had together: batches may differ in size.
    """

    def __init__(self, num_samples: int, batch_size: int, *, norms: bool = True) -> None:
        self.num_samples, self.batch_size, self.norms = num_samples, batch_size, norms
        self.num_draws = self.num_chosen = self.samples_drawn = 0
        self._drawn: list[Draw] = []
        self._heard: list[tuple[Draw, np.ndarray]] = []

    def note_draw(self, draw: Draw) -> None:
        """Hear that a batch is handed out."""
        self._drawn.append(draw)
        self.num_draws += 1
        self.num_chosen += bool(draw.probs.min() != draw.probs.max())
        self.samples_drawn += len(draw)

    def note_scores(self, draw: Draw, scores: np.ndarray) -> None:
        """Hear that the selection has learned these scores."""
        if self.norms:
            self._heard.append((draw, np.array(scores, dtype=np.float64)))

    def read(self, selection: Selection) -> dict[str, float | None]:
        """Return how the selection behaved since the last call, and start a new log.

        Moving averages start anew with the log. Probabilities are in units of uniform sampling's K/n.
        """
        meter = Meter(self.num_samples, self.batch_size)
        for draw in self._drawn:
            meter.note_draw(draw)
        for draw, scores in self._heard:
            meter.note_scores(draw, scores)
        self._drawn, self._heard = [], []
        now = meter.as_dict()
        readings: dict[str, float | None] = {
            name: None if math.isnan(now[name]) else float(now[name]) for name in METER_READINGS
        }
        relative = selection.inclusion_probs() * (self.num_samples / self.batch_size)
        quantiles = np.quantile(relative, list(QUANTILES.values()))
        return {**readings, **dict(zip(QUANTILES, quantiles.tolist(), strict=True))}

    def state_dict(self) -> dict[str, Any]:
        """Return the log."""
        return {
            "numbers": [self.num_draws, self.num_chosen, self.samples_drawn],
            "drawn": _pack(self._drawn),
            "heard": _pack([draw for draw, _ in self._heard]),
            "scores": _joined([scores for _, scores in self._heard], np.float64),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state`."""
        self.num_draws, self.num_chosen, self.samples_drawn = state["numbers"]
        self._drawn, heard = _unpack(state["drawn"]), _unpack(state["heard"])
        scores = np.split(state["scores"].numpy(), np.cumsum([len(draw) for draw in heard])[:-1]) if heard else []
        self._heard = list(zip(heard, scores, strict=True))


def _pack(draws: list[Draw]) -> dict[str, Any]:
    """Return draws, which may differ in size, as one tensor for each of their arrays."""
    arrays = {name: _joined([getattr(draw, name) for draw in draws], np.float64) for name in _ARRAYS[1:]}
    arrays["indices"] = _joined([draw.indices for draw in draws], np.int64)
    return {**arrays, "sizes": [len(draw) for draw in draws]}


def _joined(arrays: list[np.ndarray], kind: type) -> torch.Tensor:
    return torch.from_numpy(np.concatenate([np.empty(0, dtype=kind), *arrays]))


def _unpack(packed: dict[str, Any]) -> list[Draw]:
    if not packed["sizes"]:
        return []
    ends = np.cumsum(packed["sizes"])[:-1]
    parts = (np.split(packed[name].numpy().copy(), ends) for name in _ARRAYS)
    return [Draw(*arrays, origin=0) for arrays in zip(*parts, strict=True)]
