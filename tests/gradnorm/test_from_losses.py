"""What the losses tell about last-layer norms: models that put time first, and others whose batch is not first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset

from adamcb import AdamCB, AdaptiveLoader, PerSampleNorms, UniformSelection
from adamcb.gradnorm import _from_losses

K, T, D, V = 4, 6, 5, 3


@pytest.fixture(autouse=True)
def in_double_precision():
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(torch.float32)


class Model(nn.Module):
    """What the head computes goes through `ending`; kept in `made`."""

    def __init__(self, ending: Callable[[Tensor], Tensor] = lambda z: z, width: int = V) -> None:
        super().__init__()
        self.head, self.ending, self.made = nn.Linear(D, width), ending, torch.empty(0)

    def forward(self, x: Tensor) -> Tensor:
        self.made = self.head(self.inner(x))
        return self.ending(self.made)

    def inner(self, x: Tensor) -> Tensor:
        return torch.tanh(x)


class Recurrent(Model):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.layer = nn.LSTM(D, D)

    def inner(self, x: Tensor) -> Tensor:
        return self.layer(x)[0]


class Attending(Model):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.layer = nn.TransformerEncoderLayer(D, 1, 7, dropout=0.0)

    def inner(self, x: Tensor) -> Tensor:
        return self.layer(x)


class TransposesInputs(Model):
    """Takes [K, T, D], and works with time first."""

    def inner(self, x: Tensor) -> Tensor:
        return torch.tanh(x.transpose(0, 1))


def of_tokens(dim: int) -> Callable[[Tensor], Tensor]:
    """Return losses of samples from results with the samples in a dimension: of each token, summed."""

    def losses(result: Tensor) -> Tensor:
        rows = result.movedim(dim, 0)
        numbers = torch.arange(rows.numel()).view(rows.shape)
        return torch.sin(rows + numbers).flatten(1).sum(1)

    return losses


def of_rows_time_first(result: Tensor) -> Tensor:
    return of_tokens(1)(result.unflatten(0, (-1, K)))


Case = tuple[Callable[[], Model], int, Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]
# The model, the length, how the loop brings the inputs in shape, and its losses.
RIGHT: dict[str, Case] = {
    "LSTM, time first, T = K": (Recurrent, K, lambda x: x.transpose(0, 1), of_tokens(1)),
    "LSTM over the samples, T = K": (Recurrent, K, lambda x: x, of_tokens(0)),
    "transformer, time first, T = K": (Attending, K, lambda x: x.transpose(0, 1), of_tokens(1)),
    "activation behind, time first, T = K": (
        lambda: Recurrent(ending=lambda z: F.log_softmax(z, -1)),
        K,
        lambda x: x.transpose(0, 1),
        of_tokens(1),
    ),
    "rows, time first": (lambda: TransposesInputs(lambda z: z.flatten(0, 1)), T, lambda x: x, of_rows_time_first),
    "rows, time first, T = K": (
        lambda: TransposesInputs(lambda z: z.flatten(0, 1)),
        K,
        lambda x: x,
        of_rows_time_first,
    ),
    "rows, sample after sample": (
        lambda: Model(lambda z: z.flatten(0, 1)),
        T,
        lambda x: x,
        lambda rows: of_tokens(0)(rows.unflatten(0, (K, -1))),
    ),
    "rows, as many classes as samples": (
        lambda: Model(lambda z: z.flatten(0, 1), width=K),
        T,
        lambda x: x,
        lambda rows: of_tokens(0)(rows.unflatten(0, (K, -1))),
    ),
    "transposed, T = K": (lambda: Model(lambda z: z.transpose(0, 1)), K, lambda x: x, of_tokens(1)),
    "transposed": (lambda: Model(lambda z: z.transpose(0, 1)), T, lambda x: x, of_tokens(1)),
    "returns time first, T = K": (TransposesInputs, K, lambda x: x, of_tokens(1)),
    "returns time first": (TransposesInputs, T, lambda x: x, of_tokens(1)),
    "classes first, as many as samples": (lambda: Model(lambda z: z.mean(1).T, width=K), T, lambda x: x, of_tokens(1)),
    "all sizes the same": (lambda: TransposesInputs(width=K), K, lambda x: x, of_tokens(1)),
    "samples last": (lambda: Model(lambda z: z.permute(1, 2, 0), width=K), K, lambda x: x, of_tokens(2)),
    "in another order": (Model, T, lambda x: x, lambda result: of_tokens(0)(result.flip(0))),
}


class Diary:
    """Keeps the scores that were told."""

    def __init__(self) -> None:
        self.scores: list[Tensor] = []

    def note_draw(self, draw: Any) -> None: ...

    def note_scores(self, draw: Any, scores: Any) -> None:
        self.scores.append(torch.as_tensor(scores))


class Listening(UniformSelection):
    """Learns nothing, and has everything measured."""

    learns = True

    def update(self, draw: Any, scores: Any) -> None: ...


def single_passes(model: Model, x: Tensor, losses_of: Callable[[Tensor], Tensor]) -> Tensor:
    """Return ‖∂lossⱼ/∂z‖ by one backward pass for each sample."""
    losses = losses_of(model(x))
    return torch.stack([torch.autograd.grad(each, model.made, retain_graph=True)[0].norm() for each in losses])


def train(model: Model, length: int, shaped: Callable[[Tensor], Tensor], losses_of: Callable[[Tensor], Tensor]):
    """Train a few batches; return the scores that were told, and those of single passes."""
    data, diary, expected = TensorDataset(torch.randn(5 * K, length, D)), Diary(), []
    selection = Listening(len(data), K, generator=torch.Generator().manual_seed(0))
    with AdaptiveLoader(model, data, K, selection=selection, observers=[diary], device="cpu") as loader:
        for (x,) in loader:
            x = shaped(x)
            loader.weigh(losses_of(model(x))).backward()
            loader.learn()
            loader._learning._scoring.pause(True)
            expected.append(single_passes(model, x, losses_of))
            loader._learning._scoring.pause(False)
    return torch.stack(diary.scores), torch.stack(expected)


@pytest.mark.parametrize("name", RIGHT)
def test_scores_are_those_of_single_passes(name):
    make, length, shaped, losses_of = RIGHT[name]
    found, expected = train(make(), length, shaped, losses_of)
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-12)


def test_adamcb_measures_models_that_put_time_first():
    """All the defaults: the trainer, its selection and its scores."""
    model, diary = Recurrent(), Diary()
    trainer = AdamCB(model, TensorDataset(torch.randn(5 * K, K, D)), K, lr=0.0, observers=[diary], device="cpu")
    (x,) = next(iter(trainer))
    trainer.step(of_tokens(1)(model(x.transpose(0, 1))))
    trainer.close()
    expected = single_passes(model, x.transpose(0, 1), of_tokens(1))
    torch.testing.assert_close(diary.scores[0], expected, rtol=1e-8, atol=1e-12)


def measured(model: Model, x: Tensor, losses_of: Callable[[Tensor], Tensor], engine: PerSampleNorms) -> None:
    """Compare with single passes."""
    losses = losses_of(model(x))
    engine.compare(losses, first=engine.passes)
    losses.sum().backward()
    found, engine.is_paused = engine.take(), True
    torch.testing.assert_close(found, single_passes(model, x, losses_of), rtol=1e-8, atol=1e-12)
    engine.is_paused = False


def test_a_length_that_is_the_size_of_the_batch_is_asked_about_whenever_it_comes():
    model = TransposesInputs()
    with PerSampleNorms(model, mode="last-layer") as engine:
        for number in range(120):
            length = K if number in (30, 31, 110) else T
            measured(model, torch.randn(K, length, D), of_tokens(1), engine)


@pytest.fixture
def asked(monkeypatch) -> list[int]:
    """Count the questions to losses."""
    found: list[int] = []
    ask = _from_losses.ask
    monkeypatch.setattr(_from_losses, "ask", lambda *args: found.append(1) or ask(*args))
    return found


def test_losses_are_asked_in_the_first_passes_and_at_new_shapes(asked):
    model = Model()
    with PerSampleNorms(model, mode="last-layer") as engine:
        for _ in range(520):
            measured(model, torch.randn(K, T, D), of_tokens(0), engine)
        assert len(asked) == 4
        measured(model, torch.randn(K, T + 1, D), of_tokens(0), engine)
        assert len(asked) == 5


@pytest.mark.parametrize(("check", "count"), [("never", 0), ("always", 20)])
def test_check_says_when_losses_are_asked(check, count, asked):
    model = Model()
    with PerSampleNorms(model, mode="last-layer", check=check) as engine:
        for _ in range(20):
            measured(model, torch.randn(K, K, D), of_tokens(0), engine)
    assert len(asked) == count


def contrast(result: Tensor) -> Tensor:
    """Return losses each of which uses all samples."""
    rows = result.flatten(1)
    return torch.logsumexp(rows @ rows.T, 1) - rows.sum(1)


def normalized(result: Tensor) -> Tensor:
    """Return losses behind a BatchNorm that is no part of the model."""
    return of_tokens(0)(nn.BatchNorm1d(result[0].numel(), affine=False)(result.flatten(1)))


def rows_of(losses_of: Callable[[Tensor], Tensor], *, time_first: bool = False) -> Callable[[Tensor], Tensor]:
    """Return losses of flattened rows."""
    return lambda rows: losses_of(
        rows.unflatten(0, (-1, K)).transpose(0, 1) if time_first else rows.unflatten(0, (K, -1))
    )


def flat() -> Model:
    return Model(lambda z: z.flatten(0, 1))


TIED: dict[str, tuple[Callable[[], Model], int, Callable[[Tensor], Tensor]]] = {
    "losses": (Model, T, contrast),
    "losses, T = K": (Model, K, contrast),
    "losses, as many features as samples": (lambda: Model(lambda z: z.sum(1), width=K), T, contrast),
    "losses, rows": (flat, T, rows_of(contrast)),
    "BatchNorm": (lambda: Model(lambda z: nn.BatchNorm1d(T, affine=False)(z)), T, of_tokens(0)),
    "BatchNorm, T = K": (lambda: Model(lambda z: nn.BatchNorm1d(V, affine=False)(z.sum(1))), K, of_tokens(0)),
    "BatchNorm outside": (Model, T, normalized),
    "BatchNorm outside, T = K": (Model, K, normalized),
    "BatchNorm outside, all sizes the same": (lambda: Model(width=K), K, normalized),
    "BatchNorm outside, rows": (flat, T, rows_of(normalized)),
}


@pytest.mark.parametrize("name", TIED)
def test_samples_that_are_tied_on_purpose_are_measured_by_what_they_contribute(name):
    make, length, losses_of = TIED[name]
    model, x = make(), torch.randn(K, length, D)
    with PerSampleNorms(model, mode="last-layer") as engine:
        losses = losses_of(model(x))
        engine.compare(losses)
        losses.sum().backward()
        found, engine.is_paused = engine.take(), True
        (expected,) = torch.autograd.grad(losses_of(model(x)).sum(), model.made)
        torch.testing.assert_close(found, expected.flatten(1).norm(dim=1), rtol=1e-8, atol=1e-12)


def transposed(losses_of: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Return losses of results that put time first."""
    return lambda result: losses_of(result.transpose(0, 1))


