"""The page as one string: the template with its style, its scripts, its data and its static parts put in."""

from __future__ import annotations

import base64
import hashlib
import json
from html import escape
from importlib import metadata, resources
from string import Template
from typing import Any

from adamcb.lab.experiment import title_of
from adamcb.lab.output.looks import COLORS, DARK_COLORS, look_of
from adamcb.lab.output.report import _sections
from adamcb.lab.output.report._curves import curves
from adamcb.lab.output.report._read import Folder
from adamcb.lab.output.report._table import summary_rows

SCRIPTS = (
    "format.js",
    "dom.js",
    "address.js",
    "saving.js",
    "chart.js",
    "hover.js",
    "curves.js",
    "selection.js",
    "page.js",
)


def render(folder: Folder) -> str:
    """Return the page of a result folder."""
    styles = line_styles(folder.methods)
    style = _colors() + _text("style.css")
    script = '"use strict";(() => {\n' + "\n".join(_text(name) for name in SCRIPTS) + "})();"
    heading = title_of(folder.config)
    has_seeds = len({row.seed for row in folder.results}) > 1
    parts = {
        "policy": _policy(style, script),
        "title": escape(f"{heading} – adamcb report"),
        "heading": escape(heading),
        "lead": escape(_lead(folder)),
        "navigation": _navigation(folder),
        "verdict": _sections.verdict(folder, styles),
        "notes": _sections.notes(folder.config),
        "measures": _sections.measure_choices(folder.measures),
        "tiles": _sections.tiles(folder, styles),
        "samples_axis": _sections.samples_axis(folder),
        "spread": "" if has_seeds else " hidden",
        "table": _sections.table(folder, styles),
        "methods": _sections.methods(folder, styles),
        "selection": _sections.selection(folder),
        "chosen": _sections.chosen(folder),
        "configuration": _sections.configuration(folder.config),
        "version": escape(metadata.version("adamcb")),
        "data": script_json(_data(folder, styles)),
        "style": style,
        "script": script,
    }
    return Template(_text("template.html")).substitute(parts)


def line_styles(methods: list[str]) -> dict[str, str]:
    """Return for each method the classes of its color and its dashes."""
    return {method: look_of(method, methods).style for method in methods}


def script_json(data: Any) -> str:
    """Return JSON that is safe inside a script element, whatever text it holds."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _data(folder: Folder, styles: dict[str, str]) -> dict[str, Any]:
    return {
        "percent": [measure.metric for measure in folder.measures if measure.percent],
        "methods": [
            {"key": method, "name": folder.labels[method], "style": styles[method], "fate": folder.fate(method)}
            for method in folder.methods
        ],
        "curves": curves(folder, folder.results, each_seed=True),
        "selection": curves(folder, folder.selection, each_seed=False),
        "summary": summary_rows(folder),
    }


def _colors() -> str:
    """Return the colors of the figures as variables of the style sheet."""
    pairs = enumerate(zip(COLORS, DARK_COLORS, strict=True))
    return ":root {" + " ".join(f"--c{i}: light-dark({light}, {dark});" for i, (light, dark) in pairs) + "}\n"


def _text(name: str) -> str:
    return (resources.files("adamcb.lab.output.report") / "page" / name).read_text(encoding="utf-8")


def _policy(style: str, script: str) -> str:
    """Return a content security policy under which only this style and this script are in force."""
    hashes = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style, script))
    style_hash, script_hash = hashes
    return (
        f"default-src 'none'; style-src 'sha256-{style_hash}'; script-src 'sha256-{script_hash}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _lead(folder: Folder) -> str:
    epochs = max(row.epoch for row in folder.results)
    counts = [
        (len(folder.methods), "method"),
        (len({row.seed for row in folder.results}), "seed"),
        (epochs, "epoch"),
    ]
    words = [f"{count} {word}{'' if count == 1 else 's'}" for count, word in counts]
    settings = (("batch_size", "batch size"), ("lr", "learning rate"))
    words += [f"{label} {folder.config[name]}" for name, label in settings if folder.config.get(name)]
    return ", ".join(words)


def _navigation(folder: Folder) -> str:
    links = [("curves", "Curves", True), ("summary", "Summary", True)]
    links += [("methods", "Methods", bool(folder.config.get("about")))]
    links += [("selection", "Selection", bool(folder.selection)), ("chosen", "Samples", bool(folder.chosen))]
    links += [("configuration", "Configuration", True)]
    return "".join(f'<a href="#{place}">{text}</a>' for place, text, there in links if there)
