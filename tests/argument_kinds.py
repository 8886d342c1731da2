"""Values that nobody should give, and for each kind of argument which of them are good all the same."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import torch

# True: it must work. False: it must be refused. None: either, for this table does not know.
Kind = Callable[[Any], "bool | None"]


def pool() -> list[Any]:
    """Return values of every kind, made anew, so that a test may do with them what it likes."""
    scalars = [None, True, False, 0, 1, 2, -1, 10**18, 10**400, -(10**400), 0.0, -0.0, 0.5, 1.0, 1.5, -0.5]
    wild = [math.nan, math.inf, -math.inf, 1e308, 5e-324, 1j, Fraction(1, 2), Decimal("0.5"), "", "abc", "1", b"x"]
    arrays = [np.bool_(True), np.int64(2), np.uint8(3), np.float32(0.5), np.float64("nan"), np.complex128(1j)]
    arrays += [np.array(3), np.array([1, 2]), np.array([True, False]), np.array(["a", "b"]), np.array([1j, 2.0])]
    tensors = [torch.tensor(2), torch.tensor(0.5), torch.tensor(0.5, requires_grad=True), torch.tensor([1.0, 2.0])]
    tensors += [torch.tensor([1.0, 2.0], requires_grad=True), torch.tensor([True, False]), torch.tensor(math.nan)]
    nested = [[], (), {}, [1.0], [1.0, 2.0], ["1", "2"], [True, False], [1j, 2.0], [None, 1.0], [-1.0, math.nan]]
    odd = [np.timedelta64(3, "s"), np.ma.array([1.0, 2.0], mask=[False, True]), bytearray(b"ab")]
    odd += [torch.tensor(0.5, device="meta"), torch.ones(2, device="meta"), torch.ones(2).to_sparse()]
    odd += [torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged)]
    return [
        *scalars,
        *wild,
        *arrays,
        *tensors,
        *nested,
        *odd,
        [[1.0, 2.0]],
        {"a": 1},
        {1, 2},
        object(),
        len,
        int,
        range(2),
    ]


def is_bool(value: Any) -> bool:
    """Whether Python takes it for a number, and nobody else does."""
    return isinstance(value, (bool, np.bool_, np.timedelta64))


def holds_numbers(value: torch.Tensor) -> bool:
    return not value.is_meta and not value.is_nested and value.layout == torch.strided


def as_float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def integer(low: int, high: float = math.inf) -> Kind:
    return lambda value: isinstance(value, numbers.Integral) and not is_bool(value) and low <= int(value) <= high


def real(low: float, high: float = math.inf, *, low_open: bool = False, high_open: bool = False) -> Kind:
    def fits(value: Any) -> bool:
        if is_bool(value) or not isinstance(value, numbers.Real):
            return False
        number = as_float(value)
        above = low < number if low_open else low <= number
        return above and (number < high if high_open else number <= high) and math.isfinite(number)

    return fits


def optional(kind: Kind) -> Kind:
    return lambda value: value is None or kind(value)


def word(*allowed: str) -> Kind:
    return lambda value: isinstance(value, str) and value in allowed


def function(value: Any) -> bool:
    return callable(value)


def nothing_else(value: Any) -> bool:
    """Of the pool, no value will do."""
    return False


def unknown(value: Any) -> None:
    return None


def flag(value: Any) -> bool:
    return isinstance(value, (bool, np.bool_))


def two_shares(value: Any) -> bool:
    """Two numbers in [0, 1)."""
    share = real(0.0, 1.0, high_open=True)
    return isinstance(value, (tuple, list)) and len(value) == 2 and all(share(entry) for entry in value)


def rate(value: Any) -> bool:
    """A number at or above 0, or a tensor with one."""
    if isinstance(value, torch.Tensor):
        return (
            holds_numbers(value)
            and value.numel() == 1
            and value.dtype != torch.bool
            and not value.is_complex()
            and rate(value.item())
        )
    return bool(real(0.0)(value))


def vector(length: int | None = None, *, least: int = 0, check: Callable[[np.ndarray], bool] | None = None) -> Kind:
    """Numbers at or above 0; as many as `length`, `least` of them above 0."""

    def fits(value: Any) -> bool:
        if isinstance(value, np.ma.MaskedArray) or (isinstance(value, torch.Tensor) and not holds_numbers(value)):
            return False
        if isinstance(value, torch.Tensor):
            value = value.detach().numpy()
        if isinstance(value, (list, tuple, range)):
            if not all(isinstance(entry, numbers.Real) and not is_bool(entry) for entry in value):
                return False
            value = np.array([as_float(entry) for entry in value])
        if not isinstance(value, np.ndarray) or value.ndim != 1 or value.dtype.kind not in "iuf":
            return False
        if length is not None and len(value) != length or not (np.isfinite(value) & (value >= 0)).all():
            return False
        return bool(np.count_nonzero(value) >= least) and (check is None or bool(check(value.astype(float))))

    return fits


def rising(values: Any) -> bool:
    return isinstance(values, (list, tuple, set)) and len(values) > 0 and all(type(value) is int for value in values)
