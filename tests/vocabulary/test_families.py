from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

import ml
from ml.certify.network.certificate import DEFAULT_RECIPE
from ml.models.network import Network
from service.schemas.models import BuiltInManifest, manifest_union
from tests.vocabulary.configurations import CONFIGS
from vocabulary import families
from vocabulary.families import (
    FAMILIES,
    BuiltInFamily,
    FamilyConfig,
    Scale,
    current_config,
    entry_points_by_family,
    is_network,
    records_needed,
)
from vocabulary.layouts import Layout

NETWORK_ROWS: dict[str, Any] = {
    "min_rows": 64,
    "row_types": ("float64", "float32"),
    "largest_value": 1e9,
    "records_needed": 32,
}
LAYOUTS = {
    "gaussian-mixture": Layout((3, 2), 2, min_rows=3, records_needed=3),
    "linear-regression": Layout((4,), 5),
    "logistic-regression": Layout((4,), 5, classes=2),
    "softmax-regression": Layout((3, 4), 5, classes=3),
    "mlp": Layout((43,), 5, classes=3, **NETWORK_ROWS),
    "lenet5": Layout((61_706,), 1025, classes=10, **NETWORK_ROWS),
}


class PoissonRegressionConfig(FamilyConfig):
    """A family that a contributor adds."""

    dimensions: int
    prior_std: Scale

    @property
    def layout(self) -> Layout:
        return Layout((self.dimensions,), self.dimensions + 1)


class PoissonRegression:
    def __init__(self, dimensions: int, prior_std: float) -> None:
        self.parameter_count = dimensions
        self.prior_std = prior_std


@pytest.mark.parametrize("family", FAMILIES)
def test_a_built_in_family_is_built_from_a_valid_configuration(family: str) -> None:
    config = FAMILIES[family].config(**CONFIGS[family])
    model = ml.build(family, config.model_dump())
    assert config.layout == LAYOUTS[family]
    assert model.parameter_count == config.layout.parameter_count
    assert isinstance(model, Network) == is_network(family)


def test_the_records_that_a_model_needs_follow_from_its_configuration() -> None:
    assert records_needed("gaussian-mixture", {"components": 7, "dimensions": 2, "prior_std": 1.0}) == 7
    assert records_needed("lenet5", {}) == DEFAULT_RECIPE.draws
    assert records_needed("linear-regression", {"dimensions": 9}) == 1
    assert records_needed("from-another-package", {"anything": 1}) == 1


def test_a_configuration_beyond_the_limits_still_has_an_answer() -> None:
    """It may have been registered when they were wider."""
    assert records_needed("gaussian-mixture", {"components": 7, "dimensions": 2, "prior_std": 1e-40}) == 7
    assert records_needed("logistic-regression", {"dimensions": 2, "prior_std": 1.0, "draws": 64}) == 1


def test_a_new_family_is_one_table_entry_and_one_implementation(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = BuiltInFamily(PoissonRegressionConfig, f"{__name__}:PoissonRegression")
    monkeypatch.setitem(FAMILIES, "poisson-regression", entry)
    config = {"dimensions": 3, "prior_std": 2.0}
    model = ml.build("poisson-regression", config)
    assert isinstance(model, PoissonRegression)

    adapter: TypeAdapter[BuiltInManifest] = TypeAdapter(manifest_union())
    upload = {"name": "m", "family": "poisson-regression", "config": config, "policy": {"epsilon": 1e-3}}
    manifest = adapter.validate_python(upload)
    assert type(manifest).__name__ == "PoissonRegressionManifest"
    assert manifest.plain_config == config
    assert manifest.layout.parameter_count == model.parameter_count
    assert "PoissonRegressionManifest" in adapter.json_schema()["$defs"]
    with pytest.raises(ValidationError) as refused:
        adapter.validate_python({**upload, "config": {**config, "prior_std": 0}})
    assert refused.value.errors()[0]["loc"] == ("poisson-regression", "config", "prior_std")


@pytest.mark.parametrize(
    ("family", "change", "message"),
    [
        ("gaussian-mixture", {"components": 100, "dimensions": 100}, "10000 parameters; a worker keeps the Hessian"),
        ("softmax-regression", {"dimensions": 4000}, "12000 parameters; a worker keeps the Hessian .* at most 8192"),
        ("mlp", {"dimensions": 999_999, "hidden": 2}, "parameters; a worker keeps dozens of draws .* at most 1000000"),
        ("softmax-regression", {"draws": 7}, "multiple of 2"),
        ("softmax-regression", {"seed": 1 << 53}, "less than 9007199254740992"),
        ("lenet5", {"depth": 5}, "Extra inputs are not permitted"),
    ],
)
def test_a_configuration_outside_the_limits_is_refused(family: str, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        FAMILIES[family].config(**{**CONFIGS[family], **change})


def test_retired_keys_are_dropped_from_new_and_from_stored_configurations() -> None:
    stored = {**CONFIGS["logistic-regression"], "draws": 7, "seed": -1}
    assert FAMILIES["logistic-regression"].config(**stored).model_dump() == CONFIGS["logistic-regression"]
    assert current_config("logistic-regression", stored) == CONFIGS["logistic-regression"]
    assert current_config("softmax-regression", stored) == current_config("poisson", stored) == stored


@pytest.mark.parametrize(
    ("classes", "dimensions", "draws"), [(3, 4, 64), (4, 8, 64), (3, 11, 66), (4, 32, 256), (3, 43, 64), (10, 64, 64)]
)
def test_a_softmax_regression_has_two_draws_for_each_parameter_if_they_are_few(
    classes: int, dimensions: int, draws: int
) -> None:
    config = {"dimensions": dimensions, "classes": classes, "prior_std": 1.0}
    filled = FAMILIES["softmax-regression"].config(**config)
    assert filled.model_dump() == {**config, "draws": draws, "seed": 0}


def test_a_wrong_softmax_regression_is_refused_for_what_is_wrong() -> None:
    with pytest.raises(ValidationError, match=r"errors for SoftmaxRegressionConfig\nclasses\n"):
        FAMILIES["softmax-regression"].config(dimensions=3, classes=1, prior_std=1.0)


def test_only_built_in_networks_count_as_networks() -> None:
    assert [family for family in FAMILIES if is_network(family)] == ["mlp", "lenet5"]
    assert not is_network("transformer")


def test_an_installed_family_does_not_replace_a_built_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = [EntryPoint(name, "other.package:Model", families.ENTRY_POINT_GROUP) for name in ("mlp", "poisson")]
    monkeypatch.setattr(families, "entry_points", lambda group: installed)
    available = entry_points_by_family()
    assert set(available) == {*FAMILIES, "poisson"}
    assert (available["mlp"].value, available["poisson"].value) == ("ml.models.mlp:MLP", "other.package:Model")


def test_the_vocabulary_is_free_of_torch() -> None:
    check = "import sys, vocabulary.families, vocabulary.posterior_kinds; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", check], check=True)
