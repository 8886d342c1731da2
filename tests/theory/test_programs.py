"""The programs behind the numbers of the theory pages."""

import math

import numpy as np
import pytest
from pytest import approx

from benchmarks import theory as programs


def cells(table: str) -> list[list[str]]:
    """The rows of a Markdown table, without its head."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def test_the_spread_of_adambs_is_read_from_files_of_methods_and_not_from_files_of_runs(tmp_path):
    columns = "method,final_train_loss,final_train_loss_std,best_train_loss"
    (tmp_path / "cnn-mnist.csv").write_text(f"{columns}\nadam,0.5,0.1,0.4\nadambs-original,0.75,0.2,0.7\n")
    (tmp_path / "cnn-mnist-runs.csv").write_text("epochs,method,seed,train_loss\n10,adam,0,1\n10,adambs-original,0,1\n")
    assert cells(programs.adambs(tmp_path)) == [["cnn-mnist", "0.5 ± 0.1", "0.75 ± 0.2", "0.7"]]


def test_the_papers_bandit_learns_noise_in_the_table_too_and_scale_free_feedback_does_not():
    """With the gate of today's default both columns would be 1.00."""
    rows = cells(programs.noise())
    assert [row[0] for row in rows] == ["500", "2000", "8000"]
    paper, scale_free = ([float(row[column]) for row in rows] for column in (2, 3))
    assert paper == approx([1.11, 1.38, 1.70], abs=0.005)
    assert scale_free == approx([1.0, 1.0, 1.0], abs=0.02)


@pytest.mark.parametrize("gamma", [0.1, 0.4, 0.5, 0.9])
def test_lemma_2_with_a_rate_of_its_own_beats_the_floor_after_that_many_steps_and_not_before(gamma):
    n, k = 1438, 32
    turn = programs.steps_until_it_pays(n, k, gamma)
    for steps, below in ((0.99 * turn, False), (1.01 * turn, True)):
        bound = steps + math.sqrt(2 * n * math.log(n / k) * steps / k) / gamma**2  # L = 1, and S(p̃) = T at the most
        assert (bound < steps / gamma) == below


def test_the_steps_that_the_pages_name():
    printed = [programs.steps_until_it_pays(1438, 32, gamma) for gamma in (0.4, 0.5)]
    assert printed == approx([5937, 5472], abs=1)
    assert min(np.linspace(0.01, 0.99, 99), key=lambda gamma: programs.steps_until_it_pays(1438, 32, gamma)) == 0.5
