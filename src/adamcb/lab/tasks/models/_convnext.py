"""ConvNeXt, from its published description (Liu et al. 2022, arXiv:2201.03545).

A stem of 4×4 patches, four stages of blocks with a halving of the image between them, global average pooling and one
dense layer. Normalization is over channels, with the channels last, as in the paper. The image must be at least 32×32,
since it is divided by 32 in all; at exactly 32×32 the last stage works on a single position.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from adamcb import _checks

LAYER_NORM_EPS = 1e-6
INITIAL_LAYER_SCALE = 1e-6


def convnext_base(image_shape: tuple[int, int, int], num_classes: int, *, drop_path: float = 0.0) -> ConvNeXt:
    """Return ConvNeXt-Base: 88,591,464 parameters at 3 channels and 1,000 classes."""
    _check_size(image_shape)
    return ConvNeXt((3, 3, 27, 3), (128, 256, 512, 1024), num_classes, in_channels=image_shape[0], drop_path=drop_path)


def convnext_large(image_shape: tuple[int, int, int], num_classes: int, *, drop_path: float = 0.0) -> ConvNeXt:
    """Return ConvNeXt-Large: 197,767,336 parameters at 3 channels and 1,000 classes."""
    _check_size(image_shape)
    return ConvNeXt((3, 3, 27, 3), (192, 384, 768, 1536), num_classes, in_channels=image_shape[0], drop_path=drop_path)


class ConvNeXt(nn.Module):
    """A ConvNeXt of any size.

    Args:
        depths: blocks per stage; as many stages as there are entries.
        widths: channels per stage.
        num_classes: number of logits.
        in_channels: channels of the images.
        drop_path: stochastic depth: the probability with which the last block is skipped for a sample in training;
            it grows linearly from 0 at the first block. Off (0) by default.

    Example:
        >>> ConvNeXt((1, 1), (8, 16), num_classes=10)(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        depths: Sequence[int],
        widths: Sequence[int],
        num_classes: int,
        *,
        in_channels: int = 3,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        _checks.real("drop_path", drop_path, low=0.0, high=1.0, high_open=True)
        patches = nn.Conv2d(in_channels, widths[0], kernel_size=4, stride=4)
        self.stem = nn.Sequential(patches, *_channel_norm(widths[0]))
        rates = torch.linspace(0.0, drop_path, sum(depths), device="cpu").split(list(depths))
        stages: list[nn.Module] = []
        for stage, (depth, width) in enumerate(zip(depths, widths, strict=True)):
            if stage > 0:
                halving = nn.Conv2d(widths[stage - 1], width, kernel_size=2, stride=2)
                stages.append(nn.Sequential(*_channel_norm(widths[stage - 1]), halving))
            stages.append(ConvNeXtStage(width, depth, drop_paths=rates[stage].tolist()))
        self.stages = nn.Sequential(*stages)
        self.head = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.LayerNorm(widths[-1], eps=LAYER_NORM_EPS),
            nn.Linear(widths[-1], num_classes),
        )
        self.apply(_initialize)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits [N, num_classes] of images [N, channels, height, width]."""
        return self.head(self.stages(self.stem(images)))


class ConvNeXtStage(nn.Sequential):
    """Blocks of one width, [N, channels, height, width] in and out; 96 channels and 3 blocks open ConvNeXt-Tiny.

    Args:
        channels: channels of the stage.
        depth: number of blocks.
        drop_paths: one stochastic-depth rate per block; all 0 if None.
    """

    def __init__(self, channels: int = 96, depth: int = 3, *, drop_paths: Sequence[float] | None = None) -> None:
        rates = [0.0] * depth if drop_paths is None else drop_paths
        if len(rates) != depth:
            raise ValueError(f"`drop_paths` must have one entry for each of {depth} blocks, got {len(rates)} entries.")
        super().__init__(*(ConvNeXtBlock(channels, drop_path=rate) for rate in rates))
        self.apply(_initialize)


class ConvNeXtBlock(nn.Module):
    """x + scale · MLP(LayerNorm(depthwise 7×7 (x))), the MLP acting on the channels of each position."""

    def __init__(self, channels: int, *, drop_path: float = 0.0) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            nn.Conv2d(channels, channels, kernel_size=7, padding=3, groups=channels),
            Permute(0, 2, 3, 1),
            nn.LayerNorm(channels, eps=LAYER_NORM_EPS),
            nn.Linear(channels, 4 * channels),
            nn.GELU(),
            nn.Linear(4 * channels, channels),
            LayerScale(channels),
            Permute(0, 3, 1, 2),
        )
        self.drop_path = StochasticDepth(drop_path) if drop_path > 0.0 else nn.Identity()

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the input plus the residual branch."""
        return inputs + self.drop_path(self.residual(inputs))


class LayerScale(nn.Module):
    """Multiplies each channel (last dimension) by a learned number that starts near 0."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((channels,), INITIAL_LAYER_SCALE))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return weight · inputs."""
        return inputs * self.weight


class StochasticDepth(nn.Module):
    """In training, zeroes a whole sample with probability `rate` and divides the others by 1 − rate."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = _checks.real("rate", rate, low=0.0, high=1.0, high_open=True)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the inputs, some of the samples zeroed when in training mode."""
        if not self.training or self.rate == 0.0:
            return inputs
        shape = (len(inputs),) + (1,) * (inputs.dim() - 1)
        kept = inputs.new_empty(shape).bernoulli_(1.0 - self.rate)
        return inputs * kept / (1.0 - self.rate)


class Permute(nn.Module):
    """Reorders dimensions, so that ordinary layers see channels where they expect them."""

    def __init__(self, *dims: int) -> None:
        super().__init__()
        self.dims = dims

    def forward(self, inputs: Tensor) -> Tensor:
        """Return inputs.permute(dims)."""
        return inputs.permute(self.dims)

    def extra_repr(self) -> str:
        """Return the order of dimensions, for printing."""
        return ", ".join(map(str, self.dims))


def _channel_norm(channels: int) -> tuple[nn.Module, nn.Module, nn.Module]:
    return Permute(0, 2, 3, 1), nn.LayerNorm(channels, eps=LAYER_NORM_EPS), Permute(0, 3, 1, 2)


def _initialize(module: nn.Module) -> None:
    if isinstance(module, (nn.Conv2d, nn.Linear)):
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def _check_size(image_shape: tuple[int, int, int]) -> None:
    if min(image_shape[1:]) < 32:
        raise ValueError(f"`image_shape` must be at least 32×32 for ConvNeXt, got {image_shape=}.")
