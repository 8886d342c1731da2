"""A framework that is not installed is named with the extra that brings it; adamcb itself needs none."""

import importlib
import sys
from pathlib import Path

import pytest

FRAMEWORKS = ("lightning", "transformers", "accelerate")


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_missing_framework_is_named_with_the_extra_to_install(framework, monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == framework]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, framework, None)  # what Python itself does to say that there is none
    monkeypatch.delitem(sys.modules, f"adamcb.integrations.{framework}", raising=False)
    with pytest.raises(ImportError, match=rf'needs {framework}.*pip install "\.\[{framework}\]"'):
        importlib.import_module(f"adamcb.integrations.{framework}")


def test_the_extras_exist():
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    for framework in FRAMEWORKS:
        assert f'\n{framework} = ["{framework}>=' in project
