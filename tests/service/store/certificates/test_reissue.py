from __future__ import annotations

import base64
import json
import uuid
from datetime import datetime, timedelta
from typing import Any

import pytest
from pydantic import SecretStr
from sqlalchemy import select

from lethe.verify import Rejected, verify
from service.schemas.log import public_keys_out
from service.settings import Settings, new_key
from service.store.certificates import reissue
from service.store.certificates.bundles import find_absence, find_certificate, find_successor
from service.store.certificates.listing import BoundFilter, find_bound_page
from service.store.certificates.reissue import (
    Reissuer,
    find_affected,
    reissue_absence,
    reissue_certificates,
)
from service.store.clock import current_time
from service.store.database import Database
from service.store.deletions.views import find_view
from service.store.errors import ClockBehind, KeyInactive, NotFound, NotReplaceable
from service.store.log.sequencing import sequence_entries
from service.store.paging import Window
from service.store.signing import keys
from service.store.signing.keys import configured_signer, open_signer
from service.store.signing.statements import key_id_of, statement_digest
from service.store.states import SigningUse
from service.store.tables import AuditEntry, Certificate
from tests import samples
from tests.service.routes.test_jobs import publish_sample


def rotate_and_revoke(settings: Settings, database: Database, use: SigningUse, at: datetime | None = None) -> Reissuer:
    """Replace a key and revoke it, by default from now on. Return who may issue again."""
    old = open_signer(settings, database).public_keys[use]
    name = "log_key" if use == SigningUse.LOG else "signing_key"
    signer = configured_signer(settings.model_copy(update={name: SecretStr(new_key())}))
    with database.writing() as session:
        keys.rotate(session, old, signer.public_keys[use], use, "ops")
        keys.revoke(session, key_id_of(old), at or current_time(session), "a laptop was lost", "ops")
    return Reissuer(signer, [], "ops")


def published(settings: Settings, database: Database, person: int = 1) -> uuid.UUID:
    return publish_sample(settings, database, samples.register_sample(settings, database), person)


def absent(settings: Settings, database: Database) -> uuid.UUID:
    """Request the deletion of an unknown person, and log its certificate of absence."""
    deletion_id = samples.request_deletion(settings, database, 99).deletion.id
    with database.writing() as session:
        sequence_entries(session, open_signer(settings, database))
    return deletion_id


def predicate_of(bundle: str) -> dict[str, Any]:
    predicate: dict[str, Any] = json.loads(base64.b64decode(json.loads(bundle)["envelope"]["payload"]))["predicate"]
    return predicate


def key_list(settings: Settings, database: Database, reissuer: Reissuer) -> bytes:
    with database.reading() as session:
        return public_keys_out(settings, keys.keys_for(session, reissuer.signer)).model_dump_json().encode()


@pytest.mark.parametrize("use", list(SigningUse))
def test_a_certificate_whose_key_was_revoked_is_issued_again_with_the_same_facts(
    settings: Settings, database: Database, use: SigningUse
) -> None:
    old_id = published(settings, database)
    reissuer = rotate_and_revoke(settings, database, use)
    with database.writing() as session:
        new_id = reissue_certificates(session, [old_id], reissuer)[old_id]
    with database.reading() as session:
        old, new = (find_certificate(session, certificate_id, None) for certificate_id in (old_id, new_id))
        assert (find_successor(session, old_id, None), find_successor(session, new_id, None)) == (new_id, None)
        entries = session.scalars(select(AuditEntry).order_by(AuditEntry.id.desc()).limit(2)).all()
    listed = key_list(settings, database, reissuer)
    with pytest.raises(Rejected, match="revoked"):
        verify(old.encode(), listed)
    predicate, before = dict(verify(new.encode(), listed).predicate), predicate_of(old)
    replaced = {"certificate": str(old_id), "statement": statement_digest(old)}
    assert {name: predicate["replaces"][name] for name in replaced} == replaced
    assert predicate.pop("replaces")["reason"].startswith("A key that signed it is no longer trusted")
    assert predicate["issued_at"] > before["issued_at"]
    own = {"certificate": str(new_id), "issued_at": predicate["issued_at"]}
    assert predicate == {**before, **own}
    assert {(entry.action, entry.concerns, entry.actor) for entry in entries} == {
        ("certificate.issued", str(new_id), "ops"),
        ("certificate.reissued", str(old_id), "ops"),
    }


def test_a_second_request_returns_the_first_result_and_listings_show_the_newest(
    settings: Settings, database: Database
) -> None:
    old_id = published(settings, database)
    reissuer = rotate_and_revoke(settings, database, SigningUse.STATEMENTS)
    results = []
    for _ in range(2):
        with database.writing() as session:
            results.append(reissue_certificates(session, [old_id], reissuer))
    new_id = results[0][old_id]
    assert results == [{old_id: new_id}] * 2
    with database.reading() as session:
        assert len(session.scalars(select(Certificate)).all()) == 2
        page = find_bound_page(session, BoundFilter(), Window(10))
        deletion_id = session.get_one(Certificate, old_id).deletion_id
        (target,) = find_view(session, deletion_id, None).targets
    assert [item.certificate.id for item in page.items] == [new_id] == [target.certificate_id]


