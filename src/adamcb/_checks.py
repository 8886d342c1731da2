"""Argument checks: the one place that words range and shape errors.

Every message names the argument, the rule and the value: "`name` must <rule>, got name=<value>." Comparisons are
written in the direction that also rejects NaN. Arrays are never printed: their shape, or the first bad entry, is.
"""

from __future__ import annotations

import difflib
import math
import numbers
import os
from collections.abc import Collection
from typing import Any, TypeVar

import numpy as np
import torch
from torch.utils.data import IterableDataset

# More samples than any machine can hold weights for.
MOST_SAMPLES = 10**12
LARGEST_SEED = 2**63 - 1
_LONGEST = 80
_NO_NUMBERS = (bool, np.bool_, np.timedelta64)  # which Python and NumPy take for numbers
_NO_VECTORS = (bytes, bytearray, memoryview, np.ma.MaskedArray)
_Kind = TypeVar("_Kind")


def shown(name: str, value: Any) -> str:
    """Return "name=value" for a message: short, and without the content of arrays."""
    if isinstance(value, torch.Tensor) and value.is_nested:
        return f"{name} of type {type(value).__name__}, nested"
    if isinstance(value, (np.ndarray, torch.Tensor)) and value.ndim:
        return f"{name} of type {type(value).__name__} and shape {tuple(value.shape)}"
    if isinstance(value, int) and value.bit_length() > 4 * _LONGEST:
        return f"{name} of {value.bit_length()} bits"
    try:
        text = repr(value)
    except Exception:
        text = ""
    if not 0 < len(text) <= _LONGEST:
        return f"{name} of type {type(value).__name__}"
    return f"{name}={text}"


def wrong_type(name: str, rule: str, value: Any) -> TypeError:
    """Return the error for a value of the wrong type."""
    got = shown(name, value)
    kind = "" if " of type " in got or value is None else f" of type {type(value).__name__}"
    return TypeError(f"`{name}` must {rule}, got {got}{kind}.")


def integer(name: str, value: Any, *, low: int | None = None, high: int | None = None) -> int:
    """Return `value` as an int, or raise unless it is an integer (not a bool) with low ≤ value ≤ high."""
    is_plain = type(value) is int  # asking the abstract class takes longer than all the rest
    if not is_plain and (isinstance(value, _NO_NUMBERS) or not isinstance(value, numbers.Integral)):
        raise wrong_type(name, "be an integer", value)
    number = int(value)
    if low is not None and number < low:
        raise ValueError(f"`{name}` must be at least {low}, got {shown(name, number)}.")
    if high is not None and number > high:
        raise ValueError(f"`{name}` must be at most {high}, got {shown(name, number)}.")
    return number


def num_samples(value: Any, name: str = "num_samples") -> int:
    """Return `value` as the size of a dataset."""
    return integer(name, value, low=1, high=MOST_SAMPLES)


def seed(name: str, value: Any) -> int:
    """Return `value` as an int that torch and NumPy take as a seed."""
    return integer(name, value, low=0, high=LARGEST_SEED)


def real(
    name: str,
    value: Any,
    *,
    low: float = -math.inf,
    high: float = math.inf,
    low_open: bool = False,
    high_open: bool = False,
) -> float:
    """Return `value` as a finite float, or raise unless it lies in the interval from `low` to `high`."""
    if isinstance(value, _NO_NUMBERS) or not isinstance(value, numbers.Real):
        raise wrong_type(name, "be a number", value)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    above = low < number if low_open else low <= number
    below = number < high if high_open else number <= high
    if not (above and below and math.isfinite(number)):
        interval = f"{'(' if low_open or low == -math.inf else '['}{low:g}, {high:g}"
        interval += ")" if high_open or high == math.inf else "]"
        raise ValueError(f"`{name}` must be a finite number in {interval}, got {shown(name, value)}.")
    return number


def count(name: str, value: Any) -> int:
    """Return `value` as a number of things, from 1 to more than anybody can have."""
    return integer(name, value, low=1, high=10**15)


def magnitude(name: str, value: Any, *, low: float = 0.0, high: float = 1e100) -> float:
    """Return `value` as a number whose powers and products are finite."""
    return real(name, value, low=low, high=high)


def boolean(name: str, value: Any) -> bool:
    """Return `value` as a bool, or raise unless it is one."""
    if not isinstance(value, (bool, np.bool_)):
        raise wrong_type(name, "be True or False", value)
    return bool(value)


