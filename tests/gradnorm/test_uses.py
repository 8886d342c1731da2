"""Parameters used directly, several times, tied, frozen, or hidden in functions that have no rule."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from adamcb.gradnorm import PerSampleNorms
from tests.gradnorm.checking import check, measured, randomize
from tests.reference.gradnorm import norms_by_vmap, norms_one_by_one, wave


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


class Formula(nn.Module):
    """A forward pass given as a function of the inputs and a few parameters."""

    def __init__(self, formula, **shapes):
        super().__init__()
        self.formula = formula
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.zeros(shape)))

    def forward(self, inputs):
        return self.formula(self, inputs)


FORMULAS = {
    "added": (lambda m, x: x + m.a, {"a": (3,)}),
    "subtracted from": (lambda m, x: m.a - x, {"a": (4, 1)}),
    "scaled": (lambda m, x: x * m.a, {"a": (4, 3)}),
    "divided": (lambda m, x: x / (2 + m.a**2), {"a": (1, 3)}),
    "divides": (lambda m, x: m.a / (2 + x**2), {"a": ()}),
    "power": (lambda m, x: (1 + x**2) ** m.a, {"a": (3,)}),
    "maximum": (lambda m, x: torch.maximum(x, m.a), {"a": (3,)}),
    "where": (lambda m, x: torch.where(x > 0, x, m.a), {"a": (3,)}),
    "lerp": (lambda m, x: torch.lerp(x, 2 * x, m.a), {"a": (3,)}),
    "with a factor": (lambda m, x: torch.add(x, m.a, alpha=3.0), {"a": (3,)}),
    "in place": (lambda m, x: x.clone().mul_(m.a).add_(m.a), {"a": (3,)}),
    "matrix": (lambda m, x: x @ m.a, {"a": (3, 5)}),
    "matrix transposed": (lambda m, x: x @ m.a.t(), {"a": (5, 3)}),
    "matrix transposed twice over": (lambda m, x: F.linear(x @ m.a.T, m.a.transpose(0, 1)), {"a": (5, 3)}),
    "matrix on the left": (lambda m, x: m.a @ x, {"a": (5, 4)}),
    "vector": (lambda m, x: x @ m.a, {"a": (3,)}),
    "einsum": (lambda m, x: torch.einsum("kti,ijo->ktjo", x, m.a), {"a": (3, 2, 2)}),
    "baddbmm": (lambda m, x: torch.baddbmm(m.a, x, x.transpose(1, 2)), {"a": (4, 4)}),
    "class token": (lambda m, x: torch.cat([m.a.expand(len(x), -1, -1), x], 1), {"a": (1, 1, 3)}),
    "class token repeated": (lambda m, x: torch.cat([x, m.a.repeat(len(x), 1, 1)], 1), {"a": (1, 2, 3)}),
    "token made of two": (lambda m, x: torch.cat([(m.a * m.b).expand(len(x), 2, 3), x], 1), {"a": (3,), "b": (3,)}),
    "stacked": (lambda m, x: torch.stack([x, m.a.expand_as(x)], 1), {"a": (3,)}),
    "like another": (lambda m, x: x * m.a.expand_as(x) + m.b.type_as(x), {"a": (3,), "b": (4, 1)}),
    "rows of its own": (lambda m, x: x + m.a[: len(x)], {"a": (9, 1, 1)}),
    "slice": (lambda m, x: x + m.a[:4], {"a": (9, 3)}),
    "low rank": (lambda m, x: F.linear(x, m.w + m.b @ m.a), {"w": (5, 3), "b": (5, 2), "a": (2, 3)}),
    "queries": (
        lambda m, x: F.scaled_dot_product_attention(m.a.expand(len(x), 2, 3), x, x),
        {"a": (2, 3)},
    ),
    "softplus": (lambda m, x: x * F.softplus(m.a), {"a": (3,)}),
    "called twice": (lambda m, x: F.linear(torch.tanh(F.linear(x, m.a)), m.a), {"a": (3, 3)}),
    "used three ways": (lambda m, x: (x @ m.a + m.a[0]) * m.a.sum(), {"a": (3, 3)}),
    "time first": (lambda m, x: F.linear(x.transpose(0, 1), m.a).transpose(0, 1), {"a": (2, 3)}),
    "batch folded in": (lambda m, x: F.linear(x.reshape(-1, 3), m.a).view(len(x), 4, 2), {"a": (2, 3)}),
    "batch doubled": (lambda m, x: sum(F.linear(torch.cat([x, -x.exp()]), m.a).chunk(2)), {"a": (2, 3)}),
    "batch repeated": (
        lambda m, x: F.linear(x.repeat_interleave(2, 0), m.a).view(len(x), 2, 4, 2),
        {"a": (2, 3)},
    ),
    "shared by convolutions": (
        lambda m, x: F.conv1d(torch.tanh(F.conv1d(x, m.a, padding=1)), m.a, padding=1),
        {"a": (4, 4, 3)},
    ),
    "table and matrix": (
        lambda m, x: F.linear(F.embedding((x.abs() * 5).long() % 5, m.a), m.a),
        {"a": (5, 2)},
    ),
    "table of positions": (lambda m, x: x + F.embedding(torch.arange(4), m.a), {"a": (6, 3)}),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_parameter_in_a_formula(name):
    formula, shapes = FORMULAS[name]
    model = randomize(Formula(formula, **shapes).double())
    reference = norms_one_by_one
    check(model, numbers(5, 4, 3), _contributions if name == "rows of its own" else reference)


def _contributions(model: nn.Module, inputs: Tensor) -> Tensor:
    """Return norms from the batch as a whole: what a batch of one would read differs."""
    norms = []
    for number in range(len(inputs)):
        loss = wave(model(inputs), torch.arange(len(inputs)))[number]
        norms.append(torch.autograd.grad(loss, list(model.parameters()))[0].norm())
    return torch.stack(norms)


@pytest.mark.parametrize("shape", [(4, 4, 3), (3, 3, 3)], ids=["square", "cube"])
def test_sizes_that_coincide_do_not_confuse_the_batch(shape):
    def formula(m, x):
        return F.linear((x.transpose(0, 1) + m.b).transpose(0, 1), m.a) + F.embedding(torch.arange(x.shape[1]), m.c)

    model = Formula(formula, a=(shape[2], shape[2]), b=(shape[1], 1, shape[2]), c=(shape[1], shape[2]))
    check(randomize(model.double()), numbers(*shape), norms_one_by_one)


def test_recurrent_layers_of_exported_programs_are_measured():
    def formula(m, x):
        state, settings = x.new_zeros(1, len(x), 2), (False, 1, 0.0, True, False, True)
        return torch.ops.aten.gru.input(x, state, [m.a, m.b], *settings)[0]

    check(randomize(Formula(formula, a=(6, 3), b=(6, 2)).double()), numbers(5, 4, 3), norms_one_by_one)


def test_module_called_several_times_counts_as_a_whole():
    layer = nn.Linear(3, 3)
    model = nn.Sequential(layer, nn.Tanh(), layer, nn.Tanh(), layer)
    check(randomize(model.double()), numbers(5, 3), norms_one_by_one)


def test_tied_weights_and_bias_are_one_parameter():
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    model[2].weight, model[2].bias = model[0].weight, model[0].bias
    check(randomize(model.double()), numbers(5, 4, 3), norms_one_by_one)


@pytest.mark.parametrize("frozen", ["0.weight", "0.bias", "2.weight", "2.bias"])
def test_frozen_parameters_do_not_count(frozen):
    model = randomize(nn.Sequential(nn.Conv1d(4, 3, 2), nn.Tanh(), nn.Linear(2, 3)).double())
    model.get_parameter(frozen).requires_grad_(False)
    check(model, numbers(5, 4, 3), norms_by_vmap)
    assert model.get_parameter(frozen).grad is None


@pytest.mark.parametrize("wrap", [parametrizations.weight_norm, parametrizations.spectral_norm])
def test_parametrized_weights(wrap):
    check(wrap(randomize(nn.Linear(3, 4).double())).eval(), numbers(5, 3), norms_one_by_one)


class Multiply(torch.autograd.Function):
    """A function of the user's own, whose inside no mode can see."""

    @staticmethod
    def forward(ctx, inputs, weight):
        ctx.save_for_backward(inputs, weight)
        return inputs * weight

    @staticmethod
    def backward(ctx, *grads):
        inputs, weight = ctx.saved_tensors
        return grads[0] * weight, (grads[0] * inputs).sum((0, 1))


