"""The report's page in a browser: finding things on it, pointing at them, reading values off."""

from __future__ import annotations

import csv
import re
import statistics
from pathlib import Path

from selenium.webdriver import ActionChains, Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

from tests.lab.browser import prefer, set_window
from tests.lab.report_folder import METHODS


def open_page(browser: Chrome, path: Path) -> None:
    set_window(browser, 1280)
    prefer(browser, "light")
    browser.get(path.as_uri())
    browser.execute_script("localStorage.clear()")
    browser.get(path.as_uri())


def find(page: Chrome, selector: str) -> WebElement:
    return page.find_element(By.CSS_SELECTOR, selector)


def texts(page: Chrome, selector: str) -> list[str]:
    return [element.text for element in page.find_elements(By.CSS_SELECTOR, selector)]


def set_control(page: Chrome, name: str, value: str) -> None:
    bring(page, find(page, f"#curve-controls [name={name}][value={value}]")).click()


def bring(page: Chrome, element: WebElement) -> WebElement:
    page.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", element)
    return element


def chip(page: Chrome, name: str) -> WebElement:
    buttons = page.find_elements(By.CSS_SELECTOR, "#curves .chip")
    return bring(page, next(button for button in buttons if button.text == name))


def curve_names(page: Chrome) -> list[str]:
    lines = page.find_elements(By.CSS_SELECTOR, "#curves-chart path[data-line]")
    return [str(line.get_attribute("data-line")) for line in lines]


def tip_rows(page: Chrome, chart: str = "#curves-chart") -> dict[str, str]:
    rows = page.find_elements(By.CSS_SELECTOR, f"{chart} .tip tr")
    return {row.find_element(By.TAG_NAME, "th").text: row.find_elements(By.TAG_NAME, "td")[-1].text for row in rows}


def hover(page: Chrome, share: float, chart: str = "#curves-chart") -> None:
    """Point at this share of the plot's width, between the ends of its axis."""
    plot = bring(page, find(page, f"{chart} .plot"))
    left, width = 62, plot.size["width"] - 62 - 14
    offset = left + share * width - plot.size["width"] / 2
    ActionChains(page).move_to_element_with_offset(plot, round(offset), 10).perform()


def values_of(sample: Path, method: str, epoch: int, name: str) -> list[float]:
    with (sample / "results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    return [float(row[name]) for row in rows if row["method"] == method and row["epoch"] == str(epoch)]


def agrees(shown: str, value: float) -> bool:
    """Whether a printed number is the value rounded to its own digits."""
    decimals = len(shown.partition(".")[2])
    return abs(float(shown) - value) <= 0.5000001 * 10**-decimals


def check_tip(page: Chrome, sample: Path, epoch: int, name: str, scale: float = 1.0) -> None:
    """Check that the values under the pointer are those of results.csv, for every method."""
    rows = tip_rows(page)
    assert set(rows) == set(METHODS)
    for method, text in rows.items():
        mean, deviation = re.findall(r"[\d.]+", text)[:2]
        values = [scale * value for value in values_of(sample, method, epoch, name)]
        assert agrees(mean, statistics.mean(values))
        assert agrees(deviation, statistics.stdev(values))
