"""The clock of a run: processor time, which the evidence uses, and the wall's."""

from __future__ import annotations

import time


class Clock:
    """Adds up the time between `start` and `stop`.

    Args:
        accelerator: Whether something else than the processor computes; only the wall's clock knows of its time.

    Attributes:
        seconds: Of this process's threads together. They do not grow while others have the processor, so on a shared
            machine they are the fairer ones. With an accelerator: by the wall.
        wall_seconds: By the wall.
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
