"""What holds for every weight vector: hypothesis looks for one for which it does not."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pytest import approx

from adamcb.selection import CombinatorialBandit, ReplacementBandit
from tests.reference.selection import inclusion_probs

powers = st.floats(-150, 150)
ordinary = st.floats(0.01, 100)
WEIGHTS = st.one_of(
    st.lists(powers.map(lambda power: 10.0**power), min_size=1, max_size=40),  # over 300 orders of magnitude
    st.lists(st.one_of(st.just(0.0), ordinary), min_size=1, max_size=40).filter(any),  # zeros
    st.builds(lambda n, w: [w] * n, st.integers(1, 40), ordinary),  # equal
    st.builds(lambda n, w: [w] * n + [1e100], st.integers(1, 40), ordinary),  # one huge
)


@st.composite
def problems(draw):
    weights = np.array(draw(WEIGHTS))
    exploration = draw(st.sampled_from([0.0, 0.01, 0.4, 0.9, 1.0]))
    most = len(weights) if exploration > 0 else np.count_nonzero(weights)
    return weights, draw(st.integers(1, int(most))), exploration


def bandit_with(weights, k, exploration, *, seed=0):
    generator = torch.Generator().manual_seed(seed)
    bandit = CombinatorialBandit(len(weights), k, exploration=exploration, gate=None, generator=generator)
    bandit.weights = weights
    return bandit


@given(problems())
def test_inclusion_probabilities_lie_in_0_1_and_sum_to_k(problem):
    probs = bandit_with(*problem).inclusion_probs()
    assert probs.min() >= 0.0
    assert probs.max() <= 1.0
    assert probs.sum() == approx(problem[1], abs=1e-9)


@given(problems(), st.integers(0, 2**31))
def test_a_draw_has_exactly_k_distinct_samples_with_their_probabilities(problem, seed):
    bandit = bandit_with(*problem, seed=seed)
    for _ in range(3):
        probs = bandit.inclusion_probs()
        draw = bandit.draw()
        assert len(set(draw.indices.tolist())) == problem[1] == len(draw)
        assert (draw.probs > 0.0).all()
        assert (draw.probs == bandit.inclusion_probs()[draw.indices]).all()
        assert draw.probs == approx(probs[draw.indices], rel=1e-12)  # a new epoch adds the weights up in another order


@given(problems())
def test_capping_agrees_with_sorting_all_weights(problem):
    # 1e-150 beside 1e150 is lost in the plain sums of the reference, not in the tree: compare what both can tell.
    weights = np.maximum(problem[0], problem[0].max() * 1e-12)
    expected, capped = inclusion_probs(weights, *problem[1:])
    probs = bandit_with(weights, *problem[1:]).inclusion_probs()
    assert probs == approx(expected, rel=1e-9, abs=1e-12)
    assert (probs[capped & (expected == 1.0)] >= 1.0 - 1e-12).all()


@given(problems(), st.integers(-300, 300))
def test_a_common_factor_changes_nothing(problem, power):
    weights, k, exploration = problem
    scaled = np.ldexp(weights, power)
    before, after = (bandit_with(w, k, exploration).inclusion_probs() for w in (weights, scaled))
    assert (before == after).all()


@given(problems(), st.randoms(use_true_random=False))
def test_permuting_the_weights_permutes_the_probabilities(problem, random):
    weights, k, exploration = problem
    order = list(range(len(weights)))
    random.shuffle(order)
    probs = bandit_with(weights, k, exploration).inclusion_probs()
    assert bandit_with(weights[order], k, exploration).inclusion_probs() == approx(probs[order], abs=1e-9)


@given(problems())
@settings(max_examples=50)
def test_draws_with_replacement_sum_to_k_and_never_take_what_has_no_chance(problem):
    weights, k, exploration = problem
    bandit = ReplacementBandit(len(weights), k, exploration=exploration, generator=torch.Generator().manual_seed(1))
    bandit.weights = weights
    counts = bandit.inclusion_probs()
    assert counts.sum() == approx(k, abs=1e-9)
    draw = bandit.draw()
    assert (draw.probs == counts[draw.indices]).all()
    assert (draw.probs > 0.0).all()


@pytest.mark.parametrize("exploration", [0.0, 0.4, 1.0])
@pytest.mark.parametrize(("n", "k"), [(1, 1), (2, 1), (2, 2), (50, 1), (50, 49), (50, 50)])
def test_the_edges_of_n_and_k(n, k, exploration, generator):
    bandit = CombinatorialBandit(n, k, exploration=exploration, generator=generator)
    for _ in range(3 * (n // k) + 2):
        draw = bandit.draw()
        assert sorted(set(draw.indices.tolist())) == sorted(draw.indices.tolist())
        bandit.update(draw, np.linspace(0.0, 1.0, k))
        assert bandit.inclusion_probs().sum() == approx(k, abs=1e-9)


def test_capped_samples_have_probability_exactly_one_and_are_in_every_batch(generator):
    bandit = CombinatorialBandit(100, 10, exploration=0.1, gate=None, generator=generator)
    weights = np.ones(100)
    weights[[3, 77]] = 1e6
    bandit.weights = weights
    assert np.flatnonzero(bandit.inclusion_probs() == 1.0).tolist() == [3, 77]
    for _ in range(50):
        draw = bandit.draw()
        assert sorted(draw.indices[draw.probs == 1.0].tolist()) == [3, 77]
