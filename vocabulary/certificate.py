"""Receipts, and certificates of absence, forgetting and destruction, from the predicate out to the downloaded bundle.

Every member that Lethe signs is described here. `docs/reference/certificate.md` and `certificate.schema.json` are
generated from these descriptions (`vocabulary.certificate_schema`).
"""

from __future__ import annotations

import base64
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, JsonValue, TypeAdapter, model_validator

from vocabulary.bound import Bound, Rung
from vocabulary.effects import Effects
from vocabulary.levels import CertifiedLevel
from vocabulary.posterior_kinds import PosteriorKind
from vocabulary.references import Reference
from vocabulary.rungs import RungName
from vocabulary.signed_model import Count, Earlier, OrderedModel, Real, Sha256, SignedModel, Timestamp

BUNDLE_FORMAT = "lethe-bundle-v1"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
RECEIPT_TYPE = "urn:lethe:receipt:v1"
ABSENCE_TYPE = "urn:lethe:absence:v1"
CERTIFICATE_TYPE = "urn:lethe:certificate:v1"
DESTRUCTION_TYPE = "urn:lethe:destruction:v1"

Uuid = Annotated[str, Field(json_schema_extra={"format": "uuid"})]


class NamedRecord(SignedModel):
    """A record that a request names by number."""

    model: Uuid = Field(description="Id of the model.")
    record: Count = Field(description="Number of the record in that model.")


DeletionId = Annotated[Uuid, Field(description="Id of the deletion request.")]
Regulation = Annotated[str | Earlier, Field(description="`gdpr` or `ccpa`.")]
Commitments = Annotated[
    list[Sha256],
    Field(
        description="Commitments to the people whose records are to be deleted, ascending. Each is a keyed hash; the "
        "key is destroyed once no record of the person is left."
    ),
]
ReceivedAt = Annotated[Timestamp, Field(description="When the request was received.")]
NamedRecords = Annotated[
    list[NamedRecord], Field(description="Records that the request names by number; absent if there are none.")
]


class LogPromise(SignedModel):
    """Promise that the request will be in the log."""

    leaf: Sha256 = Field(description="Leaf hash of the entry to come.")
    origin: str = Field(description="Name of the log.")
    within_seconds: Count = Field(description="Seconds after receipt by which a checkpoint covers it.")


class LogName(SignedModel):
    """The log that records the statement."""

    origin: str = Field(description="Name of the log.")


class Replaced(SignedModel):
    """The certificate in whose stead this one was issued. Both state the same facts."""

    certificate: Uuid = Field(description="Id of that certificate; of an absence, the id of its deletion.")
    reason: str = Field(description="Why it was replaced, in a sentence.")
    statement: Sha256 = Field(description="SHA-256 of the statement in it.")


InLog = Annotated[LogName | Earlier, Field(description="The log that records it.")]
Replaces = Annotated[
    Replaced | Earlier,
    Field(description="What this one was issued in the stead of, because a key was revoked; absent otherwise."),
]


class ReceiptPredicate(SignedModel):
    """Predicate of a receipt: the request is stored durably."""

    may_be_absent = frozenset({"records"})

    deletion: DeletionId
    log: LogPromise | Earlier = Field(default=None, description="Promise of an entry in the log.")
    received_at: ReceivedAt
    records: NamedRecords = Field(default=[])
    regulation: Regulation = None
    subjects: Commitments = Field(default=[])


class Software(SignedModel):
    """The software that signed the statement."""

    name: str = Field(description="`lethe`.")
    sources_sha256: Sha256 = Field(
        description="SHA-256 of the lines `<SHA-256 of the file>  <path>` of all its sources, sorted by path."
    )
    version: str = Field(description="Its version.")


class AbsencePredicate(SignedModel):
    """Predicate of a certificate of absence: no model held what the request names."""

    may_be_absent = frozenset({"log", "models", "records", "replaces"})

    deletion: DeletionId
    issued_at: Timestamp = Field(description="When the statement was signed.")
    log: InLog = None
    models: list[Uuid] = Field(
        default=[], description="Ids of the models that were searched, ascending; absent if all models were searched."
    )
    models_in_store: Count = Field(description="Number of models that were searched.")
    not_proved: list[str] = Field(default=[], description="What the statement does not show, in sentences.")
    received_at: ReceivedAt
    records: NamedRecords = Field(default=[])
    regulation: Regulation = None
    replaces: Replaces = None
    software: Software | Earlier = Field(default=None, description="The software that signed it.")
    statement: str | None = Field(default=None, description="The outcome in a sentence.")
    subjects: Commitments = Field(default=[])


