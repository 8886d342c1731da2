"""Summaries by hand, figures by their looks, and pictures in the right order."""

import colorsys
import io
import itertools
import re
import statistics
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from pytest import approx
from rich.console import Console

import adamcb
from adamcb._files import whole_file
from adamcb.lab.commands.bench import run_benchmarks
from adamcb.lab.commands.inspect import find_samples, inspect_run
from adamcb.lab.errors import LabError
from adamcb.lab.methods import DEFAULT_METHODS, METHODS, RIVALS, SPECIAL
from adamcb.lab.output import figures, looks
from adamcb.lab.output.figures import draw_comparison, draw_panel
from adamcb.lab.output.looks import COLORS, DARK_COLORS, DASHES, LOOKS, look_of
from adamcb.lab.output.tables import markdown_table, print_verdict, terminal_table
from adamcb.lab.results import write_arrays, write_json
from adamcb.lab.results.columns import IMAGE_METRICS, measures_of
from adamcb.lab.results.summary import all_diverged, summarize, summary_columns

CONFIG = {
    "dataset": "digits",
    "model": "mlp",
    "methods": ["adam", "mine"],
    "labels": {"adam": "Adam", "mine": "Mine"},
    "seeds": [0, 1],
    "epochs": 2,
    "max_steps": None,
    "batch_size": 32,
    "lr": 0.001,
    "notes": ["A note."],
    "class_names": ["cat", "dog"],
}
# method, seed, training loss after each epoch
LOSSES = {
    ("adam", 0): (2.0, 1.0, 0.4),
    ("adam", 1): (2.0, 1.2, 0.6),
    ("mine", 0): (2.0, 0.4, 0.5),
    ("mine", 1): (2.0, 1.0, 0.7),
}


def rows() -> list[dict]:
    return [
        {
            "method": method,
            "seed": seed,
            "epoch": epoch,
            "step": 10 * epoch,
            "samples": 320 * epoch,
            "seconds": (2.0 if method == "mine" else 1.0) * epoch + seed,
            "wall_seconds": 10.0 * epoch,
            "train_loss": loss,
            "test_loss": loss + 0.1,
            "train_accuracy": 1.0 - loss / 4,
            "test_accuracy": 0.9 - loss / 4,
        }
        for (method, seed), losses in LOSSES.items()
        for epoch, loss in enumerate(losses)
    ]


def test_summary_is_what_one_gets_by_hand():
    adam, mine = summarize(rows(), CONFIG)
    assert set(adam) == set(summary_columns(CONFIG))
    assert adam["final_train_loss"] == pytest.approx(0.5)
    assert adam["final_train_loss_std"] == pytest.approx(0.1 * 2**0.5)
    assert mine["final_train_loss"] == pytest.approx(0.6)
    assert mine["best_train_loss"] == pytest.approx((0.4 + 0.7) / 2)
    assert mine["best_test_accuracy"] == pytest.approx(0.9 - 0.55 / 4)
    assert mine["final_test_accuracy"] == pytest.approx(0.9 - 0.6 / 4)
    assert (adam["seconds"], mine["seconds"]) == (2.5, 4.5)
    # With seed 0 Adam ends at 0.4, which `mine` reaches after one epoch; with seed 1 at 0.6, which it never does.
    assert (mine["reached_baseline"], mine["steps_to_baseline"], mine["seconds_to_baseline"]) == (1, 10.0, 2.0)
    assert (adam["reached_baseline"], adam["steps_to_baseline"]) == (2, 20.0)


def test_a_run_that_ended_early_counts_nowhere():
    short = [row for row in rows() if (row["method"], row["seed"]) != ("mine", 0) or row["epoch"] < 2]
    mine = summarize(short, CONFIG)[1]
    assert (mine["runs"], mine["diverged_runs"]) == (1, 1)
    assert (mine["final_train_loss"], mine["final_train_loss_std"]) == (0.7, None)
    text = markdown_table(summarize(short, CONFIG), CONFIG)
    assert "| Mine (1 of 2 diverged) | 0.7000 |" in text
    none = summarize([row for row in rows() if row["method"] == "adam" or row["epoch"] == 0], CONFIG)[1]
    assert none["final_train_loss"] is None


