"""An extension of Griffe: docstrings are written to be read in an editor, and shown as a page needs them."""

import re
from pathlib import Path
from typing import Any

import griffe

PARAGRAPH_THEN_FORMULA = re.compile(r"^((?![-*>]|\d+\.)\S.*[^:\n])\n(?= {4}\S)", flags=re.MULTILINE)
DOCUMENT = re.compile(r"docs/([\w/-]+\.md)")


class Docstrings(griffe.Extension):
    """Rewrites a docstring before it is parsed."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Hear of every object with its docstring."""
        if obj.docstring:
            obj.docstring.value = for_a_page(obj.docstring.value)


def for_a_page(text: str) -> str:
    """Return a docstring whose examples and formulas are code, and whose documents are links from docs/reference/."""
    text = text.replace("\nExample:\n", "\nExamples:\n")
    text = PARAGRAPH_THEN_FORMULA.sub(r"\1\n\n", text)
    return DOCUMENT.sub(link_to, text)


def link_to(document: re.Match[str]) -> str:
    """Return a link in the words of the document's first heading."""
    page = Path(__file__).parent / document[1]
    title = page.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ").partition(":")[0]
    return f'["{title}"](../{document[1]})'
