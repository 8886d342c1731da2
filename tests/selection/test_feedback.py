import numpy as np
import pytest
import torch
from pytest import approx
from scipy.optimize import minimize

from adamcb.selection import CombinatorialBandit, Gate, ListingFeedback, ProofFeedback, ReplacementBandit, ScaleFree
from adamcb.selection._projection import project_to_floor
from adamcb.selection._tree import build_tree
from tests.reference.selection import SlowCombinatorialBandit, SlowReplacementBandit, inclusion_probs, project


# n = 4, K = 2, γ = 1/2, equal weights: p = 1/2 and p_min = Kγ/n = 1/4. Norms 1 and 1/2, so L = 1.
# ℓ = 1 − (p_min‖g‖/(L p))² = 3/4 and 15/16; the rate is Kγ/n = 1/4.
@pytest.mark.parametrize(
    ("feedback", "expected"),
    [
        ("proof", [-(1 / 4) * (3 / 4) / (1 / 2), -(1 / 4) * (15 / 16) / (1 / 2)]),
        ("listing", [-(1 / 4) * (3 / 4), -(1 / 4) * (15 / 16)]),
        ("scale-free", [0.3 * (4 / 2.5 - 1), 0.3 * (1 / 2.5 - 1)]),  # s = (‖g‖/p)² = 4 and 1, their mean G = 5/2
    ],
)
def test_a_worked_example_of_each_form(feedback, expected):
    bandit = CombinatorialBandit(4, 2, exploration=0.5, feedback=feedback, gate=None)
    draw = bandit.draw()
    bandit.update(draw, [1.0, 0.5])
    assert np.log(bandit.weights[draw.indices]) == approx(expected)
    others = np.setdiff1d(np.arange(4), draw.indices)
    assert (bandit.weights[others] == 1.0).all()


# p = 1/4, p_min = γ/n = 1/8: ℓ = 3/4 and 15/16 again; Δ log w = −(γ/n)·ℓ/(K p) for every occurrence.
def test_a_worked_example_of_corrected_adambs():
    bandit = ReplacementBandit(4, 2, exploration=0.5)
    draw = bandit.draw()
    bandit.update(draw, [1.0, 0.5])
    expected = np.zeros(4)
    np.add.at(expected, draw.indices, [-(1 / 8) * (3 / 4) / (1 / 2), -(1 / 8) * (15 / 16) / (1 / 2)])
    assert np.log(bandit.weights) == approx(expected)


def test_the_smallest_probabilities_are_k_gamma_over_n_and_gamma_over_n():
    combinatorial = CombinatorialBandit(10, 4, exploration=0.3, gate=None)
    replacement = ReplacementBandit(10, 4, exploration=0.3)
    for bandit in (combinatorial, replacement):
        bandit.weights = [1.0] + [0.0] * 9
    assert combinatorial.min_prob == approx(4 * 0.3 / 10)
    assert replacement.min_prob == approx(0.3 / 10)
    assert replacement.inclusion_probs().min() == approx(4 * replacement.min_prob)
    combinatorial.weights = [1.0] * 9 + [0.0]
    assert combinatorial.inclusion_probs().min() == approx(combinatorial.min_prob)


def simulated_norms(rng, difficulty, indices, step):
    """Norms as training gives them: some samples are hard, all get easier, some are exactly 0."""
    norms = difficulty[indices] * rng.lognormal(sigma=0.5, size=len(indices)) / (1 + step / 300)
    return np.where(rng.random(len(indices)) < 0.05, 0.0, norms)


