"""AdamX, and the learning-rate schedule of the paper's theorems."""

from adamcb.optim._adamx import AdamX
from adamcb.optim._loading import check_optimizer_state
from adamcb.optim._schedules import inverse_sqrt

__all__ = ["AdamX", "check_optimizer_state", "inverse_sqrt"]
