"""Sections of a certificate about the model: what was removed, the bound, its conditions, and the rungs tried."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from service.printing.figures import bound_figure, records_figure
from service.printing.parts import Facts, Figure, Paragraph, Part, Section, Table, numbered_list
from service.printing.wording import (
    DASH,
    LEVELS,
    REFERENCES,
    RUNGS,
    bound_noun,
    format_count,
    format_nats,
    format_number,
    format_seconds,
    format_settings,
    show_hidden,
)
from vocabulary.bound import Assumption, FreshStarts, Rung
from vocabulary.certificate import CertificatePredicate, CertificateStatement, ModelFacts
from vocabulary.families import is_network

_MAX_COMMITMENTS = 20


def removed_section(statement: CertificateStatement) -> Section:
    predicate = statement.predicate
    parts: list[Part] = [Paragraph(_describe_removal(predicate))]
    if len(statement.subject) == 2:
        parts.append(_records_picture(statement))
    versions = tuple((f"{version_name(item.name)}, SHA-256", item.digest.sha256) for item in statement.subject)
    facts = Facts((*model_facts(predicate.model), *versions, *_data_facts(predicate)))
    return Section("What was removed", (*parts, facts, *_forgotten_parts(predicate)))


def forgotten_count(predicate: CertificatePredicate) -> int | None:
    """Return how many records of this request were forgotten; None for statements that give only the batch's."""
    return None if predicate.forgotten is None else len(predicate.forgotten.commitments)


def bound_section(predicate: CertificatePredicate) -> Section:
    bound = predicate.bound
    noun, participle = ("Estimate", "estimated") if bound.level == "estimated" else ("Bound", "bounded")
    facts = [
        (f"{noun} (epsilon)", format_nats(bound.epsilon)),
        ("Interval, 95 %", " to ".join(map(format_nats, bound.interval)) if bound.interval else None),
        ("Other direction", None if bound.epsilon_reverse is None else format_nats(bound.epsilon_reverse)),
        (f"What is {participle}", None if bound.direction is None else show_hidden(bound.direction)),
        ("Reference", None if bound.reference is None else show_hidden(bound.reference)),
        ("Kind of reference", None if bound.reference_kind is None else REFERENCES[bound.reference_kind]),
        ("Reference to optimum of ELBO", _describe_elbo_distance(bound.elbo_distance)),
        ("Fresh starts", None if bound.fresh_starts is None else _describe_fresh_starts(bound.fresh_starts)),
        ("Level", f"{bound.level}: {LEVELS[bound.level]}"),
        ("Policy", _describe_policy(predicate)),
        ("Records retained", None if bound.n_retained is None else format_number(bound.n_retained)),
    ]
    return Section(
        "Distance to a model that never saw the records",
        (
            Paragraph(f"{_explain_bound(predicate)} {_POLICY_EXPLAINED}"),
            Facts(tuple((name, text) for name, text in facts if text is not None)),
            Table("What the levels mean", ("Level", "Meaning"), tuple(LEVELS.items()), (0.2, 0.8)),
        ),
    )


def bound_picture(predicate: CertificatePredicate) -> Figure:
    bound, limit = predicate.bound, predicate.policy.epsilon
    noun = bound_noun(bound.level)
    description = f"Scale in nats: {format_nats(bound.epsilon)}, {bound.level}; the policy allows {format_nats(limit)}."
    drawing = bound_figure(bound.epsilon, limit, bound.level, bound.interval)
    return Figure(drawing, f"The {noun} and the limit that the policy sets.", description)


def conditions_section(predicate: CertificatePredicate) -> Section:
    noun = bound_noun(predicate.bound.level)
    opening = f"The {noun} depends on conditions. Each was checked: a computed number was compared with its limit."
    header = ("Condition", "Computed", "Limit", "Result")
    rows = tuple(map(_condition_row, predicate.bound.assumptions))
    parts: list[Part] = [Paragraph(opening), Table("Conditions", header, rows, (0.56, 0.16, 0.16, 0.12))]
    if predicate.bound.constants is not None:
        caption = f"Numbers behind the {noun}, under the names that the software uses"
        constants = _flatten(predicate.bound.constants.to_dict())
        parts.append(Table(caption, ("Name", "Value"), constants, (0.4, 0.6)))
    return Section("Conditions checked", tuple(parts))


def rungs_section(predicate: CertificatePredicate) -> Section | None:
    if not predicate.rungs:
        return None
    opening = "Methods are tried from the cheapest to the most certain until one meets the policy. The last one did."
    header = ("Method", "Steps", "Reached", "Level", "Time")
    rows = tuple(map(_rung_row, predicate.rungs))
    total = Paragraph(f"Forgetting took {format_seconds(predicate.seconds)} in all, including the certificate.")
    table = Table("Methods tried, in order", header, rows, (0.44, 0.09, 0.23, 0.13, 0.11))
    return Section("Methods tried", (Paragraph(opening), table, total))


_DIVERGENCE = (
    "The distance is a divergence, measured in nats. At zero, nothing drawn from the model can distinguish it from its "
    "reference, a model without the records. The smaller it is, the less there is to distinguish."
)
_EXCESS = (
    "The model is a network, for which no divergence is bounded. The certificate states an estimate of an excess: how "
    "much farther the model is from what the remaining records support than the best model near it, according to the "
    "network's linear approximation. It is measured in nats; the smaller it is, the less of the records is left."
)
_POLICY_EXPLAINED = (
    "The policy, set before the work began, limits how large it may be and says which level of certainty is required."
)


