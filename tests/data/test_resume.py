"""A run that is saved anywhere and resumed in new objects draws and learns as one that was never disturbed."""

import io
import re

import numpy as np
import pytest
import torch

from adamcb.data import BanditLoader
from adamcb.selection import CombinatorialBandit, UniformSelection
from tests.data.datasets import Made, Noisy, Seeds
from tests.reference.loading import epoch as textbook_epoch

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]
N, K, EPOCHS = 41, 4, 2
BATCHES = N // K
# Loader options, and how many draws DataLoader is ahead.
SETTINGS = {
    "0": ({}, 0),
    "1": ({"num_workers": 1}, 2),
    "1 persistent": ({"num_workers": 1, "persistent_workers": True}, 2),
    "4": ({"num_workers": 4}, 8),
    "4 persistent": ({"num_workers": 4, "persistent_workers": True}, 8),
    "3 by 5, more than an epoch": ({"num_workers": 3, "prefetch_factor": 5}, 15),
}
# Starting four workers takes longer than all that they load.
SLOW = ("1", "4", "4 persistent")
settings = pytest.mark.parametrize(
    ("options", "ahead"),
    [
        pytest.param(*setting, id=name, marks=[pytest.mark.slow] if name in SLOW else [])
        for name, setting in SETTINGS.items()
    ],
)


def make(options, seed=0):
    bandit = CombinatorialBandit(N, K, feedback="scale-free", generator=torch.Generator().manual_seed(seed))
    return bandit, BanditLoader(Made(N), bandit, **options)


def learn(bandit, draw):
    bandit.update(draw, 1.0 + draw.indices % 7)


def record(draw):
    return draw.indices.tolist(), draw.probs.tolist(), draw.loss_weights.tolist()


