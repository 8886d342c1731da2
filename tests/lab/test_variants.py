"""The variants of the gated bandit that the evidence compares it with."""

import numpy as np
import pytest
import torch

from adamcb.lab.experiment import Experiment
from adamcb.lab.methods import Method
from adamcb.lab.runs.building import warm_up
from adamcb.lab.tasks.datasets import load_dataset
from adamcb.lab.tasks.images import image_task
from adamcb.selection import CombinatorialBandit, Selection
from benchmarks import variants

VARIANTS = {name: value for name, value in vars(variants).items() if isinstance(value, Method)}


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_trains_under_a_name_of_its_own(name):
    assert [method.name for method in VARIANTS.values()].count(VARIANTS[name].name) == 1
    task = image_task(load_dataset("digits"), "logistic")
    warm_up(Experiment(batch_size=4).completed(task), VARIANTS[name], task)


def new(variant: Method, **options) -> CombinatorialBandit:
    """The variant's bandit for batches of 10 out of 100."""
    if "total_steps" in variant.needs:
        options["total_steps"] = 400
    if variant.exploration is not None:
        options["exploration"] = variant.exploration
    assert variant.selection is not None
    bandit = variant.selection(100, 10, generator=torch.Generator().manual_seed(0), **options)
    assert isinstance(bandit, CombinatorialBandit)
    return bandit


def long_and_short(bandit: Selection, draws: int) -> list[np.ndarray]:
    """Train on ten long gradients and ninety short ones, and return what was drawn with."""
    norms = np.where(np.arange(100) < 10, 10.0, 0.1)
    probs = []
    for _ in range(draws):
        draw = bandit.draw()
        probs.append(draw.probs)
        bandit.update(draw, norms[draw.indices])
    return probs


def test_every_variant_shows_the_values_that_it_is_composed_of():
    assert "feedback=ScaleFree(rate=0.3, bound=0.3, memory=0.9), gate=AtOnce(min_gain=0.1)" in repr(
        new(variants.bound_03)
    )
    assert "gate=FixedShare(min_gain=0.1, share=0.5)" in repr(new(variants.half))
    assert "feedback=Linear(rate=1.0)" in repr(new(variants.linear))
    assert "feedback=Logarithmic(rate=0.3, bound=3.0, memory=0.9), gate=SquaredShare(" in repr(new(variants.hasty))
    assert repr(new(variants.fading)).startswith("Fading(")
    assert new(variants.no_gate).gate is None


def test_logarithmic_feedback_leaves_probabilities_in_proportion_to_norms():
    """What the norms of a sample average to geometrically decides, so weights fall as fast as they rise."""
    bandit = CombinatorialBandit(
        100, 10, exploration=0.0, feedback=variants.Logarithmic(), gate=None, generator=torch.Generator().manual_seed(0)
    )
    norms = np.where(np.arange(100) < 50, 3.0, 1.0)
    for _ in range(2000):
        draw = bandit.draw()
        bandit.update(draw, norms[draw.indices])
    probs = bandit.inclusion_probs()
    assert probs[:50].mean() / probs[50:].mean() == pytest.approx(3.0, rel=0.01)


def test_linear_feedback_leaves_those_above_the_floor_in_proportion_to_their_norms():
    """Ninety short gradients end at p_min = 0.04; the 6.4 draws that are left go to ten long ones in equal parts."""
    bandit = new(variants.linear, gate=None)
    long_and_short(bandit, 500)
    assert bandit.inclusion_probs()[:10] == pytest.approx(np.full(10, 0.64), rel=0.01)
    assert bandit.inclusion_probs()[10:] == pytest.approx(np.full(90, 0.04), rel=0.01)


def test_exploration_follows_the_gain():
    bandit = new(variants.following, gate=None)
    bandit.draw()
    assert bandit.min_prob == 0.4 * 10 / 100  # nothing is known
    long_and_short(bandit, 300)
    assert bandit.min_prob < 0.3 * 10 / 100
    assert bandit.inclusion_probs()[:10].mean() > 2 * bandit.inclusion_probs()[10:].mean()


def test_every_second_epoch_covers_the_data():
    bandit, twin = (new(variants.covering, gate=None) for _ in range(2))
    long_and_short(bandit, 30)
    chosen = [np.ptp(probs) > 0.0 for probs in long_and_short(bandit, 40)]
    assert chosen == [True] * 10 + [False] * 10 + [True] * 10 + [False] * 10
    twin.load_state_dict(bandit.state_dict())
    for ours, theirs in zip(long_and_short(bandit, 20), long_and_short(twin, 20), strict=True):
        assert (ours == theirs).all()


@pytest.mark.parametrize(
    ("variant", "expected"),
    [
        (variants.at_once, [True] * 10),
        (variants.half, [False] * 5 + [True] * 5),
        (variants.third, [False] * 3 + [True] * 7),
        (variants.alternating, [False, True] * 5),
    ],
)
def test_which_batches_of_an_epoch_are_chosen(variant, expected):
    bandit = new(variant)
    long_and_short(bandit, 30)
    assert [np.ptp(probs) > 0.0 for probs in long_and_short(bandit, 10)] == expected


def test_the_squared_ratio_leaves_more_batches_to_be_chosen():
    chosen = []
    for variant in (variants.gated, variants.squared):
        chosen.append(sum(np.ptp(probs) > 0.0 for probs in long_and_short(new(variant), 200)))
    assert 100 < chosen[0] < chosen[1] < 200


def test_nothing_is_learned_from_reshuffled_batches_once_choosing_pays():
    bandit = new(variants.unlearned)
    long_and_short(bandit, 50)
    learned = []
    for _ in range(10):
        before = bandit.weights
        (probs,) = long_and_short(bandit, 1)
        learned.append((bool((bandit.weights != before).any()), bool(np.ptp(probs) > 0.0)))
    assert {(True, True), (False, False)} == set(learned)


def test_fading_ends_with_uniform_draws():
    ranges = [np.ptp(probs) for probs in long_and_short(new(variants.fading, gate=None), 401)]
    assert min(ranges[150:200]) > 0.4
    assert max(ranges[300:310]) > 0.1
    for step in range(200, 401):  # what exploration leaves to the weights
        assert ranges[step] <= 10 * 0.6 * (400 - step) / 200 + 1e-12