def test_tables_show_mean_deviation_and_what_was_not_reached():
    summary = summarize(rows(), CONFIG)
    text = markdown_table(summary, CONFIG)
    assert text.startswith(
        "| method | training loss | test loss | training accuracy | test accuracy | samples | seconds | wall seconds |"
    )
    assert "| Adam | 0.5000 ± 0.1414 | 0.6000 ± 0.1414 | 87.50 ± 3.54 % |" in text
    assert "best" not in text
    assert "| 4.5 | 20.0 | 10 (1/2) | 2.0 (1/2) |" in text
    wide = shown_table(CONFIG, rows())
    for words in ("Mine", "77.50 ± 3.54 %", "10 (1/2)", "training", "accuracy", "wall", "100 %"):
        assert words in wide


def test_a_metric_that_repeats_the_loss_is_no_column_of_its_own():
    metrics = [{"name": "log loss", "better": "lower"}, *CONFIG.get("metrics", IMAGE_METRICS)]
    both = [{**row, **{f"{split}_log_loss": row[f"{split}_loss"] for split in ("train", "test")}} for row in rows()]
    config = {**CONFIG, "metrics": metrics}
    text = markdown_table(summarize(both, config), config)
    assert text.startswith("| method | training log loss | test log loss | training accuracy | test accuracy | samples")
    assert len(re.findall("log\\b", shown_table(config, both))) == 2


def test_a_table_is_titled_by_the_name_of_its_task():
    config = {**CONFIG, "task": "mine.py:build", "task_name": "fraud"}
    assert "fraud: 2 epochs" in shown_table(config, rows())
    assert "build: 2 epochs" in shown_table({**config, "task_name": None}, rows())  # of a folder from before


def test_a_narrow_terminal_has_what_matters_most_and_breaks_no_number():
    narrow = shown_table(CONFIG, rows(), width=80)
    cells = [line for line in narrow.splitlines() if line.startswith("│")]
    assert [re.split(" *│ *", line)[1:-1] for line in cells] == [
        ["Adam", "100 %", "2.5", "0.5000 ± 0.1414", "77.50 ± 3.54 %"],
        ["Mine", "100 %", "4.5", "0.6000 ± 0.1414", "75.00 ± 3.54 %"],
    ]
    assert "More columns: summary.md" in " ".join(narrow.split())
    assert "More columns" not in shown_table(CONFIG, rows())
    long = {**CONFIG, "labels": {"adam": "Adam", "mine": f"a method whose name takes up {'very ' * 9}much room"}}
    for width in (40, 80, 120):
        lines = shown_table(long, rows(), width=width).splitlines()
        assert max(map(len, lines)) <= width
        assert any("0.5" in line or "100 %" in line for line in lines), "one column at least"


def test_verdict_in_a_terminal_has_a_bullet_for_each_method_and_in_a_file_a_line():
    words = "Mine ended [early], with 25 % of the samples: do not use it here.\nOurs won: use it."
    screen = io.StringIO()
    print_verdict(Console(file=screen, force_terminal=True, width=40, color_system=None), words)
    assert [line.rstrip() for line in screen.getvalue().splitlines()] == [
        "",
        "• Mine ended [early], with 25 % of the",
        "  samples: do not use it here.",
        "• Ours won: use it.",
    ]
    file = io.StringIO()
    print_verdict(Console(file=file, width=40), words)
    assert file.getvalue() == words + "\n"


