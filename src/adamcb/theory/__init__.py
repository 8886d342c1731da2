"""The paper's regret bounds with all their constants, and regret measured on a convex problem."""

from adamcb.theory._bounds import (
    Constants,
    RegretBound,
    bandit_regret,
    constants,
    exploration,
    regret_bound,
    regret_order,
)
from adamcb.theory._growth import Interval, growth_exponent, interval
from adamcb.theory._logistic import LogisticProblem, Minimum
from adamcb.theory._measure import REGRET_FIELDS, Regret, measure_regret

__all__ = [
    "REGRET_FIELDS",
    "Constants",
    "Interval",
    "LogisticProblem",
    "Minimum",
    "Regret",
    "RegretBound",
    "bandit_regret",
    "constants",
    "exploration",
    "growth_exponent",
    "interval",
    "measure_regret",
    "regret_bound",
    "regret_order",
]
