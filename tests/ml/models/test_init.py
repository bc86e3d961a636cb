from collections.abc import Mapping
from importlib.metadata import EntryPoint, EntryPoints

import pytest

from ml.errors import InvalidInput
from ml.models import build, build_family
from ml.models.gmm import GaussianMixture
from ml.models.mlp import MLP
from vocabulary import families

CONFIG = {"components": 4, "dimensions": 2, "prior_std": 1.0}


def test_a_built_in_family_is_built_by_name() -> None:
    assert build("gaussian-mixture", CONFIG) == GaussianMixture(4, 2, 1.0)


def test_a_family_of_another_package_is_built_by_its_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = [
        EntryPoint("installed", "ml.models.gmm:GaussianMixture", "lethe.families"),
        EntryPoint("gaussian-mixture", "ml.models.linear:LinearRegression", "lethe.families"),
        EntryPoint("other", "ml.models.gmm:GaussianMixture", "lethe.others"),
    ]
    monkeypatch.setattr(families, "entry_points", lambda group: EntryPoints(installed).select(group=group))
    assert build("installed", CONFIG) == GaussianMixture(4, 2, 1.0)
    assert build("gaussian-mixture", CONFIG) == GaussianMixture(4, 2, 1.0)  # a built-in family cannot be replaced
    with pytest.raises(InvalidInput, match=r"choose one of \['gaussian-mixture', 'installed', 'lenet5'"):
        build("other", CONFIG)


def test_the_error_for_an_unknown_family_lists_the_available_families() -> None:
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


def test_a_network_is_a_model_but_not_a_family_with_closed_forms() -> None:
    config = {"dimensions": 2, "hidden": 3, "classes": 2}
    assert build("mlp", config) == MLP(2, 3, 2)
    with pytest.raises(InvalidInput, match="'mlp' is a network"):
        build_family("mlp", config)
    assert build_family("gaussian-mixture", CONFIG) == GaussianMixture(4, 2, 1.0)
