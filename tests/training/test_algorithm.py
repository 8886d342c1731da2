"""`AdamCB` against Algorithm 1 by the book, and its gradient estimate against the full gradient."""

import copy
import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.testing import assert_allclose
from pytest import approx
from torch.nn.utils import parameters_to_vector

from adamcb import AdamCB, CombinatorialBandit, Draw, ReplacementBandit, Selection, paper
from adamcb.selection import Gate
from adamcb.selection._random import new_seed
from tests.problems import SMALL_WEIGHTS, draw_of
from tests.reference.adamcb import SlowAdamBS, SlowAdamCB
from tests.selection.enumeration import fast_distribution
from tests.training.problem import cnn, digits, losses_of, mlp

STEPS = 200
# No common divisor: with equal weights, a cut that falls between two samples would be decided by rounding.
N, K, GAMMA = 301, 16, 0.4


def v_hat(trainer: AdamCB) -> np.ndarray:
    states = trainer.optimizer.state.values()
    return torch.cat([state["max_exp_avg_sq"].flatten() for state in states]).numpy()


def numbers_of_next_draw(bandit: CombinatorialBandit) -> tuple[np.ndarray, np.ndarray, int]:
    """Return the order and the uniforms that the bandit is about to use, and how many draws the epoch has seen."""
    twin = copy.deepcopy(bandit)
    if twin._drawn == twin.num_samples // twin.batch_size:
        twin._start_epoch(new_seed(twin.generator), twin.weights)
    return np.asarray(twin._order), twin._uniforms.take(), twin._drawn


def compare(trainer: AdamCB, slow, numbers) -> None:
    """Train both for `STEPS` steps and compare batch, parameters, v̂ and weights after each."""
    batches = itertools.chain.from_iterable(itertools.repeat(trainer))
    for _ in range(STEPS):
        random_numbers = numbers(trainer.selection)
        batch = next(batches)
        x, y = batch
        trainer.step(losses_of(trainer.model, x, y))
        assert slow.step(*random_numbers) == batch.draw.indices.tolist()
        parameters = parameters_to_vector(trainer.model.parameters()).detach().numpy()
        weights = trainer.selection.weights  # pyright: ignore[reportAttributeAccessIssue]
        assert_allclose(parameters, slow.adamx.theta, rtol=0, atol=1e-9)
        assert_allclose(v_hat(trainer), slow.adamx.v_hat, rtol=1e-9, atol=1e-15)
        assert_allclose(weights / weights.sum(), slow.weights(), rtol=1e-9, atol=0)


@pytest.mark.parametrize(("make", "feedback"), [(mlp, "proof"), (cnn, "proof"), (cnn, "scale-free")])
def test_200_steps_are_those_of_algorithm_1(make, feedback, generator):
    model, dataset = make(dtype=torch.float64), digits(N, torch.float64)
    slow = SlowAdamCB(model, F.cross_entropy, dataset.tensors, K, GAMMA, feedback, lr=0.01)
    gate = Gate(0.1) if feedback == "scale-free" else None
    selection = CombinatorialBandit(N, K, exploration=GAMMA, feedback=feedback, gate=gate, generator=generator)
    optimizer = paper.adamx(model.parameters(), lr=0.01)
    with AdamCB(model, dataset, K, selection=selection, optimizer=optimizer, scores="exact") as trainer:
        compare(trainer, slow, numbers_of_next_draw)
    assert selection.weights.std() > 0.01 * selection.weights.mean()


def test_200_steps_are_those_of_adambs_corrected(generator):
    model, dataset = mlp(dtype=torch.float64), digits(N, torch.float64)
    slow = SlowAdamBS(model, F.cross_entropy, dataset.tensors, K, GAMMA, lr=0.01)
    selection = ReplacementBandit(N, K, exploration=GAMMA, generator=generator)
    optimizer = paper.adamx(model.parameters(), lr=0.01)
    with AdamCB(model, dataset, K, selection=selection, optimizer=optimizer, scores="exact") as trainer:
        compare(trainer, slow, lambda bandit: (copy.deepcopy(bandit)._uniforms.take(),))


