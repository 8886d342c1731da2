"""`AdaptiveLoader`: a loader whose batches are chosen for what they teach, for a training loop of your own."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from adamcb import _checks
from adamcb._jit import clock
from adamcb._seeds import derived_seed
from adamcb.data import BanditLoader, SelectedBatch, whole_of
from adamcb.selection import Draw, Selection
from adamcb.training import _arguments, _resharding, _state
from adamcb.training._feedback_queue import refuse_nonfinite
from adamcb.training._learning import Learning
from adamcb.training._meter import Meter, Observer
from adamcb.training._portable import pack, unpack
from adamcb.training._ranks import Ranks, refuse_other_parallelism
from adamcb.training._samples import SampleRecord, SampleTable
from adamcb.training._scoring import make_scoring
from adamcb.training._weighed import UsageCheck


class AdaptiveLoader:
    """Loads batches that are chosen for what they teach, and learns from your training loop which those are.

    Two lines of a loop change:

        loader = AdaptiveLoader(model, train_set, batch_size=128)      # was: DataLoader(train_set, 128, shuffle=True)
        for x, y in loader:
            optimizer.zero_grad()
            loss = loader.weigh(F.cross_entropy(model(x), y, reduction="none"))   # was: F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()

    `weigh` weights the losses so that their sum is an unbiased estimate of the mean loss over the dataset. The backward
    pass gives the gradient as usual, and a score for every sample of the batch. The scores teach the selection when the
    next batch is taken, the epoch ends or a state is saved; `learn` does it at once.

    Optimizer, scheduler, clipping, GradScaler, gradient accumulation and EMA stay as they are. Scores do not depend on
    what the loop multiplies the loss by: a hook on the losses sees it. A backward pass that overflowed under a
    GradScaler is not learned from.

    **Several processes.** Under an initialized process group of W ranks, every rank makes the same draw of K samples
    and trains on its own part of it. `weigh` multiplies by W, because DistributedDataParallel and `fully_shard` average
    gradients over the ranks: the average is the same unbiased estimate as in one process. All ranks share their scores
    in one call a batch, so every rank must weigh every batch and go backward. See docs/scale.md.

    Args:
        model: The model, wrapped in DistributedDataParallel or not. The loader watches its forward passes until it is
            closed or dropped.
        dataset: A map-style dataset of n samples, whole on every rank.
        batch_size: K, of all ranks together: a multiple of their number.
        min_batch_size: None: every batch has K samples, and its gradient is quieter than that of K uniform samples.
            A number: batches are as small as that noise allows, but not smaller than this.
        selection: Chooses the batches. None: `QueueBandit(n, K, min_batch_size=min_batch_size)`, seeded by `seed`.
        scores: What a sample is scored by. "last-layer": the norm of its gradient at the result of the last layer, for
            any model and at almost no cost. "exact": the norm of its whole gradient. "losses": its loss. Or a function
            that takes the losses, float[k], and returns k scores ≥ 0. A selection that does not learn needs none, and
            nothing is measured.
        num_workers: How many processes load data.
        device: Where batches are moved. None: where the model's parameters are.
        seed: Seeds the default selection, and random transforms in the workers. Never a global generator.
        feedback_delay: After how many further batches scores are learned, at most 10,000. None: 0 on the CPU; 1 on an
            accelerator, so that the host never waits for it.
        sharded: With several ranks: each holds the weights of about n/W samples and draws its part of the batch from
            them, as unbiased, and sends no scores. A number: V strata (i mod V), which any number of ranks up to V can
            share; True: 12 or more if K allows it; see docs/scale.md. A `selection` is for this rank's.
        record_samples: Whether to keep count, scores and mean loss of every sample, for `samples`: 16 bytes a sample.
        observers: Objects that are told of every batch; see `Observer`.
        loader_options: What else `BanditLoader` takes: `collate_fn`, `pin_memory` and so on.

    Attributes:
        epoch: How many epochs are complete.
        meter: Whether it pays, and where the time goes: `meter.as_dict()`, `str(meter)`.
        selection: What chooses the batches.

    Example:
        >>> x, y = torch.linspace(-1, 1, 300).view(100, 3), torch.arange(100) % 2
        >>> model = nn.Linear(3, 2)
        >>> optimizer = torch.optim.Adam(model.parameters())
        >>> loader = AdaptiveLoader(model, torch.utils.data.TensorDataset(x, y), batch_size=10, min_batch_size=4)
        >>> for x, y in loader:
        ...     optimizer.zero_grad()
        ...     loader.weigh(nn.functional.cross_entropy(model(x), y, reduction="none")).backward()
        ...     optimizer.step()
        >>> len(loader), loader.epoch
        (10, 1)
    """

    def __init__(
        self,
        model: nn.Module,
        dataset: Any,
        batch_size: int,
        *,
        min_batch_size: int | None = None,
        selection: Selection | None = None,
        scores: str | Callable[[Tensor], Tensor] = "last-layer",
        num_workers: int = 0,
        device: torch.device | str | None = None,
        seed: int = 0,
        feedback_delay: int | None = None,
        sharded: bool | int = False,
        record_samples: bool = True,
        observers: Sequence[Observer] = (),
        **loader_options: Any,
    ) -> None:
        _arguments.check_model(model)
        _arguments.check_loader_options(loader_options)
        refuse_other_parallelism(model)
        self.model, self.dataset = model, dataset
        self.batch_size = _checks.integer("batch_size", batch_size, low=1)
        self._device = _arguments.checked_device(device)
        sharded, self._ranks = _arguments.checked_sharded(sharded), Ranks.current()
        self._sharded = sharded is not False
        strata = partial(_arguments.strata_or_default, sharded=sharded, model=model)
        choose = strata if self._sharded else _arguments.selection_or_default
        self.selection: Selection = choose(selection, dataset, self.batch_size, min_batch_size, seed, self._ranks)
        self.meter = Meter.of(self.selection)
        self._samples = SampleRecord.of(self.selection) if _checks.boolean("record_samples", record_samples) else None
        if self._sharded:
            seed = derived_seed(seed, self._ranks.rank) if self._ranks.rank else seed
        else:
            loader_options |= {"rank": self._ranks.rank, "num_ranks": self._ranks.size}
        self._loader = BanditLoader(dataset, self.selection, num_workers=num_workers, seed=seed, **loader_options)
        self._scores = scores
        self._usage = UsageCheck()
        self._shared = self._ranks.size > 1 and not self._sharded  # whether all ranks share each draw
        self._learning = Learning(
            model,
            self.selection,
            make_scoring(scores, model, learns=self.selection.learns),
            self._ranks,
            shared=self._shared,
            delay=_arguments.checked_delay(feedback_delay),
            record=self._samples,
            meter=self.meter,
            observers=[self.meter, *_arguments.check_observers(observers)],
            usage=self._usage,
        )
        self.epoch, self._closed = 0, False
        self._resumed = False  # in the middle of an epoch
        self._draw: Draw | None = None  # of the batch that was handed out last, until it is weighed
        self._recent: deque[Draw] = deque(maxlen=UsageCheck.patience)  # draws that were weighed
        self._target = self.device  # of this epoch's batches

    __reduce_ex__ = _arguments.refuse_copies

    def __repr__(self) -> str:
        scores = repr(self._scores) if isinstance(self._scores, str) else getattr(self._scores, "__name__", "function")
        return f"{type(self).__name__}({self.selection}, scores={scores}, epoch={self.epoch})"

    @property
    def device(self) -> torch.device:
        """Where batches are moved: the device that was given, or where the model is now."""
        return _arguments.device_of(self.model) if self._device is None else self._device

    @property
    def observers(self) -> list[Observer]:
        """Whoever is told of every batch, the meter first. You may append to it."""
        return self._learning.observers

    @property
    def collate_fn(self) -> Callable[[list[Any]], Any]:
        """What merges samples into a batch."""
        return self._loader.collate_fn

    def __len__(self) -> int:
        """How many batches an epoch has: floor(n/K)."""
        return len(self._loader)

    def __iter__(self) -> Iterator[SelectedBatch]:
        """Yield one epoch of batches, or what is left of it after a state was loaded."""
        batches = iter(self._loader)
        self._target = self.device
        if not self._resumed:
            self.meter.start_epoch()
        self._resumed = False
        while (batch := self._next(batches)) is not None:
            yield batch
        self.epoch += 1

    def _next(self, batches: Iterator[SelectedBatch]) -> SelectedBatch | None:
        """Learn from the last batch, and return the next one."""
        self.meter.note_step_end()
        self.learn()
        start, drawing = clock(), self._loader.batch_sampler.seconds
        batch = next(batches, None)
        if batch is None:
            self._usage.note_epoch_end()
            return None
        self._usage.note_taken()
        self._draw = batch.draw
        for observer in self.observers:
            observer.note_draw(whole_of(batch.draw))
        self._learning.note_taken()
        if self._target.type != "cpu":
            batch = batch.to(self._target, non_blocking=True)
        self.meter.note_fetched(start, self._loader.batch_sampler.seconds - drawing)
        return batch

    def weigh(self, losses: Tensor, *, draw: Draw | None = None) -> Tensor:
        """Return Σ loss_weights·losses of a batch, for you to go backward on.

        Args:
            losses: float[k], one loss per sample, in the order of the batch; with W ranks, of this rank's part.
            draw: `batch.draw` of the batch that these losses are of, where batches are taken ahead of training. None:
                the batch that was taken last.

        Returns:
            A scalar: an unbiased estimate of the mean loss over the dataset. With several ranks, their average is.

        Raises:
            ValueError: If `losses` is not one loss per sample, or another selection made the draw.
            RuntimeError: If no batch is waiting, it was weighed already, or the losses come from no forward pass of the
                model.
            FloatingPointError: If a loss is not finite. On an accelerator, and with several ranks, `learn` raises it.
                In all cases the batch goes on waiting.
        """
        draw = self._waiting_draw() if draw is None else self.selection.check_draw(draw)
        _arguments.refuse_again(draw, self._recent)
        _arguments.check_losses(losses, len(draw))
        self.learn()
        # Gradients are averaged over the ranks.
        weights = draw.loss_weights if self._ranks.size == 1 else draw.loss_weights * self._ranks.size
        precision = np.float64 if losses.dtype == torch.float64 else np.float32
        factors = torch.from_numpy(weights.astype(precision))
        if losses.device.type != "cpu":
            factors = factors.to(losses.device, non_blocking=True)
        # No dot product: where a framework calls `weigh` inside the forward pass, that would count as mixing samples.
        loss = (factors * losses).sum()
        # One rank alone must not stop here: the others would wait for it in their backward pass.
        checked = not self._shared and losses.device.type == "cpu"
        if checked and not math.isfinite(loss.item()):
            refuse_nonfinite("loss", losses.detach().double().numpy(), draw)
        self._learning.add(draw, losses, loss, checked=checked)
        # From here on nothing can fail: what was refused can be tried again.
        self._recent.append(draw)
        if draw is self._draw:
            self._draw = None
        self._usage.note_weighed()
        return loss

    def learn(self) -> None:
        """Learn now from the batches that went backward, instead of when the next batch is taken.

        Raises:
            FloatingPointError: If a loss or a score is not finite.
            ValueError, RuntimeError: If the selection refuses the scores, or they could not be measured. In all cases
                nothing is learned from that batch.
        """
        if self._learning.is_waiting:
            self._learning.learn()

    def samples(self) -> SampleTable:
        """Return what training saw of every sample: how often it was chosen, its scores, its mean loss. O(n log n).

        The samples whose labels are most likely wrong come first; docs/wrong-labels.md says how likely. If weights are
        sharded, these are the samples whose weights this rank holds. A batch counts once it is learned from.

        Raises:
            RuntimeError: If the loader was made with `record_samples=False`.
        """
        if self._samples is None:
            raise RuntimeError("`samples` must be recorded, got record_samples=False when the loader was made.")
        self.learn()
        return self._samples.table()

    def _waiting_draw(self) -> Draw:
        if self._closed:
            raise RuntimeError(f"The {type(self).__name__} must not be closed, and `close` was called.")
        if self._draw is None:
            raise RuntimeError(
                "`weigh` and `step` must be called once for each batch, and no batch is waiting. "
                "Take one: `for x, y in loader`."
            )
        return self._draw

    def give_up(self) -> None:
        """Forget batches that were weighed and not learned from, for a loop that goes on after a failed backward."""
        self._learning.give_up()
        self._recent.clear()  # they may be tried again

    def close(self) -> None:
        """Take the loader off the model, which is then as it was. May be called twice."""
        self._closed = True
        self._learning.close()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def state_dict(self) -> dict[str, Any]:
        """Return all that choosing batches needs to go on bit for bit; model and optimizer are yours to save.

        That is: selection, position in the epoch, feedback on its way, what `samples` tells, and the meter without its
        seconds. `dcp.save({"loader": loader}, ...)` of torch.distributed.checkpoint writes it, or `torch.save`; only
        the first if weights are sharded: all ranks call it together then, and each has a part. Else all have the same.
        """
        self.learn()
        state = {**_state.collect(self._parts()), "epoch": self.epoch}
        return pack(_resharding.to_common(state, self.selection, self._ranks, self.device), self.selection.per_sample)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state`. The next `for` over the loader goes on in the middle of the epoch.

        Raises:
            ValueError: If the state does not fit. Nothing is changed then.
        """
        self._take_over(self._parts(), lambda: self._own(state))

    def _own(self, state: dict[str, Any]) -> dict[str, Any]:
        return _resharding.to_own(unpack(state), self.selection, self._ranks, self.device)

    def _take_over(self, parts: dict[str, _state.Stateful], read: Callable[[], dict[str, Any]]) -> None:
        try:
            state = read()
            _state.check(state, (*parts, "epoch"))
            _state.restore(parts, state)
        except Exception as error:
            raise ValueError(f"`state` must fit this {type(self).__name__}: {error}") from error
        self.epoch, self._resumed = state["epoch"], state["loader"]["in_epoch"]
        self._draw = None
        self.give_up()

    def _parts(self) -> dict[str, _state.Stateful]:
        """Return what has a state of its own, in the order of loading.

        The loader comes last: loading it ends iterators, which cannot be undone.
        """
        return {
            "selection": self.selection,
            **self._learning.parts(),
            "meter": self.meter,
            **({} if self._samples is None else {"samples": self._samples}),
            "loader": self._loader,
        }
