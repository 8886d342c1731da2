"""Methods: who chooses batches, from which scores it learns, and who steps."""

from adamcb.lab.methods._controls import CONTROLS, SmallBatches
from adamcb.lab.methods._method import Method
from adamcb.lab.methods._optimizers import BUILDERS
from adamcb.lab.methods._registry import (
    DEFAULT_METHODS,
    METHODS,
    OURS,
    RIVALS,
    SPECIAL,
    check_renamed,
    get_method,
    label_of,
)

__all__ = [
    "BUILDERS",
    "CONTROLS",
    "DEFAULT_METHODS",
    "METHODS",
    "OURS",
    "RIVALS",
    "SPECIAL",
    "SmallBatches",
    "Method",
    "check_renamed",
    "get_method",
    "label_of",
]
