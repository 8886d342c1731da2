"""Whole networks, in float64, against `vmap(grad)` or K single passes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from adamcb.lab.tasks import models
from benchmarks.norms_models import ConvNeXtStageClassifier, TinyGPT
from tests.gradnorm.checking import check, randomize
from tests.reference.gradnorm import norms_by_vmap, norms_one_by_one

MNIST, CIFAR = (1, 28, 28), (3, 32, 32)


def images(*shape: int, batch_size: int = 3) -> torch.Tensor:
    return torch.randn(batch_size, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def scaled(model: nn.Module) -> nn.Module:
    """Return the model as initialized, but with norm layers and layer scales away from ones and zeros."""
    torch.manual_seed(0)
    for parameter in model.parameters():
        if parameter.dim() < 2:
            nn.init.normal_(parameter, 0.5, 0.3)
    return model


@pytest.mark.parametrize(
    ("build", "inputs"),
    [
        pytest.param(lambda: models.mlp(MNIST, 10), images(*MNIST, batch_size=5), id="MLP"),
        pytest.param(lambda: models.cnn(MNIST, 10), images(*MNIST, batch_size=4), id="CNN on MNIST"),
        pytest.param(lambda: models.cnn(CIFAR, 10), images(*CIFAR), id="CNN on CIFAR-10"),
        pytest.param(lambda: models.vgg(CIFAR, 10), images(*CIFAR), id="VGG"),
        pytest.param(lambda: models.resnet18(CIFAR, 10, norm="group"), images(*CIFAR, batch_size=2), id="ResNet-18"),
        pytest.param(lambda: models.resnet18(CIFAR, 10).eval(), images(*CIFAR, batch_size=2), id="BatchNorm, eval"),
        pytest.param(lambda: ConvNeXtStageClassifier(96, 3), images(96, 6, 6), id="ConvNeXt stage"),
    ],
)
def test_network_agrees_with_vmap(build, inputs):
    torch.manual_seed(0)
    check(scaled(build()).double(), inputs, norms_by_vmap)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_gpt_with_tied_embeddings_agrees_with_vmap():
    model = TinyGPT(vocabulary=19, width=16, depth=2, heads=2, context=9)
    tokens = torch.randint(19, (4, 9), generator=torch.Generator().manual_seed(2))
    check(randomize(model.double()), tokens, norms_by_vmap)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_gpt_with_as_many_samples_as_tokens_and_channels():
    model = TinyGPT(vocabulary=8, width=8, depth=1, heads=2, context=8)
    tokens = torch.randint(8, (8, 8), generator=torch.Generator().manual_seed(2))
    check(randomize(model.double()), tokens, norms_by_vmap)


def test_vision_transformer_with_class_token():
    check(randomize(VisionTransformer().double()), images(3, 8, 8), norms_one_by_one)


class VisionTransformer(nn.Module):
    """Patches, a class token that is expanded to the batch, learned positions, two encoder layers."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 6, 4, stride=4)
        self.token, self.positions = nn.Parameter(torch.zeros(1, 1, 6)), nn.Parameter(torch.zeros(1, 5, 6))
        layer = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(6, 3)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        patches = self.patches(pictures).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(len(pictures), -1, -1), patches], 1)
        return self.head(self.encoder(tokens + self.positions)[:, 0])
