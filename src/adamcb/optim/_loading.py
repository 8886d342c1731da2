"""Whether a saved state fits a live optimizer. torch loads what does not fit, and a fused kernel then crashes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from adamcb import _checks

# Of state: one number for a parameter, not one for each of its entries.
_SCALARS = ("step", "eta", "mu", "mu_product")
# Of torch's optimizers, the one whose state has other shapes than its parameters.
_OTHER_SHAPES = ("Adafactor",)
# What torch's optimizers and AdamX always keep for a parameter, once they have stepped.
_MOMENTS = {"step", "exp_avg", "exp_avg_sq"}
_KEPT = {
    **dict.fromkeys(("AdamX", "Adam", "AdamW", "RAdam"), _MOMENTS),
    "NAdam": {*_MOMENTS, "mu_product"},
    "Adamax": {"step", "exp_avg", "exp_inf"},
    "Adadelta": {"step", "square_avg", "acc_delta"},
    "Adagrad": {"step", "sum"},
    "RMSprop": {"step", "square_avg"},
    "Rprop": {"step", "prev", "step_size"},
    "ASGD": {"step", "eta", "mu", "ax"},
}
# Of state: tensors of numbers at or above 0.
_NONNEGATIVE = ("exp_avg_sq", "max_exp_avg_sq", "exp_inf", "square_avg", "acc_delta", "sum", "step_size")
# Settings at or above 0, and settings in [0, 1).
_POSITIVE = ("lr", "initial_lr", "eps", "weight_decay")
_SHARES = ("beta1_decay",)


def check_optimizer_state(optimizer: Optimizer, state: Any) -> None:
    """Raise unless `state` fits `optimizer`: groups, settings, parameters, and the state of each. Changes nothing.

    What the state of a parameter looks like is known once the optimizer has stepped. Before, torch's optimizers are
    known to keep tensors like the parameter, and one number for its steps.

    Raises:
        ValueError, TypeError: If something does not fit.
    """
    live = _checks.instance("optimizer", optimizer, Optimizer, "a torch.optim.Optimizer").state_dict()
    check_form("state", state)
    groups, saved = state["param_groups"], state["state"]
    if len(groups) != len(live["param_groups"]):
        rule = f"have {len(live['param_groups'])} param_groups"
        raise ValueError(f"an optimizer's state must {rule}, got {len(groups)}.")
    for number, (group, own) in enumerate(zip(groups, live["param_groups"], strict=True)):
        if group["params"] != own["params"]:
            rule = f"hold the parameters {_range_of(own['params'])}, in this order"
            raise ValueError(f"`param_groups[{number}]` must {rule}.")
        check_group(f"param_groups[{number}]", group, own)
    params = [param for group in optimizer.param_groups for param in group["params"]]
    if not all(type(key) is int and 0 <= key < len(params) for key in saved):
        raise ValueError(f"an optimizer's state must hold states of parameters 0 to {len(params) - 1}.")
    check_entries(optimizer, {params[number]: entry for number, entry in saved.items()})
    for number in (number for group in groups if group.get("amsgrad") for number in group["params"]):
        if saved.get(number) and "max_exp_avg_sq" not in saved[number]:
            raise ValueError(f"`state[{number}]` must have the key max_exp_avg_sq, because it was saved with amsgrad.")


def check_form(name: str, state: Any) -> None:
    """Raise unless `state` is built as an optimizer's is: a dict of states and of groups, which have parameters."""
    if not isinstance(state, dict) or not {"state", "param_groups"} <= set(state):
        got = _checks.shown(name, state)
        raise ValueError(f"`{name}` must be a dict with the keys state and param_groups, got {got}.")
    _checks.instance(f"{name}['state']", state["state"], dict, "a dict")
    groups = _checks.instance(f"{name}['param_groups']", state["param_groups"], list, "a list")
    for number, group in enumerate(groups):
        place = f"{name}['param_groups'][{number}]"
        if not isinstance(group, dict) or not isinstance(group.get("params"), (list, tuple)):
            got = _checks.shown(place, group)
            raise ValueError(f"`{place}` must be a dict with a list of parameters under the key params, got {got}.")


def check_entries(optimizer: Optimizer, entries: Mapping[Any, Any]) -> None:
    """Raise unless the states of these parameters fit those that the optimizer has, or would have."""
    params = [param for group in optimizer.param_groups for param in group["params"]]
    for number, param in enumerate(params):
        known, is_torchs = optimizer.state.get(param) or {}, _keeps_tensors_like_parameters(optimizer)
        if param in entries and (known or is_torchs):
            always = _KEPT.get(type(optimizer).__name__, set()) if is_torchs else set()
            _check_entry(f"state[{number}]", entries[param], param, known, always)


