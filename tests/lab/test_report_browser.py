"""The report in a real browser: the controls do what they say, with pointer and keyboard, at any width and theme."""

from __future__ import annotations

import csv
import math
import re
import shutil
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from selenium.webdriver import ActionChains, Chrome, Keys
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

from adamcb.lab.output.report import write_report
from tests.lab.browser import open_browser, prefer, set_window
from tests.lab.report_folder import EPOCHS, METHODS, SEEDS, shared_sample
from tests.lab.report_page import (
    agrees,
    bring,
    check_tip,
    chip,
    curve_names,
    find,
    hover,
    open_page,
    set_control,
    texts,
    tip_rows,
    values_of,
)

NAMES = list(METHODS)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    with open_browser(tmp_path_factory.mktemp("profile")) as chrome:
        yield chrome


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = Path(shutil.copytree(shared_sample(), tmp_path_factory.mktemp("browser") / "results"))
    write_report(folder)
    return folder


@pytest.fixture
def page(browser: Chrome, sample: Path) -> Iterator[Chrome]:
    """The page as a reader first sees it. Afterwards the console must be empty."""
    open_page(browser, sample / "report.html")
    yield browser
    assert browser.get_log("browser") == []


def test_page_is_drawn_and_fetches_nothing(page: Chrome) -> None:
    assert curve_names(page) == NAMES
    assert page.execute_script("return performance.getEntriesByType('resource').length") == 0
    assert "logistic on digits" in page.title


@pytest.mark.parametrize("method", NAMES)
def test_switching_a_method_off_hides_its_curve_everywhere(page: Chrome, method: str) -> None:
    chip(page, method).click()
    assert curve_names(page) == [name for name in NAMES if name != method]
    assert not page.find_elements(By.CSS_SELECTOR, f"#selection-readings path[data-line='{method}']")
    assert chip(page, method).get_attribute("aria-pressed") == "false"
    chip(page, method).click()
    assert curve_names(page) == NAMES


def test_page_without_any_method_says_so_and_all_brings_them_back(page: Chrome) -> None:
    for name in NAMES:
        chip(page, name).click()
    assert curve_names(page) == []
    assert find(page, "#curves-chart .nothing").text == "Nothing to show of the methods switched on"
    find(page, "#curves .legend > .small").click()
    assert curve_names(page) == NAMES


def test_hover_shows_the_values_of_the_csv(page: Chrome, sample: Path) -> None:
    hover(page, 3 / EPOCHS)
    assert find(page, "#curves-chart .tip strong").text == "Epoch 3"
    check_tip(page, sample, 3, "train_loss")
    set_control(page, "measure", "accuracy")
    set_control(page, "split", "test")
    hover(page, 1.0)
    assert find(page, "#curves-chart .tip strong").text == f"Epoch {EPOCHS}"
    check_tip(page, sample, EPOCHS, "test_accuracy", scale=100.0)


def test_hover_against_seconds_names_each_method_s_own_time(page: Chrome, sample: Path) -> None:
    set_control(page, "axis", "seconds")
    hover(page, 0.999)
    slowest = max(NAMES, key=lambda name: statistics.mean(values_of(sample, name, EPOCHS, "seconds")))
    for method, text in tip_rows(page).items():
        found = re.search(r" at ([\d.]+) s$", text)
        assert found
        if method == slowest:
            assert agrees(found[1], statistics.mean(values_of(sample, method, EPOCHS, "seconds")))


