"""Variants of the gated bandit, as methods of the lab: what its settings were measured against.

Each is one line that composes public values: a feedback rule, a gate, a bandit. Most were measured when the gate still
opened for whole epochs, so they are `at_once` with one thing changed. All of them are scored by exact norms.

adamcb bench time-to-loss --task digits-mlp --method adamcb --method benchmarks/variants.py:with_adam
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from adamcb.lab.methods import BUILDERS, METHODS, Method
from adamcb.selection import CombinatorialBandit, Draw, Feedback, Gate, ScaleFree, SecondMoment, Visit


@dataclass(frozen=True, repr=False)
class Logarithmic(ScaleFree):
    """Δ log w = η·log(s/G): weights are geometric moving averages of the norms, and fall as fast as they rise."""

    bound: float = 3.0

    def factors(self, visit: Visit, state: dict[str, float]) -> tuple[np.ndarray, dict[str, float]]:
        """Return what each weight is multiplied by, and G after this batch."""
        _, state = super().factors(visit, state)
        if state["mean"] == 0.0:
            return np.ones(len(visit.scores)), state
        shares = (visit.scores / visit.probs) ** 2 * state["trust"] / state["mean"]
        return _bounded(self.rate * np.log(np.maximum(shares, 1e-30)), self.bound, visit), state


@dataclass(frozen=True, repr=False)
class Linear(Feedback):
    """Scale-free feedback of s = ‖g‖/p instead of its square, centred on the samples that weights decide about.

    In the mean of s a sample counts with p − p_min, and a capped one not at all. In a plain mean the many samples at
    p_min would keep s/G above 1 for all others, whose weights would rise for ever, fastest for those drawn most.
    """

    rate: float = 1.0

    def start(self) -> dict[str, float]:
        """Return an average of nothing."""
        return {"mean": 0.0, "trust": 0.0}

    def factors(self, visit: Visit, state: dict[str, float]) -> tuple[np.ndarray, dict[str, float]]:
        """Return what each weight is multiplied by, and the averages that include this batch."""
        scores = visit.scores / visit.probs
        shares = np.where(visit.probs < visit.max_prob, (visit.probs - visit.min_prob) / visit.draw_probs, 0.0)
        mean = 0.9 * state["mean"] + (1.0 - 0.9) * float(shares @ scores)
        trust = 0.9 * state["trust"] + (1.0 - 0.9) * float(shares.sum())
        changes = self.rate * (scores * trust / mean - 1.0) if mean > 0.0 else np.zeros(len(scores))
        return _bounded(changes, 1.0, visit), {"mean": mean, "trust": trust}


def _bounded(changes: np.ndarray, bound: float, visit: Visit) -> np.ndarray:
    """Return the factors of changes of log w within ±`bound`; a capped sample's weight does not rise."""
    return np.exp(np.clip(changes, -bound, np.where(visit.probs < visit.max_prob, bound, 0.0)))


class AtOnce(Gate):
    """All batches are drawn by weight as soon as it pays, instead of the share of an epoch that they save."""

    def is_open(self, moment: SecondMoment, progress: float) -> bool:
        """Whether drawing by weight pays."""
        return super().is_open(moment, 1.0)


@dataclass(frozen=True)
class FixedShare(AtOnce):
    """The first `share` of every epoch is reshuffled, the rest is drawn by weight, once that pays."""

    share: float = 0.5

    def is_open(self, moment: SecondMoment, progress: float) -> bool:
        """Whether the reshuffled share is done, and drawing by weight pays."""
        return progress > self.share and super().is_open(moment, progress)


class SquaredShare(AtOnce):
    """The reshuffled share of an epoch is the square of the ratio of second moments, less than the default's."""

    def is_open(self, moment: SecondMoment, progress: float) -> bool:
        """Whether the reshuffled share is done, and drawing by weight pays."""
        return progress > moment.ratio**2 and super().is_open(moment, progress)


class FollowingExploration(CombinatorialBandit):
    """Exploration that goes with what there is to gain: γ is the ratio of second moments, between 0.1 and 0.4.

    Not up to 1: with equal probabilities the ratio is 1, and stays.
    """

    def draw(self) -> Draw:
        """Choose K distinct samples."""
        ratio = 1.0 if np.isnan(self.moment.ratio) else self.moment.ratio
        self.min_prob = self.batch_size * min(max(ratio, 0.1), 0.4) / self.num_samples
        return super().draw()


class CountingBandit(CombinatorialBandit):
    """A bandit that knows how many batches it has drawn."""

    draws = 0

    def draw(self) -> Draw:
        """Choose K distinct samples."""
        draw = super().draw()
        self.draws += 1
        return draw

    def learned(self) -> dict[str, Any]:
        return {**super().learned(), "draws": self.draws}

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        self.draws = state["draws"]


