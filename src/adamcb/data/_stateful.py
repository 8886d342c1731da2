"""torchdata's StatefulDataLoader behind a `BanditLoader`: it saves the state that datasets keep in their workers.

By itself it would save a sampler's state at every draw, and on resuming draw again what was on its way. A selection
that has learned since would draw something else. So the draws stay with the `DrawSampler`, which saves them as they
are, and the StatefulDataLoader sees a sampler that has nothing to save: no step copies any weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from adamcb.data._draws import DrawSampler
from adamcb.data._fetch import Order


class Orders:
    """What the StatefulDataLoader takes for its batch sampler: the orders of a `DrawSampler`, and an empty state."""

    drop_last = True

    def __init__(self, draws: DrawSampler) -> None:
        self._draws = draws
        self.batch_size = draws.batch_size

    def __len__(self) -> int:
        return len(self._draws)

    def __iter__(self) -> Iterator[Order]:
        return iter(self._draws)

    def state_dict(self) -> dict[str, Any]:
        """Return nothing."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Do nothing: the next `iter` gives out the pending draws first."""


def make_loader(fetcher: Any, draws: DrawSampler, options: dict[str, Any]) -> Any:
    """Return the StatefulDataLoader.

    Raises:
        ImportError: If torchdata is missing.
    """
    try:
        from torchdata.stateful_dataloader import StatefulDataLoader
    except ImportError as error:
        raise ImportError(
            '`stateful=True` needs torchdata, which is not installed: pip install ".[torchdata]" in a clone.'
        ) from error
    # A snapshot at every batch: with fewer, it would load batches again, and training would not see them.
    return StatefulDataLoader(fetcher, **{**options, "batch_sampler": Orders(draws)}, snapshot_every_n_steps=1)


def state_of(loader: Any, in_epoch: bool) -> dict[str, Any] | None:
    """Return the state of the workers' datasets; None between epochs, when there are no workers."""
    if not in_epoch:
        return None
    # Without an iterator, `state_dict` would start one and make draws. Right after loading there is none.
    return loader.next_iter_state if loader._iterator is None else loader.state_dict()


def check_workers(state: Any, num_workers: int) -> dict[str, Any]:
    """Return what the StatefulDataLoader is to load, or raise. An empty dict lets it begin anew."""
    saved = state.get("num_workers", num_workers) if isinstance(state, dict) else num_workers
    if saved != num_workers:
        raise ValueError(f"`state` must be saved with num_workers={num_workers}, got num_workers={saved!r}.")
    return (state.get("workers") if isinstance(state, dict) else None) or {}
