"""Telling how the runs get on: bars in a terminal, plain lines anywhere else. Always on standard error."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from types import MappingProxyType

from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, Task, TaskID, TextColumn
from rich.progress import Progress as Bars
from rich.text import Text

from adamcb.lab.runs.run import Progress
from adamcb.lab.runs.workers import Event, Finished, Note

QUIET_SECONDS = 10.0


def make_display(
    console: Console, *, num_runs: int, epochs: int, labels: Mapping[str, str] | None = None
) -> BarDisplay | LineDisplay:
    """Return the display that fits where standard error goes. `labels`: what tables call the methods."""
    kind = BarDisplay if console.is_terminal else LineDisplay
    return kind(console, num_runs, epochs, labels or {})


def counted(number: int, word: str) -> str:
    """Return a number with its noun.

    Example:
        >>> counted(1, "epoch"), counted(3, "epoch")
        ('1 epoch', '3 epochs')
    """
    return f"{number} {word}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    """Return how long something takes, as people say it.

    Example:
        >>> duration(9.6), duration(75), duration(7300)
        ('10 s', '1 min 15 s', '2 h 1 min')
    """
    total = round(seconds)
    if total < 60:
        return f"{total} s"
    if total < 3600:
        return f"{total // 60} min {total % 60} s"
    return f"{total // 3600} h {total % 3600 // 60} min"


class _TimeLeft(ProgressColumn):
    """How long the rest takes, and only that: a clock that counts up would be read as what is left."""

    max_refresh = 0.5

    def render(self, task: Task) -> Text:
        """Return the text of one bar."""
        left = None if task.finished else task.time_remaining
        return Text("" if left is None else f"{duration(left)} left", style="progress.remaining")


class BarDisplay:
    """One bar for all runs, and one for each run that is going on."""

    def __init__(
        self, console: Console, num_runs: int, epochs: int, labels: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self.num_runs, self.epochs, self.labels = num_runs, epochs, labels
        self._bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[state]}"),
            _TimeLeft(),
            console=console,
            transient=True,
        )
        self._all = self._bars.add_task(counted(num_runs, "run"), total=None, state="")
        self._tasks: dict[tuple[str, int], TaskID] = {}
        self._notes: set[str] = set()
        self._steps: dict[tuple[str, int], int] = {}
        self._done = 0

    def __call__(self, event: Event) -> None:
        """Show one event."""
        if isinstance(event, Progress):
            self._advance(event)
        elif isinstance(event, Finished):
            self._done += 1
            self._bars.remove_task(self._tasks.pop((event.method, event.seed)))
            self._bars.update(self._all, state=f"{self._done}/{self.num_runs} done")
        elif isinstance(event, Note) and event.text not in self._notes:
            self._notes.add(event.text)
            self._bars.console.print(event.text, markup=False, highlight=False)

    def _advance(self, event: Progress) -> None:
        run = (event.method, event.seed)
        state = f"epoch {event.epoch}/{self.epochs}" + ("" if math.isnan(event.loss) else f"  loss {event.loss:.4f}")
        if run not in self._tasks:
            # A resumed run starts where it was, so that the time left is reckoned from what is done now.
            name = f"{self.labels.get(event.method, event.method)}  seed {event.seed}"
            self._tasks[run] = self._bars.add_task(name, total=event.total_steps, completed=event.step, state=state)
            self._bars.update(self._all, total=self.num_runs * event.total_steps)
        self._bars.update(self._tasks[run], completed=event.step, state=state)
        self._steps[run] = event.step
        self._bars.update(self._all, completed=sum(self._steps.values()), state=f"{self._done}/{self.num_runs} done")

    def __enter__(self) -> BarDisplay:
        self._bars.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bars.stop()


class LineDisplay:
    """A line when a run ends, and one every ten seconds while nothing ends."""

    def __init__(
        self, console: Console, num_runs: int, epochs: int, labels: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self.console, self.num_runs, self.epochs, self.labels = console, num_runs, epochs, labels
        self._last = time.monotonic()
        self._start: float | None = None  # of the first run: importing and compiling say nothing of the pace
        self._notes: set[str] = set()
        self._latest: dict[tuple[str, int], Progress] = {}
        self._first: dict[tuple[str, int], int] = {}
        self._done = 0

    def __call__(self, event: Event) -> None:
        """Show one event."""
        if isinstance(event, Progress):
            run = (event.method, event.seed)
            self._start = time.monotonic() if self._start is None else self._start
            self._first.setdefault(run, event.step)
            self._latest[run] = event
            if time.monotonic() - self._last >= QUIET_SECONDS:
                self._say(self._latest[run], f"epoch {event.epoch}/{self.epochs}")
        elif isinstance(event, Finished):
            self._done += 1
            self._say(self._latest[event.method, event.seed], "done")
        elif event.text not in self._notes:
            self._notes.add(event.text)
            self._print(event.text)

    def _say(self, event: Progress, what: str) -> None:
        parts = [
            f"[{self._done}/{self.num_runs}] {self.labels.get(event.method, event.method)} seed {event.seed} {what}",
            f"step {event.step}/{event.total_steps}",
            "" if math.isnan(event.loss) else f"loss {event.loss:.4f}",
            self._time_left(event.total_steps),
        ]
        self._print(", ".join(part for part in parts if part))

    def _time_left(self, total_steps: int) -> str:
        """Return how long the rest takes at the pace so far; nothing before there is a pace, or when all is done."""
        made = sum(event.step - self._first[run] for run, event in self._latest.items())
        missing = sum(total_steps - event.step for event in self._latest.values())
        missing += (self.num_runs - len(self._latest)) * total_steps
        if not made or not missing or self._start is None:
            return ""
        return f"{duration(missing * (time.monotonic() - self._start) / made)} left"

    def _print(self, text: str) -> None:
        self._last = time.monotonic()
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def __enter__(self) -> LineDisplay:
        return self

    def __exit__(self, *exception: object) -> None:
        pass
