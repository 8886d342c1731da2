"""Architectures of `transformers`, tiny and in float64, against the gradient of each sample's own loss.

By default ten of them, in training; with `-m slow` all, in training and evaluation, with both kinds of attention and of
gradient checkpointing.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from adamcb.gradnorm import PerSampleNorms
from tests.gradnorm.architectures import ALWAYS, ARCHITECTURES, INPUTS, K, build, result
from tests.reference.gradnorm import wave

pytest.importorskip("transformers", minversion="5.0")
pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # of the frameworks, about configurations this small
    pytest.mark.usefixtures("same_numbers"),
]
# BatchNorm in training: a sample's gradient is its contribution, not that of its own loss.
TIED_SAMPLES = {"ResNet", "RegNet", "MobileViT"}
# The first block's checkpoint makes relative positions of parameters, and hands them to the others.
PASSED_ON = {"T5", "mT5", "Switch"}


@pytest.fixture
def same_numbers() -> Iterator[None]:
    """Keep the global generators as they are: dropout and masks of architectures draw from them."""
    state = np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        yield
    np.random.set_state(state)


def losses(model: nn.Module, name: str) -> Tensor:
    np.random.seed(3)
    torch.manual_seed(3)
    inputs = INPUTS[ARCHITECTURES[name].inputs]()
    if "pixel_values" in inputs:
        inputs["pixel_values"].requires_grad_()  # reentrant checkpoints need it
    return wave(result(model, name, inputs), torch.arange(K))


def made(name: str, *, training: bool, attention: str = "eager") -> nn.Module:
    model = build(name, attention)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model.train(training)


def expected(model: nn.Module, name: str) -> Tensor:
    """Return the norms of the gradients of the single losses."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    norms = []
    for loss in losses(model, name):
        gradients = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
        norms.append(torch.stack([grad.square().sum() for grad in gradients if grad is not None]).sum().sqrt())
    return torch.stack(norms)


def measured(model: nn.Module, name: str, check: str) -> Tensor:
    model.zero_grad()
    with PerSampleNorms(model, check=check) as norms:
        losses(model, name).sum().backward()
        return norms.take()


def compare(model: nn.Module, name: str, right: Tensor) -> None:
    for check in ("always", "never"):
        torch.testing.assert_close(measured(model, name, check), right, rtol=1e-8, atol=0.0)


@pytest.mark.parametrize("name", ALWAYS)
def test_architecture(name):
    model = made(name, training=True)
    compare(model, name, expected(model, name))


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture(name, training, attention):
    if training and name in TIED_SAMPLES:
        pytest.skip("BatchNorm ties the samples together")
    try:
        model = made(name, training=training, attention=attention)
    except ValueError as error:
        if attention == "sdpa" and "does not support" in str(error):
            pytest.skip("the architecture has no sdpa attention")
        raise
    compare(model, name, expected(model, name))


@pytest.mark.slow
@pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "not reentrant"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture_with_checkpoints(name, reentrant):
    model = made(name, training=True)
    if name in TIED_SAMPLES or not model.supports_gradient_checkpointing:
        pytest.skip("BatchNorm ties the samples together, or the architecture has no checkpoints")
    if reentrant and name == "WavLM":
        pytest.skip("its backward pass never ends, with or without the engine")
    right = expected(model, name)
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})  # type: ignore[operator]
    if reentrant and "input_ids" in INPUTS[ARCHITECTURES[name].inputs]():
        model.enable_input_require_grads()  # type: ignore[operator]
    if reentrant and name in PASSED_ON:
        with pytest.raises(RuntimeError, match="set use_reentrant=False"):
            measured(model, name, "auto")
    else:
        compare(model, name, right)


@pytest.mark.parametrize("name", ["Mixtral", "GPT-OSS"])
def test_grouped_experts(name):
    """In float32, which the fused product of groups needs."""
    model = build(name, experts="grouped_mm").float()
    try:
        right = expected(model, name)
    except NotImplementedError:
        pytest.skip("torch 2.8 has the product of groups on CUDA only.")
    for check in ("always", "never"):
        torch.testing.assert_close(measured(model, name, check), right, rtol=1e-5, atol=0.0)
