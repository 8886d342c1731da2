"""The verdict: what a comparison says, in words. Everything in it is computed from the runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from adamcb.lab.results.against import Against, Change, compare_with
from adamcb.lab.results.columns import Row
from adamcb.lab.results.summary import baseline_of, complete_curves

# What counts as a saving, as the same loss, and as no more time.
_SAVED, _SAME_LOSS, _SAME_TIME = 0.97, 1.03, 1.03
_USE, _AVOID, _TRADE = "use it", "do not use it here", "a trade-off"
_SAVES_SAMPLES = "it saves samples here, but no time"
# Of what became worse, so many measures are named.
_NAMED = 2


def verdict(
    results: Sequence[Row],
    config: Mapping[str, Any],
    batches: Mapping[str, tuple[int, int]],
    noise: Mapping[str, float] | None = None,
) -> str:
    """Return one sentence for each method but the baseline, or one that says that there is no other.

    Controls come last. A run that diverged is compared with nothing. A method that diverged more often than the
    baseline is not advised, and neither is one that makes a test measure worse.

    Args:
        results: The rows of results.csv.
        config: config.json.
        batches: By method, how many batches were chosen, and how many were drawn.
        noise: By method, how many uniform samples are as noisy as its batches, where that is known.
    """
    curves = complete_curves(results)
    if not curves:
        return "Every run diverged, so there is nothing to compare. Try a lower learning rate: --lr."
    baseline, controls = baseline_of(config["methods"]), config.get("controls", ())
    others = [method for method in config["methods"] if method != baseline]
    if not others:
        return f"{config['labels'][baseline]} ran alone, so there is nothing to compare it with."
    others.sort(key=lambda method: method in controls)
    return "\n".join(
        _sentence(method, baseline, results, config, batches.get(method), (noise or {}).get(method))
        for method in others
    )


def noise_of(selection: Sequence[Row], config: Mapping[str, Any]) -> dict[str, float]:
    """Return by method how many uniform samples are as noisy as its batches: the median over selection.csv."""
    moments: dict[str, list[float]] = {}
    for row in selection:
        if row.get("second_moment"):
            moments.setdefault(row["method"], []).append(row["second_moment"])
    return {method: config["batch_size"] / statistics.median(found) for method, found in moments.items()}


def _sentence(
    method: str,
    baseline: str,
    results: Sequence[Row],
    config: Mapping[str, Any],
    batches: tuple[int, int] | None,
    noise: float | None,
) -> str:
    label, other = config["labels"][method], config["labels"][baseline]
    lost, lost_by_baseline = (_diverged(name, results, config) for name in (method, baseline))
    found = compare_with(method, baseline, results, config)
    if found is None:
        who = next(
            (config["labels"][name] for name, runs in ((method, lost), (baseline, lost_by_baseline)) if runs), ""
        )
        why = f": {who} diverged" if who else "; see the notes"
        return f"{label}: no run can be compared with one of {other}{why}."
    chooses, is_control = method in config.get("chooses", ()), method in config.get("controls", ())
    if batches is not None and chooses and batches[0] == 0:
        return f"{label} chose 0 of {batches[1]} batches: it has no effect here."
    text = f"{label}{' (a control)' if is_control else ''} {_costs(found, other)}"
    if noise is not None and chooses and found.samples <= _SAVED:
        text += f", in batches as noisy as {noise:.0f} uniform samples"
    text += f"; {_tests(found, other)}"
    if lost > lost_by_baseline:
        return f"{text}, but {lost} of its {len(config['seeds'])} runs diverged: {_AVOID}."
    return f"{text}: {_advice_on_control(found) if is_control else _advice(found)}."


def _diverged(method: str, results: Sequence[Row], config: Mapping[str, Any]) -> int:
    """Return how many runs of a method did not come to their end."""
    return len(config["seeds"]) - sum(name == method for name, _ in complete_curves(results))


def _costs(found: Against, other: str) -> str:
    """Return where the training loss ended, or when it was where the other ended, and what that took."""
    if found.reached is not None:
        samples, seconds = found.reached
        text = f"reached {other}'s final training loss"
    else:
        samples, seconds = found.samples, found.seconds
        text = f"ended at {math.exp(found.loss.mean):.2f} times {other}'s training loss"
    return f"{text} with {100 * samples:.0f} % of the samples and {100 * seconds:.0f} % of the time"


def _tests(found: Against, other: str) -> str:
    """Return how the first metric differs, and which other measures are worse: the test loss first, then the worst."""
    first, *rest = found.changes
    rest.sort(key=lambda change: (not change.measure.is_loss, -change.ratio))
    worse = [change for change in rest if change.is_worse]
    uncertain = [change for change in rest if change.is_much_worse]
    text = _difference(first)
    if worse:
        text += f", but {_list(worse[:_NAMED], other)}"
    elif uncertain:
        text += f", and perhaps {_list(uncertain, other)}"
    if any(change.measure.metric == "calibration_error" for change in worse):
        text += ", so its probabilities are less calibrated"
    return text


def _list(changes: Sequence[Change], other: str) -> str:
    """Return how much worse measures are: as a ratio where less is better, and as a difference otherwise."""
    texts, verb, whose = [], " is", f" {other}'s"
    for change in changes:
        if math.isnan(change.ratio):
            texts.append(_difference(change))
            continue
        digits = 0 if change.ratio >= 9.95 else 1 if change.ratio >= 1.095 else 2 if change.ratio >= 1.005 else 4
        texts.append(f"{change.measure.title}{verb} {change.ratio:.{digits}f} times{whose}")
        verb = whose = ""  # said once
    return " and ".join(texts)


def _difference(change: Change) -> str:
    """Return how a measure differs, with its sign as the reader expects it: more is more."""
    scale = 100.0 if change.measure.percent else 1.0
    mean = scale * change.difference.mean * (1.0 if change.measure.higher_is_better else -1.0) + 0.0  # no −0.00
    margin = scale * change.difference.margin
    size = margin if math.isfinite(margin) and margin > 0.0 else abs(mean)
    digits = 2 if change.measure.percent else min(6, max(2, 1 - math.floor(math.log10(size)))) if size > 0.0 else 2
    unit = " points" if change.measure.percent else ""
    spread = f" ± {margin:.{digits}f}{unit}" if math.isfinite(margin) else f"{unit} (one seed)"
    return f"{change.measure.title} {mean:+.{digits}f}{spread}".replace("-", "−")


def _advice(found: Against) -> str:
    first, one_seed = found.changes[0], math.isnan(found.changes[0].difference.margin)
    advice = _advice_on_costs(found)
    if found.worse:
        gains = advice == _USE and not any(change.is_much_worse for change in found.worse)
        if gains or first.difference.mean > max(first.much, 0.0 if one_seed else first.difference.margin):
            return f"{_TRADE}, if more seeds agree" if one_seed else _TRADE
        return f"{_AVOID}, unless more seeds disagree" if one_seed else _AVOID
    # One seed cannot tell a difference from chance, and few seeds may not.
    if advice == _USE and any(change.may_be_worse for change in found.changes):
        return f"{_USE}, if more seeds agree"
    return advice


def _advice_on_costs(found: Against) -> str:
    """Return the advice that would hold if no test measure were worse."""
    samples, seconds = found.reached or (found.samples, found.seconds)
    same_loss = found.reached is not None or math.exp(found.loss.mean) <= _SAME_LOSS
    if same_loss and seconds <= _SAVED:
        return _USE
    if found.changes[0].is_better and found.seconds <= _SAME_TIME:
        return _USE
    if same_loss and samples <= _SAVED:
        return _SAVES_SAMPLES
    # The training loss stays higher, and that does not matter where the method tests as well all the same.
    if not same_loss and not any(change.decides and change.is_much_worse for change in found.changes):
        if found.seconds <= _SAVED:
            return _USE
        if found.samples <= _SAVED and found.seconds <= _SAME_TIME:
            return _SAVES_SAMPLES
    return "it gains nothing here" if found.seconds > _SAME_TIME or not same_loss else "it makes no difference here"


def _advice_on_control(found: Against) -> str:
    """Return what uniform batches on fewer samples say of the choosing."""
    if found.worse or any(change.decides and change.is_much_worse for change in found.changes):
        return "fewer samples alone are not enough here"
    if any(change.may_be_worse for change in found.changes):
        return "fewer samples may be enough here, without choosing"
    return "fewer samples are enough here, without choosing"
