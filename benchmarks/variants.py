"""Variants of the default, each with one thing changed, as methods of the lab: what its choice was measured against.

adamcb bench time-to-loss --task digits-mlp --method adamcb-scale-free --method benchmarks/variants.py:with_adam
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from adamcb.lab.methods import METHODS, Method
from adamcb.selection import CombinatorialBandit

DEFAULT = METHODS["adamcb-scale-free"]


def _variant(name: str, label: str, **changes: Any) -> Method:
    return replace(DEFAULT, name=f"sf-{name}", label=label, **changes)


def _selection(**settings: Any) -> Any:
    return partial(CombinatorialBandit, feedback="scale-free", **settings)


with_adam = _variant("adam", "stepping with Adam", optimizer=METHODS["adam"].optimizer)
with_amsgrad = _variant("amsgrad", "stepping with AMSGrad", optimizer=METHODS["amsgrad"].optimizer)
with_adamx = _variant("adamx", "stepping with AdamX, uncorrected", optimizer=METHODS["adamx"].optimizer)
last_layer = _variant("last-layer", "norms of the last layer", norms="last-layer")
rate_01 = _variant("rate-01", "rate 0.1", selection=_selection(rate=0.1))
rate_10 = _variant("rate-10", "rate 1", selection=_selection(rate=1.0))
explore_01 = _variant("explore-01", "exploration 0.1", exploration=0.1)
explore_07 = _variant("explore-07", "exploration 0.7", exploration=0.7)
no_gate = _variant("no-gate", "no gate", selection=_selection(min_gain=0.0))
late_gate = _variant("late-gate", "gate at 0.3", selection=_selection(min_gain=0.3))
reshuffled = replace(METHODS["adam"], name="corrected-adamx", label="AdamX, corrected", optimizer=DEFAULT.optimizer)
