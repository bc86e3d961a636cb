"""Forgetting rows of one class of 1,797 handwritten digits: a Bayesian perceptron small enough to compute the truth.

The energy is a function of the means, over frozen draws. All methods but retraining keep the trained widths, so a
divergence is ½ ‖(μ - μ')/σ‖². The trained model is at a minimum. The truth is the minimum on the retained rows that
descent reaches from there. Retraining starts from scratch and ends in another basin. Its divergence of thousands of
nats shows that the weights differ, not that its predictions are wrong.

Hidden units are tanh. With relu the frozen energy has a kink wherever a row switches a unit on. Descent stalls on the
kinks, and two descents to one minimum end about a nat apart, which would hide the differences of interest.

Our method is an influence step followed by descent on the retained rows. With so few rows the prior determines most
directions and minima are shallow. Removing rows can tip the means into a neighbouring minimum, tens of nats away, which
no step from the curvature at one point can predict. The descent does nearly all of the work here, and it takes no
longer from the old means.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.datasets.digits import digits
from benchmarks.paper.gmm import LARGEST_SHARE, Comparison, OnProgress, Way
from benchmarks.timing import timed
from ml.baselines.paper_network import PAPER_VI, paper_forget_network
from ml.errors import InvalidInput
from ml.forgetting.network import TrustedStep, influence_step
from ml.forgetting.retained import retained_rows
from ml.inference.bayes_by_backprop import BayesByBackprop, train_network
from ml.models.mlp import MLP
from ml.models.network import Dense, Layer, identity
from ml.models.network_energy import NetworkEnergy, frozen_draws
from ml.posteriors.mean_field import MeanFieldGaussian

_CONVERGED = 1e-5
_GOOD_ENOUGH = 1e-3
"""Largest |σ_j ∂F/∂μ_j| at which descent stops, in nats per width: for the truth, and for the compared methods."""
TRAINING = BayesByBackprop(2_000, 128, 3e-3, decay=0.3, decay_every=500, draws=1, optimiser="adam")


@dataclass(frozen=True)
class TanhMLP(MLP):
    @property
    def layers(self) -> tuple[Layer, ...]:
        return (
            Dense(self.dimensions, self.hidden, torch.tanh),
            Dense(self.hidden, self.classes, identity),
        )


@dataclass(frozen=True)
class Setting:
    hidden: int = 32
    rows: int = 1797
    draws: int = 32
    training: BayesByBackprop = TRAINING
    most_descent: int = 1_500

    @property
    def network(self) -> TanhMLP:
        return TanhMLP(64, self.hidden, 10)


FULL = Setting()


@dataclass(frozen=True, eq=False)
class Scene:
    setting: Setting
    data: Tensor
    forgotten: Tensor
    before: MeanFieldGaussian

    @property
    def energy(self) -> NetworkEnergy:
        return NetworkEnergy(self.setting.network, self.data, frozen_draws(self.before, self.setting.draws, 0))

    @property
    def retained(self) -> Tensor:
        return retained_rows(torch.arange(len(self.data)), self.forgotten)

    def moved(self, drift: Tensor) -> MeanFieldGaussian:
        return MeanFieldGaussian(self.before.mean + drift, self.before.std)


def compare(
    removed: int = 64, seed: int = 1, on_progress: OnProgress | None = None, setting: Setting = FULL
) -> Comparison:
    """Compare doing nothing, the paper's method, ours and retraining in one run."""
    report = on_progress or (lambda _stage, _fraction: None)
    data = torch.cat(digits())[: setting.rows]
    forgotten = forgotten_rows(data, removed, seed)
    report("training", 0.0)
    scene = Scene(setting, data, forgotten, _trained(setting, data, seed, _CONVERGED))
    origin = torch.zeros_like(scene.before.mean)
    report("the truth", 0.3)
    truth = scene.moved(_descend(scene.energy, scene.before.std, scene.retained, origin, setting, _CONVERGED))
    report("the paper's method", 0.5)
    seconds_paper, paper = timed(lambda: _paper_drift(scene, forgotten, seed))
    report("our method", 0.55)
    seconds_ours, (ours, step) = timed(lambda: _forget_ours(scene, seed))
    report("retraining", 0.7)
    seconds_retrain, retrained = timed(lambda: _trained(setting, data[scene.retained], seed + 1, _GOOD_ENOUGH))
    report("done", 1.0)

    def way(name: str, posterior: MeanFieldGaussian, seconds: float) -> Way:
        distance = float((posterior.mean - truth.mean).norm())
        return Way(name, posterior.kl(truth), distance, seconds, centres=[])

    ways = [
        way("nothing", scene.before, 0.0),
        way("paper", scene.moved(paper), seconds_paper),
        way("ours", scene.moved(ours), seconds_ours),
        way("retrained", retrained, seconds_retrain),
    ]
    residuals = _residuals(scene, step, seed)
    return Comparison("mlp-vi", removed, len(data), {w.name: w for w in ways}, *residuals, warning=None)


