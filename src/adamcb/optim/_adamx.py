"""AdamX as a torch optimizer: groups, state and checkpoints. The arithmetic is in `_update`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT

from adamcb import _checks
from adamcb._torch_compat import (
    check_fusible,
    check_graph_capture,
    scalar_dtype,
    with_grad_if_differentiable,
)
from adamcb._warn import warn_user
from adamcb.optim._loading import check_entries, check_form, check_group
from adamcb.optim._update import capturable_step, fused_step, plain_step

_MOMENTS = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")
# What an AdamX group is to `torch.optim.Adam`, which then reads our checkpoints as the AMSGrad that they are.
_AS_ADAM = {"amsgrad": True, "decoupled_weight_decay": True}
_WHY_NOT_FUSED = {
    "foreach": "they are two ways to do the same",
    "differentiable": "the fused kernel has no derivatives",
    "capturable": "the fused kernel takes β₁ as a number, and AdamX has another one at every step",
}


class AdamX(Optimizer):
    """AMSGrad with the correction that a decaying β₁ asks for (Algorithm 1, lines 4 to 7).

    With β₁,t = β₁ λᵗ⁻¹, step t = 1, 2, … does
        m_t = β₁,t m_t−1 + (1 − β₁,t) g_t
        v_t = β₂ v_t−1 + (1 − β₂) g_t²
        v̂_t = max{ (1 − β₁,t)² / (1 − β₁,t−1)² · v̂_t−1, v_t },  v̂₁ = v₁
        θ_t+1 = θ_t − α m_t / (√v̂_t + ε)

    `bias_correction`, on by default, puts m_t / (1 − β₁ᵗ) and v̂_t / (1 − β₂ᵗ) in the last line: Adam's corrections,
    with the constant β₁, and after the maximum, as `torch.optim.Adam(amsgrad=True)` does. With `beta1_decay=1` the two
    optimizers are then the same. Without it the first steps are three to six times as long as Adam's.

    State has torch's names: `step`, `exp_avg` (m), `exp_avg_sq` (v), `max_exp_avg_sq` (v̂). A checkpoint of Adam or
    AMSGrad loads; settings that it does not know stay as they are here. Adam's has no v̂: it starts at v, the
    largest value that the checkpoint knows of.

    The factor of v̂ is 1 + 1.8e-7 at the default λ. Where the parameters' type is too coarse for that, it is applied
    for several steps at once: every 8 in float32 (never more than 1.3e-6 late). In float64 it is every step.

    Args:
        params: Parameters, named parameters or groups of either, as for every torch optimizer.
        lr: α, at or above 0; a number or a 1-element tensor. For α/√t see `inverse_sqrt`.
        betas: β₁ and β₂, each in [0, 1). The regret bound needs β₁ ≤ √β₂, and is finite only below; values that
            break it are allowed with a warning.
        eps: ε, at or above 0.
        beta1_decay: λ in (0, 1]. The regret bound needs λ < 1; at 1, v̂ is that of AMSGrad.
        bias_correction: See above; `False` is the paper's, as `adamcb.paper.adamx` has it.
        weight_decay: Decoupled: θ is multiplied by 1 − α·weight_decay before the step, as in AdamW.
        maximize: Climb instead of descend.
        foreach: Update lists of parameters instead of one at a time. `None` chooses as torch does.
        fused: Use torch's fused kernel. It takes β₁ as a number that must be known on the host, so it excludes
            `capturable`; it has no derivatives, so it excludes `differentiable`.
        capturable: Never read `step` back from the device, so that a graph can be captured.
        differentiable: Let autograd run through the step. The state is replaced, not overwritten.

    Raises:
        ValueError: If a value is out of its range.
        RuntimeError: If options exclude each other, and from `step` for sparse gradients.

    Example:
        >>> import torch
        >>> from adamcb.optim import AdamX
        >>> weight = torch.tensor([1.0, -2.0], requires_grad=True)
        >>> optimizer = AdamX([weight], lr=0.01)
        >>> weight.square().sum().backward()
        >>> optimizer.step()
        >>> weight.detach()
        tensor([ 0.9900, -1.9900])
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        *,
        beta1_decay: float = 1 - 1e-8,
        bias_correction: bool = True,
        weight_decay: float = 0.0,
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "beta1_decay": beta1_decay,
            "bias_correction": bias_correction,
            "weight_decay": weight_decay,
            "maximize": maximize,
            "foreach": foreach,
            "fused": fused,
            "capturable": capturable,
            "differentiable": differentiable,
            **_AS_ADAM,
        }
        defaults |= _checked(defaults)
        if not isinstance(params, Tensor):  # torch has words for that
            params = list(_checks.sequence("params", params, "be parameters, named parameters or groups of them"))
            if not params:
                raise ValueError("`params` must not be empty, got an empty parameter list.")
        super().__init__(params, defaults)

    @property
    def _step_supports_amp_scaling(self) -> bool:
        # If so, GradScaler does not unscale the gradients but leaves `grad_scale` and `found_inf` here.
        return all(group["fused"] for group in self.param_groups)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, as every torch optimizer does, once its own settings have passed the constructor's checks."""
        _checks.instance("param_group", param_group, dict, "a dict")
        if "params" not in param_group:
            raise ValueError(
                f"`param_group` must have the key params, got {_checks.shown('param_group', param_group)}."
            )
        if not param_group.keys().isdisjoint(self.defaults):
            settings = _checked({**self.defaults, **param_group})
            param_group.update({name: settings[name] for name in settings if name in param_group})
        super().add_param_group(param_group)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a state of AdamX, AMSGrad or Adam.

        Raises:
            ValueError, TypeError: If it is of other parameters or shapes, or a setting is out of range. Nothing is
                changed then.
        """
        check_form("state_dict", state_dict)
        super().load_state_dict(state_dict)

    def __setstate__(self, state: dict[str, Any]) -> None:
        # When a checkpoint is loaded, these are the groups as they were constructed.
        constructed = self.__dict__.get("param_groups", [])
        if constructed:
            for number, (group, own) in enumerate(zip(state["param_groups"], constructed, strict=True)):
                check_group(f"param_groups[{number}]", group, own)
            check_entries(self, state["state"])
        super().__setstate__(state)
        for group, own in itertools.zip_longest(self.param_groups, constructed, fillvalue={}):
            if group.get("weight_decay") and not group.get("decoupled_weight_decay", True):
                warn_user(
                    f"The checkpoint's weight_decay={group['weight_decay']} was an L2 penalty; "
                    "AdamX takes it as decoupled weight decay."
                )
            group.update(_AS_ADAM)
            for key, value in {**self.defaults, **own}.items():
                group.setdefault(key, value)
            for param in group["params"]:
                if param in self.state:
                    _complete(self.state[param], param, on_device=group["capturable"])

    def _init_group(
        self,
        group: dict[str, Any],
        params: list[Tensor],
        grads: list[Tensor],
        exp_avgs: list[Tensor],
        exp_avg_sqs: list[Tensor],
        max_exp_avg_sqs: list[Tensor],
        state_steps: list[Tensor],
    ) -> None:
        # The name and the lists to be filled are torch's own: torch.compile runs a method of this name untraced.
        for param in group["params"]:
            if param.grad is None:
                continue
            if param.grad.is_sparse:
                raise RuntimeError("AdamX does not support sparse gradients, please consider SparseAdam instead")
            state = self.state[param]
            if not state:
                if group["fused"]:
                    check_fusible(param)
                device = param.device if group["capturable"] else "cpu"
                state["step"] = torch.zeros((), dtype=scalar_dtype(), device=device)
                for key in _MOMENTS:
                    state[key] = torch.zeros_like(param, memory_format=torch.preserve_format)
            elif group["differentiable"]:
                # The graph of the step before still needs these.
                state.update({key: tensor.clone() for key, tensor in state.items()})
            params.append(param)
            grads.append(param.grad)
            exp_avgs.append(state["exp_avg"])
            exp_avg_sqs.append(state["exp_avg_sq"])
            max_exp_avg_sqs.append(state["max_exp_avg_sq"])
            state_steps.append(state["step"])

    @with_grad_if_differentiable
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Update the parameters that have a gradient, and return what `closure`, if there is one, returned."""
        check_graph_capture(self)
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            lists: tuple[list[Tensor], ...] = ([], [], [], [], [], [])
            self._init_group(group, *lists)
            *columns, steps = lists
            if not steps:
                continue
            if group["fused"]:
                fused_step(columns, steps, group, getattr(self, "grad_scale", None), getattr(self, "found_inf", None))
            elif group["capturable"] or group["differentiable"] or torch.compiler.is_compiling():
                capturable_step(columns, steps, group)
            else:
                plain_step(columns, steps, group)
        return loss


