"""Operations that run in smaller steps, so that the rules for what they are made of apply.

Attention and the recurrent layers hide their parameters inside one call. Taken apart they are the same mathematics, at
the speed of the steps; their weights then meet the batch in `linear` alone.
"""

from __future__ import annotations

import functools
import math
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from adamcb.gradnorm._batch import Batch, place_owners
from adamcb.gradnorm._call import Mark, is_parameter
from adamcb.gradnorm._packed import Steps
from adamcb.gradnorm._recurrence import lstm_scan, scans


class MarkSource(Protocol):
    """What an operation that is taken apart needs of the tracer.

    Attributes:
        checked: Whether autograd must compute all gradients itself.
    """

    checked: bool

    def mark_samples(self, tensor: Tensor, batch: Batch) -> Batch:
        """Note where the samples are by the operation's convention, unless they are known; return where they are."""
        ...

    def mark_of(self, tensor: Tensor) -> Mark | None:
        """Return what is known of a tensor, None for a constant."""
        ...


def attention(marks: MarkSource, func: Any, *args: Any, **kwargs: Any) -> Any:
    """Run the body of `multi_head_attention_forward`, whose inputs are [T, K, d] or, for a single sample, [T, d]."""
    for place, name in enumerate(("query", "key", "value")):
        tensor = args[place] if len(args) > place else kwargs[name]
        if tensor.dim() == 3 and not is_parameter(tensor):
            marks.mark_samples(tensor, Batch(1, tensor.shape[1], sure=True))
    return _body(func)(*args, **kwargs)


def _body(func: Any) -> Callable:
    """Return a Python function of torch without its first step, which would hand the call to the mode again."""
    names = {"has_torch_function", "has_torch_function_unary", "has_torch_function_variadic"}
    scope = {**func.__globals__, **{name: lambda *_: False for name in names}}
    body = types.FunctionType(func.__code__, scope, func.__name__, func.__defaults__, func.__closure__)
    body.__kwdefaults__ = func.__kwdefaults__
    return body


