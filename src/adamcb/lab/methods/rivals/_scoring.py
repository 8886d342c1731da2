"""A forward pass ahead of the choice: what the model makes of samples that may become a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adamcb.lab.tasks.models import forward_layout
from adamcb.lab.tasks.task import fetch, to_device


@dataclass(frozen=True, eq=False)
class Looked:
    """What a forward pass says of m samples; what nobody asks for is not computed."""

    logits: Tensor
    labels: Tensor

    @property
    def losses(self) -> np.ndarray:
        """float64[m], the cross-entropy of each."""
        return F.cross_entropy(self.logits, self.labels, reduction="none").double().cpu().numpy()

    @property
    def bounds(self) -> np.ndarray:
        """float64[m], ‖softmax − onehot‖, the norm of each sample's gradient at the logits.

        Times a constant it bounds the norm of the whole gradient (Katharopoulos and Fleuret 2018).
        """
        errors = self.logits.softmax(1) - F.one_hot(self.labels, self.logits.shape[1])
        return torch.linalg.vector_norm(errors, dim=1).double().cpu().numpy()


class Scorer:
    """Looks at samples of a dataset by the model as it is now, without gradients.

    Args:
        model: The model in training. It is put into evaluation mode for the pass: dropout would score another model.
        samples: A dataset of inputs and labels.
        device: Where the model is.
    """

    def __init__(self, model: nn.Module, samples: Any, device: torch.device | str) -> None:
        self.model, self.samples, self.device = model, samples, torch.device(device)
        self._layout = forward_layout(model)

    def __call__(self, indices: np.ndarray) -> Looked:
        """Return what a forward pass says of the samples at `indices` (int64[m])."""
        inputs, labels = to_device(fetch(self.samples, indices.tolist()), self.device, self._layout)
        training = self.model.training
        self.model.eval()
        with torch.no_grad():
            logits = self.model(inputs)
        self.model.train(training)
        return Looked(logits, labels)
