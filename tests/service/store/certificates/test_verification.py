from __future__ import annotations

import json
from datetime import timedelta

import pytest
from sqlalchemy import select

from lethe.verify import verify
from service.settings import Settings
from service.store.certificates import verification
from service.store.certificates.bundles import find_certificate
from service.store.certificates.verification import Acceptance, find_problem, verify_each, verify_statements
from service.store.database import Database
from service.store.errors import CertificateRejected
from service.store.signing import keys
from service.store.signing.keys import open_signer
from service.store.tables import Certificate, Deletion, now
from tests import samples
from tests.bundles import SIGNER, key_list
from tests.service.routes.test_jobs import claim, publish_all, publish_sample


def published(settings: Settings, database: Database) -> str:
    certificate_id = publish_sample(settings, database, samples.register_sample(settings, database), person=1)
    with database.reading() as session:
        return find_certificate(session, certificate_id, None)


def test_certificates_are_published_only_if_every_one_verifies(
    settings: Settings, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second of three has another log's entry: the first and the last alone would not show it."""
    model_id = samples.register_sample(settings, database)
    for person in (1, 2, 3):
        samples.request_deletion(settings, database, person)
    claimed, find = claim(database, model_id), verification.find_logged_entries

    def exchange(*arguments: object) -> dict[str, object]:
        logged = dict(find(*arguments))  # type: ignore[arg-type]
        first, second, _ = logged
        return {**logged, second: logged[first]}

    with monkeypatch.context() as wrong:
        wrong.setattr(verification, "find_logged_entries", exchange)
        with pytest.raises(CertificateRejected, match=r"the entry in the log is not that .* Nothing was published"):
            publish_all(settings, database, claimed)
    with database.reading() as session:
        assert session.scalars(select(Certificate)).all() == []
    assert len(publish_all(settings, database, claimed)) == 3


def test_a_statement_under_another_key_is_rejected(settings: Settings, database: Database) -> None:
    bundle, signer = published(settings, database), open_signer(settings, database)
    with database.writing() as session:
        verify_statements(session, signer.origin, [bundle])
        with pytest.raises(CertificateRejected, match="not of 'elsewhere/lethe'"):
            verify_statements(session, "elsewhere/lethe", [bundle])
    with pytest.raises(CertificateRejected, match="not signed by one of the given keys"):
        verify_each([bundle], key_list(SIGNER))


def test_acceptance_ends_with_a_revocation_and_for_no_other_reason(settings: Settings, database: Database) -> None:
    bundle, signer = published(settings, database), open_signer(settings, database)
    damaged = bundle.replace('"index":', '"index":1')
    with database.reading() as session:
        before = Acceptance.read(session, signer.origin, [])
        received_at = session.scalars(select(Deletion.received_at)).one()
    assert (before.ended(bundle), before.ended(damaged)) == (False, False)
    assert find_problem(bundle, before.keys) is None
    assert verify(bundle.encode(), before.keys).predicate["log"] == {"origin": signer.origin}
    for at, problem in ((now() - timedelta(0), "revoked later"), (received_at, "when the key was revoked")):
        with database.writing() as session:
            keys.revoke(session, signer.key_id, at, "lost", "ops")
        with database.reading() as session:
            after = Acceptance.read(session, signer.origin, [])
        assert problem in str(find_problem(bundle, after.keys))
        assert (after.ended(bundle), after.ended(damaged)) == (True, False)


def test_the_list_of_keys_is_the_published_one_reduced(settings: Settings, database: Database) -> None:
    signer = open_signer(settings, database)
    with database.writing() as session:
        keys.retire(session, signer.log_key_id, "ops")
        listed = keys.keys_for(session, signer)
        content = json.loads(verification.write_key_list(signer.origin, listed, ["w+1+x"]))
    assert (content["origin"], content["witnesses"]) == (signer.origin, ["w+1+x"])
    statement, log = content["keys"]
    assert (statement["keyid"], statement["use"], statement["retired_at"]) == (signer.key_id, "statements", None)
    assert (log["keyid"], log["use"], log["revoked_at"]) == (signer.log_key_id, "log", None)
    assert log["retired_at"].endswith("Z")
