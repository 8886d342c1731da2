"""Rules for matrix products: the gradient of a matrix is a sum of outer products."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from adamcb.gradnorm._batch import Batch, Owners, split
from adamcb.gradnorm._call import Call, Origin, Use, is_parameter, trains
from adamcb.gradnorm._elementwise_rules import spread
from adamcb.gradnorm._graph import dense
from adamcb.gradnorm._parts import Dense, Outer, accurate
from adamcb.gradnorm._product_layouts import letters_of


def linear(call: Call, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> list[Use] | None:
    """Σₜ gₜ ⊗ xₜ."""
    batch = call.batch(input)
    if batch is None or batch.dim == input.dim() - 1 or weight.is_complex() or call.batch(bias) is not None:
        return None
    positions = input.numel() // max(1, input.shape[-1] * batch.size)
    forms = Outer.prefers_forming(positions, *weight.shape) and call.may_form(weight)
    held = None if forms else input.detach()

    def part(grad: Tensor, x: Any = held) -> Outer:
        return Outer(call.rows(grad).unsqueeze(1), call.rows(x, batch).unsqueeze(1), weight.shape)

    if not forms and trains(weight) and trains(bias):
        return [Use(weight, part, bias=bias)]
    if forms and not call.kwargs and (bias is None or call.may_form(bias)):
        run = functools.partial(_run_dense, input, weight, bias)
        return [Use(weight, part, forms=True, saved=(input,), bias=bias, run=run)]
    uses = [Use(weight, part, forms=forms, saved=(input,))]
    if bias is not None:
        uses.append(_bias_use(call, bias, forms))
    return uses


def _run_dense(input: Tensor, weight: Tensor, bias: Tensor | None, supply: Any) -> Tensor:
    return dense(supply, input, weight, bias)


def _bias_use(call: Call, bias: Tensor, forms: bool) -> Use:
    def part(grad: Tensor) -> Dense:
        rows = call.rows(grad)
        return Dense(rows.squeeze(1) if rows.shape[1] == 1 else accurate(rows).sum(1))

    return Use(bias, part, forms=forms and call.may_form(bias))


def matmul(call: Call, input: Tensor, other: Tensor) -> list[Use] | None:
    """Σₜ xₜ ⊗ gₜ for a matrix on the right, Σₜ gₜ ⊗ xₜ on the left; matrices side by side likewise."""
    if min(input.dim(), other.dim()) < 2:
        return None
    lead = max(input.dim(), other.dim()) - 2
    names = [f"b{dim}" for dim in range(lead)]
    first = [*names[lead - (input.dim() - 2) :], "i", "j"]
    second = [*names[lead - (other.dim() - 2) :], "j", "o"]
    return contraction(call, (input, other), (first, second), [*names, "i", "o"])


def addmm(call: Call, input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: Any = 1, alpha: Any = 1) -> list[Use] | None:
    """As a matrix product; what it is added to is broadcast."""
    if alpha != 1 or beta != 1:
        return None
    uses = []
    if call.parametric(mat1) or call.parametric(mat2):
        product = matmul(call, mat1, mat2)
        if product is None:
            return None
        uses += product
    if call.parametric(input):
        forms = bool(uses) and uses[0].forms and input.dim() == 1
        plain = trains(input) and input.dim() == 1 and mat1.dim() == 2
        uses.append(_bias_use(call, input, forms) if plain else spread(call, input, lambda grad: grad))
    return uses


def baddbmm(
    call: Call, input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Any = 1, alpha: Any = 1
) -> list[Use] | None:
    """As for `addmm`."""
    return addmm(call, input, batch1, batch2, beta=beta, alpha=alpha)


def grouped_mm(
    call: Call, input: Tensor, weight: Tensor, *, offs: Tensor | None = None, bias: Any = None, out_dtype: Any = None
) -> list[Use] | None:
    """Σₜ xₜ ⊗ gₜ, for each group of rows with a matrix of its own: experts."""
    batch = call.batch(input)
    if batch is None or batch.dim != 0 or input.dim() != 2 or weight.dim() != 3 or offs is None:
        return None
    x, groups = input.detach(), len(weight)

    def part(grad: Tensor) -> Outer:
        rows = torch.arange(len(x), device=x.device)
        group = torch.searchsorted(offs.long(), rows, right=True)
        owner = batch.owner(len(x)).to(x.device) * groups + group
        owner = torch.where(group < groups, owner, -1)  # rows behind the last group take no part
        owners = Owners(owner, batch.size * groups)
        left, right = (owners.gather(each, 0).unflatten(0, (batch.size, groups)) for each in (x, grad))
        return Outer(left, right, weight.shape)

    return [Use(weight, part)]


def attention(
    call: Call,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> list[Use] | None:
    """P∘(g·vᵀ − Σ P∘(g·vᵀ)) for what is added to the scores: relative positions. P are the attention weights."""
    alone = call.parametric(attn_mask) and not any(call.parametric(each) for each in (query, key, value))
    if attn_mask is None or not alone or dropout_p or is_causal or enable_gqa:
        return None
    q, k, v, mask = (accurate(each.detach()) for each in (query, key, value, attn_mask))
    factor = q.shape[-1] ** -0.5 if scale is None else scale

    def local(grad: Tensor) -> Tensor:
        weights = torch.softmax(q @ k.transpose(-2, -1) * factor + mask, -1)
        slopes = weights * (accurate(grad) @ v.transpose(-2, -1))
        return slopes - weights * slopes.sum(-1, keepdim=True)

    return [spread(call, attn_mask, local)]


def einsum(call: Call, equation: Any, *operands: Any) -> list[Use] | None:
    """As a matrix product, with letters in place of dimensions."""
    if len(operands) == 1 and isinstance(operands[0], (tuple, list)):
        operands = tuple(operands[0])
    if not isinstance(equation, str) or "->" not in equation or len(operands) != 2:
        return None
    inputs, output = equation.replace(" ", "").split("->")
    letters = [letters_of(each, operand.dim()) for each, operand in zip(inputs.split(","), operands, strict=True)]
    hidden = sum(1 for name in {*letters[0], *letters[1]} if isinstance(name, int)) if "..." in output else 0
    result = letters_of(output, len(output.replace("...", "")) + hidden)
    if any(len(set(names)) < len(names) for names in (*letters, result)):
        return None
    return contraction(call, operands, letters, result)


def contraction(call: Call, operands: Sequence[Tensor], letters: Sequence[list], result: list) -> list[Use] | None:
    """Return the use of the one operand that is made of parameters: Σ x·g over the letters that it does not have."""
    places = [place for place, operand in enumerate(operands) if call.parametric(operand)]
    if len(places) != 1 or any(operand.is_complex() for operand in operands):
        return None
    target, x = operands[places[0]], operands[1 - places[0]]
    batch, origin = call.batch(x), call.origin(target)
    base: Any = target
    if batch is None:
        return None
    if origin is not None and origin.expanded_from is not None:
        base = origin.expanded_from
        origin = None if is_parameter(base) else Origin(origin.leaves)
    tiled = origin is not None and origin.tiled_from is not None and _is_tile(origin.tiled_from, batch, x)
    if tiled and origin is not None:
        base = origin.tiled_from
        origin = None if is_parameter(base) else Origin(origin.leaves)
    mine, theirs = letters[places[0]][target.dim() - base.dim() :], letters[1 - places[0]]
    form = _Form.of(mine, base.shape, theirs, x.shape, result, None if tiled else batch)
    if form is None:
        return None
    positions = x.numel() // max(1, batch.size * math.prod(form.sizes(theirs, x.shape, form.blocks + form.right)))
    forms = len(form.blocks) == 0 and Outer.prefers_forming(positions, form.rows, form.columns)
    forms = forms and call.may_form(base) and base is target
    held = None if forms else x.detach()

    def part(grad: Tensor, x: Any = held) -> Outer:
        return form.part(split(grad, call.out), split(x, batch))

    return [Use(base, part, forms=forms, saved=(x,), origin=origin)]


def _is_tile(base: Tensor, batch: Batch, x: Tensor) -> bool:
    """Tell whether each sample meets one copy of `base`, which was repeated along the first dimension."""
    return batch.dim == 0 and batch.owners is None and batch.inner == len(base) and len(x) == batch.size * len(base)


class _Form:
    """How the dimensions of a product of two tensors become those of an `Outer`.

    Letters of the target that both others have are blocks; those that only the result has are the left factor's, those
    that only the other tensor has are the right factor's. What both others have, and the target has not, are positions.
    """

    def __init__(self, mine: list, shape: Sequence[int], theirs: list, result: list) -> None:
        self.theirs, self.result, self.shape = theirs, result, tuple(shape)
        self.mine = [name for name, size in zip(mine, shape, strict=True) if size != 1 or name not in theirs]
        self.mine = [name for name in self.mine if name in theirs or name in result]
        self.blocks = [name for name in self.mine if name in theirs and name in result]
        self.left = [name for name in self.mine if name not in theirs]
        self.right = [name for name in self.mine if name not in result]
        self.positions = [name for name in result if name not in self.mine]
        size = dict(zip(mine, shape, strict=True))
        self._sizes = [size[name] for name in (*self.blocks, *self.left, *self.right)]
        self.rows, self.columns = (math.prod(size[name] for name in names) for names in (self.left, self.right))

    @staticmethod
    def of(
        mine: list, shape: Sequence[int], theirs: list, their_shape: Sequence[int], result: list, batch: Batch | None
    ) -> _Form | None:
        """Return the form, None if the samples, or what is broadcast, do not let it be one."""
        form = _Form(mine, shape, theirs, result)
        apart = batch is None or (theirs[batch.dim] not in form.mine and theirs[batch.dim] in result)
        broadcast = any(name in form.mine and size == 1 for name, size in zip(theirs, their_shape, strict=True))
        lacking = any(name not in theirs for name in form.positions)
        lacking |= any(size > 1 and name not in form.mine for name, size in zip(mine, shape, strict=True))
        return form if apart and not broadcast and not lacking else None

    def sizes(self, names: list, shape: Sequence[int], chosen: list) -> list[int]:
        """Return the sizes of some letters."""
        return [size for name, size in zip(names, shape, strict=True) if name in chosen]

    def part(self, grad: Tensor, x: Tensor) -> Outer:
        """Return the part from [K, ...], the gradient of the result and the other tensor."""
        gone = [1 + place for place, name in enumerate(self.theirs) if name not in self.result + self.right]
        theirs = [name for name in self.theirs if name in self.result + self.right]
        x = x.sum(gone) if gone else x
        left = self._arranged(grad, self.result, self.left)
        right = self._arranged(x, theirs, self.right)
        order = [*self.blocks, *self.left, *self.right]
        if order == self.mine:
            return Outer(left, right, self.shape)
        if [*self.blocks, *self.right, *self.left] == self.mine:
            return Outer(right, left, self.shape)
        return Outer(left, right, self.shape, axes=(self._sizes, [order.index(name) for name in self.mine]))

    def _arranged(self, tensor: Tensor, names: list, last: list) -> Tensor:
        """Return [K, B, T, a]."""
        groups = (self.blocks, self.positions, last)
        sizes = dict(zip(names, tensor.shape[1:], strict=True))
        moved = tensor.permute(0, *(1 + names.index(name) for group in groups for name in group))
        return moved.reshape(len(tensor), *(math.prod(sizes[name] for name in group) for group in groups))
