"""`adamcb.paper`: every function composes the parts that the paper prints, and trains as the slow twins do."""

import copy
import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.testing import assert_allclose
from torch.nn.utils import parameters_to_vector

from adamcb import AdamX, CombinatorialBandit, ReplacementBandit, paper
from adamcb.selection import ListingFeedback, ProofFeedback
from tests.reference.adamcb import SlowAdamBS, SlowAdamCB
from tests.training.problem import digits, losses_of, mlp
from tests.training.test_algorithm import numbers_of_next_draw

N, K, GAMMA = 301, 16, 0.4  # no common divisor: no cut falls between two samples


def compare(trainer, slow, numbers) -> None:
    batches = itertools.chain.from_iterable(itertools.repeat(trainer))
    for _ in range(60):
        random_numbers = numbers(trainer.selection)
        batch = next(batches)
        trainer.step(losses_of(trainer.model, *batch))
        assert slow.step(*random_numbers) == batch.draw.indices.tolist()
        parameters = parameters_to_vector(trainer.model.parameters()).detach().numpy()
        assert_allclose(parameters, slow.adamx.theta, rtol=0, atol=1e-9)


@pytest.mark.parametrize("listing", [False, True])
def test_adamcb_is_algorithm_1(listing):
    model, dataset = mlp(dtype=torch.float64), digits(N, torch.float64)
    slow = SlowAdamCB(model, F.cross_entropy, dataset.tensors, K, GAMMA, "listing" if listing else "proof", lr=0.01)
    with paper.adamcb(model, dataset, K, lr=0.01, listing=listing, seed=3) as trainer:
        compare(trainer, slow, numbers_of_next_draw)


def test_adambs_is_algorithm_4():
    model, dataset = mlp(dtype=torch.float64), digits(N, torch.float64)
    slow = SlowAdamBS(model, F.cross_entropy, dataset.tensors, K, GAMMA, lr=0.01)
    with paper.adambs(model, dataset, K, lr=0.01, seed=3) as trainer:
        compare(trainer, slow, lambda bandit: (copy.deepcopy(bandit)._uniforms.take(),))


def test_the_settings_are_those_of_table_2():
    dataset = digits(N)
    trainer = paper.adamcb(mlp(), dataset)
    selection, group = trainer.selection, trainer.optimizer.param_groups[0]
    assert isinstance(selection, CombinatorialBandit)
    assert isinstance(trainer.optimizer, AdamX)
    assert (selection.batch_size, selection.exploration, selection.gate) == (128, 0.4, None)
    assert selection.feedback == ProofFeedback(None)
    assert (group["lr"], group["betas"], group["eps"]) == (1e-3, (0.9, 0.999), 1e-8)
    assert (group["beta1_decay"], group["bias_correction"]) == (1 - 1e-8, False)
    listed = paper.adamcb(mlp(), dataset, listing=True, max_norm=2.0).selection
    assert isinstance(listed, CombinatorialBandit)
    assert listed.feedback == ListingFeedback(2.0)
    original = paper.adambs_original(mlp(), dataset)
    assert isinstance(original.selection, ReplacementBandit)
    assert original.selection.form == "original"
    assert type(original.optimizer) is torch.optim.Adam


def test_one_seed_gives_one_training():
    draws = []
    for _ in range(2):
        with paper.adamcb(mlp(), digits(N), K, seed=5) as trainer:
            draws.append([batch.draw.indices.tolist() for batch in itertools.islice(trainer, 3)])
    assert draws[0] == draws[1]
    assert np.shape(draws[0]) == (3, K)
