"""Checkpoints of AdamX resume to the bit, and those of Adam and AMSGrad load."""

import io
from typing import Any

import pytest
import torch
from torch import nn

from adamcb.optim import AdamX, check_optimizer_state
from tests.optim.test_citizen import small_model, train, values

needs_decoupled_decay = pytest.mark.skipif(
    "decoupled_weight_decay" not in torch.optim.Adam([torch.zeros(1)]).defaults,
    reason="Adam of torch 2.6 does not say which kind of weight decay it has",
)
OPTIONS: list[dict[str, Any]] = [
    {"foreach": False},
    {"foreach": True},
    {"fused": True},
    {"capturable": True},
    {"bias_correction": True, "beta1_decay": 0.9, "weight_decay": 0.1},
]


def through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def copy_of(model: nn.Module) -> nn.Module:
    copy = small_model()
    copy.load_state_dict(model.state_dict())
    return copy


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_run_resumed_at_any_step_ends_the_same(options, dtype):
    for moment in (0, 1, 7, 8):
        model = small_model().to(dtype)
        optimizer = AdamX(model.parameters(), **options)
        train(model, optimizer, range(moment))
        resumed = copy_of(model).to(dtype)
        resumed_optimizer = AdamX(resumed.parameters(), lr=123.0)
        resumed_optimizer.load_state_dict(through_a_file(optimizer.state_dict()))
        train(model, optimizer, range(moment, 12))
        train(resumed, resumed_optimizer, range(moment, 12))
        assert values(resumed).equal(values(model))


@pytest.mark.parametrize("fused", [None, True])
def test_an_amsgrad_checkpoint_goes_on_as_amsgrad_would(fused):
    model = small_model()
    amsgrad = torch.optim.Adam(model.parameters(), lr=0.01, amsgrad=True, fused=fused)
    train(model, amsgrad, range(5))
    ours = copy_of(model)
    adamx = AdamX(ours.parameters(), beta1_decay=1.0, bias_correction=True)
    adamx.load_state_dict(through_a_file(amsgrad.state_dict()))
    assert adamx._step_supports_amp_scaling == bool(fused)
    train(model, amsgrad, range(5, 10))
    train(ours, adamx, range(5, 10))
    torch.testing.assert_close(values(ours), values(model), rtol=1e-12, atol=1e-12)


@needs_decoupled_decay
def test_adam_reads_our_checkpoint_as_amsgrad():
    model = small_model()
    adamx = AdamX(model.parameters(), beta1_decay=1.0, bias_correction=True, weight_decay=0.1)
    train(model, adamx, range(5))
    theirs = copy_of(model)
    adam = torch.optim.Adam(theirs.parameters())
    adam.load_state_dict(through_a_file(adamx.state_dict()))
    train(model, adamx, range(5, 10))
    train(theirs, adam, range(5, 10))
    torch.testing.assert_close(values(theirs), values(model), rtol=1e-12, atol=1e-12)


def test_an_adam_checkpoint_starts_the_maximum_at_its_second_moment():
    model = small_model()
    adam = torch.optim.Adam(model.parameters(), lr=0.01)
    train(model, adam, range(5))
    optimizer = AdamX(model.parameters())
    optimizer.load_state_dict(adam.state_dict())
    assert optimizer.param_groups[0]["amsgrad"]
    for param in model.parameters():
        state = optimizer.state[param]
        assert state["max_exp_avg_sq"].equal(adam.state[param]["exp_avg_sq"])
        assert state["max_exp_avg_sq"].data_ptr() != state["exp_avg_sq"].data_ptr()
        assert state["step"] == 5


def test_settings_that_a_checkpoint_does_not_know_stay():
    model = small_model()
    adam = torch.optim.Adam([{"params": model[0].parameters()}, {"params": model[2].parameters()}], lr=0.5)
    train(model, adam, range(1))
    groups = [{"params": model[0].parameters(), "beta1_decay": 0.9}, {"params": model[2].parameters()}]
    optimizer = AdamX(groups, bias_correction=True)
    optimizer.load_state_dict(adam.state_dict())
    assert [group["beta1_decay"] for group in optimizer.param_groups] == [0.9, 1 - 1e-8]
    assert [group["bias_correction"] for group in optimizer.param_groups] == [True, True]
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.5]


