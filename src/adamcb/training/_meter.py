"""The meter: whether choosing batches pays, and where the time goes."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from adamcb.selection import Draw, Selection

ROOMS = ("selection", "data", "forward_backward", "step")


class Meter:
    """Watches draws, norms and seconds. `as_dict` and `str` say how things stand.

    - `second_moment`: that of the batch gradient against uniform sampling, Σᵢ‖gᵢ‖²/pᵢ ÷ Σᵢ‖gᵢ‖²·n/K, both estimated
      from the batches (moving average over about 50). Below 1, choosing pays; `variance_reduction` is 1 minus it. (Both
      second moments hold the squared mean gradient; without it their ratio would be further from 1.)
    - `effective_sample_size`: (Σ loss_weights)²/Σ loss_weights² of a batch (moving average); K when all weigh the same.
    - `coverage`: the share of the dataset seen in this epoch.
    - `largest_weight`: the largest loss weight of this epoch, in units of 1/K, that of uniform sampling.
    - `seconds_…`: selection (draw and update), data, forward and backward (whatever happens between taking a batch and
      `update`, the norms among it), step; since the meter was made.
    """

    memory = 0.98

    def __init__(self, num_samples: int, batch_size: int) -> None:
        self.num_samples, self.batch_size = num_samples, batch_size
        self.steps = 0
        self.seconds = dict.fromkeys(ROOMS, 0.0)
        self._ours = self._uniform = self._trust = self._size = self._size_trust = 0.0
        self._seen = np.zeros(num_samples, dtype=np.bool_)
        self._drawn = 0
        self._largest = 0.0

    def start_epoch(self) -> None:
        """Forget what was seen: coverage and largest weight are those of one epoch."""
        self._seen[:] = False
        self._drawn, self._largest = 0, 0.0

    def note_draw(self, draw: Draw) -> None:
        """Take note of a batch that is about to be trained on."""
        weights = draw.loss_weights
        self._drawn += int(np.count_nonzero(~self._seen[np.unique(draw.indices)]))
        self._seen[draw.indices] = True
        self._largest = max(self._largest, float(weights.max()) * self.batch_size)
        keep = self.memory
        self._size = keep * self._size + (1 - keep) * float(weights.sum()) ** 2 / float(weights @ weights)
        self._size_trust = keep * self._size_trust + (1 - keep)
        self.steps += 1

    def note_norms(self, draw: Draw, norms: np.ndarray) -> None:
        """Take note of a batch's gradient norms."""
        scores = norms / draw.probs
        keep = self.memory
        self._ours = keep * self._ours + (1 - keep) * float(scores @ scores)
        uniform = float(scores @ norms) * self.num_samples / self.batch_size
        self._uniform = keep * self._uniform + (1 - keep) * uniform

    @property
    def second_moment(self) -> float:
        """The batch gradient's second moment against uniform sampling; NaN before the first norms."""
        return self._ours / self._uniform if self._uniform > 0.0 else float("nan")

    def as_dict(self) -> dict[str, float]:
        """Return all readings, as loggers take them."""
        return {
            "steps": self.steps,
            "second_moment": self.second_moment,
            "variance_reduction": 1.0 - self.second_moment,
            "effective_sample_size": self._size / self._size_trust if self._size_trust else float("nan"),
            "coverage": self._drawn / self.num_samples,
            "largest_weight": self._largest,
            **{f"seconds_{room}": self.seconds[room] for room in ROOMS},
        }

    def __str__(self) -> str:
        now = self.as_dict()
        total = sum(self.seconds.values()) or 1.0
        shares = ", ".join(f"{room.replace('_', '+')} {100 * self.seconds[room] / total:.0f} %" for room in ROOMS)
        return (
            f"step {self.steps}: variance reduction {100 * now['variance_reduction']:.0f} %, "
            f"effective sample size {now['effective_sample_size']:.0f} of {self.batch_size}, "
            f"coverage {100 * now['coverage']:.0f} %, largest weight {now['largest_weight']:.1f}; {shares}"
        )


class TimedSelection:
    """A selection whose seconds go onto a meter; everything else passes through."""

    def __init__(self, selection: Selection, meter: Meter) -> None:
        self.selection, self.meter = selection, meter
        self.num_samples, self.batch_size = selection.num_samples, selection.batch_size

    def draw(self) -> Draw:
        """Choose the next batch."""
        start = time.perf_counter()
        draw = self.selection.draw()
        self.meter.seconds["selection"] += time.perf_counter() - start
        return draw

    def update(self, draw: Draw, norms: Any) -> None:
        """Learn from the norms of a batch."""
        start = time.perf_counter()
        self.selection.update(draw, norms)
        self.meter.seconds["selection"] += time.perf_counter() - start

    def __getattr__(self, name: str) -> Any:
        return getattr(self.selection, name)
