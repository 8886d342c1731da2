"""One loss per sample for models of Transformers, whose own losses are averages over a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

IGNORED = -100  # the label of what is not to be predicted, everywhere in Transformers


def sample_losses(kind: str, config: Any, logits: Tensor, labels: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Return float[K], each sample's loss summed over what it has to predict: tokens, or the one label.

    Args:
        kind: The model's `loss_type`, one of `KINDS`.
        config: The model's.
        logits: What it returned, the samples first.
        labels: What it should have predicted.
        label_smoothing: As in `torch.nn.functional.cross_entropy`, whose definition is that of Transformers.
    """
    # As Transformers does; float64 stays.
    exact = logits if logits.dtype == torch.float64 else logits.float()
    return _LOSSES[kind](config, exact, labels.to(logits.device), label_smoothing)


def count_items(kind: str, labels: Tensor) -> Tensor:
    """Return int64[K], how many predictions each sample's loss is the sum of."""
    if kind not in _TOKEN_LOSSES:
        return torch.ones(len(labels), dtype=torch.int64)
    return (labels[:, 1:] if kind == "ForCausalLM" else labels).ne(IGNORED).sum(dim=1)


def _next_token(config: Any, logits: Tensor, labels: Tensor, label_smoothing: float) -> Tensor:
    return _each_token(config, logits[:, :-1], labels[:, 1:], label_smoothing)


def _each_token(config: Any, logits: Tensor, labels: Tensor, label_smoothing: float) -> Tensor:
    losses = F.cross_entropy(
        logits.transpose(1, 2), labels, ignore_index=IGNORED, reduction="none", label_smoothing=label_smoothing
    )
    return losses.sum(dim=1)


def _label(config: Any, logits: Tensor, labels: Tensor, label_smoothing: float) -> Tensor:
    kind = config.problem_type
    if kind is None:
        integers = not (labels.is_floating_point() or labels.is_complex())
        many = "single_label_classification" if integers else "multi_label_classification"
        kind = "regression" if config.num_labels == 1 else many
    if kind == "single_label_classification":
        return F.cross_entropy(
            logits, labels.view(-1), ignore_index=IGNORED, reduction="none", label_smoothing=label_smoothing
        )
    per_output = F.mse_loss if kind == "regression" else F.binary_cross_entropy_with_logits
    flat = logits.reshape(len(logits), -1)
    return per_output(flat, labels.view_as(flat).to(flat.dtype), reduction="none").mean(dim=1)


_Loss = Callable[[Any, torch.Tensor, torch.Tensor, float], torch.Tensor]
_TOKEN_LOSSES: dict[str, _Loss] = {
    "ForCausalLM": _next_token,
    "ForMaskedLM": _each_token,
    "ForTokenClassification": _each_token,
}
_LOSSES: dict[str, _Loss] = {
    **_TOKEN_LOSSES,
    "ForSequenceClassification": _label,
    "ForImageClassification": _label,
    "ForVideoClassification": _label,
    "ForAudioClassification": _label,
}
KINDS = frozenset(_LOSSES)
