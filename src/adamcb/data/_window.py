"""A window on a stream: samples that come one after the other, of which some are there to be chosen from."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from adamcb import _checks
from adamcb.selection import Selection

_KEYS = ("size", "passes", "blocks", "mark")
_END = object()


class Window:
    """A map-style view on a stream: the B samples that were read last, to choose batches from.

    Every epoch of a loader is one of the window: floor(B/K) batches. Before each further epoch, the oldest B/`passes`
    samples leave, and as many are read. So every sample stays for `passes` epochs, in one place, and what was learned
    about it stays with it. A new sample starts with the mean weight. When the stream ends, it is iterated over again.

    The weighted loss is unbiased for the mean over what the window holds at that moment. Over a run, every sample of
    the stream has the same expected weight, but for those of the first window and of the last. What that promises, and
    what it does not, is in docs/guides/large-data.md.

    The window lives in the process that trains, so its loader has no workers. Let workers read the stream:
    `Window(DataLoader(stream, batch_size=None, num_workers=4), size)`.

    **Resuming.** A loader's state holds where the stream was when the oldest sample was read, if the stream has
    `state_dict` and `load_state_dict` (torchdata's `StatefulDataLoader` has them, with workers too). Loading reads the
    window again from there. Without them a resumed run reads on from where the stream stands.

    Args:
        stream: Gives samples whenever it is iterated over: an `IterableDataset`, or a `DataLoader` of one with
            `batch_size=None`.
        size: B, how many samples the window holds: a multiple of `passes`.
        passes: For how many epochs a sample stays.

    Attributes:
        samples: The samples by place. Empty until the first one is asked for.

    Example:
        >>> window = Window(range(100), 6, passes=3)
        >>> list(window)
        [0, 1, 2, 3, 4, 5]
        >>> window.advance()
        array([0, 1])
        >>> list(window)
        [6, 7, 2, 3, 4, 5]
    """

    def __init__(self, stream: Iterable[Any], size: int, *, passes: int = 4) -> None:
        if not hasattr(stream, "__iter__") or isinstance(stream, (str, bytes)):
            raise _checks.wrong_type("stream", "give samples when it is iterated over", stream)
        if isinstance(stream, Iterator):
            rule = "be iterable more than once, as an IterableDataset is"
            raise TypeError(f"`stream` must {rule}, got stream of type {type(stream).__name__}.")
        self.stream = stream
        self.passes = _checks.count("passes", passes)
        self.size = _checks.num_samples(size, "size")
        if self.size % self.passes:
            raise ValueError(f"`size` must be a multiple of passes={self.passes}, got size={self.size}.")
        self.samples: list[Any] = []
        self._iterator: Iterator[Any] | None = None
        self._blocks = 0  # how many were read; block b fills the places of block b mod `passes`
        self._marks: deque[Any] = deque(maxlen=self.passes)  # where the stream was before each block, oldest first

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, place: int) -> Any:
        if not self.samples:
            self.advance()
        return self.samples[place]

    def advance(self) -> np.ndarray:
        """Read the window full, or the next B/`passes` samples for the oldest; return the places that are new ones."""
        if not self.samples:
            self.samples = self._read_all(0)
            return np.arange(self.size)
        places = self._places(self._blocks)
        self.samples[places.start : places.stop] = self._read_block()
        self._blocks += 1
        return np.array(places)

    def _places(self, block: int) -> range:
        length = self.size // self.passes
        first = block % self.passes * length
        return range(first, first + length)

    def _read_all(self, first: int) -> list[Any]:
        """Return the samples by place, read as blocks `first`, `first` + 1 and so on."""
        samples: list[Any] = [None] * self.size
        self._marks.clear()
        for block in range(first, first + self.passes):
            places = self._places(block)
            samples[places.start : places.stop] = self._read_block()
        self._blocks = first + self.passes
        return samples

    def _read_block(self) -> list[Any]:
        """Read the next samples, and keep the stream's state from before."""
        if self._iterator is None:
            self._iterator = iter(self.stream)
        save = getattr(self.stream, "state_dict", None)
        self._marks.append(None if save is None else copy.deepcopy(save()))
        return [self._next_sample() for _ in range(self.size // self.passes)]

    def _next_sample(self) -> Any:
        assert self._iterator is not None
        sample = next(self._iterator, _END)
        if sample is _END:
            self._iterator = iter(self.stream)
            sample = next(self._iterator, _END)
        if sample is _END:
            raise ValueError(f"`stream` must give samples, got none from {type(self.stream).__name__}.")
        return sample

    def state_dict(self) -> dict[str, Any]:
        """Return how many blocks were read, and the stream's state from before the oldest that is in the window."""
        mark = self._marks[0] if self._marks else None
        return {"size": self.size, "passes": self.passes, "blocks": self._blocks, "mark": mark}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Bring the stream back to where it was, and read the window again.

        Raises:
            ValueError: If the state does not fit. Nothing is changed then.
        """
        self.check_state(state)
        if state["mark"] is not None:
            self.stream.load_state_dict(state["mark"])  # pyright: ignore[reportAttributeAccessIssue]
            self._iterator = None
        self.samples, self._blocks = [], 0
        self._marks.clear()
        if state["blocks"]:
            self.samples = self._read_all(state["blocks"] - self.passes)

    def check_state(self, state: Any) -> None:
        """Raise unless `state` can be loaded."""
        if not isinstance(state, dict) or not set(_KEYS) <= set(state):
            raise ValueError(f"`state['window']` must be a dict with the keys {', '.join(_KEYS)}.")
        for name in ("size", "passes"):
            if state[name] != getattr(self, name):
                rule = f"be saved with {name}={getattr(self, name)}"
                raise ValueError(f"`state['window']` must {rule}, got {name}={state[name]!r}.")
        blocks = _checks.integer("state['window']['blocks']", state["blocks"], low=0)
        if 0 < blocks < self.passes:
            raise ValueError(f"`state['window']['blocks']` must be 0 or at least {self.passes}, got {blocks}.")
        if state["mark"] is not None and not hasattr(self.stream, "load_state_dict"):
            raise ValueError(f"`stream` must have `load_state_dict`, got stream of type {type(self.stream).__name__}.")


def check_window(num_workers: int, stateful: bool) -> None:
    """Raise for options of a loader that a window does not go with."""
    if num_workers:
        raise ValueError(
            f"`num_workers` must be 0 with a Window, got num_workers={num_workers}. Let workers read the stream: "
            "Window(DataLoader(stream, batch_size=None, num_workers=4), size)."
        )
    if stateful:
        raise ValueError("`stateful` must be False with a Window, got stateful=True. The window saves its stream.")


def refuse_hidden_window(dataset: Any) -> None:
    """Raise for a window behind another dataset, as a `Subset`: no epoch would let it read on."""
    inner = getattr(dataset, "dataset", None)
    for _ in range(8):  # one may stand in another
        if isinstance(inner, Window):
            raise TypeError(
                f"`dataset` must be the Window itself, got a {type(dataset).__name__} with a Window in it, which would "
                "never read on. Choose, split and transform samples in the stream."
            )
        inner = getattr(inner, "dataset", None)


def move_on(window: Window, selection: Selection) -> None:
    """Let the window advance, and the selection forget what it learned about the samples that left."""
    new = window.advance()
    weights = getattr(selection, "weights", None)
    if selection.learns and isinstance(weights, np.ndarray) and len(weights) == window.size:
        stay = np.delete(weights, new)
        weights = weights.copy()
        weights[new] = stay.mean() if len(stay) else 1.0
        selection.weights = weights  # pyright: ignore[reportAttributeAccessIssue]
