"""Mean-field Gaussian: a stored posterior of independent Gaussians, one for each parameter."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from ml.errors import InvalidInput

_SERIES_BELOW = 1e-3
_NARROW_BELOW = 0.1


@dataclass(frozen=True, eq=False)
class MeanFieldGaussian:
    """q(θ) = Π_j N(θ_j; mean_j, std_j²), in float64."""

    mean: Tensor
    std: Tensor

    def __post_init__(self) -> None:
        for name, values in (("mean", self.mean), ("std", self.std)):
            if values.dtype != torch.float64:
                raise InvalidInput(f"posterior {name} is {values.dtype}: convert it to torch.float64")
            if not bool(torch.isfinite(values).all()):
                raise InvalidInput(f"posterior {name} holds NaN or infinity: pass finite values only")
        if self.mean.shape != self.std.shape:
            raise InvalidInput(
                f"posterior mean has shape {tuple(self.mean.shape)} and std {tuple(self.std.shape)}: "
                "pass tensors of equal shape"
            )
        if not bool((self.std > 0).all()):
            raise InvalidInput("posterior std has entries that are not positive: pass standard deviations > 0")

    def flat(self) -> Tensor:
        """Return λ as one vector: all means, then all stds."""
        return torch.cat([self.mean.flatten(), self.std.flatten()])

    def with_flat(self, flat: Tensor) -> MeanFieldGaussian:
        """Return the posterior of this shape whose `flat()` is the given vector."""
        mean, std = flat.chunk(2)
        return MeanFieldGaussian(mean.reshape(self.mean.shape), std.reshape(self.std.shape))

    def to(self, device: torch.device) -> MeanFieldGaussian:
        return MeanFieldGaussian(self.mean.to(device), self.std.to(device))

    def kl(self, other: MeanFieldGaussian) -> float:
        """Return KL(self ‖ other) in nats."""
        return float(gaussian_kl(other.mean - self.mean, self.std, other.std).sum())

    def to_bytes(self) -> bytes:
        """Return a safetensors file, which holds each tensor in memory of its own; hence the clone."""
        return save({"mean": self.mean.contiguous(), "std": self.std.clone(memory_format=torch.contiguous_format)})

    @classmethod
    def from_bytes(cls, content: bytes) -> MeanFieldGaussian:
        try:
            tensors = load(content)
        except SafetensorError as error:
            raise InvalidInput(f"posterior is not a readable safetensors file ({error}): upload it again") from error
        if set(tensors) != {"mean", "std"}:
            raise InvalidInput(
                f"posterior holds the tensors {sorted(tensors)}: save exactly two, named 'mean' and 'std'"
            )
        return cls(tensors["mean"], tensors["std"])


def gaussian_kl(mean_gap: Tensor, std: Tensor, other_std: Tensor) -> Tensor:
    """Return KL(N(0, std²) ‖ N(mean_gap, other_std²)) for each coordinate.

    ½ [x - log(1+x) + (mean_gap/other_std)²]  with  1 + x = (std/other_std)².
    """
    x = (std - other_std) * (std + other_std) / other_std.square()
    return 0.5 * (_excess(x, std / other_std) + (mean_gap / other_std).square())


def _excess(x: Tensor, ratio: Tensor) -> Tensor:
    """Return x - log(1+x) for 1 + x = ratio².

    By its series near 0: there the difference cancels, and certificates are that small. By the ratio near -1: x of a
    width far below the other rounds to -1.
    """
    series = x.square() * (1 / 2 - x * (1 / 3 - x * (1 / 4 - x / 5)))
    logarithm = torch.where(ratio < _NARROW_BELOW, 2 * torch.log(ratio), torch.log1p(x))
    return torch.where(x.abs() < _SERIES_BELOW, series, x - logarithm)
