"""How long to wait for other processes. Tests wait for events; only a hang makes them wait this long."""

import os


def patience(seconds: float) -> float:
    """Return a limit for what takes less than `seconds` on an idle machine: the longer, the more others compute."""
    return seconds * max(1.0, 2.0 * os.getloadavg()[0] / (os.cpu_count() or 1))
