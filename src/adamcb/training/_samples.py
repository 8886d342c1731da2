"""What training saw of every sample: how often it was chosen, its scores and its losses."""

from __future__ import annotations

import csv
import os
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch

from adamcb import _checks
from adamcb._files import whole_file
from adamcb._jit import jit
from adamcb.selection import Draw, Selection, Strata

# 16 bytes, side by side: a visit touches one line of the cache.
_ENTRY = np.dtype([("count", "<i4"), ("last_score", "<f4"), ("mean_score", "<f4"), ("mean_loss", "<f4")])

_NONE = np.empty(0)


@dataclass(frozen=True, eq=False, repr=False)
class SampleTable:
    """One row a sample, the most suspicious first. The columns are arrays of one length.

    `pandas.DataFrame(table.as_dict())` is the same as a data frame.

    Attributes:
        index: int64, the place of the sample in the dataset.
        count: int64, in how many batches it was trained on; a sample that is twice in a batch counts twice.
        last_score: float64, the score that was measured last; NaN if none was.
        mean_score: float64, the mean over all its visits. Where a visit was not measured, the mean until then stands
            in for its score. NaN if none was measured.
        mean_loss: float64, the mean over all its visits, whenever in training they were. NaN if there was none.
        suspicion: float64 in [0, 1], the share of the visited samples whose mean loss is not above this one's. A label
            that is wrong is learned late or never, so its mean loss stays high. NaN if there was no visit.

    Example:
        >>> import torch
        >>> from adamcb import AdaptiveLoader
        >>> data = torch.utils.data.TensorDataset(torch.randn(20, 3))
        >>> model = torch.nn.Linear(3, 1)
        >>> loader = AdaptiveLoader(model, data, batch_size=4)
        >>> for (x,) in loader:
        ...     loader.weigh(model(x).square().squeeze(1)).backward()
        >>> table = loader.samples()
        >>> len(table), int(table.count.sum()), float(table.top(1).suspicion[0])
        (20, 20, 1.0)
    """

    index: np.ndarray
    count: np.ndarray
    last_score: np.ndarray
    mean_score: np.ndarray
    mean_loss: np.ndarray
    suspicion: np.ndarray

    def __len__(self) -> int:
        return len(self.index)

    def __repr__(self) -> str:
        visited = int(np.count_nonzero(self.count))
        return f"SampleTable({len(self)} samples, {visited} of them visited; columns {', '.join(self.as_dict())})"

    def top(self, k: int) -> SampleTable:
        """Return the k most suspicious samples; all if there are fewer."""
        k = _checks.integer("k", k, low=0)
        return SampleTable(**{name: column[:k] for name, column in self.as_dict().items()})

    def as_dict(self) -> dict[str, np.ndarray]:
        """Return the columns by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Write a header and one line a sample. NaN is an empty cell. The file is written whole or not at all."""
        columns = self.as_dict()
        with whole_file(_checks.path("path", path)) as draft, draft.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(columns)
            writer.writerows(zip(*map(_cells, columns.values()), strict=True))


class SampleRecord:
    """Hears of every batch that was trained on. 16 bytes a sample, and one compiled call a batch.

    Args:
        num_samples: How many samples are watched.
        strata: Those whose samples they are. None: they are all of the dataset.
    """

    def __init__(self, num_samples: int, *, strata: Strata | None = None) -> None:
        self._strata = strata
        self._entries = np.zeros(num_samples, dtype=_ENTRY)
        self._entries["last_score"] = self._entries["mean_score"] = np.nan

    @classmethod
    def of(cls, selection: Selection) -> SampleRecord:
        """Return a record for a selection; for strata it has their samples only."""
        if isinstance(selection, Strata):
            return cls(selection.own_samples, strata=selection)
        return cls(selection.num_samples)

    def note(self, draw: Draw, losses: np.ndarray, scores: np.ndarray | None) -> None:
        """Take note of a batch: its losses, float[k], and its scores, float64[k], if they were measured."""
        places = draw.indices if self._strata is None else self._strata.places_of(draw.indices)
        _note(self._entries, places, losses, _NONE if scores is None else scores)

    def table(self) -> SampleTable:
        """Return what is known, the most suspicious samples first. O(n log n)."""
        entries = self._entries
        count = entries["count"].astype(np.int64)
        mean_loss = np.where(count > 0, entries["mean_loss"].astype(np.float64), np.nan)
        order = np.lexsort((-count, -mean_loss))  # NaN comes last
        ascending = np.sort(mean_loss[count > 0])
        below = np.searchsorted(ascending, mean_loss[order], side="right") / max(1, len(ascending))
        return SampleTable(
            index=order if self._strata is None else self._strata.samples_at(order),
            count=count[order],
            last_score=entries["last_score"].astype(np.float64)[order],
            mean_score=entries["mean_score"].astype(np.float64)[order],
            mean_loss=mean_loss[order],
            suspicion=np.where(count[order] > 0, below, np.nan),
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the entries as bytes, uint8[16·n]."""
        return {"entries": torch.from_numpy(self._entries.view(np.uint8).copy())}

    def load_state_dict(self, state: Any) -> None:
        """Continue from `state`; an error leaves everything as it was."""
        entries = state["entries"]
        wanted = self._entries.nbytes
        if not isinstance(entries, torch.Tensor) or entries.dtype != torch.uint8 or entries.shape != (wanted,):
            got = tuple(entries.shape) if isinstance(entries, torch.Tensor) else type(entries).__name__
            raise ValueError(f"`state['samples']` must be uint8 of shape ({wanted},), got {got}.")
        values = entries.numpy().copy().view(_ENTRY)
        if values["count"].min(initial=0) < 0 or not np.isfinite(values["mean_loss"]).all():
            raise ValueError("`state['samples']` must have counts at or above 0 and finite losses.")
        self._entries = values


def _cells(column: np.ndarray) -> list[Any]:
    values = column.tolist()
    return values if column.dtype.kind == "i" else ["" if value != value else f"{value:.7g}" for value in values]


@jit
def _note(entries, places, losses, scores):
    """Count a visit of each sample, and move its means towards this visit's loss, and score if there are scores."""
    measured = len(scores) == len(places)
    for j in range(len(places)):
        entry = entries[places[j]]
        entry.count += 1
        entry.mean_loss += (losses[j] - entry.mean_loss) / entry.count
        if measured:
            if np.isnan(entry.mean_score):
                entry.mean_score = scores[j]
            else:
                entry.mean_score += (scores[j] - entry.mean_score) / entry.count
            entry.last_score = scores[j]