@needs_decoupled_decay
def test_an_l2_penalty_that_becomes_weight_decay_is_told():
    model = small_model()
    adam = torch.optim.Adam(model.parameters(), weight_decay=0.1)
    optimizer = AdamX(model.parameters())
    with pytest.warns(UserWarning, match="weight_decay=0.1 was an L2 penalty; AdamX takes it as decoupled") as caught:
        optimizer.load_state_dict(adam.state_dict())
    assert [warning.filename for warning in caught] == [__file__]


@pytest.mark.parametrize("capturable", [False, True])
def test_a_step_count_saved_as_a_number_becomes_a_tensor(capturable):
    model = small_model()
    optimizer = AdamX(model.parameters(), capturable=capturable)
    train(model, optimizer, range(3))
    saved = optimizer.state_dict()
    for state in saved["state"].values():
        state["step"] = 3
    optimizer.load_state_dict(saved)
    train(model, optimizer, range(1))
    assert all(state["step"].equal(torch.tensor(4.0)) for state in optimizer.state.values())


@pytest.mark.parametrize("stepped", [False, True])
def test_a_state_of_amsgrad_without_its_maximum_is_refused(stepped):
    def made() -> torch.optim.AdamW:
        parameter = torch.ones(3, requires_grad=True)
        parameter.grad = torch.ones(3)
        return torch.optim.AdamW([parameter], amsgrad=True)

    saved, live = made(), made()
    saved.step()
    if stepped:
        live.step()
    state = saved.state_dict()
    check_optimizer_state(live, state)
    del state["state"][0]["max_exp_avg_sq"]
    with pytest.raises(ValueError, match=r"`state\[0\]` must have the key max_exp_avg_sq"):
        check_optimizer_state(live, state)


@pytest.mark.parametrize(
    "kind",
    ["Adam", "AdamW", "RAdam", "NAdam", "Adamax", "Adadelta", "Adagrad", "RMSprop", "Rprop", "ASGD"],
)
def test_a_state_that_lacks_something_is_refused_before_the_first_step_too(kind):
    def made() -> torch.optim.Optimizer:
        parameter = torch.ones(3, requires_grad=True)
        parameter.grad = torch.ones(3)
        return getattr(torch.optim, kind)([parameter])

    saved = made()
    saved.step()
    whole = saved.state_dict()
    check_optimizer_state(made(), whole)
    for key in whole["state"][0]:
        part = {name: value for name, value in whole["state"][0].items() if name != key}
        with pytest.raises(ValueError, match=rf"`state\[0\]` must have the keys {key}"):
            check_optimizer_state(made(), {**whole, "state": {0: part}})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"param_groups": None}, r"`state_dict\['param_groups'\]` must be a list, got .* of type NoneType"),
        (
            {"param_groups": [{"lr": 1.0}]},
            r"`state_dict\['param_groups'\]\[0\]` must be a dict with .*params, got .*lr",
        ),
        ({"param_groups": [{"params": 3}]}, r"`state_dict\['param_groups'\]\[0\]` must be a dict with .*params"),
        ({"param_groups": [None]}, r"`state_dict\['param_groups'\]\[0\]` must be a dict with .*params, got .*None"),
        ({"state": None}, r"`state_dict\['state'\]` must be a dict, got .* of type NoneType"),
        ({"state": {0: None}}, r"`state\[0\]` must be a dict, got NoneType"),
    ],
)
def test_a_state_that_is_built_otherwise_is_refused_by_name(change, message):
    optimizer = AdamX(small_model().parameters())
    with pytest.raises((TypeError, ValueError), match=message):
        optimizer.load_state_dict({**optimizer.state_dict(), **change})
    assert not optimizer.state
