"""Accelerate: your loop, AdamCB's choice; the same numbers as AdamCB's own loop."""

import importlib.util
import re

import numpy as np
import pytest
import torch

from adamcb import AdamCB
from tests.integrations.problem import (
    BATCH_SIZE,
    BATCHES,
    assert_same,
    break_backward,
    chunks,
    in_ranks,
    new_selection,
    outcome,
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


def test_it_trains_and_resumes_as_adamcb_does(runs, tmp_path):
    expected = own_loop()
    for result in runs.straight_and_resumed(str(tmp_path)):
        assert_same(result, expected)


def test_two_processes_train_and_resume_as_one(runs, tmp_path):
    expected = own_loop()
    for (scheduler, unaware, sharded), *heard in in_ranks(2, runs.in_two_processes, str(tmp_path)):
        assert "`split_batches` must be True for a prepared scheduler" in scheduler
        assert "got num_processes=1 in a process group of 2" in unaware
        assert "`sharded` must be False with several ranks, got sharded=True with 2" in sharded
        assert "Accelerate saves one state, that of rank 0" in sharded
        for setting, refusal in zip(runs.SETTINGS, heard[:4], strict=True):
            assert "must not be prepared by Accelerate" in refusal
            assert re.search(setting[-1], refusal)
        for result in heard[4:]:
            assert_same(result, expected)


def test_accumulated_gradients_are_those_of_adamcb(runs):
    assert_same(runs.Run(gradient_accumulation_steps=2).train(), own_loop(accumulate=2))


def test_a_step_goes_on_across_the_end_of_an_epoch(runs):
    assert BATCHES % 5 == 2
    result = runs.Run(gradient_accumulation_steps=5).train()
    assert_same(result, own_loop(steps=chunks(range(4 * 5), 5)))


def test_a_step_resumed_in_its_middle_is_divided_by_what_is_left_of_it(runs, tmp_path):
    straight, resumed = runs.straight_and_resumed(str(tmp_path), gradient_accumulation_steps=5)
    assert runs.STOP == 17
    assert_same(straight, own_loop(steps=chunks(range(20), 5)))
    assert_same(resumed, expected := own_loop(steps=[*chunks(range(15), 5), [17, 18, 19]]))
    going_back = runs.Run(gradient_accumulation_steps=5)
    going_back.train(str(tmp_path), until=19)
    going_back.accelerator.load_state(str(tmp_path))
    assert_same(going_back.train(), expected)


def test_training_goes_on_after_a_backward_pass_that_failed(runs):
    run = runs.Run()
    break_backward(run.model[3], [3])
    assert_same(run.train(), own_loop(steps=[[i] for i in range(2 * BATCHES) if i != 3]))


def test_batches_of_a_step_whose_backward_pass_failed_are_given_up(runs):
    run = runs.Run(gradient_accumulation_steps=5)
    break_backward(run.model[3], [7, 14])
    assert_same(run.train(), own_loop(steps=[[0, 1, 2, 3, 4], [8, 9], [15, 16, 17, 18, 19]]))


def test_the_loss_is_that_of_the_batch_whatever_the_number_in_its_step(runs):
    run, returned, expected = runs.Run(gradient_accumulation_steps=5), [], []
    for i, batch in zip(range(5), run.batches, strict=False):
        with run.accelerator.accumulate(run.model):
            if i > 1:  # the others are skipped
                losses = losses_of(run.model, *batch)
                returned.append(run.batches.backward(losses).item())
                expected.append(losses.detach().numpy() @ batch.draw.loss_weights)
    assert returned == pytest.approx(expected, rel=1e-12)


def test_a_step_with_a_loss_that_is_not_finite_is_given_up(runs):
    run, messages = runs.Run(gradient_accumulation_steps=2), []
    for i, (x, y) in enumerate(run.batches):
        try:
            run.train_on(x * torch.nan if i == 3 else x, y)
        except FloatingPointError as error:
            messages.append(str(error))
    assert ["loss of every sample must be finite" in message for message in messages] == [True]
    result = outcome(run.model, run.batches.adamcb)
    assert_same(result, own_loop(steps=[[0, 1], *chunks(range(4, BATCHES), 2)], taken=BATCHES))


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
