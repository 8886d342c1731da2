"""Methods: who chooses batches, from which scores it learns, and who steps."""

from adamcb.lab.methods._method import Method
from adamcb.lab.methods._registry import DEFAULT_METHODS, METHODS, RIVALS, check_renamed, get_method

__all__ = ["DEFAULT_METHODS", "METHODS", "RIVALS", "Method", "check_renamed", "get_method"]
