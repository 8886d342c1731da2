"""Each batch meets its own draw: through workers, prefetching, reordering, pinning; and errors are clear."""

import random
import re
import warnings

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, get_worker_info
from torch.utils.data._utils.pin_memory import pin_memory

from adamcb import AdaptiveLoader
from adamcb.data import BanditLoader
from adamcb.selection import CombinatorialBandit, ReplacementBandit, UniformSelection
from tests.data.datasets import INDEX_OF, SAMPLES, Batched, Broken, Made, Noisy, Uneven, tensors

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # four workers, whatever the machine has
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]
WORKERS = {
    "0": {},
    "1": {"num_workers": 1},
    "4": {"num_workers": 4},
    "4 persistent": {"num_workers": 4, "persistent_workers": True},
    "4 any order": {"num_workers": 4, "in_order": False},
    "2 far ahead": {"num_workers": 2, "prefetch_factor": 5},
}


class Recorder(CombinatorialBandit):
    """A selection that notes what it draws."""

    def __init__(self, num_samples, batch_size, *, generator):
        super().__init__(num_samples, batch_size, generator=generator)
        self.drawn = []

    def draw(self):
        self.drawn.append(super().draw())
        return self.drawn[-1]


def bandit(n=41, k=4, seed=0):
    return Recorder(n, k, generator=torch.Generator().manual_seed(seed))


def indices_of(batches):
    return [batch.draw.indices.tolist() for batch in batches]


@pytest.mark.parametrize("options", WORKERS.values(), ids=WORKERS)
@pytest.mark.parametrize("kind", ["tuple", "dataclass"])
def test_each_batch_brings_its_own_draw(options, kind):
    selection = bandit()
    loader = BanditLoader(Made(41, kind), selection, **options)
    for _ in range(2):
        selection.drawn.clear()
        batches = []
        for batch in loader:
            batches.append(batch)
            selection.update(batch.draw, np.ones(4))  # probabilities move on between draw and use
        assert len(batches) == len(loader) == 10
        for batch in batches:
            assert INDEX_OF[kind](batch).tolist() == batch.draw.indices.tolist()
            assert len(batch.draw) == 4
        expected, got = selection.drawn, [batch.draw for batch in batches]
        if options.get("in_order", True):
            assert all(left is right for left, right in zip(expected, got, strict=True))
        assert {id(draw) for draw in expected} == {id(draw) for draw in got}


def test_batches_that_overtake_each_other_keep_their_draws():
    selection = bandit()
    batches = list(BanditLoader(Uneven(41), selection, num_workers=4, multiprocessing_context="fork", in_order=False))
    assert [b.draw for b in batches] != selection.drawn  # they did overtake
    for batch in batches:
        assert batch[1].tolist() == batch.draw.indices.tolist()


def test_batches_that_are_late_keep_their_order():
    selection = bandit()
    batches = list(BanditLoader(Uneven(41), selection, num_workers=4, multiprocessing_context="fork"))
    assert all(left is right.draw for left, right in zip(selection.drawn, batches, strict=True))


@pytest.mark.parametrize("kind", SAMPLES)
def test_all_kinds_of_samples_come_through_a_worker(kind):
    for batch in BanditLoader(Batched(12, kind), bandit(12), num_workers=1):
        assert INDEX_OF[kind](batch).tolist() == batch.draw.indices.tolist()


def first_fields(samples):
    return {"index": [sample.index for sample in samples]}


def open_dataset(worker):
    info = get_worker_info()
    info.dataset.opened_by = worker  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue]
    assert len(info.dataset) == 12  # pyright: ignore
    assert info.dataset[3].index == 3  # pyright: ignore


class Opened(Made):
    def __getitem__(self, index):
        assert "opened_by" in vars(self)  # set on the dataset itself, not on what stands in for it
        return super().__getitem__(index)


@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_workers_start_either_way_with_collate_and_init_functions(context):
    loader = BanditLoader(
        Opened(12, "dataclass"),
        bandit(12),
        num_workers=1,
        collate_fn=first_fields,
        worker_init_fn=open_dataset,
        multiprocessing_context=context,
    )
    assert [batch["index"] for batch in loader] == indices_of_drawn(loader.selection)


def indices_of_drawn(selection):
    return [draw.indices.tolist() for draw in selection.drawn]


def test_draws_with_replacement_repeat_samples():
    selection = ReplacementBandit(5, 5, generator=torch.Generator().manual_seed(0))
    (batch,) = BanditLoader(tensors(5), selection)
    assert batch[1].tolist() == batch.draw.indices.tolist()
    assert len(set(batch[1].tolist())) < 5


