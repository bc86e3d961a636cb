"""Data to train, forget and test on."""

from ml.data.synthetic import synthetic_mixture

__all__ = ["synthetic_mixture"]
