"""Results: rows and their columns, the files of a result folder, and what the rows say in sum."""

from adamcb.lab.results.columns import Measure, Row, measures_of, result_columns
from adamcb.lab.results.files import read_csv, read_json, whole_file, write_csv, write_json, write_text
from adamcb.lab.results.folder import RUNS, Gathered, ResultFolder, run_folder

__all__ = [
    "RUNS",
    "Gathered",
    "Measure",
    "ResultFolder",
    "Row",
    "measures_of",
    "read_csv",
    "read_json",
    "result_columns",
    "run_folder",
    "whole_file",
    "write_csv",
    "write_json",
    "write_text",
]