@pytest.mark.parametrize("last", [True, False])
def test_custom_autograd_function(last):
    layer = nn.Linear(3, 3)
    model = Formula(lambda m, x: Multiply.apply(layer(x), m.a) if last else layer(Multiply.apply(x, m.a)), a=(3,))
    model.layer = layer
    check(randomize(model.double()), numbers(5, 4, 3), norms_one_by_one)


class Through(torch.autograd.Function):
    """Returns a view of its input; the weight gets a gradient all the same."""

    @staticmethod
    def forward(ctx, inputs, weight):
        ctx.save_for_backward(inputs)
        return inputs.view_as(inputs)

    @staticmethod
    def backward(ctx, *grads):
        return 2.0 * grads[0], (grads[0] * ctx.saved_tensors[0]).sum((0, 1))


def test_custom_autograd_function_that_returns_a_view():
    layer = nn.Linear(3, 3)
    model = Formula(lambda m, x: Through.apply(layer(x), m.a), a=(3,))
    model.layer = layer
    check(randomize(model.double()), numbers(5, 4, 3), norms_one_by_one)


def test_batch_norm_in_training_gives_contributions_to_the_batch_gradient():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2))
    inputs = numbers(6, 3)
    randomize(model.double())
    torch.testing.assert_close(measured(model, inputs), _with_copies(model, inputs), rtol=1e-10, atol=0.0)


