"""A window on a stream: what it holds, what choosing from it promises, and that a resumed run is the same one."""

import itertools
import re
from typing import Any

import numpy as np
import pytest
import torch
from pytest import approx
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset, get_worker_info

from adamcb import AdaptiveLoader
from adamcb.data import BanditLoader, Window
from adamcb.selection import CombinatorialBandit, QueueBandit, UniformSelection, WeightedSelection
from tests.data.test_resume import through_a_file
from tests.reference.window import contents
from tests.selection.enumeration import selection_distribution

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # torchdata calls it
]


class Stream(IterableDataset):
    """Samples 0 to n − 1, shared out to the workers; keeps its position as torchdata wants it."""

    def __init__(self, n):
        self.n, self.position = n, 0

    def __iter__(self):
        worker = get_worker_info()
        step = 1 if worker is None else worker.num_workers
        first = 0 if worker is None else worker.id
        while self.position < len(range(first, self.n, step)):
            self.position += 1
            number = first + (self.position - 1) * step
            yield torch.tensor([number, number + 0.5]), number % 2
        self.position = 0

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def numbers(samples):
    return [int(x[0]) for x, _ in samples]


@pytest.mark.parametrize(("size", "passes"), [(6, 1), (6, 2), (6, 3), (6, 6), (12, 4)])
@pytest.mark.parametrize("length", [12, 13, 100])
def test_it_holds_what_the_slow_twin_holds(size, passes, length):
    window = Window(range(length), size, passes=passes)
    loader = BanditLoader(window, UniformSelection(size, 2, generator=seeded()))
    for epoch in range(40):
        batches = list(loader)
        assert window.samples == contents(list(range(length)), size, passes, epoch)
        held = np.array(window.samples)
        assert all(batch.data.tolist() == held[batch.draw.indices].tolist() for batch in batches)
        assert sorted(np.concatenate([batch.data for batch in batches])) == sorted(held)  # each once an epoch


def test_every_sample_stays_for_as_many_epochs_as_it_should():
    window, stays = Window(range(1000), 12, passes=3), np.zeros(1000)
    for _ in range(50):
        window.advance()
        stays[window.samples] += 1
    assert (stays[8 : 12 + 47 * 4] == 3).all()
    assert stays[:8].tolist() == [1] * 4 + [2] * 4  # the first window's oldest leave early


class Scripted(CombinatorialBandit):
    """Enumerates every draw, and takes the batch that a script names."""

    def __init__(self, num_samples, batch_size, script):
        super().__init__(num_samples, batch_size, gate=None, generator=seeded())
        self.script, self.choices, self.chance = iter(script), [], 1.0

    def draw(self):
        self._reshuffle_if_done()
        drawn, rest, probs = self._drawn, self._uniforms.rest, self.inclusion_probs()
        self.draw = super().draw
        found = sorted(selection_distribution(self).items(), key=lambda item: sorted(item[0]))
        del self.draw
        self._drawn, self._uniforms.rest = drawn + 1, rest
        assert sum(chance for _, chance in found) == approx(1.0, abs=1e-12)
        number = next(self.script, 0)
        self.choices.append(len(found))
        subset, chance = found[number]
        self.chance *= chance
        chosen = np.array(sorted(subset))
        return self.make_draw(chosen, np.minimum(probs[chosen], 1.0))


def test_the_estimate_is_unbiased_for_what_the_window_holds_and_all_samples_of_the_stream_weigh_the_same():
    """All batches that can be drawn in three epochs, with feedback that depends on the samples, by their chances."""
    size, batch_size, passes, epochs = 4, 3, 2, 3
    values = np.random.default_rng(0).normal(size=12)
    scores = np.array([0.1, 3.0, 0.5, 9.0, 0.2, 1.0, 4.0, 0.3, 0.1, 7.0, 1.0, 0.6])
    expected, weight, total = np.zeros(epochs), np.zeros(12), 0.0
    differ = set()
    waiting = [()]
    while waiting:
        script = waiting.pop()
        bandit, window = Scripted(size, batch_size, script), Window(range(12), size, passes=passes)
        loader = BanditLoader(window, bandit)
        estimates, weights = [], np.zeros(12)
        for batch in itertools.chain.from_iterable(loader for _ in range(epochs)):
            samples = batch.data.numpy()
            estimates.append(float(batch.draw.loss_weights @ values[samples]))
            weights[samples] += batch.draw.loss_weights
            differ.add(tuple(np.round(batch.draw.probs, 9)))
            bandit.update(batch.draw, scores[samples])
        if len(script) == epochs:
            expected += bandit.chance * np.array(estimates)
            weight += bandit.chance * weights
            total += bandit.chance
        else:
            waiting += [(*script, number) for number in range(bandit.choices[len(script)])]
    assert total == approx(1.0, abs=1e-11)
    assert len(differ) > 20  # draws were far from uniform
    held = [contents(list(range(12)), size, passes, epoch) for epoch in range(epochs)]
    assert expected == approx([values[samples].mean() for samples in held], abs=1e-11)
    stays = np.array([sum(sample in samples for samples in held) for sample in range(12)])
    assert weight == approx(stays / size, abs=1e-11)
    assert stays.tolist() == [1, 1, 2, 2, 2, 2, 1, 1, 0, 0, 0, 0]


