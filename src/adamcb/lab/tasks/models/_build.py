"""From a model's name to the model."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence

import torch
from torch import nn

from adamcb import _checks
from adamcb.lab.references import load_object
from adamcb.lab.tasks.models._convnext import convnext_base, convnext_large
from adamcb.lab.tasks.models._paper import ImageShape, cnn, logistic, mlp, vgg
from adamcb.lab.tasks.models._resnet import resnet18

_BUILDERS: dict[str, Callable[[ImageShape, int], nn.Module]] = {
    "logistic": logistic,
    "mlp": mlp,
    "cnn": cnn,
    "vgg": vgg,
    "resnet18": resnet18,
    "convnext-base": convnext_base,
    "convnext-large": convnext_large,
}
MODEL_NAMES = tuple(_BUILDERS)


def build_model(name: str, *, image_shape: Sequence[int], num_classes: int) -> nn.Module:
    """Return a freshly initialized model by name, or from a file.

    Args:
        name: one of `MODEL_NAMES`, or "FILE.py:NAME", where NAME is a function or class that returns a module. It is
            called with those of the keywords `image_shape` and `num_classes` that it accepts.
        image_shape: (channels, height, width).
        num_classes: number of logits.

    Raises:
        ValueError: the name is unknown, or the images are too small for the model.
        TypeError: what the file's NAME returned is not a module.

    Example:
        >>> model = build_model("mlp", image_shape=(1, 28, 28), num_classes=10)
        >>> sum(parameter.numel() for parameter in model.parameters())
        535818
    """
    shape = _check_shape(image_shape)
    _checks.integer("num_classes", num_classes, low=1)
    if ":" in name:
        return _from_file(name, shape, num_classes)
    _checks.one_of("name", name, (*MODEL_NAMES, "FILE.py:NAME"))
    return _BUILDERS[name](shape, num_classes)


def _check_shape(image_shape: Sequence[int]) -> ImageShape:
    if len(image_shape) != 3:
        raise ValueError(f"`image_shape` must be (channels, height, width), got image_shape={tuple(image_shape)}.")
    channels, height, width = (_checks.integer("image_shape", size, low=1) for size in image_shape)
    return channels, height, width


def _from_file(reference: str, image_shape: ImageShape, num_classes: int) -> nn.Module:
    build = load_object(reference, "model")
    if not callable(build):
        raise TypeError(f"`model` must name a function or class, got model={reference!r}, a {type(build).__name__}.")
    offered = {"image_shape": image_shape, "num_classes": num_classes}
    parameters = inspect.signature(build).parameters
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        offered = {key: value for key, value in offered.items() if key in parameters}
    model = build(**offered)
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"`model` must name what returns an nn.Module, got model={reference!r}: {type(model).__name__}."
        )
    return model


def forward_layout(model: nn.Module) -> torch.memory_format:
    """Return the layout of images in which forward passes without gradients are fast.

    On a CPU, convolutional networks are up to twice as fast with channels last: in the usual layout max pooling takes
    half the time.
    """
    convolves = any(isinstance(part, nn.Conv2d) for part in model.modules())
    return torch.channels_last if convolves else torch.preserve_format
