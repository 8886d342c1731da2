"""ResNet-18 for small images (He, Zhang, Ren and Sun 2016, arXiv:1512.03385).

The 7×7 stem with pooling of the original is made for 224×224; at 32×32 it would leave 8×8 before the first block. As is
usual for CIFAR-10, the stem is a 3×3 convolution with stride 1 and no pooling: 11,173,962 parameters at 3 channels and
10 classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from adamcb import _checks

NORMS = ("batch", "group")


def resnet18(image_shape: tuple[int, int, int], num_classes: int, *, norm: str = "batch") -> ResNet:
    """Return ResNet-18 with a 3×3 stem.

    Args:
        image_shape: (channels, height, width).
        num_classes: number of logits.
        norm: "batch" for BatchNorm, or "group" for GroupNorm with 32 groups, which keeps samples apart: with
            BatchNorm in training mode a sample's gradient depends on the whole batch.
    """
    return ResNet((2, 2, 2, 2), (64, 128, 256, 512), in_channels=image_shape[0], num_classes=num_classes, norm=norm)


class ResNet(nn.Module):
    """A ResNet of basic blocks; each stage after the first halves the image.

    Args:
        depths: blocks per stage.
        widths: channels per stage (multiples of 32 with `norm="group"`).
        in_channels: channels of the images.
        num_classes: number of logits.
        norm: "batch" or "group"; see `resnet18`.
    """

    def __init__(
        self, depths: Sequence[int], widths: Sequence[int], *, in_channels: int, num_classes: int, norm: str = "batch"
    ) -> None:
        super().__init__()
        make_norm = _norm_layer(norm)
        self.stem = nn.Sequential(_conv3x3(in_channels, widths[0]), make_norm(widths[0]), nn.ReLU())
        blocks: list[nn.Module] = []
        channels = widths[0]
        for stage, (depth, width) in enumerate(zip(depths, widths, strict=True)):
            for block in range(depth):
                stride = 2 if stage > 0 and block == 0 else 1
                blocks.append(BasicBlock(channels, width, stride=stride, make_norm=make_norm))
                channels = width
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, num_classes))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """Return logits [N, num_classes] of images [N, channels, height, width]."""
        return self.head(self.blocks(self.stem(images)))


class BasicBlock(nn.Module):
    """Two 3×3 convolutions beside a shortcut, which is a 1×1 convolution where the shape changes."""

    def __init__(
        self, in_channels: int, out_channels: int, *, stride: int, make_norm: Callable[[int], nn.Module]
    ) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            _conv3x3(in_channels, out_channels, stride=stride),
            make_norm(out_channels),
            nn.ReLU(),
            _conv3x3(out_channels, out_channels),
            make_norm(out_channels),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != out_channels:
            projection = nn.Conv2d(in_channels, out_channels, kernel_size=1, stride=stride, bias=False)
            self.shortcut = nn.Sequential(projection, make_norm(out_channels))
        self.activation = nn.ReLU()

    def forward(self, inputs: Tensor) -> Tensor:
        """Return activation(residual + shortcut)."""
        return self.activation(self.residual(inputs) + self.shortcut(inputs))


def _conv3x3(in_channels: int, out_channels: int, *, stride: int = 1) -> nn.Conv2d:
    # No bias: the normalization that follows has one.
    return nn.Conv2d(in_channels, out_channels, kernel_size=3, stride=stride, padding=1, bias=False)


def _norm_layer(norm: str) -> Callable[[int], nn.Module]:
    _checks.one_of("norm", norm, NORMS)
    return nn.BatchNorm2d if norm == "batch" else lambda channels: nn.GroupNorm(32, channels)
