"""The models that norms are measured on, each with a batch of its own: all take inputs and give logits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adamcb.lab.tasks import models


@dataclass(frozen=True)
class Problem:
    """A model, how to draw a batch for it, and the batch size."""

    name: str
    model: Callable[[], nn.Module]
    inputs: Callable[[int], Tensor]
    targets: Callable[[int], Tensor]
    batch_size: int = 128


class TinyGPT(nn.Module):
    """A decoder-only transformer whose output layer is its token embedding."""

    def __init__(self, *, vocabulary: int = 1024, width: int = 256, depth: int = 4, heads: int = 4, context: int = 128):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(self.norm(hidden))


class Block(nn.Module):
    """Causal attention, then two dense layers, each beside a shortcut."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, hidden: Tensor) -> Tensor:
        batch, length, width = hidden.shape
        mixed = self.mix(self.norm1(hidden)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(mixed[0], mixed[1], mixed[2], is_causal=True)
        hidden = hidden + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return hidden + self.down(F.gelu(self.up(self.norm2(hidden))))


class ConvNeXtStageClassifier(nn.Module):
    """One stage of ConvNeXt with an average and a dense layer behind it, so that there is a loss."""

    def __init__(self, channels: int = 96, depth: int = 3) -> None:
        super().__init__()
        self.stage, self.head = models.ConvNeXtStage(channels, depth), nn.Linear(channels, 10)

    def forward(self, features: Tensor) -> Tensor:
        return self.head(self.stage(features).mean((2, 3)))


def _images(*shape: int) -> Callable[[int], Tensor]:
    return lambda batch_size: torch.randn(batch_size, *shape)


def _classes(batch_size: int) -> Tensor:
    return torch.randint(10, (batch_size,))


def _tokens(batch_size: int) -> Tensor:
    return torch.randint(1024, (batch_size, 128))


MNIST, CIFAR = (1, 28, 28), (3, 32, 32)
PROBLEMS = [
    Problem("MLP, MNIST", lambda: models.mlp(MNIST, 10), _images(*MNIST), _classes),
    Problem("CNN, MNIST", lambda: models.cnn(MNIST, 10), _images(*MNIST), _classes),
    Problem("CNN, CIFAR-10", lambda: models.cnn(CIFAR, 10), _images(*CIFAR), _classes),
    Problem("VGG, CIFAR-10", lambda: models.vgg(CIFAR, 10), _images(*CIFAR), _classes),
    Problem("ResNet-18, GroupNorm", lambda: models.resnet18(CIFAR, 10, norm="group"), _images(*CIFAR), _classes),
    Problem("ConvNeXt stage, 16×16", ConvNeXtStageClassifier, _images(96, 16, 16), _classes),
    Problem("GPT, 4×256, 128 tokens", TinyGPT, _tokens, _tokens, batch_size=32),
]