def _keeps_tensors_like_parameters(optimizer: Optimizer) -> bool:
    kind = type(optimizer)
    return kind.__module__.startswith(("torch.optim", "adamcb.")) and kind.__name__ not in _OTHER_SHAPES


def check_group(name: str, group: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Raise unless a saved group has settings of the same kind as the live one."""
    if "param_names" in group and "param_names" in own and group["param_names"] != own["param_names"]:
        raise ValueError(f"`{name}` must hold parameters of the same names in the same order.")
    if "lr" not in group:
        raise ValueError(f"`{name}` must have the setting lr, got {', '.join(map(str, group))}.")
    for key, value in group.items():
        if key not in ("params", "param_names") and key in own:
            _check_setting(f"{name}['{key}']", key, value, own[key])


def _check_setting(name: str, key: str, value: Any, own: Any) -> None:
    if key == "betas":
        _checks.betas(value, name)
    elif key in _POSITIVE:
        _checks.real(name, _number(name, value), low=0.0)
    elif key in _SHARES:
        _checks.real(name, value, low=0.0, high=1.0, low_open=True)
    elif isinstance(own, bool) or own is None:
        if not (value is None or isinstance(value, bool)):
            raise TypeError(f"`{name}` must be True, False or None, got {_checks.shown(name, value)}.")
    elif isinstance(own, (int, float)):
        _checks.real(name, value)
    elif isinstance(own, Tensor):
        _number(name, value)


def _number(name: str, value: Any) -> Any:
    """Return the number in a 1-element tensor, or the number."""
    if isinstance(value, Tensor):
        if value.numel() != 1:
            raise ValueError(f"`{name}` must be one number, got a tensor of shape {tuple(value.shape)}.")
        return value.item()
    return value


def _check_entry(name: str, entry: Any, param: Tensor, known: Mapping[str, Any], always: set[str]) -> None:
    """Raise unless the saved state of a parameter is like that which the optimizer has, or would have."""
    if not isinstance(entry, dict):
        raise TypeError(f"`{name}` must be a dict, got {type(entry).__name__}.")
    needed = {key for key, value in known.items() if isinstance(value, Tensor)} - {"max_exp_avg_sq"}
    needed |= always
    if entry and not needed <= set(entry):
        missing = ", ".join(sorted(needed - set(entry)))
        raise ValueError(f"`{name}` must have the keys {missing}, got {', '.join(map(str, entry))}.")
    for key, value in entry.items():
        if key in _SCALARS:
            _check_scalar(f"{name}['{key}']", key, value)
        elif not (value is None and known.get(key) is None):
            _check_like(f"{name}['{key}']", value, known.get(key, param))
            if type(value) is Tensor:
                _check_values(f"{name}['{key}']", value, low=0.0 if key in _NONNEGATIVE else -math.inf)


def _check_scalar(name: str, key: str, value: Any) -> None:
    number = _checks.real(name, _number(name, value), low=0.0)
    if key == "step" and number != math.floor(number):
        raise ValueError(f"`{name}` must be a whole number, got {_checks.shown(name, number)}.")


def _check_like(name: str, value: Any, model: Any) -> None:
    if not isinstance(model, Tensor):
        return
    if not isinstance(value, Tensor):
        raise TypeError(f"`{name}` must be a tensor, got {_checks.shown(name, value)}.")
    if value.shape != model.shape or value.dtype != model.dtype or value.layout != torch.strided:
        rule = f"be a tensor of shape {tuple(model.shape)} and {model.dtype}"
        raise ValueError(f"`{name}` must {rule}, got shape {tuple(value.shape)} and {value.dtype}.")


def _check_values(name: str, value: Tensor, low: float) -> None:
    """Raise if entries share memory, which no kernel writes to as it should, or if one is NaN or below `low`."""
    reach = 0
    for stride, size in sorted(zip(value.stride(), value.shape, strict=True)):
        if size > 1 and stride <= reach:
            raise ValueError(f"`{name}` must have memory for each entry, got the strides {tuple(value.stride())}.")
        reach += stride * (size - 1)
    if value.numel() and not value.is_complex() and not bool((value >= low).all()):
        rule = "hold numbers at or above 0" if low == 0.0 else "hold no NaN"
        raise ValueError(f"`{name}` must {rule}, got {int((~(value >= low)).sum())} of {value.numel()} that are not.")


def _range_of(params: list[int]) -> str:
    return f"{params[0]} to {params[-1]}" if params else "of an empty group"
