from __future__ import annotations

import json
from importlib.metadata import EntryPoint
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from service.schemas.models import InstalledFamilyManifest, Location, Manifest, Policy
from tests.vocabulary.configurations import CONFIGS
from vocabulary import families
from vocabulary.families import FAMILIES
from vocabulary.layouts import Layout
from vocabulary.references import REFERENCES

MANIFESTS: TypeAdapter[Manifest] = TypeAdapter(Manifest)


def manifest(family: str = "linear-regression", **changes: Any) -> dict[str, Any]:
    config = CONFIGS.get(family, {})
    return {"name": "m", "family": family, "config": config, "policy": {"epsilon": 1e-3}, **changes}


@pytest.mark.parametrize("family", CONFIGS)
def test_each_family_has_its_layout_and_keeps_its_configuration(family: str) -> None:
    parsed = MANIFESTS.validate_python(manifest(family))
    assert (parsed.family, parsed.posterior) == (family, "variational")
    assert parsed.plain_config == CONFIGS[family]
    assert parsed.layout == FAMILIES[family].config(**CONFIGS[family]).layout


@pytest.mark.parametrize("family", CONFIGS)
@pytest.mark.parametrize("value", [None, "many", -1, 0, 10**9, [], float("nan"), float("inf")])
def test_values_out_of_range_are_refused(family: str, value: object) -> None:
    for key in CONFIGS[family]:
        if (key, value) == ("seed", 0) or (key, value) == ("seed", 10**9):
            continue
        config = {**CONFIGS[family], key: value}
        with pytest.raises(ValidationError) as refused:
            MANIFESTS.validate_python(manifest(family, config=config))
        assert refused.value.errors()[0]["loc"][1:] == ("config", key)
    with pytest.raises(ValidationError):
        MANIFESTS.validate_python(manifest(family, config={"depth": 3}))


def test_draws_come_in_pairs_and_parameters_have_a_limit() -> None:
    config = {**CONFIGS["softmax-regression"], "draws": 7}
    with pytest.raises(ValidationError, match="multiple of 2"):
        MANIFESTS.validate_python(manifest("softmax-regression", config=config))
    config = {**CONFIGS["softmax-regression"], "dimensions": 4000}
    with pytest.raises(ValidationError, match="12000 parameters; a worker keeps the Hessian"):
        MANIFESTS.validate_python(manifest("softmax-regression", config=config))
    large = {"dimensions": 1000, "hidden": 900, "classes": 10}
    assert MANIFESTS.validate_python(manifest("mlp", config=large)).plain_config == {
        **large,
        "prior_std": 0.15,
        "activation": "relu",
    }
    with pytest.raises(ValidationError, match="1112110 parameters; a worker keeps dozens of draws"):
        MANIFESTS.validate_python(manifest("mlp", config={**large, "hidden": 1100}))


@pytest.mark.parametrize("family", ["mlp", "lenet5"])
def test_samples_of_networks_are_weighted_under_either_reference(family: str) -> None:
    weighted = {"epsilon": 1e-3, "level": "estimated", "rungs": ["reweight", "retrain"]}
    for reference in REFERENCES:
        policy = {**weighted, "reference": reference}
        parsed = MANIFESTS.validate_python(manifest(family, posterior="samples", policy=policy))
        assert (parsed.posterior, parsed.policy.reference) == ("samples", reference)
    assert Policy(**weighted).reference == "posterior"


@pytest.mark.parametrize("family", ["linear-regression", "mlp"])
def test_a_variational_posterior_has_no_stored_draws(family: str) -> None:
    policy = {"epsilon": 1e-3, "reference": "stored draws"}
    with pytest.raises(ValidationError, match="have no stored draws: leave `reference` out, or ask for 'posterior'"):
        MANIFESTS.validate_python(manifest(family, policy=policy))
    assert MANIFESTS.validate_python(manifest(family, policy={**policy, "reference": "posterior"}))


@pytest.mark.parametrize("family", ["oracle", "Linear-Regression", "", None, 7])
def test_an_unknown_family_is_refused(family: Any) -> None:
    with pytest.raises(ValidationError) as refused:
        MANIFESTS.validate_python({**manifest(), "family": family})
    assert refused.value.errors()[0]["loc"] == ("installed", "family")


