"""Per-sample gradient norms from the one ordinary backward pass."""

from adamcb.gradnorm._call import Call as Call
from adamcb.gradnorm._call import Use as Use
from adamcb.gradnorm._engine import PerSampleNorms as PerSampleNorms
from adamcb.gradnorm._parts import Dense as Dense
from adamcb.gradnorm._parts import Lookup as Lookup
from adamcb.gradnorm._parts import Outer as Outer
from adamcb.gradnorm._table import register_rule as register_rule
