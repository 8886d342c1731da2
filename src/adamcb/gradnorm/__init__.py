from adamcb.gradnorm._engine import PerSampleNorms as PerSampleNorms
