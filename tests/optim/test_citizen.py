"""AdamX keeps the conventions of torch.optim: groups, hooks, scalers, schedules, errors."""

import copy
import math
import pickle
import warnings
from typing import Any

import pytest
import torch
from torch import nn

from adamcb.optim import AdamX, inverse_sqrt


def small_model() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    with torch.no_grad():
        for i, param in enumerate(model.parameters()):
            param.copy_(torch.linspace(-1, 1, param.numel(), dtype=param.dtype).reshape(param.shape) * (i + 1) / 4)
    return model


def loss_of(model: nn.Module, t: int = 0) -> torch.Tensor:
    inputs = torch.arange(12, dtype=torch.float64).reshape(4, 3).add(t).sin()
    return model(inputs.to(next(model.parameters()).dtype)).square().mean()


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for t in steps:
        optimizer.zero_grad()
        loss_of(model, t).backward()
        optimizer.step()


def values(model: nn.Module) -> torch.Tensor:
    return torch.cat([param.detach().flatten() for param in model.parameters()])


def test_groups_have_settings_of_their_own():
    model, apart = small_model(), small_model()
    layers: list[dict[str, Any]] = [
        {"lr": 0.1, "betas": (0.5, 0.9), "beta1_decay": 0.9},
        {"bias_correction": True, "weight_decay": 0.1},
    ]
    pairs = list(zip((model[0], model[2]), layers, strict=True))
    together = AdamX([{"params": layer.parameters(), **settings} for layer, settings in pairs])
    singles = [AdamX(apart[i].parameters(), **layers[i // 2]) for i in (0, 2)]
    for t in range(5):
        for target, optimizers in ((model, [together]), (apart, singles)):
            target.zero_grad()
            loss_of(target, t).backward()
            for optimizer in optimizers:
                optimizer.step()
    assert values(model).equal(values(apart))


def test_named_parameters_keep_their_names():
    model = small_model()
    optimizer = AdamX(model.named_parameters())
    train(model, optimizer, range(2))
    assert optimizer.state_dict()["param_groups"][0]["param_names"] == [name for name, _ in model.named_parameters()]


@pytest.mark.parametrize(
    "options", [{}, {"foreach": True}, {"foreach": True, "capturable": True}, {"fused": True}], ids=str
)
@pytest.mark.parametrize("shape", [(), (1,)])
def test_a_tensor_learning_rate_is_read_at_every_step(options, shape):
    model, expected = small_model(), small_model()
    lr = torch.full(shape, 0.1, dtype=torch.float64)
    optimizer = AdamX(model.parameters(), lr=lr, weight_decay=0.1, **options)
    number = AdamX(expected.parameters(), lr=0.1, weight_decay=0.1)
    train(model, optimizer, range(2))
    train(expected, number, range(2))
    lr.fill_(0.01)
    number.param_groups[0]["lr"] = 0.01
    train(model, optimizer, range(2, 4))
    train(expected, number, range(2, 4))
    torch.testing.assert_close(values(model), values(expected), rtol=1e-12, atol=1e-12)


def test_a_closure_runs_with_gradients_and_its_loss_comes_back():
    model = small_model()
    optimizer = AdamX(model.parameters())

    def closure():
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        return loss

    before = loss_of(model)
    assert optimizer.step(closure) == before
    assert loss_of(model) < before


def test_a_parameter_without_gradient_is_left_alone():
    used, unused = (torch.ones(2, requires_grad=True) for _ in range(2))
    optimizer = AdamX([used, unused], weight_decay=0.1)
    used.grad = torch.ones(2)
    optimizer.step()
    assert unused.tolist() == [1.0, 1.0]
    assert unused not in optimizer.state
    optimizer.zero_grad()
    optimizer.step()
    assert optimizer.state[used]["step"] == 1


def test_hooks_run_around_step_and_state():
    seen = []
    model = small_model()
    optimizer = AdamX(model.parameters())
    optimizer.register_step_pre_hook(lambda *_: seen.append("before step"))
    optimizer.register_step_post_hook(lambda *_: seen.append("after step"))
    optimizer.register_state_dict_pre_hook(lambda *_: seen.append("before saving"))
    optimizer.register_state_dict_post_hook(lambda *_: seen.append("after saving"))
    optimizer.register_load_state_dict_pre_hook(lambda *_: seen.append("before loading"))
    optimizer.register_load_state_dict_post_hook(lambda *_: seen.append("after loading"))
    train(model, optimizer, range(1))
    optimizer.load_state_dict(optimizer.state_dict())
    topics = ("step", "saving", "loading")
    assert seen == [f"{when} {what}" for what in topics for when in ("before", "after")]


@pytest.mark.parametrize("first", [{"foreach": False}, {"foreach": True}, {"fused": True}], ids=str)
@pytest.mark.parametrize("second", [{"foreach": False}, {"fused": True}], ids=str)
def test_grad_scaler_unscales_and_skips_infinite_gradients(first, second):
    model, expected = small_model(), small_model()
    groups = [{"params": model[0].parameters(), **first}, {"params": model[2].parameters(), **second}]
    optimizer, plain = AdamX(groups), AdamX(expected.parameters())
    assert optimizer._step_supports_amp_scaling == ("fused" in first and "fused" in second)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for t in range(4):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, t)).backward()
        if t == 2:
            next(model.parameters()).grad.fill_(math.inf)  # pyright: ignore[reportOptionalMemberAccess]
        else:
            train(expected, plain, range(t, t + 1))
        scaler.step(optimizer)
        scaler.update()
        torch.testing.assert_close(values(model), values(expected), rtol=1e-12, atol=1e-12)
    assert scaler.get_scale() == 512.0
    assert all(state["step"] == 3 for state in optimizer.state.values())


@pytest.mark.parametrize("lr", [0.1, torch.tensor(0.1, dtype=torch.float64)], ids=["number", "tensor"])
def test_inverse_sqrt_gives_alpha_over_root_t(lr):
    model = small_model()
    groups = [{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 0.2}]
    optimizer = AdamX(groups, lr=copy.copy(lr))
    schedule = inverse_sqrt(optimizer)
    assert isinstance(schedule, torch.optim.lr_scheduler.LRScheduler)
    for t in range(1, 6):
        rates = [float(group["lr"]) for group in optimizer.param_groups]
        assert rates == pytest.approx([0.1 / math.sqrt(t), 0.2 / math.sqrt(t)], rel=1e-14)
        train(model, optimizer, range(1))
        schedule.step()


def test_inverse_sqrt_resumes_from_its_state():
    optimizer = AdamX(small_model().parameters(), lr=0.1)
    schedule = inverse_sqrt(optimizer)
    for _ in range(3):
        optimizer.step()
        schedule.step()
    other = AdamX(small_model().parameters(), lr=0.1)
    resumed = inverse_sqrt(other)
    other.load_state_dict(optimizer.state_dict())
    resumed.load_state_dict(schedule.state_dict())
    for each in (optimizer, other, schedule, resumed):
        each.step()
    assert other.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"] == 0.1 / math.sqrt(5)


def test_one_cycle_moves_the_rate_and_beta1():
    model = small_model()
    optimizer = AdamX(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=10)
    for t in range(9):
        train(model, optimizer, range(t, t + 1))
        schedule.step()
    assert optimizer.param_groups[0]["betas"][0] != 0.9
    assert values(model).isfinite().all()


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))], ids=["copy", "pickle"])
def test_a_copy_goes_on_as_the_original_does(copied):
    model = small_model()
    optimizer = AdamX(model.parameters(), fused=True, beta1_decay=0.9)
    train(model, optimizer, range(3))
    twin, twin_optimizer = copied((model, optimizer))
    train(model, optimizer, range(3, 6))
    train(twin, twin_optimizer, range(3, 6))
    assert values(twin).equal(values(model))
    assert twin_optimizer._step_supports_amp_scaling


