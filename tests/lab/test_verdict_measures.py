"""What the verdict says of test measures. The runs on protein are rows of docs/evidence/rare-events.csv, rounded."""

from __future__ import annotations

from typing import Any

import pytest
from pytest import approx

from adamcb.lab.methods import METHODS, SPECIAL
from adamcb.lab.results.columns import distinct_measures
from adamcb.lab.results.verdict import noise_of, verdict

# Three seeds each. Samples and seconds are shares of Adam's: of the whole run, and until the training loss was Adam's
# final one (None: it never was). Then: final training loss, average precision, log loss, calibration error.
PROTEIN = {
    "adam": [
        (1.0, 1.0, 1.0, 1.0, 0.00591, 0.8659, 0.00881, 0.00063),
        (1.0, 1.0, 1.0, 1.0, 0.00561, 0.8697, 0.00873, 0.00063),
        (1.0, 1.0, 1.0, 1.0, 0.00566, 0.8720, 0.00862, 0.00062),
    ],
    "small-batches": [
        (0.25, 0.52, None, None, 0.00900, 0.8594, 0.00876, 0.00052),
        (0.25, 0.56, None, None, 0.00877, 0.8725, 0.00852, 0.00084),
        (0.25, 0.45, None, None, 0.00863, 0.8708, 0.00857, 0.00089),
    ],
    "adamcb": [
        (1.0, 1.36, 0.35, 0.47, 0.00175, 0.8592, 0.01054, 0.00129),
        (1.0, 1.23, 0.33, 0.44, 0.00097, 0.8633, 0.01084, 0.00139),
        (1.0, 1.21, 0.32, 0.38, 0.00125, 0.8584, 0.01074, 0.00136),
    ],
    "adamcb-smaller": [
        (0.25, 0.46, 0.21, 0.32, 0.00526, 0.8672, 0.00885, 0.00073),
        (0.25, 0.47, 0.21, 0.36, 0.00491, 0.8683, 0.00895, 0.00067),
        (0.25, 0.54, 0.22, 0.41, 0.00500, 0.8692, 0.00884, 0.00066),
    ],
    "balanced-sampler": [
        (1.0, 1.10, 0.66, 0.74, 0.00448, 0.8670, 0.01335, 0.00289),
        (1.0, 0.76, 0.79, 0.60, 0.00518, 0.8725, 0.01307, 0.00308),
        (1.0, 0.92, 0.63, 0.60, 0.00473, 0.8670, 0.01314, 0.00288),
    ],
    "focal-loss": [
        (1.0, 0.94, None, None, 0.02482, 0.8683, 0.02557, 0.01977),
        (1.0, 0.96, None, None, 0.02417, 0.8713, 0.02491, 0.01910),
        (1.0, 1.02, None, None, 0.02497, 0.8739, 0.02546, 0.01971),
    ],
    "undersampling": [
        (1.0, 1.12, 0.52, 0.62, 0.00419, 0.8643, 0.01324, 0.00297),
        (1.0, 1.29, 0.59, 0.74, 0.00438, 0.8709, 0.01285, 0.00298),
        (1.0, 1.20, 0.53, 0.64, 0.00425, 0.8704, 0.01267, 0.00269),
    ],
}
METRICS = [
    {"name": "average precision", "better": "higher"},
    {"name": "log loss", "better": "lower"},
    {"name": "calibration error", "better": "lower"},
]
Runs = dict[str, list[tuple[Any, ...]]]


def curve(method: str, seed: int, run: tuple[Any, ...], adam: tuple[Any, ...]) -> list[dict[str, Any]]:
    """Return the rows of a run: its start, where it was at Adam's final training loss, and its end."""
    samples, seconds, samples_to_adam, seconds_to_adam, loss, precision, log_loss, error = run
    ends = {"test_loss": log_loss, "train_loss": loss, "train_log_loss": loss}
    for split in ("train", "test"):
        ends[f"{split}_average_precision"], ends[f"{split}_calibration_error"] = precision, error
    ends["test_log_loss"] = log_loss
    start = {**ends, "train_loss": 0.7, "train_log_loss": 0.7}
    rows = [{**start, "epoch": 0, "step": 0, "samples": 0.0, "seconds": 0.0}]
    if samples_to_adam is not None and method != "adam":
        there = {"epoch": 5, "step": 1130, "samples": samples_to_adam, "seconds": seconds_to_adam}
        rows.append({**start, "train_loss": adam[4], "train_log_loss": adam[4], **there})
    rows.append({**ends, "epoch": 10, "step": 2260, "samples": samples, "seconds": seconds})
    return [{"method": method, "seed": seed, **row} for row in rows]


