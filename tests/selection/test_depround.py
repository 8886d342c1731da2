import numpy as np
import pytest
import torch
from pytest import approx

from adamcb.selection import CombinatorialBandit, depround
from adamcb.selection._depround import insert_distinct
from adamcb.selection._tree import build_tree

PROBS = np.array([1.0, 0.9, 0.35, 0.0, 0.25, 0.5, 0.6, 0.4])


def frequencies(draw, n, rounds):
    counts = np.zeros(n)
    for _ in range(rounds):
        indices = draw()
        assert len(set(indices.tolist())) == len(indices)
        counts[indices] += 1
    return counts / rounds


@pytest.mark.statistical
def test_textbook_depround_hits_its_marginals(generator):
    rounds = 20_000
    error = np.abs(frequencies(lambda: depround(PROBS, generator=generator), len(PROBS), rounds) - PROBS)
    assert (error <= 5 * np.sqrt(PROBS * (1 - PROBS) / rounds)).all()


@pytest.mark.statistical
def test_the_bandit_hits_its_marginals_whatever_the_order(generator):
    bandit = CombinatorialBandit(12, 5, exploration=0.2, gate=None, generator=generator)
    bandit.weights = [0.1, 3, 8, 0.7, 1, 1, 40, 0.01, 2, 0.5, 1.5, 0]
    probs, rounds = bandit.inclusion_probs(), 20_000
    assert probs[6] == 1.0
    error = np.abs(frequencies(lambda: bandit.draw().indices, 12, rounds) - probs)
    assert (error <= 5 * np.sqrt(probs * (1 - probs) / rounds)).all()


def test_certain_samples_are_always_in_and_impossible_ones_never(generator):
    for _ in range(200):
        indices = depround(PROBS, generator=generator)
        assert 0 in indices
        assert 3 not in indices
        assert len(indices) == 4


@pytest.mark.parametrize("probs", [[], [0.0, 0.0], [1.0], [1.0, 1.0, 0.0]])
def test_resolved_probabilities_are_returned_as_they_are(probs):
    assert depround(probs).tolist() == [i for i, p in enumerate(probs) if p == 1.0]


def test_depround_draws_from_the_generator_alone():
    before = torch.get_rng_state()
    first = depround(PROBS, generator=torch.Generator().manual_seed(3))
    assert torch.equal(before, torch.get_rng_state())
    assert first.tolist() == depround(PROBS, generator=torch.Generator().manual_seed(3)).tolist()


@pytest.mark.parametrize(
    ("probs", "message"),
    [
        ([0.5, 0.6], r"`inclusion_probs` must sum to an integer, got sum\(inclusion_probs\)=1.1"),
        ([1.5, 0.5], r"`inclusion_probs` must be at most 1, got inclusion_probs\[0\]=1.5"),
        ([0.5, -0.5, 1.0], r"`inclusion_probs` must hold finite numbers at or above 0, got inclusion_probs\[1\]=-0.5"),
        ([0.5, float("nan")], r"got inclusion_probs\[1\]=nan"),
        ([[0.5, 0.5]], r"`inclusion_probs` must be a vector, got inclusion_probs of shape \(1, 2\)"),
    ],
)
def test_bad_probabilities_are_named(probs, message):
    with pytest.raises(ValueError, match=message):
        depround(probs)


def test_words_for_probabilities_are_refused():
    with pytest.raises(
        TypeError, match="`inclusion_probs` must be a vector of numbers, got inclusion_probs of type str"
    ):
        depround("half")


@pytest.mark.parametrize(
    ("chosen", "leaf", "expected"),
    [
        ([2, 5], 6, [2, 5, 6]),  # nothing to repair
        ([2, 5], 5, [2, 5, 7]),  # the next free leaf with mass: 6 has none
        ([2, 5], 3, [2, 5, 7]),
        ([2, 7], 7, [2, 5, 7]),  # nothing behind: the last free one before
        ([5, 7], 7, [2, 5, 7]),
    ],
)
def test_rounding_never_repeats_a_sample(chosen, leaf, expected):
    tree = build_tree(np.array([0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0]))
    tree = build_tree(np.where(np.isin(np.arange(9), [2, 5, 6, 7]), 1.0, 0.0)) if 6 in expected else tree
    positions = np.array([*chosen, -1])
    insert_distinct(tree, 0.5, 0.0, positions, len(chosen), leaf)
    assert positions.tolist() == expected


def test_a_promise_can_be_met_at_a_million_samples(generator):
    bandit = CombinatorialBandit(1_000_000, 64, exploration=0.4, gate=None, generator=generator)
    draw = bandit.draw()
    assert len(set(draw.indices.tolist())) == 64
    assert draw.loss_weights == approx(np.full(64, 1 / 64))
