from __future__ import annotations

import itertools
import json
import math
import statistics
from dataclasses import dataclass, field, replace

import mpmath
import pytest
import torch
from torch import Tensor

from ml.certify import Certificate, certify
from ml.certify.kantorovich import (
    _least_curvature,
    _lipschitz,
    _newton_error,
    _norm,
    _third_derivative,
    _worst_kl,
    paper_epsilon,
)
from ml.errors import InvalidInput
from ml.forgetting.variational import influence_step
from ml.inference.variational import train
from ml.models.family import Expansion, Rounding, width_scale
from ml.models.gmm import GaussianMixture
from ml.models.linear import LinearRegression
from ml.models.newton import newton_step
from ml.models.synthetic import synthetic_mixture
from ml.posteriors.mean_field import MeanFieldGaussian
from ml.solvers import solve
from tests.ml.conftest import Scene, saddle


def failed(certificate: Certificate) -> list[str]:
    return [assumption.name for assumption in certificate.assumptions if not assumption.holds]


def groups(scene: Scene, count: int, clustered: bool) -> list[Tensor]:
    """Deletions of 1 to 80 rows: drawn anywhere, or the nearest neighbours of a row."""
    generator = torch.Generator().manual_seed(int(clustered))
    chosen = []
    for _ in range(count):
        size = int(torch.randint(1, 81, (), generator=generator))
        order = torch.randperm(len(scene.data), generator=generator)
        if clustered:
            order = (scene.data - scene.data[order[0]]).norm(dim=1).argsort()
        chosen.append(order[:size])
    return chosen


@pytest.mark.parametrize("clustered", [False, True])
def test_the_bound_holds_in_hundreds_of_deletions_and_is_tight(scene: Scene, clustered: bool) -> None:
    proved, ratios = 0, []
    for forgotten in groups(scene, 120, clustered):
        retained = scene.retained(forgotten)
        influenced = influence_step(scene.family, scene.posterior, scene.data, forgotten)
        refined = newton_step(scene.family, scene.family.expand(influenced, retained), retained).posterior
        truth = train(scene.family, retained, refined, tolerance=0.0).posterior
        for posterior in (influenced, refined):
            certificate = certify(scene.family, posterior, retained)
            if certificate.level == "none":
                assert posterior is influenced
                continue
            proved += 1
            divergence, reverse = posterior.kl(truth), truth.kl(posterior)
            assert certificate.epsilon >= divergence
            assert certificate.epsilon_reverse >= reverse
            scale = width_scale(posterior).flatten().repeat(2)
            assert certificate.constants.radius >= float(((posterior.flat() - truth.flat()) / scale).norm())
            assert certificate.constants.paper_epsilon >= divergence
            if divergence > 1e-16:  # below, the bound consists of the slack for rounding
                ratios.append(certificate.epsilon / divergence)
    assert proved >= 180
    assert len(ratios) >= 100
    assert statistics.median(ratios) <= 1.5


def test_one_component_has_a_closed_form_truth() -> None:
    family, data = GaussianMixture(1, 2, 1.0), synthetic_mixture(400, seed=0)[0]
    truth = MeanFieldGaussian(data.sum(0, keepdim=True) / 401, torch.full((1, 2), 401**-0.5, dtype=torch.float64))
    near = MeanFieldGaussian(truth.mean + 1e-4, truth.std * 1.002)
    certificate = certify(family, near, data)
    assert certificate.level == "proved"
    assert near.kl(truth) <= certificate.epsilon <= 1.05 * near.kl(truth)
    assert truth.kl(near) <= certificate.epsilon_reverse <= 1.05 * truth.kl(near)


@pytest.mark.parametrize(
    ("radius", "expected"),
    [
        (0.05, 1.90625),  # (2 (0.2 + 0.55) 0.1 + 0.0025) / 0.08
        (0.15, 23.625),  # (2 (0.1 + 0.65) 0.3 + 0.0225) / 0.02
        (0.25, math.inf),
        (0.3, math.inf),
    ],
)
def test_the_paper_s_bound_by_hand(radius: float, expected: float) -> None:
    """(2(M₁+M₂) r√(2d) + r²) / 2M₁², M₁ = 0.25 - r, M₂ = 0.5 + r, d = 2: infinite once M₁ is 0."""
    std = torch.tensor([0.5, 0.25], dtype=torch.float64)
    posterior = MeanFieldGaussian(torch.zeros_like(std), std)
    assert expected <= paper_epsilon(posterior, radius) <= expected * (1 + 2e-10)


