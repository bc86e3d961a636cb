from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal, kl_divergence

from ml.certify import importance, samples
from ml.certify.certificate import Certificate
from ml.certify.importance import weigh_moved
from ml.certify.samples import (
    DIRECTIONS,
    GIVEN,
    NOT_CHECKED_AS_ONE_MAP,
    NOT_PROVED,
    READ_WITH_WEIGHTS,
    RESAMPLED_FROM,
    WEIGHTS_REVEAL,
    CertifiedSamples,
    certify_moved,
    certify_resampled,
    certify_reweighted,
    describe_wear,
    get_reading,
)
from ml.errors import InvalidInput
from ml.forgetting.retained import retained_rows
from ml.forgetting.samples import MovedSamples, affine_map, shift
from ml.inference.chains import Sampled
from ml.inference.diagnostics import Diagnostics
from ml.posteriors.sample_set import SampleSet
from tests.ml.likelihoods import LinearRegression, regression_data

PASSED = Diagnostics(
    r_hat=1.001,
    ess=1900.0,
    width=1.0,
    mean_gradient=1.2,
    mean_gradient_limit=4.0,
    virial=1.3,
    virial_limit=4.0,
    worst_parameter=None,
    undetectable=1e-3,
    warning=None,
)
CHAINS, DRAWS_PER_CHAIN = 4, 500


@dataclass(frozen=True, eq=False)
class Scene:
    likelihood: LinearRegression
    data: Tensor
    before: SampleSet

    def certify(self, moved: MovedSamples, forgotten: Tensor, diagnostics: Diagnostics | None = PASSED) -> Certificate:
        certified = certify_moved(self.likelihood, self.before, moved, self.data, forgotten, diagnostics)
        assert torch.equal(certified.sample_set.samples, moved.samples)
        return certified.certificate

    def reweight(self, forgotten: Tensor, limit: float = 0.0, ess: float = 1900.0) -> CertifiedSamples:
        diagnostics = replace(PASSED, ess=ess)
        return certify_reweighted(self.likelihood, self.before, self.data, forgotten, diagnostics, limit)

    def true_kl(self, forgotten: Tensor, offset: Tensor) -> float:
        """Divergence of samples as wide as p(θ|S) whose mean was moved by `offset`."""
        mean, covariance = self.likelihood.posterior(self.data)
        moved = MultivariateNormal(mean + offset, covariance)
        retained = MultivariateNormal(*self.likelihood.posterior(retained_rows(self.data, forgotten)))
        return float(kl_divergence(moved, retained))

    def moved_by(self, offset: Tensor) -> MovedSamples:
        mean, _ = self.likelihood.posterior(self.data)
        return MovedSamples(self.before.samples + offset, mean, mean + offset, 0.0, 0.0)


@pytest.fixture(scope="module")
def scene() -> Scene:
    """Independent draws of a Gaussian posterior, divided into chains."""
    generator = torch.Generator().manual_seed(0)
    likelihood, data = LinearRegression(3), regression_data(200, 3, generator)
    mean, covariance = likelihood.posterior(data)
    noise = torch.randn(CHAINS * DRAWS_PER_CHAIN, 3, generator=generator, dtype=torch.float64)
    samples = mean + noise @ torch.linalg.cholesky(covariance).T
    return Scene(likelihood, data, SampleSet(samples, torch.arange(CHAINS).repeat_interleave(DRAWS_PER_CHAIN)))


def failed(certificate: Certificate) -> list[str]:
    return [assumption.name for assumption in certificate.assumptions if not assumption.holds]


def test_the_interval_holds_the_closed_form(scene: Scene) -> None:
    forgotten = torch.arange(0, 200, 10)
    moved = shift(scene.likelihood, scene.before.samples, scene.data, forgotten)
    certificate = scene.certify(moved, forgotten)
    kl = scene.true_kl(forgotten, moved.mode_after - moved.mode_before)
    assert certificate.level == "estimated"
    assert certificate.reasons == ()
    assert certificate.interval is not None
    low, high = certificate.interval
    assert low < kl < high - PASSED.undetectable
    assert high == certificate.epsilon
    assert math.isnan(certificate.epsilon_reverse)
    assert certificate.constants.estimate == pytest.approx(kl, rel=0.2)
    assert high - PASSED.undetectable < 1.6 * kl
    assert certificate.constants.gaussian.kl == pytest.approx(kl, rel=1e-6)
    assert (certificate.constants.n_before, certificate.n_retained) == (200, 180)
    assert certificate.constants.draws == 2000
    assert (certificate.constants.reading, certificate.constants.undetectable) == ("draws", 1e-3)
    assert certificate.not_proved == NOT_PROVED["draws"]
    assert certificate.direction == DIRECTIONS["draws"]
    assert get_reading(certificate) == "draws"


