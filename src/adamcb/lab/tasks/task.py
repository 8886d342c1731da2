"""What a task is: a problem to train on, as data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset, default_collate

from adamcb import _checks
from adamcb._seeds import derived_seed
from adamcb.lab.seeds import INITIAL_MODEL
from adamcb.lab.tasks import metrics as known_metrics
from adamcb.lab.tasks.metrics import Metric, as_metric, column_of
from adamcb.lab.tasks.schedules import SCHEDULES
from adamcb.training import SCORES

OPTIMIZERS = ("adam", "adamw", "sgd", "muon", "adamx")
# How many samples are looked at before training begins.
_FEW = 4


@dataclass(frozen=True, eq=False)
class Task:
    """A problem: a model, data, a loss for every sample, and what the result is judged by.

    Attributes:
        name: Letters, digits, dashes, dots and underscores; result folders are named after it.
        model: Called without arguments, builds a new model. Its parameters may depend on torch's global generator.
        train: A map-style dataset of training samples.
        test: A map-style dataset of test samples.
        loss: loss(model, batch) → float[k], one loss for each sample of a collated batch. None: the cross-entropy of
            model(x) for x, y = batch.
        predict: predict(model, batch) → (outputs, targets), what the metrics are computed from. None: model(x) and y
            for x, y = batch.
        metrics: Name → `Metric`, or a function(outputs, targets) → float of which more is better. Names are letters,
            digits, spaces and a few marks; columns are named after them. None: accuracy where `loss` and `predict` are
            None, and nothing but the loss otherwise.
        batch_size: K.
        lr: Learning rate.
        schedule: Of the learning rate; one of `SCHEDULES`.
        epochs: How many.
        optimizer: One of `OPTIMIZERS`, for all methods that do not bring their own.
        weight_decay: Of the optimizer.
        scores: What `adamcb` learns from, as `AdaptiveLoader` takes it. None: as it comes.

    Raises:
        TypeError, ValueError: An argument is not as it should be.

    Example:
        >>> import torch
        >>> data = torch.utils.data.TensorDataset(torch.linspace(-1, 1, 300).view(100, 3), torch.arange(100) % 2)
        >>> task = Task("small", lambda: nn.Linear(3, 2), data, data, batch_size=10, epochs=2)
        >>> sorted(task.metrics)
        ['accuracy']
    """

    name: str
    model: Callable[[], nn.Module]
    train: Any
    test: Any
    _: KW_ONLY
    loss: Callable[[nn.Module, Any], Tensor] | None = None
    predict: Callable[[nn.Module, Any], tuple[Tensor, Tensor]] | None = None
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    batch_size: int = 128
    lr: float = 1e-3
    schedule: str = "cosine"
    epochs: int = 10
    optimizer: str = "adam"
    weight_decay: float = 0.0
    scores: str | Callable[[Tensor], Tensor] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name or not set(self.name) <= _NAME_LETTERS:
            rule = "be letters, digits, dashes, dots and underscores"
            raise ValueError(f"`name` of a task must {rule}, got name={self.name!r}.")
        for role in ("model", "loss", "predict"):
            value = getattr(self, role)
            if not callable(value) and not (value is None and role != "model"):
                raise TypeError(f"`{role}` of a task must be a function, got a {type(value).__name__}.")
        if isinstance(self.model, nn.Module):
            raise TypeError("`model` of a task must be a function that builds a model, got a model: it is used twice.")
        for role in ("train", "test"):
            check_dataset(role, getattr(self, role))
        object.__setattr__(self, "metrics", _checked_metrics(self.metrics, self.is_plain))
        for counted in ("batch_size", "epochs"):
            object.__setattr__(self, counted, _checks.count(counted, getattr(self, counted)))
        object.__setattr__(self, "lr", _checks.real("lr", self.lr, low=0.0, low_open=True))
        object.__setattr__(self, "weight_decay", _checks.real("weight_decay", self.weight_decay, low=0.0))
        check_scores(self.scores)
        _checks.one_of("schedule", self.schedule, SCHEDULES)
        _checks.one_of("optimizer", self.optimizer, OPTIMIZERS)

    @property
    def is_plain(self) -> bool:
        """Whether this is classification of (x, y) by cross-entropy, for which one forward pass gives everything."""
        return self.loss is None and self.predict is None

    def losses(self, model: nn.Module, batch: Any) -> Tensor:
        """Return float[k], the loss of every sample of a batch."""
        if self.loss is not None:
            return self.loss(model, batch)
        inputs, labels = batch
        return F.cross_entropy(model(inputs), labels, reduction="none")

    def predictions(self, model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
        """Return outputs and targets of a batch."""
        if self.predict is not None:
            return self.predict(model, batch)
        inputs, targets = batch
        return model(inputs), targets

    def prepared(self, seed: int) -> Task:
        """Return the task as the run with this seed sees it."""
        return self


_NAME_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.")

# What the name of a metric may hold beside letters and digits.
_METRIC_MARKS = " -_.@%+/()"


def _checked_metrics(given: Any, is_plain: bool) -> dict[str, Metric]:
    if given is None or (isinstance(given, Mapping) and not given):
        return {"accuracy": known_metrics.accuracy} if is_plain else {}
    if not isinstance(given, Mapping):
        raise TypeError(f"`metrics` of a task must be a dict from name to function, got a {type(given).__name__}.")
    columns = {"loss"}
    for name, metric in given.items():
        _check_metric_name(name, columns)
        if not callable(metric):
            raise TypeError(f"`metrics[{name!r}]` of a task must be a function, got a {type(metric).__name__}.")
    return {name: as_metric(metric) for name, metric in given.items()}


def _check_metric_name(name: Any, columns: set[str]) -> None:
    """Raise if a name cannot head a column, or heads one of `columns`; add it to them otherwise."""
    letters = isinstance(name, str) and any(letter.isalnum() for letter in name)
    if not letters or not all(letter.isalnum() or letter in _METRIC_MARKS for letter in name):
        rule = f"have names of letters, digits, spaces and {' '.join(_METRIC_MARKS.strip())}"
        raise ValueError(f"`metrics` of a task must {rule}, got {name!r}.")
    column = column_of(name)
    if column in columns:
        rule = "have names other than 'loss', of which no two are the same but for marks and capitals"
        raise ValueError(f"`metrics` of a task must {rule}, got {name!r}.")
    columns.add(column)


def check_scores(value: Any) -> None:
    """Raise unless `value` is what a selection can learn from, or None."""
    if isinstance(value, str):
        _checks.one_of("scores", value, SCORES)
    elif value is not None and not callable(value):
        words = ", ".join(map(repr, SCORES))
        raise _checks.wrong_type("scores", f"be one of {words}, or a function of the losses", value)


def check_dataset(name: str, dataset: Any) -> None:
    """Raise unless `dataset` is map-style and not empty."""
    _checks.map_style(name, dataset)
    if len(dataset) != len(dataset):
        raise ValueError(f"`{name}` of a task must keep its length, got different lengths from one call to the next.")


def fetch(dataset: Any, indices: Sequence[int] | range) -> Any:
    """Return the collated batch of these samples."""
    if type(dataset) is TensorDataset:
        where: Any = slice(indices.start, indices.stop) if isinstance(indices, range) else torch.as_tensor(indices)
        return tuple(tensor[where] for tensor in dataset.tensors)
    batched = getattr(dataset, "__getitems__", None)
    return default_collate(batched(list(indices)) if batched else [dataset[index] for index in indices])


def to_device(batch: Any, device: torch.device | str, layout: torch.memory_format = torch.preserve_format) -> Any:
    """Return a batch whose tensors are on `device`; images, which have four dimensions, in `layout`."""
    if isinstance(batch, Tensor):
        return batch.to(device, memory_format=layout if batch.dim() == 4 else torch.preserve_format)
    if isinstance(batch, Mapping):
        return {name: to_device(value, device, layout) for name, value in batch.items()}
    if isinstance(batch, (list, tuple)):
        moved = [to_device(value, device, layout) for value in batch]
        return type(batch)(*moved) if hasattr(batch, "_fields") else type(batch)(moved)
    return batch


def sample_indices(size: int, count: int) -> np.ndarray:
    """Return `count` indices, spread evenly over a dataset; all of them if there are no more."""
    return np.unique(np.linspace(0, size - 1, min(count, size)).astype(np.int64))


def few_indices(dataset: Any) -> list[int]:
    """Return the indices of the samples that are looked at before training begins."""
    return sample_indices(len(dataset), _FEW).tolist()


def initial_model(task: Task, seed: int, device: str) -> nn.Module:
    """Return the model that every method of a seed starts from."""
    with torch.random.fork_rng():
        torch.manual_seed(derived_seed(seed, INITIAL_MODEL))
        model = task.model()
    return model.to(device)