def test_the_paper_s_bound_is_of_first_order(scene: Scene) -> None:
    """At a tenth of the distance, its formula falls by ten and the divergence by a hundred."""
    constants = []
    for gap in (1e-4, 1e-5):
        near = MeanFieldGaussian(scene.posterior.mean + gap, scene.posterior.std)
        certificate = certify(scene.family, near, scene.data)
        assert certificate.constants.paper_epsilon > 10 * certificate.epsilon
        constants.append((certificate.constants.paper_epsilon, certificate.epsilon))
    (paper, ours), (paper_nearer, ours_nearer) = constants
    assert paper / paper_nearer == pytest.approx(10, rel=0.05)
    assert ours / ours_nearer == pytest.approx(100, rel=0.1)


def test_at_the_optimum_the_bound_consists_of_rounding_only(scene: Scene) -> None:
    certificate = certify(scene.family, scene.posterior, scene.data)
    assert certificate.level == "proved"
    assert certificate.reasons == ()
    assert 0 < certificate.epsilon < 1e-15
    assert 1e-13 < certificate.constants.rounding < 1e-10
    assert certificate.n_retained == 2000
    at = scene.family.expand(scene.posterior, scene.data)
    hessian = at.scale.unsqueeze(1) * at.hessian * at.scale
    assert certificate.constants.lambda_min == pytest.approx(float(torch.linalg.eigvalsh(hessian)[0]), rel=1e-6)


def test_a_step_that_did_not_forget_misses_the_policy(scene: Scene) -> None:
    """No step, a step backwards, half a step: each must miss a policy that the honest step meets."""
    policy, forgotten = 1e-4, torch.arange(100)
    retained = scene.retained(forgotten)
    honest = influence_step(scene.family, scene.posterior, scene.data, forgotten)
    assert certify(scene.family, honest, retained).epsilon < policy
    step = honest.flat() - scene.posterior.flat()
    for share in (0.0, -1.0, 0.5):
        forged = scene.posterior.with_flat(scene.posterior.flat() + share * step)
        assert certify(scene.family, forged, retained).epsilon > policy


def test_a_saddle_is_not_certified(scene: Scene) -> None:
    certificate = certify(scene.family, saddle(scene), scene.data)
    assert (certificate.level, certificate.epsilon, certificate.epsilon_reverse) == ("none", math.inf, math.inf)
    assert "curvature" in failed(certificate)
    assert any("curves upwards" in reason for reason in certificate.reasons)
    assert certificate.constants.lambda_min <= 0
    assert json.loads(json.dumps(certificate.to_dict(), allow_nan=False))["epsilon"] is None


def test_far_from_the_optimum_nothing_is_certified(scene: Scene) -> None:
    shifted = MeanFieldGaussian(scene.posterior.mean + 0.02, scene.posterior.std)
    certificate = certify(scene.family, shifted, scene.data)
    assert certificate.constants.lambda_min > 0
    assert failed(certificate) == ["domain", "kantorovich"]
    nearer = MeanFieldGaussian(scene.posterior.mean + 0.003, scene.posterior.std)
    certificate = certify(scene.family, nearer, scene.data)
    assert failed(certificate) == ["kantorovich"]
    assert 0.5 <= certificate.constants.kantorovich < math.inf
    assert certificate.epsilon == math.inf


def test_rounding_without_bound_is_not_certified() -> None:
    family = GaussianMixture(1, 1, 1.0)
    data = torch.full((10, 1), 1e9, dtype=torch.float64)
    posterior = MeanFieldGaussian(data[:1] * 10 / 11, torch.full((1, 1), 11**-0.5, dtype=torch.float64))
    assert failed(certify(family, posterior, data)) == ["curvature", "domain", "kantorovich"]


def test_the_certificate_names_what_it_does_not_prove(scene: Scene) -> None:
    certificate = certify(scene.family, scene.posterior, scene.data)
    assert "same basin" in certificate.reference
    assert "KL(processed ‖ reference)" in certificate.direction
    text = " ".join(certificate.not_proved)
    for word in ("basin", "family", "outside Lethe", "draws", "parameters"):
        assert word in text


