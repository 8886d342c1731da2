"""One step of `AdamCB`: what it refuses, what an error leaves behind, and what may happen around it."""

import copy
import itertools
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from pytest import approx
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

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
    with pytest.raises(FloatingPointError, match=rf"The score of every.*{batch.draw.indices[2]} \((nan|inf)\)"):
        trainer.step(BadSlope.apply(losses_of(trainer.model, *batch), bad))
    assert snapshot(trainer) == before
    with AdamCB(copy.deepcopy(trainer.model), digits(100), K, lr=0.01, selection=eager(100, K)) as untouched:
        untouched.load_state_dict(trainer.state_dict())
        # Nothing of the bad gradients is left for the next step.
        assert train(trainer, 3) == train(untouched, 3)
        assert snapshot(trainer) == snapshot(untouched)


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


@pytest.mark.parametrize("scores", ["exact", "last-layer", "losses"])
def test_evaluation_between_steps_disturbs_nothing(scores):
    histories = []
    for disturbed in (False, True):
        trainer = AdamCB(mlp(), digits(100), K, lr=0.01, scores=scores)
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
        assert trainer.optimizers == (first, second)
        with pytest.raises(AttributeError, match="There are 2 optimizers: use `optimizers`"):
            _ = trainer.optimizer
        assert all(not torch.equal(before[name], value) for name, value in model.state_dict().items())
        assert np.mean(history[-10:]) < 0.6 * np.mean(history[:10])


SELECTIONS = {
    "default": CombinatorialBandit,
    "proof": partial(CombinatorialBandit, feedback="proof", gate=None),
    "listing": partial(CombinatorialBandit, feedback="listing", gate=None),
    "with replacement": ReplacementBandit,
    "projected": partial(ReplacementBandit, form="original"),
    "shuffled": UniformSelection,
}


@pytest.mark.parametrize("name", SELECTIONS)
def test_any_selection_trains(name, generator):
    selection = SELECTIONS[name](100, K, generator=generator)
    before = selection.state_dict()
    with AdamCB(mlp(), digits(100), K, lr=0.01, selection=selection) as trainer:
        history = train(trainer, 150)
    assert np.mean(history[-10:]) < 0.5 * np.mean(history[:10])
    learned = selection.state_dict().get("weights")
    assert selection.learns == (learned is not None and not torch.equal(learned, before["weights"]))


def test_a_selection_that_learns_nothing_is_not_measured():
    model = mlp()
    with AdamCB(model, digits(100), K, selection=UniformSelection(100, K)) as trainer:
        assert not model._forward_hooks
        train(trainer, 5)
        assert np.isnan(trainer.meter.second_moment)


