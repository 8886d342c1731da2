"""A state as torch.distributed.checkpoint takes it: tensors of fixed shapes, and everything else in one piece.

It flattens nested dicts, loads tensors into those of the state that is there before loading, and drops entries that
this state lacks. So what is one number per sample stays a tensor, and what varies in shape or number (draws made ahead,
feedback on its way, random numbers left) is written into bytes.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterable, Mapping
from typing import Any

import torch

_KEYS = ("vectors", "rest")


def pack(state: Mapping[str, Any], per_sample: Iterable[str]) -> dict[str, Any]:
    """Return `state` with what is one entry per sample as tensors by name, and all else as bytes.

    Args:
        state: The states of a loader's parts.
        per_sample: The names of such tensors in the state of the selection.

    Raises:
        TypeError: If `state` holds more than tensors, numbers, strings, None, and lists, tuples and dicts of these.
    """
    rest, taken = dict(state), {}
    names = [("selection", name) for name in per_sample] + [("meter", "seen"), ("samples", "entries")]
    for part, name in (place for place in names if place[0] in state):
        rest[part] = dict(rest[part])
        taken[f"{part}.{name}"] = rest[part].pop(name)
    return {"vectors": taken, "rest": _to_bytes(rest)}


def unpack(packed: Any) -> dict[str, Any]:
    """Return what `pack` was given. No code from the bytes is run.

    Raises:
        ValueError: If it is not what `pack` returned.
    """
    if not isinstance(packed, Mapping) or not set(_KEYS) <= set(packed) or not isinstance(packed["vectors"], Mapping):
        raise ValueError(f"it must be a dict with the keys {' and '.join(_KEYS)}.")
    try:
        state = torch.load(io.BytesIO(packed["rest"]), map_location="cpu", weights_only=True)
        for path, value in packed["vectors"].items():
            part, name = path.split(".", 1)
            state[part][name] = value
    except Exception as error:
        raise ValueError(f"its entry rest must be bytes that `state_dict` wrote: {error}") from error
    return state


def _to_bytes(state: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    try:
        torch.save(state, file)
        file.seek(0)
        torch.load(file, weights_only=True)
    except (AttributeError, pickle.PickleError) as error:
        kinds = "tensors, numbers, strings, None, and lists, tuples and dicts of these"
        raise TypeError(f"A state must hold {kinds}; got something else: {error}") from error
    return file.getvalue()
