"""The same numbers for TensorBoard, as they come in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from adamcb.lab.errors import LabError
from adamcb.lab.runs.run import Progress
from adamcb.lab.runs.workers import Event


class TensorBoardLog:
    """Writes a row of results.csv as scalars against steps: one folder of event files a run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._writers: dict[tuple[str, int], Any] = {}

    @staticmethod
    def check() -> None:
        """Raise `LabError` if TensorBoard is not installed."""
        try:
            import torch.utils.tensorboard  # noqa: F401
        except ImportError as error:
            raise LabError(
                "`--tensorboard` needs the tensorboard package, which is not installed: pip install tensorboard"
            ) from error

    def __call__(self, event: Event) -> None:
        """Take note of an event that brings a row."""
        if not isinstance(event, Progress) or event.row is None:
            return
        from torch.utils.tensorboard import SummaryWriter

        run = (event.method, event.seed)
        if run not in self._writers:
            self._writers[run] = SummaryWriter(str(self.folder / f"{event.method}-seed{event.seed}"))
        for name, value in event.row.items():
            if name not in ("epoch", "step"):
                self._writers[run].add_scalar(name, value, event.step)
        self._writers[run].flush()
