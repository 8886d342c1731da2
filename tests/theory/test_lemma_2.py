"""Lemma 2, its twin for AdamBS and its form for an unknown L: displays that fail. Explained in docs/theory.md."""

import math
from typing import Any

import numpy as np
import pytest
from pytest import approx

from adamcb.theory import bandit_regret, best_probs, exploration, regret_bound, second_moment
from tests.theory.problems import all_draws, paper_bandit, probs_of

E = math.e


def exp3(losses: np.ndarray, k: int, gamma: float, steps: int) -> tuple[np.ndarray, float]:
    """Play the proof's update against losses in [0, 1], [n] or [steps, n]; return Σ_tℓ̂ for every sample and the total
    loss Σ_tΣ_{j∈J_t}ℓ."""
    n, rng = losses.shape[-1], np.random.default_rng(0)
    weights, estimates, total = np.ones(n), np.zeros(n), 0.0
    for loss in np.broadcast_to(losses, (steps, n)):
        probs = probs_of(weights, k, gamma)
        assert probs.max() < 1.0
        batches, chances = zip(*all_draws(probs), strict=True)
        batch = batches[rng.choice(len(batches), p=np.array(chances) / sum(chances))]
        estimate = loss[batch] / probs[batch]
        estimates[batch] += estimate
        weights[batch] *= np.exp(-k * gamma / n * estimate)
        total += float(loss[batch].sum())
    return estimates, total


def test_combining_its_two_halves_gives_the_opposite_of_the_printed_display():
    """ln(W_T/W_0) is at least A = −(γ/n)Σ_{J*}ℓ̂ + ln(K/n) and at most B = −γ/(n(1−γ))Σℓ + …: A ≤ B bounds the loss of
    the algorithm from above. Printed is a bound from below, and it is broken. Here with e − 1 for e − 2, which makes up
    for the −γ/n that the printed B drops: with e − 2 this run breaks A ≤ B, too."""
    losses, k, gamma, steps = np.array([0.0, 0.0, 0.0, 1.0, 1.0, 1.0]), 2, 0.2, 1500
    n = len(losses)
    estimates, total = exp3(losses, k, gamma, steps)
    log_term = n / gamma * math.log(n / k)
    unit = k * gamma / (n * (1 - gamma)) * estimates.sum()
    for batch in ([0, 1], [3, 4], [1, 5]):  # for every set of K samples, on every run
        assert total / (1 - gamma) <= estimates[batch].sum() + log_term + (E - 1) * unit
    assert total / (1 - gamma) > estimates[[0, 1]].sum() + log_term + (E - 2) * unit
    printed = estimates[[3, 4]].sum() - log_term <= total / (1 - gamma) + (E - 2) * unit
    assert not printed


def test_combining_the_two_halves_for_adambs_gives_the_opposite_too():
    """Algorithms 4 and 5 with K = 1: printed is Σℓ ≥ (1−γ)Σℓ̂_j − (n ln n)/γ − (e−2)(γ/n)ΣΣℓ̂ for every j."""
    losses, gamma, steps = np.array([0.0, 0.0, 1.0, 1.0]), 0.2, 1500
    n = len(losses)
    estimates, total = exp3(losses, 1, gamma, steps)
    unit = gamma / n * estimates.sum()
    for j in range(n):
        assert total <= (1 - gamma) * estimates[j] + n * math.log(n) / gamma + (E - 1) * unit
    printed = total >= (1 - gamma) * estimates[3] - n * math.log(n) / gamma - (E - 2) * unit
    assert not printed


def test_what_holds_for_one_sample_does_not_hold_for_the_best_of_every_step():
    """Printed in the lemma for AdamBS: "Since j ∈ J_t were chosen arbitrarily, we can choose the best J_t* for every
    iteration t". But j is one for all t. Here K = 1, and a coin says at each step which of two samples has loss 1."""
    gamma, steps, n = 0.2, 1500, 2
    losses = np.eye(n)[np.random.default_rng(1).integers(n, size=steps)]
    _, total = exp3(losses, 1, gamma, steps)
    price, unit = n * math.log(n) / gamma, gamma / n * losses.sum()

    def repaired(comparator):
        return total <= (1 - gamma) * comparator + price + (E - 1) * unit

    def printed(comparator):
        return total >= (1 - gamma) * comparator - price - (E - 2) * unit

    assert all(repaired(losses[:, j].sum()) and printed(losses[:, j].sum()) for j in range(n))
    assert not repaired(losses.min(axis=1).sum())
    assert not printed(losses.max(axis=1).sum())


