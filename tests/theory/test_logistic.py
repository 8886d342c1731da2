"""The convex problem, against autograd and scipy."""

import pytest
import torch

from adamcb.theory import LogisticProblem
from tests.reference.regret import sample_gradient, sample_loss, weighted_loss, weighted_minimum
from tests.theory.problems import clouds


@pytest.fixture
def params(generator):
    problem = clouds()
    return torch.randn(problem.start().shape, generator=generator, dtype=torch.float64)


def test_losses_norms_and_gradients_are_those_of_autograd(params):
    problem = clouds()
    losses, norms = problem.evaluate(params)
    for i in range(problem.num_samples):
        torch.testing.assert_close(losses[i], sample_loss(problem, params, i), rtol=1e-12, atol=0)
        torch.testing.assert_close(norms[i], sample_gradient(problem, params, i).norm(), rtol=1e-12, atol=0)


def test_a_batch_has_the_gradient_of_its_weighted_loss(params):
    problem, indices = clouds(), torch.tensor([3, 17, 3, 8])
    weights = torch.tensor([0.2, 1.5, 0.1, 0.7], dtype=torch.float64)
    batch = problem.batch(params, indices, weights)
    expected = sum(w * sample_gradient(problem, params, int(i)) for w, i in zip(weights, indices, strict=True))
    torch.testing.assert_close(batch.gradient, expected, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(batch.losses, problem.evaluate(params)[0][indices])
    torch.testing.assert_close(batch.norms, problem.evaluate(params)[1][indices])


@pytest.mark.parametrize("weighted", [False, True])
def test_the_minimizer_is_found_to_a_gradient_norm_of_1e_8(weighted, generator):
    problem = clouds()
    weights = torch.rand(30, generator=generator, dtype=torch.float64) if weighted else None
    if weights is not None:
        weights[:5] = 0.0  # samples that were never drawn
    found = problem.minimize(weights)
    used = torch.full((30,), 1 / 30, dtype=torch.float64) if weights is None else weights
    gradient = torch.stack([used[i] * sample_gradient(problem, found.params, i) for i in range(30)]).sum(0)
    assert float(gradient.norm()) / float(used.sum()) <= 1e-8
    torch.testing.assert_close(found.params, weighted_minimum(problem, used), rtol=0, atol=1e-6)
    assert found.value == pytest.approx(weighted_loss(problem, found.params, used), rel=1e-12)


def test_a_tolerance_out_of_reach_is_an_error(generator):
    """With features of a million, rounding alone leaves more than 1e-12 in the gradient."""
    features = 1e6 * torch.randn(50, 2, generator=generator, dtype=torch.float64)
    problem = LogisticProblem(features, torch.arange(50) % 2)
    with pytest.raises(RuntimeError, match=r"gradient norm of .*, above the tolerance 1\.0e-13"):
        problem.minimize(tolerance=1e-13)


def test_the_norm_bound_holds_wherever_parameters_are(generator):
    problem = clouds(penalty=0.5)
    for scale in (0.0, 1.0, 100.0):
        params = scale * torch.randn(problem.start().shape, generator=generator, dtype=torch.float64)
        assert float(problem.evaluate(params)[1].max()) <= problem.norm_bound(float(params.norm()))


def test_a_subset_keeps_the_classes():
    part = clouds().subset(2)
    assert (part.num_samples, part.num_classes, part.dimension) == (2, 3, 9)
    torch.testing.assert_close(part.evaluate(part.start())[0], clouds().evaluate(part.start())[0][:2])


BAD = {
    "labels": (lambda: LogisticProblem(torch.ones(3, 2), torch.zeros(2)), "`features` must be a matrix with one row"),
    "penalty": (lambda: LogisticProblem(torch.ones(2, 2), torch.zeros(2), penalty=0.0), "`penalty` must be a finite"),
    "no weight": (lambda: clouds().minimize(torch.zeros(30)), "`sample_weights` must not all be 0"),
    "negative": (lambda: clouds().minimize(-torch.ones(30)), "`sample_weights` must hold finite numbers"),
    "tolerance": (
        lambda: clouds().minimize(tolerance=9e-14),
        r"`tolerance` must be a finite number in \[1e-13, inf\), got tolerance=9e-14",
    ),
    "subset": (lambda: clouds().subset(31), "`num_samples` must be at most 30"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_arguments_are_refused(case):
    call, message = BAD[case]
    with pytest.raises(ValueError, match=message):
        call()
