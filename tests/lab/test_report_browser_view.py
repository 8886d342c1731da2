"""The report in a real browser: how a view is kept, sent and taken home, and how it looks at any width."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By

from adamcb.lab.output.looks import COLORS, look_of
from adamcb.lab.output.report import write_report
from tests.lab.browser import open_browser, set_window
from tests.lab.commands import wait_until
from tests.lab.report_folder import EPOCHS, METHODS, SEEDS, shared_sample
from tests.lab.report_page import bring, chip, curve_names, find, hover, open_page, set_control, texts, values_of

NAMES = list(METHODS)
LONG = [f"a method with a name that is far too long to be read, number {i}" for i in range(8)]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    with open_browser(tmp_path_factory.mktemp("profile")) as chrome:
        yield chrome


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = Path(shutil.copytree(shared_sample(), tmp_path_factory.mktemp("view") / "results"))
    config = json.loads((folder / "config.json").read_text())
    config["verdict"] = "adamcb took half of the samples: use it."
    config["about"] = {name: [f"What {name} is.", "https://example.org/"] for name in METHODS}
    (folder / "config.json").write_text(json.dumps(config))
    write_report(folder)
    return folder


@pytest.fixture
def page(browser: Chrome, sample: Path) -> Iterator[Chrome]:
    open_page(browser, sample / "report.html")
    yield browser
    assert browser.get_log("browser") == []


def open_again(page: Chrome) -> None:
    """Open the same address as somebody would who was sent it."""
    address = page.current_url
    page.get("about:blank")
    page.get(address)


def test_verdict_is_the_first_thing_below_the_heading(page: Chrome) -> None:
    said = find(page, "#verdict")
    assert find(page, "#verdict b").text == "Use it."
    others = page.find_elements(By.CSS_SELECTOR, ".tile, #curves, .notice")
    assert said.rect["y"] + said.rect["height"] <= min(other.rect["y"] for other in others)
    for width in (1400, 390):
        set_window(page, width)
        assert find(page, "#verdict b").rect["y"] < 400


def test_methods_are_explained_with_links(page: Chrome) -> None:
    assert texts(page, ".methods dd") == [f"What {name} is. Read more" for name in METHODS]
    links = page.find_elements(By.CSS_SELECTOR, ".methods a")
    assert {link.get_attribute("href") for link in links} == {"https://example.org/"}


def test_table_that_does_not_fit_says_that_it_scrolls(page: Chrome) -> None:
    set_window(page, 1400)
    hint = find(page, "#summary .hint")
    assert not hint.is_displayed()
    set_window(page, 390)
    assert hint.text == "Scroll sideways for more columns →"
    scroller = find(page, "#summary .scroll")
    page.execute_script("arguments[0].scrollLeft = 1e6", scroller)
    page.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
    assert hint.text == "← Scroll back for the first columns"
    last = page.find_elements(By.CSS_SELECTOR, ".sortable thead th")[-1].rect
    assert last["x"] + last["width"] <= 390


def test_accuracy_zooms_to_what_was_learned(page: Chrome, sample: Path) -> None:
    set_control(page, "measure", "accuracy")
    before = max(100 * value for name in NAMES for value in values_of(sample, name, 0, "train_accuracy"))
    lowest = min(100 * value for name in NAMES for value in values_of(sample, name, 1, "train_accuracy"))
    ticks = [float(text.removesuffix(" %")) for text in texts(page, "#curves-chart .y-tick")]
    assert before < min(ticks) <= lowest
    assert max(ticks) <= 100.0
    assert "leaves out the value before training" in find(page, "#curves-note").text


@pytest.mark.parametrize("width", [390, 1400])
def test_every_axis_has_enough_ticks(page: Chrome, width: int) -> None:
    set_window(page, width)
    for measure in ("loss", "accuracy"):
        set_control(page, "measure", measure)
        for axis in ("epoch", "seconds", "step"):
            set_control(page, "axis", axis)
            assert len(texts(page, "#curves-chart .x-tick")) >= 3
            assert len(texts(page, "#curves-chart .y-tick")) >= 4
    charts = page.find_elements(By.CSS_SELECTOR, ".plot svg")
    assert len(charts) == 1 + 4 + len(NAMES) - 1
    for chart in charts:
        across = chart.find_elements(By.CSS_SELECTOR, ".x-tick")
        assert len(across) >= 3
        assert len(chart.find_elements(By.CSS_SELECTOR, ".y-tick")) >= 3
        ends = [(label.rect["x"], label.rect["x"] + label.rect["width"]) for label in across]
        assert all(one[1] < other[0] for one, other in zip(ends, ends[1:], strict=False)), "labels run together"


def test_table_of_steps_is_headed_by_steps(page: Chrome, sample: Path) -> None:
    bring(page, find(page, "#curves summary")).click()
    set_control(page, "axis", "step")
    steps = [int(values_of(sample, "adam", epoch, "step")[0]) for epoch in range(EPOCHS + 1)]
    assert texts(page, "#curves-numbers thead th")[0] == "Step"
    assert texts(page, "#curves-numbers tbody th") == [str(step) for step in steps]
    set_control(page, "axis", "seconds")
    assert texts(page, "#curves-numbers thead th")[0] == "Epoch"


def test_note_tells_what_is_drawn(page: Chrome) -> None:
    note = find(page, "#curves-note")
    assert "bands" in note.text
    set_control(page, "spread", "seeds")
    assert note.text == "Thin lines are single seeds, thick lines their means."
    set_control(page, "spread", "none")
    assert note.text == "Lines are means over seeds."


def test_no_words_stand_on_the_lines(page: Chrome) -> None:
    assert texts(page, "#selection-readings .reference-key") == ["uniform"] * 2
    assert len(texts(page, "#selection-fans .reference-key")) == len(NAMES) - 1
    for chart in page.find_elements(By.CSS_SELECTOR, ".plot svg"):
        kinds = {str(text.get_attribute("class")).split()[0] for text in chart.find_elements(By.TAG_NAME, "text")}
        assert kinds <= {"tick", "axis-label"}


def test_view_is_in_the_address_and_comes_back(page: Chrome) -> None:
    for name, value in (("measure", "accuracy"), ("split", "test"), ("axis", "step"), ("spread", "seeds")):
        set_control(page, name, value)
    find(page, "#curve-controls [name=log]").click()
    chip(page, "adambs").click()
    header = page.find_elements(By.CSS_SELECTOR, ".sortable th button")[2]
    bring(page, header).click()
    header.click()
    order = texts(page, ".sortable tbody th")
    bring(page, find(page, "#gallery-controls [name=wrong]")).click()
    open_again(page)
    assert texts(page, "#curves-chart .y-label") == ["Test accuracy, log scale"]
    assert texts(page, "#curves-chart .x-label") == ["Steps"]
    assert len(page.find_elements(By.CSS_SELECTOR, "#curves-chart .line.quiet")) == (len(NAMES) - 1) * SEEDS
    assert "adambs" not in curve_names(page)
    assert chip(page, "adambs").get_attribute("aria-pressed") == "false"
    assert texts(page, ".sortable tbody th") == order
    assert find(page, "#gallery-controls [name=wrong]").is_selected()


def test_window_is_in_the_address_and_a_section_keeps_it(page: Chrome) -> None:
    plot = bring(page, find(page, "#curves-chart .plot"))
    page.execute_script("arguments[0].focus()", plot)
    plot.send_keys("+")
    narrow = texts(page, "#curves-chart .x-tick")
    assert narrow[-1] != str(EPOCHS)
    bring(page, find(page, "nav a[href='#summary']")).click()
    assert re.search(r"#summary&.*between=", page.current_url)
    open_again(page)
    assert texts(page, "#curves-chart .x-tick") == narrow
    assert page.execute_script("return document.getElementById('summary').getBoundingClientRect().top") < 100
    bring(page, find(page, "#curves-chart .reset")).click()
    assert "between" not in page.current_url


def test_page_as_it_comes_has_nothing_in_its_address(page: Chrome) -> None:
    assert "#" not in page.current_url
    set_control(page, "split", "test")
    assert page.current_url.endswith("#&split=test")
    set_control(page, "split", "train")
    assert "#" not in page.current_url


def test_address_with_nonsense_is_the_page_as_it_comes(browser: Chrome, sample: Path) -> None:
    nonsense = "#nowhere&measure=<b>&axis=none&off=nobody&between=2,x&sort=99up&log=maybe&method=-1&seed=x"
    browser.get("about:blank")
    browser.get((sample / "report.html").as_uri() + nonsense)
    assert curve_names(browser) == NAMES
    assert texts(browser, "#curves-chart .x-label") == ["Epochs"]
    assert browser.get_log("browser") == []


@pytest.fixture
def downloads(browser: Chrome, tmp_path: Path) -> Path:
    where = {"behavior": "allow", "downloadPath": str(tmp_path)}
    browser.execute_cdp_cmd("Browser.setDownloadBehavior", where)
    return tmp_path


def download(page: Chrome, folder: Path, button: str, name: str) -> bytes:
    bring(page, find(page, button)).click()
    wait_until((folder / name).is_file)
    return (folder / name).read_bytes()


def test_tables_can_be_saved(page: Chrome, sample: Path, downloads: Path) -> None:
    summary = list(csv.reader(io.StringIO(download(page, downloads, "#save-summary", "summary.csv").decode())))
    assert summary[0][:2] == ["method", "final_train_loss"]
    assert [row[0] for row in summary[1:]] == NAMES
    bring(page, find(page, "#curves summary")).click()
    chip(page, "adambs").click()
    name = "training-loss-against-epochs.csv"
    rows = list(csv.DictReader(io.StringIO(download(page, downloads, "#save-numbers", name).decode())))
    assert {row["method"] for row in rows} == set(NAMES) - {"adambs"}
    last = next(row for row in rows if row["method"] == "adam" and row["epoch"] == str(EPOCHS))
    values = values_of(sample, "adam", EPOCHS, "train_loss")
    assert float(last["train_loss"]) == pytest.approx(sum(values) / len(values), rel=1e-6)


def test_picture_can_be_saved_with_title_and_legend(page: Chrome, downloads: Path) -> None:
    text = download(page, downloads, "#save-svg", "training-loss-against-epochs.svg").decode()
    assert "logistic on digits: Training loss against epochs" in text
    assert all(f">{name}</text>" in text for name in NAMES)
    assert "class=" not in text
    picture = Image.open(io.BytesIO(download(page, downloads, "#save-png", "training-loss-against-epochs.png")))
    assert picture.width == 2 * find(page, "#curves-chart svg").size["width"]
    colors = {color for _, color in picture.convert("RGB").getcolors(1 << 24) or []}
    assert rgb(look_of("adamcb", NAMES).color) in colors


def rgb(color: str) -> tuple[int, ...]:
    return tuple(bytes.fromhex(color.removeprefix("#")))


def test_lines_have_the_colors_of_the_figures(page: Chrome) -> None:
    for name in NAMES:
        line = find(page, f"#curves-chart path[data-line='{name}']")
        drawn = page.execute_script("return getComputedStyle(arguments[0]).stroke", line)
        assert tuple(map(int, re.findall(r"\d+", drawn))) == rgb(look_of(name, NAMES).color)
    assert len(set(COLORS)) == 8


@pytest.mark.parametrize("width", [390, 1400])
def test_legends_hold_eight_long_names(browser: Chrome, sample: Path, tmp_path: Path, width: int) -> None:
    folder = Path(shutil.copytree(sample, tmp_path / "long"))
    rows = list(csv.DictReader(io.StringIO((folder / "results.csv").read_text())))
    mine = [row for row in rows if row["method"] == "adam"]
    with (folder / "results.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows({**row, "method": name} for name in LONG for row in mine)
    shutil.rmtree(folder / "chosen")
    (folder / "selection.csv").unlink()
    open_page(browser, write_report(folder))
    set_window(browser, width)
    assert curve_names(browser) == LONG
    for button in browser.find_elements(By.CSS_SELECTOR, "#curves .chip"):
        assert button.text in LONG
        assert button.rect["x"] >= 0
        assert button.rect["x"] + button.rect["width"] <= width
        words = button.find_element(By.TAG_NAME, "span").rect
        assert words["x"] + words["width"] <= button.rect["x"] + button.rect["width"]
    hover(browser, 0.5)
    tip = find(browser, "#curves-chart .tip").rect
    assert tip["x"] + tip["width"] <= width
    assert len(browser.find_elements(By.CSS_SELECTOR, "#curves-chart .tip tr")) == len(LONG)
    assert browser.get_log("browser") == []
