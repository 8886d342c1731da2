"""Scores that are made of what was measured, against their slow twin."""

import functools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pytest import approx

from adamcb import CombinatorialBandit, Draw
from adamcb.training._feedback_queue import FeedbackQueue
from tests.reference.scores import slow_is_scaled, slow_scores

K = 5
SIZES = st.lists(st.floats(1e-6, 1e6), min_size=K, max_size=K)
# What the loop multiplied each loss by, beyond its weight: nothing, a clip, a sign, an accumulation, a GradScaler.
FACTORS = st.lists(st.sampled_from([0.0, 1.0, -1.0, 0.25, 1.005, 1.02, 65536.0]), min_size=K, max_size=K)


@functools.cache
def a_draw() -> Draw:
    bandit = CombinatorialBandit(40, K, gate=None, generator=torch.Generator().manual_seed(0))
    for _ in range(20):
        draw = bandit.draw()
        bandit.update(draw, np.linspace(0.1, 3.0, K))
    return bandit.draw()


def scored(queue: FeedbackQueue, measured: torch.Tensor, arrived: torch.Tensor):
    queue.send(a_draw(), measured=measured, arrived=arrived, losses=None, largest_gradient=None)
    due = queue.due(0)
    assert due is not None
    return due[1]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("divides", [True, False])
@given(measured=SIZES, factors=FACTORS, ranks=st.integers(1, 3))
def test_scores_are_those_of_the_slow_twin(dtype, divides, measured, factors, ranks):
    queue = FeedbackQueue(divides=divides, factor=ranks)
    given_size = torch.tensor(measured, dtype=torch.float64).to(dtype)
    arrived = (torch.tensor(factors, dtype=torch.float64) * ranks * torch.tensor(a_draw().loss_weights)).to(dtype)
    scores = scored(queue, given_size, arrived)
    expected = slow_scores(given_size.double().tolist(), arrived.double().tolist(), divides=divides)
    assert scores is not None
    assert scores.dtype == np.float64
    assert scores == approx(np.array(expected), rel=1e-12 if dtype == torch.float64 else 1e-6)
    if dtype != torch.bfloat16:  # which is as coarse as the margin
        assert queue.is_scaled == slow_is_scaled(arrived.double().tolist(), a_draw().loss_weights.tolist(), ranks)


def test_a_step_that_the_scaler_skips_teaches_nothing():
    queue = FeedbackQueue()
    weights = torch.tensor(a_draw().loss_weights)
    assert scored(queue, torch.tensor([1.0, 2.0, float("inf"), 1.0, 1.0]), 65536.0 * weights) is None
    assert queue.is_scaled
    with pytest.raises(FloatingPointError, match="The score of every sample must be finite"):
        scored(queue, torch.tensor([1.0, 2.0, float("inf"), 1.0, 1.0]), weights)