BAD_VALUES = {
    "lr": (-1.0, r"`lr` must be a finite number in \[0, inf\), got lr=-1.0"),
    "betas": ((1.0, 0.999), r"`betas\[0\]` must be a finite number in \[0, 1\), got betas\[0\]=1.0"),
    "eps": (-1e-8, r"`eps` must be a finite number in \[0, inf\), got eps=-1e-08"),
    "beta1_decay": (0.0, r"`beta1_decay` must be a finite number in \(0, 1\], got beta1_decay=0.0"),
    "weight_decay": (math.nan, r"`weight_decay` must be a finite number in \[0, inf\), got weight_decay=nan"),
}


@pytest.mark.parametrize("name", BAD_VALUES)
def test_bad_values_are_refused_with_the_rule(name):
    value, message = BAD_VALUES[name]
    param = torch.zeros(2, requires_grad=True)
    with pytest.raises(ValueError, match=message):
        AdamX([param], **{name: value})
    with pytest.raises(ValueError, match=message):
        AdamX([{"params": [param], name: value}])


def test_other_bad_arguments_are_refused():
    param = torch.zeros(2, requires_grad=True)
    with pytest.raises(ValueError, match=r"`betas\[1\]` must be a finite number in \[0, 1\), got betas\[1\]=-0.1"):
        AdamX([param], betas=(0.0, -0.1))
    with pytest.raises(ValueError, match=r"`betas` must be two numbers, got betas=\(0.9,\)"):
        AdamX([param], betas=(0.9,))  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"`lr` must be a number or a 1-element tensor, got lr of shape \(2,\)"):
        AdamX([param], lr=torch.ones(2))
    with pytest.raises(TypeError, match="`eps` must be a number, got eps='small' of type str"):
        AdamX([param], eps="small")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="empty parameter list"):
        AdamX([])


