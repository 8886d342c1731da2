"""Layer cases: each draws sizes and returns a layer with inputs for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.reference.gradnorm import norms_by_vmap, norms_one_by_one

Draw = Callable[[Any], Any]
Built = tuple[nn.Module, Tensor]


class Tokens(nn.Module):
    """Feeds a layer with whole numbers made of real ones, so that all cases draw the same kind of inputs."""

    def __init__(self, layer: nn.Module, vocabulary: int) -> None:
        super().__init__()
        self.layer, self.vocabulary = layer, vocabulary

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layer((inputs.abs() * 7).long() % self.vocabulary)


class Twice(nn.Module):
    """Gives a layer two arguments."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layer(inputs, inputs.flip(-1))


class Attention(nn.Module):
    """Attends from all positions to the first two, or to all."""

    def __init__(self, *, cross: bool, need_weights: bool = False, **options: Any) -> None:
        super().__init__()
        self.cross, self.need_weights = cross, need_weights
        self.layer = nn.MultiheadAttention(**options)

    def forward(self, inputs: Tensor) -> Tensor:
        inputs = inputs if self.layer.batch_first else inputs.transpose(0, 1)
        seen = inputs.narrow(1 if self.layer.batch_first else 0, 0, 2) if self.cross else inputs
        result = self.layer(inputs, seen, seen, need_weights=self.need_weights)[0]
        return result if self.layer.batch_first else result.transpose(0, 1)


