"""Certificates of sample sets: the estimated divergence from the posterior of the retained rows R.

Samples were moved by affine maps, or only weighted, by this deletion and those before it. Their accumulated importance
weights (`ml.certify.importance`) give the divergence without retraining and without assuming Gaussian posteriors, in
one of two readings:

    draws            the stored draws as they are                      KL(law of the draws ‖ p_R)
    weighted draws   a draw that is picked by its weight               KL(p_R ‖ its law) ≤ log(1 + χ²/N)

The second is far smaller where the weights are nearly even, but holds only for a reader who uses them. The plug-in for
χ² may be below the truth even where the tail looks light: the bound is widened there, the more the fewer draws there
are (`ml.certify.weight_limits`). `benchmarks/certificates/coverage.py` measures how often both cover the truth.

Everything that could make the weights misleading is checked; if a check fails, nothing is certified. To the upper end
of an interval is added the divergence that the diagnostics of so many draws cannot exclude. The weights of a network
have to mix as well (`ml.certify.weight_mixing`), since its diagnostics look at predictions, not at parameters.

Draws that fail as those of a posterior may still be weighted: a policy can ask for the weaker reference of
`ml.certify.stored_draws`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from torch import Tensor

from ml.certify.certificate import Assumption, Certificate
from ml.certify.gaussian_theorem import GaussianTheorem, gaussian_theorem
from ml.certify.importance import (
    Estimate,
    estimate_chi_square,
    estimate_divergence,
    pareto_k,
    relative_ess,
    unevenness,
    weigh_moved,
    weigh_unmoved,
)
from ml.certify.sample_constants import SampleConstants
from ml.certify.stored_draws import certify_stored_draws
from ml.certify.weight_limits import MAX_K_HAT, describe_worn, min_relative_ess, weight_assumptions, widening
from ml.certify.weight_mixing import WeightMixing, measure_weights
from ml.errors import InvalidInput
from ml.forgetting.retained import retained_rows_of_samples
from ml.forgetting.samples import MovedSamples
from ml.inference.chains import Sampled
from ml.inference.diagnostics import Diagnostics
from ml.inference.function_mixing import FunctionMixing, measure_functions
from ml.models.likelihood import Likelihood
from ml.models.network import Network
from ml.posteriors.sample_set import SampleSet
from vocabulary.posterior_kinds import Reading
from vocabulary.references import DEFAULT_REFERENCE, Reference

REFERENCE = "the posterior given the retained rows"
DIRECTIONS: dict[Reading, str] = {
    "draws": "epsilon is the upper end of an interval for KL(stored draws ‖ reference), what the diagnostics of the "
    "draws cannot exclude included; the other direction is not estimated",
    "weighted draws": "epsilon is the upper end of an interval for KL(reference ‖ a stored draw picked by its weight), "
    "what the diagnostics of the draws cannot exclude included; the other direction is not estimated",
}
RETRAINED_DIRECTION = "epsilon is KL(stored draws ‖ reference): the draws are their own reference"
TAKEN_AS_DRAWS = (
    "The chains are taken to have drawn from the posterior given the rows of that time; diagnostics can refute that, "
    "not show it. The weights account for every deletion since."
)
UNSEEN = (
    "The divergence is estimated, not bounded: what the retained posterior holds where no stored draw lies is unseen."
)
GIVEN = (
    "The model family, its prior and the retained rows are taken as given; that they describe the world is not shown.",
    "Copies of the forgotten rows, and of models trained on them, that are kept outside Lethe are not covered.",
    "The divergence speaks of draws from the posterior; releasing all samples, or the map, is another matter.",
)
READ_WITH_WEIGHTS = (
    "It speaks of one draw that is picked by its weight: read the stored draws with their weights, or resample without "
    "replacement from more draws than are kept. Releasing T draws costs T² times epsilon."
)
WEIGHTS_REVEAL = (
    "The stored log-weights were computed from the forgotten rows. Whoever reads them beside the draws can infer "
    "something about these rows, and nearly all of a row that was forgotten by weights alone (rung reweight)."
)
LEFT_OPEN_BY_WEIGHTS = (UNSEEN, READ_WITH_WEIGHTS, WEIGHTS_REVEAL, *GIVEN)
NOT_PROVED: dict[Reading, tuple[str, ...]] = {
    "draws": (TAKEN_AS_DRAWS, UNSEEN, WEIGHTS_REVEAL, *GIVEN),
    "weighted draws": (TAKEN_AS_DRAWS, *LEFT_OPEN_BY_WEIGHTS),
}
RESAMPLED_FROM = (
    "The chains set out from the mode that is nearest to the samples before: which of several modes that is may still "
    "depend on the forgotten rows. That they have converged is what diagnostics can refute, not show."
)
NOT_CHECKED_AS_ONE_MAP = (
    "That one affine map moved every sample is taken as given: with so few samples, or so many parameters, "
    "it was not checked."
)

# An estimate from N draws never exceeds log N. Half of that leaves e^(2ε) draws to estimate ε.
_LOG_DRAWS_SHARE = 0.5
# In posterior standard deviations: above the error of the solvers, below what would change the divergence.
_MAX_UNEVENNESS = 1e-2
_MAX_PARAMETERS = 2000  # for dense Hessians


@dataclass(frozen=True, eq=False)
class CertifiedSamples:
    """Samples after a deletion, with their accumulated weights, and the certificate."""

    sample_set: SampleSet
    certificate: Certificate


def certify_moved(
    likelihood: Likelihood,
    before: SampleSet,
    moved: MovedSamples,
    data: Tensor,
    forgotten: Tensor,
    diagnostics: Diagnostics | None,
    limit: float = math.inf,
    seed: int = 0,
) -> CertifiedSamples:
    """Weigh the `moved` samples and estimate their divergence from the posterior of the rows that are not `forgotten`.

    `diagnostics` are those of the samples `before`; without them nothing is certified. `limit` is the epsilon that is
    asked for: the draws as they are if that meets it, else whichever reading is smaller. `seed` is the bootstrap's.
    """
    retained = retained_rows_of_samples(likelihood, before.samples, data, forgotten)
    if moved.samples.shape != before.samples.shape:
        raise InvalidInput(
            f"moved samples have shape {tuple(moved.samples.shape)}, stored samples {tuple(before.samples.shape)}: "
            "pass the whole sample set that was moved"
        )
    after = weigh_moved(likelihood, before, moved, data, retained)
    uneven = unevenness(before.samples, moved.samples)
    theorem = _theorem(likelihood, moved, data, retained)
    weighed = _Weighed(after, len(data), len(retained), diagnostics, uneven, theorem, seed, _get_functions(diagnostics))
    return CertifiedSamples(after, weighed.certificate(limit))


def certify_reweighted(
    likelihood: Likelihood,
    before: SampleSet,
    data: Tensor,
    forgotten: Tensor,
    diagnostics: Diagnostics | None,
    limit: float = math.inf,
    seed: int = 0,
    reference: Reference = DEFAULT_REFERENCE,
    posterior_limit: float = math.inf,
) -> CertifiedSamples:
    """Do the same for samples that stay and are only weighted: no pass over the retained rows, and no Hessian.

    `reference` is the weakest one allowed. With `stored draws`, a certificate against the posterior is still returned
    if the draws pass its checks and its epsilon is at most `posterior_limit`.
    """
    retained = retained_rows_of_samples(likelihood, before.samples, data, forgotten)
    after = weigh_unmoved(likelihood, before, data[forgotten])
    weighed = _Weighed(after, len(data), len(retained), diagnostics, 0.0, None, seed, _get_functions(diagnostics))
    certificate = weighed.certificate(limit)
    passed = certificate.level != "none" and certificate.epsilon <= posterior_limit
    if reference == "stored draws" and not passed:
        functions = weighed.functions or measure_functions(likelihood, before, data)
        certificate = replace(weighed, functions=functions).stored_draws(functions)
    return CertifiedSamples(after, certificate)


def get_reading(certificate: Certificate) -> Reading:
    """Return how samples have to be read for the certificate to hold."""
    constants = certificate.constants
    return constants.reading if isinstance(constants, SampleConstants) else "draws"


def describe_wear(sample_set: SampleSet) -> str | None:
    """Say that the weights are worn out, so that no deletion can be certified from them; None if they are not."""
    ess, k_hat = relative_ess(sample_set.log_weights), pareto_k(sample_set.log_weights, sample_set.log_weights_error)
    if ess >= min_relative_ess("draws") and k_hat <= MAX_K_HAT:
        return None
    return describe_worn(ess)


def certify_resampled(sampled: Sampled, n_retained: int) -> Certificate:
    """Certify chains that have read the retained rows only: ε is 0 if they pass their diagnostics."""
    diagnostics = sampled.diagnostics
    return Certificate(
        epsilon=0.0 if diagnostics.ok else math.inf,
        epsilon_reverse=0.0 if diagnostics.ok else math.inf,
        level="retrained" if diagnostics.ok else "none",
        reference="these samples themselves, drawn anew on the retained rows",
        direction=RETRAINED_DIRECTION,
        n_retained=n_retained,
        assumptions=(_chains(diagnostics),),
        constants=diagnostics,
        not_proved=(RESAMPLED_FROM, *GIVEN),
        reference_kind="posterior",
    )


@dataclass(frozen=True, eq=False)
class _Weighed:
    """Weighted samples and what is known of them, in either reading."""

    after: SampleSet
    n_before: int
    n_retained: int
    diagnostics: Diagnostics | None
    unevenness: float
    gaussian: GaussianTheorem | None
    seed: int
    functions: FunctionMixing | None

    def stored_draws(self, functions: FunctionMixing) -> Certificate:
        """Return the certificate of weighted draws against their own law."""
        mixing = measure_weights(self.after, functions)
        return certify_stored_draws(
            self._constants, self._picked_divergence, mixing, functions, self.n_retained, LEFT_OPEN_BY_WEIGHTS
        )

    def certificate(self, limit: float) -> Certificate:
        """Return the certificate of the draws as they are if it meets the limit, else that of the smaller reading."""
        draws = self._certificate("draws", self._divergence)
        if draws.level != "none" and draws.epsilon <= limit:
            return draws
        weighted = self._certificate("weighted draws", self._picked_divergence)
        return min(draws, weighted, key=lambda certificate: certificate.epsilon)

    def _certificate(self, reading: Reading, divergence: Estimate) -> Certificate:
        constants = replace(self._constants, reading=reading, estimate=divergence.value)
        assumptions = (
            *weight_assumptions(constants, self._independent_draws),
            *self._assumptions(constants, divergence),
        )
        estimated = all(assumption.holds for assumption in assumptions)
        epsilon = divergence.high + constants.undetectable if estimated else math.inf
        return Certificate(
            epsilon=epsilon,
            epsilon_reverse=math.nan,
            level="estimated" if estimated else "none",
            reference=REFERENCE,
            direction=DIRECTIONS[reading],
            n_retained=self.n_retained,
            assumptions=assumptions,
            constants=constants,
            not_proved=NOT_PROVED[reading] + ((NOT_CHECKED_AS_ONE_MAP,) if math.isnan(self.unevenness) else ()),
            interval=(divergence.low, epsilon) if estimated else None,
            reference_kind="posterior",
        )

    def _assumptions(self, constants: SampleConstants, divergence: Estimate) -> Iterator[Assumption]:
        yield _chains(self.diagnostics)
        if self._mixing is not None:
            yield from self._mixing.assumptions()
        if constants.reading == "draws":
            limit = _LOG_DRAWS_SHARE * math.log(max(constants.effective_draws, 1.0))
            meaning = (
                "the divergence is well below the logarithm of the number of effective samples, beyond which none is "
                "seen"
            )
            yield Assumption("range", divergence.high <= limit, divergence.high, limit, meaning)
        if not math.isnan(constants.unevenness):
            holds = constants.unevenness <= _MAX_UNEVENNESS
            meaning = "one affine map moved every sample"
            yield Assumption("one map", holds, constants.unevenness, _MAX_UNEVENNESS, meaning)

    @functools.cached_property
    def _divergence(self) -> Estimate:
        after = self.after
        return estimate_divergence(after.log_weights, after.chain, after.log_weights_error, self.seed)

    @functools.cached_property
    def _chi_square(self) -> Estimate:
        after = self.after
        return estimate_chi_square(after.log_weights, after.chain, after.log_weights_error, self.seed)

    @property
    def _independent_draws(self) -> float:
        numbers = (self._constants.chain_ess, self._constants.independent_draws, float(len(self.after.samples)))
        return min(number for number in numbers if not math.isnan(number))

    @property
    def _picked_divergence(self) -> Estimate:
        """log(1 + χ²/N) for the effective number N of the chains' draws. Nothing bounds the divergence from below."""
        draws = self._independent_draws
        value, high = (math.log1p(chi_square / draws) for chi_square in (self._chi_square.value, self._chi_square.high))
        return Estimate(value, 0.0, widening(draws) * high)

    @functools.cached_property
    def _mixing(self) -> WeightMixing | None:
        """Mixing of the weights of a network; the diagnostics of other models look at every parameter."""
        return None if self.functions is None else measure_weights(self.after, self.functions)

    @functools.cached_property
    def _constants(self) -> SampleConstants:
        after, diagnostics = self.after, self.diagnostics
        ess = relative_ess(after.log_weights)
        return SampleConstants(
            n_before=self.n_before,
            draws=len(after.samples),
            reading="draws",
            estimate=math.nan,
            chi_square=self._chi_square.value,
            relative_ess=ess,
            k_hat=pareto_k(after.log_weights, after.log_weights_error),
            effective_draws=ess * (diagnostics.ess if diagnostics else math.nan),
            undetectable=diagnostics.undetectable if diagnostics else math.nan,
            unevenness=self.unevenness,
            rounding=after.log_weights_error,
            chain_r_hat=diagnostics.r_hat if diagnostics else math.nan,
            chain_ess=diagnostics.ess if diagnostics else math.nan,
            chain_width=diagnostics.width if diagnostics else math.nan,
            gaussian=self.gaussian,
            **self._function_constants,
        )

    @property
    def _function_constants(self) -> dict[str, float]:
        functions, mixing = self.functions, self._mixing
        if functions is None or mixing is None:
            return {}
        return {
            "s_r_hat": mixing.r_hat,
            "s_ess": mixing.ess,
            "panel_r_hat": functions.r_hat,
            "panel_ess": functions.ess,
            "independent_draws": mixing.independent_draws,
            "effective_parameters": functions.effective_parameters,
        }


def _get_functions(diagnostics: Diagnostics | None) -> FunctionMixing | None:
    return diagnostics.functions if diagnostics else None


def _theorem(likelihood: Likelihood, moved: MovedSamples, data: Tensor, retained: Tensor) -> GaussianTheorem | None:
    """Apply the theorem if a dense Hessian is affordable, and if there is one mode to be Gaussian around."""
    affordable = likelihood.parameter_count <= _MAX_PARAMETERS and not isinstance(likelihood, Network)
    return gaussian_theorem(likelihood, moved, data, retained) if affordable else None


def _chains(diagnostics: Diagnostics | None) -> Assumption:
    passed = diagnostics is not None and diagnostics.ok
    complaint = "they were not given" if diagnostics is None else diagnostics.warning
    meaning = "the chains that drew the samples passed their diagnostics" + ("" if passed else f": {complaint}")
    return Assumption("chains", passed, float(passed), 1.0, meaning)
