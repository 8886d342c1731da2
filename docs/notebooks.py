"""Run the notebooks of the site. `--write` keeps what they print and draw; without it an error is all that shows.

python docs/notebooks.py [--write] [NAME.ipynb ...]
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parent / "learn"
# Numbers of one thread are the same everywhere, and two notebooks leave each other room.
SETTINGS = {
    "OMP_NUM_THREADS": "1",
    "MPLBACKEND": "module://matplotlib_inline.backend_inline",
    "PYTHONWARNINGS": "ignore:IProgress not found",  # tqdm's, which would like a notebook with widgets
}


def run(path: Path, *, write: bool = False) -> float:
    """Run a notebook in an empty folder and return the seconds it took; an error of a cell is raised."""
    notebook = nbformat.read(path, as_version=4)
    os.environ.update(SETTINGS)
    start = time.perf_counter()
    options = {"timeout": 300, "kernel_name": "python3", "extra_arguments": ["--IPKernelApp.log_level=40"]}
    with tempfile.TemporaryDirectory() as folder:
        place = {"metadata": {"path": folder}}
        NotebookClient(notebook, resources=place, **options).execute()
    if write:
        for cell in notebook.cells:
            cell.metadata.pop("execution", None)  # when it ran
        notebook.metadata = {"kernelspec": notebook.metadata["kernelspec"], "language_info": {"name": "python"}}
        nbformat.write(notebook, path)
    return time.perf_counter() - start


def main() -> None:
    """Run all notebooks, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write the outputs into the notebooks")
    parser.add_argument("notebooks", nargs="*", type=Path, help="default: all of docs/learn")
    options = parser.parse_args()
    for path in options.notebooks or sorted(FOLDER.glob("*.ipynb")):
        print(f"{path.name}: {run(path, write=options.write):.1f} s", flush=True)


if __name__ == "__main__":
    main()
