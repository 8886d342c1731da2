"""Whether the rows of last layers belong to the samples whose losses reach them.

By convention the first dimension of a model's result is the batch. The losses, one for each sample, know better:
numbers that go backward from the losses of some samples reach the rows of those samples and no others.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Collection, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from adamcb.gradnorm import _compat
from adamcb.gradnorm._owners import Answers, LayerOwners, Told, ask, is_ambiguous, owners_by_shape
from adamcb.gradnorm._parts import accurate

Mark = tuple[str, float]
"""A node of the graph by its name and age: who holds the node itself keeps the graph alive."""


def mark_of(node: Any) -> Mark:
    """Return what a node is found by again."""
    return type(node).__name__, _compat.age(node)


class Met:
    """A last layer that was met in a forward pass.

    Args:
        layer: Its node.
        result: What the model made of it and returned.
        above: The places of those other layers whose results were made from its own.
        owners: Whose its rows are. None: shapes tell.
    """

    __slots__ = ("_hooked", "_result", "above", "layer", "output", "owners", "root", "sizes")

    def __init__(self, layer: Any, result: Tensor, above: frozenset[int], owners: LayerOwners | None) -> None:
        root = result.grad_fn
        self.layer = mark_of(layer)
        self.root = self.layer if root is layer else mark_of(root)
        self.above, self.owners = above, owners
        self.sizes, self.output = () if result.is_nested else result.shape, result.output_nr
        self._result, self._hooked = weakref.ref(result), result.is_nested or _is_hooked(result)

    def key(self, batch_size: int) -> Any:
        """Return what answers are remembered by. Results of any number of rows are in the same order."""
        length = self.sizes[:1] if self.sizes[:1] == (batch_size,) else (-1,)
        return self.root[0], self.layer[0], length, self.sizes[1:], batch_size

    def must_be_asked_about(self, batch_size: int, judged: dict[Any, bool]) -> bool:
        """Tell whether losses disagreed before, here or anywhere, or were not asked yet where shapes leave doubt."""
        agreed = judged.get(self.key(batch_size))
        if agreed is None:
            return is_ambiguous(self.sizes, batch_size) or not all(judged.values())
        return not agreed

    @property
    def is_hooked(self) -> bool:
        """Whether a hook on the model's result would take a question for a gradient. Nested results count as hooked."""
        result = self._result()
        return self._hooked or (result is not None and _is_hooked(result))


class Pass(Protocol):
    """A forward pass whose last layers are measured.

    Attributes:
        batch_size: The number of samples.
        error: Why they cannot be measured.
        met: The last layers.
        answers: What was found out about them so far.
    """

    batch_size: int
    error: str | None
    met: list[Met]
    answers: Answers


def places_of(records: Sequence[Pass], count: int) -> list[int] | None:
    """Return for each pass which of the losses is that of its first sample: 0, or each pass is a part of the batch.

    None: passes and losses do not fit together. Norms that would be as many nevertheless are refused.
    """
    sizes = [record.batch_size for record in records]
    if all(size == count for size in sizes):
        return [0] * len(sizes)
    if sum(sizes) == count:
        return [sum(sizes[:number]) for number in range(len(sizes))]
    as_many = sum(sizes) == count * len(sizes)
    for record in records:
        if as_many and record.batch_size != count:
            record.error = (
                f"there are {count} losses, and the first dimension of the model's inputs or results, which must be "
                f"the batch, was {record.batch_size}."
            )
    return None


def is_doubtful(record: Pass) -> bool:
    """Tell whether losses must be asked, be it time for it or not."""
    return any(met.must_be_asked_about(record.batch_size, record.answers.judged) for met in record.met)


def compare(losses: Tensor, record: Pass, first: int = 0, *, everything: bool = True) -> bool:
    """Compare whose the rows of a pass are taken for with what the losses tell, and take their word for it.

    If a question cannot be asked because something behind the losses goes backward once only, nothing changes.

    Args:
        losses: One for each sample.
        record: The pass.
        first: Which of the losses is that of the first sample of the pass.
        everything: Whether all last layers are asked about, or only those in doubt.

    Returns:
        Whether they agreed, as far as they were asked.
    """
    judged, size, agreed = record.answers.judged, record.batch_size, True
    try:
        nodes = _nodes_behind(losses, record.met)
        asked = [met for met in _reached(record.met, nodes) if everything or met.must_be_asked_about(size, judged)]
        told = ask(losses, [GradientEdge(nodes[met.layer], 0) for met in asked], len(losses)) if asked else []
        for met, answer in zip(asked, told, strict=True):
            if answer is None:
                continue
            same = _agrees(record, met, answer, first) or (answer.is_mixed and _is_tied(losses, met, nodes))
            if not same:
                _believe(record, met, answer, len(losses))
            judged[met.key(size)] = same and judged.get(met.key(size), True)
            agreed &= same
    except RuntimeError:
        for met in record.met:
            judged.setdefault(met.key(size), True)
    return agreed


