"""QueueBandit: its slow twin, its promise by enumeration, by bounds that always hold and by sampling."""

import math
from collections import Counter

import numpy as np
import pytest
import torch
from pytest import approx

from adamcb.selection import QueueBandit
from adamcb.selection._axis import RATES
from tests.reference.queue import SlowQueue, splitmix


def bandit_of(n: int, k: int, *, seed: int = 0, **options) -> QueueBandit:
    return QueueBandit(n, k, generator=torch.Generator().manual_seed(seed), **options)


def twin_of(bandit: QueueBandit) -> SlowQueue:
    seed = int(bandit._axis.stream[0])
    return SlowQueue(bandit.num_samples, bandit.batch_size, bandit.exploration, splitmix(seed))


def train(bandit: QueueBandit, scores_of, draws: int, *, delay: int = 0) -> list:
    """Make draws and hand back scores, each `delay` draws late; return the draws."""
    made: list = []
    for number in range(draws):
        made.append(bandit.draw())
        if number >= delay:
            bandit.update(made[number - delay], scores_of(made[number - delay].indices))
    return made


# --- the twin


@pytest.mark.parametrize(
    ("n", "k", "exploration"),
    [(7, 1, 0.2), (20, 3, 0.2), (40, 8, 0.1), (12, 6, 0.5), (9, 5, 0.2), (4, 4, 0.3), (1, 1, 1)],
)
@pytest.mark.parametrize("delay", [0, 3])
def test_compiled_queue_is_its_slow_twin(n, k, exploration, delay):
    bandit = bandit_of(n, k, exploration=exploration)
    twin, rng, late = twin_of(bandit), np.random.default_rng(0), []
    for number in range(150):
        draw, (indices, probs) = bandit.draw(), twin.draw(k)
        assert draw.indices.tolist() == indices
        assert draw.probs == approx(probs, rel=1e-9)
        assert draw.loss_weights == approx(1.0 / (n * np.array(probs)), rel=1e-9)
        late.append((draw, rng.gamma(0.3, size=k) * 0.9**number))
        if len(late) > delay:
            draw, scores = late.pop(0)
            bandit.update(draw, scores)
            twin.update(draw.indices.tolist(), draw.probs, scores)
        assert bandit.listens == twin.attention.listens()
        assert bandit.weights == approx(np.array(twin.weights), rel=1e-9)
        assert bandit._axis.sums[:3] == approx([twin.position, sum(twin.rates), sum(twin.weights)], rel=1e-9)


# --- enumeration: every outcome of the random places, with its chance


class ScriptedQueue(SlowQueue):
    """A place is one of two, in the middle of the first or second half of its unit; rates are 1 or 2.

    The next rate depends on all that has happened, as a learned one does.
    """

    def __init__(self, n: int, script: list[int], seed: int) -> None:
        self.script, self.asked, self.seed = script, 0, seed
        self.visits: list[tuple[int, float, float]] = []
        super().__init__(n, 1, 0.2, self.place)

    def place(self) -> float:
        self.asked += 1
        return (0.25, 0.75)[self.script[self.asked - 1] if self.asked <= len(self.script) else 0]

    def rate_by_weight(self, i: int) -> float:
        history = sum((j + 2) * hash((self.seed, j, round(8 * where))) for j, where, _ in self.visits)
        return 1.0 + (history + 3 * i) % 2

    def run(self, until: float) -> None:
        while True:
            (i,), _ = self.draw(1)
            if self.position > until:
                return
            self.visits.append((i, self.places[i], self.rates[i]))


def outcomes(n: int, until: float, seed: int):
    """Give (chance, visits) for all ways in which the places may fall."""
    scripts: list[list[int]] = [[]]
    while scripts:
        script = scripts.pop()
        queue = ScriptedQueue(n, script, seed)
        queue.run(until)
        if queue.asked > len(script):
            scripts += [[*script, 0], [*script, 1]]
        else:
            yield 0.5 ** len(script), queue.visits


