"""Parameter counts are worked out from the paper's tables, layer by layer, not copied from the code."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from adamcb.lab.references import load_object
from adamcb.lab.tasks.models import (
    MODEL_NAMES,
    ConvNeXt,
    ConvNeXtStage,
    build_model,
    convnext_base,
    convnext_large,
    resnet18,
)

GRAY, COLOR, DIGITS = (1, 28, 28), (3, 32, 32), (1, 8, 8)


def conv(in_channels: int, out_channels: int, kernel: int = 3) -> int:
    return in_channels * out_channels * kernel**2 + out_channels


def dense(in_features: int, out_features: int) -> int:
    return in_features * out_features + out_features


def mlp_count(pixels: int) -> int:
    return dense(pixels, 512) + dense(512, 256) + dense(256, 10)


def vgg_count(in_channels: int, features: int) -> int:
    convolutions = conv(in_channels, 64) + conv(64, 64) + conv(64, 128) + conv(128, 128)
    convolutions += conv(128, 256) + 2 * conv(256, 256)
    return convolutions + dense(features, 512) + dense(512, 512) + dense(512, 10)


def resnet18_count(in_channels: int, classes: int) -> int:
    """3×3 and 1×1 convolutions without bias, and a scale and a shift per normalized channel."""

    def bare(inputs: int, outputs: int, kernel: int) -> int:
        return inputs * outputs * kernel**2 + 2 * outputs

    total = bare(in_channels, 64, 3) + 4 * bare(64, 64, 3)
    for width in (128, 256, 512):
        total += bare(width // 2, width, 3) + 3 * bare(width, width, 3) + bare(width // 2, width, 1)
    return total + dense(512, classes)


def convnext_count(depths: tuple[int, ...], widths: tuple[int, ...], classes: int) -> int:
    total = conv(3, widths[0], 4) + 2 * widths[0] + 2 * widths[-1] + dense(widths[-1], classes)
    for depth, width in zip(depths, widths, strict=True):
        depthwise, norm, scale = 49 * width + width, 2 * width, width
        total += depth * (depthwise + norm + dense(width, 4 * width) + dense(4 * width, width) + scale)
    for narrow, wide in zip(widths[:-1], widths[1:], strict=True):
        total += 2 * narrow + conv(narrow, wide, 2)
    return total


CNN_GRAY = conv(1, 32) + conv(32, 64)
CNN_COLOR = conv(3, 64) + conv(64, 128) + conv(128, 256)
COUNTS = [
    ("logistic", GRAY, dense(784, 10), 7_850),
    ("logistic", COLOR, dense(3072, 10), 30_730),
    ("logistic", DIGITS, dense(64, 10), 650),
    ("mlp", GRAY, mlp_count(28 * 28 * 1), 535_818),
    ("mlp", COLOR, mlp_count(32 * 32 * 3), 1_707_274),
    ("mlp", DIGITS, mlp_count(64), 167_178),
    ("cnn", GRAY, CNN_GRAY + dense(3136, 128) + dense(128, 10), 421_642),
    ("cnn", COLOR, CNN_COLOR + dense(256 * 4 * 4, 512) + dense(512, 10), 2_473_610),
    ("cnn", DIGITS, CNN_GRAY + dense(64 * 2 * 2, 128) + dense(128, 10), 53_002),
    ("vgg", GRAY, vgg_count(1, 2304), 3_182_282),
    ("vgg", COLOR, vgg_count(3, 4096), 4_100_938),
    ("vgg", DIGITS, vgg_count(1, 256), 2_133_706),
    ("resnet18", GRAY, resnet18_count(1, 10), 11_172_810),
    ("resnet18", COLOR, resnet18_count(3, 10), 11_173_962),
]


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(("name", "shape", "expected", "number"), COUNTS)
def test_parameter_counts_and_shapes_follow_the_tables(name, shape, expected, number):
    model = build_model(name, image_shape=shape, num_classes=10)
    assert count(model) == expected == number
    assert model(torch.zeros(2, *shape)).shape == (2, 10)


@pytest.mark.parametrize(
    ("build", "depths", "widths", "number"),
    [
        (convnext_base, (3, 3, 27, 3), (128, 256, 512, 1024), 88_591_464),
        (convnext_large, (3, 3, 27, 3), (192, 384, 768, 1536), 197_767_336),
    ],
)
def test_convnext_has_the_published_number_of_parameters(build, depths, widths, number):
    with torch.device("meta"):
        model = build((3, 224, 224), 1000)
        assert model(torch.zeros(2, 3, 224, 224)).shape == (2, 1000)
    assert count(model) == convnext_count(depths, widths, 1000) == number


@pytest.mark.parametrize("name", ["convnext-base", "convnext-large"])
def test_convnext_takes_cifar_sized_images_by_name(name):
    with torch.device("meta"):
        model = build_model(name, image_shape=COLOR, num_classes=10)
        assert model(torch.zeros(2, *COLOR)).shape == (2, 10)


@pytest.mark.parametrize(
    ("name", "shape", "layers"),
    [
        ("mlp", GRAY, "Flatten Linear ReLU Linear ReLU Linear"),
        ("cnn", GRAY, "Conv2d ReLU MaxPool2d Conv2d ReLU MaxPool2d Flatten Linear Linear"),
        ("cnn", COLOR, "Conv2d ReLU MaxPool2d " * 3 + "Flatten Linear Linear"),
        (
            "vgg",
            COLOR,
            "Conv2d ReLU Conv2d ReLU MaxPool2d " * 2 + "Conv2d ReLU " * 3 + "MaxPool2d Flatten Linear Linear Linear",
        ),
    ],
)
def test_layers_come_in_the_order_of_the_tables(name, shape, layers):
    model = build_model(name, image_shape=shape, num_classes=10)
    assert [type(layer).__name__ for layer in model.children()] == layers.split()


def test_image_sizes_between_layers_follow_the_vgg_table():
    shapes, images = [], torch.zeros(1, *GRAY)
    for layer in build_model("vgg", image_shape=GRAY, num_classes=10).children():
        images = layer(images)
        if isinstance(layer, nn.MaxPool2d):
            shapes.append(tuple(images.shape[1:]))
    assert shapes == [(64, 14, 14), (128, 7, 7), (256, 3, 3)]


def test_group_norm_keeps_samples_apart_and_batch_norm_does_not():
    images = torch.randn(3, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    other = images.clone()
    other[1:] += 1.0
    group, batch = (resnet18((3, 8, 8), 10, norm=norm) for norm in ("group", "batch"))
    assert count(group) == count(batch)
    torch.testing.assert_close(group(images)[0], group(other)[0])
    assert not torch.allclose(batch(images)[0], batch(other)[0])


def test_resnet_halves_the_image_three_times():
    model = resnet18(COLOR, 10, norm="group")
    assert model.blocks(model.stem(torch.zeros(1, *COLOR))).shape == (1, 512, 4, 4)


def test_convnext_block_computes_its_formula():
    """Against the formula written out with channels first, in float64."""
    block: Any = ConvNeXtStage(8, 1).double()[0]
    convolution, _, norm, widen, _, narrow, scale, _ = block.residual
    scale.weight.data.fill_(0.5)
    inputs = torch.randn(2, 8, 5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    mixed = torch.stack(
        [
            torch.conv2d(inputs[:, [c]], convolution.weight[[c]], convolution.bias[[c]], padding=3)[:, 0]
            for c in range(8)
        ],
        dim=1,
    )
    centered = mixed - mixed.mean(1, keepdim=True)
    normed = centered / (mixed.var(1, keepdim=True, unbiased=False) + 1e-6).sqrt()
    assert norm.weight.eq(1).all()
    hidden = torch.einsum("nchw,oc->nohw", normed, widen.weight) + widen.bias[:, None, None]
    hidden = hidden * 0.5 * (1 + torch.erf(hidden / 2**0.5))
    expected = inputs + 0.5 * (torch.einsum("nchw,oc->nohw", hidden, narrow.weight) + narrow.bias[:, None, None])
    torch.testing.assert_close(block(inputs), expected)


def test_one_convnext_stage_stands_alone():
    stage = ConvNeXtStage(96, 3)
    assert stage(torch.zeros(2, 96, 8, 8)).shape == (2, 96, 8, 8)
    assert count(stage) == 3 * (49 * 96 + 96 + 2 * 96 + dense(96, 384) + dense(384, 96) + 96)


def test_stochastic_depth_drops_whole_samples_in_training_only():
    torch.manual_seed(0)
    stage: Any = ConvNeXtStage(4, 1, drop_paths=[0.5])
    stage[0].residual[6].weight.data.fill_(1.0)
    images = torch.randn(64, 4, 6, 6)
    added = stage[0].residual(images)
    trained = stage(images) - images
    kept = trained.abs().amax(dim=(1, 2, 3)) > 0
    assert 10 < kept.sum() < 54
    torch.testing.assert_close(trained[kept], 2 * added[kept], atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(stage.eval()(images), images + added)


def test_stochastic_depth_is_off_by_default_and_grows_with_depth():
    assert "StochasticDepth" not in repr(ConvNeXt((1, 2), (4, 8), 10))
    model = ConvNeXt((1, 2), (4, 8), 10, drop_path=0.4)
    rates = [module.rate for module in model.modules() if type(module).__name__ == "StochasticDepth"]
    assert rates == pytest.approx([0.2, 0.4])


@pytest.mark.parametrize("name", ["logistic", "mlp", "cnn", "resnet18"])
def test_the_callers_seed_decides_the_parameters(name):
    def first_parameter(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return next(build_model(name, image_shape=COLOR, num_classes=10).parameters())

    assert torch.equal(first_parameter(1), first_parameter(1))
    assert not torch.equal(first_parameter(1), first_parameter(2))


def test_unknown_name_lists_the_names():
    with pytest.raises(ValueError, match="`name` must be one of 'logistic', 'mlp'.*'FILE.py:NAME', got name='lenet'"):
        build_model("lenet", image_shape=GRAY, num_classes=10)
    assert MODEL_NAMES == ("logistic", "mlp", "cnn", "vgg", "resnet18", "convnext-base", "convnext-large")


@pytest.mark.parametrize(
    ("name", "shape", "classes", "message"),
    [
        ("vgg", (3, 7, 32), 10, "`image_shape` must be at least 8×8 for vgg, got"),
        ("cnn", (1, 3, 3), 10, "`image_shape` must be at least 4×4 for cnn, got"),
        ("convnext-base", GRAY, 10, "`image_shape` must be at least 32×32 for ConvNeXt, got"),
        ("mlp", (28, 28), 10, r"`image_shape` must be \(channels, height, width\), got image_shape=\(28, 28\)"),
        ("mlp", (1, 0, 28), 10, "`image_shape` must be at least 1, got"),
        ("mlp", GRAY, 0, "`num_classes` must be at least 1, got num_classes=0"),
    ],
)
def test_impossible_shapes_are_refused(name, shape, classes, message):
    with pytest.raises(ValueError, match=message):
        build_model(name, image_shape=shape, num_classes=classes)


def test_unknown_norm_and_uneven_rates_are_refused():
    with pytest.raises(ValueError, match="`norm` must be one of 'batch', 'group', got norm='layer'"):
        resnet18(COLOR, 10, norm="layer")
    with pytest.raises(ValueError, match="`drop_paths` must have one entry for each of 2 blocks, got 1 entries"):
        ConvNeXtStage(4, 2, drop_paths=[0.1])
    with pytest.raises(ValueError, match="`drop_path` must be a finite number in"):
        ConvNeXt((1,), (4,), 10, drop_path=1.0)


MODEL_FILE = """
from torch import nn

