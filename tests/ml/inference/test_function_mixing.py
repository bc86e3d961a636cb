from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from ml.inference.function_mixing import FunctionMixing, measure_functions, row_log_likelihoods
from tests.ml.network_draws import NETWORK, copies_of_one_point, draws, one_chain, repeated_points, rows, unmixed

PASSED = FunctionMixing(50, 4, 1.01, 1.05, 1.0, 500.0, 20.0, 1200)


def test_true_draws_mix_in_function_space() -> None:
    functions = measure_functions(NETWORK, draws(), rows())
    assert list(functions.problems()) == []
    assert (functions.rows, functions.chains) == (50, 4)
    assert functions.r_hat < 1.03
    assert functions.ess > 300


def test_the_variance_counts_parameters() -> None:
    """On a Gaussian posterior Σ_i Var log p(z_i | θ) is about the number of parameters that the rows inform."""
    functions = measure_functions(NETWORK, draws(), rows())
    assert 3 < functions.effective_parameters < NETWORK.parameter_count


def test_hidden_units_in_another_order_do_not_matter() -> None:
    """Adding a constant to all logits changes the biases, not the predictions."""
    shifted = draws().samples.clone()
    shifted[:, 12:] += 5.0 * draws().chain.unsqueeze(1)
    moved, still = (measure_functions(NETWORK, each, rows()) for each in (replace(draws(), samples=shifted), draws()))
    assert moved.r_hat == pytest.approx(still.r_hat, rel=1e-6)
    assert moved.effective_parameters == pytest.approx(still.effective_parameters, rel=1e-6)


@pytest.mark.parametrize(
    ("sample_set", "complaint"),
    [
        (copies_of_one_point, "hardly differ"),
        (lambda: copies_of_one_point(1e-3), "hardly differ"),
        (unmixed, "never met"),
        (one_chain, "there is one chain"),
    ],
)
def test_degenerate_draws_are_named(sample_set, complaint: str) -> None:  # type: ignore[no-untyped-def]
    degeneracies = list(measure_functions(NETWORK, sample_set(), rows()).degeneracies())
    assert any(complaint in text for text in degeneracies)


def test_repeated_draws_count_once() -> None:
    assert measure_functions(NETWORK, repeated_points(), rows()).distinct_draws == 5


def test_chains_that_disagree_about_one_row_are_no_posterior_but_have_a_law() -> None:
    functions = replace(PASSED, r_hat=1.2, ess=40.0)
    assert [text.split(" (")[0] for text in functions.problems()] == [
        "the chains disagree about a row of the panel",
        "the log-likelihoods of a row of the panel are worth only 40 independent draws",
    ]
    assert list(functions.degeneracies()) == []


def test_log_likelihoods_are_computed_in_the_precision_of_the_rows() -> None:
    few, single = draws().samples[:5], rows().float()
    values = row_log_likelihoods(NETWORK, few, single)
    assert (values.dtype, values.shape) == (torch.float64, (5, 100))
    assert torch.equal(values, values.float().double())
    assert torch.allclose(values, row_log_likelihoods(NETWORK, few, rows()), atol=1e-4)
