"""Hooks of the site: pages from outside docs/, notebooks as pages, and a page for every public name.

Documents link to files of the repository, so that links work on disk and on a code host. Here they are pointed at
the pages that those files become. MkDocs then checks them.
"""

from __future__ import annotations

import base64
import importlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
# Documents outside docs/, and the pages that they become.
OUTSIDE = {
    "README.md": "index.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "CODE_OF_CONDUCT.md": "CODE_OF_CONDUCT.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "SECURITY.md": "SECURITY.md",
    "examples/README.md": "examples/README.md",
}
MODULES = (
    "adamcb",
    "adamcb.data",
    "adamcb.gradnorm",
    "adamcb.integrations.accelerate",
    "adamcb.integrations.lightning",
    "adamcb.integrations.transformers",
    "adamcb.lab",
    "adamcb.optim",
    "adamcb.paper",
    "adamcb.selection",
    "adamcb.theory",
    "adamcb.training",
)
LINK = re.compile(r"\[([^\[\]]*)\]\(([^)#\s]+)((?:#[^)\s]*)?)\)")  # words, file, anchor
CODE = re.compile(r"(^```.*?^```$)", flags=re.MULTILINE | re.DOTALL)
PARAGRAPH_THEN_LIST = re.compile(r"^((?![-*#>|]|\d+\.)\S.*)\n(?=(?:-|1\.) )", flags=re.MULTILINE)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Refuse to build a site that leaves a public name out."""
    missing = names_without_entry()
    if missing:
        raise PluginError(
            f"Public names must have an entry `::: NAME` in docs/reference, and these have none: {missing}"
        )
    return config


def names_without_entry() -> list[str]:
    """Return the public names that no page of the reference describes. A name may be entered from any public module."""
    entries = {
        name
        for page in (DOCS / "reference").glob("*.md")
        for name in re.findall(r"^::: (\S+)", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    }
    described = {id(resolve(name)) for name in entries}
    return [name for name in public_names() if id(resolve(name)) not in described]


def public_names() -> Iterator[str]:
    """Yield what each public module exports."""
    for module in MODULES:
        exported = importlib.import_module(module)
        for name in getattr(exported, "__all__", None) or [name for name in vars(exported) if name[0].isupper()]:
            yield f"{module}.{name}"


def resolve(name: str) -> Any:
    """Return what a dotted name is of."""
    module, _, attribute = name.rpartition(".")
    try:
        return getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError:
        return getattr(resolve(module), attribute)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add documents from outside docs/, a page for each notebook, and the files that documents link to."""
    for source, target in OUTSIDE.items():
        files.append(File.generated(config, target, abs_src_path=str(ROOT / source)))
    for notebook in sorted(DOCS.glob("**/*.ipynb")):
        text, pictures = to_markdown(notebook)
        stem = notebook.relative_to(DOCS).with_suffix("").as_posix()
        files.append(File.generated(config, f"{stem}.md", content=text))
        for name, picture in pictures.items():
            files.append(File.generated(config, f"{Path(stem).parent.as_posix()}/{name}", content=picture))
    for linked in sorted(linked_files()):
        if linked.as_posix() not in OUTSIDE:
            files.append(File.generated(config, linked.as_posix(), abs_src_path=str(ROOT / linked)))
    return files


def linked_files() -> set[Path]:
    """Return the files outside docs/ that documents link to."""
    pages = [*DOCS.glob("**/*.md"), *(ROOT / source for source in OUTSIDE)]
    found = {
        (page.parent / target).resolve()
        for page in pages
        for _, target, _ in LINK.findall(page.read_text(encoding="utf-8"))
        if "://" not in target
    }
    inside = [path for path in found if path.is_file() and ROOT in path.parents and DOCS not in path.parents]
    return {path.relative_to(ROOT) for path in inside}


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links between files of the repository at the pages that they become, and call pages by their titles."""
    sources = {target: source for source, target in OUTSIDE.items()}
    uri = page.file.src_uri
    folder = (ROOT / sources[uri] if uri in sources else DOCS / uri).parent
    if uri == "index.md":
        page.meta["hide"] = ["navigation", "toc"]

    def pointed(match: re.Match[str]) -> str:
        target = (folder / match[2]).resolve()
        if "://" in match[2] or not target.exists() or ROOT not in target.parents:
            return match[0]
        words = title_of(target) if match[1].endswith(".md") else match[1]
        return f"[{words}]({os.path.relpath(uri_of(target), Path(uri).parent).replace(os.sep, '/')}{match[3]})"

    return lists_apart(LINK.sub(pointed, markdown))


def lists_apart(markdown: str) -> str:
    """Return a document with an empty line before every list: without it Python-Markdown sees a paragraph."""
    parts = CODE.split(markdown)
    return "".join(part if place % 2 else PARAGRAPH_THEN_LIST.sub(r"\1\n\n", part) for place, part in enumerate(parts))


def title_of(page: Path) -> str:
    """Return the first heading of a page, up to its colon."""
    heading = page.read_text(encoding="utf-8").lstrip().splitlines()[0]
    return f'"{heading.lstrip("# ").partition(":")[0]}"'


def uri_of(file: Path) -> str:
    """Return where a file of the repository is on the site."""
    if DOCS in file.parents:
        inside = file.relative_to(DOCS)
        return (inside.with_suffix(".md") if inside.suffix == ".ipynb" else inside).as_posix()
    outside = file.relative_to(ROOT).as_posix()
    return OUTSIDE.get(outside, outside)


def to_markdown(notebook: Path) -> tuple[str, dict[str, bytes]]:
    """Return a notebook as a page, and its pictures by name."""
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if "image/png" in data:
                name = f"{notebook.stem}-{len(pictures) + 1}.png"
                pictures[name] = base64.b64decode("".join(data["image/png"]))
                parts.append(f"![What the code above draws]({name})")
            else:
                text = "".join(output.get("text", data.get("text/plain", ""))).rstrip()
                parts.append(f"```{{ .text .output }}\n{text}\n```")
    parts.append(f'This page is a notebook: <a href="{notebook.name}" download>download it</a> and run it yourself.')
    return "\n\n".join(parts) + "\n", pictures