def test_with_the_papers_losses_the_printed_inequality_holds_by_the_floor_alone():
    """Σpℓ = K − (p_min²/L²)Σ‖g‖²/p ≥ K − Kγ for any p ≥ Kγ/n. So L_MIN − L_EXP3 ≤ γTK for any sampler."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        n, gamma = int(rng.integers(3, 30)), float(rng.uniform(0.05, 1.0))
        k = int(rng.integers(1, n // 2 + 1))
        norms = rng.uniform(0.0, 1.0, n) ** 3
        norms /= norms.max()
        probs = probs_of(rng.gamma(0.3, size=n) + 1e-6, k, gamma)
        losses = 1.0 - (k * gamma / n * norms / probs) ** 2
        assert losses.min() >= -1e-12
        assert (probs * losses).sum() >= k * (1.0 - gamma) - 1e-9
        assert gamma * k <= bandit_regret("adamcb", n, k, 1, gamma)


@pytest.mark.parametrize("reading", ["least loss", "largest loss"])
def test_the_scaling_display_equates_two_different_numbers(reading):
    """Printed: Σ_alg − min_p Σ = (L²/p_min²)(L_MIN − L_EXP3). But L_MIN keeps the algorithm's own p."""
    norms, probs, k = np.array([1.0, 0.0]), np.array([0.5, 0.5]), 1
    gap = second_moment(norms, probs) - second_moment(norms[:1], best_probs(norms, k)[:1])
    squares = norms**2 / probs**2
    star = squares.max() if reading == "least loss" else squares.min()
    assert gap == approx(1.0)
    # TK cancels: (L²/p_min²)(L_MIN − E L_EXP3) = E Σ_{J_t}‖g‖²/p² − Σ_{J*}‖g‖²/p²
    assert second_moment(norms, probs) - star == approx(-2.0 if reading == "least loss" else 2.0)


def test_the_floor_alone_gives_all_that_lemma_2_gives():
    """3,000 random settings: the term for the bandit is never below √dρ₂√(TL²/γ), which holds for every sampler."""
    rng = np.random.default_rng(1)
    for _ in range(3000):
        n = int(rng.integers(2, 100_000))
        k, steps = int(rng.integers(1, n)), int(rng.integers(1, 10**6))
        gamma = None if rng.random() < 0.3 else float(rng.uniform(1e-3, 1.0))
        bound = regret_bound(
            ("adamcb", "adambs")[int(rng.integers(2))], num_samples=n, batch_size=k, steps=steps, dimension=9,
            max_norm=float(rng.gamma(1.0)), diameter=1.0, lr=0.1, exploration=gamma,
        )  # fmt: skip
        assert bound.sampling >= bound.floor * (1 - 1e-12)


def test_no_sampler_with_that_floor_has_a_larger_second_moment():
    """S = (K/n²)Σ‖g‖²/p ≤ (1/γ)·(1/n)Σ‖g‖² ≤ L²/γ, whatever p ≥ Kγ/n is; and some p comes close to it."""
    rng = np.random.default_rng(2)
    for _ in range(300):
        n, gamma = int(rng.integers(2, 40)), float(rng.uniform(0.01, 1.0))
        k = int(rng.integers(1, n + 1))
        norms, probs = rng.gamma(0.5, size=n), probs_of(rng.gamma(0.1, size=n) + 1e-9, k, gamma)
        moment = k / n**2 * second_moment(norms, probs)
        assert moment <= (norms**2).mean() / gamma * (1 + 1e-12)
    norms, weights = np.append(np.ones(9), 0.0), np.append(np.full(9, 1e-12), 1.0)
    assert 1 / 100 * second_moment(norms, probs_of(weights, 1, 0.01)) == approx(0.9 / 0.01, rel=1e-6)