@pytest.mark.parametrize("options", [{}, {"num_workers": 1}])
def test_pinning_is_left_to_torch(options):
    loader = BanditLoader(tensors(12), bandit(12), pin_memory=True, **options)
    if torch.accelerator.is_available():
        batches = list(loader)
        assert all(batch[0].is_pinned() for batch in batches)
    else:
        with warnings.catch_warnings():  # torch says that it finds no accelerator, or nothing, as its version is
            warnings.filterwarnings("ignore", "'pin_memory' argument is set as true but no accelerator is found")
            batches = list(loader)
    for batch in batches:
        assert batch[1].tolist() == batch.draw.indices.tolist()


def test_what_torch_pins_is_the_data_and_the_number_stays():
    class Pinnable:
        def pin_memory(self):
            return "pinned"

    loader = BanditLoader(Made(4), bandit(4), collate_fn=lambda samples: Pinnable())
    # A list in torch 2.6.
    assert tuple(pin_memory(loader._fetcher.__getitems__((7, 0, np.arange(4))))) == (7, "pinned")


@pytest.mark.parametrize(("n", "k", "count"), [(8, 4, 2), (11, 4, 2), (4, 4, 1), (5, 1, 5)])
def test_an_epoch_has_floor_n_by_k_batches_of_k(n, k, count):
    loader = BanditLoader(tensors(n), UniformSelection(n, k))
    assert len(loader) == count
    assert [len(batch[0]) for batch in loader] == [k] * count


def test_uniform_epochs_see_every_sample_once():
    loader = BanditLoader(tensors(12), UniformSelection(12, 4), num_workers=1)
    for _ in range(2):
        assert sorted(sum(indices_of(loader), [])) == list(range(12))


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}])
def test_a_loop_left_early_loses_no_draw(options):
    selection = bandit()
    loader, got = BanditLoader(Made(41), selection, **options), []
    for stop in (3, 10, 1, 10):
        count = 0
        for batch in loader:
            got.append(batch)
            count += 1
            if count == stop:
                break
        assert count == stop
    for batch, draw in zip(got, selection.drawn, strict=False):
        assert batch.draw is draw
        assert batch[1].tolist() == draw.indices.tolist()


@pytest.mark.parametrize("options", [{}, {"num_workers": 1}, {"num_workers": 1, "persistent_workers": True}])
def test_a_newer_iterator_ends_the_older_one(options):
    loader = BanditLoader(Made(41), bandit(), **options)
    older = iter(loader)
    next(older)
    newer = iter(loader)
    with pytest.raises(RuntimeError, match="a newer one was started"):
        next(older)
    assert len(list(newer)) == 10
    assert list(newer) == []


def test_the_global_generators_are_not_touched():
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()  # pyright: ignore
    selection = bandit()
    list(BanditLoader(Made(41), selection))
    list(BanditLoader(Noisy(41), selection, num_workers=1))
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert (np.random.get_state()[1] == states[2]).all()  # pyright: ignore


def noise(loader, epochs=2):
    return [torch.stack([part.double() for part in batch]).tolist() for _ in range(epochs) for batch in loader]


def test_random_transforms_do_not_depend_on_the_workers():
    def run(seed=0, **options):
        return noise(BanditLoader(Noisy(20), UniformSelection(20, 4, generator=twin()), seed=seed, **options))

    def twin():
        return torch.Generator().manual_seed(5)

    one = run(num_workers=1)
    assert run(num_workers=4) == one
    assert run(num_workers=2, persistent_workers=True) == one
    assert run(num_workers=1, seed=1) != one
    values = np.array(one)[:, 1:].reshape(-1)
    assert len(np.unique(values)) == values.size  # no batch, sample or generator repeats another


# Every worker gets a batch: torch leaves the iterator of a failed epoch to the garbage collector, which may close the
# queues of workers that never had one before they are told to stop.
@pytest.mark.parametrize("options", [{}, {"num_workers": 1}, {"num_workers": 4}])
def test_an_error_in_the_dataset_surfaces_and_its_draw_is_kept(options):
    selection = UniformSelection(40, 4, generator=torch.Generator().manual_seed(0))
    loader = BanditLoader(Broken(40, bad=5), selection, **options)
    where = "(?s)worker process.*" if options else ""
    with pytest.raises(OSError, match=f"{where}cannot read sample 5"):
        list(loader)
    state = loader.state_dict()
    assert 5 in state["pending"][0]["indices"]
    mended = BanditLoader(tensors(40), selection, **options)
    mended.load_state_dict(state)
    rest = list(mended)
    assert len(rest) == 10 - state["position"]
    assert 5 in rest[0].draw.indices


@pytest.mark.parametrize("options", [{}, {"num_workers": 1}])
def test_an_iterator_can_go_on_after_an_error(options):
    loader = BanditLoader(Broken(12, bad=5), UniformSelection(12, 4), **options)
    batches, errors, iterator = [], 0, iter(loader)
    while True:
        try:
            batches.append(next(iterator))
        except OSError:
            errors += 1
        except StopIteration:
            break
    assert (len(batches), errors) == (2, 1)
    assert loader.state_dict()["pending"] == []
    for batch in batches:
        assert batch[1].tolist() == batch.draw.indices.tolist()


