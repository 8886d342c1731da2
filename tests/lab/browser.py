"""A real headless Chromium for tests: Debian's packages, installed when missing, driven through Selenium."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service

PACKAGES = ("chromium", "chromium-driver")
ARGUMENTS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)


def find_chromium() -> tuple[str, str]:
    """Return the paths of browser and driver, installing them if need be; skip the test where they cannot be had."""
    if _paths() is None:
        _install()
    paths = _paths()
    if paths is None:
        pytest.skip(f"The report is tested in Chromium, and {' and '.join(PACKAGES)} could not be installed.")
    return paths


def _paths() -> tuple[str, str] | None:
    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    return (browser, driver) if browser and driver else None


def _install() -> None:
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        return
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update"], ["install", "-y", "--no-install-recommends", *PACKAGES]):
        try:
            wait = ["-o", "DPkg::Lock::Timeout=200"]  # another test process may be installing the same
            apt = ["apt-get", "-q", *wait, *command]
            subprocess.run(apt, env=environment, capture_output=True, timeout=240, check=False)
        except subprocess.TimeoutExpired:
            return


@contextmanager
def open_browser(profile: Path) -> Iterator[Chrome]:
    """Start a browser with an empty profile, whose console can be read; Selenium is told not to fetch anything."""
    browser, driver = find_chromium()
    options = ChromeOptions()
    options.binary_location = browser
    for argument in (*ARGUMENTS, f"--user-data-dir={profile}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SE_OFFLINE", "true")
        chrome = Chrome(options=options, service=Service(driver))
    try:
        yield chrome
    finally:
        chrome.quit()


def set_window(chrome: Chrome, width: int, height: int = 900) -> None:
    """Give the page a viewport of this size; a window cannot be made as narrow as a phone."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    _wait_for_frames(chrome)


def prefer(chrome: Chrome, scheme: str) -> None:
    """Make the system's preference "light" or "dark"."""
    feature = {"name": "prefers-color-scheme", "value": scheme}
    chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    _wait_for_frames(chrome)


def _wait_for_frames(chrome: Chrome) -> None:
    """Wait until the page was told of a change, which happens with the next frame, and has drawn what follows."""
    chrome.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
