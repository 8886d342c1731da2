"""Feedback and gate are values: rules that a user writes, aliases, and what bandits do not share."""

import dataclasses
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from pytest import approx

from adamcb.selection import (
    CombinatorialBandit,
    Feedback,
    Gate,
    ListingFeedback,
    ProofFeedback,
    ScaleFree,
    SecondMoment,
    Visit,
)

NORMS = np.where(np.arange(60) < 6, 10.0, 0.1)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def train(bandit: CombinatorialBandit, steps: int) -> list[np.ndarray]:
    """Feed back NORMS; return what was drawn with."""
    probs = []
    for _ in range(steps):
        draw = bandit.draw()
        bandit.update(draw, NORMS[draw.indices])
        probs.append(draw.probs)
    return probs


@dataclass(frozen=True)
class Logarithmic(Feedback):
    """Δ log w = rate·log(s/G), as a user would write it."""

    rate: float = 0.3

    def start(self):
        return {"log_mean": 0.0, "batches": 0.0}

    def check(self, scores):
        super().check(scores)
        if not scores.all():
            raise ValueError("`scores` must be above 0: their logarithms are averaged.")

    def factors(self, visit: Visit, state):
        logs = 2.0 * np.log(visit.scores / visit.probs)
        mean = 0.9 * state["log_mean"] + 0.1 * logs.mean()
        trust = 1.0 - 0.9 ** (state["batches"] + 1.0)
        factors = np.exp(np.clip(self.rate * (logs - mean / trust), -3.0, 3.0))
        return factors, {"log_mean": mean, "batches": state["batches"] + 1.0}


class Stubborn(Feedback):
    """Always the same answer, good or bad; not a dataclass."""

    def __init__(self, answer):
        self.answer = answer

    def factors(self, visit, state):
        return self.answer, state


class Unbounded(Stubborn):
    """Weights may fall without end."""

    min_share = 0.0


def test_a_rule_of_one_s_own_learns_and_is_saved():
    bandit = CombinatorialBandit(60, 6, feedback=Logarithmic(), gate=None, generator=seeded())
    train(bandit, 200)
    assert bandit.inclusion_probs()[:6].mean() > 3 * bandit.inclusion_probs()[6:].mean()
    assert repr(bandit.feedback) == "Logarithmic(rate=0.3)"
    saved = bandit.state_dict()
    assert saved["feedback"]["batches"] == 200.0
    twin = CombinatorialBandit(60, 6, feedback=Logarithmic(), gate=None, generator=seeded(1))
    twin.load_state_dict(saved)
    for ours, theirs in zip(train(bandit, 20), train(twin, 20), strict=True):
        assert (ours == theirs).all()
    for other in (Logarithmic(rate=0.5), ScaleFree()):
        with pytest.raises(
            ValueError, match=r"saved with feedback='\w+\(rate=0.\d.*got feedback='Logarithmic\(rate=0.3"
        ):
            CombinatorialBandit(60, 6, feedback=other, gate=None).load_state_dict(saved)
    broken = {**saved, "feedback": {"log_mean": 0.0}}
    with pytest.raises(TypeError, match=r"`state\['feedback'\]\['batches'\]` must be a number"):
        twin.load_state_dict(broken)


def test_a_rule_of_one_s_own_may_refuse_scores():
    bandit = CombinatorialBandit(60, 6, feedback=Logarithmic(), generator=seeded())
    draw, before = bandit.draw(), bandit.weights
    with pytest.raises(ValueError, match="their logarithms are averaged"):
        bandit.update(draw, [1.0, 1.0, 0.0, 1.0, 1.0, 1.0])
    assert (bandit.weights == before).all()


@pytest.mark.parametrize(
    "answer", [[1.0] * 5, [1.0] * 5 + [np.nan], [1.0] * 5 + [np.inf], [-1.0] + [1.0] * 5, 1.0, [[1.0] * 6]]
)
def test_factors_that_are_none_are_refused_and_change_nothing(answer):
    bandit = CombinatorialBandit(60, 6, feedback=Stubborn(answer), generator=seeded())
    draw = bandit.draw()
    with pytest.raises(ValueError, match="`feedback` must return 6 finite numbers at or above 0 as factors"):
        bandit.update(draw, np.ones(6))
    assert (bandit.weights == 1.0).all()
    assert np.isnan(bandit.moment.ratio)


def test_no_weight_falls_below_its_share_unless_the_rule_says_so():
    weights = {}
    for name, rule in (("kept", Stubborn), ("free", Unbounded)):
        bandit = CombinatorialBandit(60, 6, feedback=rule(np.full(6, 0.01)), gate=None, generator=seeded())
        draw = bandit.draw()
        for _ in range(20):
            bandit.update(draw, np.ones(6))
        weights[name] = bandit.weights.min()
    assert weights["free"] == approx(1e-40)
    # p − p_min = K(1 − γ)·w/Σw is a thousandth of p_min = Kγ/n, and 54 weights are 1.
    assert weights["kept"] == approx(1e-3 * (0.4 / 60) / (0.6 / 54), rel=0.01)


def test_a_rule_sees_both_probabilities_and_the_smallest_possible():
    seen = []

    class Watching(Feedback):
        def factors(self, visit, state):
            seen.append(visit)
            return np.ones(len(visit.scores)), state

    bandit = CombinatorialBandit(60, 6, exploration=0.5, feedback=Watching(), generator=seeded())
    bandit.weights = np.where(np.arange(60) < 2, 1000.0, 1.0)
    draw = bandit.draw()  # the gate is closed
    bandit.update(draw, np.arange(6.0))
    (visit,) = seen
    assert visit.scores.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert visit.draw_probs == approx(np.full(6, 0.1))
    free = CombinatorialBandit(60, 6, exploration=0.5, gate=None)
    free.weights = bandit.weights
    assert visit.probs == approx(free.inclusion_probs()[draw.indices])
    assert (visit.min_prob, visit.max_prob) == (approx(0.05), 1.0)


