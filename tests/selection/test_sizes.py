"""Batch sizes by noise: the ladder, the ratio with its uncertainty, and the noise that comes out."""

import numpy as np
import pytest
import torch
from pytest import approx

from adamcb.selection import CombinatorialBandit, QueueBandit, SecondMoment
from adamcb.selection._sizes import BatchSizes, size_ladder


@pytest.mark.parametrize(
    ("smallest", "largest", "multiple"),
    [
        (16, 128, 1),
        (16, 128, 4),
        (1, 128, 1),
        (20, 100, 1),
        (3, 7, 1),
        (5, 30, 3),
        (32, 4096, 16),
        (8, 8, 8),
        (1, 1, 1),
    ],
)
def test_a_ladder_is_short_and_goes_from_end_to_end_in_multiples(smallest, largest, multiple):
    ladder = list(size_ladder(smallest, largest, multiple=multiple))
    assert len(ladder) <= 13
    assert ladder == sorted(set(ladder))
    assert ladder[-1] == largest
    assert smallest <= ladder[0] < smallest + multiple
    assert all(size % multiple == 0 for size in ladder)
    if largest >= 32:
        assert all(size % 8 == 0 for size in ladder[1:-1])


def test_steps_of_a_ladder_are_small_where_multiples_of_eight_allow_it():
    ladder = np.array(size_ladder(32, 1024))
    assert (ladder[1:] / ladder[:-1]).max() <= 1.6


def draws_from(rates: np.ndarray, scores: np.ndarray, size: int, batches: int, rng) -> tuple[np.ndarray, np.ndarray]:
    """Return indices [batches, size] drawn by the rates with replacement, and their probabilities."""
    chance = rates / rates.sum()
    indices = rng.choice(len(rates), size=(batches, size), p=chance)
    return indices, size * chance[indices]


@pytest.fixture
def problem() -> tuple[np.ndarray, np.ndarray, float]:
    """Scores, rates that follow them roughly, and the true ratio of second moments."""
    rng = np.random.default_rng(0)
    scores = rng.gamma(0.5, size=400)
    rates = np.clip(scores * rng.uniform(0.5, 1.5, size=400), 0.2, None)
    return scores, rates, float(np.mean(scores**2 / rates) * np.mean(rates) / np.mean(scores**2))


@pytest.mark.statistical
def test_the_ratio_is_the_true_one_and_its_error_is_honest(problem):
    scores, rates, truth = problem
    rng, deviations, errors = np.random.default_rng(1), [], []
    for _ in range(1000):
        moment = SecondMoment(memory=0.95)
        for indices, probs in zip(*draws_from(rates, scores, 32, 100, rng), strict=True):
            moment.note(scores[indices], probs)
        deviations.append(moment.ratio - truth)
        errors.append(moment.error)
    spread = np.std(deviations)
    assert abs(np.mean(deviations)) <= 5 * spread / np.sqrt(1000) + 0.003  # the bias of a ratio is of second order
    assert np.sqrt(np.mean(np.square(errors))) == approx(spread, rel=5 / np.sqrt(2 * 1000))


def test_equal_probabilities_are_a_ratio_of_one_without_doubt():
    moment, rng = SecondMoment(), np.random.default_rng(0)
    assert np.isnan(moment.error)
    for size in (8, 8, 5, 8):
        moment.note(rng.gamma(0.2, size=size), np.full(size, 1 / 4))
    assert moment.ratio == approx(1.0)
    assert moment.error == approx(0.0, abs=1e-7)


def known_ratio(ratio: float) -> SecondMoment:
    """Return an estimate that is sure."""
    moment = SecondMoment()
    known = {"chosen": ratio, "mass": 1.0, "uniform": 1.0, "count": 1.0, "spread": 0.0, "trust": 1.0}
    moment.load_state_dict({**known, "trust_squared": 0.01, "found": 1.0, "expected": 1.0})
    return moment


def sizes_at(needed: float, smallest: int, largest: int, count: int = 2000) -> np.ndarray:
    sizes, moment = BatchSizes(smallest, largest), known_ratio(needed / largest)
    result = []
    for _ in range(count):
        expected = sizes.peek(moment)
        result.append(sizes.next(moment))
        assert result[-1] == expected
    return np.array(result)


@pytest.mark.parametrize("needed", [5.0, 16.0, 17.0, 50.0, 64.0, 71.9, 100.0, 127.0, 128.0])
def test_noise_is_that_of_the_size_needed_on_average_from_two_sizes(needed):
    sizes = sizes_at(needed, 16, 128)
    assert len(set(sizes)) <= 2
    noise = np.cumsum(max(needed, 16.0) / sizes - 1.0)
    assert noise.max() <= 1e-9  # never above what was promised, counted from the start
    assert noise[-1] >= -1.0  # and what was saved is spent


def test_nothing_known_yet_or_no_gain_is_the_largest_size():
    for moment in (SecondMoment(), known_ratio(1.0), known_ratio(3.0)):
        sizes = BatchSizes(8, 64)
        assert {sizes.next(moment) for _ in range(50)} == {64}


def test_an_estimate_that_was_too_low_asks_for_a_larger_batch():
    kept, broken = known_ratio(0.25), known_ratio(0.25)
    kept.load_state_dict({**kept.state_dict(), "found": 0.8})
    broken.load_state_dict({**broken.state_dict(), "found": 1.5})
    assert BatchSizes(8, 64).needed(kept) == approx(16.0)
    assert BatchSizes(8, 64).needed(broken) == approx(24.0)
    broken.load_state_dict({**broken.state_dict(), "found": 7.0})
    assert BatchSizes(8, 64).needed(broken) == approx(32.0)  # at most twice as large


