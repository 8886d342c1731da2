"""The verdict: what it says of runs whose outcome is known."""

import pytest
from pytest import approx

from adamcb.lab.results.against import compare_with
from adamcb.lab.results.verdict import verdict

CONFIG = {
    "methods": ["adam", "mine"],
    "labels": {"adam": "Adam", "mine": "Mine"},
    "seeds": [0, 1, 2],
    "chooses": ["mine"],
    "metrics": [{"name": "accuracy", "better": "higher", "percent": True}],
}
BATCHES = {"adam": (0, 40), "mine": (30, 40)}


def run(
    method: str,
    seed: int,
    losses: list[float],
    *,
    accuracy: float,
    test_loss: float = 0.6,
    samples: int = 100,
    seconds: float = 10.0,
):
    """Return the rows of a run: one an epoch of ten steps."""
    return [
        {
            "method": method,
            "seed": seed,
            "epoch": epoch,
            "step": 10 * epoch,
            "samples": samples * epoch,
            "seconds": seconds * epoch,
            "train_loss": loss,
            "test_loss": test_loss,
            "train_accuracy": accuracy,
            "test_accuracy": accuracy + 0.001 * seed,
        }
        for epoch, loss in enumerate(losses)
    ]


def both(losses: list[float], *, better: float = 0.0, seeds: int = 3, **costs) -> list[dict]:
    rows = []
    for seed in range(seeds):
        rows += run("adam", seed, [2.0, 1.0, 0.5], accuracy=0.9)
        rows += run("mine", seed, losses, accuracy=0.9 + better * (1.0 + 0.1 * seed), **costs)
    return rows


def test_a_method_that_gets_there_sooner_is_to_be_used():
    """Half the samples a step, and Adam's end after the first epoch: a quarter of the samples."""
    words = verdict(both([2.0, 0.5, 0.2], better=0.01, samples=50, seconds=6.0), CONFIG, BATCHES)
    assert words.startswith(
        "Mine reached Adam's final training loss with 25 % of the samples and 30 % of the time; test accuracy +1.1"
    )
    assert words.endswith("points: use it.")


def test_times_between_two_evaluations_are_where_the_loss_would_be():
    found = compare_with("mine", "adam", both([2.0, 1.0, 0.25]), CONFIG)
    assert found is not None
    assert found.reached == approx((0.75, 0.75))


def test_the_same_loss_from_fewer_samples_counts_as_a_saving():
    words = verdict(both([2.0, 1.0, 0.505], samples=50, seconds=7.0), CONFIG, BATCHES)
    assert words.startswith(
        "Mine ended at 1.01 times Adam's training loss with 50 % of the samples and 70 % of the time; test accuracy"
    )
    assert words.endswith(": use it.")


def test_samples_without_time_are_told_apart():
    words = verdict(both([2.0, 1.0, 0.505], samples=50, seconds=11.0), CONFIG, BATCHES)
    assert words.endswith(": it saves samples here, but no time.")


def test_a_metric_that_is_surely_worse_speaks_against_it():
    words = verdict(both([2.0, 0.5, 0.2], better=-0.02), CONFIG, BATCHES)
    assert "test accuracy −2.2" in words
    assert words.endswith(": do not use it here.")


ONE_SEED = {**CONFIG, "seeds": [0]}


def test_what_one_seed_says_depends_on_more_of_them():
    words = verdict(both([2.0, 0.5, 0.2], better=-0.009, seeds=1), ONE_SEED, BATCHES)
    assert words.endswith("−0.90 points (one seed): use it, if more seeds agree.")


def test_one_seed_that_is_much_worse_speaks_against_it():
    words = verdict(both([2.0, 0.5, 0.2], better=-0.02, seeds=1), ONE_SEED, BATCHES)
    assert words.endswith("−2.00 points (one seed): do not use it here, unless more seeds disagree.")


