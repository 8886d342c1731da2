"""The tasks that ship: what they are made of, at small scale."""

import gzip
import math
from dataclasses import replace

import numpy as np
import pytest
import scipy.io
import torch
from pytest import approx
from sklearn import metrics as sklearn_metrics

from adamcb.lab import compare, metrics
from adamcb.lab.tasks.check import check_task
from adamcb.lab.tasks.heavy_tails import heavy_tails
from adamcb.lab.tasks.kddcup99 import read_kddcup99
from adamcb.lab.tasks.load import DEFAULT_TASK, TASKS
from adamcb.lab.tasks.pinn import ALLEN_CAHN, BURGERS, Jet, Solution, pinn, read_reference, squared_residual
from adamcb.lab.tasks.rare_events import rare_events
from adamcb.lab.tasks.speakers import PAD, START, UNKNOWN, Classifier, read_speeches


def test_rare_events_are_rare_and_the_first_run_trains_on_them():
    assert TASKS[DEFAULT_TASK] is rare_events
    task = rare_events(num_train=4000, num_test=1000)
    check_task(task)
    assert 0.005 < task.train.tensors[1].double().mean() < 0.02
    assert (len(task.train), len(task.test)) == (4000, 1000)
    assert task.train.tensors[0].mean(0).abs().max() < 1e-5


def test_targets_with_heavy_tails_have_most_of_their_variance_in_few_rows():
    task = heavy_tails(num_train=4000, num_test=500)
    check_task(task)
    targets = task.train.tensors[1]
    squares = (targets - targets.mean()).square().sort(descending=True).values
    assert squares[:400].sum() > 0.7 * squares.sum()


def connection(number: int, service: str, kind: str) -> str:
    return ",".join([str(number), "tcp", service, "SF", "181", *["0"] * 36, f"{kind}."])


def test_kddcup99_keeps_equal_rows_on_one_side(tmp_path):
    lines = [
        connection(number % 50, ("http", "smtp")[number % 2], ("normal", "smurf")[number % 2]) for number in range(400)
    ]
    with gzip.open(tmp_path / "kdd.gz", "wt") as file:
        file.write("\n".join(lines) + "\n")
    train, test, num_classes = read_kddcup99(tmp_path / "kdd.gz")
    assert len(train) + len(test) == 400
    assert num_classes == 2
    assert train.tensors[0].shape[1] == 38 + 1 + 2 + 1  # numbers, and a column for each word
    sides = [{tuple(row) for row in split.tensors[0].tolist()} for split in (train, test)]
    assert sides[0]
    assert sides[1]
    assert not sides[0] & sides[1]
    others = read_kddcup99(tmp_path / "kdd.gz", validation=True)[:2]
    assert sum(map(len, others)) == len(train), "the test rows are left out"
    assert 0 < len(others[1]) < len(others[0])
    assert not set(map(tuple, others[0].tensors[0].tolist())) & set(map(tuple, others[1].tensors[0].tolist()))
    (tmp_path / "bad.gz").write_bytes(b"nothing")
    with pytest.raises(ValueError, match="must be the 10 % file of KDD Cup 1999"):
        read_kddcup99(tmp_path / "bad.gz")
    with gzip.open(tmp_path / "short.gz", "wt") as file:
        file.write("1,2,3\n")
    with pytest.raises(ValueError, match="not 42 columns everywhere"):
        read_kddcup99(tmp_path / "short.gz")


def jet_by_autograd(model: Solution, points: torch.Tensor) -> Jet:
    points = points.clone().requires_grad_()
    u = model.value(points)
    first = torch.autograd.grad(u.sum(), points, create_graph=True)[0]
    second = torch.autograd.grad(first[:, 0].sum(), points, create_graph=True)[0]
    return Jet(u, first[:, 0], first[:, 1], second[:, 0])


@pytest.mark.parametrize("equation", [BURGERS, ALLEN_CAHN], ids=lambda equation: equation.name)
def test_derivatives_of_the_solution_and_of_its_residual_are_those_of_autograd(equation):
    generator = torch.Generator().manual_seed(0)
    points = 2.0 * torch.rand(30, 2, generator=generator, dtype=torch.float64) - 1.0
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = Solution(equation, width=8, depth=3).double()
        for parameter in model.parameters():  # biases start at 0
            torch.nn.init.normal_(parameter, std=0.5)
    expected = jet_by_autograd(model, points)
    for found, other in zip(model(points), expected, strict=True):
        torch.testing.assert_close(found, other)
    losses = (squared_residual(model, (points,)), equation.residual(expected).square())
    for found, other in zip(*(torch.autograd.grad(loss.sum(), [*model.parameters()]) for loss in losses), strict=True):
        torch.testing.assert_close(found, other)


