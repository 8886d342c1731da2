"""Transformers: a `Trainer` whose batches are chosen.

    trainer = AdamCBTrainer(model=model, args=args, train_dataset=train_set)
    trainer.train()

`AdamCBMixin` does the same for other Trainers: `class Mine(AdamCBMixin, Seq2SeqTrainer): ...`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from adamcb import _checks
from adamcb.data import SelectedBatch
from adamcb.integrations._missing import missing
from adamcb.integrations._sharded import refuse_sharded
from adamcb.integrations._stream import BatchStream
from adamcb.integrations._text_losses import KINDS, count_items, sample_losses
from adamcb.selection import Selection
from adamcb.training import (
    AdaptiveLoader,
    Meter,
    generator_states,
    read_checkpoint,
    set_generator_states,
    write_checkpoint,
)

try:
    import accelerate  # noqa: F401  (Trainer needs it, and says so less clearly)
    from transformers import Trainer, TrainerCallback
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
except ImportError as error:
    raise missing("transformers") from error

__all__ = ["AdamCBMixin", "AdamCBTrainer"]

FILE = "adamcb.pt"  # in a checkpoint's folder
DRAW = "adamcb_draw"  # where a batch carries its draw
_COUNTED = 1000  # samples whose labels are counted
_Trainer: Any = object  # type checkers are not to know what the mixin is mixed into


class AdamCBMixin(_Trainer):
    """Makes a `Trainer` choose its batches, and learn from their gradients.

    The Trainer's loop is in charge: it accumulates, clips, steps, logs, evaluates and saves. With W processes, each
    batch is one draw of K = W·`per_device_train_batch_size` samples, shared out; with gradient accumulation, every
    batch of a step is a draw of its own.

    **The loss.** Transformers minimizes the mean over tokens: Σ of all tokens' losses / `num_items_in_batch`, their
    number in the batches of a step. A chosen batch has longer or shorter samples than the dataset, so this number would
    depend on the choice and bias the gradient. Instead, a sample's loss is the sum over its tokens divided by
    `items_per_sample`, the number that samples have on average, which is the same for all. The weighted sum is an
    unbiased estimate of the same mean over tokens. Where there is one label per sample, or texts have one length,
    there is no difference.

    **Columns.** The index of a sample is no column: it comes with the draw, and survives `remove_unused_columns`.

    **Resuming.** Checkpoints hold the file adamcb.pt: weights, draws made ahead and the meter. With
    `train(resume_from_checkpoint=...)` the next batch is the one that would have come; none is drawn to be skipped.

    Args:
        args: What the Trainer takes, all of it. `compute_loss_func(outputs, labels, num_items_in_batch=None)` must
            return one loss per sample.
        selection: Chooses batches. None: as in `AdaptiveLoader`.
        min_batch_size: As in `AdaptiveLoader`.
        scores: What a sample is scored by, as in `AdaptiveLoader`.
        items_per_sample: How many predictions (tokens) a sample has on average. None: counted in up to 1,000 samples. A
            wrong number scales the loss, no more.
        feedback_delay: As in `AdaptiveLoader`.
        sharded: As in `AdaptiveLoader`, in one process; several are refused, because the Trainer saves one state.

    Example:
        >>> class MyTrainer(AdamCBMixin, Seq2SeqTrainer):
        ...     pass
    """

    def __init__(
        self,
        *args: Any,
        selection: Selection | None = None,
        min_batch_size: int | None = None,
        scores: Any = None,
        items_per_sample: float | None = None,
        feedback_delay: int | None = None,
        sharded: bool | int = False,
        compute_loss_func: Callable[..., Tensor] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        refuse_sharded(sharded, self.args.world_size, "Transformers")
        choosing = {"selection": selection, "min_batch_size": min_batch_size, "feedback_delay": feedback_delay}
        choosing["sharded"] = sharded
        self._choosing = choosing if scores is None else {**choosing, "scores": scores}
        self._sample_loss_func = compute_loss_func
        if items_per_sample is not None:
            items_per_sample = _checks.real("items_per_sample", items_per_sample, low=0.0, low_open=True)
        self.items_per_sample = items_per_sample
        # The loss of a batch stands for the dataset by itself; the Trainer divides it by the batches of a step.
        self.model_accepts_loss_kwargs = False
        self._stream: BatchStream | None = None
        _check_arguments(self)
        self.add_callback(_Learn(self))

    @property
    def adaptive(self) -> AdaptiveLoader:
        """The `AdaptiveLoader` of this training, or of the last."""
        if self._stream is None:
            raise RuntimeError("Training must have started: `adaptive` is made by `train`.")
        return self._stream.loader

    @property
    def meter(self) -> Meter:
        """Whether it pays: `trainer.log(trainer.meter.as_dict())`."""
        return self.adaptive.meter

    def train(self, *args: Any, **options: Any) -> Any:
        """Train as the Trainer does, and leave the model without hooks afterwards."""
        try:
            return super().train(*args, **options)
        finally:
            if self._stream is not None:
                self._stream.close()

    def get_train_dataloader(self) -> DataLoader:
        """Return a loader of chosen batches, which `accelerate` must not shard again."""
        if self.train_dataset is None:
            raise ValueError("`train_dataset` must be given to train, got None.")
        if self._sample_loss_func is None:
            _loss_kind(self.model)  # now, not at the first batch
        if self._stream is not None:
            self._stream.close()
        dataset, collate = _without_unused_columns(self)
        args, size = self.args, self._train_batch_size * self.args.world_size
        adaptive = AdaptiveLoader(
            self.model,
            dataset,
            size,
            seed=args.seed if args.data_seed is None else args.data_seed,
            collate_fn=collate,
            num_workers=args.dataloader_num_workers,
            pin_memory=args.dataloader_pin_memory and torch.accelerator.is_available(),
            persistent_workers=args.dataloader_persistent_workers,
            prefetch_factor=args.dataloader_prefetch_factor,
            **self._choosing,
        )
        self._stream = BatchStream(adaptive)
        return _pulling_loader(self._stream, len(dataset), len(adaptive))

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return the weighted loss of a chosen batch; for any other batch, what the Trainer returns."""
        inputs = dict(inputs)
        draw = inputs.pop(DRAW, None)
        if draw is None and self._sample_loss_func is None:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        labels = inputs.pop("labels", None)
        outputs = model(**inputs)
        losses = self._losses(outputs, labels)
        loss = losses.mean() if draw is None else self.adaptive.weigh(losses, draw=draw)
        return (loss, outputs) if return_outputs else loss

    def _losses(self, outputs: Any, labels: Tensor | None) -> Tensor:
        if self._sample_loss_func is not None:
            return self._sample_loss_func(outputs, labels, num_items_in_batch=None)
        if labels is None:
            raise ValueError("A batch must have `labels`, or `compute_loss_func` be given, got a batch without.")
        if self.items_per_sample is None:
            self.items_per_sample = self._count_items()
        logits = outputs["logits"] if isinstance(outputs, Mapping) else outputs[0]
        kind, smoothing = _loss_kind(self.model), self.args.label_smoothing_factor
        return sample_losses(kind, self.model.config, logits, labels, smoothing) / self.items_per_sample

    def _count_items(self) -> float:
        """Return how many predictions a sample has on average, from samples spread evenly over the dataset."""
        loader, device = self.adaptive, self.args.device
        before = generator_states(device)
        counts = []
        chosen = np.linspace(0, len(loader.dataset) - 1, min(_COUNTED, len(loader.dataset))).astype(np.int64)
        for part in np.array_split(chosen, -(-len(chosen) // 32)):
            batch = loader.collate_fn([loader.dataset[int(index)] for index in part])
            counts.append(count_items(_loss_kind(self.model), batch["labels"]).double())
        set_generator_states(device, before)  # collators may be random
        mean = self.accelerator.reduce(torch.cat(counts).mean().to(device), "mean").item()
        if not mean > 0.0:
            raise ValueError("`labels` must hold something to predict, and none of the samples looked at does.")
        return mean

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        if self.args.should_save:
            extra = {"items_per_sample": self.items_per_sample}
            write_checkpoint(os.path.join(output_dir, FILE), self.adaptive.state_dict(), extra)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            saved = read_checkpoint(os.path.join(checkpoint, FILE))
            self.adaptive.load_state_dict(saved.state)
            self.items_per_sample = saved.extra["items_per_sample"]


class AdamCBTrainer(AdamCBMixin, Trainer):
    """`transformers.Trainer` with chosen batches; see `AdamCBMixin`.

    Example:
        >>> trainer = AdamCBTrainer(model=model, args=args, train_dataset=texts, min_batch_size=4)
        >>> trainer.train()
        >>> print(trainer.meter)
    """


class _Learn(TrainerCallback):
    """Learns before every step of the optimizer, so that a score that is not finite stops the step."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Learn from the batches whose gradients are about to be stepped on."""
        self._trainer.adaptive.learn()


def _check_arguments(trainer: Any) -> None:
    """Raise for arguments under which batches or gradients would not be what they are taken for."""
    args = trainer.args
    if args.n_gpu > 1:
        raise ValueError(f"One process must have one device, got {args.n_gpu}. Start one for each: torchrun.")
    if args.torch_compile:
        raise ValueError("`torch_compile` must be False, got torch_compile=True: it would hide what is measured.")
    if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
        raise NotImplementedError("`deepspeed` and `fsdp` must not be used: gradients of parts cannot be measured.")
    strategy = str(getattr(args, "train_sampling_strategy", "random"))
    if strategy != "random":
        raise ValueError(f"`train_sampling_strategy` must be 'random', got {strategy!r}: batches are chosen already.")


def _loss_kind(model: Any) -> str:
    """Return which of the known losses the model has.

    Raises:
        NotImplementedError: If it has none of them.
    """
    name, kind = type(model).__name__, getattr(model, "loss_type", None)
    if kind is None and name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values():  # GPT2LMHeadModel and other old names
        return "ForCausalLM"
    if kind not in KINDS:
        raise NotImplementedError(
            f"The loss of {name} (loss_type={kind!r}) must be given for each sample: pass `compute_loss_func=f`, where "
            "f(outputs, labels, num_items_in_batch=None) returns one loss per sample."
        )
    return str(kind)


def _without_unused_columns(trainer: Any) -> tuple[Any, Any]:
    """Return dataset and collator as the Trainer would use them."""
    dataset, collate = trainer.train_dataset, trainer.data_collator
    if hasattr(dataset, "column_names") and hasattr(dataset, "remove_columns"):  # a datasets.Dataset
        return trainer._remove_unused_columns(dataset, description="training"), collate
    return dataset, trainer._get_collator_with_removed_columns(collate, description="training")


def _pulling_loader(stream: BatchStream, num_samples: int, num_batches: int) -> DataLoader:
    """Return a DataLoader that takes the next batch of the stream whatever it is asked for.

    To skip batches, Transformers builds it anew with a sampler that leaves some out: then none is lost.
    """
    tickets: Any = range(num_batches)
    generator = torch.Generator()  # or it would take a number from the global one
    return DataLoader(
        _Pulled(stream, num_samples),
        batch_sampler=_Tickets(tickets),
        collate_fn=_as_pulled,
        generator=generator,
    )


class _Tickets:
    """A batch sampler whose batches are mere numbers."""

    def __init__(self, tickets: range) -> None:
        self._tickets = tickets

    def __len__(self) -> int:
        return len(self._tickets)

    def __iter__(self) -> Iterator[list[int]]:
        return ([ticket] for ticket in self._tickets)


class _Pulled(Dataset):
    """Stands in for the dataset: an item is the next batch."""

    def __init__(self, stream: BatchStream, num_samples: int) -> None:
        self._stream, self._num_samples = stream, num_samples

    def __len__(self) -> int:
        return self._num_samples

    def __getitem__(self, ticket: int) -> SelectedBatch:
        return self._stream.take()


def _as_pulled(batches: list[SelectedBatch]) -> Any:
    """Return the one batch, with its draw as an entry."""
    (batch,) = batches
    if not isinstance(batch.data, Mapping):
        raise TypeError(f"`data_collator` must return a dict, got {type(batch.data).__name__}.")
    return {**batch.data, DRAW: batch.draw}