@pytest.mark.parametrize("seed", range(5))
def test_visits_weighted_by_the_length_of_their_unit_cover_the_axis_evenly(seed):
    """E Σ h/r over the visits of i in an interval is ∫h, for h = 1 and for h = t, though rates are learned."""
    covered = {(i, cell): 0.0 for i in range(2) for cell in range(3)}
    moments = dict(covered)
    counts: Counter[float] = Counter()
    total = 0.0
    for chance, visits in outcomes(2, 1.5, seed):
        total += chance
        for i, where, rate in visits:
            covered[i, int(where // 0.5)] += chance / rate
            moments[i, int(where // 0.5)] += chance * where / rate
            counts[rate] += 1
    assert total == approx(1.0, abs=1e-12)
    assert set(counts) == {1.0, 2.0}
    assert covered == approx(dict.fromkeys(covered, 0.5), abs=1e-12)
    assert moments == approx({(i, cell): 0.5 * (0.5 * cell + 0.25) for i, cell in moments}, abs=1e-12)


# --- equal rates are reshuffled epochs


@pytest.mark.parametrize(("n", "k"), [(12, 3), (100, 10), (64, 64), (30, 1)])
def test_equal_rates_are_reshuffled_epochs(n, k):
    bandit = bandit_of(n, k)
    for _ in range(5):
        epoch = np.concatenate([bandit.draw().indices for _ in range(n // k)])
        assert sorted(epoch) == list(range(n))


@pytest.mark.parametrize(("n", "k", "exploration"), [(100, 10, 1.0), (12, 12, 0.2), (18, 10, 0.2)])
def test_where_there_is_nothing_to_choose_rates_stay_equal_whatever_the_scores(n, k, exploration):
    bandit, scores = bandit_of(n, k, exploration=exploration), np.random.default_rng(0).gamma(0.3, size=n)
    for draw in train(bandit, lambda indices: scores[indices], 100):
        assert draw.probs == approx(np.full(k, k / n))
    assert (bandit._axis.rates == 1.0).all()


@pytest.mark.parametrize(("n", "k"), [(10, 3), (7, 5), (5, 4), (100, 33)])
def test_batches_across_the_border_of_an_epoch_hold_distinct_samples_and_no_sample_falls_behind(n, k):
    bandit, counts = bandit_of(n, k), np.zeros(n, dtype=int)
    for _ in range(200):
        draw = bandit.draw()
        assert len(set(draw.indices)) == k
        assert draw.probs == approx(np.full(k, k / n))
        counts[draw.indices] += 1
        assert np.ptp(counts) <= 2  # one of them by the border, one because a sample may wait for the next batch


@pytest.mark.statistical
@pytest.mark.parametrize(("n", "k"), [(4, 2), (5, 2), (5, 3)])
def test_with_equal_rates_all_batches_of_a_size_have_the_same_chance(n, k):
    """By symmetry, every sample is in every batch with probability k/n: the first, and one across a border."""
    runs = 2000
    for number in (0, 2):
        counts = np.zeros(n)
        for seed in range(runs):
            bandit = bandit_of(n, k, seed=seed)
            draws = [bandit.draw() for _ in range(number + 1)]
            counts[draws[-1].indices] += 1
        p = k / n
        assert np.abs(counts / runs - p).max() <= 5 * np.sqrt(p * (1 - p) / runs)


# --- fixed rates


def fixed_rates(n: int, k: int, seed: int = 0) -> tuple[QueueBandit, np.ndarray]:
    """Return a bandit with unequal rates, all of them in force, that hears nothing any more."""
    bandit = bandit_of(n, k, seed=seed)
    bandit.weights = np.random.default_rng(3).gamma(1.0, size=n)
    while (bandit._axis.rates == 1.0).any():
        bandit.draw()
    return bandit, bandit._axis.rates.copy()


@pytest.mark.parametrize(("n", "k"), [(30, 4), (200, 16), (50, 1)])
def test_a_sample_is_visited_as_often_as_its_rate_says_give_or_take_two(n, k):
    bandit, rates = fixed_rates(n, k)
    start, counts = bandit._axis.sums[0], np.zeros(n)
    for _ in range(300):
        draw = bandit.draw()
        counts[draw.indices] += 1
        length = bandit._axis.sums[0] - start
        assert np.abs(counts - rates * length).max() <= 2.0 + 1e-9  # both ends cut through a unit


@pytest.mark.parametrize("seed", [752, 867])
def test_a_sample_that_waits_beyond_its_unit_is_behind_by_no_more_than_that(seed):
    """Batches of 2, and one sample in every second of them: it is due again before the batch is full."""
    n, rng = int(np.random.default_rng(seed).integers(6, 40)), np.random.default_rng(seed)
    bandit, weights = bandit_of(n, 2, seed=seed, exploration=0.05), rng.gamma(0.3, size=n) + 1e-3
    weights[0] = weights.sum()
    bandit.weights = weights
    while (bandit._axis.rates == 1.0).any():
        bandit.draw()
    for _ in range(50):  # until the highest rate and the sum of all agree
        bandit.draw()
    axis, rates = bandit._axis, bandit._axis.rates.copy()
    visits, surplus, waited = np.zeros(n), [-rates * axis.sums[0]], [0.0]
    for _ in range(350):
        visits[bandit.draw().indices] += 1
        surplus.append(visits - rates * axis.sums[0])
        waited.append(np.maximum((axis.sums[0] - axis.begins) * rates - 1.0, 0.0).max())
    assert (axis.rates == rates).all()
    apart = np.ptp(surplus, axis=0).max()
    assert 2.0 < apart <= 2.0 + max(waited) + 1e-9


def test_loss_weights_sum_to_one_up_to_the_units_cut_at_both_ends():
    n, k, draws = 200, 16, 2000
    bandit, rates = fixed_rates(n, k)
    total = sum(bandit.draw().loss_weights.sum() for _ in range(draws))
    bound = 2 * (n + np.sum(rates) / n * np.sum(1 / rates)) / (k * draws)
    assert bound < 0.06
    assert total / draws == approx(1.0, abs=bound)
    assert total / draws == approx(1.0, abs=0.002)  # the ends are cut at random, and mostly cancel


@pytest.mark.statistical
def test_the_estimate_of_a_mean_is_unbiased_at_fixed_rates():
    n, k, runs = 60, 6, 200
    x = np.random.default_rng(1).normal(size=n)
    estimates = np.array([np.mean([_estimate(b.draw(), x) for _ in range(40)]) for b in _fixed(n, k, runs)])
    assert abs(estimates.mean() - x.mean()) <= 5 * estimates.std() / np.sqrt(runs)


def _estimate(draw, x: np.ndarray) -> float:
    return float(draw.loss_weights @ x[draw.indices])


def _fixed(n: int, k: int, runs: int):
    for seed in range(runs):
        yield fixed_rates(n, k, seed)[0]


# --- learned rates


@pytest.mark.statistical
@pytest.mark.parametrize("delay", [0, 8])
def test_the_estimate_of_a_mean_is_unbiased_over_a_whole_training(delay):
    """Weights are learned from what is estimated, as in training, and with batches drawn ahead."""
    n, k, runs = 300, 10, 30
    x = np.random.default_rng(1).gamma(0.5, size=n)
    errors = []
    for seed in range(runs):
        draws = train(bandit_of(n, k, seed=seed), lambda indices: x[indices], 10 * n // k, delay=delay)
        errors.append(np.mean([_estimate(draw, x) for draw in draws]) - x.mean())
    assert abs(np.mean(errors)) <= 5 * np.std(errors) / np.sqrt(runs)
    assert abs(np.mean(errors)) <= 0.01 * x.mean()


@pytest.mark.parametrize("delay", [0, 1, 20, 10**9])
def test_loss_weights_sum_to_one_on_average_however_late_the_scores_are(delay):
    n, k = 2000, 20
    bandit, rng = bandit_of(n, k), np.random.default_rng(0)
    level = rng.gamma(0.5, size=n)
    draws = train(bandit, lambda indices: level[indices] * rng.gamma(2.0, size=len(indices)), 3000, delay=delay)
    assert np.mean([draw.loss_weights.sum() for draw in draws]) == approx(1.0, abs=0.005)


@pytest.mark.parametrize("delay", [0, 20])
def test_rates_come_to_be_in_proportion_to_scores(delay):
    n, k = 1000, 10
    bandit, scores = bandit_of(n, k), np.random.default_rng(0).uniform(0.5, 1.5, size=n)
    train(bandit, lambda indices: scores[indices], 30 * n // k, delay=delay)
    assert bandit._axis.rates == approx(scores / scores.mean(), rel=0.15)


def test_a_new_weight_counts_from_the_next_unit_on_and_not_before():
    bandit = bandit_of(100, 10)
    draw = bandit.draw()
    sample = int(draw.indices[0])
    scores = np.full(10, 0.1)
    scores[0] = 5.0
    bandit.update(draw, scores)
    assert bandit.weights[sample] > 2.5
    for _ in range(9):  # the rest of everyone's first unit
        assert bandit._axis.rates[sample] == 1.0
        bandit.update(draw := bandit.draw(), np.full(10, 0.1))
        assert draw.probs == approx(np.full(10, 0.1))
    bandit.draw()
    assert bandit._axis.rates[sample] == approx(100 * bandit.weights[sample] / bandit.weights.sum(), rel=0.1)


def test_samples_whose_scores_are_lost_stay_in_the_queue_with_their_weight():
    n, k = 200, 10
    bandit, counts = bandit_of(n, k), np.zeros(n)
    for number in range(100):
        draw = bandit.draw()
        counts[draw.indices] += 1
        if number % 3:
            bandit.update(draw, np.where(draw.indices < 100, 1.0, 0.2))
    events = np.sort(np.where(bandit._axis.heap.events < 0, -1 - bandit._axis.heap.events, bandit._axis.heap.events))
    assert events.tolist() == list(range(n))
    assert counts.min() >= 1
    silent = bandit_of(n, k)
    assert (train(silent, None, 500, delay=10**9)[-1].probs == k / n).all()
    assert (silent.weights == 1.0).all()


def test_scores_out_of_order_are_taken_as_they_come():
    bandit = bandit_of(60, 5)
    twin = twin_of(bandit)
    draws = [bandit.draw() for _ in range(8)]
    for draw in draws:
        assert draw.indices.tolist() == twin.draw(5)[0]
    for number in (5, 2, 7, 0):
        scores = np.linspace(0.1, 2.0, 5) * (1.0 + number)
        bandit.update(draws[number], scores)
        twin.update(draws[number].indices.tolist(), draws[number].probs, scores)
        assert bandit.weights == approx(np.array(twin.weights), rel=1e-12)
    heard = np.concatenate([draws[number].indices for number in (5, 2, 7, 0)])
    assert (bandit.weights[np.setdiff1d(np.arange(60), heard)] == 1.0).all()
    assert (bandit.weights[heard] != 1.0).all()


@pytest.mark.parametrize("heavy", [1, 3, 30])
def test_no_sample_is_twice_in_a_batch_nor_expected_in_more_than_every_second(heavy):
    n, k = 400, 20
    bandit, scores = bandit_of(n, k, exploration=0.05), np.full(n, 1e-3)
    scores[:heavy] = 1e3
    for draw in train(bandit, lambda indices: scores[indices], 600):
        assert len(set(draw.indices)) == k
    assert bandit.inclusion_probs().max() <= 0.55
    assert bandit._axis.rates[:heavy].min() > 2.0
    lag = bandit._axis.sums[0] - bandit._axis.heap.keys.min()
    assert lag <= 2 * k / bandit._axis.sums[1]  # whoever waited is in the next batch


def test_weights_stay_in_range_for_ever():
    bandit = bandit_of(20, 5, feedback="scale-free")
    bandit._axis.weights[:] *= 2.0**-99
    bandit._axis.sums[2] *= 2.0**-99
    rng = np.random.default_rng(0)
    for _ in range(400):
        bandit.update(draw := bandit.draw(), rng.gamma(0.1, size=5))
        assert 2.0**-101 < bandit.weights.mean() < 2.0**101
    assert len(set(draw.indices)) == 5
    assert bandit._axis.sums[2] == approx(bandit.weights.sum())


def test_scores_of_zero_change_nothing():
    bandit = bandit_of(20, 5)
    bandit.update(bandit.draw(), np.zeros(5))
    assert (bandit.weights == 1.0).all()


# --- sizes


def test_batches_are_smaller_where_differences_last_and_as_large_where_there_are_none():
    n, k = 3000, 64
    lasting = np.random.default_rng(0).gamma(0.3, size=n)
    rng = np.random.default_rng(1)
    for scores_of, lowest, highest in (
        (lambda indices: lasting[indices], 8, 40),
        (lambda indices: np.full(len(indices), 2.0), 64, 64),
        (lambda indices: rng.gamma(2.0, size=len(indices)), 64, 64),
    ):
        bandit = bandit_of(n, k, min_batch_size=8)
        sizes = [len(draw) for draw in train(bandit, scores_of, 10 * n // k)]
        assert set(sizes) <= set(bandit.sizes)
        assert sizes[: n // k] == [k] * (n // k)
        assert lowest <= np.mean(sizes[-n // k :]) <= highest


def test_inclusion_probs_sum_to_the_next_size():
    n, k = 300, 32
    bandit, scores = bandit_of(n, k, min_batch_size=8), np.random.default_rng(0).gamma(0.3, size=n)
    for _ in range(100):
        promised = bandit.inclusion_probs()
        draw = bandit.draw()
        assert promised.sum() == approx(len(draw))
        bandit.update(draw, scores[draw.indices])


def test_the_sum_of_the_rates_does_not_drift(generator):
    """Each change rounds it, so it is taken anew about once in n visits."""
    bandit = QueueBandit(200, 10, generator=generator)
    scores = np.random.default_rng(0).lognormal(0.0, 1.5, 200)
    for _ in range(30):
        draw = bandit.draw()
        bandit.update(draw, scores[draw.indices])
    bandit._axis.sums[RATES] *= 1.0 + 1e-6  # what very many changes would do
    for _ in range(40):
        draw = bandit.draw()
        bandit.update(draw, scores[draw.indices])
    assert bandit._axis.sums[RATES] == approx(math.fsum(bandit._axis.rates), rel=1e-13)
    assert bandit.inclusion_probs().sum() == approx(10.0, rel=1e-12)


def test_rounding_of_equal_changes_does_not_add_up(generator):
    """Samples that are quiet alike change their rates alike, so all these changes would round the sum one way."""
    n = 100_000
    bandit = QueueBandit(n, 100, generator=generator)
    bandit.weights = np.where(np.arange(n) % 10, 1.0, 1.1)
    errors = []
    for number in range(2 * n // 100):
        bandit.draw()
        if number % 100 == 99:
            errors.append(abs(bandit._axis.sums[RATES] - math.fsum(bandit._axis.rates)))
    assert max(errors) <= 2.0**-36  # the last bit of numbers near 10⁵
