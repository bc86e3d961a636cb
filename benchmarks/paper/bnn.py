"""The paper's second experiment: LeNet-5 on Fashion-MNIST, T-shirts forgotten (its section 7.2).

A network trained again lands in another basin, so parameters cannot be compared: what counts is how models predict on
the forgotten rows, on what is retained and on the test set. Two retrainings of different seeds show how far two models
that never saw the rows are apart (the floor), and the original model what doing nothing scores.

Models are kept in a folder: a run that was stopped goes on where it was.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.paper.network_methods import Method, Sampled, Shelf, Variational
from benchmarks.timing import timed
from ml.baselines.paper_network import PAPER_SGHMC, PAPER_SGLD, PAPER_VI
from ml.certify.certificate import Certificate
from ml.errors import InvalidInput, NumericalFailure
from ml.forgetting.groups import retained_positions, retained_rows
from ml.inference.averaged_descent import SAFE_SETTLING, Settling
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
    """How much work goes into it."""

    removed: tuple[int, ...]
    seeds: int
    training: BayesByBackprop
    settling: Settling
    sgld: Chains
    sghmc: Chains
    num_terms: int
    predicting_draws: int


FULL = Plan(
    removed=(64, 1_000, 2_000, 3_000, 4_000, 5_000, 6_000),
    seeds=5,
    training=SAFE_BNN,
    settling=SAFE_SETTLING,
    sgld=SAFE_BNN_SGLD,
    sghmc=SAFE_BNN_SGHMC,
    num_terms=PAPER_VI.num_terms,
    predicting_draws=16,
)
QUICK = Plan(
    removed=(1_000,),
    seeds=1,
    training=replace(SAFE_BNN, iterations=600, decay_every=150),
    settling=Settling(iterations=150, averaged=100),
    sgld=replace(SAFE_BNN_SGLD, iterations=300, burn_in=200, thinning=10),
    sghmc=replace(SAFE_BNN_SGHMC, iterations=300, burn_in=200, thinning=10),
    num_terms=16,
    predicting_draws=4,
)


@dataclass(frozen=True, eq=False)
class Scene:
    """A network, and rows to train and to test it on."""

    network: Network
    train: Tensor
    test: Tensor

    def forgotten(self, removed: int) -> Tensor:
        """Positions of so many random rows of one class; a larger group holds every smaller one."""
        rows = torch.nonzero(self.train[:, -1] == CLASS).flatten()
        if not 1 <= removed <= len(rows):
            raise InvalidInput(f"{removed} rows cannot be removed from a class of {len(rows)}: pass 1 to {len(rows)}")
        return rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(ORDER_SEED))[:removed]]


@dataclass(frozen=True)
class Score:
    """Errors in percent, losses in nats a row, of the prediction averaged over draws."""

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
    """`epsilon` is None at level none."""

    level: str
    epsilon: float | None
    seconds: float


@dataclass(frozen=True)
class NetworkComparison:
    """One group of rows taken out of one trained model, in every way."""

    case: str
    removed: int
    n: int
    seed: int
    ways: dict[str, NetworkWay]
    training_seconds: float
    gradient_left: float
    """‖∇F‖ on the frozen draws of the trained model: what training left over."""
    gradient_group: float
    """‖Σ ∇h‖ of the rows to forget, at the same place."""
    residual_ours: float
    residual_paper: float
    damping: float
    agreement: float
    products: int
    paper_scale: float
    """c·n' with which the paper's recursion did not diverge."""
    certified: Certified | None = None
    """Our way; None for sample sets, which have no certificate on networks."""

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> NetworkComparison:
        """Back from `dataclasses.asdict`."""
        ways = {name: NetworkWay(**{**way, "score": Score(**way["score"])}) for name, way in stored["ways"].items()}
        certified = stored.get("certified")
        return cls(**{**stored, "ways": ways, "certified": certified and Certified(**certified)})


def method(case: str, plan: Plan) -> Method:
    if case == "lenet-vi":
        return Variational(plan.training, plan.settling, replace(PAPER_VI, num_terms=plan.num_terms))
    if case == "lenet-sgld":
        return Sampled(plan.sgld, replace(PAPER_SGLD, num_terms=plan.num_terms))
    if case == "lenet-sghmc":
        return Sampled(plan.sghmc, replace(PAPER_SGHMC, num_terms=plan.num_terms))
    raise InvalidInput(f"unknown case {case!r}: choose among {', '.join(CASES)}")


def compare(
    case: str, removed: int, seed: int, scene: Scene, plan: Plan, folder: Path, on_progress: OnProgress | None = None
) -> NetworkComparison:
    """Nothing, the paper's way, ours and two retrainings. `folder` keeps the trained models and the result."""
    kept = folder / f"{case}-removed{removed}-seed{seed}.json"
    if kept.exists():
        return NetworkComparison.from_dict(json.loads(kept.read_text()))
    report = on_progress or (lambda _stage, _fraction: None)
    how, forgotten = method(case, plan), scene.forgotten(removed)
    retained = retained_rows(scene.train, forgotten)
    shelf = Shelf(how, case, folder)

    def trained(data: Tensor, without: int, stage: str, at: int) -> tuple[Any, float, dict[str, float]]:
        return shelf.trained(scene.network, data, without, at, lambda done: report(stage, done))

    def forgotten_by_ours() -> tuple[Any, dict[str, float]]:
        after, step = how.ours(scene.network, before, scene.train, forgotten)
        facts = ("residual", "damping", "agreement", "products")
        return after, {fact: getattr(step, fact) for fact in facts}

    def forgotten_by_paper() -> tuple[Any, dict[str, float]]:
        stage = "the paper's way"
        after, scale = how.paper(scene.network, before, scene.train, forgotten, lambda done: report(stage, done))
        return after, {"scale": scale}

    # Three seeds for each: of the original, and of two retrainings.
    before, training_seconds, _ = trained(scene.train, 0, "training", 3 * seed + 1)
    models = {"nothing": (before, 0.0, dict[str, float]())}
    models["retrained"] = trained(retained, removed, "retraining", 3 * seed + 2)
    models["again"] = trained(retained, removed, "retraining again", 3 * seed + 3)
    report("our way", 0.0)
    models["ours"] = shelf.made(f"ours{removed}-seed{seed}", forgotten_by_ours)
    models["paper"] = shelf.made(f"paper{removed}-seed{seed}", forgotten_by_paper)
    report("scoring", 0.0)
    ways = {}
    for name in WAYS:
        posterior, seconds, _ = models[name]
        draws = how.draws(posterior, plan.predicting_draws, seed=5)
        ways[name] = NetworkWay(name, _score(scene, draws, forgotten, retained), seconds)
    report("gradients", 0.8)
    gradients = _gradients(scene, how.frozen(before), forgotten, plan)
    report("the certificate", 0.9)
    seconds, certificate = timed(lambda: how.certify(scene.network, before, models["ours"][0], scene.train, forgotten))
    step = models["ours"][2]
    found = NetworkComparison(
        case=case,
        removed=removed,
        n=len(scene.train),
        seed=seed,
        ways=ways,
        training_seconds=training_seconds,
        **gradients,
        residual_ours=step["residual"],
        damping=step["damping"],
        agreement=step["agreement"],
        products=int(step["products"]),
        paper_scale=models["paper"][2]["scale"],
        certified=None if certificate is None else _certified(certificate, seconds),
    )
    kept.write_text(json.dumps(asdict(found), indent=2))
    report("done", 1.0)
    return found


