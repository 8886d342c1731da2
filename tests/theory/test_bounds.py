"""The bounds: by hand, and how they grow."""

import math
from typing import Any

import numpy as np
import pytest
from pytest import approx

from adamcb.theory import bandit_regret, constants, exploration, regret_bound, regret_order
from tests.theory.problems import paper_bandit

SETTING: dict[str, Any] = dict(
    num_samples=1000, batch_size=20, steps=500, dimension=30, max_norm=3.0, diameter=2.0, lr=0.05
)


def test_exploration_is_lemma_2s_and_is_1_for_short_horizons():
    assert exploration(1000, 20, 5000) == approx(math.sqrt(1000 * math.log(50) / ((math.e - 1) * 5000 * 20)))
    assert exploration(1000, 20, 5000, method="adambs") == approx(
        math.sqrt(1000 * math.log(1000) / ((math.e - 1) * 5000))
    )
    assert exploration(1000, 20, 100) == 1.0
    assert exploration(1000, 1000, 100) == 0.0


def test_lemma_2_sets_gamma_1_where_its_proof_divides_by_1_minus_gamma():
    """For T ≤ n ln(n/K)/((e − 1)K): 1,677 steps of MNIST at K = 128. What is bounded there cannot be more than TK."""
    n, k = 60_000, 128
    last = math.floor(n * math.log(n / k) / ((math.e - 1) * k))
    assert last == 1677
    assert 1.0 - exploration(n, k, last) == 0.0
    assert 1.0 - exploration(n, k, last + 1) > 0.0
    assert bandit_regret("adamcb", n, k, last, 1.0) == last * k


