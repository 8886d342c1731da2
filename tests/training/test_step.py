"""One step of `AdamCB`: what it refuses, what an error leaves behind, and what may happen around it."""

import copy
import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from pytest import approx
from torch import nn
from torch.utils.data import IterableDataset, TensorDataset

from adamcb import AdamCB, AdamX, CombinatorialBandit, PerSampleNorms, ReplacementBandit, UniformSelection
from tests.training.problem import digits, eager, losses_of, mlp, snapshot, train

K = 8


@pytest.fixture
def trainer():
    with AdamCB(mlp(), digits(100), K, lr=0.01, selection=eager(100, K)) as trainer:
        yield trainer


def take(trainer):
    return next(iter(trainer))


def test_a_reduced_loss_gets_an_error_that_says_how_to_compute_losses(trainer):
    x, y = take(trainer)
    with pytest.raises(ValueError, match=r'`losses` must be one per sample.*reduction="none"'):
        trainer.step(F.cross_entropy(trainer.model(x), y))
    trainer.step(losses_of(trainer.model, x, y))  # the batch is still waiting


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda losses: losses[:-1], ValueError, r"`losses` must have shape \(8,\).*got losses of shape \(7,\)"),
        (lambda losses: losses[:, None], ValueError, r"got losses of shape \(8, 1\)"),
        (lambda losses: losses.detach(), ValueError, r"`losses` must depend on the model's parameters"),
        (lambda losses: losses.tolist(), TypeError, r"`losses` must be a tensor, got losses of type list"),
    ],
)
def test_losses_that_are_not_one_per_sample_are_refused(trainer, change, error, message):
    x, y = take(trainer)
    with pytest.raises(error, match=message):
        trainer.step(change(losses_of(trainer.model, x, y)))


def test_step_without_a_batch_or_twice_for_one_is_an_error(trainer):
    x, y = digits(K).tensors
    with pytest.raises(RuntimeError, match="no batch is waiting"):
        trainer.step(losses_of(trainer.model, x, y))
    x, y = take(trainer)
    trainer.step(losses_of(trainer.model, x, y))
    with pytest.raises(RuntimeError, match="must be called once for each batch"):
        trainer.step(losses_of(trainer.model, x, y))


def test_update_without_weigh_or_backward_is_an_error(trainer):
    with pytest.raises(RuntimeError, match="`update` must follow `weigh` and `backward`"):
        trainer.update()
    x, y = take(trainer)
    trainer.weigh(losses_of(trainer.model, x, y))
    before = snapshot(trainer)
    with pytest.raises(RuntimeError, match="backward"):
        trainer.update()
    assert snapshot(trainer) == before
    x, y = take(trainer)
    trainer.weigh(losses_of(trainer.model, x, y), accumulate=2)
    x, y = take(trainer)
    trainer.weigh(losses_of(trainer.model, x, y), accumulate=2).backward()
    with pytest.raises(RuntimeError, match="got 16 weighed samples and gradients of 8"):
        trainer.update()


@pytest.mark.parametrize("accumulate", [1, 2])
def test_more_batches_than_said_are_no_step_and_leave_nothing_behind(trainer, accumulate):
    for _ in range(accumulate):
        trainer.weigh(losses_of(trainer.model, *take(trainer)), accumulate=accumulate).backward()
    batch = take(trainer)
    before = snapshot(trainer)
    with pytest.raises(RuntimeError, match=rf"every {accumulate} batches .*and {accumulate} were waiting for it"):
        trainer.weigh(losses_of(trainer.model, *batch), accumulate=accumulate)
    assert snapshot(trainer) == before
    assert all(parameter.grad is None for parameter in trainer.model.parameters())
    train(trainer, 1)
    assert snapshot(trainer) != before


def test_a_norm_above_the_bound_in_one_of_two_accumulated_batches_teaches_nothing_of_either():
    selection = CombinatorialBandit(100, K, max_norm=1e3, generator=torch.Generator().manual_seed(0))
    with AdamCB(mlp(), digits(100), K, lr=0.01, selection=selection) as trainer:
        for factor in (1.0, 1e6):
            trainer.weigh(factor * losses_of(trainer.model, *take(trainer)), accumulate=2).backward()
        before = snapshot(trainer)
        with pytest.raises(ValueError, match="`norms` must be at most max_norm=1000"):
            trainer.update()
        assert snapshot(trainer) == before


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_is_refused_by_the_name_of_its_sample_and_changes_nothing(trainer, bad):
    train(trainer, 3)
    batch = take(trainer)
    before = snapshot(trainer)
    factors = torch.ones(K)
    factors[2] = bad
    with pytest.raises(
        FloatingPointError, match=rf"The loss of every sample.*got samples {batch.draw.indices[2]} \({bad}"
    ):
        trainer.step(factors * losses_of(trainer.model, *batch))
    assert snapshot(trainer) == before
    train(trainer, 1)
    assert snapshot(trainer) != before


