"""The report: one self-contained web page from a result folder.

`write_report` is the door. The page opens from disk, asks nothing of any network and needs no library: template, style
and scripts lie in `page/` and are put into the one file. `config.json` and `results.csv` must be there. Without
`summary.csv` the table is made from the results; without `selection.csv` or `chosen/` their sections are left out.
"""

from __future__ import annotations

import os
from pathlib import Path

from adamcb.lab.output.report._page import render
from adamcb.lab.output.report._read import read_folder
from adamcb.lab.results.files import write_text

__all__ = ["write_report"]


def write_report(folder: str | os.PathLike[str]) -> Path:
    """Write `report.html` into a result folder and return its path.

    An older page stays whole if writing fails.

    Args:
        folder: where `config.json` and `results.csv` are.

    Raises:
        FileNotFoundError: one of these two is missing.
        ValueError: a file does not hold what it should; the message names the file and the place in it.
    """
    folder = Path(folder)
    page = render(read_folder(folder))
    write_text(folder / "report.html", page)
    return folder / "report.html"
