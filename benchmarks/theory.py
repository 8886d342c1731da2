"""The numbers of docs/theory.md that come neither from `adamcb regret` nor from a test, as Markdown.

    python -m benchmarks.theory [terms] [floor] [noise] [rest] [regret] [adambs]    all take about a minute
    python -m benchmarks.theory settings FOLDER ... [--csv FILE]                    folders of `adamcb regret`

terms: every term of the bounds of one run, from docs/theory/digits-T.csv. floor: Lemma 2 beside the floor, from there.
noise: second moment where all norms are equal. rest: where scale-free feedback comes to rest. regret: the bound of the
variant that divides by p, beside what it did. adambs: its spread over seeds beside Adam's. settings:
regret by learning rate and by λ.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

from adamcb.selection import CombinatorialBandit
from adamcb.theory import (
    best_probs,
    constants,
    exploration,
    interval,
    regret_bound,
    scale_free_step,
    second_moment,
)
from benchmarks.timing import markdown

DIGITS = Path(__file__).parent.parent / "docs" / "theory" / "digits-T.csv"
DIMENSION, LR, DECAY = 650, 0.03, 0.99  # of the runs in that file
REPRODUCTION = Path(__file__).parent.parent / "docs" / "reproduction"
# Without the gate of today's default, which would leave draws uniform where all norms are equal.
FORMS = {"paper": {"feedback": "proof", "gate": None}, "scale-free": {"gate": None}}


def rows_of(method: str, steps: int) -> list[dict[str, float]]:
    with DIGITS.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["method"] == method and int(row["steps"]) == steps]
    return [
        {name: float(cell) for name, cell in row.items() if name not in ("sweep", "method") and cell} for row in rows
    ]


def mean_of(rows: list[dict[str, float]], name: str) -> float:
    return sum(row[name] for row in rows) / len(rows)


def terms(steps: int = 4000) -> str:
    table = [["term", "uniform", "AdamCB"]]
    columns = []
    for method, theorem in (("uniform", "uniform"), ("adamcb-paper", "adamcb")):
        rows = rows_of(method, steps)
        largest, size = mean_of(rows, "largest_seen"), mean_of(rows, "coordinate_diameter")
        sizes = {"num_samples": int(rows[0]["num_samples"]), "batch_size": int(rows[0]["batch_size"]), "steps": steps}
        setting = {"dimension": DIMENSION, "max_norm": largest, "diameter": size, "lr": LR, "beta1_decay": DECAY}
        bound = regret_bound(theorem, **sizes, **setting, exploration=rows[0]["exploration"])
        common = {name: setting[name] for name in ("max_norm", "diameter", "lr")}
        rho = {
            decay: constants(steps, DIMENSION, **common, exploration=rows[0]["exploration"], beta1_decay=decay)
            for decay in (0.9, DECAY, 1 - 1e-8)
        }
        columns.append(
            {
                "regret measured": mean_of(rows, "cumulative"),
                "L_T": largest,
                "largest coordinate distance": size,
                "largest distance": mean_of(rows, "diameter"),
                "ρ₁d√T": bound.distance,
                "√dρ₂√S, S ≤ TL²": bound.norms,
                "√dρ₂√S, the lemma's part": bound.sampling,
                "√dρ₂√S, by the floor alone": bound.floor,
                "ρ₂Σ_u‖g_1:T,u‖ as measured": rho[DECAY].rho2 * mean_of(rows, "gradient_sums"),
                **{f"ρ₃, λ = {decay:.8g}": rho[decay].rho3 for decay in rho},
                "the paper's bound on (B)": bound.minimizers,
            }
        )
    table += [[name, *(f"{column[name]:.3g}" for column in columns)] for name in columns[0]]
    return markdown(table[0], table[1:])


def floor(steps: int = 4000) -> str:
    rows = rows_of("adamcb-paper", steps)
    n, k, gamma = int(rows[0]["num_samples"]), int(rows[0]["batch_size"]), rows[0]["exploration"]
    largest = mean_of(rows, "largest_seen")
    price = n / gamma * math.log(n / k) + (math.e - 1) * gamma * steps * k
    apart = largest**2 / gamma**2 * math.sqrt(2 * n * math.log(n / k) * steps / k)
    pays = {value: steps_until_it_pays(n, k, value) for value in (gamma, 0.4, 0.5)}
    return markdown(
        [f"in units of S; digits, T = {steps}, γ = {gamma:.3f}", "value"],
        [
            ["S, measured", f"{mean_of(rows, 'moment'):.3g}"],
            ["S of the best fixed probabilities", f"{mean_of(rows, 'best_fixed_moment'):.3g}"],
            ["their difference", f"{mean_of(rows, 'moment') - mean_of(rows, 'best_fixed_moment'):.3g}"],
            ["Lemma 2's bound on it, with L² for its hidden constant", f"{k / n**2 * largest**2 * price:.3g}"],
            ["Lemma 2's bound on it, with L²/p_min²", f"{largest**2 / (k * gamma**2) * price:.3g}"],
            ["the floor's bound on S, TL²/γ", f"{steps * largest**2 / gamma:.3g}"],
            ["the floor's bound on S, (uniform sampling's S)/γ", f"{mean_of(rows, 'uniform_moment') / gamma:.3g}"],
            ["with a rate of its own, (L²/γ²)√(2n ln(n/K)T/K)", f"{apart:.3g}"],
            *([f"with it, steps until its whole bound is below TL²/γ, γ = {g:.3g}", f"{pays[g]:.4g}"] for g in pays),
        ],
    )


def steps_until_it_pays(n: int, k: int, gamma: float) -> float:
    """Return the T from which TL² + (L²/γ²)√(2n ln(n/K)T/K) is below TL²/γ: proofs.md, 5, where S(p̃) ≤ TL²."""
    return 2 * n * math.log(n / k) / (k * gamma**2 * (1 - gamma) ** 2)


def noise(n: int = 400, k: int = 8) -> str:
    """All norms are 1; γ is Lemma 2's. Second moment at the end ÷ uniform sampling's, for both forms of feedback."""
    table = [["T", "γ", *FORMS]]
    for steps in (500, 2000, 8000):
        gamma, cells = exploration(n, k, steps), []
        for form in FORMS.values():
            bandit = CombinatorialBandit(n, k, exploration=gamma, generator=torch.Generator().manual_seed(3), **form)
            for _ in range(steps):
                bandit.update(bandit.draw(), np.ones(k))
            cells.append(f"{k / n**2 * second_moment(np.ones(n), bandit.inclusion_probs()):.2f}")
        table.append([str(steps), f"{gamma:.3f}", *cells])
    return markdown(table[0], table[1:])


def rest(n: int = 40, k: int = 2, steps: int = 4000) -> str:
    """Where mean steps of scale-free feedback end, above the least second moment with that floor."""
    table = [["γ", "spread of log norms", "samples at the floor", "uniform", "G over weights", "G over the batch"]]
    for gamma in (0.2, 0.4, 0.7):
        for spread in (0.5, 1.0):
            norms = np.random.default_rng(3).lognormal(0.0, spread, n)
            best = best_probs(norms, k, exploration=gamma)
            least = second_moment(norms, best)
            ends = [second_moment(norms, _rest_probs(norms, k, gamma, level, steps)) for level in ("weights", "batch")]
            ends.insert(0, second_moment(norms, np.full(n, k / n)))
            floored = int((best <= k * gamma / n * (1 + 1e-9)).sum())
            table.append(
                [f"{gamma}", f"{spread}", f"{floored} of {n}", *(f"{100 * (v / least - 1):.2f} %" for v in ends)]
            )
    return markdown(table[0], table[1:])


def _rest_probs(norms: np.ndarray, k: int, gamma: float, level: str, steps: int) -> np.ndarray:
    weights = np.ones(len(norms))
    for _ in range(steps):
        probs = k * ((1 - gamma) * weights / weights.sum() + gamma / len(norms))
        step = scale_free_step(weights, norms, range(len(norms)), k, exploration=gamma, level=level) / weights
        weights = weights * step ** (2 * probs)
        weights = np.maximum(weights / weights.mean(), 1e-12)
    return probs


def norms_over_time(n: int, steps: int, drift: float) -> Iterator[np.ndarray]:
    """Log-normal norms with spread 0.8; each logarithm is an autoregressive process whose memory is 1/drift steps."""
    rng = np.random.default_rng(0)
    logs = rng.normal(size=n)
    for _ in range(steps):
        yield np.exp(0.8 * logs)
        logs = math.sqrt(1 - 2 * drift) * logs + math.sqrt(2 * drift) * rng.normal(size=n) if drift else logs


def regret(n: int = 400, k: int = 8, gamma: float = 0.2, r: float = 0.1) -> str:
    """The variant that divides by p: its mean relative regret against the best fixed p, and the proved bound."""
    table = [["norms", "epochs", "measured", "bound", "of which start, noise, clip", "uniform sampling"]]
    for name, drift in (("constant", 0.0), ("drifting, memory of 10 epochs", 0.1 * k / n)):
        for epochs in (50, 200, 400):
            steps = epochs * n // k
            sums = np.sqrt(sum(norms**2 for norms in norms_over_time(n, steps, drift)))
            fixed = best_probs(sums, k, exploration=gamma)
            found = _relative_regret(norms_over_time(n, steps, drift), fixed, k, gamma, r)
            start = (1 - gamma) * math.log(n / k) / (r * epochs)
            parts = (start, found["noise"], found["clip"])
            cells = [f"{found['measured']:.3f}", f"{sum(parts):.3f}", ", ".join(f"{part:.3f}" for part in parts)]
            table.append([name, str(epochs), *cells, f"{found['uniform']:.3f}"])
    return markdown(table[0], table[1:])


def _relative_regret(
    norms_at: Iterator[np.ndarray], fixed: np.ndarray, k: int, gamma: float, r: float
) -> dict[str, float]:
    n, rng, weights, rows = len(fixed), np.random.default_rng(1), np.ones(len(fixed)), []
    inner = (fixed - k * gamma / n) / (1 - gamma)
    for norms in norms_at:
        probs = k * ((1 - gamma) * weights / weights.sum() + gamma / n)
        if probs.max() >= 1.0:
            raise RuntimeError("A sample is capped; the bound does not cover that.")
        cost, other = second_moment(norms, probs), second_moment(norms, fixed)
        ratio = (norms / probs) ** 2 / (cost / k)
        over = np.clip(ratio - 1 - probs * n / (r * k), 0.0, None)
        uniform = second_moment(norms, np.full(n, k / n))
        rows.append(
            (1 - other / cost, r * ((ratio - 1) ** 2).mean(), (1 - gamma) * (inner @ over) / k, 1 - other / uniform)
        )
        batch = _systematic(probs, rng)
        weights[batch] *= np.exp(np.clip(k / n * r * (ratio[batch] - 1) / probs[batch], -1.0, 1.0))
    return dict(zip(("measured", "noise", "clip", "uniform"), np.mean(rows, axis=0), strict=True))


def _systematic(probs: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw K samples with these inclusion probabilities, in a random order; the bound asks for no more."""
    order = rng.permutation(len(probs))
    ends = np.cumsum(probs[order])
    return order[np.searchsorted(ends / ends[-1] * round(ends[-1]), np.arange(round(ends[-1])) + rng.random())]


