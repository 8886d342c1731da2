"""Experiments: datasets, models, methods, runs, figures and the command line (extra: `adamcb[lab]`)."""