@pytest.mark.parametrize("option", ["foreach", "capturable", "differentiable"])
def test_what_fused_excludes_is_said(option):
    options: dict[str, Any] = {"fused": True, option: True}
    with pytest.raises(RuntimeError, match=f"`fused` and `{option}` cannot be `True` together: "):
        AdamX([torch.zeros(2, requires_grad=True)], **options)


def test_fused_refuses_complex_parameters():
    param = torch.zeros(2, dtype=torch.complex64, requires_grad=True)
    param.grad = torch.ones_like(param)
    with pytest.raises(RuntimeError, match="`fused=True` requires all the params to be floating point"):
        AdamX([param], fused=True).step()


def test_sparse_gradients_are_refused_and_nothing_changes():
    dense, sparse = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    dense.grad, sparse.grad = torch.ones(3), torch.ones(3).to_sparse()
    optimizer = AdamX([dense, sparse])
    with pytest.raises(RuntimeError, match="AdamX does not support sparse gradients, please consider SparseAdam"):
        optimizer.step()
    assert dense.tolist() == [1.0, 1.0, 1.0]


def test_betas_without_guarantee_are_allowed_with_a_warning():
    param = torch.zeros(2, requires_grad=True)
    with pytest.warns(UserWarning, match=r"needs β₁ ≤ √β₂: with betas=\(0.9, 0.8\) there is no guarantee") as caught:
        AdamX([param], betas=(0.9, 0.8))
    assert [warning.filename for warning in caught] == [__file__]
    optimizer = AdamX([torch.zeros(2, requires_grad=True)])
    with pytest.warns(UserWarning, match="there is no guarantee") as caught:
        optimizer.add_param_group({"params": [param], "betas": (0.9, 0.8)})
    assert [warning.filename for warning in caught] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        AdamX([param], betas=(0.5, 0.25))
        AdamX([param], betas=(0.0, 0.0))
