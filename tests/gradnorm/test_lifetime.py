"""How long the engine stays on a model: after an interrupt, and when nobody uses it any more."""

from __future__ import annotations

import gc
import pickle
import weakref
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import _get_current_function_mode_stack

from adamcb.gradnorm import PerSampleNorms
from tests.gradnorm.checking import randomize
from tests.gradnorm.test_engine import INPUTS, backward, network
from tests.reference.gradnorm import norms_one_by_one


def watched() -> nn.Sequential:
    """Return a network whose operations are watched; those of `network` are read off the graph."""
    return randomize(nn.Sequential(nn.Linear(3, 4), nn.Softsign(), nn.Linear(4, 2)).double())


def interrupt(model: nn.Module) -> None:
    """Break a forward pass off, as Ctrl-C does."""

    def stop(*args: object) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(F, "linear", stop)
        with pytest.raises(KeyboardInterrupt):
            model(INPUTS)


@pytest.mark.parametrize("build", [network, watched])
def test_clearing_after_an_interrupt_makes_the_engine_usable(build):
    model = build()
    expected = norms_one_by_one(model, INPUTS)
    with PerSampleNorms(model) as norms:
        interrupt(model)
        norms.clear()
        assert not _get_current_function_mode_stack()
        backward(model)
        torch.testing.assert_close(norms.take(), expected, rtol=1e-10, atol=0.0)


@pytest.mark.parametrize("build", [network, watched])
def test_closing_after_an_interrupt_makes_way_for_other_engines(build):
    model = build()
    with PerSampleNorms(model):
        interrupt(model)
    assert not _get_current_function_mode_stack()
    for other in (model, watched()):
        with PerSampleNorms(other) as norms:
            backward(other)
            taken = norms.take()
        torch.testing.assert_close(taken, norms_one_by_one(other, INPUTS), rtol=1e-10, atol=0.0)


def test_closing_after_an_interrupt_lets_the_model_run_compiled_again():
    compiled = []
    model: Any = torch.compile(watched(), backend=lambda graph, inputs: compiled.append(graph) or graph.forward)
    with pytest.warns(UserWarning, match="runs uncompiled"):
        norms = PerSampleNorms(model)
    interrupt(model)
    norms.close()
    assert not compiled
    model(INPUTS)
    assert compiled


@pytest.mark.parametrize("build", [network, watched])
def test_interrupted_engine_that_nobody_uses_any_more_stands_in_nobodys_way(build):
    model = build()
    norms = PerSampleNorms(model)
    interrupt(model)
    del norms
    for other in (watched(), model):
        with PerSampleNorms(other) as norms:
            backward(other)
            taken = norms.take()
        torch.testing.assert_close(taken, norms_one_by_one(other, INPUTS), rtol=1e-10, atol=0.0)
    assert not model._forward_hooks


def test_pass_that_was_broken_off_is_not_taken_for_a_whole_one():
    model = watched()
    model[1].register_forward_hook(lambda *_: norms.clear())
    with PerSampleNorms(model) as norms:
        backward(model)
        with pytest.raises(RuntimeError, match="the forward pass was broken off"):
            norms.take()


MODES = ("exact", "last-layer")


@pytest.mark.parametrize("mode", MODES)
def test_engine_goes_when_nobody_uses_it_any_more(mode):
    model = network()
    before = pickle.dumps(model)
    norms = PerSampleNorms(model, mode=mode)
    output = model(INPUTS)
    del norms
    assert pickle.dumps(model) == before
    assert not model._forward_hooks
    assert not model._forward_pre_hooks
    output.sum().backward()  # through the graph that it left


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("build", [network, watched])
def test_dropped_engine_frees_its_model_at_once(build, mode):
    gc.disable()
    try:
        model = build()
        norms = PerSampleNorms(model, mode=mode, check="always")
        gone = [weakref.ref(thing) for thing in (model, model[0].weight, norms)]
        backward(model)
        norms.take()
        backward(model)
        model(INPUTS)  # never goes backward
        del model, norms
        assert [thing() for thing in gone] == [None, None, None]
    finally:
        gc.enable()


def test_refusal_says_what_to_close():
    model = network()
    advice = r"Call `close\(\)` of the old loader \(or PerSampleNorms\) first; in a notebook, build the model in"
    with PerSampleNorms(model), pytest.raises(RuntimeError, match=advice):
        PerSampleNorms(model)


@pytest.mark.parametrize("build", [network, watched])
def test_engine_may_go_in_the_middle_of_a_forward_pass(build):
    model = build()
    trainer: list = [PerSampleNorms(model)]
    trainer.append(trainer)
    plain = F.linear

    def collect(*args: torch.Tensor) -> torch.Tensor:
        gc.collect()
        return plain(*args)

    del trainer
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(F, "linear", collect)
        backward(model)
    assert not _get_current_function_mode_stack()
    assert not model._forward_hooks
    assert not model._forward_pre_hooks


class Tokens(nn.Module):
    """Two dense layers on sequences, whose gradients are formed; notes what the second one reads."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)
        self.read: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x).tanh()
        self.read = weakref.ref(hidden)
        return self.second(hidden)


def test_what_a_layer_read_is_freed_while_gradients_still_pass():
    model = randomize(Tokens())
    held = []
    with PerSampleNorms(model, check="never") as norms:
        result = model(torch.randn(3, 64, 16))
        model.first.weight.register_hook(lambda grad: held.append(model.read()))
        loss = result.square().sum()  # holds the graph
        loss.backward()
        assert held == [None]
        norms.take()
