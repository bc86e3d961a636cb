"""The paper's second experiment: forgetting T-shirts with LeNet-5 on Fashion-MNIST (its section 7.2).

A retrained network lands in another basin, so parameters cannot be compared. Predictions on the forgotten, the retained
and the test rows can. Two retrainings with different seeds show how far apart two models are that never saw the rows
(the floor). The original model shows the score of doing nothing.

Models are stored in a folder, so that an interrupted run can continue.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.paper.network_methods import CachedModel, Method, ModelCache, Sampled, Variational
from benchmarks.timing import timed
from ml.baselines.paper_network import PAPER_SGHMC, PAPER_SGLD, PAPER_VI
from ml.certify.certificate import Certificate
from ml.errors import InvalidInput, NumericalFailure
from ml.forgetting.retained import retained_positions, retained_rows
from ml.inference.averaged_descent import SAFE_AVERAGED_DESCENT, AveragedDescent
from ml.inference.bayes_by_backprop import SAFE_BNN, BayesByBackprop
from ml.inference.chains import SAFE_BNN_SGHMC, SAFE_BNN_SGLD, Chains
from ml.models.network import Network
from ml.models.network_energy import NetworkEnergy
from ml.solvers import solve_neumann

CASES = ("lenet-vi", "lenet-sgld", "lenet-sghmc")
WAYS = ("nothing", "paper", "ours", "retrained", "again")
"""`again` is a second retraining, from another seed."""
CLASS = 0
"""T-shirts."""
ORDER_SEED = 7
RETAINED_SCORED = 5_000
_ROWS_AT_ONCE = 1_024
_SAMPLED_ROWS = 1_024

OnProgress = Callable[[str, float], None]


@dataclass(frozen=True)
class Plan:
    """Size of the experiment: groups, seeds, training and prediction."""

    removed: tuple[int, ...]
    seeds: int
    training: BayesByBackprop
    descent: AveragedDescent
    sgld: Chains
    sghmc: Chains
    num_terms: int
    predicting_draws: int


FULL = Plan(
    removed=(64, 1_000, 2_000, 3_000, 4_000, 5_000, 6_000),
    seeds=5,
    training=SAFE_BNN,
    descent=SAFE_AVERAGED_DESCENT,
    sgld=SAFE_BNN_SGLD,
    sghmc=SAFE_BNN_SGHMC,
    num_terms=PAPER_VI.num_terms,
    predicting_draws=16,
)
QUICK = Plan(
    removed=(1_000,),
    seeds=1,
    training=replace(SAFE_BNN, iterations=600, decay_every=150),
    descent=AveragedDescent(iterations=150, averaged=100),
    sgld=replace(SAFE_BNN_SGLD, iterations=300, burn_in=200, thinning=10),
    sghmc=replace(SAFE_BNN_SGHMC, iterations=300, burn_in=200, thinning=10),
    num_terms=16,
    predicting_draws=4,
)


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
    name: str
    score: Score
    seconds: float


@dataclass(frozen=True)
class Certified:
    """Level and epsilon of a certificate; epsilon is None at level none."""

    level: str
    epsilon: float | None
    seconds: float


@dataclass(frozen=True)
class NetworkComparison:
    """Results of removing one group of rows from one trained model, for every method."""

    case: str
    removed: int
    n: int
    seed: int
    ways: dict[str, NetworkWay]
    training_seconds: float
    gradient_left: float
    """‖∇F‖ on the frozen draws of the trained model: the residual of training."""
    gradient_group: float
    """‖Σ ∇h‖ of the rows to forget, at the same point."""
    residual_ours: float
    residual_paper: float
    damping: float
    agreement: float
    products: int
    paper_scale: float
    """Scale c·n' at which the paper's recursion converged."""
    certified: Certified | None = None
    """Certificate of our method; None for sample sets of networks, which have none."""

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> NetworkComparison:
        """Inverse of `dataclasses.asdict`."""
        ways = {name: NetworkWay(**{**way, "score": Score(**way["score"])}) for name, way in stored["ways"].items()}
        certified = stored.get("certified")
        return cls(**{**stored, "ways": ways, "certified": certified and Certified(**certified)})


def method(case: str, plan: Plan) -> Method:
    if case == "lenet-vi":
        return Variational(plan.training, plan.descent, replace(PAPER_VI, num_terms=plan.num_terms))
    if case == "lenet-sgld":
        return Sampled(plan.sgld, replace(PAPER_SGLD, num_terms=plan.num_terms))
    if case == "lenet-sghmc":
        return Sampled(plan.sghmc, replace(PAPER_SGHMC, num_terms=plan.num_terms))
    raise InvalidInput(f"unknown case {case!r}: choose among {', '.join(CASES)}")


def compare(
    case: str, removed: int, seed: int, scene: Scene, plan: Plan, folder: Path, on_progress: OnProgress | None = None
) -> NetworkComparison:
    """Compare doing nothing, the paper's method, ours and two retrainings.

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
        models = self._models()
        self.report("scoring", 0.0)
        ways = {name: self._score(name, models[name]) for name in WAYS}
        before, step = models["nothing"].posterior, models["ours"].facts
        self.report("gradients", 0.8)
        gradients = _gradients(self.scene, self.method.frozen(before), self.forgotten, self.plan)
        return NetworkComparison(
            case=self.case,
            removed=self.removed,
            n=len(self.scene.train),
            seed=self.seed,
            ways=ways,
            training_seconds=models["trained"].seconds,
            **gradients,
            residual_ours=step["residual"],
            damping=step["damping"],
            agreement=step["agreement"],
            products=int(step["products"]),
            paper_scale=models["paper"].facts["scale"],
            certified=self._certify(before, models["ours"].posterior),
        )

    def _models(self) -> dict[str, CachedModel]:
        """Return the model of every method. Each comparison has three training seeds: one original, two retrainings."""
        cache, first_seed = ModelCache(self.method, self.case, self.folder), 3 * self.seed + 1

        def train(data: Tensor, removed: int, seed: int, stage: str) -> CachedModel:
            return cache.train(self.scene.network, data, removed, seed, lambda fraction: self.report(stage, fraction))

        trained = train(self.scene.train, 0, first_seed, "training")
        retrained = train(self.retained, self.removed, first_seed + 1, "retraining")
        again = train(self.retained, self.removed, first_seed + 2, "retraining again")
        self.report("our method", 0.0)
        suffix = f"{self.removed}-seed{self.seed}"
        return {
            "trained": trained,
            "nothing": replace(trained, seconds=0.0),
            "retrained": retrained,
            "again": again,
            "ours": cache.get(f"ours{suffix}", lambda: self._forget_ours(trained.posterior)),
            "paper": cache.get(f"paper{suffix}", lambda: self._forget_paper(trained.posterior)),
        }

    def _forget_ours(self, before: Any) -> tuple[Any, dict[str, float]]:
        after, step = self.method.ours(self.scene.network, before, self.scene.train, self.forgotten)
        return after, {fact: getattr(step, fact) for fact in ("residual", "damping", "agreement", "products")}

    def _forget_paper(self, before: Any) -> tuple[Any, dict[str, float]]:
        def report(fraction: float) -> None:
            self.report("the paper's method", fraction)

        after, scale = self.method.paper(self.scene.network, before, self.scene.train, self.forgotten, report)
        return after, {"scale": scale}

    def _score(self, name: str, model: CachedModel) -> NetworkWay:
        draws = self.method.draws(model.posterior, self.plan.predicting_draws, seed=5)
        return NetworkWay(name, _score(self.scene, draws, self.forgotten, self.retained), model.seconds)

    def _certify(self, before: Any, after: Any) -> Certified | None:
        self.report("the certificate", 0.9)
        seconds, certificate = timed(
            lambda: self.method.certify(self.scene.network, before, after, self.scene.train, self.forgotten)
        )
        return None if certificate is None else _certified(certificate, seconds)


