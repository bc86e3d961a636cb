"""Document of a bundle: what is said, first for lawyers and then for statisticians."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from service.printing.certificate_sections import (
    bound_picture,
    bound_section,
    conditions_section,
    forgotten_count,
    removed_section,
    rungs_section,
)
from service.printing.destruction_sections import describe_destroyed, destroyed_section
from service.printing.erasure_sections import erasure_section
from service.printing.evidence_sections import attack_section, best_guess_rate, prediction_section, risk_section
from service.printing.parts import Document, Facts, Figure, Section
from service.printing.request_sections import (
    describe_regulation,
    describe_subjects,
    not_proved_section,
    subjects_section,
    time_facts,
    verification_section,
)
from service.printing.statement import SignedStatement, read_bundle
from service.printing.wording import (
    LEVELS,
    REFERENCES,
    bound_noun,
    format_count,
    format_nats,
    format_number,
    format_percent,
    shorten,
    show_hidden,
)
from vocabulary.bound import Bound
from vocabulary.certificate import (
    AbsencePredicate,
    AbsenceStatement,
    CertificatePredicate,
    CertificateStatement,
    DestructionStatement,
    Policy,
    Predicate,
    ReceiptPredicate,
    ReceiptStatement,
)
from vocabulary.effects import Effects
from vocabulary.levels import CertifiedLevel

_RECEIPT_NOT_PROVED = (
    "A receipt says that the request was received and will not be lost. It does not say that anything has been removed "
    "yet; a certificate will.",
    "It does not show that the commitments belong to the person who made the request. The request came from a caller "
    "that the service had authenticated.",
)
_CLAIMS: Mapping[CertifiedLevel, str] = {
    "proved": "What it may still hold of them is bounded, and every condition of the bound was checked.",
    "estimated": "What it may still hold of them was estimated, with an interval. This is not a proof.",
    "retrained": "It was retrained from scratch without them.",
}


def make_document(bundle: str) -> Document:
    """Return the document of a bundle. Raises Unprintable."""
    signed = read_bundle(bundle)
    match signed.statement:
        case CertificateStatement():
            return _certificate(signed, signed.statement)
        case DestructionStatement():
            return _destruction(signed, signed.statement)
        case ReceiptStatement(predicate=predicate):
            return _receipt(signed, predicate)
        case AbsenceStatement(predicate=predicate):
            return _absence(signed, predicate)


def _certificate(signed: SignedStatement, statement: CertificateStatement) -> Document:
    predicate = statement.predicate
    bound, effects = predicate.bound, predicate.effects or Effects()
    name = shorten(show_hidden(predicate.model.name if predicate.model else "without a name"))
    facts = [
        ("Removed", _describe_removed(predicate, name)),
        (bound_noun(bound.level).capitalize(), _describe_bound(bound.epsilon, predicate.policy)),
        ("Level", f"{bound.level}: {LEVELS[bound.level]}"),
    ]
    if bound.reference_kind is not None:
        facts.append(("Reference", REFERENCES[bound.reference_kind]))
    risk_not_proved = effects.pac_bayes.not_proved if effects.pac_bayes else []
    not_proved = [*bound.not_proved, *risk_not_proved, *predicate.not_proved]
    sections = [
        subjects_section(predicate),
        removed_section(statement),
        erasure_section(predicate.erasure) if predicate.erasure else None,
        bound_section(predicate),
        conditions_section(predicate),
        rungs_section(predicate),
        attack_section(effects),
        prediction_section(effects, retrained=bound.level == "retrained"),
        risk_section(effects),
        not_proved_section(not_proved) if not_proved else None,
    ]
    lead = (
        f"The records of this request were erased, and the model “{name}” was made to forget them. "
        f"{_CLAIMS[bound.level]}{_explain_reference(bound)}{_explain_release(bound.level, effects)}"
    )
    return _document(signed, "Certificate of forgetting", lead, facts, sections, bound_picture(predicate))


def _destruction(signed: SignedStatement, statement: DestructionStatement) -> Document:
    predicate = statement.predicate
    name = shorten(show_hidden(predicate.model.name))
    lead = f"The records of this request were erased, and the model “{name}” was destroyed with all of its files."
    facts = [("Destroyed", describe_destroyed(predicate, name))]
    sections = [
        subjects_section(predicate),
        destroyed_section(statement),
        erasure_section(predicate.erasure),
        not_proved_section(predicate.not_proved),
    ]
    return _document(signed, "Certificate of destruction", lead, facts, sections)


def _receipt(signed: SignedStatement, predicate: ReceiptPredicate) -> Document:
    lead = "This deletion request was received and is stored durably. A certificate follows when it is done."
    sections = [subjects_section(predicate), not_proved_section(_RECEIPT_NOT_PROVED)]
    return _document(signed, "Receipt of a deletion request", lead, [], sections)


def _absence(signed: SignedStatement, predicate: AbsencePredicate) -> Document:
    facts = [
        ("Searched", f"{format_count(predicate.models_in_store, 'model', 'models')} in the store"),
        ("Outcome", show_hidden(predicate.statement or "Nothing was held.")),
    ]
    lead = "The store was searched for what this request names. No model held any of it: nothing had to be forgotten."
    sections = [subjects_section(predicate), not_proved_section(predicate.not_proved)]
    return _document(signed, "Certificate of absence", lead, facts, sections)


def _document(
    signed: SignedStatement,
    title: str,
    lead: str,
    facts: Sequence[tuple[str, str]],
    sections: Iterable[Section | None],
    picture: Figure | None = None,
) -> Document:
    """Add what every document has: the request, how to verify it, numbers of sections, and a footer."""
    verification = ("Verification", "offline, with the signed file and a public key: see the last section")
    summary = Facts((*_request_facts(signed.statement.predicate), *facts, verification))
    present = [section for section in (*sections, verification_section(signed)) if section is not None]
    numbered = tuple(Section(f"{number}. {item.title}", item.parts) for number, item in enumerate(present, start=1))
    return Document(title, lead, summary, picture, numbered, f"{title} {show_hidden(signed.id)}")


def _request_facts(predicate: Predicate) -> tuple[tuple[str, str], ...]:
    return (
        ("Request", show_hidden(predicate.deletion)),
        ("Data subjects", describe_subjects(predicate)),
        ("Regulation", describe_regulation(predicate)),
        *time_facts(predicate),
    )


def _describe_removed(predicate: CertificatePredicate, name: str) -> str:
    records, count = predicate.records, forgotten_count(predicate)
    batch = f"{format_number(records.forgotten_in_batch)} of {format_number(records.before)} records"
    if count is None:
        return f"{batch}, from the model “{name}”"
    return f"{format_count(count, 'record', 'records')}, from the model “{name}”; {batch} in the whole batch"


def _describe_bound(epsilon: float, policy: Policy) -> str:
    limit = format_nats(policy.epsilon)
    if epsilon == 0:
        return f"0 nats: there is nothing to bound; the policy allows {limit}"
    return f"{format_nats(epsilon)}: {format_percent(epsilon / policy.epsilon)} of the {limit} that the policy allows"


def _explain_reference(bound: Bound) -> str:
    if bound.reference_kind != "stored draws":
        return ""
    return (
        " It is compared with its own stored draws, the likelihood of the records divided out, and not with the "
        "posterior of the remaining records: a weaker promise, which the policy chose."
    )


def _explain_release(level: CertifiedLevel, effects: Effects) -> str:
    """Say what the bound means for somebody who sees one draw of the model."""
    if level == "retrained" or not effects.release:
        return ""
    condition = "If the estimate holds," if level == "estimated" else "Within that bound,"
    return (
        f" {condition} somebody who sees one draw from the model and has to say whether it once held the records is "
        f"right at most {best_guess_rate(effects.release[0].advantage)} of the time; guessing gives 50 %."
    )
