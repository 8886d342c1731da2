"""The draws on their way: made ahead of training for the workers, kept until their batch is handed out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from adamcb import _checks
from adamcb._jit import clock
from adamcb._seeds import derived_seed
from adamcb.data._fetch import Order
from adamcb.data._part import rows_of
from adamcb.selection import Draw, Selection

_KEYS = ("num_samples", "batch_size", "seed", "position", "in_epoch", "next_number", "pending")


class DrawSampler:
    """The batch sampler of a `BanditLoader`: draws when `DataLoader` asks, and remembers each draw by its number.

    Integrations look for `sampler`, `set_epoch`, `generator` and `batch_size` here, as in torch's `BatchSampler`.

    With several ranks, each makes every draw whole, loads its own part of it, and saves whole draws: a state that any
    rank saved can be loaded by any number of ranks.

    Attributes:
        pending: The draws made but not handed out yet, by number, oldest first.
        position: How many batches of this epoch were handed out.
        seconds: How long the selection took for all its draws.
    """

    drop_last = True

    def __init__(self, selection: Selection, seed: int, rank: int = 0, num_ranks: int = 1) -> None:
        self.selection = selection
        self.batch_size = selection.batch_size
        self.seed = seed
        self.rank, self.num_ranks = rank, num_ranks
        self.pending: dict[int, Draw] = {}
        self.position = 0
        self.seconds = 0.0
        self._next_number = 0
        self._in_epoch = False
        self._resumed = False
        self._visit = 0

    @property
    def sampler(self) -> DrawSampler:
        """This object: it chooses samples and batches at once."""
        return self

    @property
    def generator(self) -> torch.Generator | None:
        """The selection's generator."""
        return self.selection.generator

    def set_epoch(self, epoch: int) -> None:
        """Do nothing: the selection goes on from its own state, so epochs differ by themselves."""

    def __len__(self) -> int:
        return self.selection.draws_per_epoch

    def __iter__(self) -> Iterator[Order]:
        """Give out the pending draws, then draw until the epoch is complete."""
        for number, draw in list(self.pending.items()):
            yield self._order(number, draw)
        # Handing out a batch moves a draw from `pending` to `position`: the sum counts the draws of the epoch.
        while self.position + len(self.pending) < len(self):
            number, draw = self._next_number, self._draw()
            self._next_number += 1
            self.pending[number] = draw
            yield self._order(number, draw)

    def _draw(self) -> Draw:
        start = clock()
        draw = self.selection.draw()
        self.seconds += clock() - start
        low, high = self.selection.min_batch_size, self.batch_size
        if not low <= len(draw) <= high or len(draw) % self.num_ranks:
            sizes = f"{high}" if low == high else f"{low} to {high}"
            rule = f"draw {sizes} samples" + (
                f", a multiple of num_ranks={self.num_ranks}" if self.num_ranks > 1 else ""
            )
            raise ValueError(f"`selection` must {rule}, got {len(draw)} from {type(self.selection).__name__}.draw().")
        return draw

    def _order(self, number: int, draw: Draw) -> Order:
        # Ranks have seeds of their own, or their random transforms would be the same.
        seed = derived_seed(self.seed, self.rank, 2) if self.rank else self.seed
        return number, seed, rows_of(draw, self.rank, self.num_ranks).indices

    @property
    def is_resumed(self) -> bool:
        """Whether the next `begin` goes on in the middle of an epoch that was loaded."""
        return self._resumed

    def begin(self) -> int:
        """Start an epoch, or go on with the one that was loaded; return the number of this visit."""
        if not self._resumed:
            self.position = 0
        self._in_epoch, self._resumed = True, False
        self._visit += 1
        return self._visit

    def check_visit(self, visit: int) -> None:
        """Raise if another iterator was started since, or a state loaded."""
        if visit != self._visit:
            raise RuntimeError(
                "This iterator has ended: a newer one was started on its BanditLoader, or a state loaded."
            )

    def hand_out(self, number: int) -> Draw:
        """Return the draw of the batch that is now given to the training loop, or this rank's part of it."""
        self.position += 1
        return rows_of(self.pending.pop(number), self.rank, self.num_ranks)

    def finish(self) -> None:
        """End the epoch. Draws still pending now are those whose batch could not be loaded."""
        self.pending.clear()
        self.position, self._in_epoch = 0, False

    def worker_seed(self) -> int:
        """Return what the workers' base seed is made from: the same at the same position of a resumed run."""
        return derived_seed(self.seed, self._next_number, 1)

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the epoch and the pending draws, as tensors and plain values. O(K)."""
        return {
            "num_samples": self.selection.num_samples,
            "batch_size": self.batch_size,
            "seed": self.seed,
            "position": self.position,
            "in_epoch": self._in_epoch,
            "next_number": self._next_number,
            "pending": [{"number": number, **draw.state_dict()} for number, draw in self.pending.items()],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Make the next `begin` go on where `state` was saved; an error leaves everything as it was."""
        pending = self._check_state(state)
        self.pending = pending
        self.seed, self.position, self._next_number = state["seed"], state["position"], state["next_number"]
        self._in_epoch = self._resumed = state["in_epoch"]
        self._visit += 1

    def _check_state(self, state: Any) -> dict[int, Draw]:
        """Return the pending draws of `state`, or raise."""
        if not isinstance(state, dict) or not set(_KEYS) <= set(state):
            got = f"the keys {', '.join(map(str, state))}" if isinstance(state, dict) else type(state).__name__
            raise ValueError(f"`state` must be a dict with the keys {', '.join(_KEYS)}, got {got}.")
        for name, value in (("num_samples", self.selection.num_samples), ("batch_size", self.batch_size)):
            if state[name] != value:
                raise ValueError(f"`state` must be saved with {name}={value}, got {name}={state[name]!r}.")
        _checks.seed("state['seed']", state["seed"])
        _checks.integer("state['next_number']", state["next_number"], low=0)
        position = _checks.integer("state['position']", state["position"], low=0, high=len(self))
        if not isinstance(state["in_epoch"], bool):
            raise TypeError(f"`state['in_epoch']` must be a bool, got {state['in_epoch']!r}.")
        if not isinstance(state["pending"], (list, tuple)):
            raise TypeError(f"`state['pending']` must be a list, got {type(state['pending']).__name__}.")
        if position and not state["in_epoch"]:
            raise ValueError(f"`state['position']` must be 0 between epochs, got state['position']={position}.")
        pending = dict(_unpack(entry, self.selection) for entry in state["pending"])
        if len(pending) < len(state["pending"]) or any(number >= state["next_number"] for number in pending):
            rule = f"have distinct numbers below {state['next_number']}"
            raise ValueError(f"`state['pending']` must {rule}, got {', '.join(map(str, pending))}.")
        if position + len(pending) > len(self):
            raise ValueError(
                f"`state` must hold at most {len(self)} batches of an epoch, got position={position} and "
                f"{len(pending)} pending."
            )
        return pending


def _unpack(entry: Any, selection: Selection) -> tuple[int, Draw]:
    draw = selection.restored_draw(entry, whole=True, name="state['pending']")
    return _checks.integer("state['pending']['number']", entry.get("number"), low=0), draw
