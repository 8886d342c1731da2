"""A DataLoader whose batches a selection chooses."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch.utils.data import DataLoader, default_collate

from adamcb import _checks
from adamcb.data import _stateful
from adamcb.data._batch import SelectedBatch
from adamcb.data._draws import DrawSampler
from adamcb.data._fetch import Fetcher, as_fetched, collate
from adamcb.data._window import Window, check_window, move_on, refuse_hidden_window
from adamcb.selection import Selection

_MOST_WORKERS, _MOST_AHEAD = 1024, 10_000
# Options of a DataLoader that have no place here, and what to do instead.
_NOT_OURS = {
    "shuffle": "the selection decides the order: leave it out, or pass selection=UniformSelection(n, K)",
    "sampler": "the selection chooses the samples: pass it as `selection`",
    "batch_sampler": "the selection chooses the batches: pass it as `selection`",
    "batch_size": "it is the selection's",
    "drop_last": "an epoch has floor(n/K) batches, so none is short: leave it out",
    "generator": "random numbers are the selection's: pass it a generator",
}


class BanditLoader:
    """Loads the batches that `selection` draws; every batch brings its draw along as a `SelectedBatch`.

    An epoch has floor(n/K) batches of K samples, or of fewer where the selection says so. The draws are made in the
    main process. Workers get indices only, and each batch meets its own draw again whatever the number of workers and
    the order in which they finish. With workers, `DataLoader` asks for `prefetch_factor`·`num_workers` batches ahead of
    training. Such draws know nothing of the feedback that comes in between, and keep the probabilities of their own
    time.

    A `TensorDataset`, also below a `Subset`, is read by one gather a batch, and a dataset with `__getitems__` by one
    call, with ascending indices unless there is a `collate_fn`. The dataset is never changed. It is no subclass of
    `DataLoader`, so that frameworks do not rebuild it with a sampler of their own.

    **Epochs.** Every `iter(loader)` starts a new epoch and ends any iterator started before. If a loop was left early,
    draws that were made ahead are not lost: they are the first batches of the new epoch.

    **Resuming.** `state_dict` holds the position in the epoch and the draws made ahead, not the selection's weights:
    save `selection.state_dict()` at the same moment. After `load_state_dict` the next `iter(loader)` goes on in the
    middle of the epoch (if the state was saved during an epoch's last batch, there is nothing left of it, and the loop
    ends at once). With the same `num_workers` and `prefetch_factor`, and `in_order=True`, draws and updates interleave
    exactly as in an undisturbed run.

    **Random transforms.** In a worker, the generators of torch, NumPy and `random` are seeded for every batch, from
    `seed` and the draw's number. So a draw's transforms are the same whichever worker loads it, and in a resumed run.
    What a `worker_init_fn` seeds in these three is overridden; generators that the dataset keeps itself are neither
    touched nor saved. Without workers, transforms use the global generators of the main process, never seeded here.

    **Several processes.** With `num_ranks`, every rank makes the same draws, loads its own K/W rows of each, and its
    batches have that part as `draw`; `draw.whole` is all of it. `selection` must be seeded alike on every rank and hear
    the same feedback. States hold whole draws, so one that was saved by any rank is good for any number of ranks.

    Args:
        dataset: A map-style dataset of n samples: `__len__` and `__getitem__`, optionally `__getitems__`. For a stream,
            a `Window` on it.
        selection: Chooses the batches; its `num_samples` must be n.
        num_workers: How many processes load; 0: the main process.
        collate_fn: Merges a list of samples into a batch. None: torch's `default_collate`, and for samples that are
            dataclasses the same field by field.
        pin_memory: Copy batches into pinned memory.
        timeout: Seconds to wait for a worker; 0: for ever.
        worker_init_fn: Called in each worker with its number.
        multiprocessing_context: How workers are started, for instance "spawn".
        prefetch_factor: Batches that each worker loads ahead. None: 2 with workers.
        persistent_workers: Keep the workers from epoch to epoch.
        pin_memory_device: As in `DataLoader`; recent torch ignores it.
        in_order: False: hand out batches as they are ready. Resuming is not exact then.
        seed: For random transforms in the workers; ranks differ by themselves.
        stateful: Load with torchdata's StatefulDataLoader. States then hold those of a dataset that has `state_dict`
            and `load_state_dict`, as it is in each worker, and need as many workers on loading. With several ranks they
            are those of the rank that saved.
        rank: Which part of each draw to load.
        num_ranks: W, into how many equal parts draws are shared out.
        not_ours: What else a `DataLoader` takes; refused with advice.

    Raises:
        TypeError: If `dataset` is not map-style or `selection` is no selection, or for an option not named here.
        ValueError: If `dataset` is empty or has another length than `selection.num_samples`, or if `num_ranks` does not
            divide K.

    Example:
        >>> from adamcb.selection import CombinatorialBandit
        >>> dataset = torch.utils.data.TensorDataset(torch.arange(10.0), torch.arange(10) % 2)
        >>> loader = BanditLoader(dataset, CombinatorialBandit(10, 4))
        >>> len(loader)
        2
        >>> for batch in loader:
        ...     x, y = batch
        ...     assert x.tolist() == batch.draw.indices.tolist()
    """

    drop_last = True

    def __init__(
        self,
        dataset: Any,
        selection: Selection,
        *,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        seed: int = 0,
        stateful: bool = False,
        rank: int = 0,
        num_ranks: int = 1,
        **not_ours: Any,
    ) -> None:
        _refuse(not_ours)
        _check_dataset(dataset, selection)
        _check_ranks(selection.batch_size, rank, num_ranks)
        _check_options(num_workers, prefetch_factor, timeout, collate_fn, worker_init_fn)
        flags = {"pin_memory": pin_memory, "persistent_workers": persistent_workers, "in_order": in_order}
        for name, value in {**flags, "stateful": stateful}.items():
            _checks.boolean(name, value)
        if isinstance(dataset, Window):
            check_window(num_workers, stateful)
        _checks.instance("pin_memory_device", pin_memory_device, str, "a str")
        self.dataset, self.selection = dataset, selection
        self.batch_size = selection.batch_size
        self.num_workers = num_workers
        self.collate_fn = collate if collate_fn is None or collate_fn is default_collate else collate_fn
        self.pin_memory, self.persistent_workers, self.in_order = pin_memory, persistent_workers, in_order
        self.batch_sampler = DrawSampler(selection, _checks.seed("seed", seed), rank, num_ranks)
        self.sampler = self.batch_sampler.sampler
        self._fetcher = Fetcher(dataset, None if self.collate_fn is collate else collate_fn)
        # Without a generator of its own, DataLoader would take a number from the global one every epoch.
        self._base_seeds = torch.Generator()
        options: dict[str, Any] = dict(
            batch_sampler=self.batch_sampler,
            num_workers=num_workers,
            collate_fn=as_fetched,
            pin_memory=pin_memory,
            timeout=timeout,
            worker_init_fn=worker_init_fn,
            multiprocessing_context=multiprocessing_context,
            generator=self._base_seeds,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            in_order=in_order,
        )
        if pin_memory_device:  # Deprecated in torch: named only if wanted.
            options["pin_memory_device"] = pin_memory_device
        self.stateful = stateful
        if stateful:
            self._loader: DataLoader[Any] = _stateful.make_loader(self._fetcher, self.batch_sampler, options)
        else:
            self._loader = DataLoader(cast(Any, self._fetcher), **options)
        self.prefetch_factor = self._loader.prefetch_factor

    def __repr__(self) -> str:
        data = f"{type(self.dataset).__name__} of {self.selection.num_samples} samples"
        return f"{type(self).__name__}({data}, {self.selection}, num_workers={self.num_workers})"

    def __len__(self) -> int:
        return len(self.batch_sampler)

    def __iter__(self) -> Iterator[SelectedBatch]:
        if isinstance(self.dataset, Window) and not self.batch_sampler.is_resumed:
            move_on(self.dataset, self.selection)
        visit = self.batch_sampler.begin()
        if self.num_workers == 0 and not self.pin_memory and not self.stateful:
            # The same as DataLoader does, without its cost of several times a small batch.
            return _Batches(self.batch_sampler, visit, map(self._fetcher.__getitems__, self.batch_sampler))
        self._base_seeds.manual_seed(self.batch_sampler.worker_seed())
        return _Batches(self.batch_sampler, visit, iter(self._loader))

    def set_epoch(self, epoch: int) -> None:
        """Do nothing: the selection goes on from its own state, so epochs differ by themselves."""

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the epoch and the draws made ahead, as tensors and plain values. O(K), not O(n)."""
        state = self.batch_sampler.state_dict()
        if self.stateful:
            workers = _stateful.state_of(self._loader, state["in_epoch"])
            state |= {"workers": workers, "num_workers": self.num_workers}
        if isinstance(self.dataset, Window):
            state["window"] = self.dataset.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Make the next `iter(loader)` go on where `state` was saved. Ends any iterator started before.

        Raises:
            ValueError: If `state` is of another dataset or batch size, or not such a state. Nothing is changed then.
        """
        workers = _stateful.check_workers(state, self.num_workers) if self.stateful else None
        if isinstance(self.dataset, Window):
            self.dataset.check_state(state.get("window") if isinstance(state, dict) else None)
        self.batch_sampler.load_state_dict(state)
        if isinstance(self.dataset, Window):
            self.dataset.load_state_dict(state["window"])
        if self.stateful:
            cast(Any, self._loader).load_state_dict(workers)


class _Batches:
    """Iterates over the rest of an epoch."""

    def __init__(self, draws: DrawSampler, visit: int, loaded: Iterator[tuple[int, Any]]) -> None:
        self._draws, self._visit = draws, visit
        self._loaded: Iterator[tuple[int, Any]] | None = loaded

    def __iter__(self) -> _Batches:
        return self

    def __next__(self) -> SelectedBatch:
        if self._loaded is None:
            raise StopIteration
        self._draws.check_visit(self._visit)
        try:
            number, data = next(self._loaded)
        except StopIteration:
            self._loaded = None
            self._draws.finish()
            raise
        return SelectedBatch(data, self._draws.hand_out(number))


def _refuse(options: dict[str, Any]) -> None:
    """Raise for options that a BanditLoader has not."""
    ours = tuple(inspect.signature(BanditLoader).parameters) if options else ()
    for name, value in options.items():
        got = f"`{name}` must not be given, got {_checks.shown(name, value)}"
        if name in _NOT_OURS:
            raise TypeError(f"{got}: {_NOT_OURS[name]}.")
        raise TypeError(f"{got}: BanditLoader has no such option.{_checks.nearest(name, ours)}")


def _check_dataset(dataset: Any, selection: Any) -> None:
    if not isinstance(selection, Selection):
        raise TypeError(f"`selection` must be a Selection, got selection of type {type(selection).__name__}.")
    refuse_hidden_window(dataset)
    length = _checks.map_style("dataset", dataset)
    if length != selection.num_samples:
        raise ValueError(f"`dataset` must have selection.num_samples={selection.num_samples} samples, got {length}.")


def _check_options(num_workers: Any, prefetch_factor: Any, timeout: Any, collate_fn: Any, worker_init_fn: Any) -> None:
    workers = _checks.integer("num_workers", num_workers, low=0, high=_MOST_WORKERS)
    if prefetch_factor is not None:
        _checks.integer("prefetch_factor", prefetch_factor, low=1, high=_MOST_AHEAD)
        if not workers:
            raise ValueError(f"`prefetch_factor` must be None without workers, got prefetch_factor={prefetch_factor}.")
    if _checks.real("timeout", timeout, low=0.0, high=1e9) != 0 and not workers:
        raise ValueError(f"`timeout` must be 0 without workers, got timeout={timeout}.")
    for name, value in {"collate_fn": collate_fn, "worker_init_fn": worker_init_fn}.items():
        if value is not None:
            _checks.function(name, value)


def _check_ranks(batch_size: int, rank: Any, num_ranks: Any) -> None:
    _checks.integer("num_ranks", num_ranks, low=1)
    _checks.integer("rank", rank, low=0, high=num_ranks - 1)
    if batch_size % num_ranks:
        raise ValueError(f"`batch_size` must be a multiple of num_ranks={num_ranks}, got batch_size={batch_size}.")