answer = 42

class Plain(nn.Linear):
    def __init__(self):
        super().__init__(2, 3)

def sized(num_classes):
    return nn.Linear(2, num_classes)

def both(image_shape, num_classes, scale=2):
    return nn.Linear(image_shape[1] * scale, num_classes)

def anything(**options):
    return nn.Linear(options["image_shape"][2], options["num_classes"])

def wrong(num_classes):
    return "a model"
"""


@pytest.fixture
def model_file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(MODEL_FILE)
    return path


@pytest.mark.parametrize(
    ("name", "weight"), [("Plain", (3, 2)), ("sized", (7, 2)), ("both", (7, 56)), ("anything", (7, 30))]
)
def test_models_come_from_a_users_file(model_file, name, weight):
    model = build_model(f"{model_file}:{name}", image_shape=(1, 28, 30), num_classes=7)
    assert isinstance(model, nn.Linear)
    assert model.weight.shape == weight


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("missing", ValueError, "must name something that .*mine.py defines"),
        ("answer", TypeError, "`model` must name a function or class, got .*, a int"),
        ("wrong", TypeError, "`model` must name what returns an nn.Module, got .*: str"),
    ],
)
def test_wrong_names_in_a_users_file_are_refused(model_file, name, error, message):
    with pytest.raises(error, match=message):
        build_model(f"{model_file}:{name}", image_shape=GRAY, num_classes=7)


@pytest.mark.parametrize("reference", ["model.txt:build", "model.py:", "model.py:two words", ":build"])
def test_references_of_another_form_are_refused(reference):
    with pytest.raises(ValueError, match="`model` must be of the form FILE.py:NAME, got"):
        load_object(reference, "model")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="`model` must name an existing file, got .*absent.py:build"):
        load_object(f"{tmp_path / 'absent.py'}:build", "model")


def test_a_users_file_may_define_dataclasses_and_may_be_one_of_two_of_the_same_name(tmp_path):
    """Dataclasses look for their module where Python keeps all modules."""
    code = "from __future__ import annotations\nimport dataclasses\n"
    code += "@dataclasses.dataclass\nclass Width:\n    value: int = {}\n"
    widths = []
    for folder, value in (("one", 1), ("two", 2)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "widths.py").write_text(code.format(value))
        widths.append(load_object(f"{tmp_path / folder / 'widths.py'}:Width", "model"))
    assert [width().value for width in widths] == [1, 2]
    assert [dataclasses.replace(width()).value for width in widths] == [1, 2]
    assert widths[0].__module__ != widths[1].__module__
