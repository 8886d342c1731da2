"""Orders of very many samples are computed: they equal their slow twin, look random, and change no probability."""

import tracemalloc

import numpy as np
import pytest
import torch
from pytest import approx

from adamcb.selection import CombinatorialBandit, UniformSelection, WeightedSelection
from adamcb.selection._random import permutation
from adamcb.selection._shuffle import Shuffle
from tests.reference.depround import textbook_distribution
from tests.reference.selection import inclusion_probs
from tests.reference.shuffle import shuffled
from tests.selection.enumeration import selection_distribution

SIZES = [2, 3, 7, 64, 65, 1000, 4097]


@pytest.fixture
def computed(monkeypatch):
    """Compute all orders, as is done for very many samples."""
    monkeypatch.setattr("adamcb.selection._random.MOST_STORED", 0)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("seed", [0, 1, 2**62 - 1])
def test_the_order_is_that_of_the_slow_twin(n, seed):
    assert Shuffle(n, seed)[:].tolist() == shuffled(n, seed)


@pytest.mark.parametrize("n", SIZES)
def test_every_sample_has_one_position(n):
    order = Shuffle(n, 3)
    assert sorted(order[:]) == list(range(n))
    assert order.inverse()[order[:]].tolist() == list(range(n))
    assert order.inverse().inverse()[1:].tolist() == order[1:].tolist()
    order.gather(values := np.arange(n) + 0.5, out := np.empty(n))
    assert out.tolist() == values[order[:]].tolist()


def test_positions_of_two_billion_samples_are_found_again():
    order = Shuffle(2 * 10**9, 5)
    places = np.random.default_rng(0).integers(2 * 10**9, size=10_000)
    assert np.array_equal(order.inverse()[order[places]], places)


def test_a_permutation_is_stored_up_to_the_limit_and_computed_above(monkeypatch):
    monkeypatch.setattr("adamcb.selection._random.MOST_STORED", 100)
    assert isinstance(permutation(100, 0), np.ndarray)
    assert isinstance(permutation(101, 0), Shuffle)


@pytest.mark.parametrize("n", [50, 64])
def test_every_sample_is_everywhere_equally_often_and_so_is_every_pair_of_neighbors(n):
    """χ² of the counts over many seeds, at most 5 standard deviations above its mean."""
    seeds = 20_000
    orders = np.stack([Shuffle(n, seed)[:] for seed in np.random.default_rng(1).integers(2**62, size=seeds).tolist()])
    places = np.zeros((n, n))
    np.add.at(places, (np.arange(n)[None, :], orders), 1.0)
    cells = (n - 1) ** 2
    assert ((places - seeds / n) ** 2 / (seeds / n)).sum() < cells + 5 * np.sqrt(2 * cells)
    followers = np.zeros((n, n))
    np.add.at(followers, (orders[:, :-1:2], orders[:, 1::2]), 1.0)
    pairs = n * (n - 1)
    expected = seeds * (n // 2) / pairs
    assert followers.trace() == 0
    # Pairs of one order exclude each other: a little less varied than independent ones, so the bound holds.
    assert ((followers - expected) ** 2 / expected)[~np.eye(n, dtype=bool)].sum() < pairs + 5 * np.sqrt(2 * pairs)


def test_every_batch_has_exactly_the_chance_that_textbook_depround_gives_it(computed):
    weights = np.array([1.0, 5.0, 0.2, 0.0, 3.0, 1.0])
    for k in range(1, 5):
        selection = WeightedSelection(weights, k, generator=seeded(k))
        assert isinstance(selection._order, Shuffle)
        order = selection._order[:]
        found = textbook_distribution(inclusion_probs(weights, k, 0.0)[0][order])
        expected = {frozenset(order[list(subset)].tolist()): chance for subset, chance in found.items()}
        actual = selection_distribution(selection)
        for subset in set(expected) | set(actual):
            assert actual.get(subset, 0.0) == approx(expected.get(subset, 0.0), abs=1e-12)


def test_an_epoch_has_every_sample_once(computed):
    for make in (UniformSelection, CombinatorialBandit):
        selection = make(60, 6, generator=seeded())
        epochs = [np.concatenate([selection.draw().indices for _ in range(10)]) for _ in range(2)]
        assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(60))
        assert epochs[0].tolist() != epochs[1].tolist()


def test_weights_follow_their_samples_from_epoch_to_epoch_and_through_a_state(computed):
    selection = CombinatorialBandit(60, 6, gate=None, generator=seeded())
    scores = np.random.default_rng(0).gamma(0.5, size=60)
    for _ in range(35):  # three new orders
        draw = selection.draw()
        before = selection.weights
        selection.update(draw, scores[draw.indices])
        changed = np.flatnonzero(selection.weights != before)
        assert set(changed) <= set(draw.indices.tolist())
    assert np.corrcoef(selection.weights, scores)[0, 1] > 0.5
    twin = CombinatorialBandit(60, 6, gate=None, generator=seeded(1))
    twin.load_state_dict(selection.state_dict())
    for _ in range(25):
        left, right = selection.draw(), twin.draw()
        assert left.indices.tolist() == right.indices.tolist()
        assert left.probs.tolist() == right.probs.tolist()
        for each, draw in ((selection, left), (twin, right)):
            each.update(draw, scores[draw.indices])


@pytest.mark.parametrize("n", SIZES)
def test_values_move_to_another_order_where_they_stand(n):
    order = Shuffle(n, 3)
    positions, values = order.inverse(), np.arange(n) % 3 + 0.25 * (np.arange(n) % 2)  # some of them 0
    moved = values[order[:]]
    order.move(8, moved)
    assert moved.tolist() == values[shuffled(n, 8)].tolist()
    assert not np.signbit(moved).any()
    assert order[:].tolist() == shuffled(n, 8)
    assert positions[order[:]].tolist() == list(range(n))
    order.move(9, moved, -values[::-1] * 0.0)  # zeros with a sign
    assert moved.tolist() == [0.0] * n
    order.move(10, moved, values[::-1].copy())
    assert moved.tolist() == values[::-1][shuffled(n, 10)].tolist()


def test_computed_orders_need_no_second_copy_of_the_weights(computed):
    """8 bytes a sample are weights, and 3.4 the sums above them, which make room for a state of 8 while it is saved."""
    n, peaks = 200_000, {}

    def peak_of(name, work):
        tracemalloc.reset_peak()
        result = work()
        peaks[name] = tracemalloc.get_traced_memory()[1] / n
        return result

    def new_epoch():
        selection._drawn = selection.draws_per_epoch
        selection.draw()
        return selection._tree.nodes.shape

    small = CombinatorialBandit(100, 6, generator=seeded())  # compiles
    small.load_state_dict(small.state_dict())
    small._drawn = small.draws_per_epoch
    small.draw()
    tracemalloc.start()
    try:
        selection = peak_of("build", lambda: CombinatorialBandit(n, 6, generator=seeded()))
        peak_of("new epoch", new_epoch)
        state = peak_of("save", selection.state_dict)
        peak_of("load", lambda: selection.load_state_dict(state))
    finally:
        tracemalloc.stop()
    assert {name: round(peak, 1) for name, peak in peaks.items()} == {
        "build": approx(11.4, abs=0.5),
        "new epoch": approx(11.4, abs=0.5),
        "save": approx(16.0, abs=0.5),
        "load": approx(16.0, abs=0.5),
    }