def _with_copies(model: nn.Sequential, inputs: Tensor) -> Tensor:
    """Give every sample its own copy of the parameters: the gradient of a copy is the sample's contribution."""
    copies = [p.detach().expand(len(inputs), *p.shape).clone().requires_grad_() for p in model.parameters()]
    weight, bias, gamma, beta, weight2, bias2 = copies
    hidden = torch.einsum("ki,koi->ko", inputs, weight) + bias
    hidden = (hidden - hidden.mean(0)) / (hidden.var(0, unbiased=False) + 1e-5).sqrt() * gamma + beta
    result = torch.einsum("ki,koi->ko", torch.tanh(hidden), weight2) + bias2
    # Samples depend on each other here, so weights cannot be divided out beforehand: they are part of the loss.
    weights = torch.linspace(0.4, 2.3, len(inputs), dtype=torch.float64)
    gradients = torch.autograd.grad((weights * wave(result, torch.arange(len(inputs)))).sum(), copies)
    return torch.stack([g.flatten(1).square().sum(1) for g in gradients]).sum(0).sqrt() / weights


def test_dropout_draws_the_same_numbers_with_and_without():
    model = randomize(nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 2)).double())
    inputs = numbers(5, 3)
    torch.manual_seed(7)
    plain = model(inputs)
    torch.manual_seed(7)
    with PerSampleNorms(model):
        torch.testing.assert_close(model(inputs), plain, rtol=0.0, atol=0.0)


def test_random_operation_without_a_rule_is_replayed():
    def attend(m, x):
        return F.scaled_dot_product_attention(m.a.expand(len(x), 2, 3), x, x, dropout_p=0.5)

    model = randomize(Formula(attend, a=(2, 3)).double())
    inputs = numbers(5, 4, 3)

    def contributions(*_):
        norms = []
        for number in range(len(inputs)):
            torch.manual_seed(11)
            loss = wave(model(inputs), torch.arange(len(inputs)))[number]
            norms.append(torch.autograd.grad(loss, list(model.parameters()))[0].norm())
        return torch.stack(norms)

    torch.manual_seed(11)
    norms = measured(model, inputs)
    torch.testing.assert_close(norms, contributions(), rtol=1e-10, atol=0.0)


def test_bags_with_offsets():
    bag = randomize(nn.EmbeddingBag(7, 3, mode="mean").double())
    tokens, offsets = torch.tensor([1, 2, 2, 6, 0, 1, 1, 3]), torch.tensor([0, 3, 3, 5])
    with PerSampleNorms(bag) as norms:
        wave(bag(tokens, offsets), torch.arange(4)).sum().backward()
        taken = norms.take()
    expected = []
    for number, piece in enumerate(tokens.tensor_split(offsets[1:].tolist())):
        loss = wave(bag(piece, torch.tensor([0])), torch.tensor([number])).sum()
        expected.append(torch.autograd.grad(loss, bag.weight)[0].norm())
    torch.testing.assert_close(taken, torch.stack(expected), rtol=1e-10, atol=0.0)