def _ignore_progress(_stage: str, _fraction: float) -> None:
    pass


def _certified(certificate: Certificate, seconds: float) -> Certified:
    epsilon = certificate.epsilon if math.isfinite(certificate.epsilon) else None
    return Certified(certificate.level, epsilon, seconds)


def _gradients(scene: Scene, draws: Tensor, forgotten: Tensor, plan: Plan) -> dict[str, float]:
    """Return the residual of training, the gradient of the forgotten rows, and the residual of the paper's solver."""
    energy = NetworkEnergy(scene.network, scene.train, draws)
    origin = torch.zeros_like(draws[0])
    pull = energy.misfit_gradient(origin, forgotten)
    retained = retained_positions(scene.train, forgotten)
    retained_gradient = energy.gradient(origin, retained)
    return {
        "gradient_left": float((retained_gradient + pull).norm()),
        "gradient_group": float(pull.norm()),
        "residual_paper": _paper_residual(energy, retained, forgotten, plan.num_terms),
    }


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


def _score(scene: Scene, draws: Tensor, forgotten: Tensor, retained: Tensor) -> Score:
    forgotten_error, forgotten_loss = _predict(scene.network, draws, scene.train[forgotten])
    retained_error, _ = _predict(scene.network, draws, retained[:: max(1, len(retained) // RETAINED_SCORED)])
    test_error, test_loss = _predict(scene.network, draws, scene.test)
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
