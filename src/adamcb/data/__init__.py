"""Loading the batches that a selection chooses, each with its draw: indices and probabilities of draw time.

Draws are made in the main process; workers get indices and nothing else. Nothing here knows models.
"""

from adamcb.data._batch import SelectedBatch
from adamcb.data._loader import BanditLoader
from adamcb.data._part import DrawPart, part_of, whole_of
from adamcb.data._window import Window

__all__ = ["BanditLoader", "DrawPart", "SelectedBatch", "Window", "part_of", "whole_of"]