def one_of(name: str, value: Any, allowed: Collection[str]) -> str:
    """Return `value`, or raise unless it is one of the `allowed` words."""
    words = ", ".join(repr(word) for word in allowed)
    if not isinstance(value, str):
        raise wrong_type(name, f"be one of {words}", value)
    if value not in allowed:
        raise ValueError(f"`{name}` must be one of {words}, got {shown(name, value)}.{nearest(value, allowed)}")
    return value


def nearest(value: Any, allowed: Collection[str]) -> str:
    """Return " Did you mean …?" where one of the allowed words is near.

    Example:
        >>> nearest("adamcd", ("adam", "adamcb"))
        " Did you mean 'adamcb'?"
    """
    found = difflib.get_close_matches(str(value), [str(word) for word in allowed], n=1)
    return f" Did you mean {found[0]!r}?" if found else ""


def function(name: str, value: Any) -> Any:
    """Return `value`, or raise unless it can be called."""
    if not callable(value):
        raise wrong_type(name, "be a function", value)
    return value


def sequence(name: str, value: Any, rule: str) -> tuple[Any, ...]:
    """Return `value` as a tuple, or raise unless it can be iterated over; words cannot."""
    try:
        if not isinstance(value, (str, bytes, bytearray)):
            return tuple(value)
    except TypeError:
        pass
    raise wrong_type(name, rule, value)


def shape(name: str, value: Any) -> tuple[int, ...]:
    """Return `value` as the shape of a tensor, or raise unless it is a sequence of integers ≥ 0."""
    rule = "be the shape of a tensor"
    sizes = sequence(name, value, rule)
    if not all(type(size) is int and 0 <= size <= LARGEST_SEED for size in sizes):
        raise ValueError(f"`{name}` must {rule}, got {shown(name, value)}.")
    return sizes


def instance(name: str, value: Any, kind: type[_Kind], words: str) -> _Kind:
    """Return `value`, or raise unless it is of this kind; the message calls the kind by these words."""
    if not isinstance(value, kind):
        raise TypeError(f"`{name}` must be {words}, got {name} of type {type(value).__name__}.")
    return value


def generator(value: Any) -> torch.Generator | None:
    """Return `value`, or raise unless it is a generator on the CPU, or None."""
    if value is not None and not (isinstance(value, torch.Generator) and value.device.type == "cpu"):
        raise wrong_type("generator", "be a torch.Generator on the CPU", value)
    return value


def device(name: str, value: Any) -> torch.device:
    """Return `value` as a device, if tensors can be put there."""
    if not isinstance(value, (torch.device, str, int)) or isinstance(value, bool):
        raise wrong_type(name, "be a device of torch", value)
    try:
        place = torch.device(value)
        torch.empty(0, device=place)  # no driver, or a torch without it
    except (RuntimeError, AssertionError, OverflowError, ValueError) as error:
        rule = str(error).strip().split("\n")[0]
        raise ValueError(f"`{name}` must be a device of torch, got {shown(name, value)}: {rule}") from error
    return place


def map_style(name: str, value: Any) -> int:
    """Return the length of a dataset, or raise unless it is map-style and not empty."""
    if isinstance(value, IterableDataset):
        raise TypeError(
            f"`{name}` must be map-style, got an IterableDataset of type {type(value).__name__}. To choose from what "
            f"it gave last, pass a window: adamcb.data.Window({name}, size)."
        )
    if hasattr(value, "dataset") and not hasattr(value, "__getitem__"):
        kind = type(value).__name__
        raise TypeError(f"`{name}` must be a dataset, got a {kind}. Pass its dataset: `loader.dataset`.")
    is_dataset = hasattr(value, "__getitem__") and hasattr(value, "__len__")
    if not is_dataset or isinstance(value, (type, str, bytes)):
        kind = type(value).__name__
        raise TypeError(f"`{name}` must be map-style, with `__getitem__` and `__len__`, got {name} of type {kind}.")
    try:
        length = len(value)
    except TypeError as error:  # a 0-d tensor has the method, and no length
        raise TypeError(f"`{name}` must have a length, got {shown(name, value)}.") from error
    if length == 0:
        raise ValueError(f"`{name}` must not be empty, got len({name})=0.")
    return length


def path(name: str, value: Any) -> str:
    """Return `value` as a str, or raise unless it can name a file."""
    if not isinstance(value, (str, os.PathLike)):
        raise wrong_type(name, "be a path", value)
    text = os.fspath(value)
    if not isinstance(text, str) or not text or "\0" in text:
        raise ValueError(f"`{name}` must name a file, got {shown(name, value)}.")
    return text