def test_a_visit_moves_a_weight_by_exp_of_minus_gamma_at_uniform_p_and_of_minus_1_at_the_floor():
    """K = 128, n = 60,000, γ = 0.4; a norm of 0, so that ℓ = 1."""
    change = {}
    for place, light in (("uniform", 1.0), ("floor", 1e-12)):
        bandit = paper_bandit(60_000, 128, 0.4, max_norm=1.0)
        bandit.weights = np.where(np.arange(60_000) < 30_000, light, 1.0)
        draw = bandit.draw()
        while not (draw.indices < 30_000).any():
            draw = bandit.draw()
        light_ones = draw.indices[draw.indices < 30_000]
        before = bandit.weights[light_ones]
        bandit.update(draw, np.zeros(128))
        change[place] = np.log(bandit.weights[light_ones] / before)
    assert change["uniform"] == approx(-0.4)
    assert change["floor"] == approx(-1.0)


def test_with_l_unknown_the_loss_estimate_is_biased_and_no_single_l_fits():
    """Norms 1, 2, 3, 4; K = 2; the first step, so that L_1 = max_{J_1}‖g‖. E ℓ̂_j = 1 − (p_min‖g_j‖/(L p_j))² would need
    another L for every j."""
    norms, gamma, k = np.array([1.0, 2.0, 3.0, 4.0]), 0.4, 2
    probs = np.full(4, 0.5)
    p_min = k * gamma / 4
    expected = np.zeros(4)
    for batch, chance in all_draws(probs, every_order=True):
        largest = norms[batch].max()
        expected[batch] += chance * (1.0 - (p_min * norms[batch] / (largest * probs[batch])) ** 2) / probs[batch]
    implied = p_min * norms / probs / np.sqrt(1.0 - expected)
    low = 1 / math.sqrt((1 / 4 + 1 / 9 + 1 / 16) / 3)  # the partner is as likely one as another
    assert implied == approx([low, low, 1 / math.sqrt((1 / 9 + 1 / 9 + 1 / 16) / 3), 4.0])
    for largest in (implied.min(), 3.0, norms.max()):
        assert abs(1.0 - (p_min * norms / (largest * probs)) ** 2 - expected).max() > 0.005


def test_with_l_unknown_the_printed_scale_is_upside_down():
    """Printed: Σ(L_t²/p_min²)‖g‖²/p² makes a difference of losses. ℓ = 1 − (p_min²/L_t²)‖g‖²/p² needs the inverse."""
    norm, prob, p_min, largest = 0.6, 0.3, 0.1, 2.0
    loss = 1.0 - (p_min * norm / (largest * prob)) ** 2
    assert 1.0 - loss == approx(p_min**2 / largest**2 * norm**2 / prob**2)
    assert 1.0 - loss != approx(largest**2 / p_min**2 * norm**2 / prob**2, rel=0.9)


def test_a_rising_l_cannot_be_pulled_out_of_a_sum_of_both_signs():
    """Σy_t ≤ B does not give ΣL_t²y_t ≤ L_T²B, although L_t rises."""
    largest, regret = np.array([1.0, 2.0]), np.array([-1.0, 1.0])
    assert regret.sum() <= 0.0
    assert (largest**2 * regret).sum() > largest[-1] ** 2 * max(regret.sum(), 0.0)


def test_the_largest_norm_sampled_is_random():
    """So ρ′₁ and ρ′₃, which hold L_T, cannot stand outside an expectation; and ρ′₃ is below ρ₃ unless L was seen."""
    norms, seen = np.array([1.0, 2.0, 3.0, 4.0]), {}
    for batch, chance in all_draws(np.full(4, 0.25)):
        seen[norms[batch].max()] = seen.get(norms[batch].max(), 0.0) + chance
    assert seen == approx({1.0: 0.25, 2.0: 0.25, 3.0: 0.25, 4.0: 0.25})
    mean = sum(largest * chance for largest, chance in seen.items())
    setting: Any = dict(num_samples=4, batch_size=1, steps=1, dimension=1, diameter=1.0, lr=0.1, exploration=0.4)
    unknown, known = (regret_bound("adamcb", max_norm=largest, **setting).momentum for largest in (mean, norms.max()))
    assert unknown < known


def test_the_printed_optimum_sums_to_1_and_not_to_k():
    norms, k = np.array([3.0, 2.0, 2.0, 1.0]), 2
    printed = norms / norms.sum()
    assert printed.sum() == approx(1.0)
    assert best_probs(norms, k) == approx(k * printed)
    assert second_moment(norms, k * printed) == approx(norms.sum() ** 2 / k)


def test_adambs_with_its_exploration_never_leaves_uniform_sampling_on_mnist():
    assert exploration(60_000, 128, 820 * 468, method="adambs") == 1.0
