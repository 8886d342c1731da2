"""The report without a browser: what is read, what is computed, what is escaped, what is refused."""

from __future__ import annotations

import base64
import csv
import io
import json
import math
import re
import shutil
import statistics
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from adamcb.lab.output.looks import COLORS, DARK_COLORS
from adamcb.lab.output.report import write_report
from adamcb.lab.output.report._curves import curves
from adamcb.lab.output.report._page import line_styles, script_json
from adamcb.lab.output.report._pictures import LARGEST_SIDE, data_uri
from adamcb.lab.output.report._read import read_folder
from adamcb.lab.output.report._table import summary_table, with_deviation
from adamcb.lab.results.columns import measures_of
from adamcb.lab.results.statistics import mean_and_spread
from tests.lab.report_folder import EPOCHS, METHODS, SEEDS, shared_sample


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(shared_sample(), tmp_path / "results"))


def page_data(page: str) -> dict:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found
    return json.loads(found[1])


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def write_rows(path: Path, rows: list[dict[str, str]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_page_holds_means_and_deviations_of_the_csv(folder: Path) -> None:
    data = page_data(write_report(folder).read_text())
    rows = read_csv(folder / "results.csv")
    assert [method["name"] for method in data["methods"]] == list(METHODS)
    for method, curve in zip(METHODS, data["curves"], strict=True):
        for i, epoch in enumerate(curve["epoch"]):
            mine = [row for row in rows if row["method"] == method and row["epoch"] == str(epoch)]
            for name in (measure.name for measure in measures_of({})):
                values = [float(row[name]) for row in mine]
                assert curve["mean"][name][i] == pytest.approx(statistics.mean(values), rel=1e-6)
                assert curve["deviation"][name][i] == pytest.approx(statistics.stdev(values), rel=1e-6, abs=1e-12)


def test_page_asks_nothing_of_any_network(folder: Path) -> None:
    page = write_report(folder).read_text()
    without_namespace = page.replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?:|//[a-z]+\.[a-z]", without_namespace)
    assert set(re.findall(r'(?:src|href)="(data:|#|[^"]{0,8})', page)) <= {"data:", "#"}
    assert "default-src 'none'" in page


def test_pictures_are_those_of_the_npz(folder: Path) -> None:
    page = write_report(folder).read_text()
    galleries = page.split('<div class="gallery"')[1:]
    assert len(galleries) == SEEDS * len(METHODS)
    for i, method in enumerate(METHODS):
        with np.load(folder / "chosen" / f"{method}-seed1.npz") as arrays:
            gallery = next(part for part in galleries if part.startswith(f' data-method="{i}" data-seed="1"'))
            uris = re.findall(r'src="data:image/png;base64,([^"]+)"', gallery)
            decoded = [np.asarray(Image.open(io.BytesIO(base64.b64decode(uri)))) for uri in uris]
            np.testing.assert_array_equal(np.stack(decoded), arrays["image"])
            assert re.findall(r"<b>(\d+)×</b>", gallery) == [str(count) for count in arrays["count"]]
            assert gallery.count('class="picture wrong"') == (arrays["label"] != arrays["prediction"]).sum()


@pytest.mark.parametrize(
    ("shape", "size"), [((9, 7), (7, 9)), ((32, 32, 3), (32, 32)), ((400, 200, 3), (LARGEST_SIDE // 2, LARGEST_SIDE))]
)
def test_pictures_keep_their_pixels_unless_they_are_large(shape: tuple[int, ...], size: tuple[int, int]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    image = Image.open(io.BytesIO(base64.b64decode(data_uri(pixels).split(",")[1])))
    assert image.size == size
    if max(shape) <= LARGEST_SIDE:
        np.testing.assert_array_equal(np.asarray(image), pixels)


@pytest.mark.parametrize(("missing", "section"), [("selection.csv", "selection"), ("chosen", "chosen")])
def test_missing_optional_file_leaves_its_section_out(folder: Path, missing: str, section: str) -> None:
    assert f'id="{section}"' in write_report(folder).read_text()
    path = folder / missing
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    page = write_report(folder).read_text()
    assert f'id="{section}"' not in page
    assert f'href="#{section}"' not in page


def test_text_is_escaped_wherever_it_stands(folder: Path) -> None:
    evil = "</script><script>alert(1)</script>"
    replace(folder / "results.csv", "\nadam,", f'\n"{evil}",')
    replace(folder / "selection.csv", "\nadam,", f'\n"{evil}",')
    config = json.loads((folder / "config.json").read_text())
    config.update(class_names=[evil] * 10, model=evil, dataset=evil, notes=[evil], **{evil: evil})
    (folder / "config.json").write_text(json.dumps(config))
    page = write_report(folder).read_text()
    assert evil not in page
    assert page.count("<script") == page.count("</script>") == 2
    assert evil in [method["name"] for method in page_data(page)["methods"]]


def test_json_cannot_close_its_script() -> None:
    text = "</script><!--&\u2028"
    packed = script_json({"a": text})
    assert not set("<>&\u2028") & set(packed)
    assert json.loads(packed) == {"a": text}


def test_summary_of_the_folder_is_shown_with_deviations_beside_their_means(folder: Path) -> None:
    (folder / "summary.csv").write_text(
        "method,seeds,final_train_loss,final_train_loss_std,best_test_accuracy_mean,best_test_accuracy_std,seconds_to_adam\n"
        "adam,2,0.0123456,0.00123,0.971,0,\n"
        "adamcb-paper,2,0.0023456,0.000123,0.962,0.0021,3.25\n"
    )
    table = summary_table(read_folder(folder))
    assert table.header == ["Method", "Seeds", "Final train loss", "Best test accuracy", "Seconds to adam"]
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["adam", "2", "0.0123 ± 0.0012", "97.10 ± 0.00\u00a0%", "–"],
        ["adamcb-paper", "2", "0.00235 ± 0.00012", "96.20 ± 0.21\u00a0%", "3.250"],
    ]
    assert [[cell.best for cell in row] for row in table.rows] == [
        [False, False, False, True, False],
        [False, False, True, False, False],
    ]


def test_summary_is_made_from_the_results_where_there_is_none(folder: Path) -> None:
    rows = [row for row in read_csv(folder / "results.csv") if row["method"] == "adam" and row["epoch"] == str(EPOCHS)]
    table = summary_table(read_folder(folder))
    accuracies = [100 * float(row["test_accuracy"]) for row in rows]
    shown = table.rows[0][table.header.index("Final test accuracy")].text
    assert shown == f"{statistics.mean(accuracies):.2f} ± {statistics.stdev(accuracies):.2f}\u00a0%"


@pytest.mark.parametrize(
    ("mean", "deviation", "text"),
    [
        (0.0, math.nan, "0"),
        (1234.0, math.nan, "1,234"),
        (0.000511, 0.000054, "0.000511 ± 0.000054"),
        (12.3456, 0.0001, "12.35 ± 0.00"),
        (8.3, 10.8, "8 ± 11"),
        (-1.5, 0.25, "−1.50 ± 0.25"),
        (math.nan, math.nan, "–"),
    ],
)
def test_numbers_have_the_digits_that_mean_something(mean: float, deviation: float, text: str) -> None:
    assert with_deviation(mean, deviation) == text


def test_diverged_seed_is_left_out_of_the_mean_and_counted(folder: Path) -> None:
    lines = (folder / "results.csv").read_text().splitlines()
    place = next(i for i, line in enumerate(lines) if line.startswith("adamcb-paper,1,1,"))
    fields = lines[place].split(",")
    lines[place] = ",".join([*fields[:5], "nan", "0.1", "inf", "0.1"])
    (folder / "results.csv").write_text("\n".join(lines) + "\n")
    column = lines[0].split(",").index("train_loss")
    other = next(line.split(",")[column] for line in lines if line.startswith("adamcb-paper,0,1,"))
    curve = page_data(write_report(folder).read_text())["curves"][list(METHODS).index("adamcb-paper")]
    assert curve["mean"]["train_loss"][1] == pytest.approx(float(other), rel=1e-6)
    assert (curve["deviation"]["train_loss"][1], curve["count"]["train_loss"][1]) == (None, 1)


def test_mean_and_spread_of_none_and_one() -> None:
    assert mean_and_spread([1.0, 2.0, 4.0]) == (pytest.approx(7 / 3), pytest.approx(statistics.stdev([1, 2, 4])))
    assert mean_and_spread([3.0])[0] == 3.0
    assert math.isnan(mean_and_spread([3.0])[1])
    assert all(map(math.isnan, mean_and_spread([])))


def test_method_without_rows_has_an_empty_curve(folder: Path) -> None:
    empty = {"epoch": [], "mean": {}, "deviation": {}, "count": {}}
    assert curves(read_folder(folder), [], each_seed=False) == [empty] * len(METHODS)


@pytest.mark.parametrize("way", ["ends early", "is marked", "ends without a loss"])
def test_diverged_run_is_in_no_mean_and_named_wherever_its_method_is(folder: Path, way: str) -> None:
    rows = read_csv(folder / "results.csv")
    for row in rows:
        mine = (row["method"], row["seed"]) == ("adam", "1")
        row["diverged"] = "step 44: the loss is not finite" if mine and way == "is marked" else ""
        if mine and row["epoch"] == str(EPOCHS) and way == "ends without a loss":
            row["train_loss"] = "nan"
        if mine and row["epoch"] == "1":
            row["train_loss"] = "1e9"
    if way == "ends early":
        rows = [row for row in rows if (row["method"], row["seed"]) != ("adam", "1") or int(row["epoch"]) < 3]
    write_rows(folder / "results.csv", rows)
    page = write_report(folder).read_text()
    data = page_data(page)
    other = [float(row["train_loss"]) for row in rows if (row["method"], row["seed"]) == ("adam", "0")]
    assert data["curves"][0]["mean"]["train_loss"] == pytest.approx(other, rel=1e-6)
    assert [seed["diverged"] for seed in data["curves"][0]["seeds"]] == [False, True]
    assert [method["fate"] for method in data["methods"]] == ["1 of 2 diverged", "", "", ""]
    assert re.findall(r'adam<small class="lost">([^<]+)<', page) == ["1 of 2 diverged"]
    assert "Runs that diverged are in no mean." in page


def test_method_whose_runs_all_diverged_wins_nothing(folder: Path) -> None:
    lines = (folder / "results.csv").read_text().splitlines()
    early = re.compile(r"adam,\d,[34],")
    lines = [
        re.sub(r"^(adam,\d,\d,\d+,[^,]+),.*", r"\1,1e-9,1e-9,1.0,1.0", line) for line in lines if not early.match(line)
    ]
    (folder / "results.csv").write_text("\n".join(lines) + "\n")
    page = write_report(folder).read_text()
    winners = re.findall(r'class="who">.*?</svg>([^<]+)<', page)
    assert winners
    assert "adam" not in winners
    table = summary_table(read_folder(folder))
    assert {cell.text for cell in table.rows[0][1:]} == {"–"}


def test_ties_are_credited_to_all(folder: Path) -> None:
    (folder / "summary.csv").write_text(
        "method,final_test_accuracy,final_test_accuracy_std,seconds\n"
        "adam,0.97100,0.01,5\nadambs,0.97101,0.01,5\nadamcb-paper,0.962,0.0021,6\nadamcb,0.9712,0,7\n"
    )
    table = summary_table(read_folder(folder))
    assert [[cell.best for cell in row[1:]] for row in table.rows] == [
        [False, True],
        [False, True],
        [False] * 2,
        [True, False],
    ]
    rows = read_csv(folder / "results.csv")
    for row in rows:
        if row["epoch"] == str(EPOCHS):
            row["test_loss"] = "0.5" if row["method"] in ("adam", "adamcb") else "0.75"
    write_rows(folder / "results.csv", rows)
    tile = write_report(folder).read_text().split("Lowest final test loss")[1].split("</div>")[0]
    assert re.findall(r'class="who">.*?</svg>([^<]+)<', tile) == ["adam", "adamcb"]
    assert "Next: adambs, 0.75" in tile


def test_summary_leaves_out_what_repeats(folder: Path) -> None:
    (folder / "summary.csv").write_text(
        "method,runs,final_test_loss,best_test_loss,samples,reached_baseline,steps_to_baseline\n"
        "adam,2,0.5,0.5,640,2,20\nadamcb,2,0.4,0.3,640,2,10\n"
    )
    table = summary_table(read_folder(folder))
    assert table.header == ["Method", "Final test loss", "Steps to adam's end"]
    assert [row[1].earlier for row in table.rows] == ["", "0.3000"]


def test_verdict_stands_above_all_else_with_its_advice_first(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["labels"] = {"adamcb": "AdamCB", "adamcb-paper": "AdamCB (paper)"}
    config["verdict"] = "AdamCB (paper) took <50 % of the samples: use it.\nNothing can be said."
    config["notes"] = ["A note."]
    (folder / "config.json").write_text(json.dumps(config))
    page = write_report(folder).read_text()
    said = page.split('<section id="verdict"')[1].split("</section>")[0]
    assert "<b>Use it.</b> AdamCB (paper) took &lt;50 % of the samples.</p>" in said
    assert line_styles(list(METHODS))["adamcb-paper"] in said
    assert "<p>Nothing can be said.</p>" in said
    main = page.split("<main")[1]
    assert main.index('id="verdict"') < min(
        main.index("A note."), main.index('class="tiles"'), main.index('id="curves"')
    )


def test_methods_are_explained_with_a_link(folder: Path) -> None:
    assert 'id="methods"' not in write_report(folder).read_text()
    config = json.loads((folder / "config.json").read_text())
    config["about"] = {
        "adam": ["Shuffled & plain.", "https://example.org/a"],
        "adamcb": ["Ours.", "javascript:alert(1)"],
    }
    (folder / "config.json").write_text(json.dumps(config))
    page = write_report(folder).read_text()
    assert 'Shuffled &amp; plain. <a href="https://example.org/a" rel="noreferrer">Read more</a>' in page
    assert "<dd>Ours.</dd>" in page
    assert "javascript:" not in page


def test_page_has_the_colors_of_the_figures(folder: Path) -> None:
    page = write_report(folder).read_text()
    for number, (light, dark) in enumerate(zip(COLORS, DARK_COLORS, strict=True)):
        assert f"--c{number}: light-dark({light}, {dark});" in page


def test_labels_of_the_configuration_are_shown_unless_two_are_alike(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["labels"] = {"adam": "Adam & co", "adamcb-paper": "AdamCB", "adamcb": "AdamCB"}
    (folder / "config.json").write_text(json.dumps(config))
    page = write_report(folder).read_text()
    names = [method["name"] for method in page_data(page)["methods"]]
    assert names == ["Adam & co", "adambs", "adamcb-paper", "adamcb"]
    assert "<h3>Adam &amp; co, seed 0</h3>" in page


def test_lines_differ_in_color_or_dashes_and_known_methods_keep_theirs() -> None:
    many = [*METHODS, *(f"mine-{i}" for i in range(40))]
    styles = line_styles(many)
    assert len(set(styles.values())) == len(many)
    assert {line_styles([method])[method] for method in METHODS} == {styles[method] for method in METHODS}


def test_writing_twice_gives_the_same_page_and_leaves_nothing_beside_it(folder: Path) -> None:
    first = write_report(folder).read_bytes()
    assert write_report(str(folder)).read_bytes() == first
    assert not list(folder.glob("*.part")) + list(folder.glob(".report*"))


@pytest.mark.parametrize("name", ["config.json", "results.csv"])
def test_missing_required_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(FileNotFoundError, match=f"must hold {name}, got folder="):
        write_report(folder)


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("results.csv", "train_loss", "other", r"results\.csv must have the columns train_loss, got"),
        ("results.csv", "adam,0,1,", "adam,0,one,", r"results\.csv, line 3 must hold a number .*'one'"),
        ("selection.csv", "coverage", "other", r"selection\.csv must have the columns coverage, got"),
        ("config.json", "{", "[", r"config\.json must be JSON"),
    ],
)
def test_damaged_file_is_named_with_the_place(folder: Path, name: str, old: str, new: str, message: str) -> None:
    replace(folder / name, old, new)
    with pytest.raises(ValueError, match=message):
        write_report(folder)


def test_other_damage_is_refused_too(folder: Path) -> None:
    (folder / "summary.csv").write_text("method,seconds\nadam,1,2\n")
    with pytest.raises(ValueError, match="must have 2 fields a row, got 3 in row 2"):
        write_report(folder)
    (folder / "summary.csv").unlink()
    path = folder / "chosen" / "adam-seed0.npz"
    path.write_bytes(b"PK\x03\x04 not a zip file")
    with pytest.raises(ValueError, match=r"adam-seed0\.npz must be an npz file with index"):
        write_report(folder)
    np.savez(path, index=[1], count=[1], label=[1], prediction=[1], loss=[1.0], image=np.zeros((1, 8, 8)))
    with pytest.raises(ValueError, match=r"image uint8 .*got image of shape \(1, 8, 8\) and type float64"):
        write_report(folder)
    path.unlink()
    replace(folder / "results.csv", (folder / "results.csv").read_text().split("\n", 1)[1], "")
    with pytest.raises(ValueError, match="must hold at least one row"):
        write_report(folder)
