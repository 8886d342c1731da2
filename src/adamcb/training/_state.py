"""The state of a training between two steps: collected from its parts, and put back whole or not at all."""

from __future__ import annotations

import contextlib
import copy
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from adamcb import _checks
from adamcb._seeds import derived_seed
from adamcb.optim import check_optimizer_state

_GENERATORS = ("torch", "numpy", "python")
_MOST_EPOCHS = 10**12


class Stateful(Protocol):
    """A part with a state of its own. Its `load_state_dict` raises before it changes anything."""

    def state_dict(self) -> Any:
        """Return the state."""
        ...

    def load_state_dict(self, state: Any, /) -> Any:
        """Continue from a state."""
        ...


class Part:
    """A part made of functions.

    Args:
        save: Returns the state.
        load: Takes a state.
        snapshot: Returns a state that loading another one does not change. None: `save` does.
    """

    def __init__(
        self, save: Callable[[], Any], load: Callable[[Any], Any], snapshot: Callable[[], Any] | None = None
    ) -> None:
        self.state_dict, self.load_state_dict = save, load
        self.snapshot = save if snapshot is None else snapshot


def check(state: Any, keys: Collection[str]) -> None:
    """Raise unless `state` is a dict with these keys, its epoch a number, and its draws those of its selection."""
    if not isinstance(state, dict) or not set(keys) <= set(state):
        raise ValueError(f"it must be a dict with the keys {', '.join(keys)}.")
    _checks.integer("epoch", state["epoch"], low=0, high=_MOST_EPOCHS)
    selection, loader = state.get("selection"), state.get("loader")
    if isinstance(selection, dict) and "origin" in selection and isinstance(loader, dict):
        pending = loader.get("pending")
        for entry in pending if isinstance(pending, (list, tuple)) else ():
            if isinstance(entry, dict) and entry.get("origin") != selection["origin"]:
                raise ValueError("its pending draws must be of its selection, got one of another.")


def collect(parts: Mapping[str, Stateful]) -> dict[str, Any]:
    """Return the states of all parts. Tensors of model and optimizers are not copied, as everywhere in torch."""
    return {name: part.state_dict() for name, part in parts.items()}


def restore(parts: Mapping[str, Stateful], state: Mapping[str, Any]) -> None:
    """Put all parts into `state`.

    Raises:
        Exception: Whatever a part has to say against it. All parts are as before then.
    """
    changed: list[tuple[Stateful, Any]] = []
    try:
        for name, part in parts.items():
            if isinstance(part, Part):  # may fail halfway; the others do not
                changed.append((part, part.snapshot()))
                part.load_state_dict(state[name])
            else:
                before = part.state_dict()
                part.load_state_dict(state[name])
                changed.append((part, before))
    except BaseException:
        # In the order of loading: draws are only taken by the selection that made them.
        with contextlib.ExitStack() as undo:
            for part, before in reversed(changed):
                undo.callback(part.load_state_dict, before)
        raise


def model_part(model: nn.Module) -> Part:
    """Return the part that is the model."""

    def load(state: Any) -> None:
        check_dtypes(model.state_dict(), state)
        model.load_state_dict(state)

    return Part(model.state_dict, load, lambda: copy.deepcopy(model.state_dict()))


def check_dtypes(own: Mapping[str, Any], state: Any) -> None:
    """Raise if a model's saved tensor is of another type. torch names what is missing, too much, or of another shape.

    Args:
        own: The state of the model now.
        state: What was saved.
    """
    if not isinstance(state, Mapping):
        raise ValueError(f"its model must be a dict of tensors, got {type(state).__name__}.")
    for name, tensor in own.items():
        saved = state.get(name)
        if isinstance(tensor, Tensor) and name in state and getattr(saved, "dtype", None) != tensor.dtype:
            got = getattr(saved, "dtype", type(saved).__name__)
            raise ValueError(f"its model's {name} must be a tensor of {tensor.dtype}, got {got}.")