def test_gamma_0_which_the_algorithms_allow_has_no_bound_and_no_loss_and_learns_nothing():
    """Condition (d) is γ in [0, 1). ρ₁ holds 1/γ; p_min is 0, so the printed loss is 0·∞; Δ log w = −(Kγ/n)ℓ̂ is 0."""
    setting: Any = dict(max_norm=1.0, diameter=1.0, lr=0.1)
    rho = [constants(100, 10, exploration=gamma, **setting).rho1 for gamma in (1e-3, 1e-9)]
    assert rho[1] / rho[0] == approx(1e6)
    with pytest.raises(ValueError, match="`exploration` must be"):
        constants(100, 10, exploration=0.0, **setting)
    p_min = np.float64(0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        assert np.isnan(p_min**2 / 1.0 * (-(0.5**2) / 0.1**2 + 1.0 / p_min**2))
    bandit = paper_bandit(20, 4, 0.0, max_norm=1.0)
    for _ in range(50):
        draw = bandit.draw()
        bandit.update(draw, np.linspace(0.0, 1.0, 20)[draw.indices])
    assert bandit.weights == approx(np.ones(20))


def test_the_constants_are_those_of_lemma_1():
    rho = constants(500, 30, max_norm=3.0, diameter=2.0, exploration=0.25, lr=0.05, betas=(0.8, 0.81), beta1_decay=0.5)
    assert rho.rho1 == approx(4 * 3 / (2 * 0.05 * 0.25 * 0.04))
    assert rho.rho2 == approx(0.05 * math.sqrt(1 + math.log(500)) / (0.04 * math.sqrt(0.19) * (1 - 0.8 / 0.9)))
    assert rho.rho3 == approx(30 * 0.8 * 4 * 3 / (2 * 0.05 * 0.25 * 0.04 * 0.25))


@pytest.mark.parametrize("method", ["adamcb", "adambs"])
def test_at_lemma_2s_exploration_the_bandits_regret_is_the_printed_one(method):
    n, k, steps = 1000, 20, 50_000
    printed = k * math.sqrt(n * steps * math.log(n))
    if method == "adamcb":
        printed = math.sqrt(k * n * steps * math.log(n / k))
    found = bandit_regret(method, n, k, steps, exploration(n, k, steps, method=method))
    assert found == approx(2 * math.sqrt(math.e - 1) * printed)
    assert 2.62 * printed < found < 2.63 * printed


def test_the_bandit_cannot_lose_more_than_everything():
    assert bandit_regret("adamcb", 1000, 20, 10, 1.0) == 200.0


@pytest.mark.parametrize("method", ["adamcb", "adambs"])
def test_the_bandits_bound_term_by_term(method):
    gamma, rho2 = 0.3, 0.05 * math.sqrt(1 + math.log(500)) / (0.01 * math.sqrt(0.001) * (1 - 0.9 / math.sqrt(0.999)))
    bound = regret_bound(method, **SETTING, exploration=gamma, beta1_decay=0.9, eps=1e-3)
    rho1 = 4 * 3 / (2 * 0.05 * gamma * 0.01)
    # In the paper's own letters: AdamCB's p sums to K, so that its unbiased estimate has K² times the printed square.
    p_min, scale = (20 * gamma / 1000, 20**2) if method == "adamcb" else (gamma / 1000, 1)
    regret = bandit_regret(method, 1000, 20, 500, gamma)
    assert bound.distance == approx(rho1 * 30 * math.sqrt(500))
    assert bound.norms == approx(3 * rho2 * math.sqrt(30 * 500))
    assert bound.sampling == approx(math.sqrt(30) * rho2 * math.sqrt(scale * 9 / p_min**2 * regret / (1000**2 * 20)))
    assert bound.momentum == approx(rho1 * 30 * 0.9 / 0.01)
    assert bound.minimizers == approx(2 * 0.05 * 9 * math.sqrt(500) / (1e-3 * gamma**2 * 0.1))
    assert bound.online == approx(bound.distance + bound.norms + bound.sampling + bound.momentum)
    assert bound.printed == approx(bound.online + bound.minimizers)


def test_uniform_sampling_pays_for_the_variance_of_the_norms_whatever_n():
    small, large = (regret_bound("uniform", **{**SETTING, "num_samples": n}, norm_std=0.7) for n in (100, 10_000))
    assert small == large
    assert small.sampling / small.norms == approx(0.7 / 3)


def test_measured_norms_tighten_the_bound():
    assert regret_bound("adamcb", **SETTING, mean_norm=0.3).norms == approx(
        0.1 * regret_bound("adamcb", **SETTING).norms
    )


def test_with_lemma_2s_exploration_the_bound_of_adamcb_grows_like_t_and_with_a_fixed_one_like_its_root():
    setting: Any = dict(SETTING, beta1_decay=0.5)
    for gamma, power in ((None, 4.0), (0.4, 2.0)):
        short, long = (
            regret_bound("adamcb", **{**setting, "steps": steps}, exploration=gamma) for steps in (10**8, 4 * 10**8)
        )
        assert long.distance / short.distance == approx(power, rel=1e-6)
        assert long.online / short.online > 0.9 * power


def test_with_its_hidden_constant_the_bandits_term_rises_with_k_and_like_the_three_quarters_power_of_t():
    def sampling(**changes):
        sizes = {**SETTING, "steps": 10**6, **changes}
        return regret_bound("adamcb", **sizes).sampling / math.sqrt(1 + math.log(sizes["steps"]))

    assert sampling(steps=16 * 10**6) / sampling() == approx(8)
    shape = [(k / (n * math.log(n / k))) ** 0.25 for k, n in ((20, 1000), (320, 1000), (20, 16_000))]
    assert sampling(batch_size=320) / sampling() == approx(shape[1] / shape[0])
    assert sampling(num_samples=16_000) / sampling() == approx(shape[2] / shape[0])


def test_the_bound_of_adamcb_is_least_where_it_is_uniform_sampling():
    for steps in (100, 10_000, 10**6):
        gammas = [0.01 * step for step in range(1, 101)]
        bounds = [regret_bound("adamcb", **{**SETTING, "steps": steps}, exploration=gamma).online for gamma in gammas]
        assert bounds == sorted(bounds, reverse=True)
        assert regret_bound("uniform", **{**SETTING, "steps": steps}).online <= bounds[-1]


def test_at_a_fixed_exploration_the_sampling_term_rises_with_n_where_table_1_has_it_fall():
    sizes: Any = dict(batch_size=20, steps=100_000)
    few, many = (
        regret_bound("adamcb", **{**SETTING, **sizes, "num_samples": n}, exploration=0.1).sampling for n in (2000, 4000)
    )
    assert many > few
    printed = [regret_order("adamcb", num_samples=n, dimension=30, **sizes)[1] for n in (2000, 4000)]
    assert printed[1] < printed[0]


def test_table_1_as_printed():
    sizes: Any = dict(num_samples=16, batch_size=4, steps=100, dimension=9)
    assert regret_order("uniform", **sizes) == approx((90, 3 * math.sqrt(100 / 16)))
    assert regret_order("adambs", **sizes) == approx((90, 3 / 8 * (100 * math.log(16)) ** 0.25))
    assert regret_order("adamcb", **sizes) == approx((90, 3 / 8 * (25 * math.log(4)) ** 0.25))


BAD = {
    "method": (lambda: regret_bound("adam", **SETTING), "`method` must be one of 'uniform', 'adambs', 'adamcb'"),
    "K above n": (lambda: exploration(10, 11, 5), "`batch_size` must be at most 10"),
    "γ is 0": (
        lambda: regret_bound("adamcb", **SETTING, exploration=0.0),
        r"`exploration` must be .* in \[1e-100, 1\]",
    ),
    "λ is 1": (lambda: regret_bound("uniform", **SETTING, beta1_decay=1.0), r"`beta1_decay` must be .* in \(0, 1\)"),
    "β₁ is √β₂": (lambda: regret_bound("uniform", **SETTING, betas=(0.5, 0.25)), r"`betas\[1\]` must be"),
    "uniform's γ": (lambda: exploration(10, 2, 5, method="uniform"), "`method` must be one of 'adamcb', 'adambs'"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_arguments_are_refused(case):
    call, message = BAD[case]
    with pytest.raises(ValueError, match=message):
        call()