def forgotten_rows(data: Tensor, removed: int, seed: int) -> Tensor:
    """Return rows of one class; the seed chooses class and rows."""
    generator = torch.Generator().manual_seed(seed)
    label = int(torch.randint(10, (), generator=generator))
    rows = torch.nonzero(data[:, -1] == label).flatten()
    if not 1 <= removed <= LARGEST_SHARE * len(rows):
        raise InvalidInput(f"{removed} rows cannot be removed from a class of {len(rows)}: pass fewer, at least one")
    return rows[torch.randperm(len(rows), generator=generator)[:removed]]


def _trained(setting: Setting, data: Tensor, seed: int, tolerance: float) -> MeanFieldGaussian:
    """Train with minibatches, which set the widths, then move the means to a minimum of the frozen energy."""
    network, generator = setting.network, torch.Generator().manual_seed(seed)
    trained = train_network(network, data, network.initial(seed), setting.training, generator).posterior
    energy = NetworkEnergy(network, data, frozen_draws(trained, setting.draws, 0))
    origin = torch.zeros_like(trained.mean)
    drift = _descend(energy, trained.std, torch.arange(len(data)), origin, setting, tolerance)
    return MeanFieldGaussian(trained.mean + drift, trained.std)


def _forget_ours(scene: Scene, seed: int) -> tuple[Tensor, TrustedStep]:
    energy, std = scene.energy, scene.before.std
    step = influence_step(energy, std.square().reciprocal(), scene.forgotten, torch.Generator().manual_seed(seed))
    return _descend(energy, std, scene.retained, step.drift, scene.setting, _GOOD_ENOUGH), step


def _paper_drift(scene: Scene, forgotten: Tensor, seed: int) -> Tensor:
    """Return the drift of the means. The paper's widths are ignored, as for every method."""
    generator = torch.Generator().manual_seed(seed)
    after = paper_forget_network(scene.setting.network, scene.before, scene.data, forgotten, generator)
    return after.posterior.mean - scene.before.mean


def _residuals(scene: Scene, step: TrustedStep, seed: int) -> tuple[float, float]:
    """Return ‖v - Hx‖/‖v‖ of the first solve, ours and the paper's, with H = G + ∇²f over all rows.

    Our solve is damped and uses a sample of G; the descent after it removes the residual.
    """
    energy, origin = scene.energy, torch.zeros_like(scene.before.mean)
    curvature = energy.curvature(torch.arange(len(scene.data)), 1.0)

    def residual(rows: Tensor, x: Tensor) -> float:
        v = energy.misfit_gradient(origin, rows)
        return float((v - curvature(x)).norm() / v.norm())

    first = scene.forgotten[: PAPER_VI.group_size]
    return residual(scene.forgotten, step.drift), residual(first, _paper_drift(scene, first, seed))


def _descend(
    energy: NetworkEnergy, std: Tensor, rows: Tensor, start: Tensor, setting: Setting, tolerance: float
) -> Tensor:
    """Return the drift at the minimum of F that L-BFGS reaches from `start`, in units of the widths."""
    whitened = (start / std).requires_grad_()
    optimiser = torch.optim.LBFGS(
        [whitened],
        max_iter=setting.most_descent,
        tolerance_grad=tolerance,
        tolerance_change=0,
        history_size=100,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        drift = std * whitened.detach()
        whitened.grad = std * energy.gradient(drift, rows)
        return torch.tensor(energy.misfit(drift, rows) + energy.prior_energy(drift), dtype=torch.float64)

    optimiser.step(closure)  # type: ignore[no-untyped-call]
    return std * whitened.detach()