def learning_rate(value: Any) -> float:
    """Return a learning rate as a number, or raise unless it is one or a tensor that holds one."""
    if isinstance(value, torch.Tensor):
        if value.numel() != 1 or value.is_meta:
            got = "on the device meta" if value.is_meta else f"of shape {tuple(value.shape)}"
            raise ValueError(f"`lr` must be a number or a 1-element tensor, got lr {got}.")
        value = value.item()
    return real("lr", value, low=0.0)


def betas(value: Any, name: str = "betas") -> tuple[float, float]:
    """Return β₁ and β₂, or raise unless `value` is two numbers in [0, 1)."""
    if not isinstance(value, (tuple, list)):
        raise wrong_type(name, "be two numbers", value)
    if len(value) != 2:
        raise ValueError(f"`{name}` must be two numbers, got {shown(name, value)}.")
    first, second = (real(f"{name}[{i}]", value[i], low=0.0, high=1.0, high_open=True) for i in (0, 1))
    return first, second


def array(name: str, value: Any) -> np.ndarray:
    """Return `value` as an array of integers or floats on the CPU, or raise; gradients and devices are left behind."""
    given = value
    if isinstance(value, (list, tuple)) and any(isinstance(entry, (bool, np.bool_)) for entry in value):
        raise TypeError(f"`{name}` must be a vector of numbers, got {name} with a bool.")
    if isinstance(value, range) and len(value) > MOST_SAMPLES:
        raise ValueError(f"`{name}` must hold at most {MOST_SAMPLES} numbers, got {len(value)}.")
    try:
        if isinstance(value, _NO_VECTORS):
            raise TypeError("no numbers, or not all of them")
        if isinstance(value, torch.Tensor):
            value = value.detach().cpu()
            value = (value if value.dtype != torch.bfloat16 else value.float()).numpy()
        found = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"`{name}` must be a vector of numbers, got {name} of type {type(given).__name__}.") from error
    if found.dtype.kind not in "iuf":
        kind = f"{type(given).__name__} and dtype {found.dtype}"
        raise TypeError(f"`{name}` must be a vector of numbers, got {name} of type {kind}.")
    return found


def vector(name: str, value: Any, *, length: int | None = None) -> np.ndarray:
    """Return `value` as a float64 vector of finite numbers ≥ 0, or raise."""
    with np.errstate(over="ignore"):
        numbers = array(name, value).astype(np.float64, copy=False)
    _check_shape(name, numbers, length)
    # One pass in the good case: NaN fails both comparisons, so it can hide from neither.
    if numbers.size and not (numbers.min() >= 0.0 and numbers.max() < math.inf):
        bad = np.flatnonzero(~((numbers >= 0.0) & (numbers < math.inf)))
        raise ValueError(
            f"`{name}` must hold finite numbers at or above 0, got {name}[{bad[0]}]={numbers[bad[0]]} "
            f"({len(bad)} such of {len(numbers)})."
        )
    return numbers


def indices(name: str, value: Any, *, below: int | None = None, distinct: bool = False) -> np.ndarray:
    """Return `value` as an int64 vector of numbers in [0, below), or raise."""
    found = array(name, value)
    _check_shape(name, found, None)
    if found.dtype.kind not in "iu":
        if found.size:
            raise TypeError(f"`{name}` must hold integers, got {name} of dtype {found.dtype}.")
        found = found.astype(np.int64)
    high = np.iinfo(np.int64).max if below is None else below
    bad = np.flatnonzero((found < 0) | (found >= high)) if found.size else found
    if len(bad):
        raise ValueError(f"`{name}` must hold integers in [0, {high}), got {name}[{bad[0]}]={found[bad[0]]}.")
    if distinct and len(np.unique(found)) != len(found):
        raise ValueError(f"`{name}` must be distinct, got {len(found) - len(np.unique(found))} that repeat another.")
    return found.astype(np.int64, copy=False)


def flags(name: str, value: Any, *, length: int) -> np.ndarray:
    """Return `value`, a tensor or array, as a bool vector, or raise."""
    if not isinstance(value, (np.ndarray, torch.Tensor)) or np.asarray(value).dtype != np.bool_:
        raise wrong_type(name, "be a vector of bools", value)
    found = np.asarray(value)
    _check_shape(name, found, length)
    return found


def _check_shape(name: str, found: np.ndarray, length: int | None) -> None:
    if found.ndim != 1 or (length is not None and len(found) != length):
        rule = "a vector" if length is None else f"a vector of length {length}"
        raise ValueError(f"`{name}` must be {rule}, got {name} of shape {tuple(found.shape)}.")
