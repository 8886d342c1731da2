"""Rules for tables whose rows are read: embeddings, bags of them, and indexing."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from adamcb.gradnorm._batch import rows
from adamcb.gradnorm._call import Call, Use
from adamcb.gradnorm._parts import Lookup, accurate


def embedding(
    call: Call,
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> list[Use] | None:
    """Row xₜ gets gₜ."""
    batch = call.batch(input)
    if batch is None:
        return None

    def part(grad: Tensor) -> Lookup:
        indices = call.rows(input.unsqueeze(-1), batch).squeeze(-1)
        values = accurate(call.rows(grad))
        if scale_grad_by_freq:
            values = values / torch.bincount(indices.flatten())[indices].unsqueeze(-1)
        if padding_idx is not None:
            values = values * (indices != padding_idx % weight.shape[0]).unsqueeze(-1)
        return Lookup(indices, values, weight.shape)

    return [Use(weight, part)]


def embedding_bag(
    call: Call,
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> list[Use] | None:
    """Row xₜ gets its share of the gradient of its bag; the greatest of a bag (mode "max") is left to the fallback."""
    if input.is_floating_point() or mode == "max" or scale_grad_by_freq or call.parametric(per_sample_weights):
        return None

    def part(grad: Tensor) -> Lookup:
        shares = torch.ones(input.shape, dtype=grad.dtype) if per_sample_weights is None else per_sample_weights
        indices, shares = _bags(input, shares.detach(), offsets, len(grad))
        if padding_idx is not None:
            shares = shares * (indices != padding_idx % weight.shape[0])
        if mode == "mean":
            shares = shares / shares.sum(1, keepdim=True).clamp(min=1)
        return Lookup(indices, shares.unsqueeze(2) * accurate(grad).unsqueeze(1), weight.shape)

    return [Use(weight, part)]


def _bags(input: Tensor, shares: Tensor, offsets: Tensor | None, bags: int) -> tuple[Tensor, Tensor]:
    """Return indices and shares as [bags, longest], filled up with shares of zero."""
    if offsets is None:
        return input, shares
    places = torch.arange(len(input), device=input.device)
    bag = torch.searchsorted(offsets[:bags].contiguous(), places, right=True) - 1
    within = places - offsets[bag]
    longest = int(within.max()) + 1 if len(within) else 0
    indices, padded = input.new_zeros(bags, longest), shares.new_zeros(bags, longest)
    indices[bag, within], padded[bag, within] = input, shares
    return indices, padded


def getitem(call: Call, table: Tensor, index: Any) -> list[Use] | None:
    """Row xₜ gets gₜ, for an index into the first dimension."""
    batch = call.batch(index)
    if not call.parametric(table) or batch is None or index.dtype == torch.bool:
        return None

    def part(grad: Tensor) -> Lookup:
        indices = call.rows(index.unsqueeze(-1), batch).squeeze(-1) % table.shape[0]
        values = rows(accurate(grad), call.out, features=table.dim() - 1)
        return Lookup(indices, values, table.shape)

    return [Use(table, part)]


def index_select(call: Call, input: Tensor, dim: int, index: Tensor) -> list[Use] | None:
    """Row xₜ gets gₜ."""
    return getitem(call, input, index) if dim % input.dim() == 0 else None