def test_the_reference_of_a_convex_energy_is_its_one_minimiser() -> None:
    family = LinearRegression(dimensions=2, noise_std=1.0, prior_std=1.0)
    data = torch.randn(30, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    certificate = certify(family, family.optimum(data), data)
    energy = "the negative evidence lower bound (ELBO)"
    assert certificate.reference == f"the one minimiser of the retained energy, which is {energy}"
    assert not any("basin" in sentence for sentence in certificate.not_proved)


def test_the_worst_divergence_in_a_box_is_at_its_corners() -> None:
    """Compared with a grid search of the box in both directions; the supremum is attained."""
    posterior = MeanFieldGaussian(
        torch.tensor([1.0, -2.0], dtype=torch.float64), torch.tensor([0.5, 0.2], dtype=torch.float64)
    )
    step = torch.tensor([0.1, -0.05, 0.12, -0.03], dtype=torch.float64)
    forward, reverse = _worst_kl(posterior.std, step, half_width=0.06, radius=10.0)
    axis = torch.linspace(-0.06, 0.06, 9, dtype=torch.float64).tolist()
    divergences = [
        (posterior.kl(other), other.kl(posterior))
        for offset in itertools.product(axis, repeat=4)
        for other in [posterior.with_flat(posterior.flat() - step + torch.tensor(offset, dtype=torch.float64))]
    ]
    assert max(divergence for divergence, _ in divergences) == pytest.approx(forward, rel=1e-9)
    assert max(reverse_divergence for _, reverse_divergence in divergences) == pytest.approx(reverse, rel=1e-9)


def test_the_ball_keeps_the_lower_end_of_the_box_positive() -> None:
    std = torch.ones(1, dtype=torch.float64)
    forward, reverse = _worst_kl(std, torch.zeros(2, dtype=torch.float64), half_width=1.5, radius=0.5)
    assert 0 < forward < 10
    assert 0 < reverse < 10


@pytest.mark.parametrize("smallest", [1e-6, 1e-3, 1.0, -1e-3])
def test_least_curvature_is_a_close_lower_bound(smallest: float) -> None:
    """Compared with the eigenvalues of the stored matrix in forty digits."""
    matrix = random_curvature(0, torch.tensor([smallest, 2, 3, 5, 8, 13, 500, 1000], dtype=torch.float64))
    with mpmath.workdps(40):
        truth = min(mpmath.eigsy(mpmath.matrix(matrix.tolist()), eigvals_only=True))
    bound = _least_curvature(matrix)
    assert mpmath.mpf(bound) <= truth
    assert float(truth) - bound < 1e-10
    assert (bound > 0) == (smallest > 0)


def test_the_slack_of_the_least_curvature_covers_cholesky_s_rounding() -> None:
    """γ_(p+1)/(1-γ_(p+1)) tr A for the factorisation, and as much for the guess: here for p = 40."""
    generator = torch.Generator().manual_seed(1)
    root = torch.randn(40, 60, generator=generator, dtype=torch.float64)
    matrix = root @ root.T
    slack = float(torch.linalg.eigvalsh(matrix)[0]) - _least_curvature(matrix)
    required = 2 * 41 * 2.0**-53 * float(matrix.trace())
    assert required < slack < 20 * required


def test_a_guess_that_cholesky_refutes_leaves_no_lower_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.linalg, "eigvalsh", lambda matrix: torch.ones_like(matrix.diagonal()))
    assert _least_curvature(torch.diag(torch.tensor([0.5, 2.0], dtype=torch.float64))) == -math.inf


def test_the_error_of_the_newton_step_by_hand() -> None:
    """(|g - Hδ| + 6ε(|H||δ| + |g|) + rounding of H·|δ|)/√m, and c times that of g; |g| = |H| = √20, true δ = (1, 1)."""
    gradient, step = torch.tensor([2.0, 4.0], dtype=torch.float64), torch.ones(2, dtype=torch.float64)
    hessian, rounding = gradient.diag(), Rounding(0.5, 0.25, gradient_anywhere=0.75)
    exact = _newton_error(gradient, hessian, step, Rounding(0.0, 0.0), 0.5, 0.25)
    assert exact == pytest.approx(6 * 2.0**-52 * math.sqrt(20) * (math.sqrt(2) + 1) / 2, rel=1e-9, abs=0)
    rounded = _newton_error(gradient, hessian, step, rounding, 0.5, 0.25)
    assert rounded == pytest.approx(0.25 * 0.5 + (0.75 + 0.25 * math.sqrt(2)) / 2, rel=1e-9)
    step[0] = 0.0
    assert _newton_error(gradient, hessian, step, rounding, 0.25, 0.25) == pytest.approx(3.5 / 4, rel=1e-9)