def test_initial_and_boundary_values_are_exact():
    x = torch.linspace(-1.0, 1.0, 11, dtype=torch.float64)
    for equation, start, edge in ((BURGERS, -(math.pi * x).sin(), 0.0), (ALLEN_CAHN, x**2 * (math.pi * x).cos(), -1.0)):
        model = Solution(equation).double()
        torch.testing.assert_close(model.value(torch.stack([x, torch.zeros_like(x)], 1)), start)
        ends = torch.tensor([[-1.0, 0.3], [1.0, 0.8]], dtype=torch.float64)
        assert model.value(ends).tolist() == approx([edge] * 2, abs=1e-12)


def test_the_residual_of_a_known_solution_is_zero():
    class Known(Solution):
        def forward(self, points):
            x, t = (part.detach() for part in points.unbind(1))
            # u = x/(1 + t) solves u_t + u u_x = 0, and u_xx is 0.
            jet = super().forward(points)
            return jet._replace(u=x / (1 + t), x=1 / (1 + t), t=-x / (1 + t) ** 2, xx=torch.zeros_like(x))

    points = torch.rand(20, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert squared_residual(Known(BURGERS).double(), (points,)).max() < 1e-28


def test_an_equation_is_learned_from_its_residuals(tmp_path):
    x, t = np.linspace(-1.0, 1.0, 21), np.linspace(0.0, 1.0, 11)
    (tmp_path / "pinn").mkdir()
    np.savez(tmp_path / "pinn" / "burgers.npz", x=x, t=t, usol=-np.sin(np.pi * x)[:, None] * np.exp(-t)[None])
    task = pinn(BURGERS, str(tmp_path), num_points=600)
    grid, reference = read_reference(tmp_path / "pinn" / "burgers.npz")
    assert reference.tolist() == approx((-torch.sin(math.pi * grid[:, 0]) * torch.exp(-grid[:, 1])).tolist(), abs=1e-6)
    scipy.io.savemat(tmp_path / "same.mat", {"x": x, "t": t, "u": reference.reshape(11, 21).numpy()})
    assert torch.equal(read_reference(tmp_path / "same.mat")[1], reference)
    comparison = compare(replace(task, epochs=8), methods=("adam", "adamcb", "rad"), seeds=1)
    for record in comparison.summary:
        first = next(row for row in comparison.results if row["method"] == record["method"])
        assert record["final_train_loss"] < 0.9 * first["train_loss"]
    assert "test relative L2 error" in comparison.verdict


def test_calibration_error_is_the_gap_between_confidence_and_frequency():
    probs = torch.tensor([0.1] * 10 + [0.9] * 10, dtype=torch.float64)
    targets = torch.tensor([1.0] * 3 + [0.0] * 7 + [1.0] * 9 + [0.0])
    assert metrics.calibration_error(probs.logit(), targets) == approx(0.5 * 0.2)
    logits = torch.stack([torch.zeros(20, dtype=torch.float64), probs.logit()], 1)
    assert metrics.calibration_error(logits, targets) == approx(0.5 * 0.2)
    three = torch.tensor([[0.8, 0.1, 0.1]] * 4, dtype=torch.float64).log()
    assert metrics.calibration_error(three, torch.tensor([0, 0, 1, 2])) == approx(0.3)


def test_average_precision_of_several_classes_is_the_mean_over_them():
    generator = torch.Generator().manual_seed(0)
    logits, targets = torch.randn(60, 4, generator=generator), torch.randint(3, (60,), generator=generator)
    scores = logits.double().log_softmax(1).numpy()
    each = [sklearn_metrics.average_precision_score((targets == kind).numpy(), scores[:, kind]) for kind in range(3)]
    assert metrics.average_precision(logits, targets) == approx(np.mean(each))


def test_a_speech_is_words_and_its_label_whether_the_speaker_has_a_name(tmp_path):
    speeches = [f"ROMEO:\nO, she doth teach number{chr(97 + n)}!" if n % 4 else "Nurse:\nO, o, o." for n in range(20)]
    path = tmp_path / "text.txt"
    path.write_text("\n\n".join(speeches))
    train, test, num_words = read_speeches(path, length=8)
    assert (len(train), len(test)) == (16, 4)
    words, labels = (torch.cat([train.tensors[part], test.tensors[part]]) for part in (0, 1))
    assert num_words == START + 1 + len({"o", ",", "she", "doth", "teach", "!", "."})
    assert (int(labels.sum()), words.shape) == (5, (20, 8))
    assert (words[:, 0] == START).all()
    nurse, romeo = words[labels == 1], words[labels == 0]
    assert (nurse[:, 7] == PAD).all()
    assert (nurse[:, :7] != PAD).all()
    assert (romeo == UNKNOWN).sum(1).tolist() == [1] * 15  # each has a word of its own
    path.write_text("\n\n".join(speech for speech in speeches if "ROMEO" in speech))
    with pytest.raises(ValueError, match="must have speeches of speakers with and without a name, got 15 speeches"):
        read_speeches(path)


def test_padding_does_not_change_what_bert_says():
    pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = Classifier(20, width=16, layers=1).eval()
    words = torch.randint(3, 20, (4, 6))
    padded = torch.cat([words, torch.full((4, 5), PAD)], dim=1)
    assert torch.allclose(model(words), model(padded), atol=1e-6)