def test_the_limits_of_the_assumptions(scene: Scene) -> None:
    forgotten = torch.arange(0, 200, 10)
    moved = shift(scene.likelihood, scene.before.samples, scene.data, forgotten)
    certificate = scene.certify(moved, forgotten)
    constants = certificate.constants
    assert constants.effective_draws == constants.relative_ess * PASSED.ess
    assert (constants.chain_r_hat, constants.chain_ess, constants.chain_width) == (1.001, 1900.0, 1.0)
    stated = {assumption.name: (assumption.value, assumption.limit) for assumption in certificate.assumptions}
    assert stated == {
        "tail": (constants.k_hat, 0.7),
        "overlap": (constants.relative_ess, 0.1),
        "range": (
            pytest.approx(certificate.epsilon - PASSED.undetectable),
            pytest.approx(0.5 * math.log(constants.effective_draws)),
        ),
        "chains": (1.0, 1.0),
        "one map": (constants.unevenness, 0.01),
    }


def test_resampled_chains_that_converged_leave_nothing() -> None:
    samples = torch.zeros(2, 1, dtype=torch.float64)
    certificate = certify_resampled(Sampled(SampleSet(samples, torch.arange(2)), PASSED), 180)
    assert (certificate.epsilon, certificate.epsilon_reverse, certificate.level) == (0.0, 0.0, "retrained")
    assert (certificate.n_retained, certificate.constants) == (180, PASSED)
    assert certificate.not_proved == (RESAMPLED_FROM, *GIVEN)
    assert get_reading(certificate) == "draws"
    assert failed(certificate) == []


def test_resampled_chains_that_did_not_converge_certify_nothing() -> None:
    samples = torch.zeros(2, 1, dtype=torch.float64)
    diagnostics = replace(PASSED, warning="the chains disagree")
    certificate = certify_resampled(Sampled(SampleSet(samples, torch.arange(2)), diagnostics), 180)
    assert (certificate.epsilon, certificate.epsilon_reverse, certificate.level) == (math.inf, math.inf, "none")
    assert certificate.reasons[0].endswith("passed their diagnostics: the chains disagree")


def test_an_exact_map_leaves_rounding_only(scene: Scene) -> None:
    forgotten = torch.arange(150)
    certificate = scene.certify(affine_map(scene.likelihood, scene.before.samples, scene.data, forgotten), forgotten)
    assert certificate.level == "estimated"
    assert PASSED.undetectable <= certificate.epsilon < PASSED.undetectable + 1e-18
    assert certificate.constants.estimate < 1e-20
    assert certificate.interval is not None
    assert certificate.interval[0] == 0.0
    assert certificate.constants.k_hat == 0.0


def test_the_determinant_cancels(scene: Scene) -> None:
    forgotten = torch.arange(20)
    moved = shift(scene.likelihood, scene.before.samples, scene.data, forgotten)
    right = scene.certify(moved, forgotten)
    wrong = scene.certify(replace(moved, log_det=moved.log_det + 3.7), forgotten)
    assert wrong.epsilon == pytest.approx(right.epsilon, rel=1e-9)


@pytest.mark.parametrize("sabotage", ["skipped", "wrong sign", "half of the rows"])
def test_a_step_that_does_not_forget_has_a_larger_divergence(scene: Scene, sabotage: str) -> None:
    forgotten = scene.data[:, -1].abs().argsort(descending=True)[:6]
    honest = shift(scene.likelihood, scene.before.samples, scene.data, forgotten)
    step = honest.mode_after - honest.mode_before
    if sabotage == "half of the rows":
        half = shift(scene.likelihood, scene.before.samples, scene.data, forgotten[:3])
        step = half.mode_after - half.mode_before
    else:
        step = {"skipped": 0.0, "wrong sign": -1.0}[sabotage] * step
    certificate = scene.certify(scene.moved_by(step), forgotten)
    truth = scene.true_kl(forgotten, step)
    assert certificate.interval is not None
    assert certificate.interval[0] < truth < certificate.interval[1]
    assert certificate.constants.estimate > 1.5 * scene.certify(honest, forgotten).constants.estimate


