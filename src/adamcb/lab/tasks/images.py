"""Classification of images: every built-in dataset with every model is a task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adamcb._seeds import derived_seed
from adamcb.lab.seeds import WRONG_LABELS
from adamcb.lab.tasks import metrics
from adamcb.lab.tasks.datasets import ImageData, load_dataset
from adamcb.lab.tasks.label_noise import with_wrong_labels
from adamcb.lab.tasks.models import build_model
from adamcb.lab.tasks.task import Task

# Digits are few, so an epoch is short.
EPOCHS = {"digits": 30}


@dataclass(frozen=True, eq=False)
class ImageTask(Task):
    """A task whose samples are pictures with a label.

    Attributes:
        data: The dataset; `train` and `test` are its splits.
        label_noise: The part of the training labels that every run makes wrong; None: none.
    """

    _: KW_ONLY
    data: ImageData
    label_noise: float | None = None

    def prepared(self, seed: int) -> ImageTask:
        """Return the task with the wrong labels of this seed."""
        if self.label_noise is None:
            return self
        data = with_wrong_labels(self.data, self.label_noise, derived_seed(seed, WRONG_LABELS))
        return replace(self, data=data, train=data.train)


def image_task(data: ImageData, model: str, *, label_noise: float | None = None, **settings: Any) -> ImageTask:
    """Return a model, by the name that `build_model` takes, on a dataset.

    As in the paper, the learning rate is constant by default.
    """
    build = partial(build_model, model, image_shape=data.image_shape, num_classes=data.num_classes)
    stem = model.rpartition(":")[2]
    name = "".join(letter if letter.isalnum() else "-" for letter in f"{data.name}-{stem}")
    defaults: Mapping[str, Any] = {"schedule": "constant", "epochs": EPOCHS.get(data.name, 10)}
    return ImageTask(
        name,
        build,
        data.train,
        data.test,
        data=data,
        label_noise=label_noise,
        **{**defaults, **settings},
    )


def flip_and_shift(images: Tensor, most: int = 2) -> Tensor:
    """Return images of which each is mirrored with probability ½ and moved by up to `most` pixels each way.

    Random numbers come from torch's global generator, as in torchvision. What is moved in from outside is the value of
    the picture's border.
    """
    count, _, height, width = images.shape
    rows = torch.arange(height) + torch.randint(-most, most + 1, (count, 1))
    columns = torch.arange(width) + torch.randint(-most, most + 1, (count, 1))
    columns = torch.where(torch.rand(count, 1) < 0.5, width - 1 - columns, columns)
    rows, columns = rows.clamp(0, height - 1).to(images.device), columns.clamp(0, width - 1).to(images.device)
    moved = images.gather(2, rows[:, None, :, None].expand(images.shape))
    return moved.gather(3, columns[:, None, None, :].expand(images.shape))


def augmented_loss(model: nn.Module, batch: Any) -> Tensor:
    """Return the cross-entropy of every sample; in training, of flipped and shifted pictures."""
    images, labels = batch
    return F.cross_entropy(model(flip_and_shift(images) if model.training else images), labels, reduction="none")


def class_logits(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    """Return logits and labels."""
    images, labels = batch
    return model(images), labels


# By name, what it changes in a task.
AUGMENTATIONS: dict[str, dict[str, Any]] = {
    "flip-and-shift": {"loss": augmented_loss, "predict": class_logits, "metrics": {"accuracy": metrics.accuracy}}
}


def fashion_mnist_augmented(data_dir: str | None = None) -> ImageTask:
    """Return the CNN on Fashion-MNIST as people train it: flips and shifts, AdamW, cosine decay."""
    task = image_task(
        load_dataset("fashion-mnist", data_dir=data_dir),
        "cnn",
        **AUGMENTATIONS["flip-and-shift"],
        schedule="cosine",
        epochs=8,
        optimizer="adamw",
        weight_decay=0.01,
    )
    return replace(task, name="fashion-mnist-cnn-augmented")
