"""Sample set: a stored posterior of draws of θ, each with the number of its chain."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from ml.errors import InvalidInput, NumericalFailure
from ml.posteriors.mean_field import gaussian_kl

# If the other coordinates explain all but this share of a variance, it is their linear combination in float64.
_SINGULAR_BELOW = 1e-12


@dataclass(frozen=True, eq=False)
class SampleSet:
    """T draws of a flat θ of length p, in float64."""

    samples: Tensor  # (T, p)
    chain: Tensor  # (T,)

    def __post_init__(self) -> None:
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

    @property
    def mean(self) -> Tensor:
        return self.samples.mean(0)

    @property
    def covariance(self) -> Tensor:
        """Return Σ_t (θ_t - θ̄)(θ_t - θ̄)ᵀ / (T - 1)."""
        centred = self.samples - self.mean
        return centred.T @ centred / (len(centred) - 1)

    def to(self, device: torch.device) -> SampleSet:
        return SampleSet(self.samples.to(device), self.chain.to(device))

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
        return save({"samples": self.samples.contiguous(), "chain": self.chain.contiguous()})

    @classmethod
    def from_bytes(cls, content: bytes) -> SampleSet:
        try:
            tensors = load(content)
        except SafetensorError as error:
            raise InvalidInput(f"sample set is not a readable safetensors file ({error}): upload it again") from error
        if set(tensors) != {"samples", "chain"}:
            raise InvalidInput(
                f"sample set holds the tensors {sorted(tensors)}: save exactly two, named 'samples' and 'chain'"
            )
        return cls(tensors["samples"], tensors["chain"])
