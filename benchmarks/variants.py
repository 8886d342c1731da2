"""Variants of the default, as methods of the lab: what its choice was measured against.

All but those of the last group were measured when the gate still opened for whole epochs: they are `at_once` with one
thing changed.

adamcb bench time-to-loss --task digits-mlp --method adamcb --method benchmarks/variants.py:with_adam
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from adamcb.lab.methods import METHODS, Method
from adamcb.selection import CombinatorialBandit, Draw
from adamcb.selection._feedback import ScaleFreeFeedback
from adamcb.selection._gate import batch_sums

DEFAULT = METHODS["adamcb"]


class Clipped(ScaleFreeFeedback):
    """Scale-free feedback with another bound on one change of log w than 1."""

    bound = 1.0

    def factors(self, probs: np.ndarray, norms: np.ndarray, drawn_with: np.ndarray) -> np.ndarray:
        """Return what the weights are multiplied by, for every sample of the draw."""
        factors = super().factors(probs, norms, drawn_with)
        if self.mean == 0.0:
            return factors
        changes = self.rate * self.change((norms / probs) ** 2 * self.trust / self.mean)
        return np.exp(np.clip(changes, -self.bound, np.where(probs < 1.0, self.bound, 0.0)))

    def change(self, scores: np.ndarray) -> np.ndarray:
        """Return which way log w goes, and how far, for scores s/G."""
        return scores - 1.0


class Logarithmic(Clipped):
    """Δ log w = η·log(s/G): weights are geometric moving averages of the norms, and fall as fast as they rise."""

    bound = 3.0

    def change(self, scores: np.ndarray) -> np.ndarray:
        """Return the logarithms."""
        return np.log(np.maximum(scores, 1e-30))


class Linear(ScaleFreeFeedback):
    """Scale-free feedback of s = ‖g‖/p instead of its square, centred on the samples that weights decide about.

    In the mean of s a sample counts with p − p_min, and a capped one not at all. In a plain mean the many at p_min
    would keep s/G above 1 for all others, whose weights would rise for ever, fastest for those drawn most.
    """

    min_prob = 0.0

    def factors(self, probs: np.ndarray, norms: np.ndarray, drawn_with: np.ndarray) -> np.ndarray:
        """Return what the weights are multiplied by, for every sample of the draw."""
        self.gate.note(batch_sums(probs, norms, drawn_with))
        scores = norms / probs
        shares = np.where(probs < 1.0, (probs - self.min_prob) / drawn_with, 0.0)
        self.mean = self.memory * self.mean + (1.0 - self.memory) * float(shares @ scores)
        self.trust = self.memory * self.trust + (1.0 - self.memory) * float(shares.sum())
        if self.mean == 0.0:
            return np.ones(len(probs))
        changes = self.rate * (scores * self.trust / self.mean - 1.0)
        return np.exp(np.clip(changes, -1.0, np.where(probs < 1.0, 1.0, 0.0)))


class AtOnce(CombinatorialBandit):
    """All batches are drawn by the weights as soon as it pays, instead of the share of an epoch that they save."""

    @property
    def _draws_by_weight(self) -> bool:
        return self.batch_size < self.num_samples and self._feedback.pays(1.0)


class FollowingExploration(AtOnce):
    """Exploration that goes with what there is to gain: γ is the ratio of second moments, between 0.1 and 0.4.

    Not up to 1: with equal probabilities the ratio is 1, and stays.
    """

    def draw(self) -> Draw:
        """Choose K distinct samples."""
        assert isinstance(self._feedback, ScaleFreeFeedback)
        chosen, mass, uniform, count = self._feedback.gate._averages
        ratio = chosen * mass / (uniform * count) if uniform * count > 0.0 else 1.0
        self.min_prob = self.batch_size * min(max(ratio, 0.1), 0.4) / self.num_samples
        return super().draw()


class CountingBandit(AtOnce):
    """A bandit that knows how many batches it has drawn."""

    _learned_keys = (*AtOnce._learned_keys, "draws")

    draws = 0

    def draw(self) -> Draw:
        """Choose K distinct samples."""
        draw = super().draw()
        self.draws += 1
        return draw

    def _learned(self) -> dict[str, Any]:
        return {**super()._learned(), "draws": self.draws}

    def _restore(self, state: dict[str, Any]) -> None:
        super()._restore(state)
        self.draws = state["draws"]


class Covering(CountingBandit):
    """Every second epoch is a reshuffled one, so that no sample goes unseen for longer than two."""

    @property
    def _draws_by_weight(self) -> bool:
        is_second = self.draws // (self.num_samples // self.batch_size) % 2 == 1
        return is_second and super()._draws_by_weight


class Fading(CountingBandit):
    """Exploration that rises from its value to 1 over the second half of training: at the end, draws are uniform."""

    def __init__(self, *args: Any, total_steps: int, **options: Any) -> None:
        self.total_steps = total_steps
        super().__init__(*args, **options)

    def draw(self) -> Draw:
        """Choose K distinct samples."""
        faded = max(2.0 * self.draws / self.total_steps - 1.0, 0.0)
        exploration = min(self.exploration + (1.0 - self.exploration) * faded, 1.0)
        self.min_prob = self.batch_size * exploration / self.num_samples
        return super().draw()


class FixedShare(AtOnce):
    """The first half of every epoch is reshuffled, the second drawn by the weights, once that pays."""

    share = 0.5

    @property
    def _draws_by_weight(self) -> bool:
        draws = self.num_samples // self.batch_size
        return self._drawn % draws >= int(self.share * draws) and super()._draws_by_weight


class ThirdShare(FixedShare):
    """The first third of every epoch is reshuffled."""

    share = 1 / 3


class SquaredShare(FixedShare):
    """The reshuffled share of an epoch is the square of the ratio of second moments, less than the default's."""

    @property
    def _draws_by_weight(self) -> bool:
        assert isinstance(self._feedback, ScaleFreeFeedback)
        chosen, mass, uniform, count = self._feedback.gate._averages
        self.share = (chosen * mass / (uniform * count)) ** 2 if uniform * count > 0.0 else 1.0
        return super()._draws_by_weight


