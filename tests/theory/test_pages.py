"""The theory pages name their evidence: every test they mention exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PAGES = ["theory.md", "paper.md", "theory/proofs.md", "theory/measured.md"]


@pytest.mark.parametrize("page", PAGES)
def test_every_test_that_a_page_names_exists(page):
    source = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "tests").rglob("test_*.py"))
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    for name in re.findall(r"\b(test_\w+)\b(?!\.py)", text):
        assert f"def {name}(" in source, name
