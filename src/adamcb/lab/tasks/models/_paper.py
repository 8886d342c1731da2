"""The paper's small models: logistic regression, and its Tables 3 (MLP), 4 (CNN) and 5 (VGG).

The tables give shapes only. 3×3 kernels with padding 1 and 2×2 pooling with stride 2 fit every one of them. Each table
has a left half for 28×28×1 and a right half for 32×32×3; here one channel takes the left half and any other number
the right half, so that images of other sizes work too: only the width of the first dense layer changes.

Followed to the letter: a row that says "Dense" has no ReLU, also between the dense layers of CNN and VGG, so there two
(or three) linear layers follow each other. Adding the ReLUs would make other models than the paper's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import nn

ImageShape = tuple[int, int, int]


def logistic(image_shape: ImageShape, num_classes: int) -> nn.Sequential:
    """Return multinomial logistic regression: one dense layer on the pixels."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(image_shape), num_classes))


def mlp(image_shape: ImageShape, num_classes: int) -> nn.Sequential:
    """Return the multilayer perceptron of Table 3: pixels → 512 → 256 → classes."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(math.prod(image_shape), 512),
        nn.ReLU(),
        nn.Linear(512, 256),
        nn.ReLU(),
        nn.Linear(256, num_classes),
    )


def cnn(image_shape: ImageShape, num_classes: int) -> nn.Sequential:
    """Return the CNN of Table 4: convolutions of 32, 64 (one channel) or 64, 128, 256 channels, each pooled."""
    if image_shape[0] == 1:
        return _convolutional("cnn", image_shape, stages=((32,), (64,)), dense=(128, num_classes))
    return _convolutional("cnn", image_shape, stages=((64,), (128,), (256,)), dense=(512, num_classes))


def vgg(image_shape: ImageShape, num_classes: int) -> nn.Sequential:
    """Return the VGG of Table 5: 2 convolutions of 64, 2 of 128 and 3 of 256 channels, then three dense layers."""
    stages = ((64, 64), (128, 128), (256, 256, 256))
    return _convolutional("vgg", image_shape, stages=stages, dense=(512, 512, num_classes))


def _convolutional(
    name: str, image_shape: ImageShape, *, stages: Sequence[Sequence[int]], dense: Sequence[int]
) -> nn.Sequential:
    """Chain stages of 3×3 convolutions with ReLU, each ended by 2×2 pooling, and plain dense layers."""
    channels, height, width = image_shape
    smallest = 2 ** len(stages)
    if min(height, width) < smallest:
        raise ValueError(f"`image_shape` must be at least {smallest}×{smallest} for {name}, got {image_shape=}.")
    layers: list[nn.Module] = []
    for stage in stages:
        for out_channels in stage:
            layers += [nn.Conv2d(channels, out_channels, kernel_size=3, padding=1), nn.ReLU()]
            channels = out_channels
        layers.append(nn.MaxPool2d(2))
        height, width = height // 2, width // 2
    layers.append(nn.Flatten())
    features = channels * height * width
    for out_features in dense:
        layers.append(nn.Linear(features, out_features))
        features = out_features
    return nn.Sequential(*layers)
