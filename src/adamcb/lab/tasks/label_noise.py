"""Wrong labels, on purpose: what a method does with samples that cannot be learned."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch.utils.data import TensorDataset

from adamcb.lab.tasks.datasets import ImageData


def with_wrong_labels(data: ImageData, share: float, seed: int) -> ImageData:
    """Return `data` with that share of its training labels, rounded, replaced by another class.

    Which samples, and which of the other classes (each as likely), follows from `seed`. Images are shared with `data`.
    """
    images, labels = data.train.tensors
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(len(labels), generator=generator)[: round(share * len(labels))]
    # A step of 1 to classes − 1 around the circle of classes never leads back to the right one.
    steps = torch.randint(1, max(2, data.num_classes), (len(chosen),), generator=generator)
    wrong = labels.clone()
    wrong[chosen] = (labels[chosen] + steps) % data.num_classes
    return replace(data, train=TensorDataset(images, wrong))
