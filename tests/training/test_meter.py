"""The meter's readings against exact values on a problem small enough to compute them."""

import itertools
import math
import re
from functools import partial

import numpy as np
import pytest
from pytest import approx

from adamcb import AdamCB, CombinatorialBandit, ReplacementBandit, UniformSelection
from adamcb.selection import Draw
from adamcb.training import Meter
from tests.problems import SMALL_WEIGHTS, draw_of
from tests.selection.enumeration import fast_distribution
from tests.training.problem import digits, losses_of, mlp, train

NORMS = np.array([0.5, 3.0, 0.0, 1.0, 10.0, 0.1, 2.0])
GAMMA = 0.4


def outcomes(weights: np.ndarray, batch_size: int) -> tuple[CombinatorialBandit, list]:
    bandit = CombinatorialBandit(7, batch_size, exploration=GAMMA, gate=None)
    bandit.weights = weights
    probs = bandit.inclusion_probs()
    chances = fast_distribution(weights, batch_size, GAMMA).items()
    return bandit, [(c, draw_of(bandit, sorted(s), probs)) for s, c in chances]


def averages_after(draw, norms) -> tuple[float, float]:
    """Return what one batch adds to the two averages."""
    meter = Meter(7, len(draw))
    meter.note_scores(draw, norms)
    sums = meter.state_dict()["moment"]
    return sums["chosen"] / (1 - meter.memory), sums["uniform"] * 7 / len(draw) / (1 - meter.memory)


@pytest.mark.parametrize("name", SMALL_WEIGHTS)
@pytest.mark.parametrize("batch_size", [1, 3, 6])
def test_both_second_moments_are_estimated_without_bias(name, batch_size):
    bandit, batches = outcomes(SMALL_WEIGHTS[name], batch_size)
    ours = uniform = 0.0
    for chance, draw in batches:
        parts = averages_after(draw, NORMS[draw.indices])
        ours, uniform = ours + chance * parts[0], uniform + chance * parts[1]
    assert ours == approx(np.sum(NORMS**2 / bandit.inclusion_probs()), rel=1e-10)
    assert uniform == approx(np.sum(NORMS**2) * 7 / batch_size, rel=1e-10)


def test_the_second_moment_settles_at_the_exact_ratio(generator):
    bandit = CombinatorialBandit(7, 3, exploration=0.2, gate=None, generator=generator)
    bandit.weights = NORMS + 0.1
    meter, readings = Meter(7, 3), []
    for _ in range(4000):
        draw = bandit.draw()
        meter.note_scores(draw, NORMS[draw.indices])
        readings.append(meter.second_moment)
    probs = bandit.inclusion_probs()
    exact = np.sum(NORMS**2 / probs) / (np.sum(NORMS**2) * 7 / 3)
    settled = np.array(readings[500:])
    # A reading remembers about 100 batches: these are about 35 independent ones.
    assert settled.mean() == approx(exact, abs=5 * settled.std() / math.sqrt(35))
    assert exact < 0.7
    assert meter.as_dict()["variance_reduction"] == 1.0 - meter.second_moment


@pytest.mark.parametrize("make", [partial(CombinatorialBandit, gate=None), ReplacementBandit])
def test_coverage_largest_weight_and_effective_sample_size_are_exact(make, generator):
    selection = make(50, 8, generator=generator)
    selection.weights = np.linspace(0.1, 5.0, 50)
    meter, seen, largest, size, trust = Meter(50, 8), set(), 0.0, 0.0, 0.0
    for step in range(1, 7):
        draw = selection.draw()
        meter.note_draw(draw)
        seen |= set(draw.indices.tolist())
        largest = max(largest, *(8 * draw.loss_weights))
        size = 0.98 * size + 0.02 * sum(draw.loss_weights) ** 2 / sum(draw.loss_weights**2)
        trust = 0.98 * trust + 0.02
        now = meter.as_dict()
        assert now["steps"] == step
        assert now["coverage"] == len(seen) / 50
        assert now["largest_weight"] == approx(largest, rel=1e-12)
        assert now["effective_sample_size"] == approx(size / trust, rel=1e-12)
    meter.start_epoch()
    assert meter.as_dict()["coverage"] == 0.0
    assert math.isnan(meter.as_dict()["largest_weight"])


