"""The arithmetic of an AdamX step, on lists of tensors.

One rule, `_update`, serves every implementation: the for-loop gives it one parameter at a time, foreach lists of
them. The fused implementation hands the same numbers to torch's own kernel.

A coefficient is one float for all tensors of a list, or (`capturable`, `differentiable`, torch.compile) a list with
one 0-d tensor for each of them, so that the step count is never read back from the device.
"""
# torch.optim is written with torch._foreach_*, and so is this.
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from adamcb._torch_compat import prefers_lists, without_dynamo

Row: TypeAlias = tuple[Tensor, ...]  # parameter, gradient, m, v, v̂
Columns: TypeAlias = Sequence[list[Tensor]]  # the same five, each for several parameters
Coefficient: TypeAlias = Any  # float or list[Tensor]; torch's overloads are not typed for the union
Group: TypeAlias = dict[str, Any]

# v̂ grows once this many units in its last place have come together. In float32 with the default λ, where a single step
# adds 1.5 of them, most of the growth would be lost or doubled by rounding, and a pass over memory spent on it.
_UNITS = 8

# Elements of the parameters that foreach takes together on the CPU; much more would not stay in its cache.
_CACHED = 1 << 16


class Coefficients(NamedTuple):
    """What step t multiplies with; `None` where there is nothing to do."""

    shrink: Coefficient | None  # 1 − α·weight_decay
    weight: Coefficient  # 1 − β₁,t
    growth: Coefficient | None  # (1 − β₁,t)² / (1 − β₁,s)² − 1, with s the last step that had one
    eps: Coefficient  # ε √(1 − β₂ᵗ)
    correction: Coefficient  # √(1 − β₂ᵗ) / (1 − β₁ᵗ)
    step_size: Coefficient  # α times the correction

    def per_tensor(self, count: int) -> Coefficients:
        """Return a copy with every tensor taken apart into a list of `count` 0-d tensors."""
        return Coefficients(*(list(c.expand(count).unbind()) if isinstance(c, Tensor) else c for c in self))


def coefficients(step: Any, lr: Any, dtype: torch.dtype, group: Group) -> Coefficients:
    """Return the coefficients of step t = `step`, a float or a vector with the count of each parameter.

    With λ = 1 − 1e-8 the interesting parts are differences from 1 of about 1e-8, so λᵗ⁻¹ − 1 is computed, never λᵗ⁻¹:
        1 − β₁,t = (1 − β₁) − β₁ (λᵗ⁻¹ − 1)
    Both bias corrections are taken into the step size and ε: α m̂ / (√(v̂/c₂) + ε) = (α √c₂/c₁) m / (√v̂ + ε √c₂).
    """
    expm1 = torch.expm1 if isinstance(step, Tensor) else math.expm1
    beta1, beta2 = group["betas"]
    weight = (1 - beta1) - beta1 * expm1((step - 1) * math.log(group["beta1_decay"]))
    correction, eps = 1.0, group["eps"]
    if group["bias_correction"]:
        root = (-expm1(step * _log(beta2))) ** 0.5
        correction, eps = root / -expm1(step * _log(beta1)), eps * root
    shrink = 1 - lr * group["weight_decay"] if group["weight_decay"] else None
    growth = _growth(step, expm1, beta1, group["beta1_decay"], dtype)
    return Coefficients(shrink, weight, growth, eps, correction, lr * correction)


def _growth(step: Any, expm1: Callable, beta1: float, decay: float, dtype: torch.dtype) -> Any | None:
    """Return (1 − β₁,t)² / (1 − β₁,s)² − 1 at every step t that is a multiple of the interval t − s, else 0 or None.

    The interval is 1, so that every step is as in Algorithm 1, unless one step's growth is lost in `dtype`.
    """
    first = 2 * beta1 * (1 - decay) / (1 - beta1)
    if first == 0:
        return None
    interval = 2.0 ** max(0, math.ceil(math.log2(_UNITS * torch.finfo(dtype).eps / first)))
    if not isinstance(step, Tensor) and step % interval:
        return None
    n, log = step - 1 - interval, math.log(decay)
    n = (abs(n) + n) / 2  # s − 1, with s at least 1
    before = expm1(n * log)
    # (1 − β₁,t) / (1 − β₁,s) − 1 = β₁,s (1 − λᵗ⁻ˢ) / (1 − β₁,s)
    x = -beta1 * (1 + before) * expm1((step - 1 - n) * log) / ((1 - beta1) - beta1 * before)
    return x * (2 + x) * (step % interval == 0)


