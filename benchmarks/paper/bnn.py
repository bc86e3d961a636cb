"""The paper's second experiment: forgetting T-shirts with LeNet-5 on Fashion-MNIST (its section 7.2).

A retrained network lands in another basin, so parameters cannot be compared. Predictions on the forgotten, the retained
and the test rows can. Two retrainings with different seeds show how far apart two models are that never saw the rows
(the floor). The original model shows the score of doing nothing. What a way has forgotten is its difference to its
control, which takes the same steps with nothing removed (`benchmarks.paper.controls`).

Models are stored in a folder, so that an interrupted run can continue.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.paper.network_methods import CachedModel, Method, ModelCache, Removal, Sampled, Variational
from benchmarks.timing import timed
from ml.baselines.paper_network import PAPER_SGHMC, PAPER_SGLD, PAPER_VI
from ml.certify.certificate import Certificate
from ml.errors import InvalidInput, NumericalFailure
from ml.forgetting.network import DEFAULT_RECIPE, NetworkRecipe
from ml.forgetting.retained import retained_positions, retained_rows
from ml.forgetting.tempering import TemperConfig
from ml.inference.averaged_descent import SAFE_AVERAGED_DESCENT, AveragedDescent
from ml.inference.bayes_by_backprop import SAFE_BNN, BayesByBackprop
from ml.inference.chains import SAFE_BNN_SGHMC, SAFE_BNN_SGLD, Chains
from ml.inference.sgld import SGLD, StepSize
from ml.models.network import Network
from ml.models.network_energy import NetworkEnergy
from ml.solvers import solve_neumann

CASES = ("lenet-vi", "lenet-sgld", "lenet-sghmc")
DIGITS_CASES = ("mlp-vi", "mlp-sgld", "mlp-sghmc")
WAYS = (
    "nothing",
    "paper",
    "shift",
    "descent",
    "descent control",
    "reweight",
    "temper",
    "temper control",
    "retrained",
    "again",
)
"""All ways, in the order of the tables; a method lacks some. `again` is a second retraining, from another seed."""
_ALWAYS = ("paper", "shift")  # no comparison without them
CLASS = 0
"""T-shirts."""
ORDER_SEED = 7
_ROWS_AT_ONCE = 1_024
_SAMPLED_ROWS = 1_024

OnProgress = Callable[[str, float], None]


@dataclass(frozen=True)
class Plan:
    """Size of the experiment: groups, seeds, training, forgetting and prediction.

    At most `scored_rows` of the forgotten, the retained and the test rows are predicted. `measures_rest` adds the
    gradient that training left, which takes a pass over all rows.
    """

    removed: tuple[int, ...]
    seeds: int
    training: BayesByBackprop
    descent: AveragedDescent
    sgld: Chains
    sghmc: Chains
    recipe: NetworkRecipe
    tempering: TemperConfig
    num_terms: int
    predicting_draws: int
    scored_rows: int
    measures_rest: bool


FULL = Plan(
    removed=(64, 1_000, 2_000, 3_000, 4_000, 5_000, 6_000),
    seeds=5,
    training=SAFE_BNN,
    descent=SAFE_AVERAGED_DESCENT,
    sgld=SAFE_BNN_SGLD,
    sghmc=SAFE_BNN_SGHMC,
    recipe=DEFAULT_RECIPE,
    tempering=TemperConfig(SGLD(StepSize(0.15, 0.0)), moves=10, batch_size=128),
    num_terms=PAPER_VI.num_terms,
    predicting_draws=16,
    scored_rows=10_000,
    measures_rest=True,
)
SHORT = replace(
    FULL,
    removed=(64, 1_000, 6_000),
    seeds=1,
    training=replace(SAFE_BNN, iterations=1_500, decay_every=375),
    descent=AveragedDescent(iterations=400, averaged=250),
    sgld=replace(SAFE_BNN_SGLD, iterations=1_000, burn_in=600, thinning=10),
    sghmc=replace(SAFE_BNN_SGHMC, iterations=1_000, burn_in=600, thinning=10),
    recipe=replace(DEFAULT_RECIPE, max_rows=2_048),
    predicting_draws=8,
    scored_rows=2_000,
    measures_rest=False,
)
"""A sixth to a third of the training, for an hour on one core."""
QUICK = replace(
    SHORT,
    removed=(1_000,),
    training=replace(SAFE_BNN, iterations=600, decay_every=150),
    descent=AveragedDescent(iterations=150, averaged=100),
    sgld=replace(SAFE_BNN_SGLD, iterations=300, burn_in=200, thinning=10),
    sghmc=replace(SAFE_BNN_SGHMC, iterations=300, burn_in=200, thinning=10),
    recipe=replace(DEFAULT_RECIPE, max_rows=1_024),
    tempering=TemperConfig(SGLD(StepSize(0.15, 0.0)), moves=5, batch_size=128),
    num_terms=16,
    predicting_draws=4,
)
DIGITS = replace(
    SHORT,
    removed=(20, 140),
    sgld=replace(SAFE_BNN_SGLD, iterations=1_500, burn_in=1_000, thinning=10),
    sghmc=replace(SAFE_BNN_SGHMC, iterations=1_500, burn_in=1_000, thinning=10),
    predicting_draws=16,
)
"""For a perceptron on 1,437 digits, 140 of which are zeros."""


@dataclass(frozen=True, eq=False)
class Scene:
    """Network with its training and test rows."""

    network: Network
    train: Tensor
    test: Tensor

    def forgotten(self, removed: int) -> Tensor:
        """Return the positions of `removed` random rows of one class. Larger groups contain the smaller ones."""
        rows = torch.nonzero(self.train[:, -1] == CLASS).flatten()
        if not 1 <= removed <= len(rows):
            raise InvalidInput(f"{removed} rows cannot be removed from a class of {len(rows)}: pass 1 to {len(rows)}")
        return rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(ORDER_SEED))[:removed]]


@dataclass(frozen=True)
class Score:
    """Errors in percent and losses in nats per row, of the prediction averaged over draws."""

    forgotten_error: float
    forgotten_loss: float
    retained_error: float
    test_error: float
    test_loss: float


@dataclass(frozen=True)
class NetworkWay:
    """Score of a way, or why it was refused or not taken."""

    name: str
    score: Score | None
    seconds: float
    refused: str | None = None
    facts: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Certified:
    """Level and epsilon of a certificate; epsilon is None at level none."""

    level: str
    epsilon: float | None
    seconds: float


@dataclass(frozen=True)
class NetworkComparison:
    """Results of removing one group of rows from one trained model, for every way."""

    case: str
    removed: int
    n: int
    seed: int
    ways: dict[str, NetworkWay]
    ours: str
    """The way that is our default for a group of this size."""
    training_seconds: float
    residual_ours: float
    residual_paper: float
    gradient_left: float | None = None
    """‖∇F‖ on the frozen draws of the trained model: the residual of training. None if not measured."""
    gradient_group: float | None = None
    """‖Σ ∇h‖ of the rows to forget, at the same point."""
    certified: Certified | None = None
    """Certificate of our shift; None for sample sets of networks, whose shift has none."""

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> NetworkComparison:
        """Inverse of `dataclasses.asdict`."""
        ways = {name: _read_way(way) for name, way in stored["ways"].items()}
        certified = stored.get("certified")
        return cls(**{**stored, "ways": ways, "certified": certified and Certified(**certified)})


def _read_way(stored: dict[str, Any]) -> NetworkWay:
    score = stored["score"]
    return NetworkWay(**{**stored, "score": score and Score(**score)})


def method(case: str, plan: Plan) -> Method:
    """Return the inference method that a case is named after."""
    if case not in (*CASES, *DIGITS_CASES):
        raise InvalidInput(f"unknown case {case!r}: choose among {', '.join((*CASES, *DIGITS_CASES))}")
    inference = case.partition("-")[2]
    if inference == "vi":
        return Variational(plan.training, plan.descent, plan.recipe, replace(PAPER_VI, num_terms=plan.num_terms))
    if inference == "sgld":
        return Sampled(plan.sgld, plan.recipe, replace(PAPER_SGLD, num_terms=plan.num_terms), plan.tempering)
    return Sampled(plan.sghmc, plan.recipe, replace(PAPER_SGHMC, num_terms=plan.num_terms), plan.tempering)


def compare(
    case: str, removed: int, seed: int, scene: Scene, plan: Plan, folder: Path, on_progress: OnProgress | None = None
) -> NetworkComparison:
    """Compare doing nothing, every way of forgetting with its control, and two retrainings.

    `folder` stores the trained models and the result.
    """
    result_file = folder / f"{case}-removed{removed}-seed{seed}.json"
    if result_file.exists():
        return NetworkComparison.from_dict(json.loads(result_file.read_text()))
    forgotten = scene.forgotten(removed)
    experiment = _Experiment(
        case, method(case, plan), seed, scene, forgotten, plan, folder, on_progress or _ignore_progress
    )
    comparison = experiment.run()
    result_file.write_text(json.dumps(asdict(comparison), indent=2))
    experiment.report("done", 1.0)
    return comparison


@dataclass(frozen=True, eq=False)
class _Experiment:
    """One comparison: trains, forgets and scores."""

    case: str
    method: Method
    seed: int
    scene: Scene
    forgotten: Tensor
    plan: Plan
    folder: Path
    report: OnProgress

    @property
    def removed(self) -> int:
        return len(self.forgotten)

    @functools.cached_property
    def retained(self) -> Tensor:
        return retained_rows(self.scene.train, self.forgotten)

    def run(self) -> NetworkComparison:
        cache = ModelCache(self.method, self.case, self.folder)
        trained, retrained, again = self._train(cache)
        ways = {"nothing": self._score("nothing", replace(trained, seconds=0.0))}
        posteriors: dict[str, Any] = {}
        removal = Removal(self.scene.network, trained.posterior, self.scene.train, self.forgotten)
        for name in self.method.ways:
            ways[name] = self._forget(name, cache, removal, posteriors)
        # Descent sets out from the shift, so it costs both.
        ways["descent"] = replace(ways["descent"], seconds=ways["descent"].seconds + ways["shift"].seconds)
        ways |= {"retrained": self._score("retrained", retrained), "again": self._score("again", again)}
        self.report("gradients", 0.8)
        return NetworkComparison(
            case=self.case,
            removed=self.removed,
            n=len(self.scene.train),
            seed=self.seed,
            ways={name: ways[name] for name in WAYS if name in ways},
            ours=self._ours(ways),
            training_seconds=trained.seconds,
            residual_ours=ways["shift"].facts["residual"],
            **_gradients(self.scene, self.method.frozen(trained.posterior), self.forgotten, self.plan),
            certified=self._certify(removal, posteriors["shift"]),
        )

    def _train(self, cache: ModelCache) -> tuple[CachedModel, CachedModel, CachedModel]:
        """Return the original and two retrainings, each of its own seed."""
        first_seed = 3 * self.seed + 1

        def train(data: Tensor, removed: int, seed: int, stage: str) -> CachedModel:
            return cache.train(self.scene.network, data, removed, seed, lambda fraction: self.report(stage, fraction))

        return (
            train(self.scene.train, 0, first_seed, "training"),
            train(self.retained, self.removed, first_seed + 1, "retraining"),
            train(self.retained, self.removed, first_seed + 2, "retraining again"),
        )

    def _forget(self, name: str, cache: ModelCache, removal: Removal, posteriors: dict[str, Any]) -> NetworkWay:
        """Forget by this way, score it, and add its posterior to those of the ways before."""
        self.report(name, 0.0)
        controlled = name.removesuffix(" control")
        if controlled != name and controlled not in posteriors:
            return NetworkWay(name, None, 0.0, f"{controlled} was not taken")

        def compute() -> tuple[Any, dict[str, float]]:
            return self.method.forget(name, removal, posteriors, lambda fraction: self.report(name, fraction))

        try:
            model = cache.get(f"{name.replace(' ', '-')}{self.removed}-seed{self.seed}", compute)
        except NumericalFailure as failure:
            if name in _ALWAYS:
                raise
            return NetworkWay(name, None, 0.0, str(failure))
        posteriors |= {name: model.posterior, f"{name} facts": model.facts}
        return self._score(name, model)

    def _ours(self, ways: dict[str, NetworkWay]) -> str:
        large = self.removed >= self.plan.recipe.large_share * len(self.scene.train)
        return "descent" if large and ways["descent"].score is not None else "shift"

    def _score(self, name: str, model: CachedModel) -> NetworkWay:
        draws = self.method.draws(model.posterior, self.plan.predicting_draws, seed=5)
        score = _score(self.scene, draws, self.forgotten, self.retained, self.plan.scored_rows)
        return NetworkWay(name, score, model.seconds, facts=model.facts)

    def _certify(self, removal: Removal, after: Any) -> Certified | None:
        self.report("the certificate", 0.9)
        seconds, certificate = timed(lambda: self.method.certify(removal, after))
        return None if certificate is None else _certified(certificate, seconds)


def _ignore_progress(_stage: str, _fraction: float) -> None:
    pass


def _certified(certificate: Certificate, seconds: float) -> Certified:
    epsilon = certificate.epsilon if math.isfinite(certificate.epsilon) else None
    return Certified(certificate.level, epsilon, seconds)


def _gradients(scene: Scene, draws: Tensor, forgotten: Tensor, plan: Plan) -> dict[str, float]:
    """Return the residual of the paper's solver; if planned, that of training and the pull of the forgotten rows."""
    energy = NetworkEnergy(scene.network, scene.train, draws)
    origin = torch.zeros_like(draws[0])
    retained = retained_positions(scene.train, forgotten)
    gradients = {"residual_paper": _paper_residual(energy, retained, forgotten, plan.num_terms)}
    if not plan.measures_rest:
        return gradients
    pull = energy.misfit_gradient(origin, forgotten)
    left = energy.gradient(origin, retained) + pull
    return {**gradients, "gradient_left": float(left.norm()), "gradient_group": float(pull.norm())}


