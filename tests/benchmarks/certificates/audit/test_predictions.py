from __future__ import annotations

import math

from benchmarks.certificates.audit.awkward_data import FAMILIES
from benchmarks.certificates.audit.predictions import Prediction, audit_predictions


def test_predictions_agree_with_what_is_issued() -> None:
    progress: list[float] = []
    predictions = audit_predictions(24, 1, lambda _stage, fraction: progress.append(fraction))
    assert len(predictions) == 24
    assert progress == sorted(progress)
    assert {prediction.family for prediction in predictions} == set(FAMILIES)
    assert any(not prediction.trained for prediction in predictions)
    assert sum(prediction.agrees for prediction in predictions) >= 23


def test_a_promise_that_is_not_kept_disagrees() -> None:
    prediction = Prediction("linear-regression", "tiny", True, True, False, 1e-9, math.inf)
    assert not prediction.agrees