def test_values_are_shared_and_what_is_learned_is_not():
    """Two bandits with one feedback object and one gate object go their own ways."""
    feedback, gate = ScaleFree(rate=0.5), Gate(0.2)
    shared = [CombinatorialBandit(60, 6, feedback=feedback, gate=gate, generator=seeded(seed)) for seed in (0, 1)]
    train(shared[0], 100)
    assert np.isnan(shared[1].moment.ratio)
    alone = CombinatorialBandit(60, 6, feedback=ScaleFree(rate=0.5), gate=Gate(0.2), generator=seeded(1))
    for ours, theirs in zip(train(shared[1], 60), train(alone, 60), strict=True):
        assert (ours == theirs).all()


@pytest.mark.parametrize("value", [ScaleFree(), ProofFeedback(), ListingFeedback(1.0), Gate()])
def test_values_cannot_be_changed_and_compare_by_what_they_are(value):
    (field, *_) = dataclasses.fields(value)
    with pytest.raises(AttributeError):
        setattr(value, field.name, 0.7)
    assert value == dataclasses.replace(value)
    assert value != dataclasses.replace(value, **{field.name: 0.7})
    assert ProofFeedback() != ListingFeedback()


@pytest.mark.parametrize(
    ("alias", "value"), [("scale-free", ScaleFree()), ("proof", ProofFeedback()), ("listing", ListingFeedback())]
)
def test_an_alias_is_a_value(alias, value):
    assert CombinatorialBandit(10, 2, feedback=alias).feedback == value


@pytest.mark.parametrize(
    ("options", "gate"),
    [
        ({}, Gate(0.1)),
        ({"feedback": "scale-free"}, Gate(0.1)),
        ({"feedback": Logarithmic()}, Gate(0.1)),
        ({"feedback": "proof"}, Gate(0.1)),
        ({"feedback": ListingFeedback(3.0), "gate": None}, None),
        ({"gate": None}, None),
        ({"gate": Gate(0.3)}, Gate(0.3)),
        ({"feedback": "proof", "gate": Gate(0.3)}, Gate(0.3)),
    ],
)
def test_which_gate_a_bandit_has(options, gate):
    assert CombinatorialBandit(10, 2, **options).gate == gate


def test_the_paper_s_rule_may_stand_behind_a_gate():
    bandit = CombinatorialBandit(60, 6, feedback="proof", gate=Gate(0.1), generator=seeded())
    probs = train(bandit, 400)
    assert np.ptp(probs[0]) == 0.0
    assert any(np.ptp(one) > 0.0 for one in probs)


class FirstHalf(Gate):
    """A gate as a user would write it: the first half of every epoch is drawn by weight, from the start."""

    def is_open(self, moment: SecondMoment, progress: float) -> bool:
        return progress <= 0.5


def test_a_gate_of_one_s_own():
    bandit = CombinatorialBandit(60, 6, gate=FirstHalf(), generator=seeded())
    train(bandit, 20)
    assert [np.ptp(probs) > 0.0 for probs in train(bandit, 10)] == [True] * 5 + [False] * 5
    assert repr(bandit.gate) == "FirstHalf(min_gain=0.1)"


def test_what_is_no_rule_is_refused():
    with pytest.raises(TypeError, match="`feedback` must be a Feedback or an alias, got feedback of type type"):
        CombinatorialBandit(10, 2, feedback=ScaleFree)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="`gate` must be a Gate or None, got gate=0.1"):
        CombinatorialBandit(10, 2, gate=0.1)  # pyright: ignore[reportArgumentType]
    bandit = CombinatorialBandit(10, 2, feedback=Feedback())
    with pytest.raises(NotImplementedError, match="Feedback must implement `factors`"):
        bandit.update(bandit.draw(), [1.0, 1.0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rate": 0.0}, r"`rate` must be a finite number in \(0, inf\), got rate=0.0"),
        ({"bound": -1.0}, r"`bound` must be a finite number in \(0, inf\)"),
        ({"memory": 1.0}, r"`memory` must be a finite number in \[0, 1\)"),
        ({"rate": float("nan")}, r"got rate=nan"),
    ],
)
def test_bad_arguments_of_scale_free_feedback_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        ScaleFree(**options)


def test_rate_bound_and_memory_act_where_they_should():
    """n = 4, K = 2, equal weights: p = 1/2. Scores 1 and 1/2 give s = 4 and 1; G is their mean, 5/2, at first."""
    for rule, expected in [
        (ScaleFree(rate=0.1), [0.1 * 0.6, -0.1 * 0.6]),
        (ScaleFree(rate=1.0, bound=0.25), [0.25, -0.25]),
        (ScaleFree(rate=10.0, bound=3.0), [3.0, -3.0]),
    ]:
        bandit = CombinatorialBandit(4, 2, feedback=rule, generator=seeded())
        draw = bandit.draw()
        bandit.update(draw, [1.0, 0.5])
        assert np.log(bandit.weights[draw.indices]) == approx(expected)
    visit = Visit(np.array([1.0]), np.array([0.5]), np.array([0.5]), 0.1)
    state = {"mean": 8.0, "trust": 1.0}
    for memory, mean in ((0.9, 0.9 * 8.0 + 0.1 * 4.0), (0.0, 4.0)):
        factors, after = ScaleFree(memory=memory).factors(visit, state)
        assert after["mean"] == approx(mean)
        assert np.log(factors) == approx([0.3 * (4.0 / mean - 1.0)])
    assert state == {"mean": 8.0, "trust": 1.0}
