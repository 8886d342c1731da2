"""The variants of the default that the evidence compares it with."""

import numpy as np
import pytest
import torch

from adamcb.lab.experiment import Experiment
from adamcb.lab.methods import METHODS, Method
from adamcb.lab.runs.building import warm_up
from adamcb.lab.tasks.datasets import load_dataset
from adamcb.selection import CombinatorialBandit, Selection
from adamcb.selection._feedback import ScaleFreeFeedback
from adamcb.selection._gate import Gate
from benchmarks import variants

VARIANTS = {name: value for name, value in vars(variants).items() if isinstance(value, Method) and name != "DEFAULT"}


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_trains_under_a_name_of_its_own(name):
    assert [method.name for method in VARIANTS.values()].count(VARIANTS[name].name) == 1
    warm_up(Experiment(dataset="digits", model="logistic", batch_size=4), VARIANTS[name], load_dataset("digits"))


def test_clipping_at_1_is_the_default_s():
    ours, theirs = (kind(0.3, None, Gate(0.1)) for kind in (variants.Clipped, ScaleFreeFeedback))
    source = np.random.default_rng(0)
    for _ in range(20):
        probs = np.minimum(source.uniform(0.1, 1.2, 16), 1.0)
        norms = source.lognormal(size=16)
        np.testing.assert_allclose(ours.factors(probs, norms, probs), theirs.factors(probs, norms, probs), rtol=1e-12)


def test_linear_feedback_leaves_those_above_the_floor_in_proportion_to_their_norms():
    """Ninety short gradients end at p_min = 0.04; the 6.4 draws that are left go to ten long ones in equal parts."""
    generator = torch.Generator().manual_seed(0)
    bandit = variants._linear_bandit(100, 10, exploration=0.4, min_gain=0.0, generator=generator)
    norms = np.where(np.arange(100) < 10, 10.0, 0.1)
    for _ in range(500):
        draw = bandit.draw()
        bandit.update(draw, norms[draw.indices])
    assert bandit.inclusion_probs()[:10] == pytest.approx(np.full(10, 0.64), rel=0.01)
    assert bandit.inclusion_probs()[10:] == pytest.approx(np.full(90, 0.04), rel=0.01)


def test_exploration_follows_the_gain():
    bandit = variants.FollowingExploration(
        100, 10, feedback="scale-free", generator=torch.Generator().manual_seed(0), min_gain=0.0
    )
    norms = np.where(np.arange(100) < 10, 10.0, 0.1)
    bandit.draw()
    assert bandit.min_prob == 0.4 * 10 / 100  # nothing is known
    for _ in range(300):
        draw = bandit.draw()
        bandit.update(draw, norms[draw.indices])
    assert bandit.min_prob < 0.3 * 10 / 100
    assert bandit.inclusion_probs()[:10].mean() > 2 * bandit.inclusion_probs()[10:].mean()


def long_and_short(bandit: Selection, draws: int) -> list[np.ndarray]:
    """Train on ten long gradients and ninety short ones, and return what was drawn with."""
    norms = np.where(np.arange(100) < 10, 10.0, 0.1)
    probs = []
    for _ in range(draws):
        draw = bandit.draw()
        probs.append(draw.probs)
        bandit.update(draw, norms[draw.indices])
    return probs


def test_every_second_epoch_covers_the_data():
    bandit = variants.covering.selection(
        100, 10, exploration=0.4, min_gain=0.0, generator=torch.Generator().manual_seed(0)
    )
    long_and_short(bandit, 30)
    chosen = [np.ptp(probs) > 0.0 for probs in long_and_short(bandit, 40)]
    assert chosen == [True] * 10 + [False] * 10 + [True] * 10 + [False] * 10
    saved = bandit.state_dict()
    twin = variants.covering.selection(100, 10, exploration=0.4, min_gain=0.0, generator=None)
    twin.load_state_dict(saved)
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
    bandit = variant.selection(100, 10, exploration=0.4, generator=torch.Generator().manual_seed(0))
    long_and_short(bandit, 30)
    assert [np.ptp(probs) > 0.0 for probs in long_and_short(bandit, 10)] == expected


def test_the_squared_ratio_leaves_more_batches_to_be_chosen():
    chosen = []
    for variant in (METHODS["adamcb"], variants.squared):
        bandit = variant.selection(100, 10, exploration=0.4, generator=torch.Generator().manual_seed(0))
        chosen.append(sum(np.ptp(probs) > 0.0 for probs in long_and_short(bandit, 200)))
    assert 100 < chosen[0] < chosen[1] < 200


def test_nothing_is_learned_from_reshuffled_batches_once_choosing_pays():
    bandit = variants.unlearned.selection(100, 10, exploration=0.4, generator=torch.Generator().manual_seed(0))
    assert isinstance(bandit, CombinatorialBandit)
    long_and_short(bandit, 50)
    learned = []
    for _ in range(10):
        before = bandit.weights
        (probs,) = long_and_short(bandit, 1)
        learned.append((bool((bandit.weights != before).any()), bool(np.ptp(probs) > 0.0)))
    assert {(True, True), (False, False)} == set(learned)


def test_fading_ends_with_uniform_draws():
    bandit = variants.fading.selection(
        100, 10, exploration=0.4, total_steps=400, min_gain=0.0, generator=torch.Generator().manual_seed(0)
    )
    ranges = [np.ptp(probs) for probs in long_and_short(bandit, 401)]
    assert min(ranges[150:200]) > 0.4
    assert max(ranges[300:310]) > 0.1
    for step in range(200, 401):  # what exploration leaves to the weights
        assert ranges[step] <= 10 * 0.6 * (400 - step) / 200 + 1e-12


def test_settings_of_a_bandit_are_changed():
    bandit = variants._bandit(100, 10, memory=0.5, bound=3.0, generator=torch.Generator().manual_seed(0))
    assert isinstance(bandit, CombinatorialBandit)
    assert isinstance(bandit._feedback, variants.Clipped)
    assert (bandit._feedback.memory, bandit._feedback.bound, bandit._feedback.rate) == (0.5, 3.0, 0.3)
