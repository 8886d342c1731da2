"""Lightning: its loop, an AdaptiveLoader's batches; the same numbers as an ordinary loop's."""

import importlib.util
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

from adamcb import UniformSelection
from tests.integrations.problem import (
    BATCH_SIZE,
    BATCHES,
    SAMPLES,
    assert_same,
    break_backward,
    by_epochs,
    in_ranks,
    new_scaler,
    own_loop,
    train_set,
)
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


@pytest.mark.parametrize("saved_after", [5, BATCHES, BATCHES + 3])
def test_dropout_goes_on_bit_for_bit_after_a_resume(runs, tmp_path, saved_after):
    def dropping(seed: int):
        flat, first, relu, last = mlp(dtype=torch.float64, seed=seed).children()
        return runs.Module(torch.nn.Sequential(flat, first, relu, torch.nn.Dropout(), last))

    torch.manual_seed(3)
    saving = runs.SaveAfter(saved_after, path := tmp_path / "middle.ckpt")
    straight = runs.fit(dropping(0), saving)
    torch.manual_seed(4)
    resumed = runs.fit(dropping(1), ckpt_path=path)
    assert resumed["parameters"].tolist() == straight["parameters"].tolist()
    assert resumed["weights"].tolist() == straight["weights"].tolist()


@pytest.mark.slow
def test_two_processes_train_and_resume_as_one(runs, tmp_path):
    expected = own_loop()
    for (sampler, sharded), *results in in_ranks(2, runs.in_two_processes, str(tmp_path)):
        assert "`use_distributed_sampler` must be False with several ranks, got use_distributed" in sampler
        assert "`sharded` must be False with several ranks, got sharded=True with 2" in sharded
        assert "Lightning saves one state, that of rank 0" in sharded
        assert "`dcp.save(" in sharded
        for result in results:
            assert_same(result, expected)


def test_accumulated_gradients_are_those_of_adamcb(runs):
    assert_same(runs.fit(runs.Module(), accumulate_grad_batches=2), own_loop(accumulate=2))


def test_the_last_step_of_an_epoch_is_divided_as_lightning_divides_it(runs):
    assert BATCHES % 5 == 2
    assert_same(runs.fit(runs.Module(), accumulate_grad_batches=5), own_loop(accumulate=5, divisor=5))


def test_the_loss_of_a_batch_does_not_depend_on_the_batches_of_its_step(runs):
    """It is what is logged. Nothing is trained or learned, so that the batches are the same."""
    assert losses_logged(runs, accumulate_grad_batches=5) == losses_logged(runs, accumulate_grad_batches=1)


def losses_logged(runs, **options):
    module, losses = runs.Module(), []
    module.log = lambda name, value, **_: losses.append(value.item())
    module.configure_optimizers = lambda: torch.optim.SGD(module.parameters(), lr=0.0)
    runs.fit(module, choosing={"selection": UniformSelection(SAMPLES, BATCH_SIZE, generator=seeded())}, **options)
    assert len(losses) == 2 * BATCHES
    return [pytest.approx(loss, rel=1e-12) for loss in losses]


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_a_step_resumed_in_its_middle_goes_on_with_what_is_left_of_it(runs, tmp_path):
    runs.fit(runs.Module(), runs.SaveAfter(7, path := tmp_path / "middle.ckpt"), accumulate_grad_batches=5)
    resumed = runs.fit(runs.Module(mlp(dtype=torch.float64, seed=1)), ckpt_path=path, accumulate_grad_batches=5)
    first, _, *later = by_epochs(BATCHES, 5)
    expected = own_loop(steps=[first, [7, 8, 9], *later], divisor=5)
    # The ordinary loop learned nothing from the two batches that the resumed run has forgotten the gradients of.
    np.testing.assert_allclose(resumed["parameters"].shape, expected["parameters"].shape)
    assert resumed["steps"] == expected["steps"]


def test_an_epoch_that_ends_in_the_middle_of_a_step_leaves_nothing_to_the_next(runs):
    assert runs.fit(runs.CutShort(), accumulate_grad_batches=2)["steps"] == 4 + BATCHES


def test_manual_optimization_adds_up_over_batches_as_adamcb_does(runs):
    assert_same(runs.fit(runs.Manual(accumulate=5)), own_loop(accumulate=5))


def test_manual_optimization_goes_on_after_a_backward_pass_that_failed(runs):
    module = runs.Manual()
    break_backward(module.net[3], [3])
    assert_same(runs.fit(module), own_loop(steps=[[i] for i in range(2 * BATCHES) if i != 3]))


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
