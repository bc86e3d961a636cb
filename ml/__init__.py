"""Bayesian inference forgetting in PyTorch: train, forget, certify. Knows no database, no environment, no network."""

from ml.certify import Certificate
from ml.data import synthetic_mixture
from ml.device import pick_device
from ml.errors import ForgettingError, InvalidInput, NumericalFailure
from ml.inference.variational import Trained, train
from ml.ladder import Outcome, Rung, forget
from ml.models import Family, build
from ml.policy import Policy
from ml.posterior import MeanFieldGaussian

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
