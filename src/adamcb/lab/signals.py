"""Ctrl-C and SIGTERM, which may come at any moment and are no errors.

The lab writes its files whole or not at all, so a command may end on the spot: `end_on_the_spot`. Where processes are
to be ended first, signals are raised (`raising`). Where runs are to be saved, a `Bell` rings, which those who wait for
the runs hear: an exception could come in the middle of anything, and be lost there.

The command line calls `end_on_the_spot` before all else, so nothing that takes time is imported here.
"""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)
STOPPED = "adamcb: stopped. The same command goes on where it stopped."


class Terminated(KeyboardInterrupt):
    """SIGTERM: the same end as Ctrl-C, with another exit code."""


def exit_code(interrupt: KeyboardInterrupt) -> int:
    """Return what a shell expects of a command that a signal ended."""
    return 128 + (signal.SIGTERM if isinstance(interrupt, Terminated) else signal.SIGINT)


def end_on_the_spot() -> None:
    """Let signals end this process at once, with a line on the standard error and without a traceback."""
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # what a shell starts in the background ignores Ctrl-C
            signal.signal(number, _end)


def _end(number: int, frame: FrameType | None) -> NoReturn:
    with contextlib.suppress(OSError):
        os.write(2, f"{STOPPED}\n".encode())
    os._exit(128 + number)


@contextlib.contextmanager
def raising() -> Iterator[None]:
    """Let signals raise KeyboardInterrupt, and SIGTERM `Terminated`, until the block ends."""
    with _handled(_raise):
        yield


def _raise(number: int, frame: FrameType | None = None) -> NoReturn:
    raise Terminated if number == signal.SIGTERM else KeyboardInterrupt


@contextlib.contextmanager
def _handled(handler: Callable[[int, FrameType | None], Any]) -> Iterator[None]:
    """Handle signals by `handler` until the block ends: those that are handled somehow, and only in the main thread."""
    import threading

    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.getsignal(number) for number in SIGNALS if callable(signal.getsignal(number))}
    try:
        for number in before:
            signal.signal(number, handler)
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)


class Bell:
    """Rings on Ctrl-C or SIGTERM until the block ends, instead of raising. A second signal raises.

    Attributes:
        heard: What `multiprocessing.connection.wait` returns once it rang; then call `answer`.
    """

    def __init__(self) -> None:
        from multiprocessing import Pipe

        self.heard, self._rope = Pipe(duplex=False)
        self._number: int | None = None
        self._block = contextlib.ExitStack()

    def __enter__(self) -> Bell:
        self._block.enter_context(_handled(self._ring))
        return self

    def __exit__(self, *error: object) -> None:
        self._block.close()
        self.heard.close()
        self._rope.close()

    def answer(self) -> None:
        """Raise what the signal says, if there was one."""
        if self._number is not None:
            _raise(self._number)

    def _ring(self, number: int, frame: FrameType | None) -> None:
        if self._number is not None:
            _raise(number)
        self._number = number
        self._rope.send_bytes(b"!")


@contextlib.contextmanager
def unreachable() -> Iterator[None]:
    """Keep signals from the processes that are started in the block. This one does not miss any."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # comes with the first process, and lets signals through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
