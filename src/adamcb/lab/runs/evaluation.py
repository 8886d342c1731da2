"""Loss and accuracy on all samples of a dataset."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from adamcb.lab.tasks.models import forward_layout

# Small enough for the processor's caches: of a CNN, 1000 at a time take twice as long.
EVALUATION_BATCH = 128
LOOK_SECONDS = 0.2


def evaluate(
    model: nn.Module, samples: TensorDataset, device: torch.device, look: Callable[[], None]
) -> tuple[float, float]:
    """Return mean loss and accuracy; `look` is called between batches."""
    images, labels = samples.tensors
    loss = correct = 0.0
    next_look = time.monotonic() + LOOK_SECONDS
    for part, target in zip(images.split(EVALUATION_BATCH), labels.split(EVALUATION_BATCH), strict=True):
        losses, predictions = predict(model, part, target, device)
        loss += losses.double().sum().item()
        correct += (predictions == target).sum().item()
        if time.monotonic() >= next_look:
            look()
            next_look = time.monotonic() + LOOK_SECONDS
    return loss / len(labels), correct / len(labels)


def predict(model: nn.Module, images: Tensor, labels: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the loss and the predicted class of every sample."""
    model.eval()
    with torch.no_grad():
        logits = model(images.to(device, memory_format=forward_layout(model))).cpu()
    return F.cross_entropy(logits, labels, reduction="none"), logits.argmax(1)
