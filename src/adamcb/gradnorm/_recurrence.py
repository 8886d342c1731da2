"""The recurrence of an LSTM layer with a backward pass of its own: one part for all steps of a parameter.

Step by step, a recurrent layer is hundreds of small operations, each of which would be traced. Here the hidden weight's
gradients are products of two factors that lie ready when the last step has gone backward.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import handle_torch_function

from adamcb.gradnorm._call import Call, Use, is_parameter, may_form
from adamcb.gradnorm._graph import refuse_graph
from adamcb.gradnorm._parts import Outer


def lstm_scan(gates: Tensor, hidden: Tensor, cell: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return [T + 1, K, h], the hidden states and the last cell, from what the inputs add to the gates, [T, K, 4h].

    Only under a tracer: it knows the rule, which runs it.
    """
    arguments = (gates, hidden, cell, weight, bias)
    return handle_torch_function(lstm_scan, arguments, *arguments)


def lstm_rule(
    call: Call, gates: Tensor, hidden: Tensor, cell: Tensor, weight: Tensor, bias: Tensor | None
) -> list[Use] | None:
    """Σₜ gₜ ⊗ hₜ₋₁, g being the gradient of the gates."""
    batch: Any = call.batch(gates)

    def part(grad: Tensor, before: Tensor) -> Outer:
        return Outer(call.rows(grad, batch).unsqueeze(1), call.rows(before, batch).unsqueeze(1), weight.shape)

    run = functools.partial(_run, gates, hidden, cell, weight, bias)
    return [Use(weight, part, forms=True, saved=(gates,), bias=bias, run=run)]


def scans(weights: tuple[Any, ...], states: tuple[Tensor, ...]) -> bool:
    """Tell whether a layer with these parameters and first states can be run by `lstm_scan`, in an unchecked pass."""
    if not torch.is_grad_enabled() or any(state.requires_grad or is_parameter(state) for state in states):
        return False
    return all(weight is None or may_form(weight) for weight in weights)


def _run(gates: Tensor, hidden: Tensor, cell: Tensor, weight: Tensor, bias: Tensor | None, supply: Callable) -> Tensor:
    result: Any = _Scan.apply(supply, gates, hidden, cell, weight, bias)
    return result


class _Scan(torch.autograd.Function):
    """All steps of a layer in one direction. The gates are in torch's order: input, forget, new, output."""

    @staticmethod
    def forward(
        ctx: Any, supply: Any, gates: Tensor, hidden: Tensor, cell: Tensor, weight: Tensor, bias: Tensor | None
    ) -> Tensor:
        length, samples, size = len(gates), gates.shape[1], weight.shape[1]
        gates = gates.clone() if bias is None else gates + bias
        states, memory = gates.new_empty(2, length + 1, samples, size).unbind(0)
        states[0], memory[0] = hidden, cell
        hiddens, cells = states.unbind(0), memory.unbind(0)
        opened = gates[..., : 2 * size].unbind(0)
        into, forget, new, out = (part.unbind(0) for part in gates.split(size, -1))
        transposed = weight.t()
        for t, step in enumerate(gates.unbind(0)):
            step.addmm_(hiddens[t], transposed)
            opened[t].sigmoid_()
            new[t].tanh_()
            out[t].sigmoid_()
            torch.mul(forget[t], cells[t], out=cells[t + 1]).addcmul_(into[t], new[t])
            torch.tanh(cells[t + 1], out=hiddens[t + 1]).mul_(out[t])
        ctx.supply = supply
        ctx.save_for_backward(gates, states, memory, weight)
        return torch.cat((states[1:], memory[-1:]))  # not what is kept: others may change it in place

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        refuse_graph()
        gates, states, memory, weight = ctx.saved_tensors
        size = weight.shape[1]
        slopes, through = _slopes(gates, memory)
        *arriving, back_cell = grads[0].unbind(0)
        out = torch.empty_like(gates)
        of_cell, of_end = (each.unflatten(-1, (4, size)).split((3, 1), -2) for each in (out, slopes))
        forget = gates[..., size : 2 * size].unbind(0)
        back, back_cell = arriving[-1].clone(), back_cell.clone()
        steps, (cell_out, end_out), (cell_slopes, end_slopes) = out.unbind(0), of_cell, of_end
        for t in reversed(range(len(gates))):
            back_cell.addcmul_(back, through[t])
            torch.mul(back_cell.unsqueeze(1), cell_slopes[t], out=cell_out[t])
            torch.mul(back.unsqueeze(1), end_slopes[t], out=end_out[t])
            if t:
                back_cell *= forget[t]
                torch.addmm(arriving[t - 1], steps[t], weight, out=back)
        supplied = ctx.supply(out, (states[:-1],))
        return None, out, None, None, *supplied, *([] if ctx.needs_input_grad[5] else [None])


def _slopes(gates: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
    """Return the slopes of cells, and in the last quarter of results, by the gates; and those of results by cells."""
    into, forget, new, out = gates.chunk(4, -1)
    squashed = memory[1:].tanh()  # taken again rather than kept from the forward pass: memory is dearer
    slopes = torch.addcmul(gates, gates, gates, value=-1)  # s(1 − s), for all gates but the new
    of_into, of_forget, of_new, of_out = slopes.chunk(4, -1)
    of_into *= new
    of_forget *= memory[:-1]
    torch.mul(into, 1 - new * new, out=of_new)
    of_out *= squashed
    return slopes, squashed.square_().neg_().add_(1).mul_(out)
