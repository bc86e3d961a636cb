"""The OpenDSR contract, line by line, as a platform relies on it."""

from __future__ import annotations

import base64
import json
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from sqlalchemy import func, select, update

from service.settings import Settings
from service.store.access.tokens import issue_token
from service.store.database import Database
from service.store.signing.processor_identity import ProcessorIdentity
from service.store.states import DeletionStatus, Role
from service.store.tables import Absence, Deletion, DeletionTarget, OpenDsrRequest, RequestBody
from tests import samples
from tests.service.conftest import CLIENT, Api
from tests.service.routes.test_jobs import claim, publish_claim

REQUEST_ID = "a7551968-d5d6-44b2-9831-815ac9017798"


@pytest.fixture(scope="session")
def processor_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create one RSA key for all tests: creating it is slow."""
    folder = tmp_path_factory.mktemp("processor")
    ProcessorIdentity.load(Settings(data_dir=folder, _env_file=None))  # type: ignore[call-arg]
    return folder / "opendsr"


@pytest.fixture(autouse=True)
def processor(settings: Settings, processor_files: Path) -> None:
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    shutil.copytree(processor_files, settings.data_dir / "opendsr")


def body(**changes: Any) -> bytes:
    fields = {
        "regulation": "gdpr",
        "subject_request_id": REQUEST_ID,
        "subject_request_type": "erasure",
        "submitted_time": "2026-11-15T15:00:00Z",
        "subject_identities": [
            {"identity_type": "email", "identity_value": "person-1@example.org", "identity_format": "raw"}
        ],
        "api_version": "2.0",
        **changes,
    }
    return json.dumps({name: value for name, value in fields.items() if value is not None}).encode()


def post(api: Api, content: bytes, path: str = "/v2/requests", role: Role | None = Role.COMPLIANCE) -> httpx.Response:
    return api.call(role, "POST", path, content=content, headers={"Content-Type": "application/json"})


def get(api: Api, path: str = f"/v2/requests/{REQUEST_ID}") -> httpx.Response:
    return api.call(Role.COMPLIANCE, "GET", path)


def assert_signed(api: Api, answer: httpx.Response, name: str = "OpenDSR") -> None:
    """Check as a platform does: by the certificate that discovery names, over the raw bytes."""
    url = api.call(None, "GET", "/v2/discovery").json()["processor_certificate"]
    certificate = x509.load_pem_x509_certificate(CLIENT.get(url).content)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert answer.headers[f"X-{name}-Processor-Domain"] in names.get_values_for_type(x509.DNSName)
    key = certificate.public_key()
    assert isinstance(key, rsa.RSAPublicKey)
    signature = base64.b64decode(answer.headers[f"X-{name}-Signature"])
    key.verify(signature, answer.content, padding.PKCS1v15(), hashes.SHA256())


IDENTITY_TYPES = (  # as in the specification, typed by hand
    "controller_customer_id",
    "android_advertising_id",
    "android_id",
    "email",
    "fire_advertising_id",
    "ios_advertising_id",
    "ios_vendor_id",
    "microsoft_advertising_id",
    "microsoft_publisher_id",
    "roku_publisher_id",
    "roku_advertising_id",
)


def identity(**changes: Any) -> dict[str, Any]:
    whole = {"identity_type": "email", "identity_value": "person-1@example.org", "identity_format": "raw", **changes}
    return {name: value for name, value in whole.items() if value is not None}


DISCOVERY: dict[str, Callable[[dict[str, Any], Api], bool]] = {
    "api_version": lambda answer, _: answer["api_version"] == "2.0",
    "supported_identities": lambda answer, _: (
        answer["supported_identities"] == [{"identity_type": name, "identity_format": "raw"} for name in IDENTITY_TYPES]
    ),
    "supported_subject_request_types": lambda answer, _: answer["supported_subject_request_types"] == ["erasure"],
    "processor_certificate": lambda answer, api: answer["processor_certificate"].startswith(api.url + "/v2/"),
}


@pytest.mark.parametrize("field", DISCOVERY)
def test_discovery_has(api: Api, field: str) -> None:
    answer = api.call(None, "GET", "/v2/discovery")
    assert answer.status_code == 200
    assert DISCOVERY[field](answer.json(), api)
    assert api.call(None, "GET", "/v1/discovery").content == answer.content


ACCEPTED: dict[str, Callable[[dict[str, Any]], bool]] = {
    "controller_id": lambda answer: answer["controller_id"] == "acme-compliance",
    "received_time": lambda answer: answer["received_time"].endswith("Z"),
    "expected_completion_time": lambda answer: answer["expected_completion_time"] > answer["received_time"],
    "encoded_request": lambda answer: base64.b64decode(answer["encoded_request"]) == body(),
    "subject_request_id": lambda answer: answer["subject_request_id"] == REQUEST_ID,
}


@pytest.mark.parametrize("field", ACCEPTED)
def test_an_accepted_request_answers_with(api: Api, field: str) -> None:
    answer = post(api, body())
    assert answer.status_code == 201
    assert ACCEPTED[field](answer.json())
    assert_signed(api, answer)


STATUS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "controller_id": lambda answer: answer["controller_id"] == "acme-compliance",
    "expected_completion_time": lambda answer: answer["expected_completion_time"].endswith("Z"),
    "subject_request_id": lambda answer: answer["subject_request_id"] == REQUEST_ID,
    "request_status": lambda answer: answer["request_status"] == "pending",
}


@pytest.mark.parametrize("field", STATUS)
@pytest.mark.parametrize("path", [f"/v2/requests/{REQUEST_ID}", f"/v2/status/{REQUEST_ID}"])
def test_a_status_has(api: Api, settings: Settings, database: Database, path: str, field: str) -> None:
    samples.register_sample(settings, database)
    post(api, body())
    answer = get(api, path)
    assert answer.status_code == 200
    assert STATUS[field](answer.json())
    assert answer.json()["api_version"] == "2.0"
    assert not {"results_url", "results_count"} & set(answer.json())  # there are none yet
    assert answer.headers["Cache-Control"] == "no-store"
    assert_signed(api, answer)


def test_a_completed_request_names_its_certificates(api: Api, settings: Settings, database: Database) -> None:
    model_id = samples.register_sample(settings, database)
    post(api, body())
    publish_claim(settings, database, claim(database, model_id))
    answer = get(api)
    assert (answer.json()["request_status"], answer.json()["results_count"]) == ("completed", 1)
    results = api.call(Role.COMPLIANCE, "GET", answer.json()["results_url"].removeprefix(api.url)).json()
    assert api.call(Role.COMPLIANCE, "GET", results["models"][0]["certificate"]).status_code == 200
    assert_signed(api, answer)


@pytest.mark.parametrize(
    ("status", "shown"),
    [
        (DeletionStatus.PENDING, "pending"),
        (DeletionStatus.RUNNING, "in_progress"),
        (DeletionStatus.COMPLETED, "completed"),
        (DeletionStatus.CANCELLED, "cancelled"),
        (DeletionStatus.FAILED, "in_progress"),
    ],
)
def test_each_status_has_its_name_in_opendsr(api: Api, database: Database, status: DeletionStatus, shown: str) -> None:
    post(api, body())
    with database.writing() as session:
        session.execute(update(Deletion).values(status=status))
    assert get(api).json()["request_status"] == shown


CANCELLED: dict[str, Callable[[dict[str, Any]], bool]] = {
    "controller_id": lambda answer: answer["controller_id"] == "acme-compliance",
    "received_time": lambda answer: answer["received_time"].endswith("Z"),
    "subject_request_id": lambda answer: answer["subject_request_id"] == REQUEST_ID,
}


@pytest.mark.parametrize("field", CANCELLED)
def test_a_cancelled_request_answers_with(patient_api: Api, settings: Settings, database: Database, field: str) -> None:
    samples.register_sample(settings, database)
    post(patient_api, body())
    answer = patient_api.call(Role.COMPLIANCE, "DELETE", f"/v2/requests/{REQUEST_ID}")
    assert answer.status_code == 202
    assert CANCELLED[field](answer.json())
    assert answer.json()["api_version"] == "2.0"
    assert_signed(patient_api, answer)
    assert get(patient_api).json()["request_status"] == "cancelled"


def test_a_binding_request_cannot_be_cancelled(api: Api, settings: Settings, database: Database) -> None:
    samples.register_sample(settings, database)
    post(api, body())
    assert_refused(api.call(Role.COMPLIANCE, "DELETE", f"/v2/requests/{REQUEST_ID}"), 400, "not_pending")
    with database.writing() as session:
        session.execute(update(Deletion).values(status=DeletionStatus.RUNNING))
        session.execute(update(DeletionTarget).values(status=DeletionStatus.RUNNING))
    answer = api.call(Role.COMPLIANCE, "DELETE", f"/v2/requests/{REQUEST_ID}")
    assert_refused(answer, 400, "not_pending")
    assert get(api).json()["request_status"] == "in_progress"


def assert_refused(answer: httpx.Response, status: int, reason: str) -> None:
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error["code"] == status
    assert error["message"]
    assert {detail["reason"] for detail in error["errors"]} == {reason}
    assert all(detail["domain"] and detail["message"] for detail in error["errors"])
    assert answer.headers["Cache-Control"] == "no-store"
    assert "person-1" not in answer.text


UNSUPPORTED_FORMAT = "unsupported_identity_format"
BAD = {
    "not JSON": (b"{", "invalid_request"),
    "no regulation": (body(regulation=None), "invalid_request"),
    "another regulation": (body(regulation="lgpd"), "invalid_request"),
    "no subject_request_id": (body(subject_request_id=None), "invalid_request"),
    "an id that is no UUID": (body(subject_request_id="person-1@example.org"), "invalid_request"),
    "no subject_request_type": (body(subject_request_type=None), "invalid_request"),
    "an id of another version": (body(subject_request_id=str(uuid.uuid1())), "invalid_request"),
    "an id in capitals": (body(subject_request_id=REQUEST_ID.upper()), "invalid_request"),
    "another subject_request_type": (body(subject_request_type="rectification"), "invalid_request"),
    "no submitted_time": (body(submitted_time=None), "invalid_request"),
    "a time in seconds": (body(submitted_time=1_700_000_000), "invalid_request"),
    "a time in seconds as text": (body(submitted_time="1700000000"), "invalid_request"),
    "a time that is none": (body(submitted_time="2026-13-01T00:00:00Z"), "invalid_request"),
    "a time without a zone": (body(submitted_time="2026-11-15T15:00:00"), "invalid_request"),
    "no identities": (body(subject_identities=None), "no_identity"),
    "an empty list of identities": (body(subject_identities=[]), "invalid_request"),
    "nothing below our domain": (body(subject_identities=None, extensions={"localhost": {}}), "no_identity"),
    "identities below another domain": (
        body(subject_identities=None, extensions={"other.example": {"subject_identities": [identity()]}}),
        "no_identity",
    ),
    "a bad identity in extensions": (
        body(subject_identities=None, extensions={"localhost": {"subject_identities": [identity(identity_type="x")]}}),
        "invalid_request",
    ),
    "a hashed identity in extensions": (
        body(
            subject_identities=None, extensions={"localhost": {"subject_identities": [identity(identity_format="md5")]}}
        ),
        UNSUPPORTED_FORMAT,
    ),
    "an identity of no known type": (body(subject_identities=[identity(identity_type="x")]), "invalid_request"),
    "an identity without a type": (body(subject_identities=[identity(identity_type=None)]), "invalid_request"),
    "an identity without a value": (body(subject_identities=[identity(identity_value=None)]), "invalid_request"),
    "an identity without a format": (body(subject_identities=[identity(identity_format=None)]), "invalid_request"),
    "an identity of no known format": (body(subject_identities=[identity(identity_format="x")]), "invalid_request"),
    **{
        f"an identity as {name}": (body(subject_identities=[identity(identity_format=name)]), UNSUPPORTED_FORMAT)
        for name in ("sha1", "md5", "sha256")
    },
    "a callback URL that is none": (body(status_callback_urls=["mailto:person-1@example.org"]), "invalid_request"),
    "access": (body(subject_request_type="access"), "unsupported_request_type"),
    "portability": (body(subject_request_type="portability"), "unsupported_request_type"),
}


@pytest.mark.parametrize(("content", "reason"), BAD.values(), ids=BAD.keys())
def test_a_bad_request_is_refused_in_the_format_of_opendsr_and_stores_nothing(
    api: Api, database: Database, content: bytes, reason: str
) -> None:
    answer = post(api, content)
    assert_refused(answer, 400, reason)
    assert_signed(api, answer)
    with database.reading() as session:
        assert session.scalar(select(func.count()).select_from(Deletion)) == 0


def test_the_same_bytes_again_get_the_same_answer(api: Api, settings: Settings, database: Database) -> None:
    samples.register_sample(settings, database)
    first, again = post(api, body()), post(api, body())
    assert again.status_code == 201
    assert again.content == first.content
    assert again.headers["X-OpenDSR-Signature"] == first.headers["X-OpenDSR-Signature"]
    with database.reading() as session:
        assert session.scalar(select(func.count()).select_from(Deletion)) == 1


def test_another_body_under_the_same_id_is_refused(api: Api, settings: Settings, database: Database) -> None:
    samples.register_sample(settings, database)
    post(api, body())
    assert_refused(post(api, body(regulation="ccpa")), 400, "conflicting_request")


def test_an_ended_request_is_not_repeated_whatever_it_names(api: Api) -> None:
    post(api, body())
    for content in (body(), body(regulation="ccpa")):
        answer = post(api, content)
        assert_refused(answer, 400, "conflicting_request")
        assert "read its status with GET" in answer.text


def test_all_identity_types_regulations_and_unknown_fields_are_accepted(api: Api, database: Database) -> None:
    allowed = [
        *({"subject_identities": [identity(identity_type=name)]} for name in IDENTITY_TYPES),
        {"regulation": "ccpa"},
        {"regulation": "gdpr"},
        {"extensions": {"localhost": {"anything": 1}}, "unknown_field": "ignored", "api_version": None},
        {"submitted_time": "2026-11-15T15:00:00.123+01:00"},
    ]
    for changes in allowed:
        answer = post(api, body(subject_request_id=str(uuid.uuid4()), **changes))
        assert answer.status_code == 201, (changes, answer.text)
    with database.reading() as session:
        assert session.scalar(select(func.count()).select_from(Deletion)) == len(allowed)


def test_identities_may_stand_below_our_domain_in_extensions_instead(
    api: Api, settings: Settings, database: Database
) -> None:
    model_id = samples.register_sample(settings, database)
    answer = post(api, body(subject_identities=None, extensions={"localhost": {"subject_identities": [identity()]}}))
    assert answer.status_code == 201, answer.text
    claimed = claim(database, model_id)
    assert list(claimed.forgotten) == list(range(samples.ROWS_EACH, 2 * samples.ROWS_EACH))


def test_a_request_is_visible_to_its_caller_only(api: Api, database: Database) -> None:
    first = post(api, body())
    with database.writing() as session:
        other = Api(api.url, {Role.COMPLIANCE: issue_token(session, "other", Role.COMPLIANCE, actor="test")})
    assert_refused(get(other), 404, "not_found")
    assert_refused(other.call(Role.COMPLIANCE, "DELETE", f"/v2/requests/{REQUEST_ID}"), 404, "not_found")
    second = post(other, body(regulation="ccpa")).json()
    assert (second["controller_id"], first.json()["controller_id"]) == ("other", "acme-compliance")


def test_routing_errors_have_the_format_of_opendsr(api: Api, settings: Settings) -> None:
    refusals = {
        ("GET", "/v2/requests/person-1@example.org"): (400, "invalid_request"),
        ("GET", "/v2/nothing"): (404, "not_found"),
        ("PUT", "/v2/requests"): (405, "method_not_allowed"),
    }
    for (method, path), (status, reason) in refusals.items():
        answer = api.call(Role.COMPLIANCE, method, path)
        assert_refused(answer, status, reason)
        assert_signed(api, answer)
    too_large = post(api, b" " * (settings.max_body_bytes + 1))
    assert_refused(too_large, 413, "too_large")


def test_an_unknown_request_is_not_found(api: Api) -> None:
    assert_refused(get(api, f"/v2/requests/{uuid.UUID(int=0)}"), 404, "not_found")
    assert_refused(api.call(Role.COMPLIANCE, "DELETE", f"/v2/requests/{uuid.UUID(int=0)}"), 404, "not_found")


def test_missing_rights_have_the_format_of_opendsr(api: Api) -> None:
    assert_refused(post(api, body(), role=None), 401, "unauthorized")
    assert_refused(post(api, body(), role=Role.AUDITOR), 403, "forbidden")


def test_version_one_names_are_aliases(patient_api: Api, settings: Settings, database: Database) -> None:
    samples.register_sample(settings, database)
    created = post(patient_api, body(), "/v1/opengdpr_requests")
    assert created.status_code == 201
    assert_signed(patient_api, created, "OpenGDPR")
    status = get(patient_api, f"/v1/opengdpr_requests/{REQUEST_ID}")
    assert status.json()["request_status"] == "pending"
    assert_signed(patient_api, status, "OpenGDPR")
    assert patient_api.call(Role.COMPLIANCE, "DELETE", f"/v1/opengdpr_requests/{REQUEST_ID}").status_code == 202


def test_neither_body_nor_identity_is_stored(api: Api, database: Database) -> None:
    post(api, body(status_callback_urls=["https://platform.example/callback"]))
    with database.reading() as session:
        row = session.scalars(select(OpenDsrRequest)).one()
        assert session.get_one(Deletion, row.deletion_id).callback_urls == ["https://platform.example/callback"]
        assert session.scalars(select(RequestBody)).all() == []  # ended on arrival


def test_a_request_for_an_unknown_subject_is_completed_with_a_certificate_of_absence(
    api: Api, database: Database
) -> None:
    post(api, body())
    assert get(api).json()["request_status"] == "completed"
    with database.reading() as session:
        assert session.scalar(select(func.count()).select_from(Absence)) == 1