SAME = torch.optim.SGD([torch.zeros(1)])


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(3))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"batch_size": 0}, ValueError, "`batch_size` must be at least 1"),
        ({"batch_size": 101}, ValueError, "`batch_size` must be at most num_samples=100"),
        (
            {"selection": eager(100, 9)},
            ValueError,
            "`batch_size` must be the selection's, 9, got batch_size=8",
        ),
        ({"selection": eager(99, 8)}, ValueError, "`dataset` must have selection.num_samples=99 samples"),
        ({"selection": "bandit"}, TypeError, "`selection` must be a Selection, got selection of type str"),
        ({"optimizer": "adam"}, TypeError, "`optimizer` must be a torch.optim.Optimizer"),
        ({"optimizer": []}, TypeError, "`optimizer` must be .* got none"),
        ({"optimizer": torch.optim.LBFGS([torch.zeros(1)])}, TypeError, "without a closure, got LBFGS"),
        ({"optimizer": torch.optim.AdamW}, TypeError, "got AdamW: build it first"),
        ({"optimizer": torch.optim.SGD([torch.zeros(1)]), "lr": 0.1}, ValueError, "`lr` must be set in `optimizer`"),
        (
            {"optimizer": torch.optim.SGD([torch.zeros(1)]), "betas": (0.8, 0.9)},
            ValueError,
            r"`betas` must be set in `optimizer` where that is given, got betas=\(0.8, 0.9\) beside it",
        ),
        ({"scores": "all"}, ValueError, "`scores` must be one of 'exact', 'last-layer', 'losses', or a function"),
        ({"norms": "exact"}, TypeError, "`norms` must not be given.*it is called `scores` now"),
        ({"shuffle": True}, TypeError, "`shuffle` must not be given, got shuffle=True"),
        ({"sharded": "abc"}, TypeError, "`sharded` must be True, False or the number of strata, got sharded='abc'"),
        ({"dataset": DataLoader(digits(100))}, TypeError, "got a DataLoader. Pass its dataset: `loader.dataset`"),
        ({"model": None}, TypeError, "`model` must be a torch.nn.Module, got model of type NoneType"),
        ({"model": iter([torch.zeros(1)])}, TypeError, "Pass the model, not its parameters"),
        ({"feedback_delay": -1}, ValueError, "`feedback_delay` must be at least 0"),
        ({"dataset": Stream()}, TypeError, "`dataset` must be map-style.*Stream"),
        ({"dataset": TensorDataset(torch.empty(0, 3))}, ValueError, "`dataset` must not be empty"),
        ({"workers": 2}, TypeError, "workers"),
        (
            {"optimizer": [SAME, SAME]},
            ValueError,
            "`optimizer` must name each optimizer once.* got one twice in SGD, SGD",
        ),
        (
            {"model": mlp().requires_grad_(False)},
            ValueError,
            "`model` must have a trainable parameter, got one with 4 frozen",
        ),
        ({"model": nn.Flatten()}, ValueError, "`model` must have a trainable parameter, got one with 0 frozen"),
        ({"device": "meta"}, ValueError, "`device` must hold numbers, got device='meta'"),
        ({"dataset": "hello"}, TypeError, "`dataset` must be map-style.* got dataset of type str"),
        ({"dataset": b"hello"}, TypeError, "`dataset` must be map-style.* got dataset of type bytes"),
    ],
)
def test_bad_arguments_are_refused(options, error, message):
    arguments = {"model": mlp(), "dataset": digits(100), "batch_size": K, **options}
    with pytest.raises(error, match=message):
        AdamCB(**arguments)


def test_the_default_optimizer_is_fused_where_all_parameters_allow_it():
    assert AdamCB(mlp(), digits(100), K).optimizer.param_groups[0]["fused"]
    model = nn.Sequential(mlp())
    model.register_parameter("phase", nn.Parameter(torch.zeros(2, dtype=torch.complex64)))
    assert AdamCB(model, digits(100), K, scores="last-layer").optimizer.param_groups[0]["fused"] is None


def test_settings_reach_the_default_optimizer():
    trainer = AdamCB(mlp(), digits(100), K, 0.02, betas=(0.8, 0.99), eps=1e-6, weight_decay=0.1)
    group = trainer.optimizer.param_groups[0]
    assert (group["lr"], group["betas"], group["eps"], group["weight_decay"]) == (0.02, (0.8, 0.99), 1e-6, 0.1)


def test_parameters_that_no_optimizer_steps_on_are_named_once():
    model = mlp()
    optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)
    with AdamCB(model, digits(100), K, optimizer=optimizer) as trainer:
        with pytest.warns(UserWarning, match=r"no optimizer steps on 3\.weight, 3\.bias"):
            train(trainer, 1)
        train(trainer, 1)
        model[3].requires_grad_(False)
        train(trainer, 1)
        model[3].requires_grad_(True)  # unfrozen later
        with pytest.warns(UserWarning, match="add_param_group"):
            train(trainer, 1)


def test_trainer_and_parts_print_as_one_line(trainer):
    for part in (trainer, trainer.selection, trainer.meter):
        assert "\n" not in repr(part)
        assert repr(part).startswith(type(part).__name__)


def test_frozen_parameters_stay():
    model = mlp()
    frozen = next(module for module in model.modules() if isinstance(module, torch.nn.Linear)).requires_grad_(False)
    with AdamCB(model, digits(100), K, lr=0.01) as trainer:
        before = frozen.weight.clone()
        train(trainer, 10)
    assert torch.equal(frozen.weight, before)
