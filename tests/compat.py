"""The oldest versions that pyproject.toml declares, as constraints of pip: `python -m tests.compat oldest`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

# What users install; the tools that we work with may be new.
EXTRAS = ("lab", "lightning", "transformers", "accelerate", "torchdata")


def declared(text: str) -> list[str]:
    """Return the requirements of the package and of `EXTRAS`, as they stand in pyproject.toml.

    Read without a parser of TOML: Python 3.10 has none.
    """
    lists = [re.search(r"^dependencies = \[(.*?)\]$", text, re.M | re.S)]
    lists += [re.search(rf"^{extra} = \[(.*?)\]$", text, re.M | re.S) for extra in EXTRAS]
    return [requirement for found in lists if found for requirement in re.findall(r'"([^"]+)"', found[1])]


def oldest(requirements: list[str]) -> list[str]:
    """Return "name==version.*" for each "name>=version".

    Example:
        >>> oldest(["torch>=2.6", "rich>=13"])
        ['rich==13.0.*', 'torch==2.6.*']
    """
    pairs = {tuple(entry.split(">=")) for entry in requirements}
    return sorted(f"{name}=={version if '.' in version else f'{version}.0'}.*" for name, version in pairs)


if __name__ == "__main__" and sys.argv[1] == "oldest":  # the newest versions have no constraints
    print("\n".join(oldest(declared((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8")))))
