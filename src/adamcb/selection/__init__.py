"""Choosing batches: weights, inclusion probabilities, exact draws, and how feedback changes weights.

NumPy arrays in and out; random numbers from a `torch.Generator`. Nothing here knows models, datasets or files.
"""

from adamcb.selection._depround import depround
from adamcb.selection._draw import Draw
from adamcb.selection._policies import CombinatorialBandit, ReplacementBandit, UniformSelection
from adamcb.selection._queue import QueueBandit
from adamcb.selection._selection import Selection
from adamcb.selection._sharded import ShardedSelection, shard_size

__all__ = [
    "CombinatorialBandit",
    "Draw",
    "QueueBandit",
    "ReplacementBandit",
    "Selection",
    "ShardedSelection",
    "UniformSelection",
    "depround",
    "shard_size",
]
