"""Lightning 2: a callback, its loader, and `weigh` for the `training_step`.

    chosen = AdamCBCallback(train_set, batch_size=128)
    trainer = L.Trainer(callbacks=[chosen], use_distributed_sampler=False)
    trainer.fit(module, chosen.loader)

and in the module:

    def training_step(self, batch, batch_idx):
        x, y = batch
        return weigh(self, F.cross_entropy(self(x), y, reduction="none"))
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from adamcb import _checks
from adamcb.integrations._missing import missing
from adamcb.integrations._sharded import refuse_sharded
from adamcb.integrations._stream import BatchStream
from adamcb.selection import UniformSelection
from adamcb.training import AdaptiveLoader, Meter, generators_part

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
except ImportError as error:
    raise missing("lightning") from error

__all__ = ["AdamCBCallback", "weigh"]


def weigh(module: LightningModule, losses: Tensor) -> Tensor:
    """Return what `training_step` is to return: Σ loss_weights·losses, an unbiased estimate of the mean loss.

    With several ranks, each returns its share times their number: Lightning averages gradients over the ranks, and
    `self.log(..., sync_dist=True)` the logged values. Without an `AdamCBCallback` it is `losses.mean()`, so that the
    same module trains on ordinary batches too.

    Args:
        module: The LightningModule, `self` in `training_step`.
        losses: float[k], one loss per sample of the batch that `training_step` was given.

    Raises:
        ValueError, RuntimeError, FloatingPointError: As `AdaptiveLoader.weigh`.

    Example:
        >>> def training_step(self, batch, batch_idx):
        ...     x, y = batch
        ...     return weigh(self, F.cross_entropy(self.net(x), y, reduction="none"))
    """
    _checks.instance("module", module, LightningModule, "a LightningModule")
    _checks.instance("losses", losses, Tensor, "a tensor")
    trainer: Any = module.trainer
    callback = next((one for one in trainer.callbacks if isinstance(one, AdamCBCallback)), None)
    return losses.mean() if callback is None else callback.adaptive.weigh(losses)


class AdamCBCallback(Callback):
    """Chooses the batches of a `Trainer`, and learns from their gradients.

    Lightning's loop is in charge: it takes batches from `loader`, goes backward, accumulates, clips, steps, logs and
    saves. The callback learns before every step of the optimizer, and puts its state into the Trainer's checkpoints,
    with the global generators of torch, NumPy and Python, which Lightning does not save: `trainer.fit(...,
    ckpt_path=...)` goes on with the next batch, also in the middle of an epoch, and so does dropout. A run with
    `accumulate_grad_batches` draws K samples for each batch. With several ranks, `batch_size` is that of all of them
    together.

    Args:
        dataset: A map-style dataset of n samples.
        batch_size: K.
        model: The module whose gradients are measured. None: the LightningModule's only child with trainable
            parameters, or the LightningModule itself if it has several; `training_step` must then call `self(...)`.
        options: What else `AdaptiveLoader` takes: `selection`, `scores`, `num_workers`, `seed`, `collate_fn` and so on;
            with several ranks not `sharded`, because Lightning saves the state of rank 0 alone.

    Attributes:
        loader: What `trainer.fit` takes as `train_dataloaders`.
        adaptive: The `AdaptiveLoader`, once training has started.

    Example:
        >>> chosen = AdamCBCallback(train_set, batch_size=128)
        >>> trainer = Trainer(callbacks=[chosen], use_distributed_sampler=False)
        >>> trainer.fit(module, chosen.loader)
    """

    def __init__(self, dataset: Any, batch_size: int, *, model: nn.Module | None = None, **options: Any) -> None:
        if "optimizer" in options or "lr" in options:
            raise TypeError("`optimizer` and `lr` must be set in `configure_optimizers`, got them in AdamCBCallback.")
        _checks.map_style("dataset", dataset)
        if model is not None:
            _checks.instance("model", model, nn.Module, "a torch.nn.Module")
        self.dataset, self.batch_size = dataset, _checks.integer("batch_size", batch_size, low=1)
        _try_options(dataset, self.batch_size, options)
        self.loader = Loader(self)
        self._stream: BatchStream | None = None
        self._model, self._options = model, options
        self._state: dict[str, Any] | None = None  # loaded, for the AdaptiveLoader that is yet to be made
        self._generators = generators_part(torch.device("cpu"), 0)
        self._started = 0  # batches that Lightning has begun to train on

    @property
    def adaptive(self) -> AdaptiveLoader:
        """The `AdaptiveLoader` of this fit, or of the last."""
        return self.stream.loader

    @property
    def stream(self) -> BatchStream:
        """Where the batches come from."""
        if self._stream is None:
            raise RuntimeError("AdamCBCallback must be among the Trainer's callbacks, and training must have started.")
        return self._stream

    @property
    def meter(self) -> Meter:
        """Whether it pays: `meter.as_dict()` is what loggers take."""
        return self.adaptive.meter

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse settings under which batches would not be what was drawn."""
        if stage == "fit":
            _check_settings(trainer)
            refuse_sharded(self._options.get("sharded", False), trainer.world_size, "Lightning")

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Attach to the model, which is on its device now, and take over what a checkpoint holds."""
        model = measured_module(pl_module) if self._model is None else self._model
        options = {"device": pl_module.device, **self._options}
        adaptive = AdaptiveLoader(model, self.dataset, self.batch_size, **options)
        self._stream = BatchStream(adaptive)
        self._started = 0
        self._generators = generators_part(pl_module.device, trainer.global_rank)
        if self._state is not None:
            adaptive.load_state_dict(self._state)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refuse another loader. Restore the global generators, as late as possible: nobody draws in between."""
        combined = trainer.fit_loop._combined_loader
        if combined is not None and not any(loader is self.loader for loader in combined.flattened):
            kinds = ", ".join(type(loader).__name__ for loader in combined.flattened)
            raise ValueError(f"`train_dataloaders` must be the `loader` of AdamCBCallback, got {kinds}.")
        if self._state is not None:
            self._generators.load_state_dict(self._state["generators"])
            self._state = None

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Make sure that the batch is the one that was taken last, since draw and losses meet by that."""
        self._started += 1
        taken = self.stream.taken
        if taken != self._started:
            raise RuntimeError(
                f"Batches must be taken one by one, as they are trained on, got {taken} taken for {self._started} "
                "trained on. Do not wrap the loader in one that fetches ahead; use `num_workers` for that."
            )

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        """Learn from the batches whose gradients are about to be stepped on, so that a bad score stops the step."""
        self.adaptive.learn()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Leave the model as it was."""
        if stage == "fit" and self._stream is not None:
            self._stream.close()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Leave the model as it was."""
        self.teardown(trainer, pl_module, "fit")

    def state_dict(self) -> dict[str, Any]:
        """Return what choosing batches needs to go on; model and optimizers are Lightning's to save."""
        if self._stream is None:
            return {}
        return {**self.adaptive.state_dict(), "generators": self._generators.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep `state_dict` until training starts, which checks the rest of it."""
        _checks.instance("state_dict", state_dict, dict, "a dict")
        if state_dict and not isinstance(state_dict.get("generators"), dict):
            raise ValueError("`state_dict` must be of this version of AdamCBCallback, got one without generators.")
        self._state = state_dict or None


def _try_options(dataset: Any, batch_size: int, options: dict[str, Any]) -> None:
    """Raise now, and not when training starts, for options that no `AdaptiveLoader` takes."""
    tried = ("selection", "min_batch_size", "sharded", "record_samples")
    own = {name: value for name, value in options.items() if name not in tried}
    refuse_sharded(options.get("sharded", False), 1, "Lightning")
    if options.get("min_batch_size") is not None:
        _checks.integer("min_batch_size", options["min_batch_size"], low=1, high=batch_size)
    plain = UniformSelection(len(dataset), batch_size, generator=torch.Generator())
    AdaptiveLoader(nn.Linear(1, 1), dataset, batch_size, selection=plain, **own, record_samples=False).close()


class Loader:
    """What Lightning iterates over: plain batches, floor(n/K) of them an epoch.

    It is no `DataLoader`, so that Lightning does not rebuild it with a sampler of its own.
    """

    def __init__(self, callback: AdamCBCallback) -> None:
        self._callback = callback

    def __len__(self) -> int:
        return len(self._callback.dataset) // self._callback.batch_size

    def __iter__(self) -> Iterator[Any]:
        for _ in range(len(self)):
            yield self._callback.stream.take().data

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: the callback saves position and weights, which must be of the same moment."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Do nothing; see `state_dict`."""


def measured_module(module: LightningModule) -> nn.Module:
    """Return the only child that has trainable parameters, or the module itself.

    The child, because `training_step` may call it without `forward`; and because several ranks call the LightningModule
    with the batch, not with the model's inputs.
    """

    def trains(part: nn.Module) -> bool:
        return any(parameter.requires_grad for parameter in part.parameters())

    own = any(parameter.requires_grad for parameter in module.parameters(recurse=False))
    children = [child for child in module.children() if trains(child)]
    return children[0] if len(children) == 1 and not own else module


def _check_settings(trainer: Any) -> None:
    """Raise for what would change batches after they were drawn, or gradients in a way that is not known."""
    connector = trainer._accelerator_connector
    if connector.use_distributed_sampler and trainer.world_size > 1:
        raise ValueError(
            "`use_distributed_sampler` must be False with several ranks, got use_distributed_sampler=True. AdamCB "
            "shares out each draw itself; a DistributedSampler repeats samples and knows nothing of probabilities."
        )
    if trainer.overfit_batches:
        raise ValueError(
            f"`overfit_batches` must be 0, got overfit_batches={trainer.overfit_batches}: batches are drawn anew every "
            "time. Give AdamCBCallback a torch.utils.data.Subset instead."
        )
    if not isinstance(trainer.strategy, (SingleDeviceStrategy, DDPStrategy)):
        kind = type(trainer.strategy).__name__
        raise NotImplementedError(f"`strategy` must be one device or DDP, got {kind}.")
