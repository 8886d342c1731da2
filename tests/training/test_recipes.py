"""`weigh` and `update` by hand: accumulation, clipping, mixed precision, late feedback."""

import copy
import itertools

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch.nn.utils import parameters_to_vector

from adamcb import AdamCB, CombinatorialBandit
from tests.training.problem import cnn, digits, eager, losses_of, mlp, snapshot, train
from tests.training.test_step import BadSlope

K = 16


class Recorder(CombinatorialBandit):
    """Keeps what it was told."""

    def __init__(self, num_samples: int, batch_size: int, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        super().__init__(num_samples, batch_size, feedback="scale-free", generator=generator)
        self.told = []

    def update(self, draw, norms) -> None:
        super().update(draw, norms)
        self.told.append((draw, np.array(norms)))


def slow_norms(model, x, y) -> np.ndarray:
    rows = [
        torch.autograd.grad(losses_of(model, x[j : j + 1], y[j : j + 1]).sum(), model.parameters())
        for j in range(len(x))
    ]
    return np.array([parameters_to_vector(row).double().norm().item() for row in rows])


def weighted_gradient(model, batch) -> torch.Tensor:
    weights = torch.from_numpy(batch.draw.loss_weights.copy()).to(batch[0].dtype)
    loss = (weights * losses_of(model, *batch)).sum()
    return parameters_to_vector(torch.autograd.grad(loss, list(model.parameters())))


def batches_of(trainer, count):
    return itertools.islice(itertools.chain.from_iterable(itertools.repeat(trainer)), count)


@pytest.mark.parametrize("count", [2, 3])
def test_accumulating_gives_the_mean_of_the_unbiased_estimates_and_teaches_all_batches(count):
    selection = Recorder(200, K)
    selection.weights = np.linspace(1.0, 5.0, 200)
    model = mlp(dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = AdamCB(model, digits(200, torch.float64), K, selection=selection, optimizer=optimizer)
    for _ in range(3):
        estimates, norms, total = [], [], 0.0
        before = copy.deepcopy(model)
        for batch in batches_of(trainer, count):
            estimates.append(weighted_gradient(before, batch))
            norms.append(slow_norms(before, *batch))
            loss = trainer.weigh(losses_of(model, *batch), accumulate=count)
            loss.backward()
            total += loss.item()
        trainer.update()
        mean = torch.stack(estimates).mean(0)
        grads = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        assert_allclose(parameters_to_vector(grads), mean, rtol=1e-12, atol=1e-14)
        moved = parameters_to_vector(model.parameters()) - parameters_to_vector(before.parameters())
        assert_allclose(moved.detach(), -0.1 * mean, rtol=1e-9, atol=1e-14)
        assert_allclose([told for _, told in selection.told[-count:]], norms, rtol=1e-10)
    assert len(selection.told) == 3 * count


def test_clipping_changes_the_step_and_not_the_feedback():
    selection = Recorder(200, K)
    model = mlp(dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    trainer = AdamCB(model, digits(200, torch.float64), K, selection=selection, optimizer=optimizer)
    for batch in trainer:
        before, norms = parameters_to_vector(model.parameters()).detach(), slow_norms(copy.deepcopy(model), *batch)
        trainer.weigh(losses_of(model, *batch)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        trainer.update()
        moved = parameters_to_vector(model.parameters()).detach() - before
        assert moved.norm().item() == pytest.approx(0.01, rel=1e-3)
        assert_allclose(selection.told[-1][1], norms, rtol=1e-10)


@pytest.mark.parametrize("norms", ["exact", "last-layer"])
@pytest.mark.parametrize("make", [mlp, cnn])
@pytest.mark.parametrize("scaled", [False, True], ids=["bfloat16", "float16 with GradScaler"])
def test_mixed_precision_trains_and_gives_norms_within_2_percent(scaled, make, norms):
    selections = Recorder(400, K), Recorder(400, K)
    half, plain = (AdamCB(make(), digits(400), K, lr=0.01, selection=own, norms=norms) for own in selections)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, enabled=scaled)
    history, dtype = [], torch.float16 if scaled else torch.bfloat16
    for batch in batches_of(half, 50):
        plain.model.load_state_dict(half.model.state_dict())  # the same model at every step; the other only measures
        reference = losses_of(plain.model, *batch)
        plain.weigh(reference, draw=batch.draw).backward()
        plain.update()
        with torch.autocast("cpu", dtype=dtype):
            losses = losses_of(half.model, *batch)
        loss = half.weigh(losses)
        scaler.scale(loss).backward()
        half.update(scaler)
        history.append(loss.item())
        measured, exact = selections[0].told[-1][1], selections[1].told[-1][1]
        # As a whole: a sample that is all but learned has a gradient below what half precision resolves.
        assert np.linalg.norm(measured - exact) <= 0.02 * np.linalg.norm(exact)
    assert len(selections[0].told) == 50
    assert np.mean(history[-10:]) < 0.5 * np.mean(history[:10])


def test_a_grad_scaler_in_full_precision_changes_nothing():
    results = []
    for scaler in (None, torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=7)):
        trainer = AdamCB(mlp(), digits(200), K, lr=0.01, selection=eager(200, K))
        for batch in batches_of(trainer, 20):
            loss = trainer.weigh(losses_of(trainer.model, *batch))
            (loss if scaler is None else scaler.scale(loss)).backward()
            if scaler is not None:
                scaler.unscale_(trainer.optimizer)
            torch.nn.utils.clip_grad_norm_(trainer.model.parameters(), 1.0)
            trainer.update(scaler)
        results.append(snapshot(trainer))
    assert results[0] == results[1]


@pytest.mark.parametrize("delay", [0, 2])
def test_an_overflow_under_grad_scaler_is_skipped_and_not_learned_from(delay):
    selection = Recorder(200, K)
    trainer = AdamCB(mlp(), digits(200), K, lr=0.01, selection=selection, feedback_delay=delay)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24)
    skipped, weights = 0, selection.weights
    for batch in batches_of(trainer, 40):
        before, scale = copy.deepcopy(trainer.model.state_dict()), scaler.get_scale()
        with torch.autocast("cpu", dtype=torch.float16):
            losses = losses_of(trainer.model, *batch)
        scaler.scale(trainer.weigh(losses)).backward()
        trainer.update(scaler)
        overflowed = scaler.get_scale() < scale
        skipped += overflowed
        same = all(torch.equal(before[name], value) for name, value in trainer.model.state_dict().items())
        assert same == overflowed
        if skipped == trainer.meter.steps:
            assert (selection.weights == weights).all()
            assert all(not tensor.any() for state in trainer.optimizer.state.values() for tensor in state.values())
    assert 2 <= skipped <= 20
    assert len(selection.told) == 40 - delay - skipped


def test_one_overflow_of_two_accumulated_batches_spoils_both():
    selection = Recorder(200, K)
    trainer = AdamCB(mlp(), digits(200), K, lr=0.01, selection=selection)
    scaler = torch.amp.GradScaler("cpu")
    for j, batch in enumerate(batches_of(trainer, 2)):
        losses = losses_of(trainer.model, *batch)
        losses = BadSlope.apply(losses, float("inf")) if j else losses
        scaler.scale(trainer.weigh(losses, accumulate=2)).backward()
    before = copy.deepcopy(trainer.model.state_dict())
    trainer.update(scaler)
    assert all(torch.equal(before[name], value) for name, value in trainer.model.state_dict().items())
    assert not selection.told


@pytest.mark.parametrize("delay", [0, 1, 2, 3])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_norms_are_applied_that_many_steps_later_each_with_its_own_draw(delay, accumulate):
    selection = Recorder(200, K)
    model = mlp(dtype=torch.float64)
    trainer = AdamCB(model, digits(200, torch.float64), K, lr=0.01, selection=selection, feedback_delay=delay)
    expected = []
    for step in range(1, 11):
        for batch in batches_of(trainer, accumulate):
            expected.append((batch.draw, slow_norms(copy.deepcopy(model), *batch)))
            trainer.weigh(losses_of(model, *batch), accumulate=accumulate).backward()
        trainer.update()
        assert len(selection.told) == accumulate * max(0, step - delay)
    for (draw, norms), (own_draw, own_norms) in zip(selection.told, expected, strict=False):
        assert draw is own_draw
        assert_allclose(norms, own_norms, rtol=1e-10)


@pytest.mark.parametrize("delay", [1, 3])
def test_a_late_check_says_that_it_is_late(delay):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    trainer = AdamCB(model, digits(200), K, optimizer=optimizer, selection=eager(200, K), feedback_delay=delay)
    (batch,), healthy = batches_of(trainer, 1), copy.deepcopy(model.state_dict())
    trainer.step(BadSlope.apply(losses_of(model, *batch), float("nan")))
    model.load_state_dict(healthy)
    train(trainer, delay - 1)
    with pytest.raises(
        FloatingPointError, match=rf"{batch.draw.indices[2]} \(nan\).*{delay} steps? ago.*trained on it"
    ):
        train(trainer, 1)


@pytest.mark.parametrize("delay", [0, 1, 2, 3])
def test_feedback_on_its_way_is_saved(delay):
    through = AdamCB(mlp(), digits(200), K, lr=0.01, selection=eager(200, K), feedback_delay=delay)
    train(through, 7)
    resumed = AdamCB(mlp(seed=1), digits(200), K, lr=0.01, selection=eager(200, K, seed=5), feedback_delay=delay)
    resumed.load_state_dict(copy.deepcopy(through.state_dict()))
    assert len(resumed._late._waiting) == delay
    assert train(resumed, 9) == train(through, 9)
    assert snapshot(resumed) == snapshot(through)
