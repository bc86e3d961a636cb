import re
from pathlib import Path

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
        "Rung",
        "Trained",
        "build",
        "forget",
        "pick_device",
        "synthetic_mixture",
        "train",
    ]
    assert all(hasattr(ml, name) for name in ml.__all__)


def test_no_source_asks_for_functorch_whose_first_call_takes_seconds() -> None:
    sources = list(Path(ml.__file__).parent.rglob("*.py"))
    assert len(sources) > 10
    assert [s.name for s in sources if re.search(r"torch\.func\b|functorch", s.read_text(encoding="utf-8"))] == []
