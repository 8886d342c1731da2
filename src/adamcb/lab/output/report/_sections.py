"""The parts of the page that need no script: notes, tiles, table, pictures, configuration. All text is escaped here."""

from __future__ import annotations

import json
import math
from html import escape
from typing import Any

import numpy as np

from adamcb.lab.output.report._pictures import data_uri
from adamcb.lab.output.report._read import Chosen, Folder
from adamcb.lab.output.report._table import Cell, finals, is_percent, looks_equal, summary_table, title, with_deviation
from adamcb.lab.results.columns import Measure
from adamcb.lab.tasks.fingerprint import KEYS

Styles = dict[str, str]
# Shown elsewhere, or of no use to a reader.
NOT_SETTINGS = (
    "notes",
    "note",
    "labels",
    "task_name",
    "format",
    "metrics",
    "chooses",
    "controls",
    "verdict",
    "about",
    *KEYS,
)


def notes(config: dict[str, Any]) -> str:
    """Return what the reader should know first, if the configuration notes anything."""
    found = config.get("notes") or config.get("note") or []
    texts = [found] if isinstance(found, str) else list(found)
    paragraphs = "".join(f"<p>{escape(str(text))}</p>" for text in texts if text)
    return f'<div class="notice" role="note">{paragraphs}</div>' if paragraphs else ""


def verdict(folder: Folder, styles: Styles) -> str:
    """Return what the comparison says, in words: a line for each method, its advice first."""
    lines = [line for line in str(folder.config.get("verdict") or "").split("\n") if line]
    if not lines:
        return ""
    items = "".join(_verdict_line(line, folder, styles) for line in lines)
    return f'<section id="verdict" class="card"><h2>Verdict</h2><ul>{items}</ul></section>'


def _verdict_line(line: str, folder: Folder, styles: Styles) -> str:
    """Return "AdamCB …: use it." with the advice in front, as far as the line has one."""
    named = [method for method in folder.methods if line.startswith(folder.labels[method])]
    method = max(named, key=lambda name: len(folder.labels[name]), default=None)
    mark = "" if method is None else swatch(styles[method])
    reason, _, advice = line.rpartition(": ")
    if not reason or len(advice) > 60:
        return f"<li>{mark}<p>{escape(line)}</p></li>"
    advice = advice[:1].upper() + advice[1:]
    return f"<li>{mark}<p><b>{escape(advice)}</b> {escape(reason)}.</p></li>"


def measure_choices(measures: list[Measure]) -> str:
    """Return the buttons that choose what the curves show."""
    titles = {measure.metric: measure.title.partition(" ")[2] for measure in measures}
    return "\n".join(
        f'<label><input type="radio" name="measure" value="{escape(name)}"{" checked" if name == "loss" else ""}>'
        f"<span>{escape(title[:1].upper() + title[1:])}</span></label>"
        for name, title in titles.items()
    )


def samples_axis(folder: Folder) -> str:
    """Return the button that draws the curves against samples, if they were counted."""
    if "samples" not in folder.results[0].values:
        return ""
    return '<label><input type="radio" name="axis" value="samples"><span>Samples</span></label>\n'


def swatch(style: str) -> str:
    """Return a piece of a method's line."""
    return (
        '<svg class="swatch" viewBox="0 0 34 10" aria-hidden="true">'
        f'<line class="line {style}" x1="1" x2="33" y1="5" y2="5"/></svg>'
    )


def tiles(folder: Folder, styles: Styles) -> str:
    """Return the results in short: the best method by a few measures, and how far the next one is."""
    wanted: list[tuple[str, str, dict[str, tuple[float, float]], int]] = []
    for measure in folder.measures:
        if measure.name.startswith("test_") or measure.is_loss:
            word, sign = ("Highest", -1) if measure.higher_is_better else ("Lowest", 1)
            wanted.append((f"{word} final {measure.title}", measure.name, finals(folder, measure.name), sign))
    if folder.selection:
        moments = finals(folder, "second_moment")
        reductions = {method: (1.0 - mean, deviation) for method, (mean, deviation) in moments.items()}
        wanted.append(("Largest variance reduction", "variance_reduction", reductions, -1))
    else:
        wanted.append(("Shortest training, seconds", "seconds", finals(folder, "seconds"), 1))
    return "".join(_tile(*tile, folder, styles) for tile in wanted)


