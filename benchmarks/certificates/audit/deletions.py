"""Judgement of proved certificates: what `ml.forget` issues, against minimisers of the audit's own energies.

violation          KL(processed ‖ truth) above epsilon, or the other direction above its bound; the accuracy of the
                   truth itself is the only allowance
needless refusal   no certificate within the policy, without retraining, though the true divergence is within it
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch

import ml
from benchmarks.certificates.audit.awkward_data import DATA_KINDS, FAMILIES, DataKind, DataSet, FamilyName, draw_data
from benchmarks.certificates.audit.energies import Energy, Linear, Logistic, Mixture, Softmax
from benchmarks.certificates.audit.extended import Array, extended, has_mpmath, mean_field_kl
from benchmarks.certificates.audit.lower_minima import has_lower_minimum
from benchmarks.certificates.audit.minimum import Minimum, correction, minimise
from benchmarks.certificates.audit.removals import SEQUENCE_LENGTH, SINGLE_REMOVALS, Removal, choose_rows
from ml.errors import NumericalFailure
from ml.models.frozen_noise import frozen_noise
from vocabulary.rungs import RUNGS

OnProgress = Callable[[str, float], None]

POLICY = 1e-3
WITHOUT_RETRAINING = tuple(name for name in RUNGS if name != "retrain")
# Models with a sequence, so that about half of all deletions belong to sequences. Coprime to families × kinds of data.
_SEQUENCE_EVERY = 11
_CHECK_EVERY = 100
_SEARCH_EVERY = 5  # models whose minima are compared with those of fresh starts
_MOST_ROWS_TO_CHECK = 100
_LEAST_RATIO_KL = 1e-20


@dataclass(frozen=True)
class Deletion:
    """One deletion. `kl` and `kl_reverse` are None where no truth was computed, `failure` says why nothing was reached.

    `correction` is the distance between the minimisers in 80-bit and in 50-digit arithmetic, where that was computed.
    `lower_minimum` says whether the audit found a minimum below the reference of a mixture, `lower_minimum_stated`
    whether the certificate did.
    """

    family: FamilyName
    data: DataKind
    removal: Removal
    n: int
    removed: int
    level: str
    met: bool
    epsilon: float
    epsilon_reverse: float
    kl: float | None
    kl_reverse: float | None
    accuracy: float
    correction: float | None = None
    failure: str | None = None
    lower_minimum: bool | None = None
    lower_minimum_stated: bool | None = None

    @property
    def proved(self) -> bool:
        return self.level == "proved"

    @property
    def violated(self) -> bool:
        """√KL is half the natural distance times √2, so the accuracy of the truth adds to the roots."""
        if not self.proved or self.kl is None or self.kl_reverse is None:
            return False
        pairs = ((self.kl, self.epsilon), (self.kl_reverse, self.epsilon_reverse))
        return any(math.sqrt(kl) > math.sqrt(bound) + self.accuracy for kl, bound in pairs)

    @property
    def needless(self) -> bool:
        return not self.met and (self.failure is not None or (self.kl is not None and self.kl <= POLICY))

    @property
    def ratio(self) -> float | None:
        """Bound over truth, where the truth has digits."""
        return self.epsilon / self.kl if self.proved and self.kl is not None and self.kl > _LEAST_RATIO_KL else None


@dataclass(frozen=True, eq=False)
class Scene:
    """Model under judgement with its data set."""

    data: DataSet
    model: ml.Family
    posterior: ml.MeanFieldGaussian

    @property
    def tensor(self) -> torch.Tensor:
        return torch.from_numpy(self.data.rows)


def audit_deletions(trials: int, seed: int, on_progress: OnProgress) -> list[Deletion]:
    """Judge at least `trials` deletions, over families, kinds of data and removals in turn."""
    judged: list[Deletion] = []
    for scene, rng, index in _scenes(seed):
        judged += _judge_model(scene, rng, index)
        on_progress(f"{len(judged)} deletions", min(1.0, len(judged) / trials))
        if len(judged) >= trials:
            break
    return judged


def train_scene(data: DataSet) -> Scene:
    """Train the model to its optimum."""
    model = ml.build_family(data.family, data.config)
    rows = torch.from_numpy(data.rows)
    return Scene(data, model, ml.train(model, rows, model.initial(rows, 0)).posterior)


def reference_energy(data: DataSet) -> Energy:
    """Return the audit's own energy of the data set's model."""
    config, rows = data.config, extended(data.rows)
    if data.family == "gaussian-mixture":
        return Mixture(rows, int(config["components"]), config["prior_std"])
    features, target = rows[:, :-1], rows[:, -1]
    if data.family == "linear-regression":
        return Linear(features, target, config["noise_std"], config["prior_std"])
    if data.family == "logistic-regression":
        return Logistic(features, 2 * target - 1, config["prior_std"])
    classes = int(config["classes"])
    noise = frozen_noise(int(config["draws"]), classes * features.shape[1], int(config["seed"]), torch.device("cpu"))
    return Softmax(
        features, extended(np.eye(classes)[target.astype(int)]), extended(noise.numpy()), config["prior_std"]
    )


def forget_rows(scene: Scene, forgotten: Array) -> ml.Outcome[ml.MeanFieldGaussian]:
    policy = ml.Policy(POLICY, rungs=WITHOUT_RETRAINING)
    return ml.forget(scene.model, scene.posterior, scene.tensor, torch.from_numpy(forgotten), policy)


def without_rows(data: DataSet, forgotten: Array) -> DataSet:
    rows, group = (np.delete(values, forgotten, axis=0) for values in (data.rows, data.group))
    return replace(data, rows=rows, group=group)


def flat_array(posterior: ml.MeanFieldGaussian) -> Array:
    return extended(posterior.flat().numpy())


def _scenes(seed: int) -> Iterator[tuple[Scene, np.random.Generator, int]]:
    """Yield trained models without end. Data on which training itself fails are left out: nothing is registered."""
    index = 0
    while True:
        rng = np.random.default_rng([seed, index])
        family, kind = FAMILIES[index % len(FAMILIES)], DATA_KINDS[index // len(FAMILIES) % len(DATA_KINDS)]
        index += 1
        try:
            yield train_scene(draw_data(family, kind, rng)), rng, index
        except NumericalFailure:
            continue


def _judge_model(scene: Scene, rng: np.random.Generator, index: int) -> list[Deletion]:
    judged = []
    for removal in SINGLE_REMOVALS:
        forgotten = choose_rows(removal, scene.data, flat_array(scene.posterior), rng)
        if len(forgotten) > 0:
            check = rng.random() < 1 / _CHECK_EVERY
            judged.append(judge(scene, forgotten, removal, check, search=index % _SEARCH_EVERY == 0)[0])
    return judged + (_judge_sequence(scene, rng) if index % _SEQUENCE_EVERY == 0 else [])


def _judge_sequence(scene: Scene, rng: np.random.Generator) -> list[Deletion]:
    """Judge one deletion after another, each from what the last one published."""
    judged: list[Deletion] = []
    for _ in range(SEQUENCE_LENGTH):
        forgotten = choose_rows("sequence", scene.data, flat_array(scene.posterior), rng)
        if len(forgotten) == 0:
            break
        deletion, processed = judge(scene, forgotten, "sequence", check=rng.random() < 1 / _CHECK_EVERY)
        judged.append(deletion)
        if processed is None:
            break
        scene = replace(scene, data=without_rows(scene.data, forgotten), posterior=processed)
    return judged


def judge(
    scene: Scene, forgotten: Array, removal: Removal, check: bool = False, search: bool = False
) -> tuple[Deletion, ml.MeanFieldGaussian | None]:
    """Forget the rows and compare the certificate with the truth. Also return what was published, None if nothing.

    `check` repeats the reference with 50 digits, `search` looks for lower minima of a mixture.
    """
    data = scene.data
    nothing = Deletion(
        data.family,
        data.kind,
        removal,
        len(data.rows),
        len(forgotten),
        "none",
        False,
        math.inf,
        math.inf,
        None,
        None,
        0,
    )
    try:
        outcome = forget_rows(scene, forgotten)
    except NumericalFailure as error:
        return replace(nothing, failure=str(error)), None
    certificate = outcome.certificate
    issued = replace(
        nothing,
        level=certificate.level,
        met=outcome.policy_met,
        epsilon=certificate.epsilon,
        epsilon_reverse=certificate.epsilon_reverse,
    )
    energy = reference_energy(without_rows(data, forgotten))
    judged = _compare(issued, flat_array(outcome.posterior), energy, check)
    if isinstance(energy, Mixture) and judged.met and search:
        value = energy.value(flat_array(outcome.posterior))
        judged = replace(
            judged,
            lower_minimum=has_lower_minimum(energy, value, np.random.default_rng(0)),
            lower_minimum_stated=certificate.fresh_starts is not None and certificate.fresh_starts.lower > 0,
        )
    return judged, outcome.posterior if outcome.policy_met else None


def _compare(issued: Deletion, processed: Array, energy: Energy, check: bool) -> Deletion:
    try:
        truth = minimise(energy, processed)
    except ArithmeticError:
        return issued
    small = issued.n - issued.removed <= _MOST_ROWS_TO_CHECK
    return replace(
        issued,
        kl=mean_field_kl(processed, truth.at),
        kl_reverse=mean_field_kl(truth.at, processed),
        accuracy=truth.accuracy,
        correction=_checked(energy, truth) if check and small else None,
    )


def _checked(energy: Energy, truth: Minimum) -> float | None:
    return correction(energy, truth) if has_mpmath() else None
