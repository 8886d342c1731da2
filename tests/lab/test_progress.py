"""What a person sees while the runs get on."""

from __future__ import annotations

import io
import math

import pytest
from rich.console import Console

from adamcb.lab.output import progress
from adamcb.lab.output.progress import BarDisplay, LineDisplay, counted, duration, make_display
from adamcb.lab.runs.run import Progress
from adamcb.lab.runs.workers import Finished


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_lines_say_how_long_it_takes_once_there_is_a_pace(clock: list[float]) -> None:
    """Here the first run begins after 20 s, and then makes 50 steps in 20 s and 50 in 40 s."""
    out = io.StringIO()
    with LineDisplay(Console(file=out, width=200), num_runs=2, epochs=1) as display:
        clock[0] = 20.0
        display(Progress("adam", 0, 0, 100, 0, math.nan))
        clock[0] = 40.0
        display(Progress("adam", 0, 50, 100, 1, 0.5))
        clock[0] = 80.0
        display(Progress("adam", 0, 100, 100, 1, 0.25))
        display(Finished("adam", 0))
        display(Progress("adam", 1, 100, 100, 1, 0.25))
        display(Finished("adam", 1))
    assert out.getvalue().splitlines() == [
        "[0/2] adam seed 0 epoch 0/1, step 0/100",
        "[0/2] adam seed 0 epoch 1/1, step 50/100, loss 0.5000, 1 min 0 s left",
        "[0/2] adam seed 0 epoch 1/1, step 100/100, loss 0.2500, 1 min 0 s left",
        "[1/2] adam seed 0 done, step 100/100, loss 0.2500, 1 min 0 s left",
        "[2/2] adam seed 1 done, step 100/100, loss 0.2500",
    ]


def test_methods_are_called_as_in_tables() -> None:
    out = io.StringIO()
    console = Console(file=out, width=200)
    labels = {"small-batches": "Adam, smaller batches"}
    with make_display(console, num_runs=2, epochs=1, labels=labels) as display:
        for method in ("small-batches", "another"):
            display(Progress(method, 0, 100, 100, 1, 0.25))
            display(Finished(method, 0))
    assert [line.partition(" done")[0] for line in out.getvalue().splitlines()] == [
        "[1/2] Adam, smaller batches seed 0",
        "[2/2] another seed 0",
    ]


def test_bars_show_what_is_left_and_nothing_that_counts_up() -> None:
    now = [0.0]
    console = Console(file=io.StringIO(), force_terminal=True, width=120, record=True, get_time=lambda: now[0])
    display = BarDisplay(console, num_runs=1, epochs=1)
    bars = display._bars
    bars.get_time = lambda: now[0]
    display(Progress("adam", 0, 0, 100, 0, math.nan))
    console.print(bars.get_renderable())
    before = console.export_text()
    assert "1 run " in before
    assert "left" not in before
    assert "nan" not in before
    for step in (10, 20, 30):
        now[0] += 10.0
        display(Progress("adam", 0, step, 100, 1, 0.5))
    console.print(bars.get_renderable())
    shown = [line for line in console.export_text().splitlines() if "seed 0" in line][-1]
    assert "loss 0.5000" in shown
    assert shown.rstrip().endswith("1 min 10 s left")
    assert ":" not in shown


def test_numbers_and_times_are_worded_as_people_say_them() -> None:
    assert [counted(number, "seed") for number in (0, 1, 2)] == ["0 seeds", "1 seed", "2 seeds"]
    assert [duration(seconds) for seconds in (0.2, 59.4, 59.6, 3599, 3600, 86400)] == [
        "0 s",
        "59 s",
        "1 min 0 s",
        "59 min 59 s",
        "1 h 0 min",
        "24 h 0 min",
    ]
