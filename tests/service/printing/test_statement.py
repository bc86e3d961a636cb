from __future__ import annotations

import base64
import hashlib
import json

import pytest

from service.printing.statement import Unprintable, checkpoint_lines, read_bundle
from tests.bundle_schema import check_bundle
from tests.bundles import SIGNER, sign
from tests.service.printing.statements import absence, certificate, digest, receipt, request
from vocabulary.certificate import RECEIPT_TYPE


def test_a_signed_statement_is_read() -> None:
    whole = certificate()
    signed = read_bundle(whole)
    payload = base64.b64decode(json.loads(whole)["envelope"]["payload"])
    assert signed.digest == hashlib.sha256(payload).hexdigest()
    assert signed.key_id == SIGNER.key_id
    subjects = [(subject.name, subject.digest.sha256) for subject in signed.statement.subject]
    assert subjects == [("model/m-1/version/1", digest(1)), ("model/m-1/version/2", digest(2))]
    assert signed.id == "07f5d746-b099-4e94-8f98-b5a81efe3cc8"


def test_the_checkpoint_is_read() -> None:
    log = read_bundle(certificate()).log
    assert log is not None
    assert log.index == 41
    assert checkpoint_lines(log) == ("lethe.example.org/log", "128", base64.b64encode(bytes(32)).decode())


def test_a_receipt_has_the_id_of_its_deletion() -> None:
    signed = read_bundle(receipt(logged=False))
    assert signed.id == request()["deletion"]
    assert signed.log is None


@pytest.mark.parametrize(
    "content",
    ["", "null", "[]", "{}", "[" * 100_000, '{"envelope":{"payload":"!"}}', '{"envelope":{"payload":"e30="}}'],
)
def test_a_file_that_is_not_a_bundle_is_refused(content: str) -> None:
    with pytest.raises(Unprintable):
        read_bundle(content)


def test_a_statement_of_the_wrong_form_is_refused() -> None:
    whole = sign(RECEIPT_TYPE, [{"name": "without a digest"}], request())
    with pytest.raises(Unprintable, match=r"subject\.0\.digest: Field required"):
        read_bundle(whole)


@pytest.mark.parametrize(
    "bundle", [certificate(), certificate(logged=False), receipt(), receipt(logged=False), absence()]
)
def test_the_printed_examples_fit_the_schema(bundle: str) -> None:
    check_bundle(bundle)
