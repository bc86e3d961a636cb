"""What the API says about a model that was destroyed with its last records."""

from __future__ import annotations

import csv
import io
import uuid

from service.settings import Settings
from service.store.database import Database
from service.store.states import Role
from tests import samples
from tests.service.conftest import Api
from tests.service.store.batches.test_destruction import claimed_everybody, destroy_claimed

POLICY = {"epsilon": 1e-3}


def destroy_sample(settings: Settings, database: Database) -> tuple[uuid.UUID, uuid.UUID]:
    """Register a model and delete everybody in it. Return its id and that of the certificate."""
    claimed = claimed_everybody(settings, database)
    (certificate_id,) = destroy_claimed(settings, database, claimed)
    return claimed.model_id, certificate_id


def test_it_is_listed_as_destroyed(api: Api, settings: Settings, database: Database) -> None:
    model_id, _ = destroy_sample(settings, database)
    active_id = samples.register_sample(settings, database)
    listed = api.call(Role.ENGINEER, "GET", "/api/v1/models").json()["items"]
    assert [(item["id"], item["state"]) for item in listed] == [
        (str(active_id), "active"),
        (str(model_id), "destroyed"),
    ]
    model = api.call(Role.ENGINEER, "GET", f"/api/v1/models/{model_id}").json()
    assert model == listed[1]
    assert (model["record_count"], model["readiness"], model["version"]) == (0, None, 1)
    assert model["destroyed_at"] is not None
    (version,) = api.call(Role.ENGINEER, "GET", f"/api/v1/models/{model_id}/versions").json()["items"]
    assert version["superseded_at"] == model["destroyed_at"]


def test_its_posterior_and_policy_are_gone(api: Api, settings: Settings, database: Database) -> None:
    model_id, _ = destroy_sample(settings, database)
    path = f"/api/v1/models/{model_id}"
    for answer in (
        api.call(Role.ENGINEER, "GET", f"{path}/artifact"),
        api.call(Role.ENGINEER, "GET", f"{path}/artifact", headers={"If-None-Match": "*"}),
        api.call(Role.ENGINEER, "GET", f"{path}/draws", params={"count": 1}),
        api.call(Role.OPERATOR, "PUT", f"{path}/policy", json=POLICY),
    ):
        assert (answer.status_code, answer.json()["type"]) == (410, "urn:lethe:problem:gone")
        assert "was destroyed at" in answer.json()["detail"]


def test_a_later_deletion_of_its_people_finds_nobody(api: Api, settings: Settings, database: Database) -> None:
    model_id, _ = destroy_sample(settings, database)
    body = {"regulation": "gdpr", "subjects": [samples.person(1)]}
    answer = api.call(Role.COMPLIANCE, "POST", "/api/v1/deletions", json=body)
    assert answer.status_code == 201
    record = {"regulation": "gdpr", "records": [{"model": str(model_id), "record": 3}]}
    named = api.call(Role.COMPLIANCE, "POST", "/api/v1/deletions", json=record)
    assert named.status_code == 201, named.text


def test_auditors_see_its_certificate_without_a_bound(api: Api, settings: Settings, database: Database) -> None:
    model_id, certificate_id = destroy_sample(settings, database)
    (bound,) = api.call(Role.AUDITOR, "GET", "/api/v1/audit/bounds?level=destroyed").json()["items"]
    assert (bound["certificate_id"], bound["level"]) == (str(certificate_id), "destroyed")
    absent = ("epsilon", "epsilon_reverse", "reference_kind", "interval", "rung", "solver", "policy")
    assert [bound[name] for name in absent] == [None] * len(absent)
    assert (bound["records_before"], bound["records_after"]) == (40, 0)
    assert api.call(Role.AUDITOR, "GET", "/api/v1/audit/bounds?level=proved").json()["items"] == []
    assert api.call(Role.AUDITOR, "GET", "/api/v1/audit/bounds?epsilon_above=0").json()["items"] == []
    (summary,) = api.call(Role.AUDITOR, "GET", "/api/v1/audit/models").json()["items"]
    assert (summary["model_id"], summary["count"], summary["levels"]) == (str(model_id), 1, {"destroyed": 1})
    assert (summary["worst_epsilon"], summary["median_epsilon"]) == (None, None)
    exported = api.call(Role.AUDITOR, "GET", "/api/v1/audit/bounds", headers={"Accept": "text/csv"}).text
    (row,) = csv.DictReader(io.StringIO(exported))
    assert (row["level"], row["epsilon"], row["policy_epsilon"]) == ("destroyed", "", "")


def test_its_certificate_can_be_downloaded_and_printed(api: Api, settings: Settings, database: Database) -> None:
    _, certificate_id = destroy_sample(settings, database)
    path = f"/api/v1/certificates/{certificate_id}"
    assert api.call(Role.AUDITOR, "GET", path).json()["format"] == "lethe-bundle-v1"
    assert "Certificate of destruction" in api.call(Role.AUDITOR, "GET", f"{path}.html").text
    assert api.call(Role.AUDITOR, "GET", f"{path}.pdf").content.startswith(b"%PDF")


def test_metrics_count_it(api: Api, settings: Settings, database: Database) -> None:
    destroy_sample(settings, database)
    text = api.call(Role.OPERATOR, "GET", "/metrics").text
    assert 'lethe_certificates{level="destroyed"} 1.0' in text
