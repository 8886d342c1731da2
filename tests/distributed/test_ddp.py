"""Any number of processes: the same draws, the same parameters, the same errors."""

from math import inf, nan

import numpy as np
import pytest
import torch
from pytest import approx
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from adamcb import AdamCB, AdamX, CombinatorialBandit, ReplacementBandit, UniformSelection
from adamcb.training._ranks import Ranks
from tests.distributed.launch import launch
from tests.distributed.problem import BATCH_SIZE, SAMPLES, new_trainer, result, train, train_anew
from tests.training.problem import digits, losses_of, mlp

STEPS = 100


@pytest.fixture(scope="module")
def alone():
    return train_anew(STEPS)


def assert_same(actual, expected):
    assert actual["draws"] == expected["draws"]
    np.testing.assert_allclose(actual["parameters"], expected["parameters"], rtol=0.0, atol=1e-9)
    np.testing.assert_allclose(actual["weights"], expected["weights"], rtol=1e-9)
    assert actual["losses"] == approx(expected["losses"], rel=1e-9)
    np.testing.assert_allclose(actual["samples"], expected["samples"], rtol=1e-5, atol=1e-9)
    assert actual["readings"] == approx(expected["readings"], rel=1e-6, nan_ok=True)


@pytest.mark.parametrize("world_size", [1, 2, pytest.param(4, marks=pytest.mark.slow)])
def test_any_number_of_ranks_gives_the_same(world_size, alone):
    assert np.ptp(alone["weights"]) > 0.1  # or there was nothing to agree on
    for rank in launch(world_size, train_anew, STEPS):
        assert_same(rank, alone)


def recipes() -> list:
    """Everything that changes what is gathered: what is trained, how, and how late it is heard of."""
    generator = torch.Generator().manual_seed(1)
    results = [train_anew(25, "cnn"), train_anew(25, "mlp", {"scores": "last-layer"})]
    for selection in (CombinatorialBandit, ReplacementBandit, UniformSelection):
        results.append(train_anew(25, "mlp", {"selection": selection(SAMPLES, BATCH_SIZE, generator=generator)}))
    results.append(train_anew(25, "mlp", {"feedback_delay": 2}))
    results.append(train_anew(14, "mlp", {"num_workers": 1, "multiprocessing_context": "fork"}))
    return [*results, accumulated(), with_inner_model()]


def accumulated() -> dict:
    """Two batches a step; gradients of the first stay on their rank."""
    trainer = new_trainer()
    for i, (x, y) in enumerate(trainer):
        model: nn.Module = trainer.model
        if isinstance(model, DistributedDataParallel) and i % 2 == 0:
            with model.no_sync():
                (trainer.weigh(losses_of(model, x, y)) / 2).backward()
        else:
            (trainer.weigh(losses_of(model, x, y)) / 2).backward()
        if i % 2 == 1:
            trainer.optimizer.step()
            trainer.optimizer.zero_grad()
    return {"draws": [], "losses": [], **result(trainer)}


def with_inner_model() -> dict:
    """The trainer knows the model, the loop calls what wraps it."""
    trainer = AdamCB(model := mlp(dtype=torch.float64), digits(SAMPLES, torch.float64), BATCH_SIZE, lr=0.01)
    call = DistributedDataParallel(model) if torch.distributed.is_initialized() else model
    for x, y in trainer:
        trainer.step(losses_of(call, x, y))
    return {"draws": [], "losses": [], **result(trainer)}


def test_every_way_to_train_gives_the_same():
    expected = recipes()
    for rank in launch(2, recipes):
        for one, other in zip(rank, expected, strict=True):
            assert_same(one, other)


class Raw(torch.utils.data.Dataset):
    """Samples that say which they are; one of them makes the loss what it says."""

    def __init__(self, bad: float | None = None) -> None:
        self.x, self.bad = torch.rand(40, 3, generator=torch.Generator().manual_seed(0)), bad

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int):
        return self.x[index], 1.0 if self.bad is None or index != 7 else self.bad


def meet_bad_loss(bad: float) -> list:
    """Train until the bad sample comes, catch the error, and go on."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(3, 1))
    trainer = AdamCB(model, Raw(bad), 8, optimizer=AdamX(model.parameters()))
    messages, steps = [], 0
    for x, factor in trainer:
        before = [parameter.clone() for parameter in model.parameters()]
        try:
            trainer.step(model(x).squeeze(1).square() + factor.float() - 1.0)
            steps += 1
        except FloatingPointError as error:
            messages.append(str(error))
            assert all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
    return [messages, steps, [parameter.tolist() for parameter in model.parameters()]]


@pytest.mark.parametrize("bad", [nan, *(pytest.param(bad, marks=pytest.mark.slow) for bad in (inf, -inf))])
def test_a_loss_that_is_not_finite_is_an_error_on_every_rank_and_training_goes_on(bad):
    ours, theirs = launch(2, meet_bad_loss, bad)
    assert ours == theirs
    assert len(ours[0]) == 1
    assert f"The loss of every sample must be finite, got samples 7 ({bad})" in ours[0][0]
    assert ours[1] == 4


def train_badly(how: str) -> None:
    rank = torch.distributed.get_rank()
    model = mlp(dtype=torch.float64) if how == "not wrapped" else DistributedDataParallel(mlp(dtype=torch.float64))
    selection = None
    if how == "own seeds":
        selection = CombinatorialBandit(SAMPLES, BATCH_SIZE, generator=torch.Generator().manual_seed(rank))
    batch_size = 15 if how == "odd" else BATCH_SIZE
    trainer = AdamCB(model, digits(SAMPLES, torch.float64), batch_size, selection=selection)
    train(trainer, 1)


@pytest.mark.parametrize(
    ("how", "error", "message"),
    [
        ("odd", ValueError, "`batch_size` must be a multiple of the number of ranks, 2, .* got batch_size=15"),
        ("own seeds", RuntimeError, "All ranks must draw the same batches, got .* seeded alike on every rank"),
        ("not wrapped", RuntimeError, "Gradients must be averaged over the ranks before the optimizer"),
    ],
)
def test_what_would_go_wrong_silently_is_refused(how, error, message):
    for rank in launch(2, train_badly, how):
        with pytest.raises(error, match=message):
            raise rank


def test_a_batch_smaller_than_the_group_is_refused():
    with pytest.raises(ValueError, match=r"got batch_size=3. Take 4\."):
        Ranks(0, 4).check_batch_size(3)
