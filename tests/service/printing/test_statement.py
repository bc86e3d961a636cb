from __future__ import annotations

import base64
import hashlib
import json

import pytest

from service.printing.statement import Unprintable, read_bundle
from service.store.signing.statements import StatementSigner, bundle
from tests.service.printing.statements import SIGNER, certificate, digest, receipt, request


def test_what_is_signed_is_read() -> None:
    whole = certificate()
    statement = read_bundle(whole)
    payload = base64.b64decode(json.loads(whole)["envelope"]["payload"])
    assert statement.digest == hashlib.sha256(payload).hexdigest()
    assert statement.key_ids == (SIGNER.key_id,)
    assert statement.subjects == (("model/m-1/version/1", digest(1)), ("model/m-1/version/2", digest(2)))
    assert statement.id == "07f5d746-b099-4e94-8f98-b5a81efe3cc8"


def test_the_checkpoint_is_taken_apart() -> None:
    logged = read_bundle(certificate()).logged
    assert logged is not None
    assert logged.index == 41
    assert logged.note == ("lethe.example.org/log", "128", base64.b64encode(bytes(32)).decode())


def test_a_receipt_is_known_by_its_deletion() -> None:
    statement = read_bundle(receipt(logged=False))
    assert statement.id == request()["deletion"]
    assert statement.logged is None


@pytest.mark.parametrize(
    "content",
    ["", "null", "[]", "{}", "[" * 100_000, '{"envelope":{"payload":"!"}}', '{"envelope":{"payload":"e30="}}'],
)
def test_what_is_no_bundle_is_refused(content: str) -> None:
    with pytest.raises(Unprintable):
        read_bundle(content)


def test_a_statement_of_the_wrong_form_is_refused() -> None:
    whole = bundle(StatementSigner(bytes(32)).sign("urn:x", [{"name": "without a digest"}], {}))
    with pytest.raises(Unprintable, match="as it was issued"):
        read_bundle(whole)
