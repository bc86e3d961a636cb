import json
import math

from ml.certify.readiness import Readiness


def test_readiness_converts_to_json() -> None:
    content = Readiness((), math.inf, {"residual": 2.0, "could_fall": math.nan}, ("far",), ("polish",)).to_dict()
    assert json.loads(json.dumps(content, allow_nan=False)) == content
    assert content["distance"] is None
    assert content["numbers"] == {"residual": 2.0, "could_fall": None}
    assert content["ready"] is False


def test_a_posterior_without_advice_is_ready() -> None:
    assert Readiness(("proved",), 1e-9, {}, ("near",), ()).ready
