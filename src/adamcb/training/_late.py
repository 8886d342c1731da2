"""Feedback on its way back from the device: copied without waiting, applied a set number of steps later."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from adamcb.selection import Draw


@dataclass(frozen=True, slots=True)
class Report:
    """The norms of one batch, perhaps still being copied; `losses` only where they were not checked before."""

    draw: Draw
    norms: Tensor
    losses: Tensor | None
    copied: Any  # an event of the device, or None

    def read(self) -> np.ndarray:
        """Wait for the copy and return float64[K]; raise if a norm or a loss is not finite."""
        if self.copied is not None:
            self.copied.synchronize()
        if self.losses is not None:
            refuse_nonfinite("loss", self.losses, self.draw)
        refuse_nonfinite("gradient norm", self.norms, self.draw)
        return self.norms.double().numpy()


class LateFeedback:
    """A queue between backward and selection that is `delay` steps long."""

    def __init__(self, delay: int, apply: Callable[[Draw, np.ndarray], None]) -> None:
        self.delay, self._apply = delay, apply
        self.waiting: deque[Report] = deque()

    def add(self, draw: Draw, norms: Tensor, losses: Tensor | None) -> None:
        """Send norms on their way."""
        copied = None
        if norms.device.type != "cpu":
            norms = norms.to("cpu", non_blocking=True)
            losses = None if losses is None else losses.to("cpu", non_blocking=True)
            copied = torch.Event(norms.device)
            copied.record()
        self.waiting.append(Report(draw, norms.detach(), None if losses is None else losses.detach(), copied))

    def deliver(self) -> None:
        """Apply all reports but the last `delay`. One that cannot be used is dropped, and its error raised."""
        while len(self.waiting) > self.delay:
            report = self.waiting.popleft()
            self._apply(report.draw, report.read())

    def state_dict(self) -> list[dict[str, Any]]:
        """Return what is still on its way."""
        return [{**report.draw.state_dict(), "norms": torch.from_numpy(report.read())} for report in self.waiting]

    def load_state_dict(self, state: list[dict[str, Any]]) -> None:
        """Continue from `state`."""
        self.waiting = deque(Report(Draw.from_state(entry), entry["norms"], None, None) for entry in state)


def refuse_nonfinite(what: str, values: Tensor, draw: Draw) -> None:
    """Raise unless all values are finite, naming the samples whose are not."""
    bad = torch.nonzero(~torch.isfinite(values.detach())).flatten().tolist()
    if not bad:
        return
    first = ", ".join(f"{draw.indices[j]} ({what} {float(values[j])})" for j in bad[:5])
    more = f" and {len(bad) - 5} more" if len(bad) > 5 else ""
    raise FloatingPointError(f"The {what} must be finite for every sample, got samples {first}{more}.")
