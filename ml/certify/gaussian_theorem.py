"""Corrected form of the BIF paper's theorem on MCMC forgetting: the KL divergence that a shift of samples leaves.

The theorem assumes p(θ | S) = N(θ1, (n J1)⁻¹) and p(θ | R) = N(θ2, (n' J2)⁻¹), with J the information of one datum and
n, n' the numbers of rows before and after. All samples are shifted by the same vector, from θ1 to θ1'. The divergence
of N(θ1', (n J1)⁻¹) from p(θ | R) is

    KL = ½ [ n'(θ1'-θ2)ᵀ J2 (θ1'-θ2) + (n'/n) tr(J2 J1⁻¹) - d + d log(n/n') + log(|J1|/|J2|) ]

The paper's proof has (n/n')^d log(|J1|/|J2|) for the last two terms: the power belongs inside the logarithm. Its
theorem states only the order, ε = n'(θ1'-θ2)ᵀ J2 (θ1'-θ2) + tr(J1⁻¹(J2-J1)) + log(|J1|/|J2|). That lacks the part which
no shift can remove, ½ d (ρ - 1 - log ρ) for a retained fraction ρ = n'/n.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ml.errors import NumericalFailure
from ml.forgetting.samples import MovedSamples
from ml.inference.laplace import fit_laplace
from ml.models.likelihood import Likelihood
from ml.models.potential import Potential


@dataclass(frozen=True)
class GaussianTheorem:
    """Divergence in nats that a shift to the moved mode would leave if both posteriors were Gaussian.

    The paper's map only shifts. Compared with a map that also changes the width, this shows what that change gains.
    """

    kl: float
    paper_order: float


@dataclass(frozen=True, eq=False)
class GaussianPair:
    """Gaussians N(moved_mode, (n_before·information_before)⁻¹) and N(retained_mode, (n_after·information_after)⁻¹)."""

    moved_mode: Tensor
    retained_mode: Tensor
    information_before: Tensor
    information_after: Tensor
    n_before: int
    n_after: int

    def kl(self) -> float:
        """KL(moved ‖ retained)."""
        d, share = len(self.moved_mode), self.n_after / self.n_before
        spread = share * self._trace() - d - d * math.log(share) + self._log_ratio()
        return 0.5 * (self._gap() + spread)

    def paper_order(self) -> float:
        """Return the ε of the paper's theorem, with n' retained rows in place of its n - 1."""
        return self._gap() + self._trace() - len(self.moved_mode) + self._log_ratio()

    def _gap(self) -> float:
        """n'(θ1'-θ2)ᵀ J2 (θ1'-θ2)."""
        gap = self.moved_mode - self.retained_mode
        return self.n_after * float(gap @ self.information_after @ gap)

    def _trace(self) -> float:
        """tr(J1⁻¹ J2)."""
        factor = torch.linalg.cholesky(self.information_before)
        return float(torch.cholesky_solve(self.information_after, factor).trace())

    def _log_ratio(self) -> float:
        """log(|J1|/|J2|)."""
        return float(torch.logdet(self.information_before) - torch.logdet(self.information_after))


def gaussian_theorem(
    likelihood: Likelihood, moved: MovedSamples, data: Tensor, retained: Tensor
) -> GaussianTheorem | None:
    """Apply the theorem to the Laplace approximations of both posteriors; None if one of them has no mode."""
    try:
        before = fit_laplace(Potential(likelihood, data), moved.mode_before)
        after = fit_laplace(Potential(likelihood, retained), moved.mode_after)
    except NumericalFailure:
        return None
    pair = GaussianPair(
        moved_mode=moved.mode_after,
        retained_mode=after.mode,
        information_before=before.hessian / len(data),
        information_after=after.hessian / len(retained),
        n_before=len(data),
        n_after=len(retained),
    )
    return GaussianTheorem(pair.kl(), pair.paper_order())
