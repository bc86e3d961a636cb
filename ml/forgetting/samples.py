"""Forgetting for sample sets: one affine map takes stored samples of p(θ | S) to p(θ | R), R the retained rows.

With m, m' the modes on S and on R, and Σ = H⁻¹, Σ' = H'⁻¹ the Laplace covariances there:

    shift                   T(θ) = θ + m' - m                                  moves the mean, keeps the width
    affine_map              T(θ) = m' + A(θ - m)                               A = Σ^(-½) (Σ^½ Σ' Σ^½)^½ Σ^(-½)
    affine_map_matrix_free  T(θ) = θ + H⁻¹ḡ + ½ H⁻¹ ΔH (θ - θ̄)                ḡ = Σ_{S'} ∇h(θ̄), ΔH = Σ_{S'} ∇²h(θ̄)

A is the optimal-transport map between the two Gaussians (M. Knott and C. Smith, 1984): symmetric, positive definite,
AΣA = Σ'. It is exact for any subset if the potential is quadratic.

θ̄ is `centre`, the mean of p(θ | S): the weighted mean of a set that has weights; if it is not given, the mean of the
samples. Newton's method finds m from there.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from ml.errors import NumericalFailure
from ml.forgetting.retained import retained_rows_of_samples
from ml.inference.laplace import Laplace, fit_laplace
from ml.models.likelihood import Likelihood
from ml.models.potential import ROWS_AT_ONCE, Potential
from ml.solvers import solve_conjugate_gradients


@dataclass(frozen=True, eq=False)
class MovedSamples:
    """Samples after a map T, and the map: T(mode_before) = mode_after, log_det = log|det ∇T|.

    The matrix-free map uses the sample mean as the mode, and its log_det is of first order. That constant drops out of
    every normalised importance weight.
    """

    samples: Tensor
    mode_before: Tensor
    mode_after: Tensor
    log_det: float
    seconds: float


def shift(
    likelihood: Likelihood,
    samples: Tensor,
    data: Tensor,
    forgotten: Tensor,
    centre: Tensor | None = None,
    rows_at_once: int = ROWS_AT_ONCE,
) -> MovedSamples:
    """Move every sample by the difference of the modes: the best map of the paper's kind."""
    started = time.perf_counter()
    before, after = _laplace_pair(likelihood, samples, data, forgotten, centre, rows_at_once)
    moved = samples + (after.mode - before.mode)
    return MovedSamples(moved, before.mode, after.mode, 0.0, time.perf_counter() - started)


def affine_map(
    likelihood: Likelihood,
    samples: Tensor,
    data: Tensor,
    forgotten: Tensor,
    centre: Tensor | None = None,
    rows_at_once: int = ROWS_AT_ONCE,
) -> MovedSamples:
    """Change mean and width, by dense Hessians: for up to a few thousand parameters."""
    started = time.perf_counter()
    before, after = _laplace_pair(likelihood, samples, data, forgotten, centre, rows_at_once)
    moved = after.mode + (samples - before.mode) @ transport(before.hessian, after.hessian)
    log_det = 0.5 * float(torch.logdet(before.hessian) - torch.logdet(after.hessian))
    return MovedSamples(moved, before.mode, after.mode, log_det, time.perf_counter() - started)


def affine_map_matrix_free(
    likelihood: Likelihood,
    samples: Tensor,
    data: Tensor,
    forgotten: Tensor,
    centre: Tensor | None = None,
    tolerance: float = 1e-6,
    max_iterations: int = 500,
    rows_at_once: int = ROWS_AT_ONCE,
) -> MovedSamples:
    """Change mean and width to first order in the group, by products with Hessians alone.

    It takes one solve for each sample, or for each parameter if there are fewer parameters.

    With K = H⁻¹ΔH the retained covariance is Σ' = (I-K)⁻¹Σ, and since KΣ = ΣKᵀ the matrix B = (I-K)^(-½) = I + ½K + …
    satisfies BΣBᵀ = Σ'. B is not symmetric: it is another root than A, and agrees with it in the law of the moved
    samples, not sample by sample. Mean and covariance are wrong by O(‖K‖²): use it while the group is a small part of
    the data along every direction (‖K‖ well below 1).
    """
    started = time.perf_counter()
    retained_rows_of_samples(likelihood, samples, data, forgotten)
    centre = samples.mean(0) if centre is None else centre
    whole = Potential(likelihood, data, True, rows_at_once)
    group = Potential(likelihood, data[forgotten], False, rows_at_once)

    def inverse_times(vector: Tensor) -> Tensor:
        solution = solve_conjugate_gradients(
            lambda direction: whole.product(centre, direction), vector, tolerance, max_iterations
        )
        if solution.residual > 10 * tolerance * float(vector.norm()):
            raise NumericalFailure(
                f"conjugate gradients stopped at a residual of {solution.residual:.3g} after {solution.iterations} "
                "products: allow more iterations or a larger tolerance"
            )
        return solution.x

    drift = inverse_times(group.gradient(centre))
    deviations = samples - centre
    if samples.shape[1] < len(samples):
        spread = torch.stack([inverse_times(group.product(centre, axis)) for axis in torch.eye(len(centre)).to(centre)])
        moved, log_det = samples + drift + 0.5 * deviations @ spread, 0.5 * float(spread.trace())
    else:
        products = torch.stack([group.product(centre, deviation) for deviation in deviations])
        moved = samples + drift + 0.5 * torch.stack([inverse_times(product) for product in products])
        # tr(H⁻¹ΔH) = E (θ-θ̄)ᵀ ΔH (θ-θ̄): the products computed above give it for free.
        log_det = 0.5 * float((deviations * products).sum(1).mean())
    return MovedSamples(moved, centre, centre + drift, log_det, time.perf_counter() - started)


def transport(before: Tensor, after: Tensor) -> Tensor:
    """Return the symmetric positive definite A with A Σ A = Σ', for precisions Σ⁻¹ = `before` and Σ'⁻¹ = `after`.

    With Cholesky factors Σ⁻¹ = LLᵀ and Σ'⁻¹ = L'L'ᵀ and singular values L'ᵀL = USVᵀ, A = L V S⁻¹ Vᵀ Lᵀ. A is unique, so
    this is the A in the module's docstring, without symmetric roots or inverses.
    """
    factor = torch.linalg.cholesky(before)
    _, singular, transposed = torch.linalg.svd(torch.linalg.cholesky(after).T @ factor)
    root: Tensor = factor @ transposed.T * singular.rsqrt()
    return root.matmul(root.T)


def _laplace_pair(
    likelihood: Likelihood,
    samples: Tensor,
    data: Tensor,
    forgotten: Tensor,
    centre: Tensor | None,
    rows_at_once: int,
) -> tuple[Laplace, Laplace]:
    retained = retained_rows_of_samples(likelihood, samples, data, forgotten)
    start = samples.mean(0) if centre is None else centre
    before = fit_laplace(Potential(likelihood, data, True, rows_at_once), start)
    return before, fit_laplace(Potential(likelihood, retained, True, rows_at_once), before.mode)
