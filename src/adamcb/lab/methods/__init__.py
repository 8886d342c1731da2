"""Methods: who chooses batches, from which scores it learns, and who steps."""

from adamcb.lab.methods._method import SCORES, Method
from adamcb.lab.methods._optimizers import BUILDERS
from adamcb.lab.methods._registry import (
    DEFAULT_METHODS,
    METHODS,
    RIVALS,
    check_renamed,
    get_method,
    label_of,
    uniform,
)

__all__ = [
    "BUILDERS",
    "DEFAULT_METHODS",
    "METHODS",
    "RIVALS",
    "SCORES",
    "Method",
    "check_renamed",
    "get_method",
    "label_of",
    "uniform",
]
