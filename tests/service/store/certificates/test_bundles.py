from __future__ import annotations

import json
import uuid

import pytest

from lethe.verify import verify
from service.settings import Settings
from service.store.certificates.bundles import find_absence, find_certificate, find_receipt
from service.store.database import Database
from service.store.errors import NotFound
from service.store.log.sequencing import sequence_entries
from service.store.signing.keys import open_signer
from service.store.tables import Deletion
from tests import samples
from tests.service.routes.test_jobs import publish_sample


def test_a_certificate_is_found_with_its_place_in_the_log(settings: Settings, database: Database) -> None:
    certificate_id = publish_sample(settings, database, samples.register_sample(settings, database), person=1)
    signer = open_signer(settings, database)
    with database.reading() as session:
        first, second = (find_certificate(session, certificate_id, None) for _ in range(2))
        deletion_id = uuid.UUID(verify(first.encode(), signer.public_pem.encode()).predicate["deletion"])
        caller = session.get_one(Deletion, deletion_id).caller
        assert first == second == find_certificate(session, certificate_id, caller)
        with pytest.raises(NotFound, match=f"certificate {certificate_id} not found"):
            find_certificate(session, certificate_id, "somebody else")
        with pytest.raises(NotFound, match="certificate of absence"):
            find_absence(session, deletion_id, None)


def test_a_receipt_is_signed_again_with_the_same_bytes_and_gains_its_place(
    settings: Settings, database: Database
) -> None:
    signer = open_signer(settings, database)
    deletion_id = samples.request_deletion(settings, database, 9).deletion.id
    with database.reading() as session:
        early = find_receipt(session, deletion_id, None, signer)
        assert "log" not in json.loads(early)
    with database.writing() as session:
        sequence_entries(session, signer)
    with database.reading() as session:
        late = find_receipt(session, deletion_id, None, signer)
        with pytest.raises(NotFound):
            find_receipt(session, deletion_id, "somebody else", signer)
    assert json.loads(late)["envelope"] == json.loads(early)["envelope"]
    assert "records it" in verify(late.encode(), signer.public_pem.encode()).checks[-1]