def adambs(folder: Path = REPRODUCTION) -> str:
    """Final training losses of AdamBS in its original form beside Adam's, over seeds, from docs/reproduction.

    Its files have a row for each method. Those named *-runs.csv have a row for each epoch of each run.
    """
    table = [["setting", "Adam", "AdamBS (original)", "its best epoch"]]
    for path in sorted(path for path in folder.glob("*.csv") if not path.stem.endswith("-runs")):
        with path.open(newline="", encoding="utf-8") as file:
            rows = {row["method"]: row for row in csv.DictReader(file)}
        if "adambs-original" in rows:
            losses = [
                (rows[m]["final_train_loss"], rows[m]["final_train_loss_std"]) for m in ("adam", "adambs-original")
            ]
            cells = [f"{float(mean):.3g} ± {float(std):.1g}" for mean, std in losses]
            table.append([path.stem, *cells, f"{float(rows['adambs-original']['best_train_loss']):.3g}"])
    return markdown(table[0], table[1:])


def settings(folders: list[Path], path: Path | None) -> str:
    """Regret of uniform sampling by α and λ, from folders of `adamcb regret`; `path`: write the rows as CSV."""
    rows = []
    for folder in folders:
        chosen = json.loads((folder / "config.json").read_text(encoding="utf-8"))["settings"]
        with (folder / "regret.csv").open(newline="", encoding="utf-8") as file:
            rows += [{"lr": chosen["lr"], "beta1_decay": chosen["beta1_decay"], **row} for row in csv.DictReader(file)]
    if path is not None:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, rows[0], lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    groups: dict[tuple[str, str, str], list[float]] = {}
    for row in rows:
        key = (str(row["lr"]), f"{float(row['beta1_decay']):.8g}", str(row["steps"]))
        groups.setdefault(key, []).append(float(row["cumulative"]))
    table = [["α", "λ", "T", "seeds", "cumulative regret"]]
    table += [[*key, str(len(values)), str(interval(values))] for key, values in groups.items()]
    return markdown(table[0], table[1:])


PARTS: dict[str, Callable[[], str]] = {
    "terms": terms,
    "floor": floor,
    "noise": noise,
    "rest": rest,
    "regret": regret,
    "adambs": adambs,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", metavar="WHAT", help=f"{', '.join(PARTS)}; or settings and folders")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="where `settings` writes its rows")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.what[:1] == ["settings"]:
        print(settings([Path(folder) for folder in options.what[1:]], options.csv))
        return
    unknown = [name for name in options.what if name not in PARTS]
    if unknown:
        parser.error(f"`WHAT` must be one of {', '.join(PARTS)}, got {unknown[0]}.")
    for name in options.what or PARTS:
        print(f"## {name}\n\n{PARTS[name]()}\n", flush=True)


if __name__ == "__main__":
    main()
