"""Finds out what an unknown operation does to the samples: it runs again with some of them changed.

Where only the entries along one dimension change that belong to the changed samples, that dimension holds them. The
answer is remembered by operation, numbers of dimensions and settings.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor

from adamcb.gradnorm._batch import Batch
from adamcb.gradnorm._call import Call, substitute, tensors_in

_Answer = tuple[int, bool] | None


class Probe:
    """Asks unknown operations, and remembers their answers."""

    def __init__(self) -> None:
        self._answers: dict[Any, _Answer] = {}

    def place(self, call: Call, sources: list[tuple[Tensor, Batch]], number: int, out: Tensor) -> Batch | None:
        """Return where the samples are in result number `number`, None if they are mixed or cannot be told."""
        batch = sources[0][1]
        regular = all(other.owners is None and other.size == batch.size for _, other in sources)
        if not regular or not all(source.is_floating_point() for source, _ in sources) or not out.is_floating_point():
            return None
        if batch.size == 1:
            return Batch(0, 1) if out.dim() else None
        key = (call.name, number, out.dim(), *((s.dim(), b.dim, b.inner > 1) for s, b in sources), _settings(call))
        if key not in self._answers:
            if len(self._answers) > 1000:  # every call has another index
                self._answers.clear()
            self._answers[key] = _ask(call, batch, number, out)
        answer = self._answers[key]
        if answer is None or out.shape[answer[0]] % batch.size:
            return None
        dim, blocks = answer
        return Batch(dim, batch.size, out.shape[dim] // batch.size if blocks else 1)


def _settings(call: Call) -> str:
    return repr(substitute((call.args, call.kwargs), lambda tensor: _setting(tensor, call.batch(tensor))))


def _setting(tensor: Tensor, batch: Batch | None) -> Any:
    """Return what an answer may depend on: which arguments hold samples; of an index or a mask, every entry."""
    if tensor.is_floating_point() or tensor.is_complex():
        return tensor.dim(), batch is not None
    entries = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)
    return (*tensor.shape, hashlib.blake2b(entries.numpy().tobytes()).hexdigest())


def halves(size: int) -> Iterator[Tensor]:
    """Yield choices of samples, by the bits of their numbers: for any two, one has the first without the second."""
    numbers = torch.arange(size)
    for bit in range((size - 1).bit_length()):
        chosen = (numbers >> bit) % 2 == 1
        yield from (chosen, ~chosen)


def _ask(call: Call, batch: Batch, number: int, out: Tensor) -> _Answer:
    before = _run(call, None, number)
    if before is None:
        return None
    changes = []
    for chosen in halves(batch.size):
        after = _run(call, chosen, number)
        if after is None or after.shape != out.shape:
            return None
        changes.append((chosen, before.ne(after) & ~(before.isnan() & after.isnan())))
    fitting = [answer for answer in _candidates(out, batch) if all(_fits(answer, batch, *c) for c in changes)]
    return fitting[0] if len({dim for dim, _ in fitting}) == 1 else None


def _candidates(out: Tensor, batch: Batch) -> Iterator[tuple[int, bool]]:
    for dim, size in enumerate(out.shape):
        if size and size % batch.size == 0:
            yield dim, True
            if size > batch.size:
                yield dim, False


def _fits(answer: tuple[int, bool], batch: Batch, chosen: Tensor, changed: Tensor) -> bool:
    dim, blocks = answer
    size = changed.shape[dim]
    owner = Batch(dim, batch.size, size // batch.size if blocks else 1).owner(size)
    others = [d for d in range(changed.dim()) if d != dim]
    along = changed.any(dim=others) if others else changed
    mine = chosen[owner].to(along.device)
    return bool(along[mine].any()) and not bool(along[~mine].any())


def _run(call: Call, chosen: Tensor | None, number: int) -> Tensor | None:
    def new(tensor: Tensor) -> Tensor:
        batch, value = call.batch(tensor), tensor.detach().clone()
        if batch is None or chosen is None or not value.is_floating_point():
            return value
        shape = [1] * tensor.dim()
        shape[batch.dim] = -1
        mine = chosen[batch.owner(tensor.shape[batch.dim])].view(shape).to(tensor.device)
        return torch.where(mine, 1.25 * value + 0.125, value)

    args, kwargs = substitute((call.args, call.kwargs), new)
    with torch.no_grad(), _same_numbers({tensor.device for tensor in tensors_in((args, kwargs))}):
        try:
            return tensors_in(call.func(*args, **kwargs))[number]
        except (RuntimeError, ValueError, TypeError, IndexError):
            return None


@contextmanager
def _same_numbers(devices: Collection[torch.device]) -> Iterator[None]:
    """Let random numbers on the CPU and on these devices be the same every time, and put the generators back.

    (`torch.manual_seed` seeds the generators of all devices there are.)
    """
    with ExitStack() as undo:
        undo.callback(torch.set_rng_state, torch.get_rng_state())
        torch.default_generator.manual_seed(0)
        for device in (device for device in devices if device.type not in ("cpu", "meta")):
            module = torch.get_device_module(device)
            undo.callback(module.set_rng_state, module.get_rng_state(device), device)
            module.set_rng_state(torch.Generator(device).manual_seed(0).get_state(), device)
        yield
