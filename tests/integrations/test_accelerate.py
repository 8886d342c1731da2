"""Accelerate: your loop with an AdaptiveLoader; the same numbers as an ordinary loop's."""

import importlib.util
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from adamcb import AdaptiveLoader
from tests.integrations.problem import (
    BATCH_SIZE,
    BATCHES,
    assert_same,
    chunks,
    in_ranks,
    new_selection,
    own_loop,
    train_set,
    weights_of,
)
from tests.training.problem import losses_of, mlp

pytestmark = pytest.mark.skipif(importlib.util.find_spec("accelerate") is None, reason="accelerate is not installed")


@pytest.fixture(scope="module")
def runs():
    from tests.integrations import accelerate_runs  # not at the top: the import takes seconds

    return accelerate_runs


def test_it_trains_and_resumes_as_an_ordinary_loop_does(runs, tmp_path):
    expected = own_loop()
    for result in runs.straight_and_resumed(str(tmp_path)):
        assert_same(result, expected)


@pytest.mark.slow
def test_two_processes_train_and_resume_as_one(runs, tmp_path):
    expected = own_loop()
    for (scheduler, unaware), *results in in_ranks(2, runs.in_two_processes, str(tmp_path)):
        assert "`split_batches` must be True for a prepared scheduler" in scheduler
        assert "got num_processes=1 in a process group of 2" in unaware
        for result in results:
            assert_same(result, expected)


def test_accumulated_gradients_are_those_of_an_ordinary_loop(runs):
    assert_same(runs.Run(gradient_accumulation_steps=2).train(), own_loop(accumulate=2))


def test_a_step_goes_on_across_the_end_of_an_epoch(runs):
    assert BATCHES % 5 == 2
    result = runs.Run(gradient_accumulation_steps=5).train()
    assert_same(result, own_loop(steps=chunks(range(4 * 5), 5)) | {"weights": result["weights"]})


def test_mixed_precision_gives_what_an_ordinary_loop_gives(runs):
    result = runs.Run(dtype=torch.float32, mixed_precision="bf16").train()
    assert_same(result, own_loop(dtype=torch.float32, autocast=torch.bfloat16))


def test_a_scaled_loss_teaches_the_same(runs):
    """The GradScaler is given by hand: Accelerate makes one on an accelerator only."""
    run, model = runs.Run(), mlp(dtype=torch.float64)
    other = AdaptiveLoader(model, train_set(), BATCH_SIZE, selection=new_selection(), scores="exact")
    run.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for (x, y), (other_x, other_y) in zip(run.loader, other, strict=True):
        run.accelerator.backward(run.loader.weigh(losses_of(run.model, x, y)))
        other.weigh(losses_of(model, other_x, other_y)).backward()
    weights = weights_of(other)
    assert np.ptp(weights) > 0.0
    np.testing.assert_allclose(weights_of(run.loader), weights, rtol=1e-9)


def test_preparing_the_loader_changes_nothing(runs):
    run = runs.Run()
    assert isinstance(run.loader, AdaptiveLoader)
    assert run.accelerator.prepare(run.loader) is run.loader


def test_sharded_weights_that_it_would_save_are_refused():
    from accelerate import DistributedType

    from adamcb.integrations.accelerate import check_accelerator

    loader = AdaptiveLoader(mlp(), train_set(), BATCH_SIZE, sharded=True)
    two: Any = SimpleNamespace(distributed_type=DistributedType.MULTI_CPU, num_processes=2, _custom_objects=[loader])
    with pytest.raises(ValueError, match=r"Accelerate saves one state, .* `dcp.save\("):
        check_accelerator(two)
