"""A valid configuration of each built-in family."""

from __future__ import annotations

from typing import Any

CONFIGS: dict[str, dict[str, Any]] = {
    "gaussian-mixture": {"components": 3, "dimensions": 2, "prior_std": 1.0},
    "linear-regression": {"dimensions": 4, "noise_std": 0.5, "prior_std": 1.0},
    "logistic-regression": {"dimensions": 4, "prior_std": 1.0},
    "softmax-regression": {"dimensions": 4, "classes": 3, "prior_std": 1.0, "draws": 8, "seed": 3},
    "mlp": {"dimensions": 4, "hidden": 5, "classes": 3, "prior_std": 0.5, "activation": "tanh"},
    "lenet5": {"prior_std": 0.5, "activation": "gelu"},
}