def _log(beta: float) -> float:
    return math.log(beta) if beta > 0 else -math.inf


def plain_step(columns: Columns, steps: list[Tensor], group: Group) -> None:
    """Update the parameters of a group, with coefficients that are floats."""
    lr = group["lr"].item() if isinstance(group["lr"], Tensor) else group["lr"]
    in_lists = _in_lists(columns[0], group)
    for step, rows in _by_step(columns, steps):
        c = coefficients(step, lr, rows[0][0].dtype, group)
        for together in _lists(rows) if in_lists else [[row] for row in rows]:
            _update(_columns(together), c, group)


def capturable_step(columns: Columns, steps: list[Tensor], group: Group) -> None:
    """Update the parameters of a group, with coefficients that are tensors."""
    torch._foreach_add_(steps, 1)
    in_lists = _in_lists(columns[0], group)
    alike: dict[Any, list[int]] = {}
    for i, param in enumerate(columns[0]):
        alike.setdefault((param.device, param.dtype) if in_lists else i, []).append(i)
    rows = _rows(columns)
    for members in alike.values():
        counts = torch.stack([steps[i] for i in members])
        # MPS has no float64. Nothing below cancels, so that float32 will do there.
        counts = counts.to(torch.float32 if counts.device.type == "mps" else torch.float64)
        c = coefficients(counts, group["lr"], rows[members[0]][0].dtype, group)
        _update(_columns([rows[i] for i in members]), c.per_tensor(len(members)), group)


@without_dynamo
def fused_step(
    columns: Columns, steps: list[Tensor], group: Group, grad_scale: Tensor | None, found_inf: Tensor | None
) -> None:
    """Update the parameters of a group with torch's fused kernel; do nothing if `found_inf` says so."""
    if found_inf is not None and found_inf.item():
        return
    for step, rows in _by_step(columns, steps):
        c = coefficients(step, group["lr"], rows[0][0].dtype, group)
        scale = None if grad_scale is None else grad_scale.to(rows[0][0].device, non_blocking=True)
        dense = [row for row in rows if _same_layout(row)]
        if dense:
            _fused_update(_columns(dense), c, group, scale)
        # The kernel walks through memory without a look at the strides: other layouts go through copies.
        for row in rows if len(dense) < len(rows) else []:
            if not _same_layout(row):
                copies = [tensor.contiguous() for tensor in row]
                _fused_update([[copy] for copy in copies], c, group, scale)
                torch._foreach_copy_(list(row), copies)


def _update(columns: Columns, c: Coefficients, group: Group) -> None:
    """Apply lines 4 to 7 of Algorithm 1, in place."""
    params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs = columns
    beta2 = group["betas"][1]
    if group["maximize"]:
        grads = list(torch._foreach_neg(grads))
    if c.shrink is not None:
        torch._foreach_mul_(params, c.shrink)
    _lerp_(exp_avgs, grads, c.weight)
    torch._foreach_mul_(exp_avg_sqs, beta2)
    torch._foreach_addcmul_(exp_avg_sqs, grads, grads, 1 - beta2)
    _grow_(max_exp_avg_sqs, c.growth)
    torch._foreach_maximum_(max_exp_avg_sqs, exp_avg_sqs)
    # Not sqrt: autograd would need its result, which the next line overwrites.
    denominators = torch._foreach_pow(max_exp_avg_sqs, 0.5)
    torch._foreach_add_(denominators, c.eps)
    step_size = c.step_size
    if isinstance(step_size, list):
        torch._foreach_div_(denominators, step_size)
        step_size = 1.0
    torch._foreach_addcdiv_(params, exp_avgs, denominators, -step_size)