def test_arrow_keys_read_the_values_and_escape_ends(page: Chrome, sample: Path) -> None:
    plot = find(page, "#curves-chart .plot")
    page.execute_script("arguments[0].focus()", plot)
    plot.send_keys(Keys.HOME, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert find(page, "#curves-chart .tip strong").text == "Epoch 2"
    check_tip(page, sample, 2, "train_loss")
    spoken = page.execute_script("return document.querySelector('#curves-chart [aria-live]').textContent")
    assert spoken.startswith("Epoch 2")
    assert all(name in spoken for name in NAMES)
    plot.send_keys(Keys.ESCAPE)
    assert not find(page, "#curves-chart .tip").is_displayed()


def places_of(page: Chrome, selector: str) -> list[float]:
    """Return where labels stand, in pixels from the top."""
    return [float(tick.get_attribute("y") or "nan") for tick in page.find_elements(By.CSS_SELECTOR, selector)]


def test_controls_change_labels_and_scales(page: Chrome) -> None:
    label, ticks = "#curves-chart .y-label", "#curves-chart .y-tick"
    assert texts(page, label) == ["Training loss, log scale"]
    log_places = places_of(page, ticks)
    find(page, "#curve-controls [name=log]").click()
    assert texts(page, label) == ["Training loss"]
    linear = [float(text) for text in texts(page, ticks)]
    assert len(set(np.diff(linear).round(9))) == 1
    assert np.ptp(np.diff(places_of(page, ticks))) < 0.5  # pixels
    assert np.ptp(np.diff(log_places)) > 0.5
    set_control(page, "split", "test")
    assert texts(page, label) == ["Test loss"]
    set_control(page, "measure", "accuracy")
    assert texts(page, label) == ["Test accuracy"]
    assert all(text.endswith(" %") for text in texts(page, ticks))
    for value, words in (("seconds", "Seconds of training"), ("step", "Steps"), ("epoch", "Epochs")):
        set_control(page, "axis", value)
        assert texts(page, "#curves-chart .x-label") == [words]
    assert texts(page, "#curves-chart .x-tick") == [str(epoch) for epoch in range(EPOCHS + 1)]


@pytest.mark.parametrize("bend", [float, math.log10])
def test_lines_stand_where_the_ticks_say(page: Chrome, sample: Path, bend: Callable[[float], float]) -> None:
    if bend is float:
        find(page, "#curve-controls [name=log]").click()
    ticks = page.find_elements(By.CSS_SELECTOR, "#curves-chart .y-tick")
    places = [(tick.text, tick.get_attribute("y") or "") for tick in ticks]
    # Labels stand 4 pixels below their lines.
    (low, bottom), (high, top) = ((bend(float(text)), float(y) - 4) for text, y in (places[0], places[-1]))
    path = find(page, "#curves-chart path[data-line=adamcb-paper]").get_attribute("d") or ""
    drawn = [float(pair.split()[1]) for pair in re.split("[ML]", path)[1:]]
    for epoch, y in enumerate(drawn):
        mean = bend(statistics.mean(values_of(sample, "adamcb-paper", epoch, "train_loss")))
        assert y == pytest.approx(bottom + (mean - low) / (high - low) * (top - bottom), abs=0.02)


def test_spread_is_a_band_each_seed_or_nothing(page: Chrome) -> None:
    bands = "#curves-chart .area"
    assert len(page.find_elements(By.CSS_SELECTOR, bands)) == len(NAMES)
    set_control(page, "spread", "seeds")
    assert len(page.find_elements(By.CSS_SELECTOR, "#curves-chart .line.quiet")) == len(NAMES) * SEEDS
    assert len(page.find_elements(By.CSS_SELECTOR, bands)) == 0
    set_control(page, "spread", "none")
    assert curve_names(page) == NAMES
    assert len(page.find_elements(By.CSS_SELECTOR, bands)) == 0


def test_dragging_opens_a_window_that_escape_closes(page: Chrome) -> None:
    plot = bring(page, find(page, "#curves-chart .plot"))
    hover(page, 0.45)
    ActionChains(page).click_and_hold().move_by_offset(round(plot.size["width"] * 0.35), 0).release().perform()
    assert texts(page, "#curves-chart .x-tick") == ["2", "3"]
    assert find(page, "#curves-chart .reset").is_displayed()
    plot.send_keys(Keys.ESCAPE)
    assert texts(page, "#curves-chart .x-tick")[0] == "0"
    plot.send_keys(Keys.END, "+")
    assert texts(page, "#curves-chart .x-tick") == ["2", "3", "4"]
    find(page, "#curves-chart .reset").click()
    assert texts(page, "#curves-chart .x-tick")[0] == "0"


def test_numbers_of_the_chart_are_there_as_a_table(page: Chrome) -> None:
    bring(page, find(page, "#curves summary")).click()
    assert texts(page, "#curves-numbers thead th") == ["Epoch", *NAMES]
    assert texts(page, "#curves-numbers tbody th") == [str(epoch) for epoch in range(EPOCHS + 1)]
    last = texts(page, "#curves-numbers tbody tr:last-child td")
    hover(page, 1.0)
    rows = tip_rows(page)
    assert last == [rows[name] for name in NAMES]


def test_table_sorts_both_ways(page: Chrome, sample: Path) -> None:
    losses = {name: statistics.mean(values_of(sample, name, EPOCHS, "test_loss")) for name in NAMES}
    header = next(th for th in page.find_elements(By.CSS_SELECTOR, ".sortable th") if "test loss" in th.text)
    for direction, reverse in (("ascending", False), ("descending", True)):
        bring(page, header.find_element(By.TAG_NAME, "button")).click()
        assert header.get_attribute("aria-sort") == direction
        assert texts(page, ".sortable tbody th") == sorted(NAMES, key=losses.__getitem__, reverse=reverse)


def test_selection_shows_readings_and_probabilities(page: Chrome, sample: Path) -> None:
    with (sample / "selection.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["epoch"] == str(EPOCHS)]
    assert len(page.find_elements(By.CSS_SELECTOR, "#selection-fans figure")) == len(NAMES) - 1
    assert "every probability 1: adam." in find(page, "#selection-uniform").text
    hover(page, 1.0, "#selection-fans figure:last-child")
    shown = tip_rows(page, "#selection-fans figure:last-child")
    for key, label in (("prob_max", "largest"), ("prob_q50", "median"), ("prob_min", "smallest")):
        assert agrees(shown[label], statistics.mean(float(row[key]) for row in rows if row["method"] == NAMES[-1]))
    hover(page, 1.0, "#selection-readings figure:first-child")
    moments = tip_rows(page, "#selection-readings figure:first-child")
    assert set(moments) == set(NAMES[1:])
    mean = statistics.mean(float(row["second_moment"]) for row in rows if row["method"] == NAMES[-1])
    found = re.search(r"^([\d.]+) ± .*variance reduction (−?[\d.]+) %$", moments[NAMES[-1]])
    assert found
    assert agrees(found[1], mean)
    assert agrees(found[2].replace("−", "-"), 100 * (1 - mean))


def test_gallery_shows_the_run_that_is_asked_for(page: Chrome, sample: Path) -> None:
    def choose(name: str, text: str) -> None:
        box = bring(page, find(page, f"#gallery-controls [name={name}]"))
        next(option for option in box.find_elements(By.TAG_NAME, "option") if option.text == text).click()

    def shown(part: str) -> list[WebElement]:
        return page.find_elements(By.CSS_SELECTOR, f".gallery:not([hidden]) .picture:not([hidden]) {part}")

    choose("method", "adamcb-paper")
    choose("seed", "1")
    with np.load(sample / "chosen" / "adamcb-paper-seed1.npz") as arrays:
        counts, wrong = arrays["count"], arrays["label"] != arrays["prediction"]
    assert [element.text for element in shown("b")] == [f"{count}×" for count in counts[:24]]
    assert all(page.execute_script("return arguments[0].naturalWidth", image) == 8 for image in shown("img"))
    bring(page, find(page, "#gallery-more")).click()
    assert len(shown("b")) == len(counts) == 48
    bring(page, find(page, "#gallery-controls [name=wrong]")).click()
    assert [element.text for element in shown("b")] == [f"{count}×" for count in counts[wrong]]


@pytest.mark.parametrize("width", [320, 360, 768, 1600])
def test_no_width_makes_the_page_scroll_sideways(page: Chrome, width: int) -> None:
    set_window(page, width)
    bring(page, find(page, "#curves summary")).click()
    hover(page, 0.9)
    overflow = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.execute_script(overflow) <= 0
    svg = find(page, "#curves-chart svg")
    assert 200 < svg.size["width"] <= width
    tip = find(page, "#curves-chart .tip").rect
    assert tip["x"] >= 0
    assert tip["x"] + tip["width"] <= width


def colors(page: Chrome) -> tuple[float, float]:
    """Return the relative luminance of the page's ground and of its text."""
    script = "const s = getComputedStyle(document.body); return [s.backgroundColor, s.color]"
    return tuple(_luminance(color) for color in page.execute_script(script))  # pyright: ignore[reportReturnType]


def _luminance(color: str) -> float:
    channels = np.array([int(part) for part in re.findall(r"\d+", color)[:3]]) / 255
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def test_theme_follows_the_system_and_the_button(page: Chrome) -> None:
    ground, ink = colors(page)
    assert (ground + 0.05) / (ink + 0.05) > 7.0
    prefer(page, "dark")
    ground, ink = colors(page)
    assert (ink + 0.05) / (ground + 0.05) > 7.0
    button = find(page, "#theme")
    assert button.get_attribute("aria-pressed") == "true"
    button.click()
    assert colors(page)[0] > 0.8
    page.refresh()
    assert colors(page)[0] > 0.8
    find(page, "#theme").click()
    prefer(page, "light")
    assert colors(page)[0] < 0.05


def test_everything_can_be_reached_by_keyboard_and_has_a_name(page: Chrome) -> None:
    controls = page.find_elements(By.CSS_SELECTOR, "button, input, select, [tabindex], a, summary, fieldset, form")
    visible = [control for control in controls if control.is_displayed()]
    assert len(visible) > 30
    assert [c.get_attribute("outerHTML") for c in visible if not c.accessible_name and c.tag_name != "summary"] == []
    page.execute_script("document.querySelector('#curves .chip').focus()")
    page.switch_to.active_element.send_keys(Keys.SPACE)
    assert curve_names(page) == NAMES[1:]
    page.execute_script("document.querySelector('[name=measure]').focus()")
    page.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
    assert texts(page, "#curves-chart .y-label") == ["Training accuracy"]
