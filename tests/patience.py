"""How long to wait for other processes. Tests wait for events; only a hang makes them wait this long."""

import os

# However busy the machine is, a hang ends before pytest's own limit, which tells nothing of other processes.
_LONGEST_SECONDS = 1200.0


def patience(seconds: float) -> float:
    """Return a limit for what takes less than `seconds` on an idle machine: the longer, the more others compute."""
    return min(_LONGEST_SECONDS, seconds * max(1.0, 2.0 * os.getloadavg()[0] / (os.cpu_count() or 1)))