def test_200_steps_of_the_recommended_bandit_are_those_of_its_slow_twin(generator):
    model, dataset = mlp(dtype=torch.float64), digits(N, torch.float64)
    slow = SlowAdamCB(model, F.cross_entropy, dataset.tensors, K, GAMMA, "scale-free", lr=0.01, bias_correction=True)
    selection = CombinatorialBandit(N, K, exploration=GAMMA, generator=generator)
    with AdamCB(model, dataset, K, lr=0.01, selection=selection, scores="exact") as trainer:
        compare(trainer, slow, numbers_of_next_draw)


class Script(Selection):
    """A selection that hands out the draws it was given, one after the other."""

    learns = False

    def __init__(self, num_samples: int, batch_size: int, draws: list[Draw]) -> None:
        super().__init__(num_samples, batch_size)
        self.draws = iter(draws)

    def draw(self) -> Draw:
        return next(self.draws)


def expectation(outcomes: list[tuple[float, Draw]], dataset, batch_size: int) -> tuple[float, np.ndarray]:
    """Return the mean of the weighted loss and of the gradient that the optimizer sees, over these outcomes."""
    model = cnn(dtype=torch.float64)
    selection = Script(len(dataset), batch_size, [draw for _, draw in outcomes])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    trainer = AdamCB(model, dataset, batch_size, selection=selection, optimizer=optimizer)
    mean_loss, mean_gradient = 0.0, np.zeros(0)
    batches = itertools.chain.from_iterable(itertools.repeat(trainer))
    for (chance, _), (x, y) in zip(outcomes, batches, strict=False):
        mean_loss += chance * trainer.step(losses_of(model, x, y)).item()
        gradient = parameters_to_vector([p.grad for p in model.parameters() if p.grad is not None]).numpy()
        mean_gradient = chance * gradient + (mean_gradient if len(mean_gradient) else 0.0)
    return mean_loss, mean_gradient


def full(dataset) -> tuple[float, np.ndarray]:
    """Return the mean loss over the dataset, and its gradient."""
    model = cnn(dtype=torch.float64)
    loss = F.cross_entropy(model(dataset.tensors[0]), dataset.tensors[1])
    return loss.item(), parameters_to_vector(torch.autograd.grad(loss, list(model.parameters()))).numpy()


@pytest.mark.parametrize("name", SMALL_WEIGHTS)
@pytest.mark.parametrize("batch_size", [1, 3, 6])
def test_the_mean_of_the_weighted_gradient_over_all_batches_is_the_full_gradient(name, batch_size):
    dataset, weights = digits(7, torch.float64), SMALL_WEIGHTS[name]
    bandit = CombinatorialBandit(7, batch_size, exploration=GAMMA, gate=None)
    bandit.weights = weights
    probs = bandit.inclusion_probs()
    outcomes = [
        (chance, draw_of(bandit, sorted(subset), probs))
        for subset, chance in fast_distribution(weights, batch_size, GAMMA).items()
    ]
    loss, gradient = expectation(outcomes, dataset, batch_size)
    expected_loss, expected_gradient = full(dataset)
    assert loss == approx(expected_loss, abs=1e-10)
    assert gradient == approx(expected_gradient, abs=1e-10)


@pytest.mark.parametrize("name", ["mixed", "one heavy"])
def test_the_same_with_replacement(name):
    dataset, weights = digits(5, torch.float64), SMALL_WEIGHTS[name][:5]
    bandit = ReplacementBandit(5, 3, exploration=GAMMA)
    bandit.weights = weights
    counts = bandit.inclusion_probs()
    outcomes = [
        (float(np.prod(counts[list(chosen)] / 3)), draw_of(bandit, list(chosen), counts))
        for chosen in itertools.product(range(5), repeat=3)
    ]
    loss, gradient = expectation(outcomes, dataset, 3)
    expected_loss, expected_gradient = full(dataset)
    assert loss == approx(expected_loss, abs=1e-10)
    assert gradient == approx(expected_gradient, abs=1e-10)