def test_uniform_sampling_reads_as_uniform():
    with AdamCB(mlp(), digits(96), 8, selection=UniformSelection(96, 8)) as trainer:
        for x, y in trainer:
            trainer.step(losses_of(trainer.model, x, y))
    now = trainer.meter.as_dict()
    assert now["coverage"] == 1.0
    assert now["largest_weight"] == approx(1.0)
    assert now["effective_sample_size"] == approx(8.0)
    assert math.isnan(now["second_moment"])  # nothing is measured


def test_in_training_it_reads_below_1_once_weights_have_learned():
    with AdamCB(mlp(), digits(300), 16, lr=0.01) as trainer:
        train(trainer, 11 * len(trainer))  # epochs end with chosen batches
    now = trainer.meter.as_dict()
    assert 0.0 < now["second_moment"] < 0.9
    assert 1.0 < now["effective_sample_size"] < 16.0
    assert now["largest_weight"] > 1.0


def test_an_epoch_starts_anew_and_seconds_add_up():
    trainer = AdamCB(mlp(), digits(100), 8)
    for _ in range(2):
        for x, y in trainer:
            trainer.step(losses_of(trainer.model, x, y))
        assert trainer.meter.as_dict()["coverage"] <= 96 / 100
    now = trainer.meter.as_dict()
    assert now["steps"] == 24
    seconds = [now[f"seconds_{phase}"] for phase in ("selection", "data", "training")]
    assert all(value > 0.0 for value in seconds)


def test_it_prints_as_one_line():
    trainer = AdamCB(mlp(), digits(100), 8)
    assert repr(trainer.meter) == "Meter(no step yet)"
    train(trainer, 3)
    line = str(trainer.meter)
    assert re.match(r"step 3: 100 % of the samples, the noise of \d+; effective sample size", line)
    assert "\n" not in line
    assert sum(int(part.split()[-2]) for part in line.split("; ")[2].split(",")) == approx(100, abs=2)


def test_the_time_of_a_step_is_compared_with_that_of_full_batches(monkeypatch):
    now = 0.0
    monkeypatch.setattr("adamcb.training._meter.clock", lambda: now)
    meter, selection = Meter(100, 10), UniformSelection(100, 10)
    full = selection.draw()
    few = Draw(full.indices[:4], full.probs[:4], full.loss_weights[:4], full.origin)
    assert math.isnan(meter.seconds_ratio)
    for draw, seconds in ((full, 9.0), (full, 3.0), (full, 5.0), (few, 1.0), (few, 3.0)):  # the first does not count
        meter.note_draw(draw)
        meter.note_fetched(since=now, drawing=0.0)
        now += seconds
        meter.note_step_end()
    assert meter.seconds_ratio == approx(3.0 / 4.0)
    assert "76 % of the samples, unknown noise, 0.75 of the time;" in str(meter)


def test_batches_that_vary_half_as_much_have_the_noise_of_twice_as_many():
    meter, selection = Meter(100, 10), UniformSelection(100, 10)
    draw = selection.draw()
    meter.note_scores(Draw(draw.indices, 2.0 * draw.probs, draw.loss_weights, draw.origin), np.ones(10))
    assert meter.as_dict()["noise_of"] == approx(20.0)


@pytest.mark.parametrize("num_samples", [7, 8, 1001])
def test_its_state_is_saved(num_samples, generator):
    selection = CombinatorialBandit(num_samples, 3, generator=generator)
    meter, fresh = Meter(num_samples, 3), Meter(num_samples, 3)
    for _, draw in zip(range(5), itertools.repeat(selection.draw()), strict=False):
        meter.note_draw(draw)
        meter.note_scores(draw, np.array([1.0, 2.0, 3.0]))
    fresh.load_state_dict(meter.state_dict())
    assert {**fresh.as_dict()} == {**meter.as_dict()}


@pytest.mark.parametrize("key", Meter(10, 2).state_dict())
def test_a_state_that_lacks_something_is_refused_by_name(key):
    meter = Meter(10, 2)
    state = {name: value for name, value in meter.state_dict().items() if name != key}
    with pytest.raises(ValueError, match=rf"`state\['meter'\]` must be a dict with the keys .*{key}.*, got the keys"):
        meter.load_state_dict(state)
    with pytest.raises(TypeError, match=r"`state\['meter'\]\['average'\]` must be a dict, got .* of type NoneType"):
        meter.load_state_dict({**meter.state_dict(), "average": None})
