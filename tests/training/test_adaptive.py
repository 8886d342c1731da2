"""`AdaptiveLoader` in loops of one's own: accumulation, clipping, mixed precision, late feedback, and misuse."""

import copy
import gc
import itertools
import math
import weakref

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch.nn.utils import parameters_to_vector

from adamcb import AdamCB, AdaptiveLoader, CombinatorialBandit, UniformSelection
from adamcb.data import part_of
from adamcb.training._portable import unpack
from tests.training.problem import cnn, digits, eager, losses_of, mlp, snapshot, train
from tests.training.test_step import BadSlope

K = 16


class Recorder(CombinatorialBandit):
    """Keeps what it was told."""

    def __init__(self, num_samples: int, batch_size: int, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        super().__init__(num_samples, batch_size, generator=generator)
        self.told = []

    def update(self, draw, scores) -> None:
        super().update(draw, scores)
        self.told.append((draw, np.array(scores)))


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


def make(model, selection=None, count: int = 200, dtype: torch.dtype = torch.float64, **options) -> AdaptiveLoader:
    options.setdefault("scores", "exact")
    return AdaptiveLoader(model, digits(count, dtype), K, selection=selection, **options)


def test_two_changed_lines_are_adamcb_own_loop():
    results = []
    for own in (True, False):
        model = mlp()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        selection = eager(200, K)
        if own:
            trainer = AdamCB(model, digits(200), K, selection=selection, optimizer=optimizer)
            train(trainer, 30)
        else:
            loader = AdaptiveLoader(model, digits(200), K, selection=selection)
            for x, y in batches_of(loader, 30):
                optimizer.zero_grad()
                loss = loader.weigh(losses_of(model, x, y))
                loss.backward()
                optimizer.step()
            loader.learn()
        results.append((parameters_to_vector(model.parameters()).tolist(), selection.weights.tolist()))
    assert results[0] == results[1]


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("factor", [1.0, 7.0])
def test_scores_do_not_depend_on_what_the_loop_multiplies_the_loss_by(count, factor):
    selection = Recorder(200, K)
    selection.weights = np.linspace(1.0, 5.0, 200)
    model = mlp(dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = make(model, selection)
    for _ in range(3):
        estimates, norms = [], []
        before = copy.deepcopy(model)
        for batch in batches_of(loader, count):
            estimates.append(weighted_gradient(before, batch))
            norms.append(slow_norms(before, *batch))
            (factor * loader.weigh(losses_of(model, *batch)) / count).backward()
        loader.learn()
        mean = factor * torch.stack(estimates).mean(0)
        grads = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        assert_allclose(parameters_to_vector(grads), mean, rtol=1e-12, atol=1e-14)
        optimizer.step()
        optimizer.zero_grad()
        assert_allclose([told for _, told in selection.told[-count:]], norms, rtol=1e-10)
    assert len(selection.told) == 3 * count


def test_two_batches_may_share_a_backward_pass():
    selection = Recorder(200, K)
    model = mlp(dtype=torch.float64)
    loader = make(model, selection)
    batches = list(batches_of(loader, 2))
    losses = [loader.weigh(losses_of(model, *batch), draw=batch.draw) for batch in batches]
    (losses[0] + 2.0 * losses[1]).backward()
    loader.learn()
    for batch, (draw, scores) in zip(batches, selection.told, strict=True):
        assert draw is batch.draw
        assert_allclose(scores, slow_norms(model, *batch), rtol=1e-10)


@pytest.mark.parametrize("sharded", [False, 2])
def test_losses_of_a_draw_of_another_selection_are_refused_at_once(sharded):
    """Its weights belong to other samples; that the selection refuses the scores is heard a step too late."""
    one, other = (AdaptiveLoader(mlp(), digits(200), K, seed=seed, sharded=sharded) for seed in (0, 1))
    (own,), (foreign,) = batches_of(one, 1), batches_of(other, 1)
    losses = losses_of(one.model, *own)
    with pytest.raises(ValueError, match="`draw` must be a draw of this selection, got one of another"):
        one.weigh(losses, draw=foreign.draw)
    one.weigh(losses, draw=own.draw).backward()
    one.learn()


def test_a_part_of_a_draw_is_known_by_the_selection_of_the_whole():
    selection = eager(200, K)
    part = part_of(selection.draw(), 1, 2)
    assert selection.check_draw(part) is part
    with pytest.raises(ValueError, match="`draw` must be a draw of this selection"):
        eager(200, K, seed=1).check_draw(part)


def test_a_sample_whose_loss_is_masked_away_after_weighing_scores_0():
    selection = Recorder(200, K)
    model = mlp(dtype=torch.float64)
    loader = make(model, selection)
    (batch,) = batches_of(loader, 1)
    losses = losses_of(model, *batch)
    loader.weigh(losses)
    mask = (torch.arange(K) != 3).double()
    (mask * losses).sum().backward()
    loader.learn()
    assert_allclose(selection.told[-1][1], np.where(np.arange(K) == 3, 0.0, slow_norms(model, *batch)), rtol=1e-10)


def test_it_learns_when_the_next_batch_is_taken_the_epoch_ends_and_a_state_is_saved():
    selection = Recorder(200, K)
    model = mlp()
    loader = make(model, selection, dtype=torch.float32)
    for number, batch in enumerate(loader):
        assert len(selection.told) == number
        loader.weigh(losses_of(model, *batch)).backward()
        if number == 5:
            loader.state_dict()
            assert len(selection.told) == 6
            loader.learn()
            loader.learn()
            assert len(selection.told) == 6
    assert len(selection.told) == len(loader)
    assert loader.epoch == 1


@pytest.mark.parametrize("scores", ["exact", "last-layer", "losses"])
def test_passes_of_the_model_that_belong_to_no_batch_disturb_nothing(scores):
    results = []
    for disturbed in (False, True):
        model, selection = mlp(), eager(200, K)
        loader = make(model, selection, dtype=torch.float32, scores=scores)
        for x, y in batches_of(loader, 20):
            if disturbed:
                losses_of(model, x[:3], y[:3]).mean().backward()
            model.zero_grad()
            loader.weigh(losses_of(model, x, y)).backward()
            if disturbed:
                losses_of(model, x[:5], y[:5]).mean().backward()
                model(x)
        results.append(selection.weights.tolist())
    assert results[0] == results[1]


def test_clipping_changes_the_step_and_not_the_scores():
    selection = Recorder(200, K)
    model = mlp(dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    loader = make(model, selection)
    for batch in loader:
        before, norms = parameters_to_vector(model.parameters()).detach(), slow_norms(copy.deepcopy(model), *batch)
        optimizer.zero_grad()
        loader.weigh(losses_of(model, *batch)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        optimizer.step()
        loader.learn()
        moved = parameters_to_vector(model.parameters()).detach() - before
        assert moved.norm().item() == pytest.approx(0.01, rel=1e-3)
        assert_allclose(selection.told[-1][1], norms, rtol=1e-10)


@pytest.mark.parametrize("scores", ["exact", "last-layer"])
@pytest.mark.parametrize("build", [mlp, cnn])
@pytest.mark.parametrize("scaled", [False, True], ids=["bfloat16", "float16 with GradScaler"])
def test_mixed_precision_trains_and_gives_scores_within_2_percent(scaled, build, scores):
    selections = Recorder(400, K), Recorder(400, K)
    half, plain = (make(build(), own, 400, torch.float32, scores=scores) for own in selections)
    optimizer = torch.optim.Adam(half.model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, enabled=scaled)
    history, dtype = [], torch.float16 if scaled else torch.bfloat16
    for batch in batches_of(half, 50):
        plain.model.load_state_dict(half.model.state_dict())  # the same model at every step; the other only measures
        plain.weigh(losses_of(plain.model, *batch), draw=batch.draw).backward()
        plain.learn()
        with torch.autocast("cpu", dtype=dtype):
            losses = losses_of(half.model, *batch)
        loss = half.weigh(losses)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        half.learn()
        history.append(loss.item())
        measured, exact = selections[0].told[-1][1], selections[1].told[-1][1]
        # As a whole: a sample that is all but learned has a gradient below what half precision resolves.
        assert np.linalg.norm(measured - exact) <= 0.02 * np.linalg.norm(exact)
    assert len(selections[0].told) == 50
    assert np.mean(history[-10:]) < 0.5 * np.mean(history[:10])


def test_a_grad_scaler_in_full_precision_changes_nothing():
    results = []
    for scaler in (None, torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=7)):
        model, selection = mlp(), eager(200, K)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        loader = make(model, selection, dtype=torch.float32)
        for batch in batches_of(loader, 20):
            optimizer.zero_grad()
            loss = loader.weigh(losses_of(model, *batch))
            (loss if scaler is None else scaler.scale(loss)).backward()
            if scaler is not None:
                scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step() if scaler is None else (scaler.step(optimizer), scaler.update())
        results.append((parameters_to_vector(model.parameters()).tolist(), selection.weights.tolist()))
    assert results[0] == results[1]


@pytest.mark.parametrize("delay", [0, 2])
def test_an_overflow_under_grad_scaler_is_not_learned_from(delay):
    selection = Recorder(200, K)
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loader = make(model, selection, dtype=torch.float32, feedback_delay=delay)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24)
    skipped, exact = 0, {}
    for batch in batches_of(loader, 40):
        scale, exact[batch.draw] = scaler.get_scale(), slow_norms(copy.deepcopy(model), *batch)
        with torch.autocast("cpu", dtype=torch.float16):
            losses = losses_of(model, *batch)
        optimizer.zero_grad()
        scaler.scale(loader.weigh(losses)).backward()
        scaler.step(optimizer)
        scaler.update()
        skipped += scaler.get_scale() < scale
    loader.learn()
    assert 2 <= skipped <= 20
    assert len(selection.told) == 40 - delay - skipped
    for draw, scores in selection.told:
        # By the median: in half precision a ReLU may turn another way, and then one gradient is another.
        assert np.median(np.abs(scores / exact[draw] - 1.0)) <= 0.01


def test_a_bad_gradient_without_a_grad_scaler_is_named():
    model = mlp()
    loader = make(model, eager(200, K), dtype=torch.float32)
    (batch,) = batches_of(loader, 1)
    loader.weigh(BadSlope.apply(losses_of(model, *batch), float("nan"))).backward()
    with pytest.raises(FloatingPointError, match=rf"The score of every sample.*{batch.draw.indices[2]} \(nan\)"):
        loader.learn()
    (batch,) = batches_of(loader, 1)
    loader.weigh(losses_of(model, *batch)).backward()
    loader.learn()


@pytest.mark.parametrize("delay", [0, 1, 2, 3])
def test_scores_are_learned_that_many_batches_later_each_with_its_own_draw(delay):
    selection = Recorder(200, K)
    model = mlp(dtype=torch.float64)
    loader = make(model, selection, feedback_delay=delay)
    expected = []
    for number, batch in enumerate(batches_of(loader, 10), 1):
        expected.append((batch.draw, slow_norms(copy.deepcopy(model), *batch)))
        loader.weigh(losses_of(model, *batch)).backward()
        loader.learn()
        assert len(selection.told) == max(0, number - delay)
    for (draw, scores), (own_draw, own_scores) in zip(selection.told, expected, strict=False):
        assert draw is own_draw
        assert_allclose(scores, own_scores, rtol=1e-10)


@pytest.mark.parametrize("delay", [1, 3])
def test_a_late_check_says_that_it_is_late(delay):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    trainer = AdamCB(model, digits(200), K, optimizer=optimizer, selection=eager(200, K), feedback_delay=delay)
    (batch,), healthy = batches_of(trainer, 1), copy.deepcopy(model.state_dict())
    trainer.step(BadSlope.apply(losses_of(model, *batch), float("nan")))
    model.load_state_dict(healthy)
    train(trainer, delay - 1)
    with pytest.raises(FloatingPointError, match=rf"{batch.draw.indices[2]} \(nan\).*{delay} batches ago.*trained on"):
        train(trainer, 1)


@pytest.mark.parametrize("delay", [0, 1, 2, 3])
def test_feedback_on_its_way_is_saved(delay):
    through = AdamCB(mlp(), digits(200), K, lr=0.01, selection=eager(200, K), feedback_delay=delay)
    train(through, 7)
    resumed = AdamCB(mlp(seed=1), digits(200), K, lr=0.01, selection=eager(200, K, seed=5), feedback_delay=delay)
    resumed.load_state_dict(copy.deepcopy(through.state_dict()))
    assert len(resumed._learning._queue) == delay
    assert train(resumed, 9) == train(through, 9)
    assert snapshot(resumed) == snapshot(through)


def test_its_state_is_that_of_the_choosing_alone_and_goes_on_bit_for_bit():
    model, selection = mlp(), eager(200, K)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def drive(loader, count):
        for batch in batches_of(loader, count):
            optimizer.zero_grad()
            loader.weigh(losses_of(model, *batch)).backward()
            optimizer.step()
            yield batch.draw.indices.tolist()

    loader = make(model, selection, dtype=torch.float32)
    list(drive(loader, 7))
    state, weights = copy.deepcopy(loader.state_dict()), copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    assert set(state) == {"vectors", "rest"}
    assert set(unpack(state)) == {"selection", "feedback", "meter", "samples", "norms", "loader", "epoch"}
    expected = list(drive(loader, 20))
    loader.close()
    model.load_state_dict(weights[0])
    optimizer.load_state_dict(weights[1])
    other = make(model, eager(200, K, seed=3), dtype=torch.float32)
    other.load_state_dict(state)
    assert list(drive(other, 20)) == expected
    with pytest.raises(ValueError, match="`state` must fit this AdaptiveLoader: it must be a dict with the keys"):
        other.load_state_dict({"epoch": 0})


@pytest.mark.parametrize(
    ("scores", "expected"), [("losses", lambda losses: losses), (torch.sqrt, torch.sqrt)], ids=["losses", "function"]
)
def test_losses_or_a_function_of_them_are_scores_and_nothing_is_measured(scores, expected):
    selection = Recorder(200, K)
    model = mlp(dtype=torch.float64)
    loader = make(model, selection, scores=scores)
    assert not model._forward_hooks
    for batch in batches_of(loader, 3):
        losses = losses_of(model, *batch)
        (5.0 * loader.weigh(losses)).backward()
        loader.learn()
        assert_allclose(selection.told[-1][1], expected(losses.detach()), rtol=1e-12)


@pytest.mark.parametrize("function", [lambda losses: losses[1:], lambda losses: losses.tolist()])
def test_a_function_that_gives_no_score_per_loss_is_refused(function):
    model = mlp()
    loader = make(model, eager(200, K), dtype=torch.float32, scores=function)
    (batch,) = batches_of(loader, 1)
    with pytest.raises(ValueError, match=r"`scores` must return a tensor of 16 scores, one per loss, got a result of"):
        loader.weigh(losses_of(model, *batch))


@pytest.mark.parametrize("function", [lambda losses: losses > 1.0, lambda losses: losses + 0j])
def test_a_function_of_the_losses_must_return_numbers_that_are_scores(function):
    model = mlp()
    loader = make(model, eager(200, K), dtype=torch.float32, scores=function)
    (batch,) = batches_of(loader, 1)
    with pytest.raises(
        TypeError, match=r"`scores` must return a tensor of floats, got a result of torch\.(bool|complex64)"
    ):
        loader.weigh(losses_of(model, *batch))


def test_a_function_of_the_losses_may_return_integers():
    selection, model = Recorder(200, K), mlp()
    loader = make(model, selection, dtype=torch.float32, scores=lambda losses: torch.arange(K))
    (batch,) = batches_of(loader, 1)
    loader.weigh(losses_of(model, *batch)).backward()
    loader.learn()
    assert selection.told[0][1].tolist() == list(range(K))


def test_a_refused_weigh_changes_nothing_and_can_be_tried_again():
    model = mlp()
    loader = make(model, eager(200, K), dtype=torch.float32, scores=lambda losses: losses[:wanted])
    x, y = next(iter(loader))
    wanted = 3
    for losses in (losses_of(model, x, y), losses_of(model, x, y)[:5], torch.full((K,), math.nan, requires_grad=True)):
        with pytest.raises((ValueError, FloatingPointError)):
            loader.weigh(losses)
    wanted = K
    loader.weigh(losses_of(model, x, y)).backward()
    loader.learn()
    with pytest.raises(RuntimeError, match="no batch is waiting"):
        loader.weigh(losses_of(model, x, y))


def test_losses_of_no_forward_pass_are_refused_and_the_batch_waits():
    model = mlp()
    loader = make(model, eager(200, K), dtype=torch.float32)
    x, y = next(iter(loader))
    with pytest.raises(RuntimeError, match="must come from a forward pass of the model"):
        loader.weigh(torch.ones(K, requires_grad=True))
    loader.weigh(losses_of(model, x, y)).backward()


def test_a_draw_is_weighed_once_unless_it_is_given_up():
    model = mlp()
    loader = make(model, eager(200, K), dtype=torch.float32)
    batch = next(iter(loader))
    loader.weigh(losses_of(model, *batch), draw=batch.draw)
    with pytest.raises(RuntimeError, match="`draw` must be weighed once"):
        loader.weigh(losses_of(model, *batch), draw=batch.draw)
    loader.give_up()
    loader.weigh(losses_of(model, *batch), draw=batch.draw).backward()
    loader.learn()
    with pytest.raises(RuntimeError, match="`draw` must be weighed once"):
        loader.weigh(losses_of(model, *batch), draw=batch.draw)


@pytest.mark.parametrize("kind", [AdaptiveLoader, AdamCB])
def test_a_loop_that_leaves_weigh_out_hears_of_it_once(kind):
    with kind(mlp(), digits(200), K) as loader:
        with pytest.warns(UserWarning, match="`weigh` was not called") as heard:
            list(batches_of(loader, 3 * len(loader)))
        assert [warning.filename for warning in heard] == [__file__]


def test_a_loop_that_never_goes_backward_hears_of_it_once():
    model = mlp()
    loader = make(model, eager(200, K), dtype=torch.float32)
    with pytest.warns(UserWarning, match="no backward pass reached the losses") as heard:
        _ = [loader.weigh(losses_of(model, *batch)) for batch in batches_of(loader, 3 * len(loader))]
    assert [warning.filename for warning in heard] == [__file__]


def train_on_plain_losses(loader, reduce) -> None:
    for batch in batches_of(loader, 30):
        losses = losses_of(loader.model, *batch)
        loader.weigh(losses)
        reduce(losses).backward()


@pytest.mark.parametrize("reduce", [torch.mean, torch.sum])
@pytest.mark.parametrize("scores", ["exact", "last-layer", "losses"])
def test_a_loop_that_trains_on_the_plain_losses_hears_of_it_once(scores, reduce):
    loader = make(mlp(), eager(200, K), dtype=torch.float32, scores=scores)
    with pytest.warns(UserWarning, match="went backward on the plain losses. Go backward on what `weigh`") as heard:
        train_on_plain_losses(loader, reduce)
    assert len(heard) == 1
    assert heard[0].filename == __file__


def test_weights_that_do_not_differ_are_not_missed():
    """A warning would be an error here."""
    loader = make(mlp(), CombinatorialBandit(200, K, exploration=1.0), dtype=torch.float32)
    train_on_plain_losses(loader, torch.mean)


def test_parameters_unfrozen_in_the_middle_of_an_epoch_are_named_at_the_next_batch():
    model = mlp()
    model[3].requires_grad_(False)
    with AdamCB(model, digits(200), K) as trainer:
        batches = iter(trainer)
        trainer.step(losses_of(model, *next(batches)))
        model[3].requires_grad_(True)
        with pytest.warns(UserWarning, match=r"no optimizer steps on 3\.weight, 3\.bias.*add_param_group") as heard:
            batch = next(batches)
        assert [warning.filename for warning in heard] == [__file__]
        trainer.step(losses_of(model, *batch))
        next(batches)  # and no more of it
        model[3].requires_grad_(False)
        trainer.optimizer.add_param_group({"params": model[3].parameters()})
        model[3].requires_grad_(True)
        next(batches)


def test_losses_of_another_model_are_refused():
    loader, other = make(mlp(), eager(200, K), dtype=torch.float32), mlp()
    (batch,) = batches_of(loader, 1)
    with pytest.raises(RuntimeError, match="`losses` must come from a forward pass of the model that the loader"):
        loader.weigh(losses_of(other, *batch))


def test_a_batch_whose_backward_failed_is_not_learned_from():
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, values):  # pyright: ignore[reportIncompatibleMethodOverride]
            return values.clone()

        @staticmethod
        def backward(ctx, *grads):
            raise ArithmeticError("no gradient today")

    selection = Recorder(200, K)
    model = mlp()
    loader = make(model, selection, dtype=torch.float32)
    for number, (x, y) in enumerate(batches_of(loader, 6)):
        if number == 2:
            handle = model[3].register_forward_pre_hook(lambda _, inputs: Fails.apply(*inputs))
            with pytest.raises(ArithmeticError):
                loader.weigh(losses_of(model, x, y)).backward()
            handle.remove()
        else:
            loader.weigh(losses_of(model, x, y)).backward()
    loader.learn()
    assert len(selection.told) == 5


@pytest.mark.parametrize("scores", ["exact", "last-layer", "losses"])
def test_a_dropped_loader_frees_its_model_at_once(scores):
    gc.disable()
    try:
        model = mlp()
        loader = make(model, eager(200, K), dtype=torch.float32, scores=scores)
        for x, y in batches_of(loader, 3):
            loader.weigh(losses_of(model, x, y)).backward()
        references = weakref.ref(model), weakref.ref(loader), weakref.ref(loader.selection)
        del model, loader
        assert [reference() for reference in references] == [None, None, None]
    finally:
        gc.enable()


def test_a_dropped_loader_leaves_a_model_that_lives_on():
    model = mlp()
    loader = make(model, eager(200, K), dtype=torch.float32)
    assert model._forward_hooks
    del loader
    assert not model._forward_hooks
    make(model, eager(200, K), dtype=torch.float32)


class Diary:
    """An observer."""

    def __init__(self) -> None:
        self.drawn, self.learned = [], []

    def note_draw(self, draw) -> None:
        self.drawn.append(draw)

    def note_scores(self, draw, scores) -> None:
        self.learned.append((draw, scores))


def test_observers_hear_of_every_batch():
    selection, diary = Recorder(200, K), Diary()
    model = mlp()
    loader = make(model, selection, dtype=torch.float32, observers=[diary])
    assert loader.selection is selection
    for x, y in loader:
        loader.weigh(losses_of(model, x, y)).backward()
    assert [draw for draw, _ in diary.learned] == diary.drawn == [draw for draw, _ in selection.told]
    for (_, heard), (_, told) in zip(diary.learned, selection.told, strict=True):
        assert heard.tolist() == told.tolist()


def test_shuffled_batches_are_weighed_as_their_mean():
    model = mlp(dtype=torch.float64)
    loader = make(model, UniformSelection(200, K, generator=torch.Generator().manual_seed(0)))
    for x, y in loader:
        losses = losses_of(model, x, y)
        loss = loader.weigh(losses)
        assert loss.item() == pytest.approx(losses.mean().item(), rel=1e-12)
        loss.backward()


@pytest.mark.parametrize("passes", [2, 3])
def test_a_batch_may_go_through_the_model_several_times_with_last_layer_scores(passes):
    """A consistency loss: the score is the norm of a sample's gradient at all of its results."""
    model, selection = mlp(dtype=torch.float64), Recorder(200, K)
    loader = make(model, selection, scores="last-layer")
    (x, y) = next(iter(loader))
    results = [model(x * (1.0 + 0.1 * view)) for view in range(passes)]
    losses = torch.nn.functional.cross_entropy(results[0], y, reduction="none") + sum(
        (one - results[0]).square().sum(1) for one in results[1:]
    )
    wanted = torch.autograd.grad(losses.sum(), results, retain_graph=True)
    loader.weigh(losses).backward()
    loader.learn()
    expected = torch.cat(wanted, dim=1).norm(dim=1)
    assert_allclose(selection.told[0][1], expected, rtol=1e-12)


def test_exact_scores_of_a_batch_that_goes_through_the_model_twice_are_refused():
    model = mlp(dtype=torch.float64)
    loader = make(model)
    (x, y) = next(iter(loader))
    loader.weigh(losses_of(model, x, y) + losses_of(model, x + 0.1, y)).backward()
    with pytest.raises(RuntimeError, match='must go through the model once.*With scores="last-layer" it may'):
        loader.learn()