class ModelFacts(SignedModel):
    """The model that forgot."""

    id: Uuid = Field(description="Id of the model.")
    name: str = Field(description="Its name, as registered.")
    family: str = Field(description="Its family, for example `gaussian-mixture`.")
    posterior: PosteriorKind | Earlier = Field(default=None, description="What its file holds.")
    config: dict[str, JsonValue] = Field(default={}, description="Configuration of the family, as registered.")


class RecordCounts(SignedModel):
    """Numbers of records. `before` minus `after` is `forgotten_in_batch`."""

    before: Count = Field(description="Records of the version before.")
    after: Count = Field(description="Records of the version after.")
    forgotten_in_batch: Count = Field(description="Records that the whole batch forgot, for all of its requests.")


class DatasetFacts(SignedModel):
    """A data set, by its file and by its Merkle tree."""

    digest: Sha256 = Field(description="SHA-256 of the data set's file.")
    root: Sha256 | Earlier = Field(default=None, description="Root of the Merkle tree over its record commitments.")
    records: Count | Earlier = Field(default=None, description="Number of leaves of that tree.")

    @model_validator(mode="before")
    @classmethod
    def _read_bare_digest(cls, value: Any) -> Any:
        """Read an earlier form, which gave the digest alone."""
        return {"digest": value} if isinstance(value, str) else value


class DatasetChange(SignedModel):
    """The data set before and after."""

    before: DatasetFacts = Field(description="The version before forgetting.")
    after: DatasetFacts = Field(description="The version after forgetting.")


class PresenceProof(SignedModel):
    """Proof that the forgotten records were in the data set before."""

    places: list[Count] = Field(description="Positions of the commitments among the sorted leaves before.")
    proof: list[Sha256] = Field(description="Hashes that lead from these leaves to the root before.")


class Neighbour(SignedModel):
    """A leaf of the data set after that stands beside a forgotten record's gap."""

    commitment: Sha256 = Field(description="The commitment at that position.")
    position: Count = Field(alias="place", description="Its position among the sorted leaves after.")


class AbsenceProof(SignedModel):
    """Proof that the forgotten records are not in the data set after."""

    neighbours: list[Neighbour] = Field(
        description="The leaves on both sides of each place that a forgotten record would have, ascending."
    )
    proof: list[Sha256] = Field(description="Hashes that lead from these leaves to the root after.")


class ForgottenProof(OrderedModel):
    """The records of this request that were forgotten, with the proof."""

    after: AbsenceProof | Earlier = Field(default=None, description="They are not in the data set after.")
    before: PresenceProof | Earlier = Field(default=None, description="They were in the data set before.")
    commitments: list[Sha256] = Field(description="Commitments to the records, ascending and distinct.")


class Policy(SignedModel):
    """What the published version had to meet."""

    may_be_absent = frozenset({"reference"})

    epsilon: Real = Field(gt=0, description="Largest epsilon allowed, in nats.")
    level: CertifiedLevel = Field(description="Weakest level allowed.")
    rungs: list[RungName] = Field(default=[], description="Ways of forgetting that were allowed, in order.")
    seconds: Real | None = Field(default=None, description="No rung was begun after this time; null for no limit.")
    reference: Reference | Earlier = Field(
        default=None, description="Weakest reference allowed for a sample set; absent in earlier certificates."
    )


class DestroyedFile(SignedModel):
    """A file of the model that was destroyed."""

    digest: Sha256 = Field(description="SHA-256 of the file.")
    kind: str = Field(
        description="What it held: `dataset`, `posterior`, `never_seen`, `member` of an ensemble, "
        "or `orphan` if unknown."
    )


class ScheduledFile(SignedModel):
    """A file of the model that is still to be destroyed."""

    at: Timestamp = Field(description="When it is due.")
    digest: Sha256 = Field(description="SHA-256 of the file.")
    kind: str = Field(description="What it holds, as above.")


