"""The rivals: what others published for choosing batches, as selections of the library's protocol.

Each follows its paper, with the published defaults, and is unbiased exactly where its paper is. Those that need a look
at the model before they choose are given a `Scorer`; what it costs is on their clock.
"""

from adamcb.lab.methods.rivals._classes import ClassBalanced, Undersampling, WeightedLoss, focal
from adamcb.lab.methods.rivals._looking import Presampling, SelectiveBackprop
from adamcb.lab.methods.rivals._pruning import InfoBatch
from adamcb.lab.methods.rivals._residuals import ResidualDistribution
from adamcb.lab.methods.rivals._scoring import Looked, Scorer
from adamcb.lab.methods.rivals._stored import LastSeen, VarianceReducerBandit

__all__ = [
    "ClassBalanced",
    "InfoBatch",
    "LastSeen",
    "Presampling",
    "ResidualDistribution",
    "Scorer",
    "Looked",
    "SelectiveBackprop",
    "Undersampling",
    "VarianceReducerBandit",
    "WeightedLoss",
    "focal",
]