def test_a_heavy_tail_is_refused(scene: Scene) -> None:
    """A shift keeps the width of 200 rows though 10 are left: w = exp(½ρz²) has a tail index of about 0.95."""
    forgotten = torch.arange(190)
    moved = shift(scene.likelihood, scene.before.samples, scene.data, forgotten)
    certificate = scene.certify(moved, forgotten)
    assert certificate.constants.k_hat > 0.7
    assert "tail" in failed(certificate)
    assert certificate.level == "none"
    assert certificate.epsilon == math.inf
    assert certificate.interval is None
    assert math.isfinite(certificate.constants.estimate)
    assert any("Pareto k-hat" in reason for reason in certificate.reasons)


def test_samples_far_from_the_target_are_refused(scene: Scene) -> None:
    """Twelve standard deviations off: the estimate cannot reach the truth, and several checks fail."""
    _, covariance = scene.likelihood.posterior(scene.data)
    offset = 12 * torch.linalg.cholesky(covariance)[:, 0]
    certificate = scene.certify(scene.moved_by(offset), torch.arange(5))
    truth = scene.true_kl(torch.arange(5), offset)
    assert certificate.level == "none"
    assert {"overlap", "range"} <= set(failed(certificate))
    assert truth > 60
    assert certificate.constants.estimate < truth


def test_the_divergence_must_stay_below_the_range_of_the_draws(scene: Scene) -> None:
    forgotten = torch.arange(80)
    moved = shift(scene.likelihood, scene.before.samples, scene.data, forgotten)
    assert scene.certify(moved, forgotten).level == "estimated"
    certificate = scene.certify(moved, forgotten, replace(PASSED, ess=1.5))
    assert failed(certificate) == ["range"]
    assert certificate.constants.effective_draws < 1.5


def test_nothing_is_certified_without_the_diagnostics_of_the_chains(scene: Scene) -> None:
    forgotten = torch.arange(20)
    moved = shift(scene.likelihood, scene.before.samples, scene.data, forgotten)
    certificate = scene.certify(moved, forgotten, None)
    assert certificate.level == "none"
    assert certificate.epsilon == math.inf
    assert "chains" in failed(certificate)
    assert math.isnan(certificate.constants.chain_ess)
    assert any("they were not given" in reason for reason in certificate.reasons)


def test_chains_that_failed_their_diagnostics_are_refused_with_the_reason(scene: Scene) -> None:
    forgotten = torch.arange(20)
    moved = shift(scene.likelihood, scene.before.samples, scene.data, forgotten)
    certificate = scene.certify(moved, forgotten, replace(PASSED, width=1.3, warning="the draws spread 1.30 times"))
    assert failed(certificate) == ["chains"]
    assert certificate.reasons[0].endswith("passed their diagnostics: the draws spread 1.30 times")
    assert certificate.constants.chain_width == 1.3


def test_a_certificate_of_nothing_is_plain_json(scene: Scene) -> None:
    forgotten = torch.arange(20)
    moved = shift(scene.likelihood, scene.before.samples, scene.data, forgotten)
    content = scene.certify(moved, forgotten, None).to_dict()
    assert json.loads(json.dumps(content, allow_nan=False))["epsilon"] is None


def gaussian_chi_square(scene: Scene, forgotten: Tensor) -> float:
    """∫ p_R²/p_S - 1 of two Gaussians with precisions A and B: |A| |2A-B|^(-½) |B|^(-½) e^(δᵀA(2A-B)⁻¹Bδ) - 1."""
    mean, covariance = scene.likelihood.posterior(scene.data)
    other_mean, other_covariance = scene.likelihood.posterior(retained_rows(scene.data, forgotten))
    b, a = torch.linalg.inv(covariance), torch.linalg.inv(other_covariance)
    gap, mixed = other_mean - mean, 2 * a - b
    exponent = float(gap @ a @ torch.linalg.solve(mixed, b @ gap))
    return math.expm1(float(torch.logdet(a) - 0.5 * torch.logdet(mixed) - 0.5 * torch.logdet(b)) + exponent)


