"""`AdamCB`: batch selection, loader, norms and optimizer joined into the body of a training loop."""

from adamcb.training._adamcb import AdamCB
from adamcb.training._meter import Meter
from adamcb.training._ranks import Ranks

__all__ = ["AdamCB", "Meter", "Ranks"]
