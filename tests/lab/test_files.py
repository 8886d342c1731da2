"""Files of result folders: whole, with digests, and refused when they changed."""

import subprocess
from pathlib import Path

import numpy as np
import pytest

from adamcb._files import DRAFT
from adamcb.lab.errors import LabError
from adamcb.lab.output.report._read import read_folder
from adamcb.lab.results import append_csv, read_arrays, read_csv, read_json, write_arrays, write_csv, write_json
from adamcb.lab.results.columns import PICTURE_FIELDS
from adamcb.lab.results.files import SUMS
from tests.training.test_damage import cut, flip, swap

CONTENT = {"name": "run", "rows": [{"loss": 0.1, "epoch": 3}, {"loss": 1e-300, "epoch": 4}]}
ROWS = [{"method": "adam", "seed": 0, "train_loss": 0.1}, {"method": "adamcb", "seed": 1, "train_loss": None}]
TRIALS = 400


def write_all(folder: Path) -> None:
    write_json(folder / "done.json", CONTENT)
    write_csv(folder / "results.csv", ("method", "seed", "train_loss"), ROWS)
    write_arrays(folder / "chosen.npz", index=np.arange(3), loss=np.array([0.5, 0.25, 1.0]))


READERS = {
    "done.json": lambda folder: read_json(folder / "done.json"),
    "results.csv": lambda folder: read_csv(folder / "results.csv"),
    SUMS: lambda folder: read_csv(folder / "results.csv"),
    "chosen.npz": lambda folder: read_arrays(folder / "chosen.npz", ("index", "loss")),
}


def test_what_is_written_is_read_back(tmp_path):
    write_all(tmp_path)
    assert read_json(tmp_path / "done.json") == CONTENT
    assert read_csv(tmp_path / "results.csv") == ROWS
    assert read_arrays(tmp_path / "chosen.npz", ("index",))["index"].tolist() == [0, 1, 2]
    assert (tmp_path / "results.csv").read_text().startswith("method,seed,train_loss\nadam,0,0.1\n")  # a plain CSV
    checked = subprocess.run(["sha256sum", "--check", "--strict", SUMS], cwd=tmp_path, capture_output=True)
    assert checked.returncode == 0, checked.stderr


# A list of digests that is cut short knows of fewer files.
DAMAGES = [(name, damage) for name in READERS for damage in (flip, cut, swap) if (name, damage) != (SUMS, cut)]


@pytest.mark.parametrize(("name", "damage"), DAMAGES)
def test_a_file_that_changed_is_refused(tmp_path, name, damage):
    write_all(tmp_path)
    whole = (tmp_path / name).read_bytes()
    source = np.random.default_rng(17)
    for _ in range(TRIALS):
        (tmp_path / name).write_bytes(damage(bytearray(whole), source))
        with pytest.raises(LabError, match="is damaged"):
            READERS[name](tmp_path)
    (tmp_path / name).write_bytes(whole)
    READERS[name](tmp_path)


def test_a_table_that_was_being_replaced_is_good_at_every_moment(tmp_path, monkeypatch):
    """Stop before each of the renames that writing a table takes."""
    write_csv(tmp_path / "results.csv", ("method",), [{"method": "old"}])
    replace, seen = Path.replace, set()
    for last in range(4):
        calls = []

        def stopping(self, target, calls=calls, last=last):
            if len(calls) == last:
                raise KeyboardInterrupt
            calls.append(target)
            return replace(self, target)

        monkeypatch.setattr(Path, "replace", stopping)
        try:
            write_csv(tmp_path / "results.csv", ("method",), [{"method": f"new{last}"}])
        except KeyboardInterrupt:
            pass
        monkeypatch.setattr(Path, "replace", replace)
        seen.add(read_csv(tmp_path / "results.csv")[0]["method"])
    assert seen == {"old", "new2", "new3"}
    assert not list(tmp_path.glob(f"{DRAFT}*"))


@pytest.mark.parametrize("left", [None, ""])
def test_a_list_of_digests_that_was_removed_is_missed(tmp_path, left):
    write_all(tmp_path)
    write_json(tmp_path / "config.json", {"methods": ["adam"]})
    read_csv(tmp_path / "results.csv")
    (tmp_path / SUMS).unlink()
    if left is not None:
        (tmp_path / SUMS).write_text(left)
    with pytest.raises(LabError, match="SHA256SUMS is damaged, or was removed: it must list results.csv"):
        read_csv(tmp_path / "results.csv")
    (tmp_path / "config.json").write_text('{"methods": ["adam"]}')  # somebody else's, who has no digests
    assert read_csv(tmp_path / "results.csv") == ROWS


def test_rows_are_appended_with_their_digest(tmp_path):
    table = tmp_path / "rows.csv"
    for number, row in enumerate(ROWS):
        append_csv(table, tuple(row), row)
        assert read_csv(table) == ROWS[: number + 1]
    other = table.read_text().replace("adam", "madam", 1)
    table.write_text(other)
    for action in (lambda: read_csv(table), lambda: append_csv(table, tuple(ROWS[0]), ROWS[0])):
        with pytest.raises(LabError, match="rows.csv is damaged"):
            action()
    assert table.read_text() == other
    (tmp_path / SUMS).unlink()  # no digest yet, as of files that others wrote: the next row brings it
    append_csv(table, tuple(ROWS[0]), ROWS[0])
    assert (tmp_path / SUMS).read_text().endswith("  rows.csv\n")


def test_an_older_folder_is_refused_with_the_reason(tmp_path):
    (tmp_path / "config.json").write_text('{"methods": ["adam"]}')
    with pytest.raises(LabError, match="is damaged: it does not begin with a digest: .* of an older version"):
        read_json(tmp_path / "config.json")


def test_the_page_is_not_made_from_a_table_that_changed(tmp_path):
    write_json(tmp_path / "config.json", {"methods": ["adam"], "metrics": []})
    columns = ("method", "seed", "epoch", "step", "seconds", "train_loss", "test_loss")
    write_csv(tmp_path / "results.csv", columns, [{name: 1 for name in columns} | {"method": "adam"}])
    table = tmp_path / "results.csv"
    table.write_text(table.read_text().replace("adam,1", "adam,2"))
    with pytest.raises(LabError, match="results.csv is damaged"):
        read_folder(tmp_path)


def test_the_page_is_not_made_from_pictures_that_changed(tmp_path):
    """NumPy and zipfile fail in several ways on them, or show another picture."""
    write_json(tmp_path / "config.json", {"methods": ["adam"], "metrics": []})
    columns = ("method", "seed", "epoch", "step", "seconds", "train_loss", "test_loss")
    write_csv(tmp_path / "results.csv", columns, [{name: 1 for name in columns} | {"method": "adam"}])
    (tmp_path / "chosen").mkdir()
    path = tmp_path / "chosen" / "adam-seed1.npz"
    arrays = {name: np.arange(3) for name in PICTURE_FIELDS if name != "image"}
    write_arrays(path, **arrays, image=np.zeros((3, 8, 8), dtype=np.uint8))
    assert len(read_folder(tmp_path).chosen[0].arrays["image"]) == 3
    whole = path.read_bytes()
    for place in range(0, len(whole), 7):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(LabError, match="adam-seed1.npz is damaged"):
            read_folder(tmp_path)
