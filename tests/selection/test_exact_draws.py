"""The fast draw has exactly the distribution of textbook DepRound in the same order: by enumeration, no sampling."""

import copy

import numpy as np
import pytest
from pytest import approx

from adamcb.selection import CombinatorialBandit, ReplacementBandit
from tests.problems import EXPLORATIONS, SMALL_WEIGHTS
from tests.reference.depround import ordered_draw, pair_outcomes, textbook_distribution
from tests.reference.selection import inclusion_probs
from tests.selection.enumeration import fast_distribution, replacement_distribution

CASES = [(n, k) for n in range(1, 8) for k in range(1, n)]


def test_a_pair_step_keeps_both_expectations():
    outcomes = pair_outcomes(0.3, 0.9)
    assert sum(c * p for c, (p, _) in outcomes) == approx(0.3)
    assert sum(c * q for c, (_, q) in outcomes) == approx(0.9)


@pytest.mark.parametrize("exploration", EXPLORATIONS)
@pytest.mark.parametrize("name", SMALL_WEIGHTS)
def test_the_fast_draw_has_the_distribution_of_textbook_depround(name, exploration):
    for n, k in CASES:
        weights = SMALL_WEIGHTS[name][:n]
        probs, _ = inclusion_probs(weights, k, exploration)
        expected = textbook_distribution(probs)
        actual = fast_distribution(weights, k, exploration)
        for subset in set(expected) | set(actual):
            assert actual.get(subset, 0.0) == approx(expected.get(subset, 0.0), abs=1e-12), (n, k, subset)


@pytest.mark.parametrize("exploration", EXPLORATIONS)
@pytest.mark.parametrize("name", SMALL_WEIGHTS)
def test_inclusion_probabilities_are_the_promised_ones_and_the_weighted_sum_is_unbiased(name, exploration):
    values = np.array([3.0, -1.0, 0.5, 10.0, 2.0, -7.0, 1.25])
    for n, k in CASES:
        weights = SMALL_WEIGHTS[name][:n]
        bandit = CombinatorialBandit(n, k, exploration=exploration, gate=None)
        bandit.weights = weights
        probs = bandit.inclusion_probs()
        included, expectation = np.zeros(n), 0.0
        for subset, chance in fast_distribution(weights, k, exploration).items():
            chosen = list(subset)
            included[chosen] += chance
            expectation += chance * np.sum(values[chosen] / (n * probs[chosen]))
        assert included == approx(probs, abs=1e-12)
        # With exploration 0 a weight may be so small that no float tells its probability from 0; it is not drawn.
        seen = np.where(included > 0, values[:n], 0.0)
        assert expectation == approx(seen.mean(), abs=1e-12 * max(1.0, 1.0 / probs.min()))


@pytest.mark.parametrize("exploration", EXPLORATIONS)
@pytest.mark.parametrize("name", SMALL_WEIGHTS)
def test_draws_with_replacement_have_the_promised_probabilities_and_are_unbiased(name, exploration):
    values = np.array([3.0, -1.0, 0.5, 10.0, 2.0, -7.0, 1.25])
    for n in range(1, 8):
        k = (n + 1) // 2
        bandit = ReplacementBandit(n, k, exploration=exploration)
        bandit.weights = SMALL_WEIGHTS[name][:n]
        expected_counts = bandit.inclusion_probs()
        chances = replacement_distribution(SMALL_WEIGHTS[name][:n], exploration)
        counts = k * np.array([chances.get(i, 0.0) for i in range(n)])
        assert counts == approx(expected_counts, abs=1e-12)
        expectation = np.sum(counts * values[:n] / (n * expected_counts))
        assert expectation == approx(values[:n].mean(), abs=1e-12 * max(1.0, 1.0 / expected_counts.min()))


@pytest.mark.parametrize(("n", "k"), [(2, 1), (9, 4), (40, 39), (300, 32), (1000, 128)])
@pytest.mark.parametrize("exploration", [0.0, 0.1, 0.4])
def test_draws_equal_those_of_the_slow_twin_from_the_same_random_numbers(n, k, exploration, generator):
    bandit = CombinatorialBandit(n, k, exploration=exploration, gate=None, generator=generator)
    rng = np.random.default_rng(1)
    for _ in range(20):
        bandit.weights = rng.gamma(0.3, size=n) + 1e-9
        probs, _ = inclusion_probs(bandit.weights, k, exploration)
        if bandit._drawn == n // k:
            bandit._start_epoch(7, bandit.weights)  # so that the next draw redraws nothing
        numbers = copy.deepcopy(bandit)._uniforms.take()
        order = np.asarray(bandit._order)
        expected = order[ordered_draw(probs[order], numbers)]
        draw = bandit.draw()
        assert set(draw.indices) == set(expected)
        assert draw.indices[draw.probs < 1].tolist() == expected[probs[expected] < 1].tolist()
        assert draw.probs == approx(probs[draw.indices], rel=1e-12)
