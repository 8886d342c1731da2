"""Lightning: its loop, AdamCB's choice; the same numbers as AdamCB's own loop."""

import importlib.util
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

from tests.integrations.problem import BATCH_SIZE, assert_same, in_ranks, new_scaler, own_loop, train_set
from tests.training.problem import mlp

pytestmark = pytest.mark.skipif(importlib.util.find_spec("lightning") is None, reason="lightning is not installed")


@pytest.fixture(scope="module")
def runs():
    from tests.integrations import lightning_runs  # not at the top: the import takes seconds

    return lightning_runs


def test_it_trains_and_resumes_as_adamcb_does(runs, tmp_path):
    expected = own_loop()
    for result in runs.straight_and_resumed(str(tmp_path), {}):
        assert_same(result, expected)


def test_two_processes_train_and_resume_as_one(runs, tmp_path):
    expected = own_loop()
    for refusal, *results in in_ranks(2, runs.in_two_processes, str(tmp_path)):
        assert "`use_distributed_sampler` must be False with several ranks, got use_distributed" in refusal
        for result in results:
            assert_same(result, expected)


def test_accumulated_gradients_are_those_of_adamcb(runs):
    assert_same(runs.fit(runs.Module(), accumulate_grad_batches=2), own_loop(accumulate=2))


def test_precisions_of_the_trainer_give_what_adamcb_gives(runs):
    from lightning.pytorch.plugins import MixedPrecision

    assert_same(runs.fit(runs.Module(mlp()), dtype=torch.float32, precision="64-true"), own_loop())
    brain = runs.fit(runs.Module(mlp()), dtype=torch.float32, precision="bf16-mixed")
    assert_same(brain, own_loop(dtype=torch.float32, autocast=torch.bfloat16))
    half = MixedPrecision("16-mixed", "cpu", new_scaler())
    scaled = runs.fit(runs.Module(mlp()), dtype=torch.float32, plugins=[half])
    assert_same(scaled, own_loop(dtype=torch.float32, autocast=torch.float16))


def test_the_model_is_left_as_it_was(runs):
    module = runs.Module()
    runs.fit(module, max_epochs=1)
    assert not module.net._forward_hooks
    module.net[1].weight.data.fill_(torch.nan)
    with pytest.raises(FloatingPointError, match="loss of every sample must be finite"):
        runs.fit(module, max_epochs=1)
    assert not module.net._forward_hooks


def test_the_same_module_trains_on_ordinary_batches(runs):
    module = runs.Module()
    x, y = next(iter(loader := DataLoader(train_set(), BATCH_SIZE)))
    expected = F.cross_entropy(module(x), y).item()
    losses = []
    module.log = lambda name, value, **options: losses.append(value.item())
    runs.quietly(runs.new_trainer(max_steps=1, enable_checkpointing=False).fit, module, loader)
    assert losses == [pytest.approx(expected)]


Base: Any = object  # mixed into the module of the runs, whose import takes seconds


class Forgetful(Base):
    """A `training_step` that does not weigh."""

    def training_step(self, batch, batch_idx):
        x, y = batch
        return F.cross_entropy(self(x), y)


class Greedy(Base):
    """A `training_step` that takes batches itself, ahead of training."""

    def training_step(self, dataloader_iter):
        batch, index, _ = next(dataloader_iter)
        next(dataloader_iter)
        return super().training_step(batch, index)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"overfit_batches": 2}, ValueError, "`overfit_batches` must be 0, got overfit_batches=2"),
        ({"loader": DataLoader(train_set(), BATCH_SIZE)}, ValueError, "`train_dataloaders` must be .* got DataLoader"),
        ({"kind": Forgetful}, RuntimeError, r"`training_step` must return `weigh\(self, losses\)`"),
        ({"kind": Greedy}, RuntimeError, "Batches must be taken one by one"),
        ({"choosing": {"lr": 0.1}}, TypeError, "must be set in `configure_optimizers`"),
    ],
)
def test_what_would_break_it_is_refused(runs, options, error, message):
    kind = options.pop("kind", object)
    module = runs.Module() if kind is object else type("Other", (kind, runs.Module), {})()
    with pytest.raises(error, match=message):
        runs.fit(module, max_epochs=1, **options)


def test_weighing_outside_of_training_is_refused(runs):
    chosen = runs.AdamCBCallback(train_set(), BATCH_SIZE)
    with pytest.raises(RuntimeError, match="must be among the Trainer's callbacks"):
        next(iter(chosen.loader))
