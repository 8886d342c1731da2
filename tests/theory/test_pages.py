"""The theory pages name their evidence: every test they mention exists, and rows say what the first lines say."""

import csv
import re
from collections import defaultdict
from pathlib import Path
from statistics import mean

import pytest

ROOT = Path(__file__).parent.parent.parent
PAGES = ["theory.md", "paper.md", "theory/proofs.md", "theory/measured.md"]


@pytest.mark.parametrize("page", PAGES)
def test_every_test_that_a_page_names_exists(page):
    source = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "tests").rglob("test_*.py"))
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    for name in re.findall(r"\b(test_\w+)\b(?!\.py)", text):
        assert f"def {name}(" in source, name


def test_regret_was_the_same_within_ten_percent_and_up_to_18_percent_worse_with_replacement():
    regret = defaultdict(list)
    for file in (ROOT / "docs" / "theory").glob("*-[TKn]*.csv"):
        with file.open(newline="", encoding="utf-8") as lines:
            for row in csv.DictReader(lines):
                setting = (file.stem, row["sweep"], row["steps"], row["batch_size"], row["num_samples"])
                regret[setting, row["method"]].append(float(row["cumulative"]))
    ratios = defaultdict(list)
    for (setting, method), values in regret.items():
        if (setting, "uniform") in regret:
            ratios[method].append(mean(values) / mean(regret[setting, "uniform"]))
    distinct = [ratio for method in ratios if method != "adambs" for ratio in ratios[method]]
    assert len(distinct) > 80
    assert 0.89 < min(distinct) < 0.9
    assert max(distinct) < 1.1
    assert 1.17 < max(ratios["adambs"]) < 1.18
