"""The meter: whether choosing batches pays, and where the time goes."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import torch

from adamcb.selection import Draw, Selection, ShardedSelection

ROOMS: tuple[str, ...] = ("selection", "data", "forward_backward", "step")
_AVERAGES: tuple[str, ...] = ("ours", "uniform", "size", "trust")


class Meter:
    """Watches draws, norms and seconds. `as_dict` and `str` say how things stand.

    - `second_moment`: that of the batch gradient against uniform sampling, Σᵢ‖gᵢ‖²/pᵢ ÷ Σᵢ‖gᵢ‖²·n/K, both estimated
      without bias from each batch and averaged over about the last 50. Below 1, these batches varied less than uniform
      ones; reshuffled ones count as 1, so read it at the end of an epoch. `variance_reduction` is 1 minus it.
      (Both second moments hold the squared mean gradient; without it their ratio would be further from 1.)
    - `effective_sample_size`: (Σ loss_weights)²/Σ loss_weights² of a batch, averaged alike; K when all weigh the same.
    - `coverage`: the share of the dataset seen in this epoch.
    - `largest_weight`: the largest loss weight of this epoch, in units of 1/K, that of uniform sampling.
    - `seconds_…`: selection (draw and update), data, forward and backward (whatever happens between taking a batch and
      `update`, the norms among it), step; of this process, since the meter was made. On an accelerator they are the
      host's, which does not wait for it.

    Readings that there is nothing to tell of yet are NaN.

    With several ranks the readings are of whole batches, the same on every rank; of this rank's shard if weights are
    sharded.
    """

    memory = 0.98

    def __init__(self, num_samples: int, batch_size: int, *, stride: int = 1) -> None:
        self.num_samples, self.batch_size = num_samples, batch_size
        self._stride = stride  # of the samples watched here, in the dataset
        self.steps = 0
        self.seconds = dict.fromkeys(ROOMS, 0.0)
        # Moving averages that start at 0; `trust` undoes that.
        self._average = dict.fromkeys(_AVERAGES, 0.0)
        self._seen = np.zeros(num_samples, dtype=np.bool_)
        self._largest = 0.0

    @classmethod
    def of_shard(cls, shard: ShardedSelection) -> Meter:
        """Return a meter that watches the samples of one shard, and takes no more memory than they need."""
        return cls(shard.selection.num_samples, shard.batch_size, stride=shard.num_shards)

    def start_epoch(self) -> None:
        """Forget what was seen: coverage and largest weight are those of one epoch."""
        self._seen[:] = False
        self._largest = 0.0

    def note_draw(self, draw: Draw) -> None:
        """Take note of a batch that is about to be trained on."""
        weights = draw.loss_weights
        self._seen[draw.indices // self._stride] = True
        self._largest = max(self._largest, float(weights.max()) * self.batch_size * self._stride)
        self._note("size", float(weights.sum()) ** 2 / float(weights @ weights))
        self._note("trust", 1.0)
        self.steps += 1

    def note_norms(self, draw: Draw, norms: np.ndarray) -> None:
        """Take note of a batch's gradient norms."""
        scores = norms / draw.probs
        self._note("ours", float(scores.dot(scores)))  # `dot` takes half the time of `@` on so few numbers
        self._note("uniform", float(scores.dot(norms)) * self.num_samples / self.batch_size)

    def _note(self, name: str, value: float) -> None:
        self._average[name] += (1.0 - self.memory) * (value - self._average[name])

    @property
    def second_moment(self) -> float:
        """The batch gradient's second moment against uniform sampling."""
        ours, uniform = self._average["ours"], self._average["uniform"]
        return ours / uniform if uniform > 0.0 else math.nan

    def as_dict(self) -> dict[str, float]:
        """Return all readings, as loggers take them. O(n)."""
        trust = self._average["trust"]
        return {
            "steps": self.steps,
            "second_moment": self.second_moment,
            "variance_reduction": 1.0 - self.second_moment,
            "effective_sample_size": self._average["size"] / trust if trust else math.nan,
            "coverage": int(np.count_nonzero(self._seen)) / self.num_samples,
            "largest_weight": self._largest if self._largest else math.nan,
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

    def state_dict(self) -> dict[str, Any]:
        """Return all but the seconds, which are this process's own."""
        seen = torch.from_numpy(np.packbits(self._seen))
        return {"steps": self.steps, "average": dict(self._average), "largest": self._largest, "seen": seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state`; an error leaves everything as it was."""
        seen = np.unpackbits(state["seen"].numpy(), count=self.num_samples).astype(np.bool_)
        average = {name: float(state["average"][name]) for name in _AVERAGES}
        self.steps, self._largest = int(state["steps"]), float(state["largest"])
        self._average, self._seen = average, seen


class TimedSelection:
    """A selection whose seconds go onto a meter."""

    def __init__(self, selection: Selection, meter: Meter) -> None:
        self.selection, self.meter = selection, meter
        self.num_samples, self.batch_size = selection.num_samples, selection.batch_size
        if isinstance(selection, ShardedSelection):
            self.draws_per_epoch = selection.draws_per_epoch

    @property
    def generator(self) -> torch.Generator | None:
        """The selection's generator, if it has one."""
        return getattr(self.selection, "generator", None)

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

    def inclusion_probs(self) -> np.ndarray:
        """Return what the selection returns."""
        return self.selection.inclusion_probs()

    def state_dict(self) -> dict[str, Any]:
        """Return what the selection returns."""
        return self.selection.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state`."""
        self.selection.load_state_dict(state)
