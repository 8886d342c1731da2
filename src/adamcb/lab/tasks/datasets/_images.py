"""What a dataset is once loaded, and the one way in which pixels become numbers.

Pixels are scaled to [0, 1], then each channel is shifted and divided so that its mean over the training images is 0 and
its standard deviation 1; the test images get the numbers of the training images. The paper does not say what it did.
The numbers come from the whole training set, also when only a fraction of it is used, so that an image has the same
values whatever the fraction.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.data import TensorDataset


@dataclass(frozen=True, eq=False)
class ImageData:
    """An image-classification dataset, in memory.

    Attributes:
        name: what it was asked for by; for a folder, the folder's name.
        train: images float32 [n, channels, height, width], standardized, and labels int64 [n].
        test: the same for the test images.
        num_classes: number of classes.
        image_shape: (channels, height, width).
        class_names: one name per class, in the order of the labels.
        mean: the mean of each channel of the training images scaled to [0, 1].
        std: the standard deviation of the same.
        note: what the reader of a result should know about the data; empty if nothing.
    """

    name: str
    train: TensorDataset
    test: TensorDataset
    num_classes: int
    image_shape: tuple[int, int, int]
    class_names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    note: str = ""

    def to_pixels(self, images: Tensor) -> Tensor:
        """Return standardized images [N, channels, height, width] as pictures: uint8 [N, height, width, channels]."""
        mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (self.mean, self.std))
        scaled = (images.detach().cpu() * std + mean) * 255.0
        return scaled.round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1)


@dataclass(frozen=True, eq=False)
class RawImages:
    """Pixels as a reader found them: images uint8 [n, channels, height, width], labels int64 [n]."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    class_names: tuple[str, ...]
    white: int = 255
    note: str = ""


def finish(raw: RawImages, name: str, *, fraction: float, fraction_seed: int) -> ImageData:
    """Take the fraction of each split, standardize, and wrap up."""
    mean, std = channel_moments(raw.train_images, raw.white)
    splits = []
    for images, labels in ((raw.train_images, raw.train_labels), (raw.test_images, raw.test_labels)):
        if fraction < 1.0:
            chosen = stratified_subset(labels, fraction, seed=fraction_seed)
            images, labels = images[chosen], labels[chosen]
        splits.append(TensorDataset(_standardize(images, raw.white, mean, std), labels))
    channels, height, width = raw.train_images.shape[1:]
    return ImageData(
        name=name,
        train=splits[0],
        test=splits[1],
        num_classes=len(raw.class_names),
        image_shape=(channels, height, width),
        class_names=raw.class_names,
        mean=mean,
        std=std,
        note=raw.note,
    )


def channel_moments(images: Tensor, white: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of each channel of uint8 images, scaled so that `white` is 1.

    From counts of the 256 values, so exact to float64 and without a float copy of the images. The deviation of a
    constant channel is given as 1.
    """
    values = torch.arange(256, dtype=torch.float64) / white
    means, deviations = [], []
    for channel in images.unbind(1):
        shares = torch.bincount(channel.flatten(), minlength=256).double() / channel.numel()
        mean = (shares * values).sum()
        variance = (shares * (values - mean) ** 2).sum().item()
        means.append(mean.item())
        deviations.append(variance**0.5 if variance > 0.0 else 1.0)
    return tuple(means), tuple(deviations)


def stratified_subset(labels: Tensor, fraction: float, *, seed: int) -> Tensor:
    """Return the sorted indices of a random part of every class, at least one sample of each class that occurs.

    With the same seed a larger fraction contains a smaller one.
    """
    generator = torch.Generator().manual_seed(seed)
    chosen = []
    for label in labels.unique():
        members = (labels == label).nonzero().flatten()
        order = torch.randperm(len(members), generator=generator)
        chosen.append(members[order[: max(1, round(fraction * len(members)))]])
    return torch.cat(chosen).sort().values


def _standardize(images: Tensor, white: int, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    shift, scale = (torch.tensor(values, dtype=torch.float32).view(-1, 1, 1) for values in (mean, std))
    # In place after the one copy: CIFAR-10 takes 0.6 GB as float32.
    return images.to(torch.float32, memory_format=torch.contiguous_format).div_(white).sub_(shift).div_(scale)
