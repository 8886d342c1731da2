"""The clock of a run: the wall's, and the processor time of this process."""

from __future__ import annotations

import time


class Clock:
    """Adds up the time between `start` and `stop`.

    Attributes:
        seconds: By the wall.
        cpu_seconds: Of this process's threads together. It does not grow while others have the processor, so on a
            shared machine it is the fairer one; it knows nothing of an accelerator's time.
    """

    def __init__(self) -> None:
        self.seconds = self.cpu_seconds = 0.0
        self._start = self._cpu_start = 0.0

    def start(self) -> None:
        """Go on from here."""
        self._start, self._cpu_start = time.perf_counter(), time.process_time()

    def stop(self) -> None:
        """Add what passed since `start`."""
        self.seconds += time.perf_counter() - self._start
        self.cpu_seconds += time.process_time() - self._cpu_start

    def read(self) -> dict[str, float]:
        """Return what was added up, as it stands in a row of results."""
        return {"seconds": self.seconds, "cpu_seconds": self.cpu_seconds}

    def set(self, readings: dict[str, float]) -> None:
        """Go on from `readings`."""
        self.seconds, self.cpu_seconds = readings["seconds"], readings["cpu_seconds"]