@pytest.mark.statistical
def test_batches_are_as_noisy_as_promised_where_one_sample_in_thousands_has_most_of_the_second_moment():
    """The estimate mostly sees no such sample, and is too low then. Its record is not."""
    rng, n, size = np.random.default_rng(0), 8000, 64
    scores = np.full(n, 0.2)
    scores[:404], scores[:4] = 3.0, 30.0
    rates = np.where(scores == 3.0, 6.0, 0.7)  # the four are not known to be large
    moment, sizes = SecondMoment(0.95, record_memory=0.999), BatchSizes(4, size)
    by_estimate = by_record = uniform = 0.0
    for indices, probs in zip(*draws_from(rates, scores, size, 20_000, rng), strict=True):
        found = np.sum((scores[indices] / probs) ** 2)
        uniform += np.sum(scores[indices] ** 2 / probs) * n / size
        if not np.isnan(moment.ratio):
            by_estimate += found / min(moment.ratio, 1.0)
            by_record += found * size / sizes.next(moment)
        moment.note(scores[indices], probs)
    assert by_estimate / uniform > 1.4
    assert 0.9 < by_record / uniform < 1.05


def test_sizes_continue_from_a_saved_state():
    one, other, moment = BatchSizes(8, 64), BatchSizes(8, 64), known_ratio(0.61)
    for _ in range(33):
        one.next(moment)
    other.load_state_dict(one.state_dict())
    assert [one.next(moment) for _ in range(50)] == [other.next(moment) for _ in range(50)]
    with pytest.raises(ValueError, match=r"`state\['saved'\]` must be"):
        one.load_state_dict({"saved": -1.0})


# --- the promise: the variance of the batch gradient is that of K uniform samples


def gradients(n: int, seed: int) -> np.ndarray:
    """Vectors of very different lengths with a mean that is small beside them, as in training."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 5)) * rng.gamma(0.4, size=(n, 1)) + 0.02


@pytest.mark.statistical
@pytest.mark.parametrize("drift", [1.0, 0.998])
def test_batches_are_as_noisy_as_k_uniform_samples(drift):
    """Over whole trainings, on gradients that all are known; with drift, they shrink as training goes on."""
    n, k, ratios = 2000, 50, []
    for seed in range(8):
        g = gradients(n, seed)
        uniform = np.sum(np.var(g, axis=0)) / k * (n - k) / (n - 1)
        norms, mean = np.linalg.norm(g, axis=1), g.mean(axis=0)
        bandit = QueueBandit(n, k, min_batch_size=4, generator=torch.Generator().manual_seed(seed))
        squares, used = [], 0
        for number in range(30 * n // k):
            draw = bandit.draw()
            squares.append(np.sum((draw.loss_weights @ g[draw.indices] - mean) ** 2) / uniform)
            used += len(draw)
            bandit.update(draw, norms[draw.indices] * drift**number)
        ratios.append(np.mean(squares[10 * n // k :]))
        assert used < 0.75 * 30 * n
    error = np.std(ratios) / np.sqrt(len(ratios))
    assert np.mean(ratios) <= 1.05 + 5 * error
    assert np.mean(ratios) >= 0.95 - 5 * error
    assert error < 0.02


@pytest.mark.parametrize("kind", [CombinatorialBandit, QueueBandit])
def test_the_largest_batch_is_a_multiple_of_the_ranks_too(kind):
    with pytest.raises(ValueError, match="`batch_size` must be a multiple of size_multiple=4, got batch_size=30"):
        kind(100, 30, min_batch_size=8, size_multiple=4)


def test_a_state_of_other_multiples_is_refused():
    saved = CombinatorialBandit(100, 32, min_batch_size=8, size_multiple=4).state_dict()
    with pytest.raises(ValueError, match="must be saved with size_multiple=None, got size_multiple=4"):
        CombinatorialBandit(100, 32, min_batch_size=8).load_state_dict(saved)


def test_smaller_batches_of_the_combinatorial_bandit_have_the_probabilities_that_it_tells():
    n, k = 200, 32
    bandit, twin = (
        CombinatorialBandit(n, k, min_batch_size=8, gate=None, generator=torch.Generator().manual_seed(seed))
        for seed in (0, 1)
    )
    norms = np.random.default_rng(0).lognormal(sigma=1.5, size=n)
    sizes = []
    for step in range(300):
        promised = bandit.inclusion_probs()
        draw = bandit.draw()
        if step % bandit.draws_per_epoch:  # in the order of the next epoch the weights add up differently
            assert (draw.probs == promised[draw.indices]).all()
        assert promised.sum() == approx(len(draw), abs=1e-9)
        assert promised.min() >= len(draw) * 0.4 / n - 1e-12
        assert draw.loss_weights == approx(1.0 / (n * draw.probs))
        assert len(set(draw.indices.tolist())) == len(draw)
        bandit.update(draw, norms[draw.indices])
        sizes.append(len(draw))
    assert set(sizes) <= set(bandit.sizes)
    assert sizes[0] == k
    assert np.mean(sizes[100:]) < 0.8 * k
    twin.load_state_dict(bandit.state_dict())
    assert [len(bandit.draw()) for _ in range(20)] == [len(twin.draw()) for _ in range(20)]