class ErasureFacts(SignedModel):
    """Files of the model, other than those of the version after, that held the forgotten records or their influence.

    The log has an entry `artifact.destroyed` with the digest of each that is gone.
    """

    destroyed: list[DestroyedFile] = Field(
        description="Destroyed before the signature, since the version before was published; ascending by digest."
    )
    scheduled: list[ScheduledFile] = Field(description="To be destroyed after the signature; ascending by digest.")


class BatchFacts(SignedModel):
    """Members that all certificates of a batch share."""

    may_be_absent = frozenset({"erasure"})

    model: ModelFacts | Earlier = Field(default=None, description="The model that forgot.")
    records: RecordCounts = Field(description="Numbers of records before and after.")
    dataset: DatasetChange | Earlier = Field(default=None, description="The data set before and after.")
    policy: Policy = Field(
        description="What the version had to meet: the strictest of the model's policy and those frozen at receipt."
    )
    bound: Bound = Field(description="How close the version is to one that never saw the records.")
    rungs: list[Rung] = Field(
        default=[], description="Ways of forgetting that were tried, in order; the last succeeded."
    )
    effects: Effects | Earlier = Field(default=None, description="Evidence beside the bound.")
    seconds: Real | Earlier = Field(default=None, description="Time that forgetting took, its bound included.")
    erasure: ErasureFacts | Earlier = Field(
        default=None, description="Other files that held the forgotten records or their influence."
    )
    not_proved: list[str] = Field(default=[], description="What the certificate does not show, in sentences.")
    software: Software | Earlier = Field(default=None, description="The software that issued the certificate.")


class RequestFacts(SignedModel):
    """Members about the deletion request and its certificate."""

    may_be_absent = frozenset({"log", "replaces"})

    certificate: Uuid | Earlier = Field(default=None, description="Id of the certificate.")
    deletion: DeletionId
    due_at: Timestamp | Earlier = Field(default=None, description="When the regulation required it at the latest.")
    issued_at: Timestamp = Field(description="When the certificate was signed.")
    log: InLog = None
    named_records: list[Count] = Field(
        default=[], description="Numbers of this model's records that the request named, ascending."
    )
    received_at: ReceivedAt
    regulation: Regulation = None
    replaces: Replaces = None
    subjects: Commitments = Field(default=[])


class DeletionFacts(RequestFacts):
    """Members that are a certificate's own."""

    forgotten: ForgottenProof | Earlier = Field(
        default=None, description="The records of this request that were forgotten, with the proof."
    )


class CertificatePredicate(BatchFacts, DeletionFacts):
    """Predicate of a certificate: one deletion in one model."""

    may_be_absent = BatchFacts.may_be_absent | DeletionFacts.may_be_absent


class DestroyedDataset(SignedModel):
    """The data set of a destroyed model. None came after it."""

    before: DatasetFacts = Field(description="The data set of the last version.")


class DestroyedProof(OrderedModel):
    """The records of this request that were destroyed, with the proof that they were in the data set."""

    before: PresenceProof = Field(description="They were in the data set before.")
    commitments: list[Sha256] = Field(description="Commitments to the records, ascending and distinct.")


class DestructionFacts(SignedModel):
    """Members that all certificates of one destruction share."""

    model: ModelFacts = Field(description="The model that was destroyed.")
    records: RecordCounts = Field(
        description="Numbers of records: `after` is 0, and `forgotten_in_batch` counts all that the model still had."
    )
    dataset: DestroyedDataset = Field(description="The data set of the last version.")
    erasure: ErasureFacts = Field(description="All files of the model.")
    statement: str = Field(description="Why the model was destroyed, in sentences.")
    not_proved: list[str] = Field(description="What the certificate does not show, in sentences.")
    software: Software = Field(description="The software that issued the certificate.")


class DestructionPredicate(DestructionFacts, RequestFacts):
    """Predicate of a certificate of destruction: one deletion in a model that ended with it.

    It has no bound, since no version of the model came after.
    """

    may_be_absent = DestructionFacts.may_be_absent | RequestFacts.may_be_absent

    forgotten: DestroyedProof = Field(description="The records of this request that were destroyed, with the proof.")


class Digest(SignedModel):
    """Digest of a subject."""

    sha256: Sha256 = Field(description="SHA-256, as lower-case hex.")


class Subject(SignedModel):
    """What a statement is about."""

    digest: Digest = Field(
        description="Of a deletion: SHA-256 of `subjects`, as listed, joined by line feeds. Of a model version: "
        "SHA-256 of its posterior file."
    )
    name: str = Field(description="`deletion/ID`, or `model/ID/version/NUMBER`.")


