"""Measuring stops where choosing does not pay, and starts again when that changes."""

import numpy as np
import pytest
import torch
from pytest import approx

from adamcb.selection import QueueBandit
from tests.reference.queue import SlowQueue, splitmix

N, K = 60, 4
PER_EPOCH = N // K
HARD = np.where(np.arange(N) % 5 == 0, 4.0, 0.5)  # scores that last


def bandit_of(seed: int = 0) -> QueueBandit:
    return QueueBandit(N, K, generator=torch.Generator().manual_seed(seed))


def equal(indices, rng) -> np.ndarray:
    return np.full(len(indices), 2.0) + 0.01 * rng.random(len(indices))


def lasting(indices, rng) -> np.ndarray:
    return HARD[indices]


def fleeting(indices, rng) -> np.ndarray:
    return rng.gamma(0.5, size=len(indices))


def run(bandit: QueueBandit, scores_of, draws: int, rng: np.random.Generator) -> list[bool]:
    """Draw, and report scores where the bandit listens; return where it did."""
    heard = []
    for _ in range(draws):
        draw = bandit.draw()
        heard.append(bandit.listens)
        if heard[-1]:
            bandit.update(draw, scores_of(draw.indices, rng))
    return heard


@pytest.mark.parametrize("seed", range(3))
def test_it_is_its_slow_twin_through_all_changes(seed):
    bandit, rng = bandit_of(seed), np.random.default_rng(seed)
    twin = SlowQueue(N, K, bandit.exploration, splitmix(int(bandit._axis.stream[0])))
    awake = []
    for scores_of in (equal, lasting, fleeting, equal, lasting):
        for _ in range(160):
            draw, (indices, probs) = bandit.draw(), twin.draw(K)
            assert draw.indices.tolist() == indices
            assert bandit.listens == twin.attention.listens()
            if bandit.listens:
                scores = scores_of(draw.indices, rng)
                bandit.update(draw, scores)
                twin.update(indices, probs, scores)
            assert bandit.weights == approx(np.array(twin.weights), rel=1e-9)
            awake.append(bool(twin.attention.awake))
    assert np.abs(np.diff(np.array(awake, dtype=int))).sum() >= 3  # it rested, woke, and rested again


def test_equal_scores_are_measured_for_50_batches_and_then_once_in_16():
    bandit = bandit_of()
    heard = run(bandit, equal, 50 + 160, np.random.default_rng(0))
    assert all(heard[:50])
    assert sum(heard[50:]) == 10


def test_scores_that_last_are_always_measured():
    assert all(run(bandit_of(), lasting, 40 * PER_EPOCH, np.random.default_rng(0)))


def test_one_rare_sample_does_not_end_measuring(generator):
    n, rng = 20 * N, np.random.default_rng(0)
    bandit = QueueBandit(n, K, generator=generator)

    def hard(indices, rng) -> np.ndarray:
        return HARD[indices % N]

    run(bandit, hard, 5 * n // K, rng)
    assert bandit.moment.ratio < 0.8
    run(bandit, lambda indices, rng: np.where(hard(indices, rng) < 1.0, 50.0, 4.0), 5, rng)  # easy ones surprise
    assert bandit.moment.ratio > 0.95
    assert all(run(bandit, hard, 2 * n // K, rng))


def test_where_scores_do_not_last_rates_become_equal_again():
    bandit, rng = bandit_of(), np.random.default_rng(0)
    heard = run(bandit, fleeting, 40 * PER_EPOCH, rng)
    assert all(heard[: 3 * PER_EPOCH])
    assert sum(heard[10 * PER_EPOCH :]) < 0.2 * len(heard[10 * PER_EPOCH :])
    run(bandit, equal, 6 * PER_EPOCH, rng)  # the units that had begun come to their end
    assert bandit.inclusion_probs() == approx(K / N)


def test_scores_that_begin_to_differ_are_noticed():
    bandit, rng = bandit_of(), np.random.default_rng(0)
    run(bandit, equal, 100, rng)
    heard = run(bandit, lasting, 6 * 16 + 10 * PER_EPOCH, rng)
    assert all(heard[6 * 16 :])
    hard = HARD > 1.0
    assert bandit.inclusion_probs()[hard].mean() > 2.0 * bandit.inclusion_probs()[~hard].mean()


def test_a_resumed_bandit_rests_and_wakes_where_the_first_one_does():
    bandit, rng = bandit_of(), np.random.default_rng(0)
    run(bandit, equal, 77, rng)
    other = bandit_of(5)
    other.load_state_dict(bandit.state_dict())
    first = run(bandit, lasting, 200, np.random.default_rng(1))
    assert run(other, lasting, 200, np.random.default_rng(1)) == first
    assert not all(first)
    assert first[-1]


@pytest.mark.parametrize(("name", "value"), [("is_awake", 1), ("draws", -1), ("squares", float("nan"))])
def test_a_bad_state_is_refused_and_nothing_changes(name, value):
    bandit = bandit_of()
    run(bandit, lasting, 20, np.random.default_rng(0))
    state = bandit.state_dict()
    bad = {**state, "attention": {**state["attention"], name: value}}
    with pytest.raises((TypeError, ValueError), match=name):
        bandit.load_state_dict(bad)
    assert bandit.state_dict()["attention"] == state["attention"]