class Alternating(AtOnce):
    """Reshuffled batches and batches drawn by the weights take turns, once that pays."""

    @property
    def _draws_by_weight(self) -> bool:
        return self._drawn % 2 == 1 and super()._draws_by_weight


class Unlearned(CombinatorialBandit):
    """The default, but that nothing is learned from reshuffled batches once drawing by the weights pays."""

    def update(self, draw: Draw, norms: Any) -> None:
        """Learn from the norms of a batch that was drawn by the weights."""
        if np.ptp(draw.probs) > 0.0 or not self._feedback.pays(1.0):
            super().update(draw, norms)


def _bandit(*args: Any, kind: type = AtOnce, memory: float = 0.9, bound: float = 1.0, **options: Any):
    """Return a scale-free bandit with the moving average, or the bound, of its feedback changed."""
    bandit = kind(*args, feedback="scale-free", **options)
    feedback = bandit._feedback
    if bound != 1.0:
        feedback = bandit._feedback = Clipped(feedback.rate, None, feedback.gate)
        feedback.bound = bound
    feedback.memory = memory
    return bandit


def _linear_bandit(*args: Any, **options: Any) -> CombinatorialBandit:
    bandit = AtOnce(*args, feedback="scale-free", **options)
    assert isinstance(bandit._feedback, ScaleFreeFeedback)
    bandit._feedback = Linear(1.0, None, bandit._feedback.gate)
    bandit._feedback.min_prob = bandit.min_prob
    return bandit


def _hasty_bandit(*args: Any, **options: Any) -> CombinatorialBandit:
    """Return a bandit made for short trainings: all that was found to save steps on the two small tasks."""
    bandit = SquaredShare(*args, feedback="scale-free", **options)
    assert isinstance(bandit._feedback, ScaleFreeFeedback)
    bandit._feedback = Logarithmic(0.3, None, bandit._feedback.gate)
    bandit._feedback.gate.memory = 0.9
    return bandit


def _variant(name: str, label: str, **changes: Any) -> Method:
    return replace(DEFAULT, name=f"sf-{name}", label=label, **{"selection": _bandit, **changes})


def _selection(name: str, label: str, *, needs: tuple[str, ...] = (), **settings: Any) -> Method:
    return _variant(name, label, selection=partial(_bandit, **settings), needs=needs)


at_once = _variant("at-once", "all batches chosen once it pays")
# Who steps, and which norms.
with_adam = _variant("adam", "stepping with Adam", optimizer=METHODS["adam"].optimizer)
with_adamx = _variant("adamx", "stepping with AdamX, uncorrected", optimizer=METHODS["adamx"].optimizer)
reshuffled = replace(METHODS["adam"], name="corrected-adamx", label="AdamX, corrected", optimizer=DEFAULT.optimizer)
last_layer = _variant("last-layer", "norms of the last layer", scores="last-layer")
# How the weights move.
rate_01 = _selection("rate-01", "rate 0.1", rate=0.1)
rate_10 = _selection("rate-10", "rate 1", rate=1.0)
linear = _variant("linear", "linear, rate 1", selection=_linear_bandit)
bound_03 = _selection("bound-03", "changes bounded by 0.3", bound=0.3)
bound_3 = _selection("bound-3", "changes bounded by 3", bound=3.0)
memory_05 = _selection("memory-05", "G over about 2 batches", memory=0.5)
memory_099 = _selection("memory-099", "G over about 100 batches", memory=0.99)
# How much is explored, and when the weights are drawn by.
explore_01 = _variant("explore-01", "exploration 0.1", exploration=0.1)
explore_02 = _variant("explore-02", "exploration 0.2", exploration=0.2)
explore_07 = _variant("explore-07", "exploration 0.7", exploration=0.7)
following = _selection("following", "exploration that follows the gain", kind=FollowingExploration)
no_gate = _selection("no-gate", "no gate", min_gain=0.0)
middle_gate = _selection("middle-gate", "gate at 0.2", min_gain=0.2)
late_gate = _selection("late-gate", "gate at 0.3", min_gain=0.3)
# How training ends.
fading = _selection("fading", "fading to uniform draws", needs=("total_steps",), kind=Fading)
# How the data are covered, and which share of an epoch is chosen.
covering = _selection("covering", "every second epoch reshuffled", kind=Covering)
half = _selection("half", "the first half of every epoch reshuffled", kind=FixedShare)
third = _selection("third", "the first third of every epoch reshuffled", kind=ThirdShare)
squared = _selection("squared", "chosen share 1 − ratio²", kind=SquaredShare)
alternating = _selection("alternating", "every second batch reshuffled", kind=Alternating)
unlearned = _selection("unlearned", "reshuffled batches not learned from", kind=Unlearned)
# All that saves steps where training is short: logarithmic feedback, and a gate that opens sooner and further.
hasty = _variant(
    "hasty", "logarithmic, chosen share 1 − ratio², exploration 0.2", selection=_hasty_bandit, exploration=0.2
)