def _paper_residual(energy: NetworkEnergy, retained: Tensor, forgotten: Tensor, num_terms: int) -> float:
    """Return ‖v - Ax‖/‖v‖ of the paper's recursion for its first group, with A sampled as in our step, undamped.

    c = 0.1/n', the paper's largest and so its most favourable, halved until the recursion converges.
    """
    sampled = retained[torch.randperm(len(retained), generator=torch.Generator().manual_seed(1))[:_SAMPLED_ROWS]]
    matvec = energy.curvature(sampled, len(retained) / len(sampled))
    vector = energy.misfit_gradient(torch.zeros_like(energy.draws[0]), forgotten[: PAPER_VI.group_size])
    scale = PAPER_VI.scale / len(retained)
    while True:
        try:
            return solve_neumann(matvec, vector, num_terms, scale).residual / float(vector.norm())
        except NumericalFailure:
            scale /= 2


def _score(scene: Scene, draws: Tensor, forgotten: Tensor, retained: Tensor, scored_rows: int) -> Score:
    def predict(rows: Tensor) -> tuple[float, float]:
        return _predict(scene.network, draws, rows[:: max(1, len(rows) // scored_rows)])

    forgotten_error, forgotten_loss = predict(scene.train[forgotten])
    retained_error, _ = predict(retained)
    test_error, test_loss = predict(scene.test)
    return Score(forgotten_error, forgotten_loss, retained_error, test_error, test_loss)


def _predict(network: Network, draws: Tensor, rows: Tensor) -> tuple[float, float]:
    """Return the error in percent and the mean negative log-likelihood of the averaged prediction."""
    errors, loss = 0, 0.0
    with torch.no_grad():
        for chunk in torch.split(rows, _ROWS_AT_ONCE):
            log_probabilities = torch.stack(
                [network.outputs(draw.to(rows.dtype), chunk).log_softmax(1) for draw in draws]
            )
            mixed, labels = log_probabilities.logsumexp(0) - math.log(len(draws)), chunk[:, -1].long()
            errors += int((mixed.argmax(1) != labels).sum())
            loss -= float(mixed.gather(1, labels.unsqueeze(1)).double().sum())
    return 100 * errors / len(rows), loss / len(rows)
