"""Sample set: a stored posterior of draws of θ, each with the number of its chain and its importance weight.

Chains draw with even weights. A deletion moves the draws, or leaves them, and multiplies the weights by its own: so the
weights compare the posterior of the rows retained now with the law of the draws, however many deletions were made.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from ml.errors import InvalidInput, NumericalFailure
from ml.posteriors.mean_field import gaussian_kl
from vocabulary.posterior_kinds import LOG_WEIGHT_TENSORS, POSTERIOR_TENSORS

# If the other coordinates explain all but this share of a variance, it is their linear combination in float64.
_SINGULAR_BELOW = 1e-12


_EVEN = torch.zeros(0, dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class SampleSet:
    """T draws of a flat θ of length p, in float64.

    `log_weights` are log(posterior density / density of the law of the draws) up to a constant; zeros if not given.
    Each is accurate to `log_weights_error`.
    """

    samples: Tensor  # (T, p)
    chain: Tensor  # (T,)
    log_weights: Tensor = _EVEN  # (T,)
    log_weights_error: float = 0.0

    def __post_init__(self) -> None:
        if self.log_weights is _EVEN:
            object.__setattr__(self, "log_weights", self.samples.new_zeros(self.samples.shape[:1]))
        self._check_samples()
        self._check_log_weights()

    def _check_samples(self) -> None:
        if self.samples.dtype != torch.float64:
            raise InvalidInput(f"samples are {self.samples.dtype}: convert them to torch.float64")
        if self.samples.ndim != 2 or self.samples.shape[0] < 2 or self.samples.shape[1] < 1:
            raise InvalidInput(
                f"samples have shape {tuple(self.samples.shape)}: pass one row for each of at least two draws"
            )
        if not bool(torch.isfinite(self.samples).all()):
            raise InvalidInput("samples hold NaN or infinity: sample again with a smaller step size")
        if self.chain.dtype != torch.int64 or self.chain.shape != self.samples.shape[:1]:
            raise InvalidInput(
                f"chain is {self.chain.dtype} of shape {tuple(self.chain.shape)}: "
                f"pass the torch.int64 chain number of each of the {len(self.samples)} draws"
            )
        if int(self.chain.min()) < 0:
            raise InvalidInput("chain holds negative numbers: number the chains from 0")

    def _check_log_weights(self) -> None:
        if self.log_weights.dtype != torch.float64 or self.log_weights.shape != self.samples.shape[:1]:
            raise InvalidInput(
                f"log_weights are {self.log_weights.dtype} of shape {tuple(self.log_weights.shape)}: "
                f"pass the torch.float64 log-weight of each of the {len(self.samples)} draws, or none for even weights"
            )
        if not bool(torch.isfinite(self.log_weights).all()):
            raise InvalidInput("log_weights hold NaN or infinity: leave out draws without weight, or sample again")
        if not 0 <= self.log_weights_error < math.inf:
            raise InvalidInput(
                f"log_weights_error is {self.log_weights_error}: pass a bound on the rounding of the log-weights, at "
                "least 0"
            )

    @property
    def weights(self) -> Tensor:
        """The weights, normalised to a sum of 1."""
        return torch.softmax(self.log_weights, 0)

    @property
    def mean(self) -> Tensor:
        """θ̄ = Σ_t w_t θ_t."""
        return self.weights @ self.samples

    @property
    def covariance(self) -> Tensor:
        """Return Σ_t w_t (θ_t - θ̄)(θ_t - θ̄)ᵀ / (1 - Σ_t w_t²): for even weights, the sum over T - 1."""
        weights, centred = self.weights, self.samples - self.mean
        return (weights.unsqueeze(1) * centred).T @ centred / (1 - weights.square().sum())

    def to(self, device: torch.device) -> SampleSet:
        return replace(
            self,
            samples=self.samples.to(device),
            chain=self.chain.to(device),
            log_weights=self.log_weights.to(device),
        )

    def moment_matched_kl(self, other: SampleSet) -> float:
        """Return KL(N(m, C) ‖ N(m', C')) in nats, for Gaussians with the means and covariances of the two sets.

        With C = LLᵀ and C' = L'L'ᵀ it is Σ_j KL(N(0, s_j²) ‖ N(z_j, 1)), s the singular values of L'⁻¹L and
        z = L'⁻¹(m' - m). Only the length of z matters: rotating both Gaussians until they are diagonal preserves it.
        """
        if self.samples.shape[1] != other.samples.shape[1]:
            raise InvalidInput(
                f"one set has {self.samples.shape[1]} parameters and the other {other.samples.shape[1]}: "
                "compare sample sets of the same model"
            )
        whiten = other._covariance_factor()
        relative = torch.linalg.solve_triangular(whiten, self._covariance_factor(), upper=False)
        spread = torch.linalg.svdvals(relative)
        gap = torch.linalg.solve_triangular(whiten, (other.mean - self.mean).unsqueeze(1), upper=False).squeeze(1)
        return float(gaussian_kl(gap, spread, torch.ones_like(spread)).sum())

    def _covariance_factor(self) -> Tensor:
        draws, parameters = self.samples.shape
        covariance = self.covariance
        factor: Tensor
        factor, failed_at = torch.linalg.cholesky_ex(covariance)
        regular = factor.diagonal().square() > _SINGULAR_BELOW * covariance.diagonal()
        if draws <= parameters or int(failed_at) != 0 or not bool(regular.all()):
            raise NumericalFailure(
                f"the covariance of {draws} draws of {parameters} parameters is singular: "
                "keep more samples (several times as many as parameters), or sample every parameter"
            )
        return factor

    def to_bytes(self) -> bytes:
        tensors = {"samples": self.samples.contiguous(), "chain": self.chain.contiguous()}
        if self.log_weights_error > 0 or bool(self.log_weights.any()):
            error = torch.tensor([self.log_weights_error], dtype=torch.float64)
            tensors |= {"log_weights": self.log_weights.contiguous(), "log_weights_error": error}
        return save(tensors)

    @classmethod
    def from_bytes(cls, content: bytes) -> SampleSet:
        try:
            tensors = load(content)
        except SafetensorError as error:
            raise InvalidInput(f"sample set is not a readable safetensors file ({error}): upload it again") from error
        names = set(POSTERIOR_TENSORS["samples"])
        if set(tensors) not in (names, names | set(LOG_WEIGHT_TENSORS)):
            raise InvalidInput(
                f"sample set holds the tensors {sorted(tensors)}: save two, named 'samples' and 'chain', and, if the "
                "draws have weights, 'log_weights' and 'log_weights_error'"
            )
        if set(tensors) == names:
            return cls(tensors["samples"], tensors["chain"])
        return cls(tensors["samples"], tensors["chain"], tensors["log_weights"], _read_error(tensors))


def _read_error(tensors: dict[str, Tensor]) -> float:
    error = tensors["log_weights_error"]
    if error.dtype != torch.float64 or error.shape != (1,):
        raise InvalidInput(
            f"log_weights_error is {error.dtype} of shape {tuple(error.shape)}: save one torch.float64 number"
        )
    return float(error)