@pytest.mark.parametrize(("change", "avoided"), [(0.017, False), (0.019, True)])
def test_much_worse_is_a_fiftieth_of_what_is_no_percentage(change, avoided):
    """Adam has 0.9, of which a fiftieth is 0.018; less is better."""
    config = {**ONE_SEED, "metrics": [{"name": "accuracy", "better": "lower", "percent": False}]}
    words = verdict(both([2.0, 0.5, 0.2], better=change, seeds=1), config, BATCHES)
    assert words.endswith(": do not use it here, unless more seeds disagree.") == avoided
    assert words.endswith(": use it, if more seeds agree.") != avoided


def test_where_nothing_was_chosen_it_says_so():
    words = verdict(both([2.0, 1.0, 0.5]), CONFIG, {**BATCHES, "mine": (0, 60)})
    assert words == "Mine chose 0 of 60 batches: it has no effect here."
    other = {**CONFIG, "chooses": []}  # an optimizer of its own, for instance
    assert "chose" not in verdict(both([2.0, 1.0, 0.5]), other, {**BATCHES, "mine": (0, 60)})


def test_a_loss_that_stays_higher_brings_nothing():
    words = verdict(both([2.0, 1.5, 1.0]), CONFIG, BATCHES)
    assert words.startswith("Mine ended at 2.00 times Adam's training loss with 100 % of the samples and 100 % of the ")
    assert words.endswith(": it gains nothing here.")


def test_of_a_metric_where_less_is_better_less_is_better():
    metrics = [{"name": "accuracy", "better": "lower", "percent": False}]
    words = verdict(both([2.0, 0.5, 0.2], better=0.02), {**CONFIG, "metrics": metrics}, BATCHES)
    assert "test accuracy +0.02" in words
    assert words.endswith(": do not use it here.")


def test_without_metrics_the_test_loss_decides():
    words = verdict(both([2.0, 0.5, 0.2], test_loss=0.3), {**CONFIG, "metrics": []}, BATCHES)
    assert "test loss −0.30 ± 0.00: use it." in words


def diverged(rows: list[dict], *runs: tuple[str, int]) -> list[dict]:
    """Mark runs as diverged, which says so in all of their rows; their last one is missing, or is not."""
    return [{**row, "diverged": "step 15" if (row["method"], row["seed"]) in runs else None} for row in rows]


MINE, ADAM = (tuple((name, seed) for seed in range(3)) for name in ("mine", "adam"))


def test_runs_that_ended_early_cannot_be_compared():
    rows = [row for row in both([2.0, 0.5, 0.2]) if row["method"] == "adam" or row["epoch"] < 2]
    assert verdict(rows, CONFIG, BATCHES) == "Mine: no run can be compared with one of Adam: Mine diverged."


def test_runs_that_diverged_decide_nothing():
    rows = both([2.0, 0.5, 0.2], better=0.02)
    assert verdict(rows, CONFIG, BATCHES).endswith("points: use it.")
    for runs, name in ((MINE, "Mine"), (ADAM, "Adam")):
        words = verdict(diverged(rows, *runs), CONFIG, BATCHES)
        assert words == f"Mine: no run can be compared with one of Adam: {name} diverged."
    assert "Every run diverged" in verdict(diverged(rows, *MINE, *ADAM), CONFIG, BATCHES)
    assert "Every run diverged" in verdict([], CONFIG, BATCHES)


def test_a_method_that_diverges_now_and_then_is_not_advised_unless_the_baseline_does_too():
    rows = both([2.0, 0.5, 0.2], better=0.02)
    words = verdict(diverged(rows, MINE[1]), CONFIG, BATCHES)
    assert words.endswith(" points, but 1 of its 3 runs diverged: do not use it here.")
    assert "+2.20" in words  # of seeds 0 and 2: 2.0 and 2.4 points
    assert verdict(diverged(rows, MINE[1], ADAM[2]), CONFIG, BATCHES).endswith(
        "points (one seed): use it, if more seeds agree."
    )


@pytest.mark.parametrize("methods", [["adam"], ["mine"]])
def test_a_method_alone_has_nothing_to_be_compared_with(methods):
    rows = [row for row in both([2.0, 0.5, 0.2]) if row["method"] in methods]
    words = verdict(rows, {**CONFIG, "methods": methods}, BATCHES)
    assert words == f"{CONFIG['labels'][methods[0]]} ran alone, so there is nothing to compare it with."
