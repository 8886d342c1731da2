"""The state of strata that ranks share, in a form that any number of ranks can take, each its part.

What is one number per sample becomes one tensor of all n, in the order of the samples, of which every rank holds a
block: a DTensor, as torch.distributed.checkpoint reads and writes it. No rank ever holds all of it. What is one value
per stratum (or per draw and stratum) is gathered: kilobytes a stratum. All ranks call these functions.
"""

from __future__ import annotations

from collections.abc import Iterable
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


def to_whole(state: dict[str, Any], strata: Selection, ranks: Ranks, device: torch.device) -> dict[str, Any]:
    """Return the state of all ranks, given this rank's own; which is the same if the selection is no `Strata`."""
    if not isinstance(strata, Strata):
        return state
    if "workers" in state["loader"]:
        raise NotImplementedError("`stateful` must be False where weights are sharded, got stateful=True.")
    own, count = state["selection"]["strata"], strata.num_samples
    vectors = {}
    for name in strata.per_sample:
        mixed = _interleaved([entry["selection"][name] for entry in own])
        vectors[name] = to_blocks(mixed, count, ranks, device)
    meter, whole = dict(state["meter"]), {**state, "strata": _split(state, strata)}
    seen = np.unpackbits(meter.pop("seen").numpy(), count=strata.own_samples)
    whole["meter"] = {"seen": to_blocks(torch.from_numpy(seen), count, ranks, device), "ranks": _gathered(meter, ranks)}
    if "samples" in state:
        rows = state["samples"]["entries"].view(strata.own_samples, -1)
        whole["samples"] = {"entries": to_blocks(rows, count, ranks, device)}
    by_stratum = [entry for entries in zip(*_gathered(whole.pop("strata"), ranks), strict=True) for entry in entries]
    whole["selection"] = {"num_samples": count, "num_strata": strata.num_strata, "strata": by_stratum, **vectors}
    common = {name: _gathered(state["loader"][name], ranks)[0] for name in ("seed", "position", "next_number")}
    whole["loader"] = {"in_epoch": state["loader"]["in_epoch"], **common}
    whole["feedback"] = [
        {name: entry[name] for name in entry if name not in ("draw", *_ROWS)} for entry in state["feedback"]
    ]
    return whole


def to_own(whole: dict[str, Any], strata: Selection, ranks: Ranks, device: torch.device) -> dict[str, Any]:
    """Return this rank's state out of that of all; see `to_whole`.

    Raises:
        ValueError: If it is of other strata.
    """
    if not isinstance(strata, Strata):
        return whole
    saved, count = whole["selection"], strata.num_samples
    for name, value in {"num_samples": count, "num_strata": strata.num_strata}.items():
        if saved.get(name) != value:
            advice = f": make it with sharded={saved.get(name)}" if name == "num_strata" else ""
            raise ValueError(f"it must be saved with {name}={value}, got {name}={saved.get(name)}{advice}.")
    numbers = [stratum.shard for stratum in strata.strata]
    own = [saved["strata"][number] for number in numbers]
    selections = [dict(entry["selection"]) for entry in own]
    for name in strata.per_sample:
        mixed = from_blocks(saved[name], count, ranks, device)
        for place, selection in enumerate(selections):
            selection[name] = mixed[place :: len(own)].clone()
    place = {"num_samples": count, "num_shards": strata.num_strata}
    shards = [{**place, "shard": number, "selection": one} for number, one in zip(numbers, selections, strict=True)]
    origin, loader = own[0]["selection"]["origin"], whole["loader"]
    seed = derived_seed(loader["seed"], ranks.rank) if ranks.rank else loader["seed"]
    sizes = {"num_samples": count, "batch_size": strata.batch_size}
    seen = from_blocks(whole["meter"]["seen"], count, ranks, device).numpy()
    state = {
        **whole,
        "selection": {"num_samples": count, "num_strata": strata.num_strata, "strata": shards},
        "loader": {**loader, **sizes, "seed": seed, "pending": _joined((entry["pending"] for entry in own), origin)},
        "feedback": _joined_feedback(whole["feedback"], [entry["feedback"] for entry in own], origin),
        "meter": {**_own_meter(whole["meter"]["ranks"], ranks), "seen": torch.from_numpy(np.packbits(seen))},
    }
    if "samples" in whole:
        state["samples"] = {"entries": from_blocks(whole["samples"]["entries"], count, ranks, device).reshape(-1)}
    return state


