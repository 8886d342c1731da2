"""The rows of evidence that `python -m benchmarks.tasks` writes."""

import csv

from benchmarks.tasks import table, with_others


def row(method: str, seed: int, loss: float) -> dict:
    return {"task": "protein", "method": method, "seed": seed, "samples": 10, "train_loss": loss, "test_loss": None}


def test_rows_of_runs_that_are_elsewhere_stay_and_new_ones_replace_old_ones(tmp_path):
    path = tmp_path / "rows.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(row("adam", 0, 0.5)))
        writer.writeheader()
        writer.writerows([row("adamcb", 0, 0.25), row("adam", 0, 0.5), row("adam", 1, 0.75)])
    found = with_others([row("adam", 1, 0.125)], path)
    assert found == [row("adam", 0, 0.5), row("adam", 1, 0.125), row("adamcb", 0, 0.25)]
    assert with_others(found, tmp_path / "none.csv") == found


def test_the_table_has_intervals_where_there_are_seeds():
    lines = table([row("adam", 0, 0.5), row("adam", 1, 0.5), row("adamcb", 0, 0.25)])
    assert lines[2] == "| method | seeds | samples | seconds_of_adam | samples_to_adam | seconds_to_adam | train_loss |"
    assert lines[4:6] == ["| adam | 2 | 10 ± 0 | – | – | – | 0.5 ± 0 |", "| adamcb | 1 | 10 | – | – | – | 0.25 |"]