def test_a_queue_weighs_all_samples_of_the_stream_alike():
    """The total weight of each sample, over many runs of a bandit that learns, within 5 standard errors."""
    runs, size, passes, epochs = 400, 12, 3, 5
    scores = np.random.default_rng(2).gamma(0.5, size=100)
    weights = np.zeros((runs, 32))
    for run in range(runs):
        queue = QueueBandit(size, 3, generator=seeded(run))
        loader = BanditLoader(Window(range(32), size, passes=passes), queue)
        for batch in itertools.chain.from_iterable(loader for _ in range(epochs)):
            np.add.at(weights[run], batch.data.numpy(), batch.draw.loss_weights)
            queue.update(batch.draw, scores[batch.data.numpy()])
    mean, error = weights.mean(axis=0), weights.std(axis=0) / np.sqrt(runs)
    inner = slice(size - size // passes, size + (epochs - passes) * size // passes)
    expected = passes * (size // 3) / size
    assert (np.abs(mean - expected) < 5 * error)[inner].all()


@pytest.mark.parametrize("make", [QueueBandit, CombinatorialBandit])
def test_new_samples_start_with_the_mean_weight_of_those_that_stay(make):
    bandit, window = make(8, 2, generator=seeded()), Window(range(100), 8, passes=4)
    loader = BanditLoader(window, bandit)
    list(loader)
    bandit.weights = weights = np.array([9.0, 8.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    before = bandit.weights / bandit.weights[2]
    next(iter(loader))
    after = bandit.weights / bandit.weights[2]
    assert after[2:] == approx(before[2:])
    assert after[:2] == approx([before[2:].mean()] * 2)
    assert weights[0] == 9.0


def test_weights_that_are_given_stay_with_their_places():
    selection = WeightedSelection([1.0, 2.0, 3.0, 4.0], 2, generator=seeded())
    for _ in range(3):
        list(BanditLoader(Window(range(100), 4), selection))
    assert selection.weights.tolist() == [1.0, 2.0, 3.0, 4.0]


SETTINGS = {"0": {}, "2": {"num_workers": 2}, "2 persistent": {"num_workers": 2, "persistent_workers": True}}


@pytest.mark.parametrize("options", SETTINGS.values(), ids=SETTINGS)
def test_workers_may_read_the_stream(options):
    window = Window(DataLoader(Stream(40), batch_size=None, **options), 16)
    held = [sorted(numbers(window))]
    for _ in range(6):  # past the end of the stream
        window.advance()
        held.append(sorted(numbers(window)))
    twin = [sorted(contents(list(range(40)), 16, 4, epoch)) for epoch in range(7)]
    assert held == twin


def restartable(options):
    torchdata = pytest.importorskip("torchdata.stateful_dataloader")
    return torchdata.StatefulDataLoader(Stream(30), batch_size=None, **options)


STREAMS = {
    "stateful": lambda: Stream(30),
    "stateful loader": lambda: restartable({}),
    "stateful loader with workers": lambda: restartable({"num_workers": 2}),
}


def trained(make, *, steps, stop=None):
    """Train a small model; at `stop`, go on in new objects. Return what was seen, and the parameters."""

    def begin():
        torch.manual_seed(0)
        model = nn.Linear(2, 2).double()
        loader = AdaptiveLoader(model, Window(make(), 16), 4)
        return model, torch.optim.SGD(model.parameters(), lr=0.01), loader

    model, optimizer, loader = begin()
    seen = []
    while len(seen) < steps:
        for x, y in loader:
            seen.append(x[:, 0].tolist())
            optimizer.zero_grad()
            loader.weigh(nn.functional.cross_entropy(model(x.double()), y, reduction="none")).backward()
            optimizer.step()
            if len(seen) == stop:
                state = through_a_file({"model": model.state_dict(), "loader": loader.state_dict()})
                model, optimizer, loader = begin()
                model.load_state_dict(state["model"])
                loader.load_state_dict(state["loader"])
                break
            if len(seen) == steps:
                break
    return seen, [parameter.tolist() for parameter in model.parameters()]


@pytest.mark.parametrize("make", STREAMS.values(), ids=STREAMS)
def test_a_resumed_run_is_the_same_bits(make):
    """In the first window, at the end of an epoch, and after the stream began again."""
    undisturbed = trained(make, steps=30)
    for stop in (2, 12, 27):
        assert trained(make, steps=30, stop=stop) == undisturbed, stop


def test_without_a_state_of_the_stream_a_resumed_run_reads_on():
    window = Window(range(100), 8, passes=2)
    loader = BanditLoader(window, UniformSelection(8, 2, generator=seeded()))
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    assert state["window"] == {"size": 8, "passes": 2, "blocks": 2, "mark": None}
    loader.load_state_dict(state)
    assert window.samples == list(range(8, 16))
    assert len(list(loader)) == 3


def test_a_bad_state_is_refused_and_changes_nothing():
    window = Window(Stream(100), 8)
    loader = BanditLoader(window, UniformSelection(8, 2, generator=seeded()))
    next(iter(loader))
    good, held = loader.state_dict(), list(window.samples)
    bad = {
        "must be a dict with the keys": None,
        "must be saved with size=8, got size=12": {**good["window"], "size": 12},
        "must be 0 or at least 4, got 3": {**good["window"], "blocks": 3},
    }
    for message, state in bad.items():
        with pytest.raises(ValueError, match=message):
            loader.load_state_dict({**good, "window": state})
    assert window.samples == held
    stateless = BanditLoader(Window(range(100), 8), UniformSelection(8, 2, generator=seeded()))
    with pytest.raises(ValueError, match="`stream` must have `load_state_dict`, got stream of type range"):
        stateless.load_state_dict(good)


def test_a_stream_is_refused_with_a_way_to_go():
    message = "got an IterableDataset of type Stream. To choose from what it gave last, pass a window: "
    message += "adamcb.data.Window(dataset, size)."
    with pytest.raises(TypeError, match=re.escape(message)):
        BanditLoader(Stream(10), UniformSelection(10, 2))
    with pytest.raises(TypeError, match=re.escape(message)):
        AdaptiveLoader(nn.Linear(2, 2), Stream(10), 2)


BAD = {
    "no iterable": (lambda: Window(3, 4), TypeError, "`stream` must give samples when it is iterated over, got"),  # pyright: ignore
    "once only": (lambda: Window(iter([1]), 4), TypeError, "`stream` must be iterable more than once"),
    "multiple": (lambda: Window([1], 6), ValueError, "`size` must be a multiple of passes=4, got size=6."),
    "empty": (lambda: Window([], 4)[0], ValueError, "`stream` must give samples, got none from list."),
    "workers": (
        lambda: BanditLoader(Window([1], 4), UniformSelection(4, 2), num_workers=1),
        ValueError,
        "`num_workers` must be 0 with a Window, got num_workers=1. Let workers read the stream",
    ),
    "stateful": (
        lambda: BanditLoader(Window([1], 4), UniformSelection(4, 2), stateful=True),
        ValueError,
        "`stateful` must be False with a Window",
    ),
}


@pytest.mark.parametrize(("make", "error", "message"), BAD.values(), ids=BAD)
def test_bad_arguments_are_refused(make, error, message):
    with pytest.raises(error, match=re.escape(message)):
        make()


def test_a_window_behind_another_dataset_is_refused():
    window: Any = Window(range(100), 12)
    subset = Subset(Subset(window, range(10)), range(8))
    with pytest.raises(
        TypeError, match="must be the Window itself, got a Subset with a Window in it, which would never"
    ):
        BanditLoader(subset, UniformSelection(8, 2, generator=seeded()))
    inner = Subset(TensorDataset(torch.arange(12.0)), range(8))
    assert len(list(BanditLoader(inner, UniformSelection(8, 2, generator=seeded())))) == 4
