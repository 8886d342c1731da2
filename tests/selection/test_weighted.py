"""Weights that the user sets: exact probabilities without replacement, changeable at any time."""

import numpy as np
import pytest
import torch
from pytest import approx

from adamcb.selection import WeightedSelection
from tests.problems import SMALL_WEIGHTS
from tests.reference.depround import textbook_distribution
from tests.reference.selection import inclusion_probs
from tests.selection.enumeration import selection_distribution


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("name", SMALL_WEIGHTS)
def test_every_batch_has_exactly_the_chance_that_textbook_depround_gives_it(name):
    for n in range(2, 8):
        for k in range(1, n):
            weights = SMALL_WEIGHTS[name][:n]
            selection = WeightedSelection(weights, k, generator=seeded(n * 10 + k))
            order = np.asarray(selection._order)
            found = textbook_distribution(inclusion_probs(weights, k, 0.0)[0][order])
            expected = {frozenset(order[list(subset)].tolist()): chance for subset, chance in found.items()}
            actual = selection_distribution(selection)
            for subset in set(expected) | set(actual):
                assert actual.get(subset, 0.0) == approx(expected.get(subset, 0.0), abs=1e-12), (n, k, subset)


@pytest.mark.parametrize("name", SMALL_WEIGHTS)
def test_probabilities_are_proportional_to_the_weights_and_capped_at_one(name):
    weights = SMALL_WEIGHTS[name]
    for k in range(1, 7):
        selection = WeightedSelection(weights, k, generator=seeded(k))
        promised, included = selection.inclusion_probs(), np.zeros(7)
        for subset, chance in selection_distribution(selection).items():
            included[list(subset)] += chance
        assert included == approx(promised, abs=1e-12)
        assert promised.sum() == approx(k, abs=1e-12)
        free = promised < 1.0
        assert promised[free] / promised[free].max() == approx(weights[free] / weights[free].max(), rel=1e-9)
        if not free.all():
            assert weights[~free].min() >= weights[free].max()


@pytest.mark.statistical
def test_counts_over_several_epochs_agree_with_the_probabilities():
    weights = np.array([0.1, 3.0, 8.0, 0.7, 1.0, 1.0, 40.0, 0.01, 2.0, 0.5, 1.5, 0.0])
    selection, rounds = WeightedSelection(weights, 5, generator=seeded()), 5_000
    probs = selection.inclusion_probs()
    counts = np.bincount(np.concatenate([selection.draw().indices for _ in range(rounds)]), minlength=12)
    assert counts[11] == 0
    assert probs[6] == 1.0
    assert (np.abs(counts / rounds - probs) <= 5 * np.sqrt(probs * (1 - probs) / rounds)).all()


def test_weights_may_change_between_two_draws():
    selection = WeightedSelection([1.0, 1.0, 1.0, 1.0, 0.0], 2, generator=seeded())
    assert selection.weights.tolist() == [1.0, 1.0, 1.0, 1.0, 0.0]
    assert all(4 not in selection.draw().indices for _ in range(20))
    selection.weights = [0.0, 0.0, 1.0, 1.0, 100.0]
    assert selection.inclusion_probs() == approx([0.0, 0.0, 0.5, 0.5, 1.0])
    draw = selection.draw()
    assert 4 in draw.indices
    assert draw.loss_weights == approx(1.0 / (5 * draw.probs))
    assert not {0, 1} & set(draw.indices.tolist())


def test_setting_some_weights_is_assigning_all_of_them():
    """Between draws and over epochs, whose order differs; the slow way is the reference."""
    one, other = (WeightedSelection(np.ones(50), 8, generator=seeded()) for _ in range(2))
    rng = np.random.default_rng(0)
    for _ in range(40):
        draw = one.draw()
        assert draw.indices.tolist() == other.draw().indices.tolist()
        indices, weights = np.append(draw.indices, draw.indices[0]), rng.gamma(0.5, size=9) * (rng.random(9) < 0.8)
        one.set_weights(indices, weights)
        whole = other.weights.copy()
        whole[indices[:8]], whole[indices[8]] = weights[:8], weights[8]
        other.weights = whole
        assert one.weights.tolist() == other.weights.tolist()
        one.set_weights([0, 1, 2, 3, 4, 5, 6, 7], np.ones(8))
        other.weights = np.append(np.ones(8), other.weights[8:])
    one.set_weights([3], [2.0**200])
    assert one.inclusion_probs()[3] == 1.0
    one.set_weights([], [])


