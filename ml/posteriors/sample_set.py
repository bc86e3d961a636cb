"""The stored posterior of a sampler: draws of θ, and the chain that each one came from."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from ml.errors import InvalidInput, NumericalFailure
from ml.posteriors.mean_field import gaussian_kl

# A coordinate of which the others leave less than this share of its variance is, in float64, their combination.
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
        """Σ_t (θ_t - θ̄)(θ_t - θ̄)ᵀ / (T - 1)."""
        centred = self.samples - self.mean
        return centred.T @ centred / (len(centred) - 1)

    def to(self, device: torch.device) -> SampleSet:
        return SampleSet(self.samples.to(device), self.chain.to(device))

    def moment_matched_kl(self, other: SampleSet) -> float:
        """KL(N(m, C) ‖ N(m', C')) in nats, between the Gaussians of the two sets' means and full covariances.

        With C = LLᵀ and C' = L'L'ᵀ it is Σ_j KL(N(0, s_j²) ‖ N(z_j, 1)), s the singular values of L'⁻¹L and
        z = L'⁻¹(m' - m), whose length alone counts: rotating both Gaussians until they are diagonal leaves it.
        """
        if self.samples.shape[1] != other.samples.shape[1]:
            raise InvalidInput(
                f"one set draws {self.samples.shape[1]} parameters and the other {other.samples.shape[1]}: "
                "compare sample sets of one model"
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
        clear = factor.diagonal().square() > _SINGULAR_BELOW * covariance.diagonal()
        if draws <= parameters or int(failed_at) != 0 or not bool(clear.all()):
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
