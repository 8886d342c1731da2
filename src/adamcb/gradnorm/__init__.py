"""Per-sample gradient norms from the one ordinary backward pass."""

from adamcb.gradnorm._engine import PerSampleNorms as PerSampleNorms