def test_a_family_of_another_package_is_accepted_by_its_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = [EntryPoint("poisson-regression", "nowhere:Nothing", families.ENTRY_POINT_GROUP)]
    monkeypatch.setattr(families, "entry_points", lambda group: installed)
    parsed = MANIFESTS.validate_python(manifest("poisson-regression", config={"rate": 2, "names": ["a"]}))
    assert isinstance(parsed, InstalledFamilyManifest)
    assert (parsed.plain_config, parsed.layout) == ({"rate": 2, "names": ["a"]}, Layout(largest_value=None))
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    for config in ({"n": 2**60}, {"n": float("nan")}, {"text": "x" * 20_000}, [], None, {"n": deep}):
        with pytest.raises(ValidationError):
            MANIFESTS.validate_python(manifest("poisson-regression", config=config))


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        ({"level": "proved", "rungs": ["influence", "newton"]}, "ask for level 'estimated'"),
        (
            {"level": "estimated", "rungs": ["warm"]},
            "samples have no rung 'warm': allow influence, newton, reweight, temper or retrain",
        ),
    ],
)
def test_a_policy_that_samples_cannot_meet_is_refused(policy: dict[str, Any], reason: str) -> None:
    complete = {"epsilon": 1e-3, **policy}
    assert MANIFESTS.validate_python(manifest(policy=complete)).policy == Policy(**complete)
    with pytest.raises(ValidationError, match=reason):
        MANIFESTS.validate_python(manifest(posterior="samples", policy=complete))


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        ({"level": "proved", "rungs": ["influence", "warm"]}, "certificates of networks are estimated"),
        ({"level": "estimated", "rungs": ["newton"]}, "allow influence, warm or retrain"),
    ],
)
def test_a_policy_that_networks_cannot_meet_is_refused(policy: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        MANIFESTS.validate_python(manifest("lenet5", policy={"epsilon": 1e-3, **policy}))
    allowed = {"epsilon": 1e-3, **policy, "rungs": [*policy["rungs"], "retrain"]}
    assert MANIFESTS.validate_python(manifest("lenet5", policy=allowed)).policy == Policy(**allowed)


@pytest.mark.parametrize("rung", ["newton", "warm"])
def test_a_policy_that_samples_of_networks_cannot_meet_is_refused(rung: str) -> None:
    policy = {"epsilon": 1e-3, "level": "estimated", "rungs": [rung]}
    with pytest.raises(ValidationError, match=r"samples of networks have no rung .* influence, reweight, temper or"):
        MANIFESTS.validate_python(manifest("mlp", posterior="samples", policy=policy))


def test_ensembles_are_for_networks_and_need_the_rung_retrain() -> None:
    policy = {"epsilon": 1e-6, "level": "retrained"}
    assert MANIFESTS.validate_python(manifest("lenet5", posterior="ensemble", policy=policy)).posterior == "ensemble"
    with pytest.raises(ValidationError, match="only built-in networks have ensembles"):
        MANIFESTS.validate_python(manifest(posterior="ensemble", policy=policy))
    without = {"epsilon": 1e-6, "level": "estimated", "rungs": ["influence"]}
    with pytest.raises(ValidationError, match="ensembles forget by training members again: allow the rung 'retrain'"):
        MANIFESTS.validate_python(manifest("lenet5", posterior="ensemble", policy=without))


def test_a_variational_posterior_has_no_weights_to_change() -> None:
    with pytest.raises(ValidationError, match="variational posteriors have no rung 'reweight': allow influence"):
        MANIFESTS.validate_python(manifest(policy={"epsilon": 1e-3, "rungs": ["reweight"]}))
    stored_earlier = {"epsilon": 1e-3, "level": "estimated", "rungs": ["influence", "newton"]}
    assert MANIFESTS.validate_python(manifest(posterior="samples", policy=stored_earlier)).policy.rungs == [
        "influence",
        "newton",
    ]


def test_the_default_policy_allows_retraining_for_samples() -> None:
    parsed = MANIFESTS.validate_python(manifest(posterior="samples"))
    assert (parsed.policy.level, parsed.policy.rungs[-1]) == ("proved", "retrain")


def test_the_schema_has_a_manifest_for_each_family() -> None:
    schema = json.dumps(MANIFESTS.json_schema())
    assert all(
        f"{name}Manifest" in schema
        for name in ("GaussianMixture", "SoftmaxRegression", "MLP", "LeNet5", "InstalledFamily")
    )


@pytest.mark.parametrize("path", ["", "/etc/passwd", "..", "a/../../b", "../a", "a\0b", "x" * 1001])
def test_a_location_outside_the_root_is_refused(path: str) -> None:
    location = {"posterior": "a/b", "records": "c..d", "subjects": "e"}
    Location(**location)
    with pytest.raises(ValidationError):
        Location(**{**location, "records": path})
