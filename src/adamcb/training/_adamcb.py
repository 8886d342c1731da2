"""`AdamCB`: an `AdaptiveLoader` with optimizers, and a checkpoint of everything."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from adamcb import _checks
from adamcb.data import SelectedBatch
from adamcb.selection import Draw
from adamcb.training import _arguments, _shards, _spread, _state
from adamcb.training._adaptive import AdaptiveLoader
from adamcb.training._checkpoint import read_checkpoint, write_checkpoint
from adamcb.training._left_out import LeftOut
from adamcb.training._ranks import check_same_gradients, is_spread_model, unwrapped


class AdamCB(AdaptiveLoader):
    """Trains a model on chosen batches: an `AdaptiveLoader` that also steps the optimizer and saves everything.

        trainer = AdamCB(model, train_set, batch_size=128)
        for epoch in range(trainer.epoch, 10):
            for x, y in trainer:
                trainer.step(F.cross_entropy(model(x), y, reduction="none"))
            trainer.save("checkpoint.pt")

    A loop with its own backward pass (clipping, GradScaler, accumulation) calls `weigh` as with `AdaptiveLoader`, and
    steps `trainer.optimizer` itself.

    The paper's algorithms, to the letter, are in `adamcb.paper`.

    Args:
        model: As in `AdaptiveLoader`.
        dataset: As in `AdaptiveLoader`.
        batch_size: As in `AdaptiveLoader`.
        lr: Learning rate of the default optimizer. None: 1e-3.
        optimizer: One optimizer or several, all of which step. None: `AdamX` for all trainable parameters.
        betas: β₁ and β₂ of the default optimizer. None: (0.9, 0.999).
        eps: ε of the default optimizer. None: 1e-8.
        weight_decay: Decoupled weight decay of the default optimizer. None: 0.
        options: What else `AdaptiveLoader` takes. With `sharded=True`, `save` and `load` are called on every rank, and
            a checkpoint continues on the same number of ranks; one of torch.distributed.checkpoint does on others.

    Attributes:
        optimizers: All optimizers.

    Example:
        >>> import torch
        >>> x, y = torch.linspace(-1, 1, 300).view(100, 3), torch.arange(100) % 2
        >>> model = nn.Linear(3, 2)
        >>> trainer = AdamCB(model, torch.utils.data.TensorDataset(x, y), batch_size=10, lr=0.01)
        >>> for x, y in trainer:
        ...     loss = trainer.step(nn.functional.cross_entropy(model(x), y, reduction="none"))
        >>> trainer.epoch
        1
    """

    def __init__(
        self,
        model: nn.Module,
        dataset: Any,
        batch_size: int,
        lr: float | Tensor | None = None,
        *,
        optimizer: Optimizer | Sequence[Optimizer] | None = None,
        betas: tuple[float, float] | None = None,
        eps: float | None = None,
        weight_decay: float | None = None,
        **options: Any,
    ) -> None:
        _arguments.check_model(model)
        settings = {"betas": betas, "eps": eps, "weight_decay": weight_decay}
        self.optimizers = _arguments.optimizers_or_default(optimizer, model, lr, **settings)
        super().__init__(model, dataset, batch_size, **options)
        self._gradients_checked = self._ranks.size == 1
        self._stepped = False  # since the last batch was taken
        self._left_out = LeftOut(model, self.optimizers)

    @property
    def optimizer(self) -> Optimizer:
        """The only optimizer.

        Raises:
            AttributeError: If there are several.
        """
        if len(self.optimizers) > 1:
            raise AttributeError(f"There are {len(self.optimizers)} optimizers: use `optimizers`.")
        return next(iter(self.optimizers))

    def __iter__(self) -> Iterator[SelectedBatch]:
        """Yield one epoch of batches, or what is left of it after a checkpoint was loaded."""
        self._left_out.look()
        return super().__iter__()

    def _next(self, batches: Iterator[SelectedBatch]) -> SelectedBatch | None:
        self._left_out.look_again()
        batch = super()._next(batches)
        if self._stepped:
            self._zero_grad()  # not before, so that gradients can be looked at until now
        self._stepped = False
        return batch

    def step(self, losses: Tensor, *, draw: Draw | None = None) -> Tensor:
        """Weigh the losses of a batch, go backward, learn and step the optimizers.

        Gradients are set to None when the next batch is taken, so that you can look at them until then.

        Args:
            losses: float[k], one loss per sample, in the order of the batch; with W ranks, of this rank's part.
            draw: As in `weigh`.

        Returns:
            The weighted loss, detached: an unbiased estimate of the mean loss over the dataset, of all ranks together
            (if `sharded`, this rank's share of it, times W).

        Raises:
            ValueError, RuntimeError: As `weigh`.
            FloatingPointError: If a loss or a score is not finite. Parameters, optimizer and weights are as before,
                unless `feedback_delay` is above 0. The batch is given up. It is raised on all ranks (if `sharded`, on
                the one that has the sample, which must then end).
        """
        try:
            loss = self.weigh(losses, draw=draw)
        except FloatingPointError:
            self._draw = None
            raise
        self._stepped = True
        try:
            loss.backward()
        except BaseException:
            self.give_up()
            raise
        heard = self._learning.learn()  # before the step, because what it refuses must not be stepped on
        if not self._gradients_checked:
            check_same_gradients(self.optimizers)
            self._gradients_checked = True
        for optimizer in self.optimizers:
            optimizer.step()
        return loss.detach() if heard is None else heard.loss.to(loss.dtype)

    def give_up(self) -> None:
        """Forget batches that were weighed and not learned from, and their gradients."""
        super().give_up()
        self._zero_grad()

    def _zero_grad(self) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)

    def state_dict(self) -> dict[str, Any]:
        """Return all that is needed to continue bit for bit.

        That is what `AdaptiveLoader.state_dict` returns, the model, the optimizers, and the global generators of torch,
        NumPy and Python, from which dropout and random transforms draw. Learning-rate schedulers are yours to save: see
        `save`. With several ranks it is the same on all of them but for the generators.

        `dcp.save({"trainer": trainer}, ...)` of torch.distributed.checkpoint writes it, and `dcp.load` takes it to any
        number of ranks, also where `fully_shard` spread the model over them.

        Raises:
            RuntimeError: If a batch was taken and not trained on yet: save between steps.
        """
        self._finish_step()
        trained = _spread.parts(self.model, self.optimizers)
        return {**_state.collect(trained), **super().state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: D102
        trained = _spread.parts(self.model, self.optimizers)
        self._take_over({**trained, **self._parts()}, lambda: {**self._own(state), **_spread.trained(state)})

    load_state_dict.__doc__ = AdaptiveLoader.load_state_dict.__doc__

    def _take_over(self, parts: dict[str, _state.Stateful], read: Callable[[], dict[str, Any]]) -> None:
        super()._take_over(parts, read)
        self._gradients_checked = self._ranks.size == 1

    def _finish_step(self) -> None:
        self.learn()
        if self._draw is not None or self._learning.is_waiting:
            raise RuntimeError("A state must be saved between steps, and a batch is waiting to be trained on.")

    def _parts(self) -> dict[str, _state.Stateful]:
        return {"generators": _state.generators_part(self.device, self._ranks.rank), **super()._parts()}

    def _parts_of_file(self) -> dict[str, _state.Stateful]:
        """Return all parts, with model and optimizers as torch's own `state_dict` has them."""
        return {
            "model": _state.model_part(unwrapped(self.model)),
            "optimizers": _state.optimizers_part(self.optimizers),
            **self._parts(),
        }

    def save(self, path: str | os.PathLike[str], extra: Any = None, *, check: bool = False) -> None:
        """Write a checkpoint. A crash while writing leaves the older file whole.

        The file ends with a digest of its content, which `load` checks. Call `save(path, check=True)` before a long
        training: it fails now if a save would fail later.

        With several ranks, rank 0 writes, and the others may call it or not: it goes on with any number of ranks. If
        `sharded`, all ranks must call it; each writes its own shard beside the file.

        Args:
            path: Where to: a regular file, whose permissions are kept, or nothing yet. Its folder must exist.
            extra: What else you need to continue, for instance `scheduler.state_dict()`: tensors, numbers, strings,
                None, and lists, tuples and dicts of these.
            check: Write everything to a draft, remove it, and leave `path` as it is.

        Raises:
            OSError: If it cannot be written.
            TypeError: If `extra` holds something else. In both cases the older file is as it was.
            NotImplementedError: If `fully_shard` spread the model over the ranks: no rank has all of it.
        """
        path = _checks.path("path", path)
        check = _checks.boolean("check", check)
        if is_spread_model(self.model):
            raise NotImplementedError(
                "A model under `fully_shard` must be saved by torch.distributed.checkpoint, on all ranks: "
                '`dcp.save({"trainer": trainer}, checkpoint_id=folder)`.'
            )
        self._finish_step()
        is_shard = self._sharded and self._ranks.size > 1
        if not is_shard and self._ranks.rank:
            return
        state = {**_state.collect(self._parts_of_file()), "epoch": self.epoch}
        if is_shard:
            _shards.write(path, state, extra, self._ranks, self.device, check=check)
        else:
            write_checkpoint(path, state, extra, check=check)

    def load(self, path: str | os.PathLike[str]) -> Any:
        """Continue from a checkpoint; see `load_state_dict`. No code from the file is run. All ranks call it.

        Returns:
            What `save` was given as `extra`.

        Raises:
            FileNotFoundError: If there is none.
            ValueError: If the file is damaged, foreign, of another format, or does not fit. Nothing is changed then.
        """
        saved = read_checkpoint(path)
        state = saved.state
        if isinstance(state, dict) and "shards" in state:
            state = _shards.read(path, saved, self._ranks)
        try:
            self._take_over(self._parts_of_file(), lambda: state)
        except ValueError as error:
            raise ValueError(f"The checkpoint {path} cannot be used. {error}") from error
        return saved.extra