class Covering(CountingBandit):
    """Every second epoch is a reshuffled one, so that no sample goes unseen for longer than two."""

    @property
    def draws_by_weight(self) -> bool:
        """Whether the next batch is drawn by weight."""
        return self.draws // self.draws_per_epoch % 2 == 1 and super().draws_by_weight


class Alternating(CountingBandit):
    """Reshuffled batches and batches drawn by weight take turns, once that pays."""

    @property
    def draws_by_weight(self) -> bool:
        """Whether the next batch is drawn by weight."""
        return self.draws % self.draws_per_epoch % 2 == 1 and super().draws_by_weight


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


class Unlearned(CombinatorialBandit):
    """The gated bandit, but that nothing is learned from reshuffled batches once drawing by weight pays."""

    def update(self, draw: Draw, scores: Any) -> None:
        """Learn from the scores of a batch that was drawn by weight."""
        if np.ptp(draw.probs) > 0.0 or not Gate().is_open(self.moment, 1.0):
            super().update(draw, scores)


def _hasty_bandit(*args: Any, **options: Any) -> CombinatorialBandit:
    """Return a bandit made for short trainings: all that was found to save steps on the two small tasks."""
    bandit = CombinatorialBandit(*args, feedback=Logarithmic(), gate=SquaredShare(), **options)
    bandit.moment = SecondMoment(memory=0.9)
    return bandit


def _bandit(kind: type[CombinatorialBandit] = CombinatorialBandit, **settings: Any) -> Callable[..., Any]:
    return partial(kind, **{"gate": AtOnce(), **settings})


def _variant(name: str, label: str, selection: Callable[..., Any] | None = None, **changes: Any) -> Method:
    settings = {"optimizer": METHODS["adamx"].optimizer, "scores": "exact", "exploration": 0.4, **changes}
    return Method(f"sf-{name}", label, selection or _bandit(), **settings)


gated = _variant("gated", "the share chosen that pays", _bandit(gate=Gate()))
at_once = _variant("at-once", "all batches chosen once it pays")
# Who steps, and by which scores.
with_adam = _variant("adam", "stepping with Adam", optimizer=BUILDERS["adam"])
with_adamx = _variant("adamx", "stepping with AdamX, uncorrected", optimizer=METHODS["adamx-paper"].optimizer)
reshuffled = replace(METHODS["adamx"], name="corrected-adamx", label="AdamX, corrected")
last_layer = _variant("last-layer", "norms of the last layer", scores="last-layer")
# How the weights move.
rate_01 = _variant("rate-01", "rate 0.1", _bandit(feedback=ScaleFree(rate=0.1)))
rate_10 = _variant("rate-10", "rate 1", _bandit(feedback=ScaleFree(rate=1.0)))
linear = _variant("linear", "linear, rate 1", _bandit(feedback=Linear()))
bound_03 = _variant("bound-03", "changes bounded by 0.3", _bandit(feedback=ScaleFree(bound=0.3)))
bound_3 = _variant("bound-3", "changes bounded by 3", _bandit(feedback=ScaleFree(bound=3.0)))
memory_05 = _variant("memory-05", "G over about 2 batches", _bandit(feedback=ScaleFree(memory=0.5)))
memory_099 = _variant("memory-099", "G over about 100 batches", _bandit(feedback=ScaleFree(memory=0.99)))
# How much is explored, and when batches are drawn by weight.
explore_01 = _variant("explore-01", "exploration 0.1", exploration=0.1)
explore_02 = _variant("explore-02", "exploration 0.2", exploration=0.2)
explore_07 = _variant("explore-07", "exploration 0.7", exploration=0.7)
following = _variant("following", "exploration that follows the gain", _bandit(FollowingExploration))
no_gate = _variant("no-gate", "no gate", _bandit(gate=None))
middle_gate = _variant("middle-gate", "gate at 0.2", _bandit(gate=AtOnce(0.2)))
late_gate = _variant("late-gate", "gate at 0.3", _bandit(gate=AtOnce(0.3)))
# How training ends.
fading = _variant("fading", "fading to uniform draws", _bandit(Fading), needs=("total_steps",))
# How the data are covered, and which share of an epoch is chosen.
covering = _variant("covering", "every second epoch reshuffled", _bandit(Covering))
half = _variant("half", "the first half of every epoch reshuffled", _bandit(gate=FixedShare()))
third = _variant("third", "the first third of every epoch reshuffled", _bandit(gate=FixedShare(share=1 / 3)))
squared = _variant("squared", "chosen share 1 − ratio²", _bandit(gate=SquaredShare()))
alternating = _variant("alternating", "every second batch reshuffled", _bandit(Alternating))
unlearned = _variant("unlearned", "reshuffled batches not learned from", _bandit(Unlearned, gate=Gate()))
# All that saves steps where training is short: logarithmic feedback, and a gate that opens sooner and further.
hasty = _variant("hasty", "logarithmic, chosen share 1 − ratio², exploration 0.2", _hasty_bandit, exploration=0.2)
