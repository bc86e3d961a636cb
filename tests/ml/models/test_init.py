from collections.abc import Mapping
from importlib.metadata import EntryPoint, EntryPoints

import pytest

from ml import models
from ml.errors import InvalidInput
from ml.models import build
from ml.models.gmm import GaussianMixture

CONFIG = {"components": 4, "dimensions": 2, "prior_std": 1.0}


def test_ours_comes_through_the_door_for_everybody() -> None:
    assert build("gaussian-mixture", CONFIG) == GaussianMixture(4, 2, 1.0)


def test_a_family_of_somebody_else_is_found_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = EntryPoint("theirs", "ml.models.gmm:GaussianMixture", "lethe.families")
    monkeypatch.setattr(models, "entry_points", lambda group: EntryPoints([theirs]).select(group=group))
    assert build("theirs", CONFIG) == GaussianMixture(4, 2, 1.0)
    with pytest.raises(InvalidInput, match=r"choose one of \['theirs'\]"):
        build("gaussian-mixture", CONFIG)


def test_an_unknown_family_is_told_the_known_ones() -> None:
    with pytest.raises(InvalidInput, match=r"unknown model family 'perceptron'.*gaussian-mixture"):
        build("perceptron", {})


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "does not fit"),
        ({**CONFIG, "colour": "red"}, "colour"),
        ({**CONFIG, "components": 0}, "components is 0"),
        ({**CONFIG, "components": 2.0}, "components is 2.0"),
        ({**CONFIG, "components": True}, "components is True"),
        ({**CONFIG, "dimensions": "2"}, "dimensions is '2'"),
        ({**CONFIG, "prior_std": 0.0}, "prior_std is 0.0"),
        ({**CONFIG, "prior_std": float("nan")}, "prior_std is nan"),
        ({**CONFIG, "prior_std": float("inf")}, "prior_std is inf"),
        ({**CONFIG, "prior_std": None}, "prior_std is None"),
    ],
)
def test_a_wrong_configuration_is_invalid_input(config: Mapping[str, object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        build("gaussian-mixture", config)
