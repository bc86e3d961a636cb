from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

import pytest
from pydantic import ValidationError

from ml.certify.certificate import Assumption, Certificate, FreshStarts
from ml.certify.gaussian_theorem import GaussianTheorem
from ml.certify.kantorovich import Constants
from ml.certify.network.certificate import NetworkConstants
from ml.certify.network.retrained import RetrainedNetwork
from ml.certify.samples import SampleConstants
from ml.certify.tempered import TemperedConstants
from ml.inference.diagnostics import Diagnostics
from ml.inference.function_mixing import FunctionMixing
from ml.ladder.climb import RungRecord
from tests.bundles import predicate
from vocabulary import bound

KINDS: list[tuple[type[Any], type[bound.Constants]]] = [
    (Constants, bound.KantorovichConstants),
    (NetworkConstants, bound.NetworkConstants),
    (RetrainedNetwork, bound.RetrainedNetworkConstants),
    (SampleConstants, bound.SampleConstants),
    (TemperedConstants, bound.TemperedConstants),
    (Diagnostics, bound.ChainDiagnostics),
]


def certificate(constants: Any) -> Certificate:
    condition = Assumption("curvature", True, 2.5, math.inf, "it curves upwards")
    return Certificate(1e-9, math.nan, "proved", "minimum", "KL", 36, (condition,), constants, ("nothing",))


@pytest.mark.parametrize(("computed", "signed"), KINDS, ids=lambda kind: kind.__name__)
def test_the_constants_of_each_kind_of_bound_are_typed(computed: type[Any], signed: type[bound.Constants]) -> None:
    names = [field.name for field in fields(computed)]
    assert set(signed.model_fields) - signed.may_be_absent <= set(names) <= set(signed.model_fields)
    values = dict.fromkeys(names, 3) | ({"gaussian": GaussianTheorem(1.0, 2.0)} if "gaussian" in names else {})
    values |= (
        {"warning": None, "functions": FunctionMixing(50, 4, 1.01, 1.05, 1.0, 400.0, 20.0, 800)}
        if "warning" in names
        else {}
    )
    values |= {"coordinates": "widths"} if "coordinates" in names else {}
    values |= {"reading": "weighted draws"} if "reading" in names else {}
    plain = certificate(computed(**values)).to_dict()
    parsed = bound.Bound.model_validate(plain)
    assert type(parsed.constants) is signed
    assert parsed.to_dict() == {**plain, "interval": None}


def test_numbers_that_json_lacks_are_null() -> None:
    parsed = bound.Bound.model_validate(
        certificate(Diagnostics(math.nan, 1.0, math.inf, 1.0, 4.0, 1.0, 4.0, None, 0.1, None)).to_dict()
    )
    assert parsed.epsilon_reverse is None
    assert parsed.assumptions[0].limit is None
    assert isinstance(parsed.constants, bound.ChainDiagnostics)
    assert (parsed.constants.r_hat, parsed.constants.width) == (None, None)


def test_what_is_known_of_the_reference_is_typed() -> None:
    computed = replace(certificate(None), elbo_distance=1e-4, fresh_starts=FreshStarts(4, 1, 12.5, 36))
    parsed = bound.Bound.model_validate(computed.to_dict())
    assert parsed.fresh_starts == bound.FreshStarts(tried=4, lower=1, lowest=12.5, rows=36)
    assert parsed.elbo_distance == 1e-4


def test_constants_of_an_earlier_version_are_kept() -> None:
    content = {**predicate()["bound"], "constants": {"slope": 0.5}}
    parsed = bound.Bound.model_validate(content)
    assert isinstance(parsed.constants, bound.EarlierConstants)
    assert parsed.to_dict()["constants"] == {"slope": 0.5}


@pytest.mark.parametrize("change", [{"level": "none"}, {"epsilon": None}, {"epsilon": -1e-9}, {"interval": [1.0]}])
def test_what_is_not_a_bound_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        bound.Bound.model_validate({**predicate()["bound"], **change})


def test_a_rung_is_typed_as_it_was_tried() -> None:
    tried = RungRecord("influence", 1, math.inf, "none", 0.25, at_least=0.5, failure="NaN", solver="cholesky").to_dict()
    rung = bound.Rung.model_validate(tried)
    assert rung.epsilon is None
    assert rung.to_dict() == tried
