"""Choosing batches: weights, inclusion probabilities, exact draws, and how feedback changes weights.

NumPy arrays in and out; random numbers from a `torch.Generator`. Nothing here knows models, datasets or files.
"""

from adamcb.selection._combinatorial import CombinatorialBandit
from adamcb.selection._depround import depround
from adamcb.selection._draw import Draw
from adamcb.selection._feedback import Feedback, ListingFeedback, ProofFeedback, ScaleFree, Visit
from adamcb.selection._gate import Gate
from adamcb.selection._moment import SecondMoment
from adamcb.selection._queue import QueueBandit
from adamcb.selection._random import ShuffledEpochs
from adamcb.selection._replacement import ReplacementBandit, ReplacementSelection
from adamcb.selection._selection import Selection
from adamcb.selection._strata import Strata
from adamcb.selection._stratum import Stratum, stratum_size
from adamcb.selection._uniform import UniformSelection
from adamcb.selection._weighted import WeightedSelection

__all__ = [
    "CombinatorialBandit",
    "Draw",
    "Feedback",
    "Gate",
    "ListingFeedback",
    "ProofFeedback",
    "QueueBandit",
    "ReplacementBandit",
    "ReplacementSelection",
    "ScaleFree",
    "SecondMoment",
    "Selection",
    "ShuffledEpochs",
    "Strata",
    "Stratum",
    "UniformSelection",
    "Visit",
    "WeightedSelection",
    "depround",
    "stratum_size",
]