def test_bags_with_weights_and_frequencies():
    tokens = torch.tensor([[1, 2, 2], [4, 4, 0]])
    shares = torch.tensor([[0.5, 1.0, 2.0], [1.5, 0.3, 1.0]], dtype=torch.float64)
    bag = randomize(nn.EmbeddingBag(5, 3, mode="sum").double())
    with PerSampleNorms(bag) as norms:
        wave(bag(tokens, per_sample_weights=shares), torch.arange(2)).sum().backward()
        taken = norms.take()
    losses = wave(bag(tokens, per_sample_weights=shares), torch.arange(2))
    expected = [torch.autograd.grad(loss, bag.weight, retain_graph=True)[0].norm() for loss in losses]
    torch.testing.assert_close(taken, torch.stack(expected), rtol=1e-10, atol=0.0)


def test_embedding_scaled_by_frequency_counts_the_whole_batch():
    layer = randomize(nn.Embedding(5, 2, scale_grad_by_freq=True).double())
    tokens = torch.tensor([[1, 2, 2], [1, 4, 0]])
    with PerSampleNorms(layer) as norms:
        wave(layer(tokens), torch.arange(2)).sum().backward()
        taken = norms.take()
    values = layer(tokens).detach().requires_grad_()
    rows = torch.autograd.grad(wave(values, torch.arange(2)).sum(), values)[0]
    rows = rows / torch.bincount(tokens.flatten())[tokens].unsqueeze(2)
    table = torch.zeros(2, 5, 2, dtype=torch.float64)
    for sample in range(2):
        table[sample].index_add_(0, tokens[sample], rows[sample])
    torch.testing.assert_close(taken, table.flatten(1).norm(dim=1), rtol=1e-10, atol=0.0)


TIME_FIRST = {
    "encoder": lambda: nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0),
    "lstm": lambda: nn.LSTM(6, 3),
    "gru": lambda: nn.GRU(6, 3, bidirectional=True),
}