def to_blocks(own: Tensor, num_samples: int, ranks: Ranks, device: torch.device) -> Tensor:
    """Return the tensor of all samples in their order, a block on each rank, given the rows of i mod W = rank."""
    if ranks.size == 1:
        return own.contiguous()
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    bounds = _bounds(num_samples, ranks.size)
    sent = [_count_below(high, ranks) - _count_below(low, ranks) for low, high in bounds]
    low, high = bounds[ranks.rank]
    senders = [Ranks(rank, ranks.size) for rank in range(ranks.size)]
    heard = [_count_below(high, sender) - _count_below(low, sender) for sender in senders]
    received = _exchange(own, sent, heard, device).split(heard)
    block = own.new_empty((high - low, *own.shape[1:]))
    for rank, rows in enumerate(received):
        block[(rank - low) % ranks.size :: ranks.size] = rows
    mesh, shape = init_device_mesh("cpu", (ranks.size,)), torch.Size((num_samples, *own.shape[1:]))
    stride = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(block, mesh, [Shard(0)], run_check=False, shape=shape, stride=stride)


def from_blocks(whole: Tensor, num_samples: int, ranks: Ranks, device: torch.device) -> Tensor:
    """Return the rows of i mod W = rank, given this rank's block of all."""
    if ranks.size == 1:
        return whole
    bounds, block = _bounds(num_samples, ranks.size), whole.to_local()  # pyright: ignore[reportAttributeAccessIssue]
    low, _ = bounds[ranks.rank]
    parts = [block[(rank - low) % ranks.size :: ranks.size] for rank in range(ranks.size)]
    heard = [_count_below(high, ranks) - _count_below(low, ranks) for low, high in bounds]
    return _exchange(torch.cat(parts), [len(part) for part in parts], heard, device)


def _bounds(num_samples: int, size: int) -> list[tuple[int, int]]:
    """Return where the block of each rank begins and ends: as `Shard(0)` cuts."""
    length = -(-num_samples // size)
    return [(min(rank * length, num_samples), min((rank + 1) * length, num_samples)) for rank in range(size)]


def _count_below(bound: int, ranks: Ranks) -> int:
    """Return how many samples of a rank lie below `bound`."""
    return len(range(ranks.rank, bound, ranks.size))


def _exchange(rows: Tensor, sent: list[int], heard: list[int], device: torch.device) -> Tensor:
    """Send the first `sent[0]` rows to rank 0 and so on; return what all ranks sent here, in their order."""
    out = rows.contiguous().to(device)
    heard_rows = out.new_empty((sum(heard), *rows.shape[1:]))
    dist.all_to_all_single(heard_rows, out, heard, sent)
    return heard_rows.cpu()


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


def _split(state: dict[str, Any], strata: Strata) -> list[dict[str, Any]]:
    """Return for each stratum of this rank: its selection without vectors, and its part of every draw on its way."""
    split = []
    for stratum, entry in zip(strata.strata, state["selection"]["strata"], strict=True):
        rest = {name: value for name, value in entry["selection"].items() if name not in strata.per_sample}
        pending = [
            {"number": draw["number"], **_rows_of(draw, draw, _ARRAYS, stratum.shard, strata)}
            for draw in state["loader"]["pending"]
        ]
        feedback = [
            {
                **_rows_of(one["draw"], one["draw"], _ARRAYS, stratum.shard, strata),
                **_rows_of(one["draw"], one, _ROWS, stratum.shard, strata),
            }
            for one in state["feedback"]
        ]
        split.append({"selection": rest, "pending": pending, "feedback": feedback})
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


def _own_meter(saved: list[dict[str, Any]], ranks: Ranks) -> dict[str, Any]:
    """Return this rank's readings; on another number of ranks, an equal share of those of all."""
    if len(saved) == ranks.size:
        return saved[ranks.rank]
    mean = {name: sum(one["moment"][name] for one in saved) / len(saved) for name in saved[0]["moment"]}
    change = len(saved) / ranks.size  # a rank has so many times the samples
    return {
        "steps": saved[0]["steps"],
        "samples": round(sum(one["samples"] for one in saved) / ranks.size),
        "average": {
            "size": change * sum(one["average"]["size"] for one in saved) / len(saved),
            "trust": saved[0]["average"]["trust"],
        },
        "moment": {name: value * change if name in _SUMS else value for name, value in mean.items()},
        "largest": max(one["largest"] for one in saved),
    }
