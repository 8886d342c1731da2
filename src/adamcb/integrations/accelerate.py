"""Accelerate: chosen batches for a loop that is written with an `Accelerator`.

model, optimizer = accelerator.prepare(model, optimizer)
batches = AcceleratedBatches(accelerator, model, train_set, batch_size=128)
for x, y in batches:
    with accelerator.accumulate(model):
        losses = F.cross_entropy(model(x), y, reduction="none")
        batches.backward(losses)  # instead of accelerator.backward(losses.mean())
        optimizer.step()
        optimizer.zero_grad()
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from adamcb.data import SelectedBatch
from adamcb.data._draws import DrawSampler
from adamcb.integrations._missing import missing
from adamcb.integrations._sharded import refuse_sharded
from adamcb.integrations._steps import StepBatches
from adamcb.selection import Draw
from adamcb.training import AdamCB, Meter

try:
    from accelerate import Accelerator, DistributedType
except ImportError as error:
    raise missing("accelerate") from error

__all__ = ["AcceleratedBatches", "check_accelerator"]


class AcceleratedBatches:
    """Chooses the batches of a loop written with Accelerate, and learns from their gradients.

    With W processes each batch is one draw of K samples, shared out: `for` gives this process's K/W of them, on its
    device. There is nothing to prepare: `accelerator.prepare` leaves it as it is, and must, because a loader that
    Accelerate has sharded does not hold what was drawn (see `check_accelerator`). Nothing is fetched ahead of
    training but by `num_workers`.

    It registers itself for checkpointing: `accelerator.save_state` and `load_state` take it along. After `load_state`
    the next `for` over it goes on in the middle of the epoch.

    Args:
        accelerator: The Accelerator; its gradient accumulation, GradScaler and device are used.
        model: The model, prepared.
        dataset: A map-style dataset of n samples.
        batch_size: K, of all processes together: a multiple of their number. With gradient accumulation, of one batch.
        options: What else `AdamCB` takes: `selection`, `norms`, `num_workers`, `seed`, `collate_fn` and so on; with
            several processes not `sharded`, because Accelerate saves the state of the first one alone.

    Attributes:
        adamcb: The `AdamCB` that does it.
    """

    def __init__(
        self, accelerator: Accelerator, model: nn.Module, dataset: Any, batch_size: int, **options: Any
    ) -> None:
        if "optimizer" in options or "lr" in options:
            raise TypeError("`optimizer` and `lr` must be left to your loop, got them in AcceleratedBatches.")
        check_accelerator(accelerator)
        refuse_sharded(options, accelerator.num_processes, "Accelerate")
        self._accelerator = accelerator
        options = {"device": accelerator.device, **options}
        self.adamcb = AdamCB(model, dataset, batch_size, optimizer="external", **options)
        self._step = StepBatches(self.adamcb)
        accelerator.register_for_checkpointing(self)

    @property
    def epoch(self) -> int:
        """How many epochs are complete."""
        return self.adamcb.epoch

    @property
    def meter(self) -> Meter:
        """Whether it pays: `accelerator.log(batches.meter.as_dict())`."""
        return self.adamcb.meter

    def __len__(self) -> int:
        return len(self.adamcb)

    def __iter__(self) -> Iterator[SelectedBatch]:
        check_accelerator(self._accelerator)  # again: loaders and schedulers may have been prepared since
        return iter(self.adamcb)

    def backward(self, losses: Tensor, *, draw: Draw | None = None) -> Tensor:
        """Weigh the losses of a batch, go backward by the Accelerator, and learn if the optimizer is to step now.

        Args:
            losses: float[K/W], one loss per sample, in the order of the batch.
            draw: `batch.draw` of the batch that these losses are of, where batches are taken ahead of training.

        Returns:
            The weighted loss, detached: an unbiased estimate of the mean loss over the dataset. With several processes,
            the average over them is.

        Raises:
            ValueError, RuntimeError, FloatingPointError: As `AdamCB.step`; before the optimizer has stepped. With any
                error, also one of memory, the batches of this step and their gradients are given up: a loop that
                catches it may go on with the next batch.
        """
        batches = self._accelerator.gradient_accumulation_steps  # what `accelerator.backward` divides by
        try:
            loss = self._step.weigh(losses, self._batches_left(), draw=draw)
            self._accelerator.backward(loss * batches)
            if self._accelerator.sync_gradients:
                self.adamcb.update(self._accelerator.scaler)
        except BaseException:
            self._step.give_up()
            raise
        return loss.detach() * self._step.number

    def _batches_left(self) -> int:
        """Return how many batches are added up until the optimizer steps, with the one in training."""
        batches, begun = self._accelerator.gradient_accumulation_steps, self._accelerator.step
        return batches - (max(begun, 1) - 1) % batches  # none is begun outside of `accelerator.accumulate`

    def state_dict(self) -> dict[str, Any]:
        """Return what choosing batches needs to go on; model and optimizers are the Accelerator's to save."""
        return self.adamcb.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from `state_dict`. Gradients are in no state: those that are there are given up."""
        self.adamcb.load_state_dict(state_dict)
        self._step.give_up()

    def close(self) -> None:
        """Take it off the model, which is then as it was."""
        self.adamcb.close()


def check_accelerator(accelerator: Accelerator) -> None:
    """Raise for what would bias the gradient, or make training depend on the number of processes.

    Raises:
        ValueError: If Accelerate has prepared a loader of chosen batches, or a learning-rate scheduler that it would
            step once for every process; or if it does not know of the other processes.
        NotImplementedError: If the model is not whole in every process.
    """
    kind = accelerator.distributed_type
    if kind is not DistributedType.NO and not kind.value.startswith("MULTI_"):
        raise NotImplementedError(f"The model must be whole in every process, got distributed_type={kind.value}.")
    ranks = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
    if ranks != accelerator.num_processes:
        raise ValueError(
            f"The Accelerator must know all processes, got num_processes={accelerator.num_processes} in a process "
            f"group of {ranks}: gradients would not be averaged. On CPUs, use Accelerator(cpu=True)."
        )
    for loader in accelerator._dataloaders:
        if _holds_draws(loader):
            raise ValueError(_resharded(accelerator))
    if accelerator.num_processes > 1 and any(map(_steps_too_often, accelerator._schedulers)):
        raise ValueError(
            f"`split_batches` must be True for a prepared scheduler, got split_batches=False: it would step "
            f"{accelerator.num_processes} times at each step, but K is the batch size of all processes together. Use "
            "Accelerator(dataloader_config=DataLoaderConfiguration(split_batches=True)), or do not prepare it."
        )


def _holds_draws(loader: Any) -> bool:
    """Tell whether the batches of a prepared loader come from a `BanditLoader`."""
    sampler = loader
    while sampler is not None and not isinstance(sampler, DrawSampler):
        sampler = getattr(sampler, "batch_sampler", None)
    return sampler is not None


def _resharded(accelerator: Accelerator) -> str:
    if accelerator.dispatch_batches:
        effect = (
            "`dispatch_batches=True` sends every process rows of what the first one drew, without their probabilities"
        )
    elif accelerator.split_batches:
        effect = "`split_batches=True` cuts each process's part once more"
    else:
        effect = "`split_batches=False` gives each batch to one process alone, the others draw and skip it"
    if accelerator.even_batches:
        effect += "; `even_batches=True` repeats samples at the end"
    return (
        "The loader of chosen batches must not be prepared by Accelerate, because it is shared out already, got a "
        f"prepared one: {effect}. Iterate over AcceleratedBatches itself."
    )


def _steps_too_often(scheduler: Any) -> bool:
    return scheduler.step_with_optimizer and not scheduler.split_batches