def test_the_new_one_can_be_replaced_in_turn(settings: Settings, database: Database) -> None:
    first_id = published(settings, database)
    reissuer = rotate_and_revoke(settings, database, SigningUse.STATEMENTS)
    with database.writing() as session:
        second_id = reissue_certificates(session, [first_id], reissuer)[first_id]
        keys.revoke(session, reissuer.signer.key_id, current_time(session), "lost again", "ops")
    with pytest.raises(KeyInactive), database.writing() as session:
        reissue_certificates(session, [second_id], reissuer)
    third = configured_signer(settings.model_copy(update={"signing_key": SecretStr(new_key())}))
    mixed = Reissuer(third, [], "ops")
    with database.writing() as session:
        keys.rotate(session, reissuer.signer.public_key, third.public_key, SigningUse.STATEMENTS, "ops")
    with database.writing() as session:
        third_id = reissue_certificates(session, [second_id], mixed)[second_id]
        bundle = find_certificate(session, third_id, None)
    assert predicate_of(bundle)["replaces"]["certificate"] == str(second_id)


def test_a_certificate_that_verifiers_accept_is_not_replaced(settings: Settings, database: Database) -> None:
    certificate_id = published(settings, database)
    reissuer = Reissuer(open_signer(settings, database), [], "ops")
    with pytest.raises(NotReplaceable, match="verifiers accept"), database.writing() as session:
        reissue_certificates(session, [certificate_id], reissuer)
    unknown = uuid.uuid4()
    with pytest.raises(NotFound, match=str(unknown)), database.writing() as session:
        reissue_certificates(session, [unknown], reissuer)
    with database.reading() as session:
        assert session.scalars(select(Certificate.replaced_by)).all() == [None]


def test_an_absence_is_issued_again_and_the_old_one_stays(settings: Settings, database: Database) -> None:
    deletion_id = absent(settings, database)
    accepted = Reissuer(open_signer(settings, database), [], "ops")
    with pytest.raises(NotReplaceable), database.writing() as session:
        reissue_absence(session, deletion_id, accepted)
    with database.reading() as session:
        old = find_absence(session, deletion_id, None)
    reissuer = rotate_and_revoke(settings, database, SigningUse.STATEMENTS)
    digests = []
    for _ in range(2):
        with database.writing() as session:
            digests.append(reissue_absence(session, deletion_id, reissuer))
    with database.reading() as session:
        new = find_absence(session, deletion_id, None)
        assert find_absence(session, deletion_id, None, statement_digest(old)) == old
        assert find_absence(session, deletion_id, None, digests[0]) == new
        with pytest.raises(NotFound):
            find_absence(session, deletion_id, None, "0" * 64)
    assert digests == [statement_digest(new)] * 2
    checked = verify(new.encode(), key_list(settings, database, reissuer))
    assert checked.predicate["replaces"]["statement"] == statement_digest(old)
    assert checked.predicate["subjects"] == predicate_of(old)["subjects"]


@pytest.mark.parametrize("use", list(SigningUse))
def test_all_that_a_revoked_key_signed_is_found(settings: Settings, database: Database, use: SigningUse) -> None:
    first_id, deletion_id = published(settings, database), absent(settings, database)
    key_id = key_id_of(open_signer(settings, database).public_keys[use])
    reissuer = rotate_and_revoke(settings, database, use)
    with database.reading() as session:
        affected = find_affected(session, key_id, reissuer)
        with pytest.raises(NotFound, match="no revoked key"):
            find_affected(session, reissuer.signer.key_id, reissuer)
    assert (affected.certificate_ids, affected.absence_ids) == ([first_id], [deletion_id])
    with database.writing() as session:
        reissue_certificates(session, affected.certificate_ids, reissuer)
        reissue_absence(session, deletion_id, reissuer)
    with database.reading() as session:
        remaining = find_affected(session, key_id, reissuer)
    assert (remaining.certificate_ids, remaining.absence_ids) == ([], [])


def test_a_failed_reissue_changes_nothing(
    settings: Settings, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database's clock is behind the request."""
    old_id = published(settings, database)
    reissuer = rotate_and_revoke(settings, database, SigningUse.STATEMENTS)
    with database.reading() as session:
        before = find_certificate(session, old_id, None)
    early = datetime.fromisoformat(predicate_of(before)["received_at"]) - timedelta(seconds=1)
    monkeypatch.setattr(reissue, "current_time", lambda _: early)
    with pytest.raises(ClockBehind), database.writing() as session:
        reissue_certificates(session, [old_id], reissuer)
    with database.reading() as session:
        assert find_successor(session, old_id, None) is None
        assert find_certificate(session, old_id, None) == before