@pytest.mark.parametrize(
    ("indices", "weights", "message"),
    [
        ([0, 4], [1.0, 1.0], r"`indices` must hold integers in \[0, 4\), got indices\[1\]=4"),
        ([-1], [1.0], r"got indices\[0\]=-1"),
        ([0.5], [1.0], "`indices` must hold integers, got indices of dtype float64"),
        ([[0], [0, 1]], [1.0], "`indices` must be a vector of numbers"),
        (torch.ones(1, requires_grad=True), [1.0], "`indices` must hold integers, got indices of dtype float32"),
        ([0, 1], [1.0], r"`weights` must be a vector of length 2"),
        ([0], [-1.0], r"got weights\[0\]=-1.0"),
        ([0, 1, 0], [0.0, 0.0, 0.0], "`weights` must leave at least 2 numbers above 0, got 1"),
    ],
)
def test_weights_that_cannot_be_set_change_nothing(indices, weights, message):
    selection = WeightedSelection([1.0, 2.0, 3.0, 0.0], 2, generator=seeded())
    with pytest.raises((ValueError, TypeError), match=message):
        selection.set_weights(indices, weights)
    assert selection.weights.tolist() == [1.0, 2.0, 3.0, 0.0]
    assert selection.inclusion_probs().sum() == approx(2.0)
    selection.set_weights([3, 0, 1], [1.0, 0.0, 0.0])
    assert sorted(selection.draw().indices.tolist()) == [2, 3]


def test_a_batch_of_all_samples_takes_them_all():
    selection = WeightedSelection([3.0, 1e-9, 7.0], 3, generator=seeded())
    for _ in range(5):
        draw = selection.draw()
        assert sorted(draw.indices.tolist()) == [0, 1, 2]
        assert draw.probs == approx([1.0, 1.0, 1.0], rel=1e-12)


def test_it_learns_nothing_and_says_so():
    selection = WeightedSelection([1.0, 2.0, 3.0], 2, generator=seeded())
    assert selection.learns is False
    before, draw = selection.weights, selection.draw()
    selection.update(draw, [5.0, 0.0])
    assert (selection.weights == before).all()
    with pytest.raises(ValueError, match=r"`scores` must be a vector of length 2"):
        selection.update(draw, [1.0])


def test_weights_that_were_changed_are_saved():
    selection, twin = (WeightedSelection(np.ones(30), 4, generator=seeded(seed)) for seed in (0, 1))
    for _ in range(5):
        selection.draw()
    selection.weights = np.linspace(0.1, 1.0, 30)
    twin.load_state_dict(selection.state_dict())
    for _ in range(20):
        assert twin.draw().indices.tolist() == selection.draw().indices.tolist()


@pytest.mark.parametrize(
    ("weights", "batch_size", "message"),
    [
        ([1.0, 2.0], 3, "`batch_size` must be at most num_samples=2, got batch_size=3"),
        ([1.0, 0.0, 0.0], 2, "`weights` must hold at least 2 numbers above 0, got 1 of 3"),
        ([1.0, -1.0], 1, r"`weights` must hold finite numbers at or above 0, got weights\[1\]=-1.0"),
        ([1.0, float("nan")], 1, r"got weights\[1\]=nan"),
        ([[1.0], [2.0]], 1, r"`weights` must be a vector, got weights of shape \(2, 1\)"),
        ([], 1, r"`weights` must not be empty, got len\(weights\)=0"),
    ],
)
def test_bad_weights_are_named(weights, batch_size, message):
    with pytest.raises(ValueError, match=message):
        WeightedSelection(weights, batch_size)


@pytest.mark.slow
def test_more_than_two_to_the_24_samples_are_drawn_exactly():
    """Where torch.multinomial refuses."""
    weights = np.ones(2**24 + 1)
    weights[-1] = 1e8
    selection = WeightedSelection(weights, 2, generator=seeded())
    draw = selection.draw()
    assert 2**24 in draw.indices
    assert draw.probs == approx([1 / 2**24, 1.0], rel=1e-12)


def test_writing_to_single_weights_is_refused_as_it_would_change_nothing():
    selection = WeightedSelection([1.0, 2.0, 3.0, 4.0], 2, generator=seeded())
    with pytest.raises(ValueError, match="read-only"):
        selection.weights[0] = 9.0
    weights = selection.weights.copy()
    weights[0] = 9.0
    selection.weights = weights
    assert selection.weights.tolist() == [9.0, 2.0, 3.0, 4.0]
    selection.state_dict()["weights"][0] = 5.0  # a tensor that is the reader's own
    assert selection.weights[0] == 9.0
