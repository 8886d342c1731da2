"""The clock of a run. It counts processor time, which the evidence uses, and real time."""

from __future__ import annotations

import time


class Clock:
    """Adds up the time between `start` and `stop`.

    Args:
        accelerator: Whether something else than the processor computes. Processor time would leave out its work.

    Attributes:
        seconds: The processor time of all threads of this process. It does not grow while other programs have the
            processor, so it is the fairer measure on a shared machine. With an accelerator it is real time.
        wall_seconds: Real time, as a clock on the wall shows it.
    """

    def __init__(self, *, accelerator: bool = False) -> None:
        self.seconds = self.wall_seconds = 0.0
        self._processor = time.perf_counter if accelerator else time.process_time
        self._start = self._wall_start = 0.0

    def start(self) -> None:
        """Go on from here."""
        self._wall_start, self._start = time.perf_counter(), self._processor()

    def stop(self) -> None:
        """Add what passed since `start`."""
        self.seconds += self._processor() - self._start
        self.wall_seconds += time.perf_counter() - self._wall_start

    def read(self) -> dict[str, float]:
        """Return what was added up, as it stands in a row of results."""
        return {"seconds": self.seconds, "wall_seconds": self.wall_seconds}

    def set(self, readings: dict[str, float]) -> None:
        """Go on from `readings`."""
        self.seconds, self.wall_seconds = readings["seconds"], readings["wall_seconds"]