def _lerp_(averages: list[Tensor], values: list[Tensor], weight: Coefficient) -> None:
    if isinstance(weight, list):
        weight = [w.to(average.dtype) for w, average in zip(weight, averages, strict=True)]
    torch._foreach_lerp_(averages, values, weight)


def _grow_(tensors: list[Tensor], growth: Coefficient | None) -> None:
    # Adding growth·v̂ rounds once; multiplying by 1 + growth would round that as well.
    if isinstance(growth, list):
        torch._foreach_addcmul_(tensors, tensors, growth)
    elif growth is not None:
        torch._foreach_add_(tensors, tensors, alpha=growth)


def _fused_update(columns: Columns, c: Coefficients, group: Group, grad_scale: Tensor | None) -> None:
    """Apply the same lines with torch's fused AdamW kernel, after growing v̂.

    The kernel's own bias correction would use β₁,t where Adam's has β₁. At step ∞ it corrects nothing, and the right
    one is already in the step size and in ε.
    """
    params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs = columns
    _grow_(max_exp_avg_sqs, c.growth)
    never = _constant(math.inf, params[0].device)
    torch._fused_adamw_(
        params,
        grads,
        exp_avgs,
        exp_avg_sqs,
        max_exp_avg_sqs,
        [never] * len(params),
        lr=c.step_size,
        beta1=1 - c.weight,
        beta2=group["betas"][1],
        weight_decay=group["weight_decay"] / c.correction,
        eps=c.eps,
        amsgrad=True,
        maximize=group["maximize"],
        grad_scale=grad_scale,
        found_inf=None,
    )


def _in_lists(params: list[Tensor], group: Group) -> bool:
    if group["foreach"] is None and group["fused"] is None:
        return prefers_lists(params, differentiable=group["differentiable"])
    return bool(group["foreach"])


def _lists(rows: list[Row]) -> list[list[Row]]:
    """Return `rows` as one list, or on the CPU, where foreach is a loop like any other, as lists that fit the cache."""
    if not rows[0][0].is_cpu:
        return [rows]
    lists, size = [[rows[0]]], rows[0][0].numel()
    for row in rows[1:]:
        size += row[0].numel()
        if size > _CACHED:
            lists.append([])
            size = row[0].numel()
        lists[-1].append(row)
    return lists


def _by_step(columns: Columns, steps: list[Tensor]) -> Iterable[tuple[float, list[Row]]]:
    """Count the step, and return the rows of each device, type and step count together, with that count."""
    # A tensor, because a number would be made into one for every entry of the list.
    torch._foreach_add_(steps, _constant(1.0, steps[0].device), alpha=1.0)
    alike: dict[Any, list[Row]] = {}
    for row, step in zip(_rows(columns), steps, strict=True):
        alike.setdefault((step.item(), row[0].device, row[0].dtype), []).append(row)
    return [(step, rows) for (step, _, _), rows in alike.items()]


@functools.cache
def _constant(value: float, device: torch.device) -> Tensor:
    """Return a number on a device, made once: in small models making it is a part of the step that shows."""
    return torch.full((), value, dtype=torch.float32, device=device)


def _same_layout(row: Row) -> bool:
    """Return whether the tensors lie in memory in the same order and without gaps."""
    if all(map(Tensor.is_contiguous, row)):
        return True
    strides = row[0].stride()
    alike = all(tensor.stride() == strides for tensor in row)
    return alike and (row[0].is_contiguous() or torch.ops.aten.is_non_overlapping_and_dense(row[0]))


def _rows(columns: Columns) -> list[Row]:
    rows = zip(*columns, strict=True)
    return [tuple(torch.view_as_real(t) for t in row) if torch.is_complex(row[0]) else row for row in rows]


def _columns(rows: list[Row]) -> Columns:
    return [list(column) for column in zip(*rows, strict=True)]
