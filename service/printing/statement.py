"""Statement of a bundle, read for printing. Nothing is verified here; `lethe verify` does that."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from pydantic import ValidationError

from vocabulary.certificate import Bundle, LogProof, RequestFacts, Statement, read_statement


class Unprintable(ValueError):
    """The text is not a bundle, or this version cannot print its statement."""


@dataclass(frozen=True)
class SignedStatement:
    statement: Statement
    key_id: str
    digest: str
    """SHA-256 of the signed payload."""
    log: LogProof | None

    @property
    def id(self) -> str:
        """Id of the certificate; receipts and absences have that of their deletion."""
        predicate = self.statement.predicate
        return (
            predicate.certificate or predicate.deletion if isinstance(predicate, RequestFacts) else predicate.deletion
        )


def read_bundle(text: str) -> SignedStatement:
    """Read a bundle. Raises Unprintable."""
    try:
        bundle = Bundle.model_validate_json(text)
        payload = bundle.envelope.decode_payload()
    except ValueError as error:
        raise Unprintable("this is not a Lethe bundle: pass the file as it was issued") from error
    try:
        statement = read_statement(payload)
    except ValidationError as error:
        raise Unprintable(_describe_error(error)) from error
    key_id = bundle.envelope.signatures[0].keyid
    return SignedStatement(statement, key_id, hashlib.sha256(payload).hexdigest(), bundle.log)


def checkpoint_lines(log: LogProof) -> tuple[str, str, str]:
    """Return origin, number of entries and root: the first three lines of a C2SP checkpoint."""
    lines = [*log.checkpoint.split("\n"), "", "", ""]
    return lines[0], lines[1], lines[2]


def _describe_error(error: ValidationError) -> str:
    first = error.errors(include_input=False, include_url=False)[0]
    if first["type"] == "union_tag_invalid":
        return "this version cannot print this kind of statement: use a newer one"
    member = ".".join(str(part) for part in first["loc"])
    return f"the statement is not valid ({member}: {first['msg']})"
