import json
import math

from ml.certify import Assumption, Certificate
from ml.certify.certificate import FreshStarts
from ml.certify.kantorovich import Constants

ASSUMPTIONS = (
    Assumption("curvature", True, 3.0, 0.0, "it curves upwards"),
    Assumption("kantorovich", False, math.nan, 0.5, "Newton's method converges"),
)
NONE = Certificate(
    epsilon=math.inf,
    epsilon_reverse=math.inf,
    level="none",
    reference="the minimum",
    direction="forwards",
    n_retained=12,
    assumptions=ASSUMPTIONS,
    constants=Constants("widths", 1.0, 2.0, 3.0, 4.0, math.inf, math.nan, math.nan, 1e-13, math.inf),
    not_proved=("nothing more",),
    fresh_starts=FreshStarts(4, 1, 12.5, 12),
)


def test_reasons_are_the_conditions_that_failed() -> None:
    assert NONE.reasons == ("not shown: Newton's method converges",)


def test_the_dictionary_is_plain_json() -> None:
    content = NONE.to_dict()
    assert json.loads(json.dumps(content, allow_nan=False)) == content
    assert content["epsilon"] is None
    assert content["n_retained"] == 12
    assert content["assumptions"][1] == {  # type: ignore[index]
        "name": "kantorovich",
        "holds": False,
        "value": None,
        "limit": 0.5,
        "meaning": "Newton's method converges",
    }
    assert content["constants"]["lipschitz"] is None  # type: ignore[index]
    assert content["constants"]["rounding"] == 1e-13  # type: ignore[index]
    assert content["reasons"] == ["not shown: Newton's method converges"]
    assert content["not_proved"] == ["nothing more"]
    assert content["elbo_distance"] is None
    assert content["fresh_starts"] == {"tried": 4, "lower": 1, "lowest": 12.5, "rows": 12}
