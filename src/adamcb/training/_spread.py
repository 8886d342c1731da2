"""Model and optimizers as torch.distributed.checkpoint takes them: by the names of parameters, each rank its part.

So they are whole under DistributedDataParallel, in parts under `fully_shard`, and go to any number of ranks.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn
from torch.optim import Optimizer

from adamcb.optim import check_optimizer_state
from adamcb.training._state import Part, Stateful, check_dtypes, check_groups_are_whole

_NAMES = ("model", "optimizers")
_ENTRY = ("kind", "is_fresh", "state")


def parts(model: nn.Module, optimizers: Sequence[Optimizer]) -> dict[str, Stateful]:
    """Return the parts that are the model and the optimizers."""
    return {"model": _model_part(model), "optimizers": _optimizers_part(model, optimizers)}


def trained(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the states of these parts out of the state of all.

    Raises:
        ValueError: If they are missing.
    """
    missing = [name for name in _NAMES if name not in state]
    if missing:
        raise ValueError(f"it must have the key {missing[0]}.")
    return {name: state[name] for name in _NAMES}


def _model_part(model: nn.Module) -> Part:
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict

    def load(state: Any) -> None:
        check_dtypes(get_model_state_dict(model), state)
        set_model_state_dict(model, state)

    return Part(lambda: get_model_state_dict(model), load, lambda: copy.deepcopy(get_model_state_dict(model)))


def _optimizers_part(model: nn.Module, optimizers: Sequence[Optimizer]) -> Part:
    """Return the part that is the optimizers, by number, since a list would be flattened."""
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

    def save() -> dict[str, Any]:
        states = {}
        for number, optimizer in enumerate(optimizers):
            with _as_it_was(optimizer) as is_fresh:
                kind = {"kind": type(optimizer).__name__, "is_fresh": is_fresh}
                states[str(number)] = {**kind, "state": get_optimizer_state_dict(model, optimizer)}
        return states

    def load(states: Any) -> None:
        entries = _checked_entries(states, optimizers)
        for optimizer, entry in zip(optimizers, entries, strict=True):
            _check_by_name(model, optimizer, entry["state"])
        for optimizer, entry in zip(optimizers, entries, strict=True):
            set_optimizer_state_dict(model, optimizer, copy.deepcopy(entry["state"]))
            check_groups_are_whole(optimizer)
            if entry["is_fresh"]:
                optimizer.state.clear()

    return Part(save, load, lambda: copy.deepcopy(save()))


def _checked_entries(states: Any, optimizers: Sequence[Optimizer]) -> list[Mapping[str, Any]]:
    """Return what was saved of each optimizer, or raise unless these are optimizers of the same kinds."""
    entries: list[Any] = list(states.values()) if isinstance(states, Mapping) else []
    kinds = [type(optimizer).__name__ for optimizer in optimizers]
    saved = [str(entry.get("kind")) if isinstance(entry, Mapping) else "none" for entry in entries]
    if saved != kinds:
        raise ValueError(f"it must be of the optimizers {', '.join(kinds)}, got {', '.join(saved) or 'none'}.")
    for entry in entries:
        if not set(_ENTRY) <= set(entry) or not isinstance(entry["is_fresh"], bool):
            got = ", ".join(map(str, entry))
            raise ValueError(f"its optimizers must have the keys {', '.join(_ENTRY)}, got {got}.")
    return entries


def _check_by_name(model: nn.Module, optimizer: Optimizer, state: Any) -> None:
    """Raise unless a state by the names of parameters fits: numbered as the optimizer does, it is checked like others.

    Within a group the order does not matter, and names that a wrapper of the model made longer are not compared.
    """
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

    with _as_it_was(optimizer):
        own: Any = get_optimizer_state_dict(model, optimizer)
        names = [name for group in own["param_groups"] for name in group["params"]]
        check_optimizer_state(optimizer, _numbered(state, {name: number for number, name in enumerate(names)}))


def _numbered(state: Any, numbers: Mapping[Any, int]) -> Any:
    """Return an optimizer's state with numbers in place of names; what it cannot read stays as it is, to be refused."""
    if not isinstance(state, dict):
        return state
    groups, entries = state.get("param_groups"), state.get("state")
    if isinstance(groups, list):
        groups = [_numbered_group(group, numbers) for group in groups]
    if isinstance(entries, dict):
        entries = {numbers.get(name, str(name)): entry for name, entry in entries.items()}
    return {**state, "param_groups": groups, "state": entries}


def _numbered_group(group: Any, numbers: Mapping[Any, int]) -> Any:
    if not isinstance(group, dict) or not isinstance(group.get("params"), list):
        return group
    settings = {key: value for key, value in group.items() if key != "param_names"}
    return {**settings, "params": sorted(numbers.get(name, -1) for name in group["params"])}


@contextmanager
def _as_it_was(optimizer: Optimizer) -> Iterator[bool]:
    """Tell whether the optimizer never stepped, and forget the step that torch makes with it to see its state.

    torch makes none if there are gradients, and would then have no place for the state to be loaded.
    """
    is_fresh = not optimizer.state
    with ExitStack() as undo:
        if is_fresh:
            for parameter in (parameter for group in optimizer.param_groups for parameter in group["params"]):
                undo.callback(setattr, parameter, "grad", parameter.grad)
                parameter.grad = None
            undo.callback(optimizer.state.clear)
        yield is_fresh
