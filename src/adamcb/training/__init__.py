"""Chosen batches in a training loop: `AdaptiveLoader` for your own loop, `AdamCB` with optimizers and checkpoints."""

from adamcb.training._adamcb import AdamCB
from adamcb.training._adaptive import AdaptiveLoader
from adamcb.training._checkpoint import read_checkpoint, write_checkpoint
from adamcb.training._meter import PHASES, Meter, Observer
from adamcb.training._ranks import Ranks, gather_scores
from adamcb.training._samples import SampleTable
from adamcb.training._scoring import SCORES
from adamcb.training._state import generator_states, generators_part, set_generator_states

__all__ = [
    "PHASES",
    "SCORES",
    "AdamCB",
    "AdaptiveLoader",
    "Meter",
    "Observer",
    "Ranks",
    "SampleTable",
    "gather_scores",
    "generator_states",
    "generators_part",
    "read_checkpoint",
    "set_generator_states",
    "write_checkpoint",
]
