import re
from pathlib import Path

import pytest

import ml


def test_the_public_names() -> None:
    assert ml.__all__ == [
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
    assert all(hasattr(ml, name) for name in ml.__all__)


HOT_PATH = (
    "certify/kantorovich.py",
    "forgetting/retained.py",
    "forgetting/variational.py",
    "inference/variational.py",
    "kinds.py",
    "ladder/climb.py",
    "ladder/policy.py",
    "ladder/variational.py",
    "models/gmm.py",
    "models/gmm_bounds.py",
    "models/newton.py",
    "posteriors/mean_field.py",
    "solvers/cholesky.py",
)


@pytest.mark.parametrize("name", HOT_PATH)
def test_forgetting_on_a_mixture_does_not_use_functorch_whose_first_call_takes_seconds(name: str) -> None:
    source = (Path(ml.__file__).parent / name).read_text(encoding="utf-8")
    assert "import" in source
    assert not re.search(r"torch\.func\b|functorch|ml\.numerics\.gauss_newton", source)
