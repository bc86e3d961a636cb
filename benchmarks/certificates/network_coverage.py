"""Coverage of network certificates: random deletions from small perceptrons, against the network's own excess.

Networks differ in width, activation, prior, rows and precision, and one in four is left where minibatch training ends,
near no minimum. From each, four groups are forgotten: one row to a twentieth of all, at random or neighbours. Every
other group is forgotten by the influence step, the others by descent, or not at all, which a certificate must show too.
Each is compared with the truth of `network_truth`. The excess due to
widths is left out on both sides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from benchmarks.certificates.network_truth import FrozenNoise, own_excess
from ml.certify.certificate import Certificate
from ml.certify.network.certificate import certify_network
from ml.errors import InvalidInput, NumericalFailure
from ml.forgetting.network import forget_network
from ml.inference.averaged_descent import AveragedDescent
from ml.inference.bayes_by_backprop import SAFE_BNN, train_network
from ml.inference.network_training import converge_means
from ml.ladder.network import STEP_ONLY, descend_retained
from ml.models.mlp import MLP
from ml.models.network_energy import frozen_energy
from ml.posteriors.mean_field import MeanFieldGaussian
from vocabulary.families import ACTIVATIONS, ActivationName

OnProgress = Callable[[str, float], None]
Number = TypeVar("Number", int, float)

DELETIONS_PER_NETWORK = 4
_DIMENSIONS, _HIDDEN, _ROWS, _PRIORS = (2, 8, 16, 64), (4, 8, 16, 32), (192, 384, 768), (0.15, 0.3, 0.6)
_TRAINING = replace(SAFE_BNN, iterations=800, decay_every=200, learning_rate=1e-2)
_REST = AveragedDescent(200, 100, learning_rate=3e-4)
_LARGEST_SHARE = 0.05
_WAYS = ("influence", "warm", "influence", "nothing")


@dataclass(frozen=True)
class NetworkTrial:
    """A certificate of one deletion and the truth; without limits if it was refused. Widths are left out."""

    activation: ActivationName
    dimensions: int
    hidden: int
    n: int
    at_rest: bool
    group: str
    removed: int
    way: str
    truth: float
    low: float | None
    high: float | None
    epsilon: float | None
    linearised: float
    reasons: tuple[str, ...]

    @property
    def issued(self) -> bool:
        return self.high is not None

    @property
    def above(self) -> bool:
        return self.high is not None and self.truth > self.high

    @property
    def below(self) -> bool:
        return self.low is not None and self.truth < self.low


@dataclass(frozen=True)
class NetworkStratum:
    """Certificates of networks or groups of one kind."""

    factor: str
    value: str
    issued: int
    covered: int
    refused: int

    @property
    def coverage(self) -> float | None:
        return self.covered / self.issued if self.issued else None


@dataclass(frozen=True)
class NetworkCoverage:
    """Coverage of the issued estimates: for `above` the truth lies above the upper end, for `below` below the lower."""

    trials: int
    seed: int
    outcomes: tuple[NetworkTrial, ...]

    @property
    def issued(self) -> int:
        return sum(trial.issued for trial in self.outcomes)

    @property
    def refused(self) -> int:
        return len(self.outcomes) - self.issued

    @property
    def above(self) -> int:
        return sum(trial.above for trial in self.outcomes)

    @property
    def coverage(self) -> float | None:
        """Share of the issued estimates that cover the truth."""
        return (self.issued - self.above) / self.issued if self.issued else None

    @property
    def strata(self) -> tuple[NetworkStratum, ...]:
        factors: dict[str, Callable[[NetworkTrial], object]] = {
            "activation": lambda trial: trial.activation,
            "hidden": lambda trial: trial.hidden,
            "group": lambda trial: trial.group,
            "removed": lambda trial: "1" if trial.removed == 1 else "2 to 9" if trial.removed < 10 else "10 or more",
            "way": lambda trial: trial.way,
            "network": lambda trial: "at rest" if trial.at_rest else "as trained",
        }
        return tuple(
            _stratum(name, value, key, self.outcomes)
            for name, key in factors.items()
            for value in _values(key, self.outcomes)
        )

    def to_dict(self) -> dict[str, object]:
        """Return plain JSON values, without the single trials."""
        return {
            "trials": self.trials,
            "issued": self.issued,
            "covered": self.issued - self.above,
            "above": self.above,
            "above_epsilon": sum(trial.epsilon is not None and trial.truth > trial.epsilon for trial in self.outcomes),
            "below": sum(trial.below for trial in self.outcomes),
            "refused": self.refused,
            "share": self.coverage,
            "coverage": self.coverage,
            "median_ratio": _median_ratio(self.outcomes),
            "linearised_above": sum(trial.truth > trial.linearised for trial in self.outcomes if trial.issued),
            "strata": [{**asdict(stratum), "coverage": stratum.coverage} for stratum in self.strata],
            "seed": self.seed,
        }


def network_coverage(trials: int, seed: int, on_progress: OnProgress | None = None) -> NetworkCoverage:
    """Forget random groups from random networks, and compare each certificate with the truth."""
    if trials < 1:
        raise InvalidInput(f"trials is {trials}: pass at least 1")
    outcomes: list[NetworkTrial] = []
    networks = math.ceil(trials / DELETIONS_PER_NETWORK)
    for index in range(networks):
        if on_progress is not None:
            on_progress("networks", index / networks)
        deletions = min(DELETIONS_PER_NETWORK, trials - len(outcomes))
        outcomes += _try_network(index, deletions, torch.Generator().manual_seed(seed * 1_000_003 + index))
    if on_progress is not None:
        on_progress("done", 1.0)
    return NetworkCoverage(trials, seed, tuple(outcomes))


@dataclass(frozen=True, eq=False)
class _Scene:
    network: MLP
    data: Tensor
    posterior: MeanFieldGaussian
    at_rest: bool


def _try_network(index: int, deletions: int, generator: torch.Generator) -> list[NetworkTrial]:
    scene = _train_scene(index, generator)
    trials = []
    for turn in range(deletions):
        way = _WAYS[(turn + index) % len(_WAYS)]
        group = "random" if (turn + index // 4) % 2 == 0 else "clustered"
        forgotten = _draw_group(group, scene.data, generator)
        trials.append(_judge(scene, group, forgotten, way, generator))
    return trials


def _train_scene(index: int, generator: torch.Generator) -> _Scene:
    dimensions, hidden, n = (_pick(choices, generator) for choices in (_DIMENSIONS, _HIDDEN, _ROWS))
    classes, prior_std = _pick((2, 3, 5), generator), _pick(_PRIORS, generator)
    network = MLP(dimensions, hidden, classes, prior_std, ACTIVATIONS[index % len(ACTIVATIONS)])
    data = _draw_rows(network, n, generator)
    if index % 3 == 1:
        data = data.float()
    trained = train_network(network, data, network.initial(index), _TRAINING, generator).posterior
    at_rest = (index // len(ACTIVATIONS)) % 4 != 3
    posterior = converge_means(network, trained, data, generator, _REST) if at_rest else trained
    return _Scene(network, data, posterior, at_rest)


def _draw_rows(network: MLP, n: int, generator: torch.Generator) -> Tensor:
    """Draw correlated features, and labels from the probabilities of a random network with eight hidden units."""
    d = network.dimensions
    mix = torch.eye(d, dtype=torch.float64) + 0.3 * _normal((d, d), generator) / math.sqrt(d)
    x = _normal((n, d), generator) @ mix
    teacher = MLP(d, 8, network.classes, 1.0, "tanh")
    theta = 2 / math.sqrt(d) * _normal((teacher.parameter_count,), generator)
    rows = torch.cat([x, torch.zeros(n, 1, dtype=torch.float64)], 1)
    chances = (2 * teacher.outputs(theta, rows)).softmax(1)
    rows[:, -1] = torch.multinomial(chances, 1, generator=generator).flatten().double()
    return rows


def _draw_group(group: str, data: Tensor, generator: torch.Generator) -> Tensor:
    """Draw random rows, or the neighbours of one row with their labels. All magnitudes are equally likely."""
    size = round((_LARGEST_SHARE * len(data)) ** float(torch.rand((), generator=generator)))
    if group == "random":
        return torch.randperm(len(data), generator=generator)[:size]
    centre = data[int(torch.randint(len(data), (), generator=generator))]
    order: Tensor = (data - centre).norm(dim=1).argsort()
    return order[:size]


def _judge(scene: _Scene, group: str, forgotten: Tensor, way: str, generator: torch.Generator) -> NetworkTrial:
    after = _forget(scene, forgotten, way)
    certificate = _certify(scene, after, forgotten)
    energy, constants = frozen_energy(scene.network, scene.posterior, scene.data), certificate.constants
    noise = FrozenNoise(energy.draws, energy.reads)
    drift = after.mean - scene.posterior.mean
    low, epsilon = certificate.interval or (None, None)
    return NetworkTrial(
        activation=scene.network.activation,
        dimensions=scene.network.dimensions,
        hidden=scene.network.hidden,
        n=len(scene.data),
        at_rest=scene.at_rest,
        group=group,
        removed=len(forgotten),
        way=way,
        truth=own_excess(scene.network, scene.data, noise, forgotten, drift, generator),
        low=low,
        high=None if epsilon is None else epsilon - constants.widths,
        epsilon=epsilon,
        linearised=constants.linearised,
        reasons=certificate.reasons,
    )


def _forget(scene: _Scene, forgotten: Tensor, way: str) -> MeanFieldGaussian:
    """Return the processed posterior; the posterior before if no step can be trusted."""
    arguments = scene.network, scene.posterior, scene.data, forgotten
    try:
        if way == "influence":
            return forget_network(*arguments, torch.Generator().manual_seed(1), STEP_ONLY).posterior
        if way == "warm":
            return descend_retained(*arguments, scene.posterior)
    except NumericalFailure:
        pass
    return scene.posterior


def _certify(scene: _Scene, after: MeanFieldGaussian, forgotten: Tensor) -> Certificate:
    generator = torch.Generator().manual_seed(2)
    return certify_network(scene.network, scene.posterior, after, scene.data, forgotten, generator)


def _values(key: Callable[[NetworkTrial], object], outcomes: Sequence[NetworkTrial]) -> list[str]:
    return list(dict.fromkeys(str(key(trial)) for trial in outcomes))


def _stratum(
    factor: str, value: str, key: Callable[[NetworkTrial], object], outcomes: Sequence[NetworkTrial]
) -> NetworkStratum:
    trials = [trial for trial in outcomes if str(key(trial)) == value]
    issued = [trial for trial in trials if trial.issued]
    covered = sum(not trial.above for trial in issued)
    return NetworkStratum(factor, value, len(issued), covered, len(trials) - len(issued))


def _median_ratio(outcomes: Sequence[NetworkTrial]) -> float | None:
    """Return the median of estimate over truth, where both are positive."""
    ratios = sorted(trial.high / trial.truth for trial in outcomes if trial.high is not None and trial.truth > 0)
    return ratios[len(ratios) // 2] if ratios else None


def _pick(choices: Sequence[Number], generator: torch.Generator) -> Number:
    return choices[int(torch.randint(len(choices), (), generator=generator))]


def _normal(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)
