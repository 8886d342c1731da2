"""How a loader learns: weighed batches that went backward give scores, and scores teach the selection."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from adamcb._jit import clock
from adamcb.data import whole_of
from adamcb.selection import Draw, Selection
from adamcb.training import _state
from adamcb.training._feedback_queue import FeedbackQueue
from adamcb.training._meter import Meter, Observer
from adamcb.training._ranks import Heard, Ranks, gather_scores
from adamcb.training._samples import SampleRecord
from adamcb.training._scoring import Scoring
from adamcb.training._weighed import UsageCheck, Weighed


class Learning:
    """Holds weighed batches until they went backward, makes scores of them, and teaches the selection.

    Args:
        model: What the losses come from.
        selection: Chooses the batches.
        scoring: What a sample is scored by. None: nothing is measured.
        ranks: The processes that train together.
        shared: Whether all ranks share each draw, and with it their scores.
        delay: After how many further batches scores are learned. None: 0 on the CPU, 1 on an accelerator.
        record: What is kept of every sample. None: nothing.
        meter: Counts the seconds.
        observers: Are told of the scores.
        usage: Is told of backward passes.
    """

    def __init__(
        self,
        model: nn.Module,
        selection: Selection,
        scoring: Scoring | None,
        ranks: Ranks,
        *,
        shared: bool,
        delay: int | None,
        record: SampleRecord | None,
        meter: Meter,
        observers: list[Observer],
        usage: UsageCheck,
    ) -> None:
        self._model, self._selection, self._scoring, self._ranks = model, selection, scoring, ranks
        self._shared, self._delay, self._record = shared, delay, record
        self._meter, self.observers, self._usage = meter, observers, usage
        divides = scoring is not None and scoring.divides
        self._queue = FeedbackQueue(divides=divides, factor=ranks.size)
        self._weighed: list[Weighed] = []
        self._measures = scoring is not None  # whether the batch that was taken last is measured

    @property
    def is_waiting(self) -> bool:
        """Whether a batch was weighed and not learned from yet."""
        return bool(self._weighed)

    def note_taken(self) -> None:
        """Measure the batch that was taken if the selection listens, and only then."""
        if self._scoring is not None and self._selection.listens != self._measures:
            self._measures = self._selection.listens
            self._scoring.pause(not self._measures)

    def add(self, draw: Draw, losses: Tensor, loss: Tensor, *, checked: bool) -> None:
        """Wait for the backward pass of a batch. An error leaves everything as it was.

        Args:
            draw: The draw of these losses; with several ranks, this rank's part.
            losses: float[k].
            loss: float[], their weighed sum.
            checked: Whether the losses are known to be finite.
        """
        begun = self._scoring.begin(losses) if self._scoring is not None and self._measures else None
        # Under a GradScaler gradients may overflow. Only then they are looked at; the first batch tells.
        parameters = tuple(self._model.parameters()) if begun is not None and self._queue.is_scaled else ()
        unneeded = checked and self._record is None
        batch = Weighed(draw, loss.detach(), None if unneeded else losses.detach(), begun, parameters)
        losses.register_hook(batch.note_gradient)
        self._weighed.append(batch)

    def learn(self) -> Heard | None:
        """Learn from what went backward; return what all ranks told of the last batch, where they share it."""
        ready = [batch for batch in self._weighed if batch.is_done]
        self._weighed = [batch for batch in self._weighed if not batch.is_done][-UsageCheck.patience :]
        heard = None
        for batch in ready:
            heard = self._report(batch)
            while (due := self._queue.due(self._delay_on(batch.loss.device))) is not None:
                self._teach(*due)
                if self._queue.is_unweighed:
                    self._usage.note_unweighed()
        return heard

    def _report(self, batch: Weighed) -> Heard | None:
        """Send the scores of a batch on their way, and to all ranks where they share it."""
        measured = None
        if self._scoring is not None and batch.begun is not None:
            measured = self._scoring.finish(batch.begun, len(batch.draw))
            if measured is None:
                return None
        self._usage.note_backward()
        largest = batch.largest_gradient
        if not self._shared or batch.losses is None:
            told = {"measured": measured, "arrived": batch.arrived, "losses": batch.losses}
            if measured is not None or batch.losses is not None:
                self._queue.send(batch.draw, **told, largest_gradient=largest)
            return None
        start = clock()
        heard = gather_scores(self._ranks, batch.draw, measured, batch.arrived, batch.losses, batch.loss)
        self._meter.seconds["selection"] += clock() - start
        self._queue.send(whole_of(batch.draw), heard, largest_gradient=largest)
        return heard

    def _delay_on(self, device: torch.device) -> int:
        return int(device.type != "cpu") if self._delay is None else self._delay

    def _teach(self, draw: Draw, scores: np.ndarray | None, losses: np.ndarray | None) -> None:
        start = clock()
        if scores is not None:
            self._selection.update(draw, scores)
        if self._record is not None and losses is not None:
            self._record.note(draw, losses, scores)
        self._meter.seconds["selection"] += clock() - start
        if scores is not None:
            for observer in self.observers:
                observer.note_scores(draw, scores)

    def give_up(self) -> None:
        """Forget batches that were weighed and not learned from."""
        self._weighed.clear()
        if self._scoring is not None:
            self._scoring.clear()

    def close(self) -> None:
        """Let go of the model."""
        if self._scoring is not None:
            self._scoring.close()

    def parts(self) -> dict[str, _state.Stateful]:
        """Return what has a state of its own."""
        taken_over = partial(self._queue.load_state_dict, selection=self._selection)
        parts: dict[str, _state.Stateful] = {"feedback": _state.Part(self._queue.state_dict, taken_over)}
        norms = getattr(self._scoring, "part", None)
        return parts if norms is None else {**parts, "norms": norms}
