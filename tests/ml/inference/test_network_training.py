from __future__ import annotations

from dataclasses import replace

import torch

from ml.certify.network.rest import measure_rest
from ml.inference.averaged_descent import AveragedDescent
from ml.inference.bayes_by_backprop import SAFE_BNN, train_network
from ml.inference.network_training import converge_means, train_to_convergence
from ml.models.mlp import MLP
from tests.ml.networks import learnable_rows

NETWORK = MLP(dimensions=4, hidden=3, classes=3, prior_std=0.3)
TRAINING = replace(SAFE_BNN, iterations=200, decay=1.0, learning_rate=2e-2)
DESCENT = AveragedDescent(300, 200, learning_rate=1e-3)


def test_training_ends_nearer_to_the_minimum_than_descent_by_minibatches() -> None:
    data, generator = learnable_rows(NETWORK, 400).float(), torch.Generator().manual_seed(3)
    trained = train_network(NETWORK, data, NETWORK.initial(3), TRAINING, generator).posterior
    converged = converge_means(NETWORK, trained, data, generator, DESCENT)
    assert torch.equal(converged.std, trained.std)
    residuals = [measure_rest(NETWORK, posterior, data)["residual"] for posterior in (trained, converged)]
    assert residuals[1] < 0.8 * residuals[0]
    combined = train_to_convergence(NETWORK, data, 3, TRAINING, DESCENT)
    assert torch.equal(combined.mean, converged.mean)


def test_batches_shrink_to_the_rows_and_steps_are_counted_over_both_phases() -> None:
    steps: list[int] = []
    train_to_convergence(
        NETWORK,
        learnable_rows(NETWORK, 40),
        0,
        replace(TRAINING, iterations=5),
        AveragedDescent(4, 2),
        on_step=steps.append,
    )
    assert steps == list(range(1, 10))
