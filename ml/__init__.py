"""Bayesian inference forgetting in PyTorch: train, forget, certify. Knows no database, no environment, no network."""

from ml.certify import Certificate
from ml.errors import ForgettingError, InvalidInput, NumericalFailure
from ml.inference.variational import Trained, train
from ml.ladder.policy import Policy
from ml.ladder.variational import Outcome, Rung, forget
from ml.models import Family, build
from ml.models.synthetic import synthetic_mixture
from ml.numerics.device import pick_device
from ml.posteriors.mean_field import MeanFieldGaussian

__all__ = [
    "Certificate",
    "Family",
    "ForgettingError",
    "InvalidInput",
    "MeanFieldGaussian",
    "NumericalFailure",
    "Outcome",
    "Policy",
    "Rung",
    "Trained",
    "build",
    "forget",
    "pick_device",
    "synthetic_mixture",
    "train",
]
