"""Measured regret: against its definitions, and what it must be whatever the batches."""

import math

import numpy as np
import pytest
import torch
from pytest import approx

from adamcb.lab.results.statistics import estimate
from adamcb.selection import ReplacementBandit, UniformSelection
from adamcb.theory import Interval, constants, growth_exponent, interval, measure_regret
from adamcb.theory._measure import _evaluated_steps
from tests.reference.regret import slow_regret
from tests.theory.problems import clouds, paper_bandit, scale_free_bandit

SETTINGS = {"lr": 0.3, "betas": (0.9, 0.99), "beta1_decay": 0.8, "eps": 1e-8}
SELECTIONS = {
    "adamcb": lambda n, k, seed: paper_bandit(n, k, 0.3, seed=seed),
    "scale-free": lambda n, k, seed: scale_free_bandit(n, k, 0.3, seed=seed),
    "adambs": lambda n, k, seed: ReplacementBandit(
        n, k, exploration=0.3, generator=torch.Generator().manual_seed(seed)
    ),
    "uniform": lambda n, k, seed: paper_bandit(n, k, 1.0, seed=seed),
    "reshuffled": lambda n, k, seed: UniformSelection(n, k, generator=torch.Generator().manual_seed(seed)),
}


def seeded(name, n=30, k=4, seed=0):
    return SELECTIONS[name](n, k, seed)


@pytest.mark.parametrize("name", ["adamcb", "adambs", "reshuffled"])
def test_every_quantity_is_that_of_its_definition(name):
    problem = clouds(16)
    [found] = measure_regret(problem, seeded(name, 16), [15], **SETTINGS)
    slow = slow_regret(problem, seeded(name, 16), 15, **SETTINGS)
    slack = 1e-7 / problem.penalty  # how far from the minimizer a gradient norm of 1e-7 may be
    assert slow.pop("least_diameter") <= found.diameter + slack
    assert slow.pop("least_coordinate_diameter") <= found.coordinate_diameter + slack
    assert found.coordinate_diameter <= found.diameter
    # θ* is known to 1e-8/μ, and the sum of the batches is not flat there.
    assert found.overfit == approx(slow.pop("overfit"), abs=1e-8 / problem.penalty)
    for field, value in slow.items():
        assert getattr(found, field) == approx(value, rel=1e-7, abs=1e-8), field


@pytest.mark.parametrize("name", SELECTIONS)
def test_the_decomposition_holds_for_every_run_and_lemma_1_bounds_it(name):
    problem = clouds(200)
    for regret in measure_regret(problem, seeded(name, 200, 10), [10, 150], **SETTINGS):
        assert regret.cumulative == approx(
            regret.online + regret.gap_batches + regret.gap_minimizers, rel=1e-9, abs=1e-9
        )
        assert regret.cumulative > 0.0
        assert regret.overfit >= 0.0
        assert regret.best_moment <= regret.best_fixed_moment <= regret.moment * (1 + 1e-12)
        assert regret.best_fixed_moment <= regret.uniform_moment
        gamma = 1.0 if name in ("uniform", "reshuffled") else 0.3
        rho = constants(
            regret.steps, problem.dimension, max_norm=regret.largest_seen, diameter=regret.coordinate_diameter,
            exploration=gamma, lr=0.3, betas=(0.9, 0.99), beta1_decay=0.8,
        )  # fmt: skip
        outer = rho.rho1 * problem.dimension * math.sqrt(regret.steps) + rho.rho3
        tight = outer + rho.rho2 * regret.gradient_sums
        assert regret.online <= tight
        assert tight <= outer + rho.rho2 * math.sqrt(problem.dimension * regret.sampled_moment)


def test_horizons_of_one_run_do_not_disturb_each_other():
    problem = clouds()
    several = measure_regret(problem, seeded("adamcb"), [5, 20], **SETTINGS)
    for result in several:
        assert measure_regret(problem, seeded("adamcb"), [result.steps], **SETTINGS) == [result]


def test_evaluating_fewer_steps_changes_estimates_only():
    problem = clouds(200)
    [exact] = measure_regret(problem, seeded("adamcb", 200, 10), [500], **SETTINGS)
    [rough] = measure_regret(problem, seeded("adamcb", 200, 10), [500], **SETTINGS, every=5)
    assert rough.online == exact.online
    assert rough.overfit == exact.overfit
    assert rough.cumulative == approx(exact.cumulative, rel=0.02)
    assert rough.cumulative != exact.cumulative


def test_a_horizon_in_the_middle_of_a_block_has_its_share_of_the_sums():
    """Of steps 101 to 105 the third is evaluated, and stands for all: the first horizon has none of it."""
    problem, several = clouds(200), [102, 105]
    before, after = measure_regret(problem, seeded("adamcb", 200, 10), several, **SETTINGS, every=5)
    [exact] = measure_regret(problem, seeded("adamcb", 200, 10), [100], **SETTINGS)
    for name in ("cumulative", "moment", "uniform_moment", "best_fixed_moment", "best_moment"):
        assert getattr(before, name) == approx(102 / 100 * getattr(exact, name), rel=1e-12), name
    assert after.cumulative == approx(exact.cumulative + 5 * after.loss, rel=1e-12)


@pytest.mark.parametrize(("steps", "every"), [(7, 1), (100, 3), (101, 3), (5, 10)])
def test_evaluated_steps_stand_for_all_steps(steps, every):
    counts = _evaluated_steps(steps, every)
    assert counts.sum() == steps
    assert (counts[: 20 * every] == 1).all()
    assert np.count_nonzero(counts[20 * every :]) == math.ceil(max(0, steps - 20 * every) / every)


def test_nothing_global_is_seeded_or_changed():
    before = torch.get_rng_state()
    measure_regret(clouds(), seeded("adamcb"), [3])
    assert torch.equal(before, torch.get_rng_state())


def test_growth_exponents_have_intervals_over_seeds():
    across = np.array([1.0, 2.0, 4.0, 8.0])
    values = [3.0 * across**power for power in (0.4, 0.5, 0.6)]
    found = growth_exponent(across, values)
    assert found.mean == approx(0.5)
    assert found.margin == approx(4.303 * 0.1 / math.sqrt(3))
    assert str(growth_exponent(across, values[0])) == "0.40"
    assert interval([2.0] * 40) == Interval(2.0, 0.0)


def test_intervals_are_those_of_the_lab():
    for count in range(2, 60):
        values = [float(value % 7) for value in range(count)]
        rel = 0.0005 / 2.131 if count <= 16 else 0.005  # a table with three decimals, and what goes on from there
        assert interval(values).margin == approx(estimate(values).margin, rel=rel)


BAD = {
    "no horizon": (lambda: measure_regret(clouds(), seeded("adamcb"), []), "`horizons` must be rising"),
    "falling": (lambda: measure_regret(clouds(), seeded("adamcb"), [5, 3]), r"got horizons=\[5, 3\]"),
    "other n": (lambda: measure_regret(clouds(), seeded("adamcb", 29), [5]), "among the 30 samples of the problem"),
    "every": (lambda: measure_regret(clouds(), seeded("adamcb"), [5], every=0), "`every` must be at least 1"),
    "one point": (lambda: growth_exponent([1.0], [[2.0]]), "for at least two points"),
    "negative": (lambda: growth_exponent([1.0, 2.0], [[2.0, -1.0]]), "`values` must be finite and above 0"),
    "empty": (lambda: interval([]), "`values` must be a vector that is not empty"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_arguments_are_refused(case):
    call, message = BAD[case]
    with pytest.raises(ValueError, match=message):
        call()