class Transposed(nn.Module):
    """Batch first outside, time first inside."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, batch: Tensor) -> Tensor:
        result = self.layer(batch.transpose(0, 1))
        return (result[0] if isinstance(result, tuple) else result).transpose(0, 1)


@pytest.mark.parametrize("build", TIME_FIRST.values(), ids=TIME_FIRST)
@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_layers_with_time_first_know_the_batch_dimension(build):
    model = Transposed(randomize(build().double()))
    inputs = numbers(5, 4, 6)

    def losses(batch: Tensor) -> Tensor:
        return wave(model(batch), torch.zeros(len(batch)))

    parameters = list(model.parameters())
    expected = []
    for sample in range(5):
        gradients = torch.autograd.grad(losses(inputs[sample : sample + 1]).sum(), parameters)
        expected.append(torch.stack([g.square().sum() for g in gradients]).sum().sqrt())
    with PerSampleNorms(model) as norms:
        losses(inputs).sum().backward()
        torch.testing.assert_close(norms.take(), torch.stack(expected), rtol=1e-10, atol=0.0)


@pytest.mark.parametrize("build", TIME_FIRST.values(), ids=TIME_FIRST)
@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_a_model_whose_inputs_have_time_first_is_refused(build):
    """By the inputs the batch is the first dimension, by the layer the second: one of them is wrong."""
    layer = randomize(build().double())
    with PerSampleNorms(layer) as norms:
        result = layer(numbers(4, 5, 6))
        (result[0] if isinstance(result, tuple) else result).square().sum().backward()
        with pytest.raises(RuntimeError, match=r"a layer takes dimension 1 of a tensor of shape \(4, 5, 6\)"):
            norms.take()


def _attend(**options) -> nn.Module:
    return nn.MultiheadAttention(6, 2, **options)


def _spread(parameter: Tensor, x: Tensor) -> Tensor:
    return parameter.expand(-1, len(x), -1).contiguous()


LEARNED = {
    "query": (
        lambda m, x: m.layer(m.a.expand(len(x), -1, -1), x, x)[0],
        lambda: _attend(batch_first=True),
        {"a": (1, 2, 6)},
    ),
    "query repeated": (
        lambda m, x: m.layer(m.a.repeat(len(x), 1, 1), x, x)[0],
        lambda: _attend(batch_first=True),
        {"a": (1, 2, 6)},
    ),
    "query, time first": (
        lambda m, x: m.layer(m.a.expand(-1, len(x), -1), x.transpose(0, 1), x.transpose(0, 1))[0].transpose(0, 1),
        _attend,
        {"a": (2, 1, 6)},
    ),
    "memory": (
        lambda m, x: m.layer(x, m.a.expand(len(x), -1, -1), m.a.repeat(len(x), 1, 1))[0],
        lambda: _attend(batch_first=True),
        {"a": (1, 4, 6)},
    ),
    "state of a gru": (
        lambda m, x: m.layer(x, _spread(m.a, x))[0],
        lambda: nn.GRU(6, 5, 2, batch_first=True, bidirectional=True),
        {"a": (4, 1, 5)},
    ),
    "state of an rnn": (
        lambda m, x: m.layer(x.transpose(0, 1), m.a.repeat(1, len(x), 1))[0].transpose(0, 1),
        lambda: nn.RNN(6, 5),
        {"a": (1, 1, 5)},
    ),
    "states of an lstm": (
        lambda m, x: m.layer(x, (m.a.repeat(1, len(x), 1), _spread(m.b, x)))[0],
        lambda: nn.LSTM(6, 5, 2, batch_first=True),
        {"a": (2, 1, 5), "b": (2, 1, 5)},
    ),
    "inputs of a gru": (
        lambda m, x: m.layer(m.a.expand(len(x), -1, -1), x[:, :1].transpose(0, 1).contiguous())[0],
        lambda: nn.GRU(4, 6, batch_first=True),
        {"a": (1, 3, 4)},
    ),
}


@pytest.mark.parametrize("batch_size", [1, 2, 5])
@pytest.mark.parametrize("name", LEARNED)
def test_learned_argument_of_a_layer_with_a_convention_of_its_own(name, batch_size):
    formula, layer, shapes = LEARNED[name]
    model = Formula(formula, **shapes)
    model.layer = layer()
    check(randomize(model.double()), numbers(batch_size, 3, 6), norms_one_by_one)


def test_learned_query_without_attention_weights():
    model = Formula(lambda m, x: m.layer(m.a.expand(len(x), -1, -1), x, x, need_weights=False)[0], a=(1, 2, 6))
    model.layer = _attend(batch_first=True)
    check(randomize(model.double()), numbers(5, 3, 6), norms_one_by_one)


class Turned(nn.Module):
    """Has the samples in one dimension or another, by a setting, in tensors of one shape."""

    def __init__(self) -> None:
        super().__init__()
        self.dim = 1
        self.layer, self.scale = nn.Linear(4, 4), nn.Parameter(torch.ones(4))

    def forward(self, inputs: Tensor) -> Tensor:
        return (torch.tanh(self.layer(inputs)).transpose(0, self.dim) * self.scale).transpose(0, self.dim)


def test_what_is_remembered_of_an_operation_depends_on_its_settings():
    model, inputs, expected = randomize(Turned().double()), numbers(4, 4, 4), {}
    for model.dim in (1, 2):
        losses = wave(model(inputs), torch.arange(4))
        rows = [torch.autograd.grad(loss, list(model.parameters()), retain_graph=True) for loss in losses]
        expected[model.dim] = torch.stack([torch.cat([g.flatten() for g in row]).norm() for row in rows])
    with PerSampleNorms(model, check="never") as norms:
        for model.dim in (1, 2, 1, 2):
            wave(model(inputs), torch.arange(4)).sum().backward()
            torch.testing.assert_close(norms.take(), expected[model.dim], rtol=1e-10, atol=0.0)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_lstm_whose_last_states_are_used(bidirectional):
    model = Formula(lambda m, x: torch.cat((m.layer(x)[1][0], m.layer(x)[1][1].square())).sum(0))
    model.layer = nn.LSTM(6, 5, 2, batch_first=True, bidirectional=bidirectional)
    check(randomize(model.double()), numbers(4, 4, 6), norms_one_by_one)
