"""A small GPT on Tiny Shakespeare, letter by letter. A sample is a sequence of 64 letters.

The file is text/tinyshakespeare.txt. The first nine tenths are for training, the rest for testing.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from adamcb.lab.tasks import metrics
from adamcb.lab.tasks.datasets import DataFileError, find_file
from adamcb.lab.tasks.task import Task

LENGTH = 64
TRAIN_SHARE = 0.9


def shakespeare(data_dir: str | None = None) -> Task:
    """Return the task: predict the next letter, with AdamW, warmup and cosine decay."""
    train, test, num_letters = read_text(find_file("text", "tinyshakespeare.txt", data_dir))
    return Task(
        "shakespeare",
        partial(GPT, num_letters),
        train,
        test,
        loss=sequence_loss,
        predict=letter_losses,
        metrics={"perplexity": metrics.perplexity},
        batch_size=32,
        schedule="warmup-cosine",
        epochs=5,
        optimizer="adamw",
        weight_decay=0.1,
    )


def read_text(path: Path, length: int = LENGTH) -> tuple[TensorDataset, TensorDataset, int]:
    """Return sequences int64 [n, length + 1] for training and for testing, and how many different letters there are."""
    try:
        text = path.read_text(encoding="utf-8")
    except ValueError as error:
        raise DataFileError(f"{path} must be a text in UTF-8: {error}.") from error
    letters = {letter: number for number, letter in enumerate(sorted(set(text)))}
    codes = torch.tensor([letters[letter] for letter in text])
    split = int(TRAIN_SHARE * len(codes))
    if min(split, len(codes) - split) <= length:
        raise DataFileError(f"{path} must have more than {10 * length} letters, got {len(codes)}.")
    train, test = (part.unfold(0, length + 1, length).contiguous() for part in (codes[:split], codes[split:]))
    return TensorDataset(train), TensorDataset(test), len(letters)


class Block(nn.Module):
    """A layer of a Transformer: causal attention and an MLP, each after a LayerNorm and added to its input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.join = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Return float [batch, length, width]."""
        batch, length, width = x.shape
        joint = self.attention(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = joint.permute(2, 0, 3, 1, 4).unbind()
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.join(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """A decoder of 0.8 million parameters: letters int64 [batch, length] to logits [batch, length, letters]."""

    def __init__(self, num_letters: int, length: int = LENGTH, width: int = 128, layers: int = 4) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(num_letters, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, 4) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, num_letters)
        for embedding in (self.letters, self.places):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, letters: Tensor) -> Tensor:
        """Return the logits of the letters that follow."""
        places = torch.arange(letters.shape[1], device=letters.device)
        return self.head(self.norm(self.blocks(self.letters(letters) + self.places(places))))


def letter_losses(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    """Return the negative log-likelihood of every letter, float [k, length], and the letters."""
    (letters,) = batch
    targets = letters[:, 1:]
    return F.cross_entropy(model(letters[:, :-1]).transpose(1, 2), targets, reduction="none"), targets


def sequence_loss(model: nn.Module, batch: Any) -> Tensor:
    """Return the mean loss of every sequence."""
    return letter_losses(model, batch)[0].mean(1)
