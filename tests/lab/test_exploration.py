"""γ reaches the selections that have one, and no other."""

from dataclasses import replace
from functools import partial

import pytest

from adamcb import QueueBandit
from adamcb.lab.experiment import Experiment
from adamcb.lab.methods import METHODS, RIVALS, SPECIAL, Method
from adamcb.lab.runs.building import build_selection
from adamcb.lab.tasks.datasets import load_dataset
from adamcb.lab.tasks.images import image_task


@pytest.fixture(scope="module")
def data():
    return load_dataset("digits", fraction=0.2)


def test_only_what_takes_exploration_is_called_with_it(data):
    """A selection that has no γ refuses one, so nothing that is passed is ignored."""
    task = image_task(data, "logistic")
    experiment = Experiment(batch_size=60, exploration=0.3).completed(task)
    model = task.model()
    taking = set()
    for name, method in {**METHODS, **RIVALS, **SPECIAL}.items():
        if method.selection is None:
            continue
        selection = build_selection(experiment, method, task, model, 0)
        if method.takes_exploration:
            assert vars(selection)["exploration"] == 0.3
            taking.add(name)
        else:
            with pytest.raises(TypeError, match="unexpected keyword argument 'exploration'"):
                build_selection(experiment, replace(method, needs=(*method.needs, "exploration")), task, model, 0)
    paper = {"adambs", "adambs-original", "adamcb-paper", "adamcb-listing"}
    assert taking == {*paper, "last-norm", "last-loss"}
    chooses = Experiment(model="logistic", methods=(*METHODS, *RIVALS)).as_config(task)["chooses"]
    assert set(chooses) == {"adamcb", "adamcb-smaller", *taking}


@pytest.mark.parametrize(("own", "of_experiment", "passed"), [(None, None, 0.2), (0.1, None, 0.1), (0.1, 0.3, 0.3)])
def test_a_method_that_sets_exploration_is_called_with_it(own, of_experiment, passed, data):
    task = image_task(data, "logistic")
    experiment = Experiment(batch_size=60, exploration=of_experiment).completed(task)
    mine = Method("mine", selection=partial(QueueBandit, exploration=0.2), exploration=own)
    assert vars(build_selection(experiment, mine, task, task.model(), 0))["exploration"] == passed
