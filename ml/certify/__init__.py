"""Certificates: bounds and estimates of the influence that forgotten rows still have on a posterior."""

from ml.certify.certificate import Assumption, Certificate
from ml.certify.kantorovich import certify

__all__ = ["Assumption", "Certificate", "certify"]