def test_integrations_find_what_they_look_for():
    selection, dataset = UniformSelection(12, 4), tensors(12)
    loader = BanditLoader(dataset, selection, num_workers=2)
    assert not isinstance(loader, DataLoader)
    assert (loader.dataset, loader.selection) == (dataset, selection)
    assert (loader.batch_size, loader.num_workers, loader.prefetch_factor, loader.drop_last) == (4, 2, 2, True)
    assert loader.batch_sampler.batch_size == 4
    assert len(loader.batch_sampler) == 3
    assert loader.batch_sampler.sampler is loader.sampler
    assert loader.sampler.generator is selection.generator
    assert callable(loader.collate_fn)
    for owner in (loader, loader.sampler, loader.batch_sampler):
        owner.set_epoch(3)


class Endless(IterableDataset):
    def __iter__(self):
        yield from range(10)


BAD = {
    "iterable": (
        Endless(),
        bandit(10),
        TypeError,
        "`dataset` must be map-style, got an IterableDataset of type Endless.",
    ),
    "no length": (
        object(),
        bandit(10),
        TypeError,
        "`dataset` must be map-style, with `__getitem__` and `__len__`, got dataset of type",
    ),
    "empty": (
        TensorDataset(torch.zeros(0)),
        bandit(10),
        ValueError,
        "`dataset` must not be empty, got len(dataset)=0.",
    ),
    "length": (tensors(9), bandit(10), ValueError, "`dataset` must have selection.num_samples=10 samples, got 9."),
    "no selection": (tensors(9), object(), TypeError, "`selection` must be a Selection, got selection of type object."),
}


@pytest.mark.parametrize(("dataset", "selection", "kind", "message"), BAD.values(), ids=BAD)
def test_what_cannot_be_loaded_is_refused(dataset, selection, kind, message):
    with pytest.raises(kind, match=re.escape(message)):
        BanditLoader(dataset, selection)


BAD_OPTIONS = {
    "num_workers": ({"num_workers": -1}, "`num_workers` must be at least 0, got num_workers=-1."),
    "timeout": ({"timeout": 3}, "`timeout` must be 0 without workers, got timeout=3."),
    "seed": ({"seed": -1}, "`seed` must be at least 0, got seed=-1."),
    "prefetch": ({"prefetch_factor": 3}, "`prefetch_factor` must be None without workers, got prefetch_factor=3."),
    "persistent": ({"persistent_workers": True}, "persistent_workers option needs num_workers > 0"),
}


@pytest.mark.parametrize(("options", "message"), BAD_OPTIONS.values(), ids=BAD_OPTIONS)
def test_options_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        BanditLoader(tensors(10), bandit(10), **options)


NOT_OURS = {
    "shuffle": (True, "the selection decides the order: leave it out, or pass selection=UniformSelection(n, K)."),
    "sampler": ([1], "the selection chooses the samples: pass it as `selection`."),
    "batch_sampler": ([[1]], "the selection chooses the batches: pass it as `selection`."),
    "batch_size": (4, "it is the selection's."),
    "drop_last": (True, "an epoch has floor(n/K) batches, so none is short: leave it out."),
    "generator": (None, "random numbers are the selection's: pass it a generator."),
    "num_worker": (2, "BanditLoader has no such option. Did you mean 'num_workers'?"),
}


@pytest.mark.parametrize("name", NOT_OURS)
def test_options_of_a_dataloader_that_have_no_place_are_answered(name):
    value, advice = NOT_OURS[name]
    with pytest.raises(TypeError, match=re.escape(f"`{name}` must not be given, got {name}={value!r}: {advice}")):
        BanditLoader(tensors(10), bandit(10), **{name: value})


def test_it_is_shown_in_one_line():
    loader = BanditLoader(tensors(10), UniformSelection(10, 4), num_workers=2)
    selection = "UniformSelection(num_samples=10, batch_size=4)"
    assert repr(loader) == f"BanditLoader(TensorDataset of 10 samples, {selection}, num_workers=2)"


def test_a_loader_is_no_dataset():
    with AdaptiveLoader(torch.nn.Linear(1, 2), tensors(10), 4) as adaptive:
        for loader in (DataLoader(tensors(10)), BanditLoader(tensors(10), bandit(10)), adaptive):
            message = f"got a {type(loader).__name__}. Pass its dataset: `loader.dataset`."
            with pytest.raises(TypeError, match=re.escape(message)):
                BanditLoader(loader, bandit(10))
            with pytest.raises(TypeError, match=re.escape(message)):
                AdaptiveLoader(torch.nn.Linear(1, 2), loader, 4)


def test_a_selection_that_draws_another_number_is_refused():
    selection = bandit(10, 4)
    selection.draw = UniformSelection(10, 3).draw
    with pytest.raises(ValueError, match=r"`selection` must draw 4 samples, got 3 from Recorder.draw\(\)"):
        next(iter(BanditLoader(tensors(10), selection)))