def _is_hooked(tensor: Tensor) -> bool:
    """Tell whether a question would be taken for a gradient."""
    return _compat.has_hooks(tensor) or tensor.retains_grad


def _nodes_behind(losses: Tensor, met: Sequence[Met]) -> dict[Mark, Any]:
    """Return the nodes between losses and layers.

    Raises:
        RuntimeError: If a question would be taken for a gradient, or must not go backward before it.
    """
    found, layers = {}, {each.layer for each in met}
    oldest = min((age for _, age in layers), default=0.0)
    hooked = _is_hooked(losses) or any(each.is_hooked for each in met)
    if hooked or len(losses) < 2 or losses.grad_fn is None or not oldest:  # 0: a torch that does not number its nodes
        raise RuntimeError("Losses cannot be asked.")
    waiting: list[Any] = [losses.grad_fn]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        mark = mark_of(node)
        found[mark] = node
        if mark in layers:
            continue
        if _compat.is_foreign(node):  # those of module hooks and of checkpoints, too
            raise RuntimeError("A custom function must not go backward twice.")
        for child, _ in node.next_functions:
            if child is not None and child not in seen and oldest <= _compat.age(child) < math.inf:
                seen.add(child)
                waiting.append(child)
    return found


def _reached(met: Sequence[Met], nodes: Collection[Mark]) -> list[Met]:
    """Return the layers that losses use, without those whose results only go into others."""
    places = {place for place, each in enumerate(met) if each.layer in nodes}
    return [met[place] for place in sorted(places) if met[place].above.isdisjoint(places)]


def _agrees(record: Pass, met: Met, told: Told, first: int) -> bool:
    """Tell whether rows are those of the samples that they are taken for."""
    taken = met.owners or owners_by_shape(told.samples.shape, record.batch_size)
    if first and taken.dim is not None:
        samples = torch.arange(record.batch_size) if taken.samples is None else taken.samples
        taken = LayerOwners(taken.dim, samples + first)
    return told.fits(taken)


def _is_tied(losses: Tensor, met: Met, nodes: dict[Mark, Any]) -> bool:
    """Tell whether samples that are tied together are where they are taken for: a row is then what one contributes.

    They may be tied before the result, as by BatchNorm, and then losses tell. If losses tie them, no other dimension of
    the result, or order of its rows, may fit better.
    """
    size, taken = len(losses), owners_by_shape(met.sizes, len(losses))
    if met.root not in nodes or taken.dim is None:
        return False
    edge = GradientEdge(nodes[met.root], met.output)
    if met.root != met.layer:
        (told,) = ask(losses, [edge], size)
        if told is None or told.fits(taken):
            return told is not None
    others = [
        LayerOwners(dim, None) for dim, length in enumerate(met.sizes[:-1]) if length == size and dim != taken.dim
    ]
    if taken.samples is not None:
        others.append(LayerOwners(0, torch.arange(len(taken.samples)) % size))
    if not others:
        return True
    mine, *rest = _own_shares(losses, edge, [taken, *others])
    return not any(share > mine for share in rest)


def _own_shares(losses: Tensor, edge: GradientEdge, owners: Sequence[LayerOwners]) -> list[float]:
    """Return for each guess at the owners how much of what some losses send backward reaches rows of their own."""
    size, shares = len(losses), [0.0] * len(owners)
    for sample in range(0, size, max(1, size // 16)):
        alone = torch.zeros_like(losses)
        alone[sample] = 1.0
        (grad,) = torch.autograd.grad(losses, edge, alone, retain_graph=True)  # type: ignore
        square = accurate(grad).abs().square()
        for place, guess in enumerate(owners):
            rows = square.movedim(guess.dim or 0, 0)
            mine = sample if guess.samples is None else (guess.samples == sample).to(rows.device)
            shares[place] += float(rows[mine].sum())
    return shares


def _believe(record: Pass, met: Met, told: Told, size: int) -> None:
    """Take the losses' word for whose the rows are; refuse the pass if they have none."""
    owners = LayerOwners(None, None) if told.is_mixed or record.batch_size != size else told.owners(size)
    met.owners = owners
    if owners.dim is None:
        record.error = (
            f"by the losses, the first dimension of a result of the model of shape {tuple(met.sizes)} does not hold "
            f"the {record.batch_size} samples, nor can it be told what does. Let the model return results whose first "
            'dimension is the batch, or use scores="losses".'
        )