StatementType = Annotated[
    Literal["https://in-toto.io/Statement/v1"], Field(alias="_type", description="The in-toto statement type.")
]
Subjects = Annotated[
    list[Subject],
    Field(
        description="A receipt and an absence name the deletion. A certificate names the model version before and the "
        "one after, in this order. A certificate of destruction names the last version."
    ),
]


class ReceiptStatement(OrderedModel):
    """In-toto statement of a receipt."""

    type: StatementType
    predicate: ReceiptPredicate = Field(description="What is stated.")
    predicateType: Literal["urn:lethe:receipt:v1"] = Field(description="The kind of statement.")  # noqa: N815
    subject: Subjects


class AbsenceStatement(OrderedModel):
    """In-toto statement of a certificate of absence."""

    type: StatementType
    predicate: AbsencePredicate = Field(description="What is stated.")
    predicateType: Literal["urn:lethe:absence:v1"] = Field(description="The kind of statement.")  # noqa: N815
    subject: Subjects


class CertificateStatement(SignedModel):
    """In-toto statement of a certificate."""

    type: StatementType
    predicate: CertificatePredicate = Field(description="What is stated.")
    predicateType: Literal["urn:lethe:certificate:v1"] = Field(description="The kind of statement.")  # noqa: N815
    subject: Subjects


class DestructionStatement(SignedModel):
    """In-toto statement of a certificate of destruction."""

    type: StatementType
    predicate: DestructionPredicate = Field(description="What is stated.")
    predicateType: Literal["urn:lethe:destruction:v1"] = Field(description="The kind of statement.")  # noqa: N815
    subject: Subjects


Predicate = ReceiptPredicate | AbsencePredicate | CertificatePredicate | DestructionPredicate
Statement = ReceiptStatement | AbsenceStatement | CertificateStatement | DestructionStatement
_STATEMENT: TypeAdapter[Statement] = TypeAdapter(Annotated[Statement, Field(discriminator="predicateType")])


def read_statement(payload: bytes) -> Statement:
    """Read the payload of an envelope. Raises pydantic's ValidationError."""
    return _STATEMENT.validate_json(payload)


_EXACT = ConfigDict(extra="forbid")


class Signature(SignedModel):
    """Signature of an envelope. It has no other members."""

    model_config = _EXACT

    keyid: Sha256 = Field(description="SHA-256 of the raw Ed25519 public key.")
    sig: str = Field(
        description="Base64 of the Ed25519 signature over the pre-authentication encoding.",
        json_schema_extra={"contentEncoding": "base64"},
    )


class Envelope(SignedModel):
    """DSSE envelope around a statement. It has no other members."""

    model_config = _EXACT

    payload: str = Field(
        description="Base64 of the statement, which is canonical JSON.",
        json_schema_extra={"contentEncoding": "base64", "contentMediaType": PAYLOAD_TYPE},
    )
    payloadType: Literal["application/vnd.in-toto+json"] = Field(description="Type of the payload.")  # noqa: N815
    signatures: list[Signature] = Field(min_length=1, max_length=1, description="Exactly one signature.")

    def decode_payload(self) -> bytes:
        """Return the statement's bytes. Raises ValueError if the payload is not base64."""
        return base64.b64decode(self.payload, validate=True)


class LogProof(SignedModel):
    """Entry of a statement in the log, with the proof that it is there. It has no other members."""

    model_config = _EXACT

    checkpoint: str = Field(description="Signed checkpoint of the log, a C2SP signed note.")
    entry: str = Field(description="The entry, canonical JSON. Its bytes are the leaf of the log's Merkle tree.")
    index: Count = Field(description="Position of the entry in the log, from 0.")
    proof: list[Sha256] = Field(description="Inclusion proof (RFC 9162, 2.1.3), from the leaf's sibling upwards.")


class Bundle(OrderedModel):
    """The file that people download. It has no other members."""

    model_config = _EXACT

    may_be_absent = frozenset({"log"})

    envelope: Envelope = Field(description="The signed statement.")
    format: Literal["lethe-bundle-v1"] = Field(description="Format of the file.")
    log: LogProof | Earlier = Field(
        default=None,
        description="Its place in the log. Absent in a receipt or an absence downloaded before the log had it.",
    )
