"""The site: it is complete, it builds without a warning, and browsers show it from disk; `make docs` runs notebooks."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.patience import patience

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "docs" / "learn").glob("*.ipynb"))
PAGES = (
    "index.html",
    "learn/rare-events.html",
    "guides/meter.html",
    "reference/training.html",
    "why.html",
    "evidence.html",
)


def load(name: str) -> ModuleType:
    """Import a script of docs/, which is no package."""
    spec = importlib.util.spec_from_file_location(f"site_{name}", ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    pytest.importorskip("mkdocs", reason="The site needs the extra `docs`.")
    return load("hooks")


def test_every_public_name_has_an_entry_in_the_reference(hooks):
    pytest.importorskip("lightning")
    pytest.importorskip("transformers")
    assert hooks.names_without_entry() == []


def test_a_public_name_without_an_entry_is_noticed(hooks, monkeypatch):
    pytest.importorskip("lightning")
    pytest.importorskip("transformers")
    monkeypatch.setattr("adamcb.__all__", ["AdamCB", "Path"], raising=True)
    monkeypatch.setattr("adamcb.Path", Path, raising=False)
    assert hooks.names_without_entry() == ["adamcb.Path"]


def test_the_reference_names_every_metric_that_ships():
    from adamcb.lab import Metric, metrics

    page = (ROOT / "docs" / "reference" / "lab.md").read_text(encoding="utf-8")
    shipped = {name for name, value in vars(metrics).items() if isinstance(value, Metric)}
    assert shipped == set(re.findall(r"^\| `(\w+)` \|", page, flags=re.MULTILINE))


def test_what_joins_frameworks_has_an_example():
    """The other public names: tests/test_examples.py."""
    for name in ("adamcb.integrations.lightning", "adamcb.integrations.transformers"):
        module = pytest.importorskip(name)
        for exported in module.__all__:
            assert "Example:\n" in (getattr(module, exported).__doc__ or ""), f"{name}.{exported}"


def test_links_to_files_of_the_repository_become_links_to_pages(hooks):
    assert hooks.uri_of(ROOT / "README.md") == "index.md"
    assert hooks.uri_of(ROOT / "docs" / "learn" / "own-loop.ipynb") == "learn/own-loop.md"
    assert hooks.uri_of(ROOT / "docs" / "why.md") == "why.md"
    assert hooks.uri_of(ROOT / "examples" / "ddp.py") == "examples/ddp.py"


def test_a_notebook_becomes_a_page_with_its_outputs_and_pictures(hooks, tmp_path):
    printed = {"output_type": "stream", "text": ["42\n"]}
    drawn = {"output_type": "display_data", "data": {"image/png": "aGk=", "text/plain": ["<Figure>"]}}
    cells = [
        {"cell_type": "markdown", "source": ["# Title"]},
        {"cell_type": "code", "source": ["print(6 * 7)"], "outputs": [printed, drawn]},
    ]
    file = tmp_path / "short.ipynb"
    file.write_text(json.dumps({"cells": cells}), encoding="utf-8")
    text, pictures = hooks.to_markdown(file)
    assert "# Title\n\n```python\nprint(6 * 7)\n```\n\n```{ .text .output }\n42\n```" in text
    assert "(short-1.png)" in text
    assert pictures == {"short-1.png": b"hi"}


def test_a_list_right_after_a_paragraph_is_a_list_on_the_site_too(hooks):
    assert hooks.lists_apart("Two:\n- one\n- two\n") == "Two:\n\n- one\n- two\n"
    for left_alone in ("- one\n  more\n- two\n", "```diff\n-old\n x\nx\n- y\n```\n", "a −\n2. b\n"):
        assert hooks.lists_apart(left_alone) == left_alone


def test_documents_read_the_same_on_the_site_and_on_a_code_host(hooks):
    """A star in a formula, or a list that goes on after its own formula, is read in two ways."""
    markdown, commonmark = pytest.importorskip("markdown"), pytest.importorskip("markdown_it")
    extensions = ["attr_list", "tables", "sane_lists", "pymdownx.superfences", "pymdownx.inlinehilite"]
    host = commonmark.MarkdownIt("commonmark").enable("table")
    for page in [*(ROOT / "docs").glob("**/*.md"), *(ROOT / source for source in hooks.OUTSIDE)]:
        text = page.read_text(encoding="utf-8")
        site = markdown.markdown(hooks.lists_apart(text), extensions=extensions)
        assert marks(site) == marks(host.render(text)), page


def marks(html: str) -> list[str]:
    """Return what is emphasized and listed, in its order."""
    return re.findall(r"<(?:em|strong|li|ol start=\"\d+\")>|<[uo]l>", html)


def test_formulas_and_documents_in_docstrings_become_code_and_links():
    pytest.importorskip("griffe", reason="The site needs the extra `docs`.")
    for_a_page = load("docstrings").for_a_page
    assert for_a_page("Step t does\n    m = g\n    v = g²\n\nMore.") == "Step t does\n\n    m = g\n    v = g²\n\nMore."
    assert for_a_page("One.\n\nArgs:\n    x: Two\n        lines.") == "One.\n\nArgs:\n    x: Two\n        lines."
    assert for_a_page("- one\n    more") == "- one\n    more"
    assert for_a_page("See docs/queue.md.") == 'See ["The queue"](../queue.md).'


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_have_outputs_and_no_traces_of_a_machine(path):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", ())]
    assert outputs
    assert not [output for output in outputs if output["output_type"] == "error" or output.get("name") == "stderr"]
    words = json.dumps(
        [
            {key: output.get(key) for key in ("text", "data")}
            for output in outputs
            if "image/png" not in output.get("data", {})
        ]
    )
    assert not re.search(r"/(home|root|tmp|usr|work)/", words)


@pytest.fixture(scope="module")
def site() -> Iterator[Path]:
    """The site, built as `make docs` builds it."""
    pytest.importorskip("mkdocs", reason="The site needs the extra `docs`.")
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder]
        settings = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
        run = subprocess.run(command, cwd=ROOT, env=settings, capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stderr
        yield Path(folder)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from tests.lab.browser import open_browser

    with open_browser(tmp_path_factory.mktemp("profile")) as chrome:
        yield chrome


@pytest.mark.slow
def test_nothing_is_fetched_from_elsewhere(site):
    for page in site.rglob("*.html"):
        fetched = re.findall(
            r"<(?:script|link|img|iframe)[^>]*(?:src|href)=\"?(https?:[^\" >]*)", page.read_text(encoding="utf-8")
        )
        assert not fetched, page


@pytest.mark.slow
@pytest.mark.parametrize(("width", "theme"), [(1400, "light"), (1400, "dark"), (390, "light"), (390, "dark")])
def test_pages_fit_the_window_in_both_themes(site, browser, width, theme):
    """Every page, large in the light and small in the dark; some of them the other way round, too."""
    from tests.lab.browser import prefer, set_window

    set_window(browser, width)
    prefer(browser, theme)
    every = [page.relative_to(site).as_posix() for page in sorted(site.rglob("*.html")) if page.name != "404.html"]
    assert set(PAGES) < set(every)
    for page in every if (width, theme) in ((1400, "light"), (390, "dark")) else PAGES:
        browser.get(f"{(site / page).as_uri()}")
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width, page
        scheme = browser.execute_script("return document.body.getAttribute('data-md-color-scheme')")
        assert scheme == {"light": "default", "dark": "slate"}[theme], page
        broken = "return [...document.images].filter(i => i.complete && !i.naturalWidth).map(i => i.src)"
        assert browser.execute_script(broken) == [], page
        without_words = "return [...document.images].filter(i => !i.alt).map(i => i.src)"
        assert browser.execute_script(without_words) == [], page
        assert browser.get_log("browser") == [], page


@pytest.mark.slow
def test_examples_are_in_the_navigation(site):
    """A page called README would be taken for the index of its section, and leave the list."""
    shown = (site / "learn" / "quickstart.html").read_text(encoding="utf-8")
    entries = re.findall(r"md-ellipsis\W*>\s*(.*?)\s*<", shown)
    assert {"Quickstart", "Several processes", "Examples"} <= set(entries)


@pytest.mark.slow
def test_search_works_from_disk(site, browser):
    from selenium.webdriver.support.ui import WebDriverWait

    from tests.lab.browser import set_window

    set_window(browser, 1400)
    browser.get((site / "guides" / "faq.html").as_uri())
    box = browser.find_element("css selector", "input.md-search__input")
    box.send_keys("AdaptiveLoader")
    found = lambda chrome: chrome.find_elements("css selector", ".md-search-result__item a")  # noqa: E731
    links = WebDriverWait(browser, patience(60.0)).until(found)
    assert any("reference/training.html" in (link.get_attribute("href") or "") for link in links)
