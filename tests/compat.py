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
    """Return "name==version.*" for each "name>=version", with the marker behind it if there is one.

    Example:
        >>> oldest(["torch>=2.6", "rich>=13", "tomli>=2.0; python_version < '3.11'"])
        ['rich==13.0.*', "tomli==2.0.*; python_version < '3.11'", 'torch==2.6.*']
    """
    found = {re.fullmatch(r"([\w-]+)>=([\d.]+)(;.*)?", entry) for entry in requirements}
    parts = [match.groups(default="") for match in found if match]
    return sorted(
        f"{name}=={version if '.' in version else f'{version}.0'}.*{marker}" for name, version, marker in parts
    )


if __name__ == "__main__" and sys.argv[1] == "oldest":  # the newest versions have no constraints
    print("\n".join(oldest(declared((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8")))))
