import numpy as np
import pytest
from pytest import approx

from adamcb.selection import _tree

SIZES = [1, 2, 7, 8, 9, 63, 64, 65, 512, 1000, 5000]


def searched(tree, slope, base, targets):
    positions, rests = np.empty(len(targets), dtype=np.int64), np.empty(len(targets))
    _tree.search(tree, slope, base, np.asarray(targets, dtype=float), positions, rests)
    return positions, rests


@pytest.mark.parametrize("n", SIZES)
def test_sum_and_largest_are_those_of_the_weights(n):
    weights = np.random.default_rng(n).gamma(0.5, size=n)
    tree = _tree.build_tree(weights)
    assert _tree.total_weight(tree) == approx(weights.sum(), rel=1e-14)
    assert _tree.largest_weight(tree) == weights.max()
    assert _tree.find_largest(tree) == weights.argmax()


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize(("slope", "base"), [(1.0, 0.0), (0.0, 0.5), (2.0, 0.25)])
def test_a_search_finds_what_a_cumulative_sum_finds(n, slope, base):
    rng = np.random.default_rng(n)
    tree = _tree.build_tree(weights := rng.gamma(0.5, size=n))
    masses = (slope * weights + base).astype(np.longdouble)  # so that the error is the tree's, not the plain sum's
    ends = np.cumsum(masses)
    targets = (rng.random(200) * ends[-1]).astype(float)
    positions, rests = searched(tree, slope, base, targets)
    assert positions.tolist() == np.searchsorted(ends, targets, side="right").tolist()
    assert rests == approx((targets - (ends - masses)[positions]).astype(float), abs=1e-15 * float(ends[-1]))


@pytest.mark.parametrize("n", SIZES)
def test_leaves_taken_out_have_no_mass_and_come_back_unchanged(n):
    rng = np.random.default_rng(n)
    tree = _tree.build_tree(weights := rng.gamma(0.5, size=n))
    fresh = _tree.build_tree(weights)
    out = rng.choice(n, size=n // 2, replace=False)
    for position in out:
        _tree.take_out(tree, position)
    alive = ~np.isin(np.arange(n), out)
    ends = np.cumsum(np.where(alive, 3.0 * weights + 0.1, 0.0))
    targets = rng.random(100) * ends[-1]
    assert searched(tree, 3.0, 0.1, targets)[0].tolist() == np.searchsorted(ends, targets, side="right").tolist()
    assert _tree.total_weight(tree) == approx(weights[alive].sum(), rel=1e-13)
    for position in out:
        _tree.take_out(tree, position)
    assert_equal(tree, fresh)


def assert_equal(tree, other):
    assert (tree.leaves == other.leaves).all()
    assert (tree.nodes == other.nodes).all()


def test_a_leaf_without_mass_is_never_found():
    tree = _tree.build_tree(np.array([0.0, 1.0, 0.0, 2.0, 0.0]))
    positions, rests = searched(tree, 1.0, 0.0, [0.0, 0.5, 1.0, 2.999, 3.0, 1e300])
    assert positions.tolist() == [1, 1, 3, 3, 3, 3]
    assert rests[-1] == 2.0  # a target beyond the end lies at the end of the last leaf


def test_many_weights_change_at_once_in_any_order_and_with_repeats():
    rng = np.random.default_rng(0)
    tree = _tree.build_tree(weights := rng.random(777))
    for _ in range(50):
        positions, factors = rng.integers(777, size=40), rng.uniform(0.5, 2.0, size=40)
        _tree.multiply(tree, positions, factors, _tree.SMALLEST)
        np.multiply.at(weights, positions, factors)
        assert tree.leaves[:777] == approx(weights, rel=1e-13)
        assert_equal(tree, _tree.build_tree(tree.leaves[:777]))


def test_weights_that_shrink_for_ever_keep_their_ratios():
    tree = _tree.build_tree(weights := np.array([1.0, 2.0, 3.0]))
    everywhere = np.arange(3)
    for _ in range(10_000):
        _tree.multiply(tree, everywhere, np.full(3, 0.5), _tree.SMALLEST)
    assert (tree.leaves[:3] / tree.leaves[0] == weights).all()
    assert 2.0**-100 <= tree.leaves[:3].max() <= 2.0**100


def test_weights_that_grow_for_ever_keep_their_ratios():
    tree = _tree.build_tree(np.array([1.0, 2.0, 3.0]))
    for _ in range(10_000):
        _tree.multiply(tree, np.arange(3), np.full(3, 2.0), _tree.SMALLEST)
    assert (tree.leaves[:3] / tree.leaves[0] == [1.0, 2.0, 3.0]).all()


def test_a_positive_weight_never_becomes_zero_but_zero_stays():
    tree = _tree.build_tree(np.array([1.0, 1.0, 0.0]))
    for _ in range(2_000):
        _tree.multiply(tree, np.array([0, 2]), np.array([0.1, 0.1]), _tree.SMALLEST)
    assert tree.leaves[0] == _tree.SMALLEST
    assert tree.leaves[2] == 0.0


@pytest.mark.parametrize("scale", [1e-310, 1e-200, 1.0, 1e200, 1e308])
def test_weights_of_any_scale_are_brought_into_range(scale):
    weights = _tree.in_range(np.array([0.0, 0.25, 1.0]) * scale)
    assert 2.0**-100 <= weights.max() <= 2.0**100
    assert weights[0] == 0.0
    assert weights[1] / weights[2] == approx(0.25, rel=1e-3 if scale == 1e-310 else 1e-15)  # 1e-310 has few bits left
