"""Draw the badges of the README from what pyproject.toml says: `python docs/badges.py`.

They are files of this repository, so they need no service, and a test compares them with pyproject.toml.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "assets"
WIDTH = 7  # of a letter

SVG = """<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="20" role="img" aria-label="{left}: {right}">
<rect width="{width}" height="20" rx="3" fill="#555"/><rect x="{cut}" width="{rest}" height="20" rx="3" fill="#007a5a"/>
<g fill="#fff" text-anchor="middle" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">
<text x="{left_x}" y="14">{left}</text><text x="{right_x}" y="14">{right}</text>
</g></svg>
"""


def facts() -> dict[str, str]:
    """Return what the badges say, by name."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")

    def found(pattern: str) -> str:
        match = re.search(pattern, text, flags=re.MULTILINE)
        if match is None:
            raise ValueError(f"pyproject.toml must have a line {pattern}, got none.")
        return match.group(1)

    return {
        "version": found(r'^version = "(.+)"'),
        "python": found(r'^requires-python = ">=(.+)"') + " or later",
        "torch": found(r'"torch>=([\d.]+)"') + " or later",
        "license": found(r'^license = "(.+)"'),
    }


def badge(left: str, right: str) -> str:
    """Return a badge of two words."""
    cut, rest = WIDTH * len(left) + 10, WIDTH * len(right) + 10
    return SVG.format(
        left=left, right=right, width=cut + rest, cut=cut, rest=rest, left_x=cut / 2, right_x=cut + rest / 2
    )


def main() -> None:
    """Write all badges."""
    for name, value in facts().items():
        (FOLDER / f"{name}.svg").write_text(badge(name, value), encoding="utf-8")


if __name__ == "__main__":
    main()
