"""Lemma 1 and the lemmas that carry it, on random gradients: what is printed, and the repairs it needs."""

import math

import numpy as np
import pytest

from adamcb.theory import measure_regret
from tests.reference.adamx import SlowAdamX
from tests.theory.problems import clouds, paper_bandit


def adamx_run(gradients, betas, decay, eps=0.0):
    """m and v̂ of every step, [T]."""
    adamx = SlowAdamX([0.0], betas=betas, beta1_decay=decay, eps=eps or 1e-300)
    found = []
    for gradient in gradients:
        adamx.step([gradient])
        found.append((adamx.m[0], adamx.v_hat[0]))
    return np.array(found).T


SETTINGS = [((0.9, 0.999), 0.99), ((0.9, 0.999), 1 - 1e-8), ((0.5, 0.3), 0.5), ((0.8, 0.65), 0.9), ((0.0, 0.5), 0.7)]
GRADIENTS = {
    "noise": lambda rng: rng.normal(size=300),
    "heavy tails": lambda rng: rng.standard_cauchy(size=300),
    "one sign": lambda rng: rng.exponential(size=300),
    "one jump": lambda rng: np.where(np.arange(300) == 150, 100.0, 0.01),
    "dying": lambda rng: 0.9 ** np.arange(300),
}


@pytest.mark.parametrize("name", GRADIENTS)
@pytest.mark.parametrize(("betas", "decay"), SETTINGS)
def test_third_lemma_bounds_the_squares_of_the_momentum(name, betas, decay):
    """Σm²/√(t v̂) ≤ √(ln T + 1)·‖g_1:T‖ / ((1 − β₁)√(1 − β₂)(1 − η))."""
    gradients = GRADIENTS[name](np.random.default_rng(0))
    m, v_hat = adamx_run(gradients, betas, decay)
    eta = betas[0] / math.sqrt(betas[1])
    for steps in (1, 2, 10, 300):
        t = np.arange(1, steps + 1)
        left = (m[:steps] ** 2 / np.sqrt(t * v_hat[:steps])).sum()
        scale = (1 - betas[0]) * math.sqrt(1 - betas[1]) * (1 - eta)
        right = math.sqrt(math.log(steps) + 1) / scale * np.linalg.norm(gradients[:steps])
        assert left <= right * (1 + 1e-12)  # equal for β₁ = 0 and T = 1


def test_the_third_lemma_needs_a_gradient_that_is_not_0():
    """With g_1 = 0 the printed sum is 0/0. Algorithm 1's ε makes it 0."""
    m, v_hat = adamx_run([0.0, 1.0], (0.9, 0.999), 0.99)
    assert m[0] == v_hat[0] == 0.0


def test_epsilon_can_break_the_sign_that_lemma_1_rests_on_and_costs_a_constant():
    """Printed: √(t v̂_t)/(1 − β₁,ₜ), "the essential formula", rises. With √v̂ + ε it may fall, as β₁,ₜ falls. Its rises
    still add up to no more than √T·(√v̂_T/(1 − β₁,T) + ε/(1 − β₁))."""
    betas, decay, eps = (0.9, 0.999), 0.5, 1.0
    gradients = np.random.default_rng(0).normal(size=100)
    _, v_hat = adamx_run(gradients, betas, decay)
    t = np.arange(1, 101)
    beta1 = betas[0] * decay ** (t - 1)
    without = np.diff(np.sqrt(t * v_hat) / (1 - beta1))
    values = np.sqrt(t) * (np.sqrt(v_hat) + eps) / (1 - beta1)
    assert (without > 0).all()
    assert np.diff(values).min() < 0
    rises = values[0] + np.clip(np.diff(values), 0, None).sum()
    assert rises <= 10.0 * (math.sqrt(v_hat[-1]) / (1 - beta1[-1]) + eps / (1 - betas[0]))


@pytest.mark.parametrize("gamma", [0.1, 0.5, 1.0])
def test_lemma_1_holds_on_every_run_and_is_far_above_it(gamma):
    """The proof takes expectations only at its end: each inequality before that holds run by run."""
    problem = clouds(60)
    betas, decay, lr = (0.9, 0.99), 0.8, 0.3
    [regret] = measure_regret(problem, paper_bandit(60, 6, gamma), [80], lr=lr, betas=betas, beta1_decay=decay)
    d, largest, size = problem.dimension, regret.largest_seen, regret.coordinate_diameter
    rho1 = size**2 * largest / (2 * lr * gamma * (1 - betas[0]) ** 2)
    eta = betas[0] / math.sqrt(betas[1])
    rho2 = lr * math.sqrt(1 + math.log(80)) / ((1 - betas[0]) ** 2 * math.sqrt(1 - betas[1]) * (1 - eta))
    rho3 = d * betas[0] * rho1 / (1 - decay) ** 2
    middle = math.sqrt(d) * rho2 * math.sqrt(regret.sampled_moment)
    bound = rho1 * d * math.sqrt(80) + middle + rho3
    assert regret.online <= bound
    assert regret.online < bound / 1000


def test_slips_in_the_auxiliary_lemmas():
    """Σ_{t≥1}αᵗ is α/(1 − α), not 1/(1 − α); Σ_{t≥1}tαᵗ⁻¹ is right, and both need α < 1."""
    alpha = 0.7
    powers = alpha ** np.arange(1, 400)
    assert powers.sum() == pytest.approx(alpha / (1 - alpha))
    assert powers.sum() < 1 / (1 - alpha) - 0.5
    assert (np.arange(1, 400) * powers / alpha).sum() == pytest.approx(1 / (1 - alpha) ** 2)
    assert (1.0 ** np.arange(1, 400)).sum() == 399  # α = 1, which is printed, too: it goes on growing


def test_the_telescoping_sum_ends_with_the_parameters_after_the_last_step():
    """Σ_t c_t(x_t − x_{t+1}) leaves −c_T·x_{T+1}; printed is −c_T·x_T."""
    rng = np.random.default_rng(0)
    c, x = rng.random(5), rng.random(6)
    total = (c * (x[:-1] - x[1:])).sum()
    parted = c[0] * x[0] + (c[1:] * x[1:5]).sum() - (c[:-1] * x[1:5]).sum()
    assert total == pytest.approx(parted - c[4] * x[5])
    assert total != pytest.approx(parted - c[4] * x[4])


def test_ratios_of_weights_multiply_to_the_one_with_the_first_weights():
    """∏_{t=1}^T W_t/W_{t−1} = W_T/W_0, and W_0 = n; printed is W_T/W_1, and W_1 is below n."""
    totals = np.array([4.0, 3.5, 3.0, 2.0])
    product = np.prod(totals[1:] / totals[:-1])
    assert product == pytest.approx(totals[-1] / totals[0])
    assert product != pytest.approx(totals[-1] / totals[1])
