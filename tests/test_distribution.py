"""The packages that are handed out: built, checked, installed where nothing else is, and trained with.

The environment is empty but for what the package says it needs. To fetch torch a second time would take minutes, so
the distributions that are installed here are linked into it: those of the requirements, and of all that these require.
pip installs without an index. So what is not declared is not there, and what is declared must fit.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

HOME = Path(__file__).parent.parent
CORE = ("torch", "numpy", "numba")
TRAIN = """
import importlib.util, sys
import torch
from torch.nn import functional as F
import adamcb
assert adamcb.__file__.startswith(sys.prefix), adamcb.__file__
assert importlib.util.find_spec("matplotlib") is None
torch.manual_seed(0)
torch.set_num_threads(1)
x = torch.randn(256, 4)
data = torch.utils.data.TensorDataset(x, (x.sum(1) > 0).long())
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.Adam(model.parameters(), 0.05)
loader = adamcb.AdaptiveLoader(model, data, batch_size=16)
losses = []
for epoch in range(3):
    for x, y in loader:
        optimizer.zero_grad()
        loss = loader.weigh(F.cross_entropy(model(x), y, reduction="none"))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
assert sum(losses[-8:]) < 0.7 * sum(losses[:8]), losses
print(adamcb.__version__)
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def run(*command: object, cwd: Path, code: int = 0) -> str:
    """Run a command that sees nothing of this checkout, and return what it printed."""
    hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and with the wheel that was built from it."""
    for tool in ("build", "hatchling"):
        pytest.importorskip(tool)
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, HOME, cwd=out)
    return out


def described(built: Path) -> metadata.Distribution:
    """What the wheel says of itself."""
    wheel = zipfile.Path(next(built.glob("*.whl")))
    return metadata.PathDistribution(next(entry for entry in wheel.iterdir() if entry.name.endswith(".dist-info")))  # pyright: ignore[reportArgumentType]


def required(*roots: str) -> Iterator[metadata.Distribution]:
    """The distributions of some names and of all that they require, as they are installed here."""
    waiting, seen = list(roots), set()
    while waiting:
        name = waiting.pop().lower().replace("_", "-")
        if name in seen:
            continue
        seen.add(name)
        found = metadata.distribution(name)
        yield found
        needs = [Requirement(text) for text in found.requires or ()]
        waiting += [need.name for need in needs if need.marker is None or need.marker.evaluate({"extra": ""})]


def make_environment(place: Path, *roots: str) -> Path:
    """Make an environment that holds these distributions and what they require, and return its interpreter."""
    venv.create(place)
    site = next(place.glob("lib/python*/site-packages"))
    for found in required(*roots):
        for top in {Path(str(file)).parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            if not (site / top).exists():  # some share a folder
                (site / top).symlink_to(Path(str(found.locate_file(top))))
    return place / "bin" / "python"


def install(python: Path, package: Path, *options: str, extra: str = "") -> None:
    pip = (sys.executable, "-m", "pip", "--python", python)  # this one's: even pip is not in there
    run(*pip, "install", "--no-index", *options, f"{package}{extra}", cwd=package.parent)


def test_wheel_holds_all_of_the_package_and_the_sdist_what_builds_and_tests_it(built: Path) -> None:
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        packed = {name for name in wheel.namelist() if name.startswith("adamcb/")}
    source = {
        path.relative_to(HOME / "src").as_posix()
        for path in (HOME / "src" / "adamcb").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert packed == source
    with tarfile.open(next(built.glob("*.tar.gz"))) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert {"pyproject.toml", "LICENSE", "README.md", "CHANGELOG.md", "tests/test_distribution.py"} < names


def test_index_would_take_both(built: Path) -> None:
    pytest.importorskip("twine")
    said = run(sys.executable, "-m", "twine", "check", "--strict", *built.iterdir(), cwd=built)
    assert said.count("PASSED") == 2


@pytest.mark.parametrize(("pattern", "tools"), [("*.whl", ()), ("*.tar.gz", ("hatchling",))])
def test_package_trains_where_nothing_else_is_installed(
    built: Path, tmp_path: Path, pattern: str, tools: tuple[str, ...]
) -> None:
    python = make_environment(tmp_path / "env", *CORE, *tools)
    install(python, next(built.glob(pattern)), *(["--no-build-isolation"] if tools else []))
    assert described(built).version in run(python, "-c", TRAIN, cwd=tmp_path).splitlines()
    said = run(tmp_path / "env" / "bin" / "adamcb", "compare", cwd=tmp_path, code=1)
    assert "pip install '.[lab]' in a clone" in said


def test_extra_brings_all_that_a_comparison_needs(built: Path, tmp_path: Path) -> None:
    needs = [Requirement(text) for text in described(built).requires or ()]
    names = [need.name for need in needs if need.marker and need.marker.evaluate({"extra": "lab"})]
    assert "matplotlib" in names
    python = make_environment(tmp_path / "env", *CORE, *names)
    install(python, next(built.glob("*.whl")), extra="[lab]")
    small = ("--model", "logistic", "--method", "adam", "--method", "adamcb", "--seeds", 1, "--steps", 5, "--jobs", 1)
    said = run(tmp_path / "env" / "bin" / "adamcb", "compare", *small, "--log", "csv", "--out", "out", cwd=tmp_path)
    assert "report: out/report.html" in said
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"report.html", "results.csv", "log.csv", "run.toml", "epochs.png"} <= written