_STORED_DRAWS = (
    "The reference is the law that the model's stored draws had, whatever it was, with the likelihood of the records "
    "divided out. Whether these draws ever were draws of the model's posterior is not claimed: what the chains took "
    "from the records in another way than by their likelihood would stay. This is a weaker promise than the distance "
    "to the posterior of the remaining records, and the policy of this model asked for no more."
)


def _describe_policy(predicate: CertificatePredicate) -> str:
    policy = predicate.policy
    text = f"at most {format_nats(policy.epsilon)}, at level {policy.level} or stronger"
    if predicate.bound.reference_kind is None or policy.reference is None:
        return text
    return f"{text}; reference: {policy.reference}{' or stronger' if policy.reference == 'stored draws' else ''}"


def _describe_elbo_distance(distance: float | None) -> str | None:
    if distance is None:
        return None
    return (
        f"{format_nats(distance)}, estimated; part of no bound" if distance else "0 nats: the energy is the exact ELBO"
    )


def _describe_fresh_starts(starts: FreshStarts) -> str:
    if starts.lower == 0:
        return f"none of {starts.tried} ended lower"
    return f"{starts.lower} of {starts.tried} ended lower, by up to {format_nats(starts.lowest)}"


def _describe_removal(predicate: CertificatePredicate) -> str:
    removed = format_count(predicate.records.forgotten_in_batch, "record was", "records were")
    text = (
        f"{removed} removed from the model's data and erased. The model was replaced by a version without their "
        f"influence, up to the {bound_noun(predicate.bound.level)} in the next section. Requests that arrive together "
        "are processed in one batch: some of these records may belong to other requests."
    )
    count = forgotten_count(predicate)
    if count is None:
        return text
    return (
        f"{text} {format_count(count, 'of them belongs', 'of them belong')} to this request. The signed file proves "
        "that each was in the data before and is not in the data after."
    )


def _records_picture(statement: CertificateStatement) -> Figure:
    records = statement.predicate.records
    versions = [(version_name(item.name), item.digest.sha256) for item in statement.subject]
    description = f"Two bars: {records.before:,} records before, {records.after:,} after."
    return Figure(records_figure(records.before, records.after, versions), "The model before and after.", description)


def _explain_bound(predicate: CertificatePredicate) -> str:
    if predicate.bound.reference_kind is not None:
        weaker = predicate.bound.reference_kind == "stored draws"
        return f"{_DIVERGENCE} {_STORED_DRAWS}" if weaker else _DIVERGENCE
    network = predicate.model is not None and is_network(predicate.model.family)
    return _EXCESS if network and predicate.bound.level == "estimated" else _DIVERGENCE


def model_facts(model: ModelFacts | None) -> list[tuple[str, str]]:
    if model is None:
        return [("Model", DASH)]
    return [
        ("Model", show_hidden(model.name)),
        ("Model id", show_hidden(model.id)),
        ("Family", f"{show_hidden(model.family)}, {model.posterior or DASH}"),
        ("Settings", format_settings(model.config) or DASH),
    ]


def _data_facts(predicate: CertificatePredicate) -> list[tuple[str, str]]:
    """Return digests of the data sets, and roots where the statement gives them."""
    if predicate.dataset is None:
        return []
    facts = []
    for side, dataset in (("before", predicate.dataset.before), ("after", predicate.dataset.after)):
        facts.append((f"Data {side}, SHA-256", dataset.digest))
        if dataset.root is not None and dataset.records is not None:
            records = format_count(dataset.records, "record", "records")
            facts.append((f"Data {side}, root", f"{dataset.root} over {records}"))
    return facts


def _forgotten_parts(predicate: CertificatePredicate) -> list[Part]:
    """List the first of the forgotten records, by their commitments; the signed file has them all."""
    if predicate.forgotten is None or not predicate.forgotten.commitments:
        return []
    commitments = predicate.forgotten.commitments
    return [numbered_list("Records forgotten", "Commitment to the record", commitments, _MAX_COMMITMENTS)]


def _condition_row(condition: Assumption) -> tuple[str, str, str, str]:
    meaning = show_hidden(condition.meaning or condition.name)
    result = "holds" if condition.holds else "fails"
    return meaning, format_number(condition.value), format_number(condition.limit), result


def _rung_row(rung: Rung) -> tuple[str, str, str, str, str]:
    steps, seconds = format_number(rung.steps), format_seconds(rung.seconds)
    return RUNGS[rung.name], steps, _describe_result(rung), rung.level, seconds


def _describe_result(rung: Rung) -> str:
    if rung.failure:
        return f"failed: {show_hidden(rung.failure)}"
    if rung.epsilon is not None:
        return format_nats(rung.epsilon)
    return f"none; at least {format_nats(rung.at_least)}" if rung.at_least else "none"


def _flatten(constants: Mapping[str, Any], prefix: str = "") -> tuple[tuple[str, str], ...]:
    rows: list[tuple[str, str]] = []
    for name, value in sorted(constants.items()):
        if isinstance(value, dict):
            rows += _flatten(value, f"{prefix}{name}.")
        elif isinstance(value, list):
            rows += _flatten({f"{name}.{index}": item for index, item in enumerate(value)}, prefix)
        else:
            rows.append((show_hidden(prefix + name), format_number(value)))
    return tuple(rows)


def version_name(name: str) -> str:
    """Return the version that a subject `model/ID/version/NUMBER` names."""
    return f"version {show_hidden(name.rpartition('/')[2])}"
