"""What a certificate says of the model: what was removed, how close it came, what was checked, what was tried."""

from __future__ import annotations

from typing import Any

from service.printing.figures import bound_figure, records_figure
from service.printing.parts import Facts, Figure, Paragraph, Part, Section, Table, numbered_list
from service.printing.statement import Statement
from service.printing.wording import (
    LEVELS,
    NOTHING,
    RUNGS,
    counted,
    nats,
    number,
    plain_json,
    seconds,
    stated_as,
    visible,
)
from vocabulary.families import is_network


def removed_section(statement: Statement) -> Section:
    predicate = statement.predicate
    records, model = predicate["records"], predicate.get("model", {})
    gone, own = counted(records["forgotten_in_batch"], "record was", "records were"), forgotten_of_request(predicate)
    opening = (
        f"{gone} taken out of the model's data and erased, and the model was replaced by a version without their "
        f"influence, up to the {stated_as(predicate['bound']['level'])} of the next section. Requests that arrive "
        "together are served in one batch: these records may belong to other requests as well as to this one."
    )
    if own is not None:
        opening += (
            f" {counted(own, 'of them is', 'of them are')} this request's, and the signed file carries the proof "
        )
        opening += "that each was among the records before and is not among those after."
    parts: list[Part] = [Paragraph(opening)]
    if len(statement.subjects) == 2:
        named = [(_version(name), digest) for name, digest in statement.subjects]
        drawing = records_figure(records["before"], records["after"], named)
        said = f"{records['before']:,} records before, {records['after']:,} after"
        parts.append(Figure(drawing, "The model before and after.", f"Two bars: {said}."))
    about = [
        ("Model", visible(str(model.get("name", NOTHING)))),
        ("Model id", visible(str(model.get("id", NOTHING)))),
        ("Family", f"{visible(str(model.get('family', NOTHING)))}, {visible(str(model.get('posterior', NOTHING)))}"),
        ("Settings", plain_json(model.get("config") or {}) or NOTHING),
    ]
    digests = [(f"{_version(name)}, SHA-256", digest) for name, digest in statement.subjects]
    facts = Facts((*about, *digests, *_data_facts(predicate)))
    return Section("What was removed", (*parts, facts, *_forgotten_parts(predicate)))


def forgotten_of_request(predicate: dict[str, Any]) -> int | None:
    """How many records of this very request were forgotten; older statements tell of the whole batch only."""
    commitments = (predicate.get("forgotten") or {}).get("commitments")
    return None if commitments is None else len(commitments)


def bound_section(predicate: dict[str, Any]) -> Section:
    bound, policy = predicate["bound"], predicate["policy"]
    epsilon, level, interval = bound["epsilon"], bound["level"], bound.get("interval")
    called, participle = ("Estimate", "estimated") if level == "estimated" else ("Bound", "bounded")
    facts = [
        (f"{called} (epsilon)", nats(epsilon)),
        ("Interval, 95 %", f"{nats(interval[0])} to {nats(interval[1])}" if interval else None),
        ("Other direction", nats(bound["epsilon_reverse"]) if bound.get("epsilon_reverse") is not None else None),
        (f"What is {participle}", visible(bound["direction"]) if "direction" in bound else None),
        ("Reference", visible(bound["reference"]) if "reference" in bound else None),
        ("Level", f"{level}: {LEVELS.get(level, visible(level))}"),
        ("Policy", f"at most {nats(policy['epsilon'])}, level {policy['level']} or stronger"),
        ("Records retained", number(bound["n_retained"]) if "n_retained" in bound else None),
    ]
    stated = tuple((name, said) for name, said in facts if said is not None)
    return Section(
        "How close the model is to one that never saw them",
        (
            Paragraph(f"{_meaning(predicate)} {_POLICY_IN_PLAIN_WORDS}"),
            Facts(stated),
            Table("What the levels mean", ("Level", "Meaning"), tuple(LEVELS.items()), (0.2, 0.8)),
        ),
    )


def bound_picture(predicate: dict[str, Any]) -> Figure:
    bound, limit = predicate["bound"], predicate["policy"]["epsilon"]
    drawing = bound_figure(bound["epsilon"], limit, bound["level"], bound.get("interval"))
    stated = f"{nats(bound['epsilon'])}, {bound['level']}; the policy allows {nats(limit)}"
    caption = f"The {stated_as(bound['level'])} beside what the policy allows."
    return Figure(drawing, caption, f"A scale in nats: {stated}.")