def judged(runs: Runs, seeds: int = 3, **config: Any) -> dict[str, str]:
    """Return what the verdict says of each method."""
    known = {**METHODS, **SPECIAL}
    settings = {
        "methods": list(runs),
        "labels": {name: known[name].label for name in runs},
        "seeds": list(range(seeds)),
        "metrics": METRICS,
        "controls": ["small-batches"],
        **config,
    }
    rows = [
        row
        for method, own in runs.items()
        for seed in range(seeds)
        for row in curve(method, seed, own[seed], runs["adam"][seed])
    ]
    lines = verdict(rows, settings, {}).split("\n")
    return {name: next(line for line in lines if line.startswith(known[name].label + " ")) for name in list(runs)[1:]}


def changed(seed: int = 0, **values: float) -> tuple[Any, ...]:
    """Return Adam's run with a seed, in half of the time, with some values multiplied."""
    names = ("loss", "precision", "log_loss", "error")
    *_, loss, precision, log_loss, error = PROTEIN["adam"][seed]
    ends = zip(names, (loss, precision, log_loss, error), strict=True)
    return (0.5, 0.5, 0.5, 0.5, *(value * values.get(name, 1.0) for name, value in ends))


@pytest.mark.parametrize(
    ("method", "loss", "error"),
    [
        ("balanced-sampler", "1.5", "4.7"),
        ("undersampling", "1.5", "4.6"),
        ("focal-loss", "2.9", "31"),
        ("adamcb", "1.2", "2.1"),
    ],
)
def test_worse_probabilities_speak_against_a_method_that_ranks_as_well(method, loss, error):
    words = judged({name: PROTEIN[name] for name in ("adam", method)})[method]
    assert words.endswith(
        f", but test log loss is {loss} times Adam's and test calibration error {error} times, so its probabilities "
        "are less calibrated: do not use it here."
    )


def test_what_tests_as_well_in_half_of_the_time_is_to_be_used():
    words = judged({name: PROTEIN[name] for name in ("adam", "adamcb-smaller")})["adamcb-smaller"]
    assert words == (
        "AdamCB, smaller batches reached Adam's final training loss with 21 % of the samples and 36 % of the time; "
        "test average precision −0.0010 ± 0.0052: use it."
    )


def test_a_higher_training_loss_is_no_fault_of_what_tests_as_well():
    """The control's runs, as if they were those of a method that is none."""
    runs: Runs = {"adam": PROTEIN["adam"], "undersampling": PROTEIN["small-batches"]}
    words = judged(runs)["undersampling"]
    assert "ended at 1.54 times Adam's training loss with 25 % of the samples and 51 % of the time" in words
    assert words.endswith(": use it.")
    slow = [(0.25, 1.0, *rest) for _, _, *rest in PROTEIN["small-batches"]]
    assert judged({**runs, "undersampling": slow})["undersampling"].endswith(": it saves samples here, but no time.")


def test_the_control_comes_last_and_is_not_advised():
    rows = [row for name in ("adam", "small-batches", "adamcb-smaller") for row in _rows(name)]
    labels = {name: METHODS[name].label for name in ("adam", "small-batches", "adamcb-smaller")}
    config = {"methods": list(labels), "labels": labels, "seeds": [0, 1, 2], "metrics": METRICS}
    lines = verdict(rows, {**config, "controls": ["small-batches"]}, {}).split("\n")
    assert [line[:24] for line in lines] == ["AdamCB, smaller batches ", "Adam, smaller batches (a"]
    assert lines[1].endswith(": fewer samples are enough here, without choosing.")


def _rows(method: str) -> list[dict[str, Any]]:
    runs = enumerate(PROTEIN[method])
    return [row for seed, run in runs for row in curve(method, seed, run, PROTEIN["adam"][seed])]


def test_a_control_that_tests_worse_says_that_samples_alone_are_not_enough():
    worse = [(*run[:5], run[5] - 0.23, 1.4 * run[6], run[7]) for run in PROTEIN["small-batches"]]
    words = judged({"adam": PROTEIN["adam"], "small-batches": worse})["small-batches"]
    assert "but test log loss is 1.4 times Adam's" in words
    assert words.endswith(": fewer samples alone are not enough here.")


def test_a_much_better_metric_beside_a_worse_one_is_a_trade_off():
    runs = [changed(seed, loss=0.5, precision=1.1, error=1.7) for seed in range(3)]
    words = judged({"adam": PROTEIN["adam"], "undersampling": runs})["undersampling"]
    assert words.endswith(
        "but test calibration error is 1.7 times Adam's, so its probabilities are less calibrated: a trade-off."
    )