def _checked(group: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a group as plain numbers and bools, or raise."""
    lr = group["lr"]
    rate = _checks.learning_rate(lr)
    beta1, beta2 = _checks.betas(group["betas"])
    settings: dict[str, Any] = {
        "lr": lr if isinstance(lr, Tensor) else rate,
        "betas": (beta1, beta2),
        "eps": _checks.real("eps", group["eps"], low=0.0),
        "beta1_decay": _checks.real("beta1_decay", group["beta1_decay"], low=0.0, low_open=True, high=1.0),
        "weight_decay": _checks.real("weight_decay", group["weight_decay"], low=0.0),
    }
    for option in ("bias_correction", "maximize", "capturable", "differentiable"):
        settings[option] = _checks.boolean(option, group[option])
    for option in ("foreach", "fused"):
        settings[option] = None if group[option] is None else _checks.boolean(option, group[option])
    for option in ("foreach", "differentiable", "capturable"):
        if settings["fused"] and settings[option]:
            raise RuntimeError(f"`fused` and `{option}` cannot be `True` together: {_WHY_NOT_FUSED[option]}.")
    if beta1 > math.sqrt(beta2):
        warn_user(f"The regret bound of AdamX needs β₁ ≤ √β₂: with betas={group['betas']} there is no guarantee.")
    return settings


def _complete(state: dict[str, Any], param: Tensor, *, on_device: bool) -> None:
    """Make the state of a checkpoint that is old, or Adam's, into one of ours."""
    step = torch.as_tensor(state["step"], dtype=scalar_dtype())
    state["step"] = step.to(param.device if on_device else "cpu")
    if "max_exp_avg_sq" not in state:
        state["max_exp_avg_sq"] = state["exp_avg_sq"].clone(memory_format=torch.preserve_format)
