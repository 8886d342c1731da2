"""How the runs of a comparison go: in which order, how often they are saved, what is counted, and who may write."""

from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from adamcb.lab.commands import compare
from adamcb.lab.commands.compare import Options, run_missing
from adamcb.lab.errors import LabError
from adamcb.lab.experiment import Experiment
from adamcb.lab.results import ResultFolder, read_json, write_json
from adamcb.lab.runs import Progress, Run, run
from adamcb.lab.runs.watch import Watch
from adamcb.lab.tasks.datasets import load_dataset
from adamcb.lab.tasks.images import image_task
from adamcb.selection import Draw, UniformSelection


@pytest.fixture(scope="module")
def task():
    return image_task(load_dataset("digits", fraction=0.2), "logistic")


EXPERIMENT = Experiment(model="logistic", methods=("adam", "adamcb"), seeds=2, epochs=3, batch_size=60)


def test_all_methods_of_a_seed_come_before_the_next_seed(task, tmp_path, monkeypatch):
    """What else the machine does hits them alike. A run that is done is not done again."""
    asked = []
    monkeypatch.setattr(compare, "run_all", lambda job, assignments, jobs, listen: asked.extend(assignments))
    experiment = EXPERIMENT.completed(task)
    folder = ResultFolder(tmp_path, experiment.as_config(task))
    done = folder.run("adam", 1)
    done.mkdir()
    for finished in (False, True):
        if finished:
            write_json(done / "done.json", {"results": []})
        run_missing(experiment, Options(jobs=2), folder, Console(quiet=True))
    folder.close()
    everything = [("adam", 0), ("adamcb", 0), ("adam", 1), ("adamcb", 1)]
    found = [(assignment.method, assignment.seed) for assignment in asked]
    assert found == everything + [everything[i] for i in (0, 1, 3)]


def test_a_folder_that_somebody_else_took_while_we_waited_is_refused(task, tmp_path, monkeypatch):
    """Both commands saw an empty folder; the other one had the lock first, and was done when we got it."""
    ours, theirs = ({**EXPERIMENT.as_config(task), "epochs": epochs} for epochs in (3, 4))
    monkeypatch.setattr(ResultFolder, "_take_lock", lambda self: write_json(tmp_path / "config.json", theirs))
    with pytest.raises(LabError, match="--epochs was 4 and is now 3"):
        ResultFolder(tmp_path, ours)
    assert read_json(tmp_path / "config.json") == theirs


@pytest.mark.parametrize(("save_seconds", "pause"), [(0.0, 4), (0.5, 10), (2.0, 40)])
def test_saving_takes_a_twentieth_of_the_time_at_most(save_seconds, pause, task, tmp_path, monkeypatch):
    """Every look takes a second here. A pause of 4 seconds is what was asked for, of 20 saves what saving takes."""
    now, saved = [0.0], []
    clock = SimpleNamespace(monotonic=lambda: now[0], perf_counter=lambda: now[0])
    monkeypatch.setattr(run, "time", clock)
    monkeypatch.setattr(run, "LOOK_SECONDS", 0.0)

    def pass_time(progress: Progress) -> None:
        now[0] += 1.0

    experiment = Experiment(model="logistic", epochs=25, batch_size=60)
    one = Run(experiment, "adam", 0, task, tmp_path, pass_time, checkpoint_seconds=4.0)

    def save(*args, check: bool = False, **options) -> None:
        if check:  # before the first step, whether saving will work
            return
        saved.append(now[0])
        now[0] += save_seconds

    monkeypatch.setattr(one.trainer, "save", save)
    one.train()
    assert len(saved) >= 3
    assert saved[0] == 4.0
    pauses = np.diff(saved) - save_seconds
    assert (pause <= pauses).all()
    assert (pauses <= pause + 1.0).all()


def test_a_sample_that_is_twice_in_a_batch_counts_twice():
    watch = Watch(6, 4)
    watch.note_draw(Draw(np.array([2, 2, 2, 5]), np.full(4, 4 / 6), np.full(4, 1 / 4), origin=0))
    watch.read(UniformSelection(6, 4))
    assert (watch.num_draws, watch.samples_drawn) == (1, 4)


def test_a_batch_counts_as_chosen_if_its_probabilities_differ():
    watch = Watch(6, 2)
    for probs in ([0.2, 0.4], [1 / 3, 1 / 3], [0.5, 0.1], [0.4, 0.2]):
        watch.note_draw(Draw(np.array([1, 4]), np.array(probs), 1.0 / (6 * np.array(probs)), origin=0))
    again = Watch(6, 2)
    again.load_state_dict(watch.state_dict())
    assert [(one.num_draws, one.num_chosen) for one in (watch, again)] == [(4, 3), (4, 3)]