def test_time_beside_a_measure_that_is_surely_but_little_worse_is_a_trade_off():
    runs = [changed(seed, log_loss=1.05) for seed in range(3)]
    words = judged({"adam": PROTEIN["adam"], "undersampling": runs})["undersampling"]
    assert words.endswith(", but test log loss is 1.05 times Adam's: a trade-off.")


def test_what_may_be_much_worse_needs_more_seeds():
    runs = [changed(seed, log_loss=factor) for seed, factor in enumerate((0.9, 1.2, 1.6))]
    words = judged({"adam": PROTEIN["adam"], "undersampling": runs})["undersampling"]
    assert words.endswith(", and perhaps test log loss is 1.2 times Adam's: use it, if more seeds agree.")


def test_an_error_that_is_much_worse_in_some_runs_needs_more_seeds():
    runs = [changed(seed, error=factor) for seed, factor in enumerate((1.1, 1.5, 2.5))]
    words = judged({"adam": PROTEIN["adam"], "undersampling": runs})["undersampling"]
    assert words.endswith(", and perhaps test calibration error is 1.7 times Adam's: use it, if more seeds agree.")


def test_what_is_hardly_known_needs_more_seeds():
    """The mean is as good as Adam's, but the interval holds a difference that would matter."""
    runs = [changed(seed, precision=factor) for seed, factor in enumerate((0.95, 1.0, 1.05))]
    words = judged({"adam": PROTEIN["adam"], "undersampling": runs})["undersampling"]
    assert words.endswith(": use it, if more seeds agree.")


@pytest.mark.parametrize(
    ("factors", "advice"),
    [
        ({"log_loss": 1.09}, "use it, if more seeds agree"),
        ({"log_loss": 1.11}, "do not use it here, unless more seeds disagree"),
        ({"error": 1.4}, "use it, if more seeds agree"),
        ({"error": 1.6}, "do not use it here, unless more seeds disagree"),
        ({"error": 1.6, "precision": 1.03}, "a trade-off, if more seeds agree"),
    ],
)
def test_with_one_seed_only_what_is_much_worse_is_worse(factors, advice):
    words = judged({"adam": PROTEIN["adam"], "undersampling": [changed(**factors)]}, seeds=1)["undersampling"]
    assert words.endswith(f": {advice}.")


def test_a_metric_of_which_more_is_better_is_named_by_its_difference():
    metrics = [METRICS[1], METRICS[0]]
    worse = [changed(seed, precision=0.9) for seed in range(3)]
    words = judged({"adam": PROTEIN["adam"], "undersampling": worse}, metrics=metrics)["undersampling"]
    assert words.endswith(
        "; test log loss +0.00 ± 0.00, but test average precision −0.08692 ± 0.00077: do not use it here."
    )


def test_a_metric_that_repeats_the_loss_gives_it_its_name():
    config = {"metrics": METRICS}
    titles = [measure.title for measure in distinct_measures(config, _rows("adam"))]
    assert titles[:2] == ["training log loss", "test log loss"]
    assert len(titles) == 6
    other = [{**row, "test_log_loss": 1.01 * row["test_log_loss"]} for row in _rows("adam")]
    assert len(distinct_measures(config, other)) == 8
    lost = [{**row, "test_log_loss": float("nan")} for row in _rows("adam")[:1]]  # of a run that diverged
    assert len(distinct_measures(config, [*lost, *_rows("adam")])) == 6
    assert len(distinct_measures(config, [])) == 8


def test_noise_is_told_of_chosen_batches_that_save_samples():
    selection = [{"method": "adamcb-smaller", "second_moment": moment} for moment in (None, 0.9, 1.0, 1.6)]
    noise = noise_of(selection, {"batch_size": 512})
    assert noise == {"adamcb-smaller": approx(512)}
    labels = {name: METHODS[name].label for name in ("adam", "adamcb", "adamcb-smaller")}
    rows = [row for name in labels for row in _rows(name)]
    config = {"methods": list(labels), "labels": labels, "seeds": [0, 1, 2], "metrics": METRICS}
    chooses = {**config, "chooses": ["adamcb", "adamcb-smaller"]}
    lines = verdict(rows, chooses, {}, {**noise, "adamcb": 4096.0}).split("\n")
    assert "36 % of the time, in batches as noisy as 512 uniform samples; test" in lines[1]
    assert "noisy" not in lines[0]
    assert "noisy" not in verdict(rows, config, {}, noise)