def lstm_step(gates: Tensor, hidden: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return the hidden state and the cell after one step."""
    into, forget, new, out = (gates + hidden).chunk(4, -1)
    cell = forget.sigmoid() * state[1] + into.sigmoid() * new.tanh()
    return out.sigmoid() * cell.tanh(), cell


def gru_step(gates: Tensor, hidden: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return the hidden state after one step."""
    reset, update, new = gates.chunk(3, -1)
    hidden_reset, hidden_update, hidden_new = hidden.chunk(3, -1)
    fresh = torch.tanh(new + (reset + hidden_reset).sigmoid() * hidden_new)
    kept = (update + hidden_update).sigmoid()
    return (fresh + kept * (state[0] - fresh),)


def tanh_step(gates: Tensor, hidden: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return the hidden state after one step."""
    return (torch.tanh(gates + hidden),)


def relu_step(gates: Tensor, hidden: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return the hidden state after one step."""
    return (torch.relu(gates + hidden),)


def recurrent(step: Callable) -> Callable:
    """Return what runs a recurrent layer step by step, or an LSTM's steps at once."""

    def run(marks: MarkSource, func: Any, *args: Any) -> tuple[Tensor, ...]:
        if not isinstance(args[3], bool):  # packed data, and how many sequences have a row at each step
            data, sizes, states, *rest = args
            states = tuple(states) if isinstance(states, (tuple, list)) else (states,)
            found = marks.mark_of(data)
            if isinstance(found, Batch) and found.dim == 0:
                place = place_owners(found.owner(len(data))[: int(sizes[0])], 1, found.size)
                for state in states:
                    marks.mark_samples(state, place)
            output, finals = _layers(marks, step, data, states, rest, Steps(sizes, data.device))
            return output, *finals
        input, states, *rest, batch_first = args
        states = tuple(states) if isinstance(states, (tuple, list)) else (states,)
        dim = 0 if batch_first else 1
        place = marks.mark_samples(input, Batch(dim, input.shape[dim], sure=True))
        for state in states:
            marks.mark_samples(state, place._replace(dim=1))
        output, finals = _layers(marks, step, input.transpose(0, 1) if batch_first else input, states, rest)
        return output.transpose(0, 1) if batch_first else output, *finals

    return run


def _layers(
    marks: MarkSource,
    step: Callable,
    rows: Tensor,
    states: tuple[Tensor, ...],
    settings: Any,
    packed: Steps | None = None,
) -> tuple[Tensor, Iterator[Tensor]]:
    """Run all layers over [T, K, d], or over packed rows [N, d]; return the last one's results and the last states."""
    weights, has_biases, num_layers, dropout, train, bidirectional = settings
    directions, finals = 2 if bidirectional else 1, []
    per_pass = len(weights) // (num_layers * directions)
    for layer in range(num_layers):
        results = []
        for direction in range(directions):
            at = layer * directions + direction
            own = _Weights(weights[at * per_pass : (at + 1) * per_pass], has_biases)
            start = tuple(state[at] for state in states)
            at_once = step is lstm_step and own.scans(marks.checked, start)
            scan = _scan_at_once if at_once else functools.partial(_scan, step)
            gates = F.linear(rows, own.input, own.input_bias)
            if packed is None:
                output, final = scan(gates, start, own, reverse=direction == 1)
            else:
                output, final = _through_pack(scan, gates, start, own, packed, reverse=direction == 1)
            results.append(output)
            finals.append(final)
        rows = torch.cat(results, -1) if directions == 2 else results[0]
        if dropout and train and layer < num_layers - 1:
            rows = F.dropout(rows, dropout)
    return rows, (torch.stack(parts) for parts in zip(*finals, strict=True))


class _Weights:
    """The parameters of one layer in one direction, in the order in which torch lists them."""

    def __init__(self, weights: Sequence[Tensor], has_biases: bool) -> None:
        self.input, self.hidden = weights[0], weights[1]
        self.input_bias, self.hidden_bias = (weights[2], weights[3]) if has_biases else (None, None)
        rest = weights[4:] if has_biases else weights[2:]
        self.projection = rest[0] if rest else None

    def scans(self, checked: bool, states: tuple[Tensor, ...]) -> bool:
        """Tell whether all steps can run as one operation."""
        return not checked and self.projection is None and scans((self.hidden, self.hidden_bias), states)


def _scan(
    step: Callable,
    gates: Tensor,
    state: tuple[Tensor, ...],
    own: _Weights,
    *,
    reverse: bool = False,
    active: Tensor | None = None,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Run one layer in one direction, from what its inputs add to the gates; return [T, K, h] and the last state.

    A sequence that is no longer active, bool[T, K, 1], keeps its state.
    """
    outputs, steps = [], gates.unbind(0)
    for t in reversed(range(len(steps))) if reverse else range(len(steps)):
        before, state = state, step(steps[t], F.linear(state[0], own.hidden, own.hidden_bias), state)
        if own.projection is not None:
            state = (F.linear(state[0], own.projection), *state[1:])
        if active is not None:
            state = tuple(torch.where(active[t], new, old) for new, old in zip(state, before, strict=True))
        outputs.append(state[0])
    return torch.stack(outputs[::-1] if reverse else outputs), state


def _scan_at_once(
    gates: Tensor,
    state: tuple[Tensor, ...],
    own: _Weights,
    *,
    reverse: bool = False,
    active: Tensor | None = None,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Do what `_scan` does for an LSTM, in one operation. Here the cells alone are kept after the end of a sequence."""
    if active is not None:  # the forget gate is open, and the gate for what is new is shut
        limit = gates.new_tensor([-math.inf, math.inf, 0, 0]).repeat_interleave(gates.shape[-1] // 4)
        gates = torch.where(active, gates, limit)
    hidden, cell = state
    states = lstm_scan(gates.flip(0) if reverse else gates, hidden, cell, own.hidden, own.hidden_bias)
    hidden = states[:-1]
    return hidden.flip(0) if reverse else hidden, (states[-2], states[-1])


def _through_pack(
    scan: Callable, gates: Tensor, state: tuple[Tensor, ...], own: _Weights, packed: Steps, *, reverse: bool
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Run one layer in one direction over the rows of packed data; sequences that have ended wait for the others."""
    hidden, final = scan(packed.spread(gates, reverse=reverse), state, own, active=packed.active)
    return packed.gather(hidden, reverse=reverse), (hidden.flatten(0, 1).index_select(0, packed.ends), *final[1:])


def cell(step: Callable) -> Callable:
    """Return what runs one step of a recurrent layer."""

    def run(marks: MarkSource, func: Any, input: Tensor, state: Any, *weights: Tensor | None) -> Any:
        states = tuple(state) if isinstance(state, (tuple, list)) else (state,)
        input_weight, hidden_weight, input_bias, hidden_bias = (*weights, None, None)[:4]
        gates = F.linear(input, input_weight, input_bias)  # type: ignore[arg-type]
        after = step(gates, F.linear(states[0], hidden_weight, hidden_bias), states)  # type: ignore[arg-type]
        return after if len(after) > 1 else after[0]

    return run