def through_a_file(state):
    """Save and load without running code from the file."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def saved(bandit, loader):
    return through_a_file({"bandit": bandit.state_dict(), "loader": loader.state_dict()})


def restored(options, state):
    bandit, loader = make(options, seed=99)
    bandit.load_state_dict(state["bandit"])
    loader.load_state_dict(state["loader"])
    return bandit, loader


class Interrupted(Exception):
    pass


class Run:
    """Trains for `EPOCHS` epochs, counting batches; stops after `stop` of them, as often as it is asked to."""

    def __init__(self, bandit, loader):
        self.bandit, self.loader = bandit, loader
        self.epoch, self.seen = 0, []

    def go(self, stop=None):
        try:
            while self.epoch < EPOCHS:
                for batch in self.loader:
                    assert batch[1].tolist() == batch.draw.indices.tolist()
                    learn(self.bandit, batch.draw)
                    self.seen.append(record(batch.draw))
                    if len(self.seen) == stop:
                        self.state = saved(self.bandit, self.loader)
                        raise Interrupted
                self.epoch += 1
        except Interrupted:
            pass
        return self


def textbook(ahead, seed=0):
    """Return the draws and the last weights by the slow twin."""
    bandit, _ = make({}, seed)
    seen = []
    for _ in range(EPOCHS):
        for draw in textbook_epoch(bandit, ahead):
            learn(bandit, draw)
            seen.append(record(draw))
    return seen, bandit.weights


@settings
def test_draws_are_made_when_the_textbook_makes_them(options, ahead):
    run = Run(*make(options)).go()
    seen, weights = textbook(ahead)
    assert run.seen == seen
    assert (run.bandit.weights == weights).all()


# After how many batches it is saved: the first, the middle, the last of an epoch, the first of the next, the end.
STOPS = (1, 5, BATCHES - 1, BATCHES, BATCHES + 1, 2 * BATCHES)


@settings
@pytest.mark.parametrize("stop", STOPS)
def test_a_resumed_run_is_the_undisturbed_one(options, ahead, stop):
    first = Run(*make(options)).go(stop)
    second = Run(*restored(options, first.state))
    second.epoch, second.seen = first.epoch, first.seen
    second.go()
    seen, weights = textbook(ahead)
    assert second.seen == seen
    assert (second.bandit.weights == weights).all()


@pytest.mark.parametrize("name", ["0", "1", pytest.param("3 by 5, more than an epoch", marks=pytest.mark.slow)])
def test_a_run_resumed_after_every_batch_is_the_undisturbed_one(name):
    options, ahead = SETTINGS[name]
    run = Run(*make(options))
    while run.epoch < EPOCHS:
        run.go(len(run.seen) + 1)
        if run.epoch < EPOCHS:
            run.bandit, run.loader = restored(options, run.state)
    seen, weights = textbook(ahead)
    assert run.seen == seen
    assert (run.bandit.weights == weights).all()


@settings
def test_between_epochs_nothing_is_pending_and_the_next_is_whole(options, ahead):
    bandit, loader = make(options)
    seen = []
    for _ in range(EPOCHS):
        for batch in loader:
            learn(bandit, batch.draw)
            seen.append(record(batch.draw))
        state = saved(bandit, loader)
        assert state["loader"]["pending"] == []
        assert (state["loader"]["position"], state["loader"]["in_epoch"]) == (0, False)
        bandit, loader = restored(options, state)
    assert seen == textbook(ahead)[0]


@settings
def test_a_started_epoch_without_a_batch_can_be_saved(options, ahead):
    bandit, loader = make(options)
    iterator = iter(loader)
    state = saved(bandit, loader)
    assert len(state["loader"]["pending"]) == min(ahead, BATCHES)
    run = Run(*restored(options, state)).go()
    assert run.seen == textbook(ahead)[0]
    del iterator


def test_a_state_saved_during_the_last_batch_leaves_an_empty_rest():
    first = Run(*make({})).go(BATCHES)
    _, loader = restored({}, first.state)
    assert list(loader) == []
    assert len(list(loader)) == BATCHES


def test_a_loaded_state_can_be_saved_again_before_use():
    first = Run(*make(SETTINGS["1"][0])).go(5)
    _, loader = restored({}, first.state)
    again = loader.state_dict()
    assert again.keys() == first.state["loader"].keys()
    assert again["position"] == 5
    for left, right in zip(again["pending"], first.state["loader"]["pending"], strict=True):
        assert all(torch.equal(torch.as_tensor(left[key]), torch.as_tensor(right[key])) for key in right)


def test_other_workers_hand_out_the_same_pending_draws():
    first = Run(*make(SETTINGS["4"][0])).go(1)
    pending = [entry["indices"].tolist() for entry in first.state["loader"]["pending"]]
    _, loader = restored({}, first.state)
    rest = [batch.draw.indices.tolist() for batch in loader]
    assert len(rest) == BATCHES - 1
    assert rest[: len(pending)] == pending


def test_loading_ends_a_running_iterator():
    bandit, loader = make({})
    iterator = iter(loader)
    next(iterator)
    loader.load_state_dict(loader.state_dict())
    with pytest.raises(RuntimeError, match="a state loaded"):
        next(iterator)
    assert len(list(loader)) == BATCHES - 1


def test_persistent_workers_that_run_already_resume_too():
    options, ahead = SETTINGS["1 persistent"]
    first = Run(*make(options)).go(5)
    bandit, loader = make(options, seed=7)
    next(iter(loader))
    bandit.load_state_dict(first.state["bandit"])
    loader.load_state_dict(first.state["loader"])
    second = Run(bandit, loader)
    second.seen = first.seen
    assert second.go().seen == textbook(ahead)[0]


def test_a_state_does_not_change_later_and_does_not_grow_with_n():
    bandit = CombinatorialBandit(100_000, 4, generator=torch.Generator().manual_seed(0))
    loader = BanditLoader(tensors_of(100_000), bandit, num_workers=1)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    file = io.BytesIO()
    torch.save(state, file)
    assert len(file.getvalue()) < 10_000
    before = [entry["indices"].clone() for entry in state["pending"]]
    next(iterator)
    state["pending"][0]["probs"].zero_()
    assert all(torch.equal(left, right["indices"]) for left, right in zip(before, state["pending"], strict=True))
    assert next(iterator).draw.probs.all()


def tensors_of(n):
    return torch.utils.data.TensorDataset(torch.arange(n))


@pytest.mark.parametrize("options", [{"num_workers": 1}, {"num_workers": 2, "persistent_workers": True}])
def test_random_transforms_in_workers_are_repeated_after_resuming(options):
    def build(seed):
        selection = UniformSelection(40, 4, generator=torch.Generator().manual_seed(3))
        return selection, BanditLoader(Noisy(40), selection, seed=seed, **options)

    def values(batch):
        return [part.tolist() for part in batch]

    whole = [values(batch) for batch in build(8)[1]]
    selection, loader = build(8)
    iterator = iter(loader)
    part = [values(next(iterator)) for _ in range(3)]
    state, chosen = through_a_file(loader.state_dict()), selection.state_dict()
    selection, loader = build(0)  # the seed comes with the state
    selection.load_state_dict(chosen)
    loader.load_state_dict(state)
    assert part + [values(batch) for batch in loader] == whole


def test_workers_start_from_seeds_of_their_own_which_resuming_repeats():
    def build():
        return BanditLoader(Seeds(8), UniformSelection(8, 4), num_workers=1)

    def seeds(loader):
        return {int(seed) for batch in loader for seed in batch.data}

    whole = build()
    first, second = seeds(whole), seeds(whole)
    assert len(first) == len(second) == 1
    assert first != second
    before = build()
    assert seeds(before) == first
    resumed = build()
    resumed.load_state_dict(before.state_dict())
    assert seeds(resumed) == second


GOOD = {
    "num_samples": N,
    "batch_size": K,
    "seed": 0,
    "position": 3,
    "in_epoch": True,
    "next_number": 4,
    "pending": [
        {
            "number": 3,
            "origin": 1,
            "indices": torch.arange(4),
            "probs": torch.full((4,), 0.1, dtype=torch.float64),
            "loss_weights": torch.full((4,), 1.0 / (0.1 * N), dtype=torch.float64),
        }
    ],
}
ENTRY = GOOD["pending"][0]
BAD = {
    "no dict": (None, ValueError, "`state` must be a dict with the keys num_samples,"),
    "foreign": ({"weights": 1}, ValueError, "got the keys weights."),
    "n": ({**GOOD, "num_samples": 5}, ValueError, "`state` must be saved with num_samples=41, got num_samples=5."),
    "k": ({**GOOD, "batch_size": 5}, ValueError, "`state` must be saved with batch_size=4, got batch_size=5."),
    "position": ({**GOOD, "position": 11}, ValueError, "`state['position']` must be at most 10"),
    "too many": (
        {**GOOD, "position": 10},
        ValueError,
        "must hold at most 10 batches of an epoch, got position=10 and 1",
    ),
    "in_epoch": ({**GOOD, "in_epoch": 1}, TypeError, "`state['in_epoch']` must be a bool, got 1."),
    "pending": ({**GOOD, "pending": 1}, TypeError, "`state['pending']` must be a list, got int."),
    "entry": (
        {**GOOD, "pending": [{}]},
        ValueError,
        "`state['pending']` must be a draw's state: a dict with the keys origin",
    ),
    "length": (
        {**GOOD, "pending": [{**ENTRY, "probs": torch.ones(3)}]},
        ValueError,
        "`state['pending']['probs']` must be a vector of length 4, got state['pending']['probs'] of shape (3,).",
    ),
    "two alike": (
        {**GOOD, "pending": [{**ENTRY, "indices": torch.tensor([1, 2, 3, 1])}]},
        ValueError,
        "`state['pending']['indices']` must be distinct, got 1",
    ),
    "half an index": (
        {**GOOD, "pending": [{**ENTRY, "indices": torch.tensor([1, 2, 3, 4.5])}]},
        TypeError,
        "`state['pending']['indices']` must hold integers",
    ),
    "prob": (
        {**GOOD, "pending": [{**ENTRY, "probs": torch.tensor([0.1, 0.1, 0.1, 1.5])}]},
        ValueError,
        "`state['pending']['probs']` must lie in (0, 1]",
    ),
    "loss weights": (
        {**GOOD, "pending": [{**ENTRY, "loss_weights": 50 * ENTRY["loss_weights"]}]},
        ValueError,
        "`state['pending']['loss_weights']` must be 1/(n·probs), got 50 times as much",
    ),
    "too small": (
        {**GOOD, "pending": [{**ENTRY, **{name: ENTRY[name][:3] for name in ("indices", "probs", "loss_weights")}}]},
        ValueError,
        "`len(state['pending']['indices'])` must be at least 4, got",
    ),
    "number": ({**GOOD, "pending": [ENTRY, ENTRY]}, ValueError, "`state['pending']` must have distinct numbers below"),
    "index": (
        {**GOOD, "pending": [{**ENTRY, "indices": torch.arange(38, 42)}]},
        ValueError,
        "`state['pending']['indices']` must hold integers in [0, 41)",
    ),
}


@pytest.mark.parametrize(("state", "kind", "message"), BAD.values(), ids=BAD)
def test_a_state_that_does_not_fit_changes_nothing(state, kind, message):
    _, loader = make({})
    loader.load_state_dict(GOOD)
    before = loader.state_dict()
    with pytest.raises(kind, match=re.escape(message)):
        loader.load_state_dict(state)
    after = loader.state_dict()
    assert str(before) == str(after)
    assert np.array_equal(next(iter(loader)).draw.indices, np.arange(4))
