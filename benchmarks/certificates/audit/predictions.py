"""Judgement of readiness: what `ml.readiness` promises against what forgetting one row issues, without retraining."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

import ml
from benchmarks.certificates.audit.awkward_data import DATA_KINDS, FAMILIES, DataKind, DataSet, FamilyName, draw_data
from benchmarks.certificates.audit.deletions import POLICY, Scene, forget_rows, train_scene
from ml.errors import ForgettingError, NumericalFailure

OnProgress = Callable[[str, float], None]

# Models whose posterior is where training starts, or a few sweeps further. Coprime to the number of families.
_UNTRAINED_EVERY = 5


@dataclass(frozen=True)
class Prediction:
    """Whether a certificate within the policy was promised, whether it was issued, and both bounds."""

    family: FamilyName
    data: DataKind
    trained: bool
    promised: bool
    issued: bool
    in_reach: float
    epsilon: float

    @property
    def agrees(self) -> bool:
        return self.promised == self.issued


def audit_predictions(count: int, seed: int, on_progress: OnProgress) -> list[Prediction]:
    """Judge the readiness of `count` random models."""
    predictions: list[Prediction] = []
    index = 0
    while len(predictions) < count:
        rng = np.random.default_rng([seed, 3, index])
        family, kind = FAMILIES[index % len(FAMILIES)], DATA_KINDS[index // len(FAMILIES) % len(DATA_KINDS)]
        index += 1
        on_progress(f"{len(predictions)} models", len(predictions) / count)
        data = draw_data(family, kind, rng)
        if len(data.rows) > data.config.get("components", 1):
            predictions += _predict(data, rng, trained=index % _UNTRAINED_EVERY != 0)
    return predictions


def _predict(data: DataSet, rng: np.random.Generator, trained: bool) -> list[Prediction]:
    """Return the prediction, or none if the model cannot be trained and so would not be registered."""
    try:
        scene = train_scene(data) if trained else _untrained(data, rng)
    except NumericalFailure:
        return []
    readiness = ml.readiness(scene.model, scene.posterior, scene.tensor)
    in_reach = readiness.numbers["epsilon_in_reach"]
    promised = "proved" in readiness.levels and in_reach <= POLICY
    issued, epsilon = _issued(scene, rng)
    return [Prediction(data.family, data.kind, trained, promised, issued, in_reach, epsilon)]


def _untrained(data: DataSet, rng: np.random.Generator) -> Scene:
    """Return the start of training, or what a few sweeps make of it."""
    model, rows = ml.build_family(data.family, data.config), torch.from_numpy(data.rows)
    posterior = model.initial(rows, 0)
    for _ in range(int(rng.integers(0, 4))):
        posterior = model.sweep(posterior, rows)
    return Scene(data, model, posterior)


def _issued(scene: Scene, rng: np.random.Generator) -> tuple[bool, float]:
    try:
        outcome = forget_rows(scene, rng.permutation(len(scene.data.rows))[:1])
    except ForgettingError:
        return False, np.inf
    return outcome.policy_met, outcome.certificate.epsilon