class TimeFirst(nn.Module):
    """Runs a layer on [T, K, d]."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, inputs: Tensor) -> Tensor:
        result = self.layer(inputs.transpose(0, 1))
        return (result[0] if isinstance(result, tuple) else result).transpose(0, 1)


def size(draw: Draw, low: int = 1, high: int = 5) -> int:
    return draw(st.integers(low, high))


def tensor(draw: Draw, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(draw(st.integers(0, 999)))
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def linear(dims: int, *, bias: bool = True, longest: int = 4) -> Callable[[Draw], Built]:
    def build(draw: Draw) -> Built:
        width = size(draw)
        lengths = [size(draw, 1, longest) for _ in range(dims)]
        return nn.Linear(width, size(draw), bias=bias), tensor(draw, size(draw), *lengths, width)

    return build


def convolution(dims: int, *, transposed: bool = False, space: tuple[int, int] = (5, 7), **fixed: Any):
    def build(draw: Draw) -> Built:
        groups = fixed.get("groups") or size(draw, 1, 2)
        channels, out = groups * size(draw, 1, 3), groups * size(draw, 1, 3)
        kernel = size(draw, 1, 3)
        options = {"stride": size(draw, 1, 3), "padding": size(draw, 0, kernel // 2), "dilation": size(draw, 1, 2)}
        options |= {"bias": draw(st.booleans()), **fixed, "groups": groups}
        if options["padding"] == "same":
            options["stride"] = 1
        if transposed:
            options["output_padding"] = size(draw, 0, max(options["stride"], options["dilation"]) - 1)
        name = f"Conv{'Transpose' if transposed else ''}{dims}d"
        sizes = [size(draw, *space) for _ in range(dims)]
        return getattr(nn, name)(channels, out, kernel, **options), tensor(draw, size(draw, 1, 4), channels, *sizes)

    return build


def depthwise(draw: Draw) -> Built:
    channels = size(draw, 2, 5)
    layer = nn.Conv2d(
        channels, channels, size(draw, 1, 3), stride=size(draw, 1, 2), dilation=size(draw, 1, 2), groups=channels
    )
    return layer, tensor(draw, size(draw), channels, size(draw, 6, 8), size(draw, 6, 8))


def deep_convolution(draw: Draw) -> Built:
    """Many channels on few positions: the Gram form."""
    layer = nn.Conv2d(24, 32, 3, padding=size(draw, 1, 2), stride=size(draw, 1, 2), dilation=size(draw, 1, 2))
    return layer, tensor(draw, 3, 24, size(draw, 3, 4), size(draw, 3, 4))


def embedding(**options: Any) -> Callable[[Draw], Built]:
    def build(draw: Draw) -> Built:
        rows = size(draw, 3, 6)
        return Tokens(nn.Embedding(rows, size(draw), **options), rows), tensor(draw, size(draw), size(draw))

    return build


def bag(mode: str, **options: Any) -> Callable[[Draw], Built]:
    def build(draw: Draw) -> Built:
        rows = size(draw, 3, 6)
        return Tokens(nn.EmbeddingBag(rows, size(draw), mode=mode, **options), rows), tensor(draw, size(draw), 5)

    return build


def normalized(layer: Callable[[int], nn.Module], *, channels_last: bool = False, dims: int = 1):
    def build(draw: Draw) -> Built:
        channels, space = 2 * size(draw, 1, 3), [size(draw, 2, 4) for _ in range(dims)]
        shape = (*space, channels) if channels_last else (channels, *space)
        return layer(channels), tensor(draw, size(draw), *shape)

    return build


def attention(**options: Any) -> Callable[[Draw], Built]:
    def build(draw: Draw) -> Built:
        return Attention(embed_dim=6, num_heads=2, **options), tensor(draw, size(draw), size(draw, 2, 4), 6)

    return build


def encoder(draw: Draw) -> Built:
    first = draw(st.booleans())
    layer = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=first, norm_first=draw(st.booleans()))
    return (layer if first else TimeFirst(layer)), tensor(draw, size(draw), size(draw, 1, 4), 6)


def recurrent(layer: type[nn.Module], **options: Any) -> Callable[[Draw], Built]:
    def build(draw: Draw) -> Built:
        width, first = size(draw), draw(st.booleans())
        made = layer(width, size(draw, 2, 4), draw(st.integers(1, 2)), batch_first=first, **options)
        return (made if first else TimeFirst(made)), tensor(draw, size(draw), size(draw, 1, 4), width)

    return build


def prelu(draw: Draw) -> Built:
    channels = size(draw, 2, 4)
    return nn.PReLU(draw(st.sampled_from([1, channels]))), tensor(draw, size(draw), channels, size(draw))


def bilinear(draw: Draw) -> Built:
    width = size(draw)
    return Twice(nn.Bilinear(width, width, size(draw))), tensor(draw, size(draw), size(draw), width)


CASES: dict[str, tuple[Callable[[Draw], Built], Callable]] = {
    "linear on vectors": (linear(0), norms_by_vmap),
    "linear without bias": (linear(1, bias=False), norms_by_vmap),
    "linear on sequences": (linear(1), norms_by_vmap),
    "linear on long sequences": (linear(1, longest=40), norms_by_vmap),
    "linear on grids": (linear(2), norms_by_vmap),
    **{f"conv{d}d": (convolution(d), norms_by_vmap) for d in (1, 2, 3)},
    **{f"conv{d}d, padding same": (convolution(d, padding="same"), norms_by_vmap) for d in (1, 2)},
    **{
        f"conv2d, {m}": (convolution(2, padding_mode=m), norms_one_by_one) for m in ("circular", "reflect", "replicate")
    },
    "conv1d, zeros by name": (convolution(1, padding="valid"), norms_by_vmap),
    "conv2d, depthwise": (depthwise, norms_by_vmap),
    "conv2d, deep": (deep_convolution, norms_by_vmap),
    **{f"conv transpose {d}d": (convolution(d, transposed=True), norms_by_vmap) for d in (1, 2, 3)},
    "embedding": (embedding(), norms_one_by_one),
    "embedding with padding": (embedding(padding_idx=1), norms_one_by_one),
    "embedding with sparse gradients": (embedding(sparse=True), norms_one_by_one),
    **{f"bag, {mode}": (bag(mode), norms_one_by_one) for mode in ("sum", "mean", "max")},
    "bag with padding": (bag("mean", padding_idx=2), norms_one_by_one),
    "layer norm": (normalized(nn.LayerNorm, channels_last=True), norms_by_vmap),
    "rms norm": (normalized(nn.RMSNorm, channels_last=True), norms_by_vmap),
    "group norm": (normalized(lambda c: nn.GroupNorm(2, c), dims=2), norms_by_vmap),
    "instance norm 1d": (normalized(lambda c: nn.InstanceNorm1d(c, affine=True)), norms_by_vmap),
    "instance norm 2d, tracked": (
        normalized(lambda c: nn.InstanceNorm2d(c, affine=True, track_running_stats=True).eval(), dims=2),
        norms_by_vmap,
    ),
    "batch norm in evaluation": (normalized(lambda c: nn.BatchNorm2d(c).eval(), dims=2), norms_by_vmap),
    "self-attention": (attention(cross=False, batch_first=True), norms_one_by_one),
    "cross-attention, time first": (attention(cross=True), norms_one_by_one),
    "attention that returns weights": (attention(cross=False, need_weights=True, batch_first=True), norms_one_by_one),
    "attention with extra keys": (attention(cross=True, add_bias_kv=True, kdim=6, vdim=6), norms_one_by_one),
    "transformer encoder layer": (encoder, norms_one_by_one),
    "rnn": (recurrent(nn.RNN), norms_one_by_one),
    "rnn, relu, both ways": (recurrent(nn.RNN, nonlinearity="relu", bidirectional=True), norms_one_by_one),
    "gru": (recurrent(nn.GRU, bidirectional=True), norms_one_by_one),
    "lstm": (recurrent(nn.LSTM), norms_one_by_one),
    "lstm with projection": (recurrent(nn.LSTM, proj_size=1, bidirectional=True), norms_one_by_one),
    "lstm without bias": (recurrent(nn.LSTM, bias=False), norms_one_by_one),
    "prelu": (prelu, norms_by_vmap),
    "bilinear, by the fallback": (bilinear, norms_one_by_one),
}