@pytest.mark.parametrize("count", [1, 4, 12])
def test_weighted_draws_in_closed_form(scene: Scene, count: int) -> None:
    forgotten = torch.arange(count)
    certified = scene.reweight(forgotten)
    certificate, truth = certified.certificate, gaussian_chi_square(scene, forgotten)
    constants = certificate.constants
    assert (certificate.level, constants.reading) == ("estimated", "weighted draws")
    assert constants.chi_square == pytest.approx(truth, rel=0.2)
    assert constants.estimate == pytest.approx(math.log1p(constants.chi_square / 1900), rel=1e-12)
    assert certificate.interval == (0.0, certificate.epsilon)
    bound = certificate.epsilon - PASSED.undetectable
    assert math.log1p(truth / 2000) < 2 * math.log1p(truth / 1900) < bound < 5 * math.log1p(truth / 1900)
    assert torch.equal(certified.sample_set.samples, scene.before.samples)
    weighted_mean, exact = certified.sample_set.mean, scene.likelihood.posterior(scene.data[count:])[0]
    width = scene.likelihood.posterior(scene.data)[1].diagonal().sqrt()
    assert float(((weighted_mean - exact) / width).abs().max()) < 4 / math.sqrt(2000)


def test_what_a_certificate_of_weighted_draws_says(scene: Scene) -> None:
    certificate = scene.reweight(torch.arange(4)).certificate
    assert get_reading(certificate) == "weighted draws"
    assert certificate.direction == DIRECTIONS["weighted draws"]
    assert READ_WITH_WEIGHTS in certificate.not_proved
    assert certificate.not_proved == NOT_PROVED["weighted draws"]
    assert certificate.constants.gaussian is None
    stated = {assumption.name: (assumption.value, assumption.limit) for assumption in certificate.assumptions}
    assert stated == {
        "tail": (certificate.constants.k_hat, 0.7),
        "overlap": (certificate.constants.relative_ess, 0.2),
        "chains": (1.0, 1.0),
        "one map": (0.0, 0.01),
    }


def test_the_effective_draws_are_never_more_than_the_draws(scene: Scene) -> None:
    forgotten = torch.arange(4)
    capped, antithetic = (scene.reweight(forgotten, ess=ess).certificate for ess in (2000.0, 9000.0))
    assert capped.epsilon == antithetic.epsilon


def test_draws_are_read_as_they_are_where_that_meets_the_limit(scene: Scene) -> None:
    forgotten = torch.arange(4)
    draws = scene.reweight(forgotten, limit=math.inf).certificate
    weighted = scene.reweight(forgotten, limit=0.9 * draws.epsilon).certificate
    assert (get_reading(draws), get_reading(weighted)) == ("draws", "weighted draws")
    assert weighted.epsilon < 0.9 * draws.epsilon
    assert get_reading(scene.reweight(forgotten, limit=draws.epsilon).certificate) == "draws"
    assert weighted.constants.chi_square == draws.constants.chi_square


def test_few_independent_draws_need_evener_weights(scene: Scene) -> None:
    """Half of the draws are left, which is enough of 2,000 but not of 80; a fifth has to be left of any number."""
    forgotten = torch.arange(40)
    many, few = (scene.reweight(forgotten, ess=ess).certificate for ess in (2000.0, 80.0))
    assert (many.level, get_reading(many)) == ("estimated", "weighted draws")
    assert 0.5 < many.constants.relative_ess < 50 / 80
    assert get_reading(few) == "draws"
    worn = scene.reweight(torch.arange(60)).certificate
    assert worn.constants.relative_ess < 0.2
    assert worn.level == "none"


