"""What the documents say is so: their links lead somewhere, and their Python runs."""

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*.md")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8")):
        if not target.startswith(("http://", "https://")):
            assert (page.parent / target).exists(), target


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled, unavailable or uninitialized:UserWarning")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_in_documents_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}  # one for the page: what a block defines, the next may use
    exec(SETTING, names)
    for block in python_blocks(page.read_text(encoding="utf-8")):
        exec(compile(block, str(page), "exec"), names)


def python_blocks(text: str) -> list[str]:
    """Return the Python of a document. Of a `diff`: what is left after the change, in a loop with its imports."""
    found = re.findall(r"```(python|diff)\n(.*?)```", text, flags=re.DOTALL)
    return [block if kind == "python" else f"import torch.nn.functional as F\n{after(block)}" for kind, block in found]


def after(diff: str) -> str:
    return "".join(line[1:] for line in diff.splitlines(keepends=True) if not line.startswith("-"))


def test_badges_say_what_pyproject_says():
    badges = runpy.run_path(str(ROOT / "docs" / "badges.py"))
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for name, value in badges["facts"]().items():
        shown = (ROOT / "docs" / "assets" / f"{name}.svg").read_text(encoding="utf-8")
        assert shown == badges["badge"](name, value)
        assert f" {value}](docs/assets/{name}.svg)" in readme


def test_the_version_has_a_section_in_the_changelog_and_a_release_note():
    version = runpy.run_path(str(ROOT / "docs" / "badges.py"))["facts"]()["version"]
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.findall(r"^## (.*)$", changelog, flags=re.MULTILINE)
    assert versions[:2] == ["Unreleased", version]
    assert (ROOT / "docs" / "releases" / f"{version.rpartition('.')[0]}.md").exists()


def test_a_diff_changes_as_many_lines_as_the_readme_says():
    [diff] = re.findall(r"```diff\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    removed = [line for line in diff.splitlines() if line.startswith("-")]
    added = [line for line in diff.splitlines() if line.startswith("+") and not line.startswith("+import")]
    assert len(removed) == len(added) == 2


# What the examples take for granted: a model, a dataset, a batch, an optimizer.
SETTING = """
import torch
from torch import nn
model = nn.Sequential(nn.Flatten(), nn.Linear(16, 10))
train_set = torch.utils.data.TensorDataset(torch.rand(300, 1, 4, 4), torch.arange(300) % 10)
x, y, weights = *train_set[:8], torch.ones(8)
optimizer = torch.optim.Adam(model.parameters())
del torch, nn
"""


def test_named_tests_exist():
    page = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
    for file, test in re.findall(r"`(test_\w+\.py)::(test_\w+)`", page):
        source = (ROOT / "tests" / "selection" / file).read_text(encoding="utf-8")
        assert f"def {test}(" in source, test
