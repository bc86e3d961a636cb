"""Bounds on what is left of forgotten data."""

from ml.certify.certificate import Assumption, Certificate
from ml.certify.kantorovich import certify

__all__ = ["Assumption", "Certificate", "certify"]