def conditions_section(predicate: dict[str, Any]) -> Section:
    bound = predicate["bound"]
    opening = (
        f"The {stated_as(bound['level'])} rests on conditions. Each was checked, with the number that was computed and "
        "its limit."
    )
    rows = tuple(
        (visible(str(one.get("meaning", one.get("name", NOTHING)))), number(one.get("value")), number(one.get("limit")),
         "holds" if one["holds"] else "fails")
        for one in bound["assumptions"]
    )  # fmt: skip
    header = ("Condition", "Computed", "Limit", "Result")
    conditions = Table("Each condition with its number", header, rows, (0.56, 0.16, 0.16, 0.12))
    parts: list[Part] = [Paragraph(opening), conditions]
    if constants := _flat(bound.get("constants") or {}):
        caption = f"The numbers behind the {stated_as(bound['level'])}, by the names that the software uses"
        parts.append(Table(caption, ("Name", "Value"), constants, (0.4, 0.6)))
    return Section("Conditions checked", tuple(parts))


def rungs_section(predicate: dict[str, Any]) -> Section | None:
    if not (rungs := predicate.get("rungs")):
        return None
    opening = "Ways to forget are tried from the cheapest to the surest, until one meets the policy; the last one did."
    rows = tuple(
        (RUNGS.get(rung["name"], visible(rung["name"])), number(rung.get("steps")), _reached(rung),
         rung.get("level", NOTHING), seconds(rung.get("seconds")))
        for rung in rungs
    )  # fmt: skip
    header = ("Way", "Steps", "Reached", "Level", "Time")
    told = Paragraph(f"All of it, certificate included, took {seconds(predicate.get('seconds'))}.")
    return Section(
        "Ways that were tried",
        (Paragraph(opening), Table("Ways tried, in order", header, rows, (0.44, 0.09, 0.23, 0.13, 0.11)), told),
    )


_MOST_COMMITMENTS = 20
_DIVERGENCE = (
    "A divergence of nothing would mean that the model cannot be told from its reference, a model without the records, "
    "by anything drawn from it. The divergence is measured in nats; the smaller, the less there is to tell."
)
_EXCESS = (
    "The model is a network, of which no divergence is bounded. What is stated is an estimate of an excess: how much "
    "farther the model is from what the remaining records support than the best one near it would be, as the network's "
    "linear approximation has it. The excess is measured in nats; the smaller, the less of the records is left."
)
_POLICY_IN_PLAIN_WORDS = (
    "The policy, fixed before the work began, says how large it may be and how surely that must be known."
)


def _meaning(predicate: dict[str, Any]) -> str:
    network = is_network(str(predicate.get("model", {}).get("family")))
    return _EXCESS if network and predicate["bound"]["level"] == "estimated" else _DIVERGENCE


def _reached(rung: dict[str, Any]) -> str:
    if rung.get("failure"):
        return f"failed: {visible(rung['failure'])}"
    if rung.get("epsilon") is not None:
        return nats(rung["epsilon"])
    return f"none; at least {nats(rung['at_least'])}" if rung.get("at_least") else "none"


def _data_facts(predicate: dict[str, Any]) -> list[tuple[str, str]]:
    """Digests of the data sets; newer statements give each a root and a count too."""
    facts = []
    for side, stated in sorted((predicate.get("dataset") or {}).items(), reverse=True):
        digest = stated.get("digest") if isinstance(stated, dict) else stated
        facts.append((f"Data {side}, SHA-256", visible(str(digest))))
        if isinstance(stated, dict) and stated.get("root"):
            over = counted(stated["records"], "record", "records")
            facts.append((f"Data {side}, root", f"{visible(str(stated['root']))} over {over}"))
    return facts


def _forgotten_parts(predicate: dict[str, Any]) -> list[Part]:
    """Which records, by their commitments: the first of many, since the file has them all."""
    commitments = (predicate.get("forgotten") or {}).get("commitments") or []
    if not commitments:
        return []
    shown = [visible(str(commitment)) for commitment in commitments]
    return [numbered_list("Records forgotten", "Commitment to the record", shown, _MOST_COMMITMENTS)]


def _flat(constants: dict[str, Any], within: str = "") -> tuple[tuple[str, str], ...]:
    rows: list[tuple[str, str]] = []
    for name, value in sorted(constants.items()):
        rows += _flat(value, f"{name}.") if isinstance(value, dict) else [(visible(within + name), number(value))]
    return tuple(rows)


def _version(name: str) -> str:
    return f"version {visible(name.rpartition('/')[2])}"