def test_weights_alone_reveal_the_forgotten_row_and_those_of_an_exact_map_do_not(scene: Scene) -> None:
    """Why certificates say WEIGHTS_REVEAL: for a linear regression log w is quadratic, with a slope along the row."""
    forgotten, row = torch.tensor([7]), scene.data[7, :-1]
    reweighted = scene.reweight(forgotten).sample_set
    offsets = reweighted.samples - reweighted.samples.mean(0)
    pairs = torch.combinations(torch.arange(offsets.shape[1]), with_replacement=True)
    terms = torch.cat([torch.ones_like(offsets[:, :1]), offsets, offsets[:, pairs].prod(2)], 1)
    slope = torch.linalg.lstsq(terms, reweighted.log_weights.unsqueeze(1)).solution.squeeze(1)[1 : 1 + len(row)]
    assert float((slope @ row).abs() / (slope.norm() * row.norm())) == pytest.approx(1)
    moved = affine_map(scene.likelihood, scene.before.samples, scene.data, forgotten, scene.before.mean)
    after = certify_moved(scene.likelihood, scene.before, moved, scene.data, forgotten, PASSED)
    assert float(after.sample_set.log_weights.abs().max()) <= after.sample_set.log_weights_error
    assert WEIGHTS_REVEAL in after.certificate.not_proved


def test_worn_weights_say_so(scene: Scene) -> None:
    certified = scene.reweight(torch.arange(90))
    worn = describe_wear(certified.sample_set)
    assert worn is not None
    assert "% of the draws are left; new chains restore them" in worn
    assert certified.certificate.level == "none"
    assert any(worn in reason for reason in certified.certificate.reasons)
    assert describe_wear(scene.before) is None


def test_two_hundred_deletions_are_certified_by_all_their_weights() -> None:
    """Linear regression, moved not quite far enough each time: the law of the draws is Gaussian and known."""
    generator = torch.Generator().manual_seed(1)
    likelihood, data = LinearRegression(2), regression_data(600, 2, generator)
    mean, covariance = likelihood.posterior(data)
    noise = torch.randn(2000, 2, generator=generator, dtype=torch.float64)
    sample_set = SampleSet(mean + noise @ torch.linalg.cholesky(covariance).T, torch.arange(4).repeat_interleave(500))
    for _ in range(199):
        step = 0.9 * (likelihood.posterior(data[1:])[0] - likelihood.posterior(data)[0])
        moved = MovedSamples(sample_set.samples + step, mean, mean + step, 0.0, 0.0)
        sample_set = weigh_moved(likelihood, sample_set, moved, data, data[1:])
        data, mean = data[1:], mean + step
    last, data = data, data[1:]
    certificate = certify_reweighted(likelihood, sample_set, last, torch.arange(1), PASSED).certificate
    truth = float(kl_divergence(MultivariateNormal(mean, covariance), MultivariateNormal(*likelihood.posterior(data))))
    assert truth > 0.02
    assert certificate.constants.estimate == pytest.approx(truth, rel=0.1)
    assert certificate.interval is not None
    assert certificate.interval[0] < truth < certificate.epsilon - PASSED.undetectable
    assert sample_set.log_weights_error < 1e-7


def test_samples_that_were_not_moved_by_one_map_are_refused(scene: Scene) -> None:
    """Half of the draws were left in place: every weight is finite, but no map gives these weights."""
    forgotten = scene.data[:, -1].abs().argsort(descending=True)[:10]
    moved = shift(scene.likelihood, scene.before.samples, scene.data, forgotten)
    mixed = moved.samples.clone()
    mixed[::2] = scene.before.samples[::2]
    certificate = scene.certify(replace(moved, samples=mixed), forgotten)
    assert failed(certificate) == ["one map"]
    assert certificate.level == "none"


def test_many_parameters_are_certified_without_what_needs_dense_matrices(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    forgotten = torch.arange(20)
    moved = shift(scene.likelihood, scene.before.samples, scene.data, forgotten)
    for module in (samples, importance):
        monkeypatch.setattr(module, "_MAX_PARAMETERS", 3)
    assert scene.certify(moved, forgotten).constants.gaussian is not None
    for module in (samples, importance):
        monkeypatch.setattr(module, "_MAX_PARAMETERS", 2)
    certificate = scene.certify(moved, forgotten)
    assert certificate.level == "estimated"
    assert certificate.constants.gaussian is None
    assert certificate.not_proved == (*NOT_PROVED["draws"], NOT_CHECKED_AS_ONE_MAP)
    assert "one map" not in [assumption.name for assumption in certificate.assumptions]


def test_another_number_of_samples_is_refused(scene: Scene) -> None:
    moved = shift(scene.likelihood, scene.before.samples[:100], scene.data, torch.arange(20))
    with pytest.raises(InvalidInput, match="pass the whole sample set that was moved"):
        scene.certify(moved, torch.arange(20))