def _tile(
    heading: str, name: str, values: dict[str, tuple[float, float]], sign: int, folder: Folder, styles: Styles
) -> str:
    labels, percent = folder.labels, name == "variance_reduction" or is_percent(name, folder.measures)
    known = [(method, *pair) for method, pair in values.items() if math.isfinite(pair[0])]
    if not known:
        return ""
    known.sort(key=lambda entry: sign * entry[1])
    _, mean, deviation = known[0]
    winners = [entry[0] for entry in known if looks_equal(entry[1], mean, deviation, percent=percent)]
    after = ""
    if len(winners) < len(known):
        other, other_mean, other_deviation = known[len(winners)]
        spread = np.nanmax([deviation, other_deviation, 0.0])
        near = "; less than one standard deviation apart" if abs(mean - other_mean) < spread else ""
        after = f"Next: {escape(labels[other])}, {with_deviation(other_mean, other_deviation, percent=percent)}{near}"
    text = with_deviation(mean, deviation, percent=percent)
    value, _, spread_text = text.removesuffix("\u00a0%").partition(" ± ")
    value += "\u00a0%" if text.endswith("%") else ""
    small = f" <small>± {spread_text}</small>" if spread_text else ""
    who = "".join(f'<p class="who">{swatch(styles[method])}{escape(labels[method])}</p>' for method in winners)
    return (
        f'<div class="card tile"><h3>{heading}</h3><p class="value">{value}{small}</p>'
        f'{who}<p class="next">{after}</p></div>'
    )


def table(folder: Folder, styles: Styles) -> str:
    """Return the summary as a table whose columns can be sorted."""
    summary = summary_table(folder)
    head = "".join(f'<th scope="col"><button type="button">{escape(name)}</button></th>' for name in summary.header)
    rows = []
    for method, *cells in summary.rows:
        mark = swatch(styles[method.text]) if method.text in styles else ""
        fields = "".join(map(_field, cells))
        name, fate = escape(folder.labels.get(method.text, method.text)), folder.fate(method.text)
        lost = f'<small class="lost">{fate}</small>' if fate else ""
        rows.append(f'<tr><th scope="row"><span class="named">{mark}<span>{name}{lost}</span></span></th>{fields}</tr>')
    return (
        f'<div class="card"><p class="note">{_table_note(folder)}</p>'
        '<div class="frame"><div class="scroll" tabindex="0" role="region" aria-label="Summary table">'
        f'<table class="numbers sortable"><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
        '</div></div><p class="actions"><button type="button" class="small" id="save-summary">Download CSV</button></p>'
        "</div>"
    )


def _field(cell: Cell) -> str:
    kind = " class=best" if cell.best else ""
    value = "" if cell.value is None else f" data-value={cell.value!r}"
    earlier = f"<small>best {escape(cell.earlier)}</small>" if cell.earlier else ""
    return f"<td{kind}{value}><span>{escape(cell.text)}</span>{earlier}</td>"


def _table_note(folder: Folder) -> str:
    seeds = len({row.seed for row in folder.results})
    over = "Mean ± standard deviation over seeds" if seeds > 1 else "One seed"
    lost = " Runs that diverged are in no mean." if folder.diverged else ""
    best = " Where an earlier epoch was better, it stands below."
    return f"{over}; ★ marks the best of a column, and all that tie with it.{best} Press a heading to sort.{lost}"


def methods(folder: Folder, styles: Styles) -> str:
    """Return what each method is, as far as the configuration says, with a link to more."""
    known = folder.config.get("about")
    known = known if isinstance(known, dict) else {}
    rows = []
    for method in folder.methods:
        about, link = (*known.get(method, ()), "", "")[:2]
        if about:
            where = f' <a href="{escape(link)}" rel="noreferrer">Read more</a>' if link.startswith("https://") else ""
            name = f"{swatch(styles[method])}{escape(folder.labels[method])}"
            rows.append(f"<div><dt>{name}</dt><dd>{escape(about)}{where}</dd></div>")
    if not rows:
        return ""
    return f'<section id="methods"><h2>Methods</h2><dl class="card methods">{"".join(rows)}</dl></section>'


def selection(folder: Folder) -> str:
    """Return the frame of the section on the selection, which the script fills."""
    if not folder.selection:
        return ""
    return (
        '<section id="selection"><h2>How the selection behaved</h2>'
        '<div class="legend" role="group" aria-label="Methods shown"></div>'
        '<div id="selection-readings" class="panels"></div><h3 class="after">Probabilities over time</h3>'
        '<p class="note">How much likelier a sample is to be in a batch than under uniform sampling, at the end of '
        "each epoch: quantiles over the training set, mean over seeds. "
        f'<span id="selection-uniform"></span></p><ul class="key">{_key()}</ul>'
        '<div id="selection-fans" class="panels"></div></section>'
    )


def _key() -> str:
    lines = (("q-50", "median"), ("q-90", "10 % and 90 %"), ("q-99", "99 %"), ("q-end", "smallest and largest"))
    return "".join(f"<li>{swatch(style)}{words}</li>" for style, words in lines)


