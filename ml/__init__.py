"""Bayesian inference forgetting in PyTorch: train, forget, certify. Uses no database, environment or network."""

from ml.certify import Certificate
from ml.certify.readiness import Readiness
from ml.certify.refutation import challenge
from ml.errors import ForgettingError, InvalidInput, MemoryExhausted, NumericalFailure
from ml.inference.members import predict
from ml.inference.variational import Trained, train
from ml.kinds import Posterior, forget, polish, read_posterior, readiness
from ml.ladder.climb import Outcome, RungRecord
from ml.ladder.policy import Policy
from ml.models import Family, Model, Network, build, build_family
from ml.models.synthetic import synthetic_mixture
from ml.numerics.device import pick_device
from ml.posteriors.ensemble import Ensemble
from ml.posteriors.mean_field import MeanFieldGaussian
from ml.posteriors.sample_set import SampleSet

__all__ = [
    "Certificate",
    "Ensemble",
    "Family",
    "ForgettingError",
    "InvalidInput",
    "MeanFieldGaussian",
    "MemoryExhausted",
    "Model",
    "Network",
    "NumericalFailure",
    "Outcome",
    "Policy",
    "Posterior",
    "Readiness",
    "RungRecord",
    "SampleSet",
    "Trained",
    "build",
    "build_family",
    "challenge",
    "forget",
    "pick_device",
    "polish",
    "predict",
    "read_posterior",
    "readiness",
    "synthetic_mixture",
    "train",
]