def optimizers_part(optimizers: Sequence[Optimizer]) -> Part:
    """Return the part that is the optimizers, each under the name of its kind."""

    def save() -> list[dict[str, Any]]:
        return [{"kind": type(optimizer).__name__, "state": optimizer.state_dict()} for optimizer in optimizers]

    def load(states: list[dict[str, Any]]) -> None:
        kinds = [type(optimizer).__name__ for optimizer in optimizers]
        if not isinstance(states, list) or not all(isinstance(entry, dict) and "state" in entry for entry in states):
            raise ValueError("its optimizers must be a list of dicts with the keys kind and state.")
        saved = [str(entry.get("kind")) for entry in states]
        if saved != kinds:
            raise ValueError(f"it must be of the optimizers {', '.join(kinds)}, got {', '.join(saved)}.")
        for optimizer, entry in zip(optimizers, states, strict=True):
            check_optimizer_state(optimizer, entry["state"])
        with contextlib.ExitStack() as undo:
            for optimizer, entry in zip(optimizers, states, strict=True):
                undo.callback(optimizer.load_state_dict, optimizer.state_dict())
                optimizer.load_state_dict(copy.deepcopy(entry["state"]))  # it would keep the tensors, and change them
                check_groups_are_whole(optimizer)
            undo.pop_all()

    return Part(save, load)


def check_groups_are_whole(optimizer: Optimizer) -> None:
    """Raise if a group of an optimizer lacks a setting, because what was loaded had none."""
    lost = [name for group in optimizer.param_groups for name in optimizer.defaults if name not in group]
    if lost:
        raise ValueError(f"its param_groups must have the setting {lost[0]}.")


def generators_part(device: torch.device, rank: int) -> Part:
    """Return the part that is the global generators, from which dropout and random transforms draw.

    A rank that loads what another one saved derives numbers of its own from it, so that dropout differs between ranks.
    """
    device, rank = _checks.device("device", device), _checks.integer("rank", rank, low=0)

    def load(state: dict[str, Any]) -> None:
        _check_generator_states(device, state, (*_GENERATORS, "rank"))
        _checks.integer("states['rank']", state["rank"], low=0)
        before = generator_states(device)
        try:
            set_generator_states(device, state)
            if state["rank"] != rank:
                set_generator_states(device, derived_generator_states(device, rank))
        except BaseException:
            set_generator_states(device, before)
            raise

    return Part(lambda: {**generator_states(device), "rank": rank}, load)


def generator_states(device: torch.device) -> dict[str, Any]:
    """Return the states of the global generators of torch (the CPU's and the device's), NumPy and Python."""
    device = _checks.device("device", device)
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
    """Set the global generators; those of a device that was not saved stay as they are.

    Raises:
        TypeError, ValueError: If `states` is not what `generator_states` returned. Nothing is changed then.
    """
    device = _checks.device("device", device)
    _check_generator_states(device, states, _GENERATORS)
    torch.set_rng_state(states["torch"])
    np.random.set_state(_numpy_state(states["numpy"]))
    random.setstate(states["python"])
    if device.type != "cpu" and "device" in states:
        torch.get_device_module(device).set_rng_state(states["device"], device)


def _numpy_state(saved: Any) -> tuple[Any, ...]:
    name, keys, *rest = saved
    return (name, keys.numpy().astype(np.uint32), *rest)


def _check_generator_states(device: torch.device, states: Any, keys: Collection[str]) -> None:
    """Raise unless these are states of generators, by setting some that nobody draws from."""
    if not isinstance(states, dict) or not set(keys) <= set(states):
        got = _checks.shown("states", list(states) if isinstance(states, dict) else states)
        raise ValueError(f"`states` must be a dict with the keys {', '.join(keys)}, got {got}.")
    setters: dict[str, Callable[[Any], Any]] = {
        "torch": torch.Generator().set_state,
        "numpy": lambda saved: np.random.RandomState().set_state(_numpy_state(saved)),
        "python": random.Random().setstate,
    }
    if device.type != "cpu" and "device" in states:
        setters["device"] = torch.Generator(device).set_state
    for name, set_state in setters.items():
        try:
            set_state(states[name])
        except Exception as error:
            raise ValueError(f"`states['{name}']` must be the state of a generator of {name}: {error}") from error


def derived_generator_states(device: torch.device, rank: int) -> dict[str, Any]:
    """Return states for this rank's global generators that follow from those they have, which are another rank's."""
    source = torch.Generator()
    source.set_state(torch.get_rng_state())
    seed = int(torch.randint(2**62, (), dtype=torch.int64, generator=source))
    name, keys, *rest = np.random.RandomState(derived_seed(seed, rank, 0) % 2**32).get_state(legacy=True)
    states: dict[str, Any] = {
        "torch": torch.Generator().manual_seed(derived_seed(seed, rank, 1)).get_state(),
        "numpy": (name, torch.from_numpy(np.asarray(keys).astype(np.int64)), *rest),
        "python": random.Random(derived_seed(seed, rank, 2)).getstate(),
    }
    if device.type != "cpu":
        states["device"] = torch.Generator(device).manual_seed(derived_seed(seed, rank, 1)).get_state()
    return states
