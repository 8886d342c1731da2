"""Accelerate: your loop, AdamCB's choice; the same numbers as AdamCB's own loop."""

import importlib.util
import re

import numpy as np
import pytest
import torch

from adamcb import AdamCB
from tests.integrations.problem import BATCH_SIZE, assert_same, in_ranks, new_selection, own_loop, train_set, weights_of
from tests.training.problem import losses_of, mlp

pytestmark = pytest.mark.skipif(importlib.util.find_spec("accelerate") is None, reason="accelerate is not installed")


@pytest.fixture(scope="module")
def runs():
    from tests.integrations import accelerate_runs  # not at the top: the import takes seconds

    return accelerate_runs


def test_it_trains_and_resumes_as_adamcb_does(runs, tmp_path):
    expected = own_loop()
    for result in runs.straight_and_resumed(str(tmp_path)):
        assert_same(result, expected)


def test_two_processes_train_and_resume_as_one(runs, tmp_path):
    expected = own_loop()
    for (scheduler, unaware), *heard in in_ranks(2, runs.in_two_processes, str(tmp_path)):
        assert "`split_batches` must be True for a prepared scheduler" in scheduler
        assert "got num_processes=1 in a process group of 2" in unaware
        for setting, refusal in zip(runs.SETTINGS, heard[:4], strict=True):
            assert "must not be prepared by Accelerate" in refusal
            assert re.search(setting[-1], refusal)
        for result in heard[4:]:
            assert_same(result, expected)


def test_accumulated_gradients_are_those_of_adamcb(runs):
    assert_same(runs.Run(gradient_accumulation_steps=2).train(), own_loop(accumulate=2))


def test_mixed_precision_gives_what_adamcb_gives(runs):
    result = runs.Run(dtype=torch.float32, mixed_precision="bf16").train()
    assert_same(result, own_loop(dtype=torch.float32, autocast=torch.bfloat16))


def test_a_scaled_loss_teaches_the_same(runs):
    """The GradScaler is given by hand: Accelerate makes one on an accelerator only."""
    run, trainer = (
        runs.Run(),
        AdamCB(
            model := mlp(dtype=torch.float64), train_set(), BATCH_SIZE, selection=new_selection(), optimizer="external"
        ),
    )
    run.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for (x, y), (other_x, other_y) in zip(run.batches, trainer, strict=True):
        run.batches.backward(losses_of(run.model, x, y))
        trainer.weigh(losses_of(model, other_x, other_y)).backward()
        trainer.update()
    weights = weights_of(trainer)
    assert np.ptp(weights) > 0.0
    np.testing.assert_allclose(weights_of(run.batches.adamcb), weights, rtol=1e-9)


def test_what_accelerate_does_to_a_loader_is_refused_in_one_process_too(runs):
    for setting in runs.SETTINGS[:2]:
        assert "must not be prepared by Accelerate" in runs.refusal_of_prepared(*setting)


def test_preparing_the_batches_changes_nothing(runs):
    run = runs.Run()
    assert run.accelerator.prepare(run.batches) is run.batches


def test_an_optimizer_is_refused(runs):
    with pytest.raises(TypeError, match="`optimizer` and `lr` must be left to your loop"):
        runs.AcceleratedBatches(runs.new_accelerator(), mlp(), train_set(), BATCH_SIZE, lr=0.1)
