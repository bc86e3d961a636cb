from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from ml.errors import NumericalFailure
from ml.inference.members import predict, train_ensemble, train_member
from ml.posteriors.ensemble import Recipe
from tests.ml.ensembles import RECIPE, small_ensemble
from tests.ml.networks import TINY, OneLayer, labelled_rows, learnable_rows


def test_a_member_is_a_function_of_its_rows_its_seed_and_the_recipe() -> None:
    ensemble, data = small_ensemble()
    for member in range(3):
        alone = train_member(TINY, data[ensemble.shard == member], seed=5 + member, recipe=RECIPE)
        assert torch.equal(ensemble.members[member], alone)
    assert ensemble.seed.tolist() == [5, 6, 7]
    assert not torch.equal(train_member(TINY, data, 0, RECIPE), train_member(TINY, data, 1, RECIPE))


def test_training_ends_at_the_mode_where_there_is_one() -> None:
    """The potential of a network with linear logits is convex, and one minibatch is all rows: its gradient vanishes."""
    network, share = OneLayer(prior_std=0.5), 0.25
    data = learnable_rows(network, 60)
    recipe = Recipe(epochs=1000, batch_size=60, learning_rate=0.05, prior_share=share)
    theta = train_member(network, data, 0, recipe).requires_grad_()
    potential = -network.log_likelihood(theta, data).sum() + share * theta.square().sum() / (2 * 0.5**2)
    (gradient,) = torch.autograd.grad(potential, theta)
    assert gradient.norm() < 1e-3


def test_every_minibatch_is_reported() -> None:
    data, steps = labelled_rows(TINY, 20), list[int]()
    train_ensemble(TINY, data, torch.tensor([0] * 12 + [1] * 8), replace(RECIPE, batch_size=4), on_step=steps.append)
    assert steps == list(range(1, 3 * (3 + 2) + 1))


def test_predictions_are_the_mean_of_the_members() -> None:
    ensemble, data = small_ensemble()
    expected = sum(TINY.outputs(theta, data).softmax(1) for theta in ensemble.members) / 3
    assert torch.allclose(predict(TINY, ensemble, data[:, :-1]), expected)


def test_divergence_is_an_error() -> None:
    rows = labelled_rows(TINY, 20).float()
    rows[:, :-1] *= 1e38
    with pytest.raises(NumericalFailure, match="learning rate"):
        train_member(TINY, rows, 0, RECIPE)