# As far as the twin is followed.
STEPS = [250, pytest.param(1000, marks=pytest.mark.slow)]


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("delay", [0, 5])
@pytest.mark.parametrize("max_norm", [None, 400.0])
@pytest.mark.parametrize("exploration", [0.05, 0.4])
@pytest.mark.parametrize(
    ("rule", "gate"), [("proof", None), ("listing", None), ("scale-free", None), ("scale-free", Gate(0.3))]
)
def test_steps_equal_those_of_the_slow_twin(rule, gate, exploration, max_norm, delay, steps, generator):
    n, k = 60, 8
    feedback = {"proof": ProofFeedback(max_norm), "listing": ListingFeedback(max_norm), "scale-free": ScaleFree()}[rule]
    bandit = CombinatorialBandit(n, k, exploration=exploration, feedback=feedback, gate=gate, generator=generator)
    slow = SlowCombinatorialBandit(n, k, exploration, rule, max_norm, min_gain=0.0 if gate is None else gate.min_gain)
    rng = np.random.default_rng(0)
    difficulty = rng.gamma(0.3, size=n)
    waiting = []
    for step in range(steps):
        draw = bandit.draw()
        norms = simulated_norms(rng, difficulty, draw.indices, step)
        probs, capped = slow.draw_probs(step % (n // k))
        assert draw.probs == approx(probs[draw.indices], rel=1e-8)
        assert ((draw.probs == 1.0) == capped[draw.indices]).all()
        waiting.append((draw, norms))
        if len(waiting) > delay:
            draw, norms = waiting.pop(0)
            bandit.update(draw, norms)
            slow.update(draw.indices, draw.probs, norms)
    weights = bandit.weights
    assert np.log(weights / weights.max()) == approx(slow.log_w - slow.log_w.max(), abs=1e-8)


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("max_norm", [None, 400.0])
@pytest.mark.parametrize("form", ["corrected", "original"])
def test_steps_of_adambs_equal_those_of_the_slow_twin(form, max_norm, steps, generator):
    n, k = 40, 8
    bandit = ReplacementBandit(n, k, form=form, max_norm=max_norm, generator=generator)
    slow = SlowReplacementBandit(n, k, 0.4, form, max_norm)
    rng = np.random.default_rng(0)
    difficulty = rng.gamma(0.3, size=n)
    repeats = 0
    for step in range(steps):
        draw = bandit.draw()
        norms = simulated_norms(rng, difficulty, draw.indices, step)
        repeats += len(set(draw.indices.tolist())) < k
        assert draw.probs == approx(k * slow.probs()[draw.indices], rel=1e-9)
        bandit.update(draw, norms)
        slow.update(draw.indices, draw.probs / k, norms)
    assert repeats > steps / 10  # so that repeated samples were really among those compared
    assert bandit.inclusion_probs() / k == approx(slow.probs(), rel=1e-9)


@pytest.mark.parametrize("feedback", ["proof", "listing"])
def test_capped_samples_keep_their_weight(feedback, generator):
    bandit = CombinatorialBandit(50, 5, feedback=feedback, gate=None, generator=generator)
    bandit.weights = np.where(np.arange(50) == 7, 1e4, 1.0)
    before = bandit.weights
    draw = bandit.draw()
    bandit.update(draw, np.full(5, 2.0))
    after = bandit.weights
    assert after[7] == before[7]
    drawn = np.setdiff1d(draw.indices, [7])
    assert len(drawn) == 4
    assert (after[drawn] < before[drawn]).all()


@pytest.mark.parametrize(("feedback", "stays"), [("proof", True), ("scale-free", False)])
def test_a_capped_sample_without_gradient_is_stuck_by_the_paper_and_freed_by_scale_free_feedback(
    feedback, stays, generator
):
    bandit = CombinatorialBandit(50, 5, feedback=feedback, gate=None, generator=generator)
    bandit.weights = np.where(np.arange(50) == 7, 1e4, 1.0)
    for _ in range(200):
        draw = bandit.draw()
        bandit.update(draw, np.where(draw.indices == 7, 0.0, 1.0))
    assert (bandit.inclusion_probs()[7] == 1.0) is np.bool_(stays)


def test_a_capped_sample_does_not_wind_up_its_weight(generator):
    bandit = CombinatorialBandit(50, 5, gate=None, generator=generator)
    bandit.weights = np.where(np.arange(50) == 7, 1e4, 1.0)
    draw = bandit.draw()
    bandit.update(draw, np.where(draw.indices == 7, 1e6, 1.0))
    assert bandit.weights[7] == 1e4


def test_a_sample_that_was_quiet_for_long_is_noticed_again_within_a_few_visits(generator):
    bandit = CombinatorialBandit(50, 10, generator=generator)
    quiet = np.arange(50) < 25
    for epoch in range(212):
        norms = np.where(quiet, 0.01 if epoch < 200 else 3.0, 1.0)
        for _ in range(5):
            draw = bandit.draw()
            bandit.update(draw, norms[draw.indices])
    assert bandit.weights[:25].min() > bandit.weights[25:].max()


def test_batches_drawn_far_ahead_of_the_feedback_still_lead_to_the_best_probabilities(generator):
    """A sample is in many of them: all say that its weight is too low, and it must not rise for each."""
    bandit = CombinatorialBandit(2000, 20, generator=generator)
    norms = np.random.default_rng(0).lognormal(sigma=1.5, size=2000)
    waiting, ratios = [], []
    for step in range(4000):
        waiting.append(bandit.draw())
        if len(waiting) > 64:
            draw = waiting.pop(0)
            bandit.update(draw, norms[draw.indices])
        if step >= 3000 and step % 100 == 99:  # the last batch of an epoch
            ratios.append(np.sum(norms**2 / bandit.inclusion_probs()) / np.sum(norms**2 * 100))
    best = inclusion_probs(norms, 20, 0.4)[0]
    assert max(ratios) < 1.02 * np.sum(norms**2 / best) / np.sum(norms**2 * 100)


def test_without_exploration_samples_of_no_weight_do_not_spoil_what_is_learned(generator):
    bandit = CombinatorialBandit(10, 2, exploration=0.0, generator=generator)
    bandit.weights = [1.0] * 4 + [0.0] * 6
    for _ in range(20):  # reshuffled, so that they are in the batches all the same
        draw = bandit.draw()
        bandit.update(draw, np.where(draw.indices % 2 == 0, 0.0, 1.0))
    assert (bandit.weights[4:] == 0.0).all()
    assert (bandit.weights[:4] > 0.0).all()
    bandit.load_state_dict(bandit.state_dict())


def test_scale_free_feedback_does_not_know_the_scale_of_the_norms():
    bandits = [CombinatorialBandit(30, 6, generator=_seeded()) for _ in range(2)]
    rng = np.random.default_rng(5)
    for _ in range(50):
        norms = rng.random(6)
        for bandit, scale in zip(bandits, (1.0, 2.0**70), strict=True):
            bandit.update(bandit.draw(), scale * norms)
    assert (bandits[0].weights == bandits[1].weights).all()


def _seeded():
    return torch.Generator().manual_seed(11)


@pytest.mark.parametrize("feedback", ["proof", "listing", "scale-free"])
def test_norms_that_are_all_zero_are_no_information(feedback, generator):
    bandit = CombinatorialBandit(30, 6, feedback=feedback, generator=generator)
    draw = bandit.draw()
    bandit.update(draw, np.zeros(6))
    assert np.isfinite(bandit.weights).all()
    assert np.ptp(bandit.weights[draw.indices]) == 0.0


@pytest.mark.parametrize("seed", range(10))
def test_the_projection_is_what_a_general_convex_solver_finds(seed):
    rng = np.random.default_rng(seed)
    n = 6
    floor = 0.5 / n
    p = project(rng.dirichlet(np.ones(n)), floor)
    fallen = np.sort(rng.choice(n, size=3, replace=False))
    w = p.copy()
    w[fallen] *= rng.uniform(0.05, 1.0, size=3)
    tree = build_tree(w)
    project_to_floor(tree, fallen, floor)
    actual = tree.leaves[:n] / tree.leaves[:n].sum()
    solution = minimize(
        lambda q: np.sum(q * np.log(q / w)),
        np.full(n, 1 / n),
        jac=lambda q: np.log(q / w) + 1.0,
        bounds=[(floor, 1.0)] * n,
        constraints={"type": "eq", "fun": lambda q: q.sum() - 1.0, "jac": lambda q: np.ones(n)},
        method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 500},
    )
    assert solution.success
    assert actual == approx(solution.x, abs=1e-6)  # what SLSQP can tell
    assert actual == approx(project(w, floor), abs=1e-12)


def test_a_projection_may_raise_every_sample():
    tree = build_tree(np.array([0.5, 0.25, 0.25]))
    project_to_floor(tree, np.arange(3), 1.0 / 3.0)
    assert tree.leaves[:3] / tree.leaves[:3].sum() == approx(np.full(3, 1 / 3))


@pytest.mark.parametrize("draws", [1000, pytest.param(20_000, marks=pytest.mark.slow)])
def test_a_million_updates_leave_no_drift(draws, generator):
    n, k = 1000, 4
    bandit = CombinatorialBandit(n, k, exploration=0.2, generator=generator)
    rng = np.random.default_rng(0)
    difficulty = rng.gamma(0.5, size=n)
    for _ in range(draws):
        draw = bandit.draw()
        for noise in rng.lognormal(size=(50, 1)):
            bandit.update(draw, noise * difficulty[draw.indices])
    assert bandit.inclusion_probs().sum() == approx(k, abs=1e-9)
    fresh = build_tree(bandit._tree.leaves[:n])
    assert (fresh.nodes == bandit._tree.nodes).all()
    assert (fresh.leaves == bandit._tree.leaves).all()
