"""What the random numbers of a run are for: `derived_seed(seed, PURPOSE)` gives each its own stream."""

INITIAL_MODEL, SELECTION, GLOBAL, WRONG_LABELS, SUBSET = range(5)