def test_the_norm_of_a_step_by_hand() -> None:
    """√(δᵀHδ + rounding of H·|δ|²) = √(2·9 + 4·16 + 0.5·25)."""
    step, hessian = torch.tensor([3.0, 4.0], dtype=torch.float64), torch.tensor([2.0, 4.0], dtype=torch.float64).diag()
    assert math.sqrt(94.5) < _norm(step, hessian, 0.5) < math.sqrt(94.5) * (1 + 1e-9)


def test_the_worst_divergence_includes_its_own_rounding() -> None:
    """One coordinate of std 1 and mean distance ½: both divergences are largest at the lower end, std ½."""
    std = torch.ones(1, dtype=torch.float64)
    worst = _worst_kl(std, torch.zeros(2, dtype=torch.float64), half_width=0.5, radius=10.0)
    with mpmath.workdps(40):
        forward, reverse = 2 - mpmath.log(2), mpmath.log(2) - mpmath.mpf("0.25")
        for bound, truth in zip(worst, (forward, reverse), strict=True):
            assert truth < mpmath.mpf(bound) < truth * (1 + mpmath.mpf("2e-10"))


@pytest.mark.parametrize(
    ("rows", "k_of_the_subset", "expected"),
    [(8000, 0.499, [1000, 8000]), (8000, 0.501, [1000]), (8000, math.nan, [1000]), (7999, 0.501, [7999])],
)
def test_a_subset_of_many_rows_may_rule_out_a_certificate(
    rows: int, k_of_the_subset: float, expected: list[int]
) -> None:
    """L is bounded on an eighth of the rows first, if these are a thousand."""
    counts: list[int] = []

    def bound(rows: Tensor) -> float:
        counts.append(len(rows))
        return k_of_the_subset * len(rows) / 1000

    assert _lipschitz(torch.zeros(rows, 1), bound, eta=1.0) == pytest.approx(
        k_of_the_subset * expected[-1] / 1000, nan_ok=True
    )
    assert counts == expected


@dataclass(frozen=True)
class FixedBound(GaussianMixture):
    """Mixture whose third derivative has a fixed bound."""

    bound: Tensor = field(default_factory=lambda: torch.zeros(0))

    def third_derivative_bound(self, posterior: MeanFieldGaussian, data: Tensor, radius: float) -> Tensor:
        return self.bound


