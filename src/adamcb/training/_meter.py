"""The meter: whether choosing batches pays, and where the time goes."""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np
import torch

from adamcb import _checks
from adamcb._jit import clock, jit
from adamcb.selection import Draw, SecondMoment, Selection, Strata

PHASES: tuple[str, ...] = ("selection", "data", "training")
_AVERAGES: tuple[str, ...] = ("size", "trust")
_COUNTS: tuple[str, ...] = ("steps", "samples")
_KEYS: tuple[str, ...] = (*_COUNTS, "average", "moment", "largest", "seen")


class Observer(Protocol):
    """Is told of every batch. Its state is its own to save.

    Example:
        >>> from adamcb.selection import UniformSelection
        >>> class Counts:
        ...     seen = 0
        ...
        ...     def note_draw(self, draw):
        ...         self.seen += len(draw)
        ...
        ...     def note_scores(self, draw, scores): ...
        >>> observer: Observer = Counts()
        >>> observer.note_draw(UniformSelection(num_samples=8, batch_size=4).draw())
        >>> observer.seen
        4
    """

    def note_draw(self, draw: Draw) -> None:
        """Hear that a batch is handed out."""
        ...

    def note_scores(self, draw: Draw, scores: np.ndarray) -> None:
        """Hear that the selection has learned these scores, float64[k]."""
        ...


