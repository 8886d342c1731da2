"""The queue: every sample has an epoch of its own length, and a batch is the next samples that are due."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from adamcb import _checks
from adamcb.selection import _axis
from adamcb.selection._attention import Attention
from adamcb.selection._axis import RATES, RATES_LOST, Bounds
from adamcb.selection._bandit import SizedBandit
from adamcb.selection._draw import Draw, empty_draw
from adamcb.selection._feedback import Feedback, Visit, checked_factors
from adamcb.selection._moment import SecondMoment
from adamcb.selection._random import new_seed

_VECTORS = ("weights", "rates", "begins", "events")


class QueueBandit(SizedBandit):
    """Every sample has an epoch of its own length, 1/rate; a batch is the next k samples that are due.

    All samples live on one axis. Sample i cuts it into units, each 1/rᵢ long, and is due once in each unit, at a
    uniformly random place. So it is visited rᵢ times per length of the axis, give or take one. With equal rates these
    are reshuffled epochs. A batch is the next k samples that are due, and its losses are weighted by Σr/(k n rᵢ).

    Scores change the weight vᵢ of a sample. When its next unit begins, its rate becomes n·vᵢ/Σv, at least γ and at most
    Σr/(2K), so that a sample is expected in at most every second batch of K. Scores may come late, out of order or
    never. docs/queue.md shows what the probabilities promise.

    With `min_batch_size`, a batch has as many samples as make it as noisy as K uniform ones, and no more. A short
    ladder of sizes keeps the number of shapes small that a compiled model sees.

    Where choosing does not pay, learning rests: weights become equal again, `listens` is true for one batch in 16, and
    learning starts anew when the scores begin to differ.

    Args:
        num_samples: n, the size of the dataset.
        batch_size: K, at most n. If n < 2K there is nothing to choose, and all rates stay equal.
        min_batch_size: The smallest batch. None: every batch has K samples.
        size_multiple: Every batch size is a multiple of this number, for instance of the number of ranks. It must
            divide `batch_size`, and `min_batch_size` is rounded up.
        exploration: γ in (0, 1]: the lowest rate, where 1 is the mean. At 1 all rates are equal.
        feedback: How scores change weights: a `Feedback`, or "scale-free" for `ScaleFree()`.
        generator: Where all random numbers come from. None: a new one, seeded from torch's global generator.

    Attributes:
        sizes: All sizes that a batch may have, smallest first.
        moment: The `SecondMoment` of the draws, from which the size of the next batch follows.

    Example:
        >>> bandit = QueueBandit(1000, 4, generator=torch.Generator().manual_seed(0))
        >>> epoch = np.concatenate([bandit.draw().indices for _ in range(250)])
        >>> len(set(epoch))  # equal weights: every sample once
        1000
        >>> draw = bandit.draw()
        >>> draw.probs, draw.loss_weights
        (array([0.004, 0.004, 0.004, 0.004]), array([0.25, 0.25, 0.25, 0.25]))
        >>> bandit.update(draw, scores=[0.1, 2.0, 0.3, 0.1])
        >>> heaviest, lightest = bandit.weights[draw.indices[[1, 0]]]
        >>> bool(lightest < 1.0 < heaviest)
        True
    """

    per_sample = (*_VECTORS, "visited")

    def __init__(
        self,
        num_samples: int,
        batch_size: int,
        *,
        min_batch_size: int | None = None,
        size_multiple: int = 1,
        exploration: float = 0.2,
        feedback: Feedback | str = "scale-free",
        generator: torch.Generator | None = None,
    ) -> None:
        self.exploration = _checks.real("exploration", exploration, low=0.0, high=1.0, low_open=True)
        sizes = {"min_batch_size": min_batch_size, "size_multiple": size_multiple}
        super().__init__(num_samples, batch_size, **sizes, feedback=feedback, generator=generator)
        # ρ changes from epoch to epoch, so the estimate looks back on a fifth of an epoch, its record on a full one.
        window, epoch = min(max(self.draws_per_epoch / 5, 10.0), 50.0), max(self.draws_per_epoch, 50.0)
        self.moment = SecondMoment(memory=1.0 - 1.0 / window, record_memory=1.0 - 1.0 / epoch)
        self._attention = Attention(self.num_samples)
        chooses = self.exploration < 1.0 and self.num_samples >= 2 * self.batch_size
        self._bounds = Bounds(self.exploration, 0.5 / self.batch_size) if chooses else Bounds(1.0, 0.0)
        self._axis = _axis.new_axis(self.num_samples, new_seed(self.generator))

    @property
    def listens(self) -> bool:
        """Whether the scores of the batch that was drawn last are worth measuring."""
        return self._attention.listens

    @property
    def weights(self) -> np.ndarray:
        """float64[n], the weight of every sample, up to a common factor. Reading copies; assigning replaces all.

        A sample keeps its rate until its unit ends.
        """
        weights = self._axis.weights.copy()
        weights.flags.writeable = False
        return weights

    @weights.setter
    def weights(self, weights: Any) -> None:
        values = _checks.vector("weights", weights, length=self.num_samples)
        if not values.max() > 0.0:
            raise ValueError(f"`weights` must hold at least one number above 0, got {len(values)} zeros.")
        self._set_weights(values / values.max())

    def draw(self) -> Draw:
        """Choose the next k distinct samples that are due. O(k log n)."""
        draw = empty_draw(self._sizes.next(self.moment), self._origin)
        _axis.draw_due(self._axis, self._bounds, draw.indices, draw.probs, draw.loss_weights)
        self._attention.note_draw()
        return draw.frozen()

    def update(self, draw: Draw, scores: Any) -> None:
        """Change the weights of the samples in `draw` by their scores. O(k).

        A new weight counts from the next unit that begins: at once for a sample that was just visited, and one unit
        later if the next one has begun already.

        Arguments and errors are those of `Selection.update`. A score that the feedback refuses is an error too.
        """
        values = self.check(draw, scores)
        draw_probs = self._probs_in_full_batch(draw)
        if self._attention.is_awake:
            self._learn(draw, values, draw_probs)
        self.moment.note(values, draw_probs)
        if self._attention.note_scores(values, draw_probs, self.moment):
            self._set_weights(np.ones(self.num_samples))

    def _set_weights(self, weights: np.ndarray) -> None:
        _axis.set_weights(self._axis.weights, self._axis.sums, self._bounds, weights)

    def _learn(self, draw: Draw, scores: np.ndarray, draw_probs: np.ndarray) -> None:
        weights, sums, bounds = self._axis.weights, self._axis.sums, self._bounds
        probs, lowest, highest = _axis.probs_by_weight(weights, sums, bounds, draw.indices, self.batch_size)
        visit = Visit(scores, probs, draw_probs, lowest, highest)
        factors, state = self.feedback.factors(visit, self._feedback_state)
        _axis.multiply_weights(weights, sums, bounds, draw.indices, checked_factors(factors, len(draw)))
        self._feedback_state = state

    def inclusion_probs(self) -> np.ndarray:
        """Return float64[n], how often every sample is expected in the next batch; it sums to its size k. O(n).

        This is kr/Σr, the expectation over the random places; K/n is the same for a reshuffled epoch.
        """
        return np.minimum(self._sizes.peek(self.moment) * self._axis.rates / self._axis.sums[RATES], 1.0)

    def settings(self) -> dict[str, Any]:
        own = {"size_multiple": self.size_multiple, "exploration": self.exploration, "feedback": repr(self.feedback)}
        return {**super().settings(), **own}

    def learned(self) -> dict[str, Any]:
        axis, events, visited = self._axis, np.empty(self.num_samples), np.empty(self.num_samples, dtype=bool)
        _axis.write_events(axis, events, visited)
        arrays = zip(_VECTORS, (axis.weights.copy(), axis.rates.copy(), axis.begins.copy(), events), strict=True)
        return {
            **{name: torch.from_numpy(array) for name, array in arrays},
            "visited": torch.from_numpy(visited),
            "sums": axis.sums.tolist(),
            "stream": axis.stream.tolist(),
            **super().learned(),
            "attention": self._attention.state_dict(),
        }

    def check_state(self, state: Any) -> None:
        super().check_state(state)
        vectors = [_checks.vector(f"state['{name}']", state[name], length=self.num_samples) for name in _VECTORS]
        for name, vector in zip(_VECTORS[:2], vectors, strict=False):
            if not vector.min() > 0.0:
                raise ValueError(f"`state['{name}']` must hold numbers above 0, got one that is 0.")
        visited = _checks.flags("state['visited']", state["visited"], length=self.num_samples)
        sums = _checks.array("state['sums']", state["sums"])
        if sums.shape != self._axis.sums.shape:
            raise ValueError(f"`state['sums']` must be {len(self._axis.sums)} numbers, got shape {sums.shape}.")
        _checks.vector("state['sums']", sums[:RATES_LOST])
        _checks.real(f"state['sums'][{RATES_LOST}]", float(sums[RATES_LOST]), low=-1.0, high=1.0)  # may be negative
        fault = _axis.fault_of(*vectors, visited, sums.astype(np.float64), self._bounds)
        if fault:
            name, rule = _axis.FAULTS[fault]
            raise ValueError(f"`state['{name}']` must {rule}, got a state that does not fit together.")
        if not isinstance(state["stream"], (list, tuple)) or len(state["stream"]) != 2:
            raise ValueError(f"`state['stream']` must be two integers, got state['stream']={state['stream']!r}.")
        for position, number in enumerate(state["stream"]):
            _checks.integer(f"state['stream'][{position}]", number, low=0, high=2**64 - 1)
        self._attention.check_state(state["attention"], "state['attention']")

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        axis = self._axis  # filled in place: at large n a second one would not fit into memory
        axis.weights[:], axis.rates[:], axis.begins[:] = (np.asarray(state[name]) for name in _VECTORS[:3])
        axis.sums[:] = state["sums"]
        axis.stream[:] = np.array(state["stream"], dtype=np.uint64)
        _axis.read_events(axis, np.asarray(state["events"]), np.asarray(state["visited"]))
        self._attention.load_state_dict(state["attention"])
