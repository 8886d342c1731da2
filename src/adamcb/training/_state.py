"""All that a training run is at a moment between two steps: collected, and put back whole or not at all."""

from __future__ import annotations

import contextlib
import copy
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

from adamcb.data import BanditLoader
from adamcb.selection import Selection
from adamcb.training._late import LateFeedback
from adamcb.training._meter import Meter

_KEYS = ("model", "optimizers", "selection", "late", "meter", "generators", "loader", "epoch")


@dataclass(frozen=True)
class Parts:
    """What has a state of its own. Without a model, a framework saves it, the optimizers and the global generators."""

    model: nn.Module | None
    optimizers: Sequence[Optimizer]
    selection: Selection
    late: LateFeedback
    meter: Meter
    loader: BanditLoader
    device: torch.device


def collect(parts: Parts, epoch: int, rank: int) -> dict[str, Any]:
    """Return the state of all parts. Tensors of model and optimizers are theirs, not copies, as everywhere in torch."""
    return {
        "model": None if parts.model is None else parts.model.state_dict(),
        "optimizers": [
            {"kind": type(optimizer).__name__, "state": optimizer.state_dict()} for optimizer in parts.optimizers
        ],
        "selection": parts.selection.state_dict(),
        "late": parts.late.state_dict(),
        "meter": parts.meter.state_dict(),
        "generators": None if parts.model is None else generator_states(parts.device),
        "loader": parts.loader.state_dict(),
        "epoch": epoch,
        "rank": rank,  # whose generators these are
    }


def restore(parts: Parts, state: Any, rank: int) -> None:
    """Put all parts into `state`.

    Raises:
        Exception: Whatever a part has to say against it. All parts are as before then.
    """
    _check(parts, state)
    selection = parts.selection
    with contextlib.ExitStack() as undo:
        if parts.model is not None:
            undo.callback(set_generator_states, parts.device, generator_states(parts.device))
            set_generator_states(parts.device, state["generators"])
            if rank != state.get("rank", 0):
                set_generator_states(parts.device, derived_generator_states(parts.device, rank))
            undo.callback(parts.model.load_state_dict, copy.deepcopy(parts.model.state_dict()))
            parts.model.load_state_dict(state["model"])
        for optimizer, saved in zip(parts.optimizers, state["optimizers"], strict=True):
            undo.callback(optimizer.load_state_dict, optimizer.state_dict())
            optimizer.load_state_dict(copy.deepcopy(saved["state"]))  # it would keep the tensors, and change them
        undo.callback(selection.load_state_dict, selection.state_dict())
        selection.load_state_dict(state["selection"])
        sizes = {"num_samples": selection.num_samples, "batch_size": selection.batch_size}
        undo.callback(parts.late.load_state_dict, parts.late.state_dict(), **sizes)
        parts.late.load_state_dict(state["late"], **sizes)
        undo.callback(parts.meter.load_state_dict, parts.meter.state_dict())
        parts.meter.load_state_dict(state["meter"])
        parts.loader.load_state_dict(state["loader"])  # last, because it ends iterators, which cannot be undone
        undo.pop_all()


def _check(parts: Parts, state: Any) -> None:
    """Raise for what no part would notice."""
    if isinstance(state, dict) and "shards" in state:
        raise ValueError("it was saved with sharded=True: `load` puts the shards together.")
    if not isinstance(state, dict) or not set(_KEYS) <= set(state):
        raise ValueError(f"it must be a dict with the keys {', '.join(_KEYS)}.")
    kinds = [type(optimizer).__name__ for optimizer in parts.optimizers]
    saved = [entry["kind"] for entry in state["optimizers"]]
    if saved != kinds:
        raise ValueError(f"it must be of the optimizers {', '.join(kinds)}, got {', '.join(saved)}.")
    if (state["model"] is None) != (parts.model is None):
        raise ValueError("it must be saved with a model if this trainer has optimizers, without if they are external.")
    if not isinstance(state["epoch"], int):
        raise ValueError(f"its epoch must be an integer, got {state['epoch']!r}.")


def generator_states(device: torch.device) -> dict[str, Any]:
    """Return the states of the global generators, which dropout and random transforms draw from."""
    name, keys, *rest = np.random.get_state()
    states: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "numpy": (name, torch.from_numpy(np.asarray(keys).astype(np.int64)), *rest),
        "python": random.getstate(),
    }
    if device.type != "cpu":
        states["device"] = torch.get_device_module(device).get_rng_state(device)
    return states


def set_generator_states(device: torch.device, states: dict[str, Any]) -> None:
    """Set the global generators; those of a device that was not saved stay as they are."""
    name, keys, *rest = states["numpy"]
    torch.set_rng_state(states["torch"])
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))
    random.setstate(states["python"])
    if device.type != "cpu" and "device" in states:
        torch.get_device_module(device).set_rng_state(states["device"], device)


def derived_generator_states(device: torch.device, rank: int) -> dict[str, Any]:
    """Return states for this rank's global generators that follow from those they have, which are another rank's."""
    source = torch.Generator()
    source.set_state(torch.get_rng_state())
    drawn = torch.randint(2**62, (), dtype=torch.int64, generator=source).item()
    first, second, third = np.random.SeedSequence((int(drawn), rank)).generate_state(3).tolist()
    name, keys, *rest = np.random.RandomState(first).get_state(legacy=True)
    states: dict[str, Any] = {
        "torch": torch.Generator().manual_seed(second).get_state(),
        "numpy": (name, torch.from_numpy(np.asarray(keys).astype(np.int64)), *rest),
        "python": random.Random(third).getstate(),
    }
    if device.type != "cpu":
        states["device"] = torch.Generator(device).manual_seed(second).get_state()
    return states
