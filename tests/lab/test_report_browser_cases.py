"""The report in a real browser, from folders out of the ordinary: hostile names, one run, runs that diverged."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By

from adamcb.lab.output.report import write_report
from tests.lab.browser import open_browser
from tests.lab.report_folder import EPOCHS, METHODS, shared_sample
from tests.lab.report_page import chip, curve_names, find, hover, open_page, set_control, texts, tip_rows

Line = dict[str, str]
HOSTILE = ('<script>document.title="evil"</script>', "__proto__", '"><img src=x onerror=document.title="evil">')


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    with open_browser(tmp_path_factory.mktemp("profile")) as chrome:
        yield chrome


@pytest.fixture
def altered(tmp_path: Path) -> Path:
    return Path(shutil.copytree(shared_sample(), tmp_path / "results"))


def rewrite(folder: Path, name: str, change: Callable[[Line], Line]) -> None:
    """Change every line of a CSV file; one that comes back empty is left out."""
    with (folder / name).open(newline="") as file:
        rows = [changed for row in csv.DictReader(file) if (changed := change(row))]
    with (folder / name).open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)


def test_hostile_names_are_shown_and_do_nothing(browser: Chrome, altered: Path) -> None:
    names = dict(zip(METHODS, HOSTILE, strict=False))
    for file in ("results.csv", "selection.csv"):
        rewrite(altered, file, lambda row: {**row, "method": names.get(row["method"], row["method"])})
    (altered / "chosen" / "adambs-seed0.npz").rename(altered / "chosen" / "__proto__-seed0.npz")
    config = json.loads((altered / "config.json").read_text())
    config.update(class_names=[HOSTILE[0]] * 10, dataset=HOSTILE[2], notes=list(HOSTILE), **{HOSTILE[0]: HOSTILE[2]})
    (altered / "config.json").write_text(json.dumps(config))
    open_page(browser, write_report(altered))
    assert set(HOSTILE) < set(curve_names(browser))
    chip(browser, "__proto__").click()
    assert "__proto__" not in curve_names(browser)
    hover(browser, 0.5)
    assert HOSTILE[0] in tip_rows(browser)
    assert browser.title.startswith("logistic on")
    assert not browser.find_elements(By.CSS_SELECTOR, "img[src=x]")
    assert browser.get_log("browser") == []


def count_samples(line: Line) -> Line:
    """Give a line of selection.csv the samples of its run: half as many for adamcb."""
    return {**line, "samples": str(int(line["epoch"]) * (700 if line["method"] == "adamcb" else 1400))}


def test_curves_against_samples_end_where_each_method_ended(browser: Chrome, altered: Path) -> None:
    open_page(browser, write_report(altered))
    assert not browser.find_elements(By.CSS_SELECTOR, "[name=axis][value=samples]"), "samples were not counted"
    rewrite(altered, "selection.csv", count_samples)
    open_page(browser, write_report(altered))
    set_control(browser, "axis", "samples")
    assert texts(browser, "#curves-chart .x-label") == ["Samples trained on"]
    ticks = texts(browser, "#curves-chart .x-tick")
    assert {"0", "1K", "5K"} <= set(ticks)
    hover(browser, 1.0)
    rows = tip_rows(browser)
    assert rows["adam"].endswith(f"at {1400 * EPOCHS:,} samples")
    assert rows["adamcb"].endswith(f"at {700 * EPOCHS:,} samples")
    address = browser.current_url
    assert "axis=samples" in address
    assert browser.get_log("browser") == []


def test_labels_of_large_numbers_differ(browser: Chrome, altered: Path) -> None:
    """The marks at 1.5 and at 2 million are not both called 2e6."""
    rewrite(altered, "results.csv", lambda line: {**line, "step": str(int(line["epoch"]) * 750_000)})
    open_page(browser, write_report(altered))
    set_control(browser, "axis", "step")
    assert texts(browser, "#curves-chart .x-tick") == ["0", "500000", "1e6", "1.5e6", "2e6", "2.5e6", "3e6"]


def test_one_seed_of_one_method_for_one_epoch_is_drawn(browser: Chrome, altered: Path) -> None:
    keep = ("adam", "0", "1")
    rewrite(altered, "results.csv", lambda row: row if (row["method"], row["seed"], row["epoch"]) == keep else {})
    (altered / "selection.csv").unlink()
    shutil.rmtree(altered / "chosen")
    open_page(browser, write_report(altered))
    assert curve_names(browser) == ["adam"]
    assert len(browser.find_elements(By.CSS_SELECTOR, "#curves-chart .dot")) == 1
    hover(browser, 0.5)
    assert "±" not in tip_rows(browser)["adam"]
    assert browser.get_log("browser") == []


def test_diverged_run_leaves_a_gap_and_is_told(browser: Chrome, altered: Path) -> None:
    def diverge(row: Line) -> Line:
        lost = row["method"] == "adam" and (row["epoch"] == "2" or (row["epoch"] == "3" and row["seed"] == "1"))
        return {**row, "train_loss": "nan"} if lost else row

    rewrite(altered, "results.csv", diverge)
    open_page(browser, write_report(altered))
    path = find(browser, "#curves-chart path[data-line=adam]").get_attribute("d") or ""
    assert path.count("M") == 2
    hover(browser, 3 / EPOCHS)
    assert tip_rows(browser)["adam"].endswith("(1 of 2 seeds)")
    assert browser.get_log("browser") == []


def test_run_that_ended_early_has_a_cross_and_stretches_no_axis(browser: Chrome, altered: Path) -> None:
    def diverge(row: Line) -> Line:
        if (row["method"], row["seed"]) != ("adam", "1"):
            return row
        return {} if int(row["epoch"]) > 2 else {**row, "train_loss": "1e12"} if row["epoch"] == "2" else row

    rewrite(altered, "results.csv", diverge)
    open_page(browser, write_report(altered))
    crosses = browser.find_elements(By.CSS_SELECTOR, "#curves-chart .cross")
    assert [cross.get_attribute("data-lost") for cross in crosses] == ["adam, seed 1"]
    plot = find(browser, "#curves-chart svg").rect
    assert crosses[0].rect["y"] >= plot["y"]
    assert max(float(text) for text in texts(browser, "#curves-chart .y-tick")) < 10.0
    assert "× marks where a run diverged: adam with seed 1." in find(browser, "#curves-note").text
    assert [line for line in texts(browser, ".lost") if line] == ["1 of 2 diverged"] * 3  # two legends and the table
    hover(browser, 1.0)
    assert tip_rows(browser)["adam"].endswith("(1 of 2 seeds)")
    chip(browser, "adam\n1 of 2 diverged").click()
    assert not browser.find_elements(By.CSS_SELECTOR, "#curves-chart .cross")
    assert "diverged" not in find(browser, "#curves-note").text
    assert browser.get_log("browser") == []


def test_method_whose_runs_all_diverged_is_still_drawn(browser: Chrome, altered: Path) -> None:
    lost = ("adamcb", "3", "4")
    rewrite(altered, "results.csv", lambda row: {} if row["method"] == lost[0] and row["epoch"] in lost[1:] else row)
    rewrite(altered, "selection.csv", lambda row: {} if row["method"] == lost[0] and row["epoch"] in lost[1:] else row)
    open_page(browser, write_report(altered))
    assert len(browser.find_elements(By.CSS_SELECTOR, "#curves-chart .cross")) == 2
    assert "adamcb" not in curve_names(browser)
    assert {"adamcb, seed 0", "adamcb, seed 1"} < set(curve_names(browser))
    assert browser.get_log("browser") == []
