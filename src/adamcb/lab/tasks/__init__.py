"""Tasks: datasets, models, wrong labels, and the problems that methods are compared on."""
