"""The house as a whole: its public names, and which room may know which."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import adamcb

SOURCE = Path(adamcb.__file__).parent
HOME = Path(__file__).parent.parent
# Modules that are open to all rooms.
SHARED = ("_checks", "_files", "_jit", "_seeds", "_torch_compat", "_warn")
# Private attributes that benchmarks read: they measure memory and time of what has no public name.
MEASURED = {
    "benchmarks/large.py": {"_axis", "_drawn"},  # brings a selection to the end of its epoch
    "benchmarks/queue_bandit.py": {"_axis"},  # counts the bytes of its arrays
    "benchmarks/selection.py": {"_order", "_position_of", "_start_epoch", "_tree"},  # likewise, and times one new epoch
}
# What each room may import of the others.
MAY_KNOW = {
    "selection": set(),
    "gradnorm": set(),
    "optim": set(),
    "data": {"selection"},
    "training": {"data", "selection", "gradnorm", "optim"},
    "theory": {"selection", "optim"},
    "integrations": {"training", "data", "selection", "gradnorm", "optim"},
    "lab": {"training", "data", "selection", "gradnorm", "optim", "theory", "integrations"},
}


def imports(file: Path) -> list[list[str]]:
    """Return what a file imports of adamcb, as lists of names."""
    names = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return [name.split(".") for name in names if name.startswith("adamcb.")]


def imported_rooms(file: Path) -> set[str]:
    return {parts[1] for parts in imports(file) if (SOURCE / parts[1]).is_dir()}


def private_names_of_others(file: Path, room: str | None) -> list[str]:
    return [
        ".".join(parts)
        for parts in imports(file)
        if parts[1] not in (room, *SHARED) and any(part.startswith("_") for part in parts[1:])
    ]


@pytest.mark.parametrize("room", sorted(room.name for room in SOURCE.iterdir() if (room / "__init__.py").exists()))
def test_imports_go_one_way(room):
    for file in (SOURCE / room).rglob("*.py"):
        assert imported_rooms(file) <= MAY_KNOW[room] | {room}, file


def test_no_room_reads_a_private_name_of_another():
    for file in SOURCE.rglob("*.py"):
        room = file.relative_to(SOURCE).parts[0]
        if room != "__init__.py":
            assert not private_names_of_others(file, room), file
    for folder in ("benchmarks", "examples"):
        for file in (HOME / folder).glob("*.py"):
            assert not private_names_of_others(file, None), file


def room_of(file: Path) -> str:
    return file.relative_to(SOURCE).parts[0]


def private_attributes_defined(file: Path) -> set[str]:
    """Return the private names that a file gives to classes and objects: methods, and what is assigned."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef):
            for child in node.body:
                targets = child.targets if isinstance(child, ast.Assign) else [getattr(child, "target", None)]
                found |= {target.id for target in targets if isinstance(target, ast.Name)}
                found |= {child.name} if isinstance(child, ast.FunctionDef) else set()
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
    return {name for name in found if name.startswith("_") and not name.startswith("__")}


def private_attributes_read(file: Path) -> set[str]:
    """Return the private attributes that a file reads, but for those of modules and those that its classes make."""
    nodes = list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
    modules = [alias.asname or alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    attributes = [node for node in nodes if isinstance(node, ast.Attribute) and node.attr.startswith("_")]
    of_itself = ("self", "cls", "super()")
    made = private_attributes_defined(file)
    reads = {(ast.unparse(node.value), node.attr) for node in attributes}
    return {name for of, name in reads if of not in modules and not (of in of_itself and name in made)}


def test_no_room_reads_a_private_attribute_of_another():
    defined: dict[str, set[str]] = {}
    for file in SOURCE.rglob("*.py"):
        defined.setdefault(room_of(file), set()).update(private_attributes_defined(file))
    assert "_axis" in defined["selection"]
    assert "_waiting" in defined["training"]
    everywhere = set().union(*defined.values())
    for file in SOURCE.rglob("*.py"):
        assert not private_attributes_read(file) & everywhere - defined[room_of(file)], file
    for folder in ("benchmarks", "examples"):
        for file in (HOME / folder).glob("*.py"):
            own = private_attributes_defined(file) - everywhere
            assert private_attributes_read(file) & everywhere - own == MEASURED.get(f"{folder}/{file.name}", set()), (
                file
            )


@pytest.mark.parametrize("name", adamcb.__all__)
def test_every_public_name_is_documented(name):
    assert getattr(adamcb, name).__doc__
    page = HOME / "docs" / "api.md"
    assert f"`{name}" in page.read_text(encoding="utf-8")


def test_importing_adamcb_needs_the_core_dependencies_only():
    """And not torch's compiler, which takes longer to import than all the rest."""
    unwanted = [
        "sklearn",
        "matplotlib",
        "rich",
        "PIL",
        "pooch",
        "lightning",
        "transformers",
        "accelerate",
        "torch._dynamo",
        "adamcb.lab",
    ]
    code = (
        "import sys, adamcb; print('torch' in sys.modules, adamcb.AdamCB.__name__, 'torch' in sys.modules); "
        f"print([name for name in {unwanted} if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    # The command line is in charge before torch is there; every name comes when it is asked for.
    assert run.stdout.splitlines() == ["False AdamCB True", "[]"]


def test_every_name_comes_when_it_is_asked_for():
    assert {"AdamCB", "__version__", "selection", "paper"} <= set(dir(adamcb))
    assert adamcb.__all__ == sorted(adamcb._ROOMS)
    with pytest.raises(AttributeError, match="module 'adamcb' has no attribute 'nothing'"):
        _ = adamcb.nothing


@pytest.mark.parametrize("name", ["integrations", "lab", "paper", "selection", "theory"])
def test_every_module_comes_when_it_is_asked_for(name):
    code = f"import adamcb; print(adamcb.{name}.__name__)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == f"adamcb.{name}"


def calls(node: ast.AST) -> Iterator[str]:
    """What is called below `node`. A worker process is the loader's own, and so are its generators."""
    if isinstance(node, ast.FunctionDef) and node.name == "seed_worker":
        return
    if isinstance(node, ast.Call):
        yield ast.unparse(node.func)
    for child in ast.iter_child_nodes(node):
        yield from calls(child)


def test_library_code_does_not_print_or_seed():
    forbidden = {"print", "torch.seed", "np.random.seed", "random.seed"}
    forbidden |= {f"torch.{place}manual_seed" for place in ("", "random.", "cuda.", "accelerator.")}
    for file in SOURCE.rglob("*.py"):
        if "lab" not in file.relative_to(SOURCE).parts:
            assert not forbidden & set(calls(ast.parse(file.read_text(encoding="utf-8")))), file


@pytest.mark.parametrize("drawing", ["numpy.random.rand()", "torch.rand(1)"])
def test_a_file_that_draws_from_a_global_generator_at_import_is_refused(tmp_path, drawing):
    (tmp_path / "conftest.py").write_text((HOME / "conftest.py").read_text(encoding="utf-8"))
    (tmp_path / "test_random.py").write_text(f"import numpy, torch\n{drawing}\ndef test_nothing(): pass\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--collect-only", str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert "draws from a global generator when it is imported" in run.stdout + run.stderr