def test_samples_are_a_share_of_the_baselines():
    fewer = [{**row, "samples": row["samples"] // 4} if row["method"] == "mine" else row for row in rows()]
    assert "25 %" in shown_table(CONFIG, fewer)
    no_baseline = [{**row, "diverged": "step 15"} if row["method"] == "adam" else row for row in fewer]
    shown = shown_table(CONFIG, no_baseline)
    assert " 160 " in shown
    assert "100 %" not in shown


def test_figures_say_what_they_show_and_are_the_same_file_each_time(tmp_path):
    files = [path.read_bytes() for path in draw_comparison(tmp_path, rows(), CONFIG)]
    svg = (tmp_path / "epochs.svg").read_text()
    for words in ("mlp on digits", "A note.", "training loss", "test accuracy, %", "over 2 seeds", "Mine", "epoch"):
        assert words in svg
    assert "seconds of training" in (tmp_path / "seconds.svg").read_text()
    assert files == [path.read_bytes() for path in draw_comparison(tmp_path, rows(), CONFIG)]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "epochs.png",
        "epochs.svg",
        "seconds.png",
        "seconds.svg",
    ]


def shown_table(config: dict, results: list[dict], width: int = 200) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(terminal_table(summarize(results, config), config, width))
    return console.export_text()


def test_table_of_one_run_says_one_of_one():
    config = {**CONFIG, "epochs": 1, "seeds": [0]}
    shown = shown_table(config, [row for row in rows() if row["seed"] == 0 and row["epoch"] < 2])
    assert "mlp on digits: 1 epoch, 1 seed" in shown
    assert "standard deviation" not in shown


def panels(folder: Path, results: list[dict], config: dict, monkeypatch: pytest.MonkeyPatch) -> Figure:
    """Draw a comparison, and return its figure as it was saved."""
    drawn: list[Figure] = []
    monkeypatch.setattr(figures, "save", lambda figure, *_: drawn.append(figure) or [])
    draw_comparison(folder, results, config)
    drawn[0].draw_without_rendering()
    return drawn[0]


def test_figures_zoom_to_the_data_with_enough_marks(tmp_path, monkeypatch):
    figure = panels(tmp_path, rows(), CONFIG, monkeypatch)
    loss, accuracy = figure.axes[0], figure.axes[3]
    assert accuracy.get_ylim()[0] > 100 * (0.9 - 2.0 / 4), "the value before training does not count"
    for axes, (low, high) in ((axes, axes.get_ylim()) for axes in (loss, accuracy)):
        assert sum(low <= tick <= high for tick in axes.get_yticks()) >= 3


def test_legend_of_a_figure_holds_eight_long_names(tmp_path, monkeypatch):
    names = [f"m{i}" for i in range(8)]
    labels = {name: f"a method whose name takes up {'very ' * 9}much room, {name}" for name in names}
    many = [{**row, "method": name} for name in names for row in rows() if row["method"] == "adam"]
    figure = panels(tmp_path, many, {**CONFIG, "methods": names, "labels": labels}, monkeypatch)
    box = figure.legends[0].get_window_extent()
    assert len(figure.legends[0].get_texts()) == 8
    assert box.x0 >= 0.0
    assert box.x1 <= figure.bbox.width
    assert all(axes.get_window_extent().height > 100 for axes in figure.axes)


def test_run_that_diverged_is_drawn_apart_and_cuts_no_mean(tmp_path, monkeypatch):
    lost = [row for row in rows() if (row["method"], row["seed"]) != ("mine", 0) or row["epoch"] < 2]
    lost = [{**row, "train_loss": 1e9} if (row["method"], row["train_loss"]) == ("mine", 0.4) else row for row in lost]
    figure = panels(tmp_path, lost, CONFIG, monkeypatch)
    lines = {line.get_label(): line for line in figure.axes[0].lines}
    assert lines["Mine (1 of 2 diverged)"].get_ydata() == pytest.approx([2.0, 1.0, 0.7])
    (cross,) = [line for line in figure.axes[0].lines if line.get_marker() == "x"]
    assert cross.get_xdata() == [1]
    assert figure.axes[0].get_ylim()[1] == pytest.approx(np.asarray(cross.get_ydata())[0])
    assert figure.axes[0].get_ylim()[1] < 10.0


def test_bands_of_figures_are_standard_deviations_of_a_sample():
    axes = Figure().add_subplot()
    loss = next(measure for measure in measures_of(CONFIG) if measure.name == "train_loss")
    draw_panel(axes, rows(), CONFIG, loss, "epochs")
    for band, method in zip(axes.collections, CONFIG["methods"], strict=True):
        ends = [LOSSES[method, seed][-1] for seed in range(2)]
        mean, spread = statistics.fmean(ends), statistics.stdev(ends)
        corners = np.asarray(band.get_paths()[0].vertices)
        last = sorted(set(corners[corners[:, 0] == 2.0, 1].round(9).tolist()))
        assert last == approx([mean - spread, mean + spread])


def test_a_run_that_diverged_is_in_no_curve_of_a_figure():
    marked = [{**row, "diverged": "step 15"} if row["seed"] == 1 and row["method"] == "mine" else row for row in rows()]
    axes = Figure().add_subplot()
    loss = next(measure for measure in measures_of(CONFIG) if measure.name == "train_loss")
    draw_panel(axes, marked, CONFIG, loss, "epochs")
    means = [line for line in axes.get_lines() if not str(line.get_label()).startswith("_")]
    assert [np.asarray(line.get_ydata())[-1] for line in means] == approx([0.5, 0.5])
    nobody = [{**row, "diverged": "step 15"} for row in rows()]
    summary = summarize(nobody, CONFIG)
    assert [(record["runs"], record["diverged_runs"]) for record in summary] == [(0, 2), (0, 2)]
    assert "| Adam (2 of 2 diverged) | – |" in markdown_table(summary, CONFIG)
    assert all_diverged(summary)
    assert not all_diverged(summarize(marked, CONFIG))


# By its color in figures and on a light page, in order: what a line has on a dark page.
ON_DARK = {
    "#000000": "#F2F2F2",
    "#E69F00": "#E69F00",
    "#56B4E9": "#56B4E9",
    "#009E73": "#00B383",
    "#999999": "#9C9C9C",
    "#0072B2": "#3A9BE0",
    "#D55E00": "#F0732A",
    "#CC79A7": "#CC79A7",
}
# Strokes and gaps on the page, in pixels.
STROKES = ("none", "8 4", "2.5 3", "9 3 2 3", "14 4", "5 2.5", "9 3 2 3 2 3", "11 3 2 3 2 3 2 3")


def test_the_page_has_the_colors_of_the_figures():
    """And their dashes; the colors themselves come from the same list."""
    sheet = (Path(looks.__file__).parent / "report" / "page" / "style.css").read_text()
    for number in range(len(COLORS)):
        assert f".c{number} {{ stroke: var(--c{number}); }} .area.c{number}, .dot.c{number}" in sheet
        assert f".dot.c{number} {{ fill: var(--c{number}); }}" in sheet
    assert re.findall(r"\.line\.d(\d) { stroke-dasharray: ([0-9. ]+|none); }", sheet) == [
        (str(number), strokes) for number, strokes in enumerate(STROKES)
    ]
    for dashes, strokes in zip(DASHES, STROKES, strict=True):
        if dashes == "-":
            assert strokes == "none"
            continue
        # The page counts pixels, and its lines are two and a bit of them wide.
        widths = [float(pixels) / length for pixels, length in zip(strokes.split(), dashes[1], strict=True)]
        assert all(2.0 <= width <= 2.5 for width in widths)


def test_every_number_of_a_color_stands_for_the_color_that_readers_know():
    """A method has the same color in all figures, on a light page and on a dark one."""
    assert dict(zip(COLORS, DARK_COLORS, strict=True)) == ON_DARK
    assert list(COLORS) == list(ON_DARK)
    for light, dark in ON_DARK.items():
        assert lightness(dark) >= lightness(light) - 0.01, "it must be seen on a dark ground"
        if light not in ("#000000", "#999999"):  # which have no hue
            assert abs(hue(light) - hue(dark)) < 0.05
    known = {"adam": "#000000", "adamcb": "#009E73", "adamcb-paper": "#0072B2", "adambs": "#D55E00"}
    assert {name: LOOKS[name].color for name in known} == known


def test_every_method_of_the_lab_has_a_look_of_its_own():
    """Otherwise its color would depend on what it is compared with."""
    assert set(LOOKS) == {*METHODS, *RIVALS, *SPECIAL}
    assert len({(look.color_number, look.dashes_number) for look in LOOKS.values()}) == len(LOOKS)
    assert look_of("adamcb-smaller", ["adamcb-smaller"]) == look_of("adamcb-smaller", DEFAULT_METHODS)


def test_methods_can_be_told_apart_without_color():
    strangers = [look_of(name, ["adam", "one", "two"]) for name in ("one", "two")]
    all_looks = [*LOOKS.values(), *strangers]
    assert len({look.marker for look in all_looks}) == len(all_looks)
    okabe_ito = {"#000000", "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7", "#999999"}
    assert {look.color for look in all_looks} <= okabe_ito
    solid = [look.color for look in LOOKS.values() if look.dashes == "-"]
    for one, other in itertools.combinations(solid, 2):
        assert abs(lightness(one) - lightness(other)) > 0.2, "solid lines must differ in gray"


def parts(color: str) -> list[float]:
    return [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]


def lightness(color: str) -> float:
    return colorsys.rgb_to_yiq(*parts(color))[0]


def hue(color: str) -> float:
    return colorsys.rgb_to_hsv(*parts(color))[0]


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "file.txt"
    path.write_text("old")

    def fill_the_disk() -> None:
        with whole_file(path) as place:
            place.write_text("half")
            raise OSError("full")

    with pytest.raises(OSError, match="full"):
        fill_the_disk()
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file.txt"]


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    write_json(tmp_path / "config.json", CONFIG)
    for name in ("chosen", "samples"):
        (tmp_path / name).mkdir()
    columns = {
        "index": np.array([7, 3, 9, 5, 0]),
        "count": np.array([50, 40, 30, 20, 0]),
        "last_score": np.array([0.5, 0.25, np.nan, 1.0, np.nan]),
        "mean_score": np.array([0.5, 0.25, np.nan, 1.0, np.nan]),
        "mean_loss": np.array([3.0, 2.0, 1.0, 0.5, np.nan]),
        "suspicion": np.array([1.0, 0.75, 0.5, 0.25, np.nan]),
    }
    for name in ("mine", "adam"):
        write_arrays(tmp_path / "samples" / f"{name}-seed0.npz", **columns)
    write_arrays(
        tmp_path / "chosen" / "mine-seed0.npz",
        index=np.array([7, 3, 9, 5]),
        count=np.array([50, 40, 30, 20]),
        label=np.array([0, 0, 1, 1]),
        prediction=np.array([0, 1, 1, 0]),
        loss=np.array([3.0, 2.0, 1.0, 0.5]),
        image=np.zeros((4, 6, 6, 3), dtype=np.uint8),
    )
    return tmp_path


def listed(shown: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown.splitlines() if line.startswith("│")]


def test_the_largest_mean_losses_come_first_whatever_the_model_says(run_folder, capsys):
    assert inspect_run(run_folder, None, 0, None, Console(width=100), count=3) == 0
    rows = listed(capsys.readouterr().out)
    assert [row[0] for row in rows] == ["7", "3", "9"]
    assert rows[0] == ["7", "1.0000", "3.000", "50", *rows[0][4:]]
    assert [row[5] == "the same" for row in rows] == [True, False, True]
    assert (run_folder / "inspect-mine-seed0.png").read_bytes().startswith(b"\x89PNG")


def test_the_table_of_all_samples_is_exported(run_folder, tmp_path, capsys):
    place = tmp_path / "all.csv"
    assert inspect_run(run_folder, "adam", 0, None, Console(width=100), count=2, csv=place) == 0
    assert not list(run_folder.glob("*.png")), "adam has a table and no pictures"
    assert place.read_text().splitlines() == [
        "index,count,last_score,mean_score,mean_loss,suspicion",
        "7,50,0.5,0.5,3,1",
        "3,40,0.25,0.25,2,0.75",
        "9,30,,,1,0.5",
        "5,20,1,1,0.5,0.25",
        "0,0,,,,",
    ]
    with pytest.raises(LabError, match="table cannot be written"):
        inspect_run(run_folder, "adam", 0, None, Console(width=100), csv=tmp_path / "nowhere" / "all.csv")
    with pytest.raises(LabError, match="`--count` must be at least 1, got 0"):
        inspect_run(run_folder, "adam", 0, None, Console(width=100), count=0)


@pytest.mark.parametrize(
    ("method", "seed", "message"),
    [("adma", 0, "`--method` must be one of adam, mine"), ("adam", 1, "of adam with seed 1"), (None, 5, "seed 5")],
)
def test_what_cannot_be_inspected_is_named(run_folder, method, seed, message):
    with pytest.raises(LabError, match=message):
        find_samples(run_folder, method, seed)
    with pytest.raises(LabError, match="has no config.json"):
        find_samples(run_folder / "chosen", None, 0)
    assert find_samples(run_folder / "chosen" / "mine-seed0.npz", None, 0) == run_folder / "samples" / "mine-seed0.npz"


@pytest.mark.slow
def test_a_benchmark_runs_from_the_checkout(capfd):
    assert run_benchmarks(["selection"], ["--help"]) == 0
    assert "usage" in capfd.readouterr().out
    with pytest.raises(LabError, match="has no benchmark nothing"):
        run_benchmarks(["nothing"], [])


def test_without_a_checkout_the_benchmarks_are_said_to_be_missing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(adamcb, "__file__", str(tmp_path / "site-packages" / "adamcb" / "__init__.py"))
    with pytest.raises(LabError, match="from a checkout of adamcb"):
        run_benchmarks(["selection"], [])
