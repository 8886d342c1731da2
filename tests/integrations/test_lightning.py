"""Lightning: its loop, AdamCB's choice; the same numbers as AdamCB's own loop."""

import importlib.util

import pytest
import torch

from tests.integrations.problem import SAMPLES, assert_same, in_ranks, own_loop

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("lightning") is None, reason="lightning is not installed"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:lightning"),
]


@pytest.fixture(scope="module")
def runs():
    from tests.integrations import lightning_runs  # not at the top: the import takes seconds

    return lightning_runs


def test_it_trains_and_resumes_as_adamcb_does(runs, tmp_path):
    expected = own_loop()
    for result in runs.straight_and_resumed(str(tmp_path), {}):
        assert_same(result, expected)


def test_two_processes_train_and_resume_as_one(runs, tmp_path):
    expected = own_loop()
    options = {"strategy": "ddp", "devices": 2}
    for results in in_ranks(2, runs.straight_and_resumed, str(tmp_path), options):
        for result in results:
            assert_same(result, expected)
