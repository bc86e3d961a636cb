import re
from pathlib import Path

import pytest

import ml


def test_the_public_names() -> None:
    assert ml.__all__ == [
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
    assert all(hasattr(ml, name) for name in ml.__all__)


HOT_PATH = (
    "forgetting.py",
    "ladder.py",
    "policy.py",
    "posterior.py",
    "certify/kantorovich.py",
    "inference/newton.py",
    "inference/variational.py",
    "models/gmm.py",
    "models/gmm_bounds.py",
    "solvers/cholesky.py",
)


@pytest.mark.parametrize("name", HOT_PATH)
def test_forgetting_a_mixture_asks_nothing_of_functorch_whose_first_call_takes_seconds(name: str) -> None:
    source = (Path(ml.__file__).parent / name).read_text(encoding="utf-8")
    assert "import" in source
    assert not re.search(r"torch\.func\b|functorch|ml\.curvature", source)
