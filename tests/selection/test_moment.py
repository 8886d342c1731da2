"""The one estimate of how noisy batches are beside uniform ones."""

from functools import partial

import numpy as np
import pytest
from pytest import approx

from adamcb.selection import CombinatorialBandit, ReplacementBandit, SecondMoment
from tests.reference.moment import SlowMoment
from tests.reference.selection import inclusion_probs

N, K = 12, 4
WEIGHTS = np.random.default_rng(0).gamma(1.0, size=N)
NORMS = np.random.default_rng(1).gamma(1.0, size=N)


def test_the_ratio_is_that_of_the_second_moments():
    """Each sample noted once, as a reshuffled epoch does: the sums are those over all n."""
    probs = inclusion_probs(WEIGHTS, K, 0.4)[0]
    moment = SecondMoment(memory=0.0)
    moment.note(NORMS, np.ones(N), probs)
    assert moment.ratio == approx(np.sum(NORMS**2 / probs) / np.sum(NORMS**2 * N / K))


def test_equal_probabilities_give_a_ratio_of_one_whatever_was_drawn():
    moment = SecondMoment()
    rng = np.random.default_rng(0)
    for _ in range(10):
        moment.note(rng.random(K), rng.uniform(0.1, 1.0, size=K), np.full(K, 0.3))
        assert moment.ratio == approx(1.0)


def test_the_four_sums_are_estimated_without_bias_whatever_drew_the_batch():
    """Averaged over all single draws, they are the sums over all samples."""
    rng = np.random.default_rng(0)
    norms, probs, drawn = rng.gamma(1.0, size=9), rng.dirichlet(np.ones(9)), rng.dirichlet(np.full(9, 3.0))
    single = []
    for i in range(9):
        moment = SecondMoment(memory=0.0)  # this batch alone
        moment.note(norms[[i]], drawn[[i]], probs[[i]])
        single.append([moment.state_dict()[name] for name in ("chosen", "mass", "uniform", "count")])
    assert drawn @ np.array(single) == approx([np.sum(norms**2 / probs), 1.0, np.sum(norms**2), 9.0])


def test_the_ratio_of_batches_as_they_were_drawn_is_a_plain_average():
    moment, ours, uniform = SecondMoment(), [], []
    rng = np.random.default_rng(0)
    for size in (4, 4, 3, 2, 4):
        norms, probs = rng.random(size), rng.uniform(0.1, 1.0, size=size)
        moment.note(norms, probs)
        ours.append(np.sum((norms / probs) ** 2))
        uniform.append(np.sum(norms**2 / probs) * N / K)
    shares = 0.98 ** np.arange(5)[::-1]
    assert moment.ratio_to(N, K) == approx(shares @ ours / (shares @ uniform))


@pytest.mark.statistical
@pytest.mark.parametrize("kind", [partial(CombinatorialBandit, gate=None), ReplacementBandit])
def test_both_ratios_agree_with_all_n_norms(kind, generator):
    selection = kind(N, K, generator=generator)
    selection.weights = WEIGHTS
    moment, rounds = SecondMoment(memory=1 - 1e-4), 20_000
    chosen, uniform = np.empty(rounds), np.empty(rounds)
    for i in range(rounds):
        draw = selection.draw()
        moment.note(NORMS[draw.indices], draw.probs)
        norms = NORMS[draw.indices]
        chosen[i], uniform[i] = np.sum((norms / draw.probs) ** 2), np.sum(norms**2 / draw.probs) * N / K
    true = np.sum(NORMS**2 / selection.inclusion_probs()) / np.sum(NORMS**2 * N / K)
    # The error of a ratio of means, and half as many batches because the last count more than the first.
    error = np.std(chosen - true * uniform) / uniform.mean() / np.sqrt(rounds / 2)
    assert abs(moment.ratio_to(N, K) - true) <= 5 * error
    assert moment.ratio == approx(true, abs=0.02)


@pytest.mark.parametrize("record_memory", [None, 0.97])
def test_it_is_its_slow_twin(record_memory):
    rng = np.random.default_rng(0)
    fast, slow = SecondMoment(0.9, record_memory), SlowMoment(0.9, record_memory or 0.9)
    for number in range(120):
        size = int(rng.integers(1, 6))
        scores, drawn, probs = rng.gamma(0.3, size=size), *rng.uniform(0.05, 1.0, size=(2, size))
        scores[0] *= 50.0 if number % 40 == 20 else 1.0  # now and then one that is rare
        fast.note(scores, drawn, probs)
        slow.note(scores, drawn, probs)
        assert [fast.ratio, fast.error, fast.excess] == approx([slow.ratio(), slow.error(), slow.excess()], rel=1e-9)
    assert fast.excess > 1.5


def test_batches_as_noisy_as_expected_have_no_excess():
    moment = SecondMoment()
    assert moment.excess == 1.0
    for scores in ([1.0, 3.0], [3.0, 1.0], [0.0, 0.0], [0.5, 1.5]):
        moment.note(scores, draw_probs=[0.5, 0.5])
    assert moment.excess == approx(1.0)


def test_nothing_known_is_nan_and_below_nothing():
    moment = SecondMoment()
    assert np.isnan(moment.ratio)
    assert np.isnan(moment.ratio_to(N, K))
    assert not moment.is_below(1e9)
    moment.note(np.zeros(3), np.full(3, 0.5))  # gradients that have vanished tell nothing
    assert np.isnan(moment.ratio)


def test_below_means_below():
    moment = SecondMoment()
    moment.note([1.0, 3.0], draw_probs=[0.5, 0.5], probs=[0.25, 0.75])
    assert moment.ratio == approx(0.8)
    assert moment.is_below(0.8 + 1e-9)
    assert not moment.is_below(0.8 - 1e-9)


def test_a_state_continues_and_a_broken_one_changes_nothing():
    moment, twin = SecondMoment(), SecondMoment()
    moment.note([1.0, 3.0], [0.5, 0.5], [0.25, 0.75])
    twin.load_state_dict(moment.state_dict())
    for one in (moment, twin):
        one.note([2.0], [0.5], [0.4])
    assert moment.state_dict() == twin.state_dict()
    for broken in (None, {}, {**moment.state_dict(), "mass": -1.0}, {**moment.state_dict(), "count": "many"}):
        with pytest.raises((TypeError, ValueError), match=r"`state\['\w+'\]` must be a"):
            twin.load_state_dict(broken)  # pyright: ignore[reportArgumentType]
    assert moment.state_dict() == twin.state_dict()
    with pytest.raises(ValueError, match=r"`memory` must be a finite number in \[0, 1\), got memory=1.0"):
        SecondMoment(memory=1.0)


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("bad", [np.nan, np.inf, -1.0])
def test_numbers_out_of_their_range_are_refused_and_nothing_is_changed(place, bad):
    """An array of float64 is not looked at before the sums are made; one NaN would stay in them for good."""
    moment = SecondMoment()
    moment.note(np.ones(2), np.full(2, 0.5))
    before = moment.state_dict()
    given = [np.ones(2), np.full(2, 0.5), np.full(2, 0.5)]
    given[place][1] = bad
    name = ("scores", "draw_probs", "probs")[place]
    with pytest.raises(ValueError, match=rf"`{name}` must hold finite numbers at or above 0, got {name}\[1\]={bad}"):
        moment.note(*given)
    assert moment.state_dict() == before