REFUSED: dict[str, tuple[Callable[[], Model], int, Callable[[Tensor], Tensor]]] = {
    "losses that mix, time first, T = K": (TransposesInputs, K, transposed(contrast)),
    "losses that mix rows, time first": (
        lambda: TransposesInputs(lambda z: z.flatten(0, 1)),
        T,
        rows_of(contrast, time_first=True),
    ),
    "BatchNorm outside, time first, T = K": (TransposesInputs, K, transposed(normalized)),
    "BatchNorm, time first, T = K": (
        lambda: TransposesInputs(lambda z: nn.BatchNorm1d(V, affine=False)(z.transpose(1, 2)).transpose(1, 2)),
        K,
        transposed(of_tokens(0)),
    ),
    "BatchNorm outside, rows, time first": (
        lambda: TransposesInputs(lambda z: z.flatten(0, 1)),
        T,
        rows_of(normalized, time_first=True),
    ),
    "a sample for each entry, not for each row": (
        lambda: Model(lambda z: z[:, 0], width=K),
        1,
        lambda result: torch.stack([result[torch.arange(K), (j - torch.arange(K)) % K].sin().sum() for j in range(K)]),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_rows_of_nobody_are_refused(name):
    make, length, losses_of = REFUSED[name]
    with pytest.raises(RuntimeError, match=r'by the losses, the first dimension .* use scores="losses"'):
        train(make(), length, lambda x: x, losses_of)


def test_inputs_with_time_first_are_refused_if_their_length_is_another():
    with pytest.raises(RuntimeError, match=f"{K} losses and gradients of {T} samples, by the first dimension"):
        train(Recurrent(), T, lambda x: x.transpose(0, 1), of_tokens(1))


@pytest.mark.parametrize("lengths", [(1, K - 1), (K - 1, K + 1)])
def test_stretches_of_time_that_are_as_many_as_samples_are_refused(lengths):
    class Halves(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([model(part) for part in x.split(lengths)])

    model = Recurrent()
    losses_of = of_tokens(1)
    data = TensorDataset(torch.randn(5 * K, sum(lengths), D))
    with AdaptiveLoader(model, data, K, device="cpu") as loader:
        (x,) = next(iter(loader))
        loader.weigh(losses_of(Halves()(x.transpose(0, 1)))).backward()
        with pytest.raises(RuntimeError, match="first dimension of"):
            loader.learn()


def test_a_batch_that_goes_through_the_model_in_parts_is_measured():
    model, x = Model(), torch.randn(K, T, D)
    with PerSampleNorms(model, mode="last-layer", check="always") as engine:
        losses = of_tokens(0)(torch.cat([model(part) for part in x.split([1, K - 1])]))
        engine.compare(losses)
        losses.sum().backward()
        found = engine.take()
    torch.testing.assert_close(found, single_passes(model, x, of_tokens(0)), rtol=1e-8, atol=1e-12)


def counting_hook(calls: list[int]) -> Callable[..., None]:
    return lambda *_: calls.append(1)


def hook_on_result(result: Tensor, calls: list[int]) -> Tensor:
    result.register_hook(counting_hook(calls))
    return of_tokens(0)(result)


def hook_on_losses(result: Tensor, calls: list[int]) -> Tensor:
    losses = of_tokens(0)(result)
    losses.register_hook(counting_hook(calls))
    return losses


def hook_on_module(result: Tensor, calls: list[int]) -> Tensor:
    module = nn.Tanh()
    module.register_full_backward_hook(counting_hook(calls))
    return of_tokens(0)(module(result))


def custom_function(result: Tensor, calls: list[int]) -> Tensor:
    class Counting(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 1.0

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            calls.append(1)
            return grad

    return of_tokens(0)(Counting.apply(result))


def reentrant_checkpoint(result: Tensor, calls: list[int]) -> Tensor:
    def again(x: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            calls.append(1)
        return torch.tanh(x)

    return of_tokens(0)(checkpoint(again, result, use_reentrant=True))


@pytest.mark.parametrize(
    "losses_of", [hook_on_result, hook_on_losses, hook_on_module, custom_function, reentrant_checkpoint]
)
def test_nothing_takes_a_question_for_a_backward_pass(losses_of):
    model, calls = Model(), []
    with PerSampleNorms(model, mode="last-layer", check="always") as engine:
        losses = losses_of(model(torch.randn(K, T, D)), calls)
        engine.compare(losses)
        assert not calls
        losses.sum().backward()
        assert len(engine.take()) == K
    assert len(calls) == 1


@pytest.mark.parametrize("retains", [False, True])
def test_questions_leave_gradients_and_random_numbers_alone(retains):
    def once(*, asks: bool) -> tuple[list[Tensor | None], Tensor]:
        torch.manual_seed(1)
        model, x = Recurrent(), torch.randn(K, K, D)
        with PerSampleNorms(model, mode="last-layer", check="always") as engine:
            result = model(x)
            if retains:
                result.retain_grad()
            losses = of_tokens(1)(checkpoint(lambda z: F.dropout(z, 0.5), result, use_reentrant=False))
            if asks:
                engine.compare(losses)
            losses.sum().backward()
        grads = [parameter.grad for parameter in model.parameters()] + ([result.grad] if retains else [])
        return grads, torch.random.get_rng_state()

    (found, state), (expected, same) = once(asks=True), once(asks=False)
    torch.testing.assert_close(found, expected, rtol=0.0, atol=0.0)
    assert torch.equal(state, same)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rows_are_told_apart_in_half_precision(dtype):
    model, x = TransposesInputs().float(), torch.randn(K, K, D).float()
    with PerSampleNorms(model, mode="last-layer", check="always") as engine:
        with torch.autocast("cpu", dtype):
            result = model(x)
            losses = F.cross_entropy(result.flatten(0, 1), torch.arange(K * K) % V, reduction="none")
            losses = losses.view(K, K).sum(0)
        engine.compare(losses)
        losses.sum().backward()
        found, engine.is_paused = engine.take(), True
        with torch.autocast("cpu", dtype):
            z = model(x)
        losses = F.cross_entropy(z.float().flatten(0, 1), torch.arange(K * K) % V, reduction="none").view(K, K).sum(0)
        expected = torch.stack([torch.autograd.grad(each, z, retain_graph=True)[0].float().norm() for each in losses])
    torch.testing.assert_close(found.float(), expected, rtol=1e-2, atol=0.0)


def test_a_pass_goes_with_its_graph():
    model = Recurrent()
    with PerSampleNorms(model, mode="last-layer", check="always") as engine:
        for goes_backward in (True, False):
            losses = of_tokens(1)(model(torch.randn(K, K, D)))
            references = list(engine._watcher._recent)
            assert references[0]() is not None
            engine.compare(losses)
            if goes_backward:
                losses.sum().backward()
                engine.take()
            model.made = torch.empty(0)
            del losses
            assert not any(reference() for reference in references)


def test_two_results_are_each_asked_about():
    """The first head puts time first, the second does not."""

    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.made = nn.Linear(D, V), nn.Linear(D, V), []

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            self.made = [self.first(x.transpose(0, 1)), self.second(x)]
            return self.made[0], self.made[1]

    model = Heads()
    with PerSampleNorms(model, mode="last-layer") as engine:
        first, second = model(torch.randn(K, K, D))
        losses = of_tokens(1)(first) + of_tokens(0)(second)
        engine.compare(losses)
        rows = [torch.autograd.grad(each, model.made, retain_graph=True) for each in losses]
        expected = torch.stack([torch.cat([grad.flatten() for grad in grads]).norm() for grads in rows])
        losses.sum().backward()
        torch.testing.assert_close(engine.take(), expected, rtol=1e-8, atol=1e-12)


def test_rows_in_another_order_are_asked_about_at_every_length():
    """One position a sample is no different from one sample after the other."""
    model = TransposesInputs(lambda z: z.flatten(0, 1))
    with PerSampleNorms(model, mode="last-layer") as engine:
        for length in (1, 1, 1, 1, T, T + 1, 1, T + 2):
            measured(model, torch.randn(K, length, D), of_rows_time_first, engine)


def test_rows_in_order_are_asked_about_at_the_first_length(asked):
    model = Model(lambda z: z.flatten(0, 1))
    with PerSampleNorms(model, mode="last-layer") as engine:
        for length in range(2, 12):
            x = torch.randn(K, length, D)
            measured(model, x, lambda rows: of_tokens(0)(rows.unflatten(0, (K, -1))), engine)
    assert len(asked) == 3