def _certified(certificate: Certificate, seconds: float) -> Certified:
    epsilon = certificate.epsilon if math.isfinite(certificate.epsilon) else None
    return Certified(certificate.level, epsilon, seconds)


def _gradients(scene: Scene, draws: Tensor, forgotten: Tensor, plan: Plan) -> dict[str, float]:
    """How far training was from a minimum, beside the pull of the rows; and what the paper's solve leaves unsolved."""
    energy = NetworkEnergy(scene.network, scene.train, draws)
    origin = torch.zeros_like(draws[0])
    pull = energy.misfit_gradient(origin, forgotten)
    retained = retained_positions(scene.train, forgotten)
    rest = energy.gradient(origin, retained)
    return {
        "gradient_left": float((rest + pull).norm()),
        "gradient_group": float(pull.norm()),
        "residual_paper": _paper_residual(energy, retained, forgotten, plan.num_terms),
    }


def _paper_residual(energy: NetworkEnergy, retained: Tensor, forgotten: Tensor, num_terms: int) -> float:
    """‖v - Ax‖/‖v‖ of the recursion for the paper's first group, with A as our step samples it, undamped.

    c = 0.1/n', halved until it converges: the largest of the paper's, so the most favourable.
    """
    chosen = retained[torch.randperm(len(retained), generator=torch.Generator().manual_seed(1))[:_SAMPLED_ROWS]]
    matvec = energy.curvature(chosen, len(retained) / len(chosen))
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
    """Error in percent and mean negative log-likelihood of the averaged prediction."""
    wrong, loss = 0, 0.0
    with torch.no_grad():
        for chunk in torch.split(rows, _ROWS_AT_ONCE):
            logs = torch.stack([network.outputs(draw.to(rows.dtype), chunk).log_softmax(1) for draw in draws])
            mixed, labels = logs.logsumexp(0) - math.log(len(draws)), chunk[:, -1].long()
            wrong += int((mixed.argmax(1) != labels).sum())
            loss -= float(mixed.gather(1, labels.unsqueeze(1)).double().sum())
    return 100 * wrong / len(rows), loss / len(rows)