class BadSlope(torch.autograd.Function):
    """Passes values through, and multiplies the gradient of row 2 by a bad number."""

    @staticmethod
    def forward(ctx, values, bad):  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.bad = bad
        return values.clone()

    @staticmethod
    def backward(ctx, *grads):
        grad = grads[0].clone()
        grad[2] *= ctx.bad
        return grad, None


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_norm_that_is_not_finite_is_refused_by_the_name_of_its_sample_and_changes_nothing(trainer, bad):
    train(trainer, 3)
    batch = take(trainer)
    before = snapshot(trainer)
    with pytest.raises(FloatingPointError, match=rf"The gradient norm of every.*{batch.draw.indices[2]} \((nan|inf)\)"):
        trainer.step(BadSlope.apply(losses_of(trainer.model, *batch), bad))
    assert snapshot(trainer) == before
    with AdamCB(copy.deepcopy(trainer.model), digits(100), K, lr=0.01, selection=eager(100, K)) as untouched:
        untouched.load_state_dict(trainer.state_dict())
        # Nothing of the bad gradients is left for the next step.
        assert train(trainer, 3) == train(untouched, 3)
        assert snapshot(trainer) == snapshot(untouched)


def test_one_bad_batch_of_two_accumulated_ones_spoils_both(trainer):
    for j in range(2):
        batch = take(trainer)
        losses = losses_of(trainer.model, *batch)
        losses = BadSlope.apply(losses, float("nan")) if j else losses
        trainer.weigh(losses, accumulate=2).backward()
    before = snapshot(trainer)
    with pytest.raises(FloatingPointError, match=rf"samples {batch.draw.indices[2]} \(nan\)"):
        trainer.update()
    assert snapshot(trainer) == before


@pytest.mark.parametrize("in_parts", [False, True])
def test_a_failed_backward_gives_the_batch_up(trainer, in_parts):
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, values):  # pyright: ignore[reportIncompatibleMethodOverride]
            return values.clone()

        @staticmethod
        def backward(ctx, *grads):
            raise ArithmeticError("no gradient today")

    with AdamCB(mlp(), digits(100), K, lr=0.01, selection=eager(100, K)) as other:
        for twin in (trainer, other):
            train(twin, 2)
        x, y = take(trainer)
        before = snapshot(trainer)
        losses = Fails.apply(losses_of(trainer.model, x, y))
        with pytest.raises(ArithmeticError):
            trainer.weigh(losses).backward() if in_parts else trainer.step(losses)
        if in_parts:
            trainer.give_up()
        assert snapshot(trainer) == before
        take(other)  # and never trained on
        assert train(trainer, 2) == train(other, 2)


def evaluate(model):
    """Do all that people do between steps."""
    x, y = digits(50).tensors
    model.eval()
    with torch.no_grad():
        losses_of(model, x, y)
    model(x)
    losses_of(model, x, y).mean().backward()
    torch.autograd.grad(model(x.requires_grad_()).sum(), x)
    x.requires_grad_(False)
    model.train()


@pytest.mark.parametrize("norms", ["exact", "last-layer"])
def test_evaluation_between_steps_disturbs_nothing(norms):
    histories = []
    for disturbed in (False, True):
        trainer = AdamCB(mlp(), digits(100), K, lr=0.01, norms=norms)
        history = []
        for _ in range(2):
            for x, y in trainer:
                history.append(trainer.step(losses_of(trainer.model, x, y)).item())
                if disturbed:
                    evaluate(trainer.model)
        histories.append((history, snapshot(trainer)))
    assert histories[0] == histories[1]


def test_a_batch_taken_ahead_is_weighed_by_its_own_draw(trainer):
    train(trainer, 12)
    trainer.selection.weights = np.linspace(1.0, 20.0, 100)
    first, second = take(trainer), take(trainer)
    assert first.draw.loss_weights.tolist() != second.draw.loss_weights.tolist()
    losses = losses_of(trainer.model, *first)
    expected = float(first.draw.loss_weights @ losses.detach().double().numpy())
    assert trainer.step(losses, draw=first.draw).item() == approx(expected, rel=1e-6)
    trainer.step(losses_of(trainer.model, *second))
    with pytest.raises(RuntimeError, match="no batch is waiting"):
        trainer.step(losses_of(trainer.model, *second))


def test_close_leaves_no_trace():
    model = mlp()
    fresh = mlp()
    trainer = AdamCB(model, digits(100), K)
    assert len(model._forward_hooks) == 1
    train(trainer, 3)
    trainer.close()
    trainer.close()
    for own, untouched in zip(model.modules(), fresh.modules(), strict=True):
        assert set(own.__dict__) == set(untouched.__dict__)
        for name, value in own.__dict__.items():
            if name.endswith("_hooks") or "_hooks_" in name:
                assert not value, name
    for parameter in model.parameters():
        assert set(parameter.__dict__) == set(next(fresh.parameters()).__dict__)
    PerSampleNorms(model).close()
    take(trainer)
    with pytest.raises(RuntimeError, match="must not be closed"):
        trainer.step(losses_of(model, *digits(K).tensors))


