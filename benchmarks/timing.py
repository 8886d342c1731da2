"""Timing that noise cannot favor: the candidates take turns, and medians are compared."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping


def interleaved(
    candidates: Mapping[str, Callable[[], object]],
    *,
    seconds: float = 2.0,
    most: int = 2000,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Return the median seconds of a call of each candidate, called in turns for about `seconds` each.

    A turn is at least a millisecond of calls, so that a fast candidate is not timed on the caches of a slow one. A slow
    candidate sits out once its time is used up, after three turns at least; the others go on. With
    `clock=time.process_time`, other work on the machine counts for little.
    """
    times: dict[str, list[float]] = {name: [] for name in candidates}
    spent = dict.fromkeys(candidates, 0.0)
    for call in candidates.values():
        call()  # compilers, first touches of memory
    waiting = set(candidates)
    while waiting:
        for name in [name for name in candidates if name in waiting]:
            calls, start, elapsed = 0, clock(), 0.0
            while elapsed < 1e-3:
                candidates[name]()
                calls, elapsed = calls + 1, clock() - start
            times[name].append(elapsed / calls)
            spent[name] += elapsed
            if len(times[name]) >= 3 and (spent[name] > seconds or len(times[name]) >= most):
                waiting.discard(name)
    return {name: statistics.median(values) for name, values in times.items()}


def duration(seconds: float) -> str:
    """Return a duration as a person writes it: 25 µs, 1.2 ms, 3.4 s."""
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if seconds * scale >= 1.0 or unit == "µs":
            return f"{seconds * scale:.3g} {unit}"
    raise AssertionError


def markdown(header: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