def random_curvature(seed: int, spectrum: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    basis = torch.linalg.qr(torch.randn(len(spectrum), len(spectrum), generator=generator, dtype=torch.float64)).Q
    matrix = basis @ torch.diag(spectrum) @ basis.T
    return (matrix + matrix.T) / 2


@pytest.mark.parametrize("smallest", [1.0, 1e-4, 1e-8])
def test_the_third_derivative_is_bounded_relative_to_the_curvature(smallest: float) -> None:
    """βH - B is positive semi-definite for the returned β, in forty digits, and not for a β two percent smaller."""
    hessian = random_curvature(0, torch.tensor([smallest, 1, 2, 3, 5, 8], dtype=torch.float64))
    family = FixedBound(1, 3, 1.0, random_curvature(1, torch.tensor([0, 0.1, 1, 2, 2, 4], dtype=torch.float64)))
    beta = _third_derivative(family, at(hessian, rounding=smallest / 10), hessian, 1.0, torch.zeros(0, 3))
    with mpmath.workdps(40):
        lowest, bound = (mpmath.matrix(matrix.tolist()) for matrix in (hessian, family.bound))
        lowest -= mpmath.mpf(smallest / 10) * mpmath.eye(6)
        assert min(mpmath.eigsy(mpmath.mpf(beta) * lowest - bound, eigvals_only=True)) > 0
        assert min(mpmath.eigsy(mpmath.mpf(beta / 1.02) * lowest - bound, eigvals_only=True)) < 0


def test_a_third_derivative_without_bound_is_infinite(monkeypatch: pytest.MonkeyPatch) -> None:
    hessian = torch.eye(6, dtype=torch.float64)
    family = FixedBound(1, 3, 1.0, torch.full((6, 6), math.inf, dtype=torch.float64))
    assert _third_derivative(family, at(hessian), hessian, 1.0, torch.zeros(0, 3)) == math.inf
    family = replace(family, bound=hessian)
    assert _third_derivative(family, at(hessian), hessian, 1.0, torch.zeros(0, 3)) == pytest.approx(1.0, rel=0.02)
    monkeypatch.setattr(torch.linalg, "eigvalsh", lambda matrix: 0.5 * torch.ones_like(matrix.diagonal()))
    assert _third_derivative(family, at(hessian), hessian, 1.0, torch.zeros(0, 3)) == math.inf


def at(hessian: Tensor, rounding: float = 0.0) -> Expansion:
    posterior = MeanFieldGaussian(torch.zeros(1, 3).double(), torch.ones(1, 3).double())
    return Expansion(posterior, 0.0, hessian.diagonal(), hessian, Rounding(0.0, rounding))


def test_the_constants_of_a_certificate_follow_the_theorem(scene: Scene) -> None:
    """η = ‖δ‖ + its error; L on the ball of radius 2η; k = Lη; r and r₂ as at the head of the module."""
    near, inflation = MeanFieldGaussian(scene.posterior.mean + 1e-4, scene.posterior.std), 1 + 1e-10
    certificate = certify(scene.family, near, scene.data)
    constants = certificate.constants
    at = scene.family.expand(near, scene.data)
    gradient, hessian = at.scale * at.gradient, at.scale.unsqueeze(1) * at.hessian * at.scale
    step = solve(hessian, gradient).x
    stretch = constants.lambda_min**-0.5
    error = _newton_error(gradient, hessian, step, at.rounding, stretch, stretch)
    eta = float(step @ hessian @ step) ** 0.5 + error
    rounding = error * stretch + 1e-13
    assert (constants.newton_step_norm, constants.rounding) == pytest.approx((eta, rounding), rel=1e-9, abs=0)
    whole, half = (
        _third_derivative(scene.family, at, hessian, share * eta * stretch * inflation, scene.data) * stretch
        for share in (2, 1)
    )
    assert constants.lipschitz == pytest.approx(whole, rel=1e-9)
    assert whole > half * (1 + 1e-6)
    k = whole * eta
    assert 0.005 < k < 0.5
    root = math.sqrt(1 - 2 * k)
    radius, half_width = 2 * eta / (1 + root), 2 * k * eta / (1 + root) ** 2
    assert (constants.kantorovich, constants.radius) == pytest.approx((k, radius * stretch), rel=1e-9, abs=0)
    std = near.std.flatten() / at.scale[:8]
    worst = _worst_kl(std, step, half_width * stretch + rounding, radius * stretch)
    assert (certificate.epsilon, certificate.epsilon_reverse) == pytest.approx(worst, rel=1e-9, abs=0)
    assert constants.newton_decrement == pytest.approx(math.sqrt(float(gradient.dot(step))), rel=1e-12, abs=0)
    assert constants.gradient_norm == pytest.approx(float(gradient.norm()), rel=1e-12, abs=0)
    plain = paper_epsilon(near, radius * stretch * float(at.scale.max()))
    assert constants.paper_epsilon == pytest.approx(plain, rel=1e-9, abs=0)


def test_a_curvature_below_one_is_certified() -> None:
    family = LinearRegression(2, noise_std=5.0, prior_std=3.0)
    data = torch.randn(100, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    data[:, 1] = data[:, 0] + 0.1 * data[:, 1]
    certificate = certify(family, family.optimum(data), data)
    assert certificate.level == "proved"
    assert 0 < certificate.constants.lambda_min < 0.1


def test_invalid_input_is_refused(scene: Scene) -> None:
    with pytest.raises(InvalidInput, match="columns"):
        certify(scene.family, scene.posterior, scene.data[:, :1])
    with pytest.raises(InvalidInput, match="this mixture needs"):
        certify(scene.family, MeanFieldGaussian(scene.posterior.mean[:2], scene.posterior.std[:2]), scene.data)
