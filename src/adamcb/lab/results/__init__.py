"""Results: rows and their columns, the files of a result folder, and what the rows say in sum."""

from adamcb.lab.results.columns import Measure, Row, measures_of, result_columns
from adamcb.lab.results.files import (
    append_csv,
    check_csv,
    read_arrays,
    read_csv,
    read_json,
    write_arrays,
    write_csv,
    write_json,
    write_text,
)
from adamcb.lab.results.folder import RUNS, Gathered, ResultFolder, copy_results, run_folder

__all__ = [
    "RUNS",
    "Gathered",
    "Measure",
    "ResultFolder",
    "Row",
    "append_csv",
    "check_csv",
    "copy_results",
    "measures_of",
    "read_arrays",
    "read_csv",
    "read_json",
    "result_columns",
    "run_folder",
    "write_arrays",
    "write_csv",
    "write_json",
    "write_text",
]
