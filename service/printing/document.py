"""From a bundle to a document: the one place that says what is said, to lawyers first and to statisticians after."""

from __future__ import annotations

from typing import Any

from service.printing.certificate_sections import (
    bound_picture,
    bound_section,
    conditions_section,
    forgotten_of_request,
    removed_section,
    rungs_section,
)
from service.printing.evidence_sections import attack_section, right_at_most, risk_section
from service.printing.parts import Document, Facts, Figure, Section
from service.printing.request_sections import (
    asking_section,
    checking_section,
    not_proved_section,
    regulation,
    times,
    who_asked,
)
from service.printing.statement import Statement, Unprintable, read_bundle
from service.printing.wording import LEVELS, counted, nats, number, share, shortened, stated_as, visible

_TO_CHECK = "offline, with the signed file and a public key: see the last section"
_RECEIPT_NOT_PROVED = [
    "A receipt says that the request was received and will not be lost. It does not say that anything was removed "
    "yet: a certificate will.",
    "That the commitments belong to the person who asked is not shown here; the request was made by a caller whom the "
    "service knows.",
]


def document_of(bundle: str) -> Document:
    """Raises Unprintable."""
    statement = read_bundle(bundle)
    if statement.kind not in _KINDS:
        raise Unprintable("the statement is of a kind that this version does not print; use a newer one")
    try:
        return _KINDS[statement.kind](statement)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise Unprintable(f"the statement lacks what its kind must say ({type(error).__name__}: {error})") from error


def _certificate(statement: Statement) -> Document:
    predicate = statement.predicate
    bound, policy = predicate["bound"], predicate["policy"]
    model, effects = predicate.get("model", {}), predicate.get("effects") or {}
    name = shortened(visible(str(model.get("name", "without a name"))))
    rows = [
        ("Request", visible(str(predicate["deletion"]))),
        ("Who asked", who_asked(predicate)),
        ("Regulation", regulation(predicate)),
        *times(predicate),
        ("Removed", _removed_said(predicate, name)),
        (stated_as(bound["level"]).capitalize(), _bound_said(bound["epsilon"], policy["epsilon"])),
        ("Level", f"{bound['level']}: {LEVELS.get(bound['level'], '')}"),
        ("To check", _TO_CHECK),
    ]
    optional = (rungs_section(predicate), attack_section(effects), risk_section(effects))
    not_proved = [*bound.get("not_proved", ()), *(effects.get("pac_bayes") or {}).get("not_proved", ())]
    not_proved += predicate.get("not_proved", ())
    sections = [
        asking_section(predicate),
        removed_section(statement),
        bound_section(predicate),
        conditions_section(predicate),
        *(section for section in optional if section is not None),
        *([not_proved_section(not_proved)] if not_proved else []),
        checking_section(statement),
    ]
    lead = f"{_forgot(name)} {_CLAIMS[bound['level']]}{_in_plain_words(statement)}"
    return _document(statement, "Certificate of forgetting", lead, rows, sections, bound_picture(predicate))


def _removed_said(predicate: dict[str, Any], name: str) -> str:
    records, own = predicate["records"], forgotten_of_request(predicate)
    batch = f"{number(records['forgotten_in_batch'])} of {number(records['before'])} records"
    if own is None:
        return f"{batch}, from the model “{name}”"
    return f"{counted(own, 'record', 'records')}, from the model “{name}”; with its whole batch {batch}"


def _bound_said(epsilon: float, limit: float) -> str:
    if epsilon == 0:
        return f"0 nats: there is nothing to bound; the policy allows {nats(limit)}"
    return f"{nats(epsilon)}: {share(epsilon / limit)} of the {nats(limit)} that the policy allows"


def _forgot(name: str) -> str:
    return f"The records of this request were erased, and the model “{name}” was made to forget them."


_CLAIMS = {
    "proved": "How much of them it may still hold was bounded, and every condition of the bound was checked.",
    "estimated": "How much of them it may still hold was estimated, with an interval. This is not a proof.",
    "retrained": "It was trained again from scratch, without them.",
}

_THEN = {"proved": "Within that bound,", "estimated": "If the estimate holds,"}


def _in_plain_words(statement: Statement) -> str:
    """What the bound comes to for somebody who is shown one draw of the model."""
    releases = (statement.predicate.get("effects") or {}).get("release") or []
    if statement.predicate["bound"]["level"] not in _THEN or not releases:
        return ""
    then, at_most = _THEN[statement.predicate["bound"]["level"]], right_at_most(releases[0]["advantage"])
    return (
        f" {then} somebody who is shown one draw from the model and has to say whether it once held the records is "
        f"right at most {at_most} of the time; tossing a coin gives 50 %."
    )


def _receipt(statement: Statement) -> Document:
    predicate = statement.predicate
    rows = [
        ("Request", visible(str(predicate["deletion"]))),
        ("Who asked", who_asked(predicate)),
        ("Regulation", regulation(predicate)),
        *times(predicate),
        ("To check", _TO_CHECK),
    ]
    lead = "This request to be forgotten was received and is stored durably. A certificate follows when it is done."
    sections = [asking_section(predicate), not_proved_section(_RECEIPT_NOT_PROVED), checking_section(statement)]
    return _document(statement, "Receipt of a deletion request", lead, rows, sections)


def _absence(statement: Statement) -> Document:
    predicate = statement.predicate
    models = counted(predicate["models_in_store"], "model", "models")
    stated = visible(str(predicate.get("statement") or "Nothing was held."))
    rows = [
        ("Request", visible(str(predicate["deletion"]))),
        ("Who asked", who_asked(predicate)),
        ("Regulation", regulation(predicate)),
        *times(predicate),
        ("Searched", f"{models} in the store"),
        ("Found", stated),
        ("To check", _TO_CHECK),
    ]
    lead = (
        "The store was searched for what this request names, and no model held any of it: nothing had to be forgotten."
    )
    sections = [
        asking_section(predicate),
        not_proved_section(list(predicate.get("not_proved", ()))),
        checking_section(statement),
    ]
    return _document(statement, "Certificate of absence", lead, rows, sections)


def _document(
    statement: Statement,
    title: str,
    lead: str,
    rows: list[tuple[str, str]],
    sections: list[Section],
    picture: Figure | None = None,
) -> Document:
    numbered = tuple(Section(f"{place}. {one.title}", one.parts) for place, one in enumerate(sections, start=1))
    return Document(title, lead, Facts(tuple(rows)), picture, numbered, f"{title} {visible(statement.id)}")


_KINDS = {
    "urn:lethe:certificate:v1": _certificate,
    "urn:lethe:receipt:v1": _receipt,
    "urn:lethe:absence:v1": _absence,
}