def chosen(folder: Folder) -> str:
    """Return the pictures of the most suspicious samples, one gallery a run."""
    if not folder.chosen:
        return ""
    names = folder.config.get("class_names")
    classes = [str(name) for name in names] if isinstance(names, list) else []
    epochs = max(row.epoch for row in folder.results)
    galleries = "".join(_gallery(run, folder, classes) for run in folder.chosen)
    return (
        '<section id="chosen"><h2>Hard or mislabeled samples</h2><div class="card"><form id="gallery-controls" '
        f'class="controls" aria-label="Which pictures" autocomplete="off" hidden>{_choices(folder)}'
        '<label class="check"><input type="checkbox" name="wrong"><span>Only where label and prediction differ</span>'
        "</label></form>"
        '<p class="note">The largest mean loss over training first: these are hard, or mislabeled. Uniform sampling '
        f"takes each sample about once an epoch: here {epochs} time{'' if epochs == 1 else 's'}. The prediction is "
        f"that of the trained model, which may have memorized a wrong label.</p>{galleries}"
        '<p id="gallery-missing" class="note" hidden>This run kept no pictures.</p>'
        '<button type="button" id="gallery-more" class="small more" hidden>Show all</button></div></section>'
    )


def _choices(folder: Folder) -> str:
    """Return the two boxes that choose a run. A method is named by its place, so that any name will do."""
    places = dict.fromkeys(folder.methods.index(run.method) for run in folder.chosen)
    first = _most_selective(folder)
    methods = "".join(
        f'<option value="{i}"{" selected" if method == first else ""}>{escape(folder.labels[method])}</option>'
        for i, method in ((i, folder.methods[i]) for i in places)
    )
    seeds = "".join(f'<option value="{seed}">{seed}</option>' for seed in sorted({run.seed for run in folder.chosen}))
    return (
        f'<label class="field"><span>Method</span><select name="method">{methods}</select></label>'
        f'<label class="field"><span>Seed</span><select name="seed">{seeds}</select></label>'
    )


def _most_selective(folder: Folder) -> str:
    """Return the method whose pictures say most: whose largest probability is the largest, or else whose counts are."""
    probs = finals(folder, "prob_max") if folder.selection else {}
    return max(
        folder.chosen,
        key=lambda run: (np.nan_to_num(probs.get(run.method, (0.0,))[0]), run.arrays["count"].max(initial=0)),
    ).method


def _gallery(run: Chosen, folder: Folder, classes: list[str]) -> str:
    place, name = folder.methods.index(run.method), escape(folder.labels[run.method])
    samples = range(len(run.arrays["image"]))
    pictures = "".join(_picture({name: array[i] for name, array in run.arrays.items()}, classes) for i in samples)
    return (
        f'<div class="gallery" data-method="{place}" data-seed="{run.seed}"><h3>{name}, seed {run.seed}'
        f'</h3><ul class="pictures">{pictures}</ul><p class="empty note" hidden>None: every one of these is predicted '
        "as labeled.</p></div>"
    )


def _picture(sample: dict[str, Any], classes: list[str]) -> str:
    truth, guess = (escape(_class_name(int(sample[name]), classes)) for name in ("label", "prediction"))
    wrong = " wrong" if sample["label"] != sample["prediction"] else ""
    # The words beside it say all that a description could.
    return (
        f'<li class="picture{wrong}"><img src="{data_uri(sample["image"])}" alt="" loading="lazy">'
        f'<b>{int(sample["count"])}×</b>label {truth}<br><span class="said">predicted {guess}</span><br>'
        f'<span class="said">mean loss {float(sample["loss"]):.2g}<br>no. {int(sample["index"])}</span></li>'
    )


def _class_name(number: int, classes: list[str]) -> str:
    return classes[number] if 0 <= number < len(classes) else str(number)


def configuration(config: dict[str, Any]) -> str:
    """Return every setting that has a value as a pair with its name; what is nested is taken apart."""
    empty = ({}, [], None)
    pairs = [(title(name), value) for name, value in config.items() if name not in NOT_SETTINGS and value not in empty]
    return "".join(
        f"<div{' class=long' if len(text) > 60 else ''}><dt>{escape(name)}</dt><dd>{escape(text)}</dd></div>"
        for name, text in ((name, _setting(value)) for name, value in pairs)
    )


def _setting(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_setting(part)}" for name, part in value.items())
    if isinstance(value, list):
        return ", ".join(_setting(part) for part in value)
    if value is None or isinstance(value, bool):
        return {None: "–", True: "yes", False: "no"}[value]
    return value if isinstance(value, str) else json.dumps(value)
