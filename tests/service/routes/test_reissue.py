from __future__ import annotations

import uuid

import pytest
from pydantic import SecretStr

from lethe.verify import verify
from service.settings import Settings, new_key
from service.store.clock import current_time
from service.store.database import Database
from service.store.signing import keys
from service.store.signing.keys import configured_signer
from service.store.states import Role, SigningUse
from tests import samples
from tests.service.conftest import Api, serving
from tests.service.routes.test_jobs import publish_sample
from tests.service.store.certificates.test_reissue import absent


@pytest.fixture
def restarted(settings: Settings, database: Database) -> Settings:
    """Settings with the successor of the signing key, which is listed with the first start."""
    return settings.model_copy(update={"signing_key": SecretStr(new_key())})


def rotate_and_revoke(settings: Settings, restarted: Settings, database: Database) -> None:
    old, new = configured_signer(settings), configured_signer(restarted)
    with database.writing() as session:
        keys.rotate(session, old.public_key, new.public_key, SigningUse.STATEMENTS, "ops")
        keys.revoke(session, old.key_id, current_time(session), "a laptop was lost", "ops")


def test_a_certificate_is_issued_again_and_the_old_one_names_it(
    settings: Settings, restarted: Settings, database: Database
) -> None:
    old_id = publish_sample(settings, database, samples.register_sample(settings, database), person=1)
    rotate_and_revoke(settings, restarted, database)
    with serving(restarted, database) as api:
        path = f"/api/v1/certificates/{old_id}"
        answers = [api.call(Role.OPERATOR, "POST", f"{path}/reissue") for _ in range(2)]
        assert [answer.status_code for answer in answers] == [200, 200]
        reissued = answers[0].json()
        assert answers[1].json() == reissued
        assert reissued["replaces"] == str(old_id)
        listed = api.call(None, "GET", "/api/v1/log/keys").content
        new, old = (api.call(Role.AUDITOR, "GET", url) for url in (reissued["certificate"], path))
        assert verify(new.content, listed).predicate["replaces"]["certificate"] == str(old_id)
        assert old.headers["Link"] == f'<{reissued["certificate"]}>; rel="successor-version"'
        assert "Link" not in new.headers
        again = api.call(Role.OPERATOR, "POST", f"{reissued['certificate']}/reissue")
        assert (again.status_code, again.json()["type"]) == (409, "urn:lethe:problem:not-replaceable")
        bounds = api.call(Role.AUDITOR, "GET", "/api/v1/audit/bounds").json()["items"]
        assert [bound["certificate_id"] for bound in bounds] == [reissued["id"]]


def test_an_absence_is_issued_again(settings: Settings, restarted: Settings, database: Database) -> None:
    deletion_id = absent(settings, database)
    rotate_and_revoke(settings, restarted, database)
    with serving(restarted, database) as api:
        path = f"/api/v1/deletions/{deletion_id}/absence"
        old = api.call(Role.AUDITOR, "GET", path)
        reissued = api.call(Role.OPERATOR, "POST", f"{path}/reissue").json()
        new = api.call(Role.AUDITOR, "GET", reissued["absence"])
        replaces = verify(new.content, api.call(None, "GET", "/api/v1/log/keys").content).predicate["replaces"]
        assert api.call(Role.AUDITOR, "GET", f"{path}?statement={replaces['statement']}").content == old.content
        assert api.call(Role.AUDITOR, "GET", f"{path}?statement={reissued['statement']}").content == new.content
        assert api.call(Role.AUDITOR, "GET", f"{path}?statement=x").status_code == 422


def test_a_running_api_whose_key_was_revoked_takes_no_requests(
    settings: Settings, restarted: Settings, database: Database, api: Api
) -> None:
    rotate_and_revoke(settings, restarted, database)
    unknown = uuid.uuid4()
    calls = [
        ("POST", "/api/v1/deletions", Role.COMPLIANCE, {"json": {"subjects": [samples.person(1)]}}),
        ("POST", f"/api/v1/certificates/{unknown}/reissue", Role.OPERATOR, {}),
    ]
    for method, path, role, options in calls:
        response = api.call(role, method, path, **options)  # type: ignore[arg-type]
        assert (response.status_code, response.json()["type"]) == (503, "urn:lethe:problem:key-inactive")
        assert "restart" in response.json()["detail"]
    with database.reading() as session:
        assert keys.find_inactive(session, configured_signer(restarted)) is None
