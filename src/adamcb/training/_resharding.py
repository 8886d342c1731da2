"""The state of strata that ranks share, in a form that any number of ranks can take, each its part.

What is one number per sample becomes one tensor of all n, in the order of the samples, of which every rank holds a
block: a DTensor, as torch.distributed.checkpoint reads and writes it. No rank ever holds all of it. What is one value
per stratum (or per draw and stratum) is gathered: kilobytes a stratum. All ranks call these functions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from adamcb._seeds import derived_seed
from adamcb.selection import Selection, Strata
from adamcb.training._ranks import Ranks

_ARRAYS = ("indices", "probs", "loss_weights")
_ROWS = ("measured", "arrived", "losses")
_SUMS = ("chosen", "mass", "uniform", "count")


def to_common(state: dict[str, Any], strata: Selection, ranks: Ranks, device: torch.device) -> dict[str, Any]:
    """Return the state of all ranks, given this rank's own; which is the same if the selection is no `Strata`."""
    if not isinstance(strata, Strata):
        return state
    if "workers" in state["loader"]:
        raise NotImplementedError("`stateful` must be False where weights are sharded, got stateful=True.")
    own, count, step = state["selection"]["strata"], strata.num_samples, len(strata.strata)
    blocks = Blocks(count, strata.num_strata, ranks, device)
    vectors = {name: blocks.of([entry["selection"][name] for entry in own]) for name in strata.per_sample}
    meter, common = dict(state["meter"]), {**state, "strata": _split(state, strata)}
    seen = torch.from_numpy(np.unpackbits(meter.pop("seen").numpy(), count=strata.own_samples))
    common["meter"] = {"seen": blocks.of([seen[k::step] for k in range(step)]), "ranks": _gathered(meter, ranks)}
    if "samples" in state:
        rows = state["samples"]["entries"].view(strata.own_samples, -1)
        common["samples"] = {"entries": blocks.of([rows[k::step] for k in range(step)])}
    if "norms" in state:
        common["norms"] = _gathered(state["norms"], ranks)
    by_number = {number: entry for held in _gathered(common.pop("strata"), ranks) for number, entry in held.items()}
    by_stratum = [by_number[number] for number in range(strata.num_strata)]
    common["selection"] = {"num_samples": count, "num_strata": strata.num_strata, "strata": by_stratum, **vectors}
    place = {name: _gathered(state["loader"][name], ranks)[0] for name in ("seed", "position", "next_number")}
    common["loader"] = {"in_epoch": state["loader"]["in_epoch"], **place}
    common["feedback"] = [
        {name: entry[name] for name in entry if name not in ("draw", *_ROWS)} for entry in state["feedback"]
    ]
    return common


def to_own(common: dict[str, Any], strata: Selection, ranks: Ranks, device: torch.device) -> dict[str, Any]:
    """Return this rank's state out of that of all; see `to_common`.

    Raises:
        ValueError: If it is of other strata.
    """
    if not isinstance(strata, Strata):
        return common
    saved, count = common["selection"], strata.num_samples
    for name, value in {"num_samples": count, "num_strata": strata.num_strata}.items():
        if saved.get(name) != value:
            advice = f": make it with sharded={saved.get(name)}" if name == "num_strata" else ""
            raise ValueError(f"it must be saved with {name}={value}, got {name}={saved.get(name)}{advice}.")
    numbers, blocks = [stratum.number for stratum in strata.strata], Blocks(count, strata.num_strata, ranks, device)
    own = [saved["strata"][number] for number in numbers]
    selections = [dict(entry["selection"]) for entry in own]
    for name in strata.per_sample:
        for selection, column in zip(selections, blocks.columns(saved[name]), strict=True):
            selection[name] = column
    place = {"num_samples": count, "num_strata": strata.num_strata}
    held = [{**place, "number": number, "selection": one} for number, one in zip(numbers, selections, strict=True)]
    origin, loader = own[0]["selection"]["origin"], common["loader"]
    seed = derived_seed(loader["seed"], ranks.rank) if ranks.rank else loader["seed"]
    sizes = {"num_samples": count, "batch_size": strata.batch_size}
    seen = _interleaved(blocks.columns(common["meter"]["seen"])).numpy()
    state = {
        **common,
        "selection": {"num_samples": count, "num_strata": strata.num_strata, "strata": held},
        "loader": {**loader, **sizes, "seed": seed, "pending": _joined((entry["pending"] for entry in own), origin)},
        "feedback": _joined_feedback(common["feedback"], [entry["feedback"] for entry in own], origin),
        "meter": {**_own_meter(common["meter"]["ranks"], strata, ranks), "seen": torch.from_numpy(np.packbits(seen))},
    }
    if "norms" in common:
        state["norms"] = common["norms"][ranks.rank % len(common["norms"])]
    if "samples" in common:
        state["samples"] = {"entries": _interleaved(blocks.columns(common["samples"]["entries"])).reshape(-1)}
    return state