class Meter:
    """Watches draws, scores and seconds. `as_dict` and `str` say how things stand.

    - `samples`: the share of the samples that batches of K would have taken; 1 unless batches may be smaller.
    - `second_moment`: that of the batch gradient against K uniform samples, Σᵢsᵢ²/pᵢ ÷ Σᵢsᵢ²·n/K with scores s, both
      estimated without bias from each batch and averaged over about the last 50. Below 1, these batches varied less
      than uniform ones. Shuffled batches count as 1, so read it at the end of an epoch. `variance_reduction` is 1
      minus it. (Both second moments hold the squared mean gradient. Without it their ratio would be further from 1.)
    - `noise_of`: how many uniform samples are as noisy as these batches: K divided by `second_moment`.
    - `effective_sample_size`: (Σ loss_weights)²/Σ loss_weights² of a batch, averaged alike; K if all weigh the same.
    - `coverage`: the share of the dataset seen in this epoch.
    - `largest_weight`: the largest loss weight of this epoch, in units of 1/K, that of uniform sampling.
    - `seconds_…`: selection (draws and updates), data (loading), training (whatever the loop does with a batch, the
      scores among it); of this process, since the meter was made. On an accelerator they are the host's, which does
      not wait for it.
    - `seconds_ratio`: the seconds of a step, all phases, divided by those of a step with K samples. Shuffled batches
      come first, so a training with smaller batches has both.

    Readings that there is nothing to tell of yet are NaN.

    With several ranks the readings are of whole batches, the same on every rank; of this rank's samples if weights are
    sharded.

    Example:
        >>> from adamcb import UniformSelection
        >>> selection = UniformSelection(100, 10)
        >>> meter = Meter.of(selection)
        >>> meter.note_draw(selection.draw())
        >>> readings = meter.as_dict()
        >>> readings["samples"], readings["coverage"], round(readings["largest_weight"], 6)
        (1.0, 0.1, 1.0)
    """

    memory = 0.98

    def __init__(self, num_samples: int, batch_size: int) -> None:
        self.num_samples, self.batch_size = _checks.num_samples(num_samples), _checks.count("batch_size", batch_size)
        self._strata: Strata | None = None  # whose samples alone are watched here
        self.steps = self.samples = 0
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self._step_seconds = {True: [0, 0.0], False: [0, 0.0]}  # steps and seconds, of full batches and of smaller ones
        self._is_full = True
        self._before = 0.0  # seconds of all phases when the last step ended
        self._handed_out: float | None = None  # when the last batch was
        self._moment = SecondMoment(self.memory)
        # Moving averages that start at 0; `trust` undoes that.
        self._average = dict.fromkeys(_AVERAGES, 0.0)
        self._seen = np.zeros(num_samples, dtype=np.bool_)
        self._largest = 0.0

    @classmethod
    def of(cls, selection: Selection) -> Meter:
        """Return a meter for a selection; for strata it takes no more memory than their samples need."""
        if isinstance(selection, Strata):
            meter = cls(selection.own_samples, selection.batch_size)
            meter._strata = selection
            return meter
        return cls(selection.num_samples, selection.batch_size)

    def start_epoch(self) -> None:
        """Forget what was seen: coverage and largest weight are those of one epoch."""
        self._seen[:] = False
        self._largest = 0.0

    def note_draw(self, draw: Draw) -> None:
        """Take note of a batch that is about to be trained on."""
        strata, whole_size = self._strata, self.batch_size
        places = draw.indices
        if strata is not None:
            places, whole_size = strata.places_of(places), whole_size * strata.num_strata // len(strata.strata)
        largest, size = _summary(places, draw.loss_weights, self._seen)
        self._largest = max(self._largest, largest * whole_size)
        self._note("size", size)
        self._note("trust", 1.0)
        self.steps += 1
        self.samples += len(draw)
        self._is_full = len(draw) >= self.batch_size

    def note_fetched(self, since: float, drawing: float) -> None:
        """Take note that a batch is handed out: it was asked for at `since`, and draws took `drawing` of that."""
        self._handed_out = now = clock()
        self.seconds["selection"] += drawing
        self.seconds["data"] += now - since - drawing

    def note_step_end(self) -> None:
        """Take note that training on the batch that was handed out is over."""
        if self._handed_out is None:
            return
        self.seconds["training"] += clock() - self._handed_out
        self._handed_out = None
        now = sum(self.seconds.values())
        if self._before:  # the first step of a process compiles, and touches memory for the first time
            sums = self._step_seconds[self._is_full]
            sums[0] += 1
            sums[1] += now - self._before
        self._before = now

    def note_scores(self, draw: Draw, scores: np.ndarray) -> None:
        """Take note of a batch's scores."""
        self._moment.note(scores, draw.probs)

    def _note(self, name: str, value: float) -> None:
        self._average[name] += (1.0 - self.memory) * (value - self._average[name])

    @property
    def second_moment(self) -> float:
        """The batch gradient's second moment against uniform sampling."""
        return self._moment.ratio_to(self.num_samples, self.batch_size)

    @property
    def seconds_ratio(self) -> float:
        """The mean seconds of a step divided by those of a step with K samples; NaN before there was one of those."""
        (steps, seconds), (more_steps, more_seconds) = self._step_seconds.values()
        if not seconds:
            return math.nan
        return (seconds + more_seconds) / (steps + more_steps) / (seconds / steps)

    def as_dict(self) -> dict[str, float]:
        """Return all readings, as loggers take them. O(n)."""
        trust = self._average["trust"]
        return {
            "steps": self.steps,
            "samples": self.samples / (self.steps * self.batch_size) if self.steps else math.nan,
            "second_moment": self.second_moment,
            "variance_reduction": 1.0 - self.second_moment,
            "noise_of": self.batch_size / self.second_moment if self.second_moment else math.nan,
            "effective_sample_size": self._average["size"] / trust if trust else math.nan,
            "coverage": int(np.count_nonzero(self._seen)) / self.num_samples,
            "largest_weight": self._largest if self._largest else math.nan,
            **{f"seconds_{phase}": self.seconds[phase] for phase in PHASES},
            "seconds_ratio": self.seconds_ratio,
        }

    def __repr__(self) -> str:
        return f"Meter({self})"

    def __str__(self) -> str:
        if not self.steps:
            return "no step yet"
        now = self.as_dict()
        total = sum(self.seconds.values()) or 1.0
        shares = ", ".join(f"{phase} {100 * self.seconds[phase] / total:.0f} %" for phase in PHASES)
        noise = "unknown noise" if math.isnan(now["noise_of"]) else f"the noise of {now['noise_of']:.0f}"
        has_smaller = self._step_seconds[False][0] > 0 and not math.isnan(now["seconds_ratio"])
        time = f", {now['seconds_ratio']:.2f} of the time" if has_smaller else ""
        return (
            f"step {self.steps}: {100 * now['samples']:.0f} % of the samples, {noise}{time}; "
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
        if not isinstance(state, dict) or not set(_KEYS) <= set(state):
            got = f"the keys {', '.join(map(str, state))}" if isinstance(state, dict) else type(state).__name__
            raise ValueError(f"`state['meter']` must be a dict with the keys {', '.join(_KEYS)}, got {got}.")
        _checks.instance("state['meter']['average']", state["average"], dict, "a dict")
        packed = state["seen"]
        bits = (-(-self.num_samples // 8),)
        if not isinstance(packed, torch.Tensor) or packed.dtype != torch.uint8 or tuple(packed.shape) != bits:
            rule = f"be a uint8 tensor of shape {bits}"
            raise ValueError(f"`state['meter']['seen']` must {rule}, got {_checks.shown('seen', packed)}.")
        seen = np.unpackbits(packed.numpy(), count=self.num_samples).astype(np.bool_)
        average = {
            name: _checks.real(f"state['meter']['average']['{name}']", state["average"].get(name), low=0.0)
            for name in _AVERAGES
        }
        self._moment.check_state(state["moment"], "state['moment']")
        steps, samples = (_checks.integer(f"state['meter']['{name}']", state[name], low=0) for name in _COUNTS)
        largest = _checks.real("state['meter']['largest']", state["largest"], low=0.0)
        self.steps, self.samples, self._largest = steps, samples, largest
        self._average, self._seen, self._handed_out = average, seen, None
        self._moment.load_state_dict(state["moment"])


@jit
def _summary(places, weights, seen):
    """Mark the samples of a batch as seen; return its largest weight, and (Σ weights)²/Σ weights²."""
    largest = total = squares = 0.0
    for j in range(len(places)):
        seen[places[j]] = True
        largest = max(largest, weights[j])
        total += weights[j]
        squares += weights[j] * weights[j]
    return largest, total * total / squares
