"""AdamCB's selection: K distinct samples with exact inclusion probabilities, and weights that learn."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from adamcb import _checks
from adamcb.selection._bandit import SizedBandit
from adamcb.selection._draw import Draw, uniform_draw
from adamcb.selection._feedback import Feedback, Visit, checked_factors
from adamcb.selection._gate import Gate
from adamcb.selection._moment import SecondMoment
from adamcb.selection._tree import SMALLEST, multiply
from adamcb.selection._tree_selection import DistinctSelection

GATE = Gate(0.1)


class CombinatorialBandit(SizedBandit, DistinctSelection):
    """AdamCB's selection: K distinct samples a draw, each with exactly its inclusion probability (Algorithms 2, 3, 7).

    pᵢ = K((1 − γ) wᵢ/Σⱼwⱼ + γ/n), after the largest weights are capped so that no pᵢ exceeds 1; a capped sample has
    pᵢ = 1 and is in every batch. DepRound draws the batch in O(K log n), along a shuffled order of the samples. Which
    samples can meet in a batch depends on that order, so it is reshuffled every epoch of floor(n/K) draws.

    Args:
        num_samples: n, the size of the dataset.
        batch_size: K, at most n.
        min_batch_size: The smallest batch. Batches drawn by weight are then as small as is no noisier than K uniform
            samples. None: every batch has K samples.
        size_multiple: Every batch size is a multiple of this number, for instance of the number of ranks.
        exploration: γ in [0, 1]. Every sample has pᵢ ≥ Kγ/n (`min_prob`); at 1 the draw is uniform. Kγ/n is also the
            learning rate of the paper's two rules, so at 0 they learn nothing.
        feedback: How scores change weights: a `Feedback`, or "scale-free" for `ScaleFree()`, "proof" for
            `ProofFeedback()`, "listing" for `ListingFeedback()`.
        gate: Which batches are drawn by weight; the others come from reshuffled epochs, as `UniformSelection` draws
            them. None: all of them are drawn by weight, as the paper has it.
        generator: Where all random numbers come from. None: a new one, seeded from torch's global generator.

    Attributes:
        sizes: All sizes that a batch may have, smallest first.
        moment: The `SecondMoment` of drawing by weight, estimated from all batches.

    Example:
        >>> bandit = CombinatorialBandit(1000, 4, generator=torch.Generator().manual_seed(0))
        >>> bandit.feedback, bandit.gate
        (ScaleFree(rate=0.3, bound=1.0, memory=0.9), Gate(min_gain=0.1))
        >>> draw = bandit.draw()
        >>> len(set(draw.indices)), draw.probs
        (4, array([0.004, 0.004, 0.004, 0.004]))
        >>> bandit.update(draw, scores=[0.1, 2.0, 0.3, 0.1])
        >>> heaviest, lightest = bandit.weights[draw.indices[[1, 0]]]
        >>> bool(lightest < 1.0 < heaviest)
        True
    """

    def __init__(
        self,
        num_samples: int,
        batch_size: int,
        *,
        min_batch_size: int | None = None,
        size_multiple: int = 1,
        exploration: float = 0.4,
        feedback: Feedback | str = "scale-free",
        gate: Gate | None = GATE,
        generator: torch.Generator | None = None,
    ) -> None:
        self.exploration = _checks.real("exploration", exploration, low=0.0, high=1.0)
        if gate is not None and not isinstance(gate, Gate):
            raise _checks.wrong_type("gate", "be a Gate or None", gate)
        self.gate = gate
        sizes = {"min_batch_size": min_batch_size, "size_multiple": size_multiple}
        super().__init__(num_samples, batch_size, **sizes, feedback=feedback, generator=generator)
        self.min_prob = self.batch_size * self.exploration / self.num_samples
        self.moment = SecondMoment(record_memory=1.0 - 1.0 / max(self.draws_per_epoch, 50.0))

    @property
    def draws_by_weight(self) -> bool:
        """Whether the next batch is drawn by weight, rather than from a reshuffled epoch."""
        if self.batch_size == self.num_samples:
            return False
        return self.gate is None or self.gate.is_open(self.moment, (self._drawn + 1) / self.draws_per_epoch)

    def draw(self) -> Draw:
        """Choose the next distinct samples. O(K log n); O(n) once an epoch, when the order is reshuffled."""
        self._reshuffle_if_done()
        if self.draws_by_weight:
            draw = self._draw_by_weight(self._sizes.next(self.moment))
        else:
            part = slice(self._drawn * self.batch_size, (self._drawn + 1) * self.batch_size)
            draw = uniform_draw(self._in_order(part), self.num_samples, self._origin)
        self._drawn += 1
        return draw.frozen()

    def update(self, draw: Draw, scores: Any) -> None:
        """Change the weights of the samples in `draw` by their scores. O(k log n).

        Arguments and errors are those of `Selection.update`. A score that the feedback refuses is an error too.
        """
        values = self.check(draw, scores)
        positions = self._positions(draw)
        probs, least = draw.probs, SMALLEST
        if self.batch_size < self.num_samples:
            probs, slope = self._probs_by_weight(positions, self.batch_size)
            if slope > 0.0:
                least = max(self.feedback.min_share * self.min_prob / slope, SMALLEST)
        draw_probs = self._probs_in_full_batch(draw)
        visit = Visit(values, probs, draw_probs, self.min_prob)
        factors, state = self.feedback.factors(visit, self._feedback_state)
        multiply(self._tree, positions, checked_factors(factors, len(draw)), least)
        self._feedback_state = state
        self.moment.note(values, draw_probs, probs)

    def inclusion_probs(self) -> np.ndarray:
        """Return float64[n], the probability of every sample to be in the next batch; it sums to its size. O(n).

        After the last draw of an epoch it is that of one more batch in the same epoch: the order of the next epoch is
        not drawn yet.
        """
        if not self.draws_by_weight:
            return np.full(self.num_samples, self.batch_size / self.num_samples)
        return self._all_probs_by_weight(self._sizes.peek(self.moment))

    @property
    def _min_positive(self) -> int:
        return self.batch_size if self.exploration == 0.0 else 1

    def settings(self) -> dict[str, Any]:
        rules = {"feedback": repr(self.feedback), "gate": repr(self.gate)}
        sizes = {"size_multiple": self.size_multiple} if self.size_multiple > 1 else {}
        return {**super().settings(), **sizes, "exploration": self.exploration, **rules}
