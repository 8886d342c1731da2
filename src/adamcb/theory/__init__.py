"""The paper's regret bounds with all their constants, regret measured on a convex problem, and what is proved here."""

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
from adamcb.theory._variance import best_probs, descent_constant, scale_free_step, second_moment

__all__ = [
    "REGRET_FIELDS",
    "Constants",
    "Interval",
    "LogisticProblem",
    "Minimum",
    "Regret",
    "RegretBound",
    "bandit_regret",
    "best_probs",
    "constants",
    "descent_constant",
    "exploration",
    "growth_exponent",
    "interval",
    "measure_regret",
    "regret_bound",
    "regret_order",
    "scale_free_step",
    "second_moment",
]
