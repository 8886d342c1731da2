"""Every public name has an example in its docstring, which the doctests run."""

from __future__ import annotations

import importlib
import inspect

import pytest

MODULES = ("", ".data", ".gradnorm", ".lab", ".optim", ".paper", ".selection", ".theory", ".training")
# Names that an example would say nothing about, and why.
WITHOUT = {
    **dict.fromkeys(("PHASES", "REGRET_FIELDS", "SCORES"), "a tuple of words"),
    **dict.fromkeys(
        ("Constants", "Interval", "Minimum", "Regret", "RegretBound"), "what a function returns, whose example shows it"
    ),
    **dict.fromkeys(
        ("Call", "Use", "Dense", "Lookup", "Outer"), "what a rule is given or returns, as in that of `register_rule`"
    ),
    "LabError": "an error",
    "Visit": "what a feedback rule is told: the example of `Feedback` is of both",
    "bandit_regret": "takes what a run measured: `measure_regret` has the example",
    "check_optimizer_state": "is called by `load_state_dict`, and returns nothing",
    **dict.fromkeys(
        ("generator_states", "set_generator_states", "generators_part"), "the state of a whole process, for checkpoints"
    ),
}


def public_names() -> dict[str, str]:
    """Return the docstring of every public name that has a definition of its own."""
    found = {}
    for module in (importlib.import_module(f"adamcb{name}") for name in MODULES):
        for name in getattr(module, "__all__", vars(module)):
            thing = getattr(module, name)
            if not inspect.ismodule(thing) and not name.startswith("_"):
                found[name] = inspect.getdoc(thing) or ""
    return found


NAMES = public_names()


@pytest.mark.parametrize("name", sorted(NAMES.keys() - WITHOUT.keys()))
def test_every_public_name_has_an_example(name):
    assert ">>> " in NAMES[name]


def test_only_names_that_are_there_and_have_no_example_are_left_out():
    assert [
        name for name in WITHOUT if name not in NAMES or ("tuple" not in WITHOUT[name] and ">>>" in NAMES[name])
    ] == []
