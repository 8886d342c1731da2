"""What the paper prints, tried out: each departure of docs/paper.md that can be shown on batch selection."""

import numpy as np
import pytest
from pytest import approx

from adamcb.selection import CombinatorialBandit, ReplacementBandit
from tests.reference.depround import textbook_distribution
from tests.reference.selection import inclusion_probs


def test_the_printed_gradient_estimate_is_k_times_too_small():
    """Eq. (7), (1/K)·Σ g/(n p), with p that sum to K: its mean over all batches is mean(g)/K."""
    n, k, gradients = 5, 2, np.array([0.2, 0.9, 0.1, 0.4, 0.7])
    probs, _ = inclusion_probs(np.array([1.0, 3.0, 0.5, 1.0, 2.0]), k, 0.4)
    printed = sum(
        chance * np.sum(gradients[list(batch)] / (n * probs[list(batch)])) / k
        for batch, chance in textbook_distribution(probs).items()
    )
    assert printed == approx(gradients.mean() / k)


def test_the_printed_gradient_estimate_is_right_with_replacement():
    """There p sums to 1, and (1/K)·Σ g/(n p) is what `loss_weights` say."""
    bandit = ReplacementBandit(5, 2)
    bandit.weights = [1, 3, 0.5, 1, 2]
    draw = bandit.draw()
    assert draw.loss_weights == approx(1 / (2 * 5 * (draw.probs / 2)))


def printed_cap(weights, k, exploration):
    """Return p after lines 1–11 of Algorithm 2 exactly as printed: i counts from 1, S holds the sum before the step."""
    n, w = len(weights), np.array(weights, dtype=float)
    share = (1 / k - exploration / n) / (1 - exploration)
    if w.max() >= share * w.sum():
        descending, rest = np.sort(w)[::-1], w.sum()
        for i in range(1, n + 1):
            tau = share * rest / (1 - i * share)
            if descending[i - 1] < tau:
                break
            rest -= descending[i - 1]
        w[weights >= tau] = tau
    return k * ((1 - exploration) * w / w.sum() + exploration / n)


def test_the_printed_cap_leaves_probabilities_above_one_and_ours_does_not():
    rng = np.random.default_rng(0)
    needed = broken = 0
    for _ in range(2000):
        n = int(rng.integers(3, 12))
        k = int(rng.integers(1, n))
        weights, exploration = rng.gamma(0.3, size=n) + 1e-6, float(rng.uniform(0, 0.9))
        plain = k * ((1 - exploration) * weights / weights.sum() + exploration / n)
        bandit = CombinatorialBandit(n, k, exploration=exploration, gate=None)
        bandit.weights = weights
        ours = bandit.inclusion_probs()
        assert ours.max() <= 1.0
        assert ours.sum() == approx(k)
        if plain.max() > 1.0 + 1e-9:
            needed += 1
            printed = printed_cap(weights, k, exploration)
            broken += bool(printed.max() > 1.0 + 1e-9 or printed.min() < 0.0 or abs(printed.sum() - k) > 1e-9)
    assert needed > 500
    assert broken == needed


def test_the_printed_weight_update_hardly_moves_a_weight():
    """K = 128, n = 60,000, γ = 0.4: Algorithm 3 as printed multiplies by at least exp(−0.00086) a visit."""
    listing = CombinatorialBandit(60_000, 128, feedback="listing", gate=None)
    proof = CombinatorialBandit(60_000, 128, feedback="proof", gate=None)
    norms = np.zeros(128)  # the strongest push there is: ℓ = 1
    norms[0] = 1.0
    change = {}
    for name, bandit in (("listing", listing), ("proof", proof)):
        draw = bandit.draw()
        bandit.update(draw, norms)
        change[name] = -np.log(bandit.weights.min())
    assert change["listing"] == approx(128 * 0.4 / 60_000)
    assert change["listing"] < 0.00086
    assert change["proof"] == approx(0.4)


@pytest.mark.parametrize("feedback", ["proof", "listing"])
def test_a_sample_once_capped_is_capped_for_ever(feedback, generator):
    """Losses only lower weights and capped ones keep theirs, so the cap τ falls below them more and more."""
    bandit = CombinatorialBandit(30, 6, feedback=feedback, gate=None, generator=generator)
    bandit.weights = np.where(np.arange(30) == 4, 100.0, 1.0)
    gap = []
    for _ in range(300):
        draw = bandit.draw()
        assert 4 in draw.indices
        bandit.update(draw, np.where(draw.indices == 4, 0.0, 1.0))  # it has long been learned
        weights = bandit.weights
        gap.append(weights[4] / np.delete(weights, 4).sum())
    assert (np.diff(gap) >= 0).all()
    assert gap[-1] > gap[0]


def test_selecting_by_numpy_choice_has_other_probabilities():
    """What public code does in DepRound's place: 0.83/0.67/0.37/0.13 instead of 1/0.6/0.3/0.1."""
    p = np.array([0.5, 0.3, 0.15, 0.05])
    included = np.zeros(4)
    for i in range(4):
        for j in range(4):
            if i != j:
                included[[i, j]] += p[i] * p[j] / (1 - p[i])
    assert included.round(3).tolist() == [0.829, 0.669, 0.372, 0.13]
    assert np.abs(included - 2 * p).max() > 0.15
