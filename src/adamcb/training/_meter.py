"""The meter: whether choosing batches pays, and where the time goes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from adamcb.selection import Draw, SecondMoment, Selection, ShardedSelection

PHASES: tuple[str, ...] = ("selection", "data", "training")
_AVERAGES: tuple[str, ...] = ("size", "trust")


class Meter:
    """Watches draws, scores and seconds. `as_dict` and `str` say how things stand.

    - `samples`: the share of the samples that batches of K would have taken; 1 unless batches may be smaller.
    - `second_moment`: that of the batch gradient against K uniform samples, Σᵢsᵢ²/pᵢ ÷ Σᵢsᵢ²·n/K with scores s, both
      estimated without bias from each batch and averaged over about the last 50. Below 1, these batches varied less
      than uniform ones. Shuffled batches count as 1, so read it at the end of an epoch. `variance_reduction` is 1
      minus it. (Both second moments hold the squared mean gradient. Without it their ratio would be further from 1.)
    - `effective_sample_size`: (Σ loss_weights)²/Σ loss_weights² of a batch, averaged alike; K if all weigh the same.
    - `coverage`: the share of the dataset seen in this epoch.
    - `largest_weight`: the largest loss weight of this epoch, in units of 1/K, that of uniform sampling.
    - `seconds_…`: selection (draws and updates), data (loading), training (whatever the loop does with a batch, the
      scores among it); of this process, since the meter was made. On an accelerator they are the host's, which does
      not wait for it.

    Readings that there is nothing to tell of yet are NaN.

    With several ranks the readings are of whole batches, the same on every rank; of this rank's shard if weights are
    sharded.
    """

    memory = 0.98

    def __init__(self, num_samples: int, batch_size: int, *, stride: int = 1) -> None:
        self.num_samples, self.batch_size = num_samples, batch_size
        self._stride = stride  # of the samples watched here, in the dataset
        self.steps = self.samples = 0
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self._moment = SecondMoment(self.memory)
        # Moving averages that start at 0; `trust` undoes that.
        self._average = dict.fromkeys(_AVERAGES, 0.0)
        self._seen = np.zeros(num_samples, dtype=np.bool_)
        self._largest = 0.0

    @classmethod
    def of(cls, selection: Selection) -> Meter:
        """Return a meter for a selection; for a shard it takes no more memory than the shard's samples need."""
        if isinstance(selection, ShardedSelection):
            return cls(selection.selection.num_samples, selection.batch_size, stride=selection.num_shards)
        return cls(selection.num_samples, selection.batch_size)

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
        self.samples += len(draw)

    def note_scores(self, draw: Draw, scores: np.ndarray) -> None:
        """Take note of a batch's scores."""
        self._moment.note(scores, draw.probs)

    def _note(self, name: str, value: float) -> None:
        self._average[name] += (1.0 - self.memory) * (value - self._average[name])

    @property
    def second_moment(self) -> float:
        """The batch gradient's second moment against uniform sampling."""
        return self._moment.ratio_to(self.num_samples, self.batch_size)

    def as_dict(self) -> dict[str, float]:
        """Return all readings, as loggers take them. O(n)."""
        trust = self._average["trust"]
        return {
            "steps": self.steps,
            "samples": self.samples / (self.steps * self.batch_size) if self.steps else math.nan,
            "second_moment": self.second_moment,
            "variance_reduction": 1.0 - self.second_moment,
            "effective_sample_size": self._average["size"] / trust if trust else math.nan,
            "coverage": int(np.count_nonzero(self._seen)) / self.num_samples,
            "largest_weight": self._largest if self._largest else math.nan,
            **{f"seconds_{phase}": self.seconds[phase] for phase in PHASES},
        }

    def __repr__(self) -> str:
        return f"Meter({self})"

    def __str__(self) -> str:
        now = self.as_dict()
        total = sum(self.seconds.values()) or 1.0
        shares = ", ".join(f"{phase} {100 * self.seconds[phase] / total:.0f} %" for phase in PHASES)
        return (
            f"step {self.steps}: {100 * now['samples']:.0f} % of the samples, "
            f"variance reduction {100 * now['variance_reduction']:.0f} %, "
            f"effective sample size {now['effective_sample_size']:.0f} of {self.batch_size}, "
            f"coverage {100 * now['coverage']:.0f} %, largest weight {now['largest_weight']:.1f}; {shares}"
        )

    def state_dict(self) -> dict[str, Any]:
        """Return all but the seconds, which are this process's own."""
        seen = torch.from_numpy(np.packbits(self._seen))
        counts = {"steps": self.steps, "samples": self.samples}
        averages = {"average": dict(self._average), "moment": self._moment.state_dict()}
        return {**counts, **averages, "largest": self._largest, "seen": seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state`; an error leaves everything as it was."""
        seen = np.unpackbits(state["seen"].numpy(), count=self.num_samples).astype(np.bool_)
        average = {name: float(state["average"][name]) for name in _AVERAGES}
        self._moment.check_state(state["moment"], "state['moment']")
        steps, samples, largest = int(state["steps"]), int(state["samples"]), float(state["largest"])
        self.steps, self.samples, self._largest = steps, samples, largest
        self._average, self._seen = average, seen
        self._moment.load_state_dict(state["moment"])