@dataclass(frozen=True)
class Blocks:
    """Takes what the ranks hold by strata to blocks of consecutive samples, as `Shard(0)` cuts them, and back.

    Rank r holds the strata with s mod W = r on the one side, and the r-th block on the other.
    """

    num_samples: int
    num_strata: int
    ranks: Ranks
    device: torch.device

    def of(self, columns: list[Tensor]) -> Tensor:
        """Return the tensor of all samples in their order, a block on each rank, given the rows of each own stratum."""
        ranks, first = self.ranks, columns[0]
        low, high = self._bounds(ranks.rank)
        block = first.new_empty((high - low, *first.shape[1:]))
        pieces = [
            column[self._rows(stratum, rank)]
            for rank in range(ranks.size)
            for stratum, column in zip(self._held(ranks.rank), columns, strict=True)
        ]
        sent = [self._count(ranks.rank, rank) for rank in range(ranks.size)]
        heard = [self._count(rank, ranks.rank) for rank in range(ranks.size)]
        strata = [stratum for rank in range(ranks.size) for stratum in self._held(rank)]
        rows = self._exchange(pieces, sent, heard).split([self._size(stratum, ranks.rank) for stratum in strata])
        for stratum, piece in zip(strata, rows, strict=True):
            block[(stratum - low) % self.num_strata :: self.num_strata] = piece
        if ranks.size == 1:
            return block
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import DTensor, Shard

        mesh, shape = init_device_mesh("cpu", (ranks.size,)), torch.Size((self.num_samples, *first.shape[1:]))
        stride = torch.empty(shape, device="meta").stride()
        return DTensor.from_local(block, mesh, [Shard(0)], run_check=False, shape=shape, stride=stride)

    def columns(self, vector: Tensor) -> list[Tensor]:
        """Return the rows of each own stratum, given this rank's block of all."""
        ranks = self.ranks
        block: Tensor = vector if ranks.size == 1 else vector.to_local()  # pyright: ignore[reportAttributeAccessIssue]
        low, _ = self._bounds(ranks.rank)
        strata = [stratum for rank in range(ranks.size) for stratum in self._held(rank)]
        pieces = [block[(stratum - low) % self.num_strata :: self.num_strata] for stratum in strata]
        sent = [self._count(rank, ranks.rank) for rank in range(ranks.size)]
        heard = [self._count(ranks.rank, rank) for rank in range(ranks.size)]
        places = [(rank, stratum) for rank in range(ranks.size) for stratum in self._held(ranks.rank)]
        rows = self._exchange(pieces, sent, heard).split([self._size(stratum, rank) for rank, stratum in places])
        step = len(self._held(ranks.rank))
        return [torch.cat(rows[k::step]) for k in range(step)]

    def _held(self, rank: int) -> range:
        """Return the numbers of the strata that a rank holds."""
        return range(rank, self.num_strata, self.ranks.size)

    def _bounds(self, rank: int) -> tuple[int, int]:
        """Return where the block of a rank begins and ends."""
        length = -(-self.num_samples // self.ranks.size)
        return min(rank * length, self.num_samples), min((rank + 1) * length, self.num_samples)

    def _rows(self, stratum: int, rank: int) -> slice:
        """Return which rows of a stratum are in the block of a rank."""
        low, high = (len(range(stratum, bound, self.num_strata)) for bound in self._bounds(rank))
        return slice(low, high)

    def _size(self, stratum: int, rank: int) -> int:
        rows = self._rows(stratum, rank)
        return rows.stop - rows.start

    def _count(self, holder: int, rank: int) -> int:
        """Return how many samples of the strata of `holder` are in the block of `rank`."""
        return sum(self._size(stratum, rank) for stratum in self._held(holder))

    def _exchange(self, pieces: list[Tensor], sent: list[int], heard: list[int]) -> Tensor:
        """Send the first `sent[0]` rows to rank 0 and so on; return what all ranks sent here, in their order."""
        rows = torch.cat(pieces)
        if self.ranks.size == 1:
            return rows
        out = rows.to(self.device)
        received = out.new_empty((sum(heard), *rows.shape[1:]))
        dist.all_to_all_single(received, out, heard, sent)
        return received.cpu()


def _interleaved(columns: list[Tensor]) -> Tensor:
    """Return the rows of several strata of one rank in the order of the samples."""
    mixed = columns[0].new_empty((sum(map(len, columns)), *columns[0].shape[1:]))
    for place, column in enumerate(columns):
        mixed[place :: len(columns)] = column
    return mixed


def _gathered(value: Any, ranks: Ranks) -> list[Any]:
    """Return what each rank has."""
    if ranks.size == 1:
        return [value]
    values: list[Any] = [None] * ranks.size
    dist.all_gather_object(values, value)
    return values


def _split(state: dict[str, Any], strata: Strata) -> dict[int, dict[str, Any]]:
    """Return by the number of each own stratum: its selection without vectors, and its part of draws on their way."""
    split = {}
    for stratum, entry in zip(strata.strata, state["selection"]["strata"], strict=True):
        rest = {name: value for name, value in entry["selection"].items() if name not in strata.per_sample}
        pending = [
            {"number": draw["number"], **_rows_of(draw, draw, _ARRAYS, stratum.number, strata)}
            for draw in state["loader"]["pending"]
        ]
        feedback = [
            {
                **_rows_of(one["draw"], one["draw"], _ARRAYS, stratum.number, strata),
                **_rows_of(one["draw"], one, _ROWS, stratum.number, strata),
            }
            for one in state["feedback"]
        ]
        split[stratum.number] = {"selection": rest, "pending": pending, "feedback": feedback}
    return split


def _rows_of(
    draw: dict[str, Any], source: dict[str, Any], names: Iterable[str], number: int, strata: Strata
) -> dict[str, Any]:
    """Return of these columns the rows whose samples are in a stratum."""
    rows = draw["indices"] % strata.num_strata == number
    return {name: None if source[name] is None else source[name][rows] for name in names}


def _join(entries: Iterable[dict[str, Any]], names: Iterable[str]) -> dict[str, Any]:
    parts = list(entries)
    return {name: None if parts[0][name] is None else torch.cat([part[name] for part in parts]) for name in names}


def _joined(pending: Iterable[list[dict[str, Any]]], origin: int) -> list[dict[str, Any]]:
    return [
        {"number": parts[0]["number"], "origin": origin, **_join(parts, _ARRAYS)}
        for parts in zip(*pending, strict=True)
    ]


def _joined_feedback(
    common: list[dict[str, Any]], own: list[list[dict[str, Any]]], origin: int
) -> list[dict[str, Any]]:
    return [
        {**shared, "draw": {"origin": origin, **_join(parts, _ARRAYS)}, **_join(parts, _ROWS)}
        for shared, parts in zip(common, zip(*own, strict=True), strict=True)
    ]


def _own_meter(saved: list[dict[str, Any]], strata: Strata, ranks: Ranks) -> dict[str, Any]:
    """Return this rank's readings; on another number of ranks, its share of those of all."""
    if len(saved) == ranks.size:
        return saved[ranks.rank]
    share = len(strata.strata) / strata.num_strata
    total = {name: sum(one["moment"][name] for one in saved) for name in saved[0]["moment"]}
    moment = {name: value * share if name in _SUMS else value / len(saved) for name, value in total.items()}
    size = sum(one["average"]["size"] for one in saved) * share
    return {
        "steps": saved[0]["steps"],
        "samples": round(sum(one["samples"] for one in saved) * share),
        "average": {"size": size, "trust": saved[0]["average"]["trust"]},
        "moment": moment,
        "largest": max(one["largest"] for one in saved),
    }