@pytest.mark.parametrize(
    "make",
    [torch.optim.SGD, torch.optim.AdamW, torch.optim.Adagrad, torch.optim.RMSprop, torch.optim.Rprop, AdamX],
)
def test_any_optimizer_steps_as_it_would_by_itself(make):
    trainer, other = AdamCB(mlp(), digits(100), K, lr=1.0), mlp()
    trainer.optimizers = (make(trainer.model.parameters(), lr=0.01),)
    optimizer = make(other.parameters(), lr=0.01)
    for batch in itertools.islice(itertools.chain(trainer, trainer), 20):
        trainer.step(losses_of(trainer.model, *batch))
        optimizer.zero_grad()
        weights = torch.from_numpy(batch.draw.loss_weights.copy()).float()
        (weights * losses_of(other, *batch)).sum().backward()
        optimizer.step()
        for own, expected in zip(trainer.model.parameters(), other.parameters(), strict=True):
            # The norms are computed along with the gradient, which may round it in another way.
            torch.testing.assert_close(own, expected, rtol=1e-4, atol=1e-6)


def test_several_optimizers_all_step():
    model = mlp()
    first = torch.optim.SGD(model[1].parameters(), lr=0.1)
    second = AdamX(model[3].parameters(), lr=0.01)
    with AdamCB(model, digits(100), K, optimizer=[first, second]) as trainer:
        before = copy.deepcopy(model.state_dict())
        history = train(trainer, 40)
        assert trainer.optimizer is first
        assert all(not torch.equal(before[name], value) for name, value in model.state_dict().items())
        assert np.mean(history[-10:]) < 0.6 * np.mean(history[:10])


@pytest.mark.parametrize(
    "selection",
    [
        CombinatorialBandit(100, K),
        CombinatorialBandit(100, K, feedback="listing"),
        ReplacementBandit(100, K),
        ReplacementBandit(100, K, form="original"),
        UniformSelection(100, K),
    ],
    ids=lambda selection: f"{type(selection).__name__}",
)
def test_any_selection_trains(selection):
    before = selection.inclusion_probs()
    with AdamCB(mlp(), digits(100), K, lr=0.01, selection=selection) as trainer:
        history = train(trainer, 100)
    assert np.mean(history[-10:]) < 0.5 * np.mean(history[:10])
    learned = not np.array_equal(before, selection.inclusion_probs())
    assert learned == (not isinstance(selection, UniformSelection))


def test_without_norms_nothing_is_measured_and_nothing_learned():
    model = mlp()
    with AdamCB(model, digits(100), K, norms=None) as trainer:
        assert not model._forward_hooks
        train(trainer, 5)
        assert np.isnan(trainer.meter.second_moment)
        assert len(set(trainer.selection.weights)) == 1  # pyright: ignore[reportAttributeAccessIssue]


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(3))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"batch_size": 0}, ValueError, "`batch_size` must be at least 1"),
        ({"batch_size": 101}, ValueError, "`batch_size` must be at most num_samples=100"),
        (
            {"selection": UniformSelection(100, 9)},
            ValueError,
            "`batch_size` must be the selection's, 9, got batch_size=8",
        ),
        ({"selection": UniformSelection(99, 8)}, ValueError, "`dataset` must have selection.num_samples=99 samples"),
        ({"selection": "bandit"}, TypeError, "`selection` must be a Selection, got selection of type str"),
        ({"optimizer": "adam"}, TypeError, "`optimizer` must be a torch.optim.Optimizer"),
        ({"optimizer": []}, TypeError, "`optimizer` must be .* got none"),
        ({"optimizer": torch.optim.LBFGS([torch.zeros(1)])}, TypeError, "without a closure, got LBFGS"),
        ({"norms": "all"}, ValueError, "`mode` must be one of"),
        ({"feedback_delay": -1}, ValueError, "`feedback_delay` must be at least 0"),
        ({"dataset": Stream()}, TypeError, "`dataset` must be map-style.*Stream"),
        ({"dataset": TensorDataset(torch.empty(0, 3))}, ValueError, "`dataset` must not be empty"),
        ({"workers": 2}, TypeError, "workers"),
    ],
)
def test_bad_arguments_are_refused(options, error, message):
    arguments = {"dataset": digits(100), "batch_size": K, **options}
    with pytest.raises(error, match=message):
        AdamCB(mlp(), **arguments)


def test_the_default_optimizer_is_fused_where_all_parameters_allow_it():
    assert AdamCB(mlp(), digits(100), K).optimizer.param_groups[0]["fused"]
    model = nn.Sequential(mlp())
    model.register_parameter("phase", nn.Parameter(torch.zeros(2, dtype=torch.complex64)))
    with pytest.raises(NotImplementedError, match="complex"):
        AdamCB(model, digits(100), K)
    assert AdamCB(model, digits(100), K, norms=None).optimizer.param_groups[0]["fused"] is None


def test_frozen_parameters_stay():
    model = mlp()
    frozen = next(module for module in model.modules() if isinstance(module, torch.nn.Linear)).requires_grad_(False)
    with AdamCB(model, digits(100), K, lr=0.01) as trainer:
        before = frozen.weight.clone()
        train(trainer, 10)
    assert torch.equal(frozen.weight, before)
