"""Runs as rows of one CSV file, a row for every evaluation: small enough to keep where the project is kept.

A result folder takes the runs that it lacks from the file, and gives those that the file lacks. So a comparison that
takes many hours goes on, on another machine too, from what is in the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from adamcb._files import folder_lock
from adamcb.lab.errors import LabError
from adamcb.lab.results.columns import Row
from adamcb.lab.results.files import read_csv, read_json, write_csv, write_json
from adamcb.lab.results.folder import RUNS, run_folder

# What is said of a run as a whole, in each of its rows.
_OF_RUN = ("num_draws", "num_chosen", "diverged")
_RUN = ("method", "seed")


class KeptRuns:
    """The runs of a file that were made with these settings. Runs with other settings may be in the same file.

    Args:
        path: The CSV file; it need not be there yet.
        settings: Names and values of columns that tell which runs belong together, such as `epochs`.

    Raises:
        LabError: From both methods, if the file is damaged or has other columns.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        self.path, self.settings = path, dict(settings)

    def give(self, folder: Path) -> None:
        """Write the runs that a result folder lacks, as if they had been made there."""
        for (method, seed), rows in self._runs(self._read()).items():
            place = run_folder(folder, method, seed) / "done.json"
            if not place.is_file():
                place.parent.mkdir(parents=True, exist_ok=True)
                own = {*_RUN, *_OF_RUN, *self.settings}
                results = [{name: value for name, value in row.items() if name not in own} for row in rows]
                write_json(place, {"results": results, "selection": [], **{name: rows[0][name] for name in _OF_RUN}})

    def take(self, folder: Path) -> None:
        """Add the complete runs of a result folder that the file lacks."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with folder_lock(self.path):
            rows = self._read()
            known, new = self._runs(rows), []
            for place in sorted(folder.glob(f"{RUNS}/*/done.json")):
                method, _, seed = place.parent.name.rpartition("-seed")
                if (method, int(seed)) not in known:
                    done = read_json(place)
                    run = {**self.settings, "method": method, "seed": int(seed)}
                    of_run = {name: done[name] for name in _OF_RUN}
                    new += [{**run, **row, **of_run} for row in done["results"]]
            if new:
                columns = dict.fromkeys(name for row in (*new, *rows) for name in row if name not in _OF_RUN)
                write_csv(self.path, [*columns, *_OF_RUN], [*rows, *new])

    def _read(self) -> list[Row]:
        rows = read_csv(self.path) if self.path.is_file() else []
        missing = [name for name in (*self.settings, *_RUN, *_OF_RUN) if rows and name not in rows[0]]
        if missing:
            raise LabError(f"{self.path} must have the columns {', '.join(missing)}, got {', '.join(rows[0])}.")
        return rows

    def _runs(self, rows: list[Row]) -> dict[tuple[str, int], list[Row]]:
        """Return the rows of each run that was made with these settings."""
        runs: dict[tuple[str, int], list[Row]] = {}
        for row in rows:
            if all(row[name] == value for name, value in self.settings.items()):
                runs.setdefault((row["method"], row["seed"]), []).append(row)
        return runs
