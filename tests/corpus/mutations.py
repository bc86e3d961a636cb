"""Seeded mutations of bundles, key lists and later proofs: changed after signing, or signed as they are."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

from service.store.signing.statements import StatementSigner
from tests.bundles import SIGNER, key_list
from tests.corpus.cases import Case
from tests.corpus.drafts import KINDS, Draft, certificate, receipt, write_json
from tests.corpus.genuine import BEFORE_REVOCATION, REVOCATION, SUCCESSOR
from tests.corpus.values import TIMES, WRONG, edited
from tests.lethe.verify.test_checkpoints import FIRST, SECOND

ELSEWHERE = StatementSigner(bytes(range(32)), bytes(range(32, 64)), "elsewhere.example/log")
SWAPPED = StatementSigner(bytes(range(32, 64)), bytes(range(32)))
SWAPPED_PARTS = (
    ("", "envelope"),
    ("", "log"),
    ("envelope", "signatures"),
    ("envelope", "payload"),
    ("log", "entry"),
    ("log", "proof"),
    ("log", "checkpoint"),
    ("log", "index"),
)
RAW_EDITS: tuple[tuple[bytes, bytes], ...] = (
    (b'"seconds":0.75', b'"seconds":1e400'),
    (b'"seconds":0.75', b'"seconds":-1e400'),
    (b'"seconds":0.75', b'"seconds":NaN'),
    (b'"seconds":0.75', b'"seconds":Infinity'),
    (b'"seconds":0.75', b'"seconds":-0'),
    (b'"seconds":0.75', b'"seconds":01'),
    (b'"seconds":0.75', b'"seconds":1.'),
    (b'"seconds":0.75', b'"seconds":+1'),
    (b'"seconds":0.75', b'"seconds":0x10'),
    (b'"seconds":0.75', b'"seconds":' + b"9" * 5000),
    (b'"seconds":0.75', b'"seconds":0.' + b"9" * 5000),
    (b'"seconds":0.75', b'"seconds":"\\ud800"'),
    (b'"seconds":0.75', b'"seconds":"\\ud83d\\ude00"'),
    (b'"seconds":0.75', b'"seconds":"\\ude00\\ud83d"'),
    (b'"seconds":0.75', b'"\\udc00":1'),
    (b'"seconds":0.75', b'"seconds":"\xff"'),
    (b'"seconds":0.75', b'"seconds":"\xed\xa0\x80"'),
    (b'"seconds":0.75', b'"seconds":"\t"'),
    (b'"seconds":0.75', b'"seconds":"\\x"'),
    (b'"seconds":0.75', b'"seconds":1,"seconds":1'),
    (b'"seconds":0.75', b'"seconds":1,"\\u0073econds":2'),
    (b'"seconds":0.75', b'"__proto__":1,"__proto__":2'),
    (b'"seconds":0.75', b'"__proto__":{"bound":1}'),
    (b'"seconds":0.75', b'"constructor":{"prototype":1}'),
    (b'"seconds":0.75', b'"seconds":' + b"[" * 60 + b"]" * 60),
    (b'"seconds":0.75', b'"seconds":' + b"[" * 62 + b"]" * 62),
    (b'"seconds":0.75', b'"seconds":' + b"[" * 63 + b"]" * 63),
    (b'"seconds":0.75', b'"seconds":' + b"[" * 100_000),
    (b'"seconds":0.75', b'"seconds":' + b"[" * 100_000 + b"]" * 100_000),
    (b'"seconds":0.75', b'"seconds":"' + b"[" * 1000 + b'"'),
    (b'"before":40', b'"before":40.0'),
    (b'"before":40', b'"before":4e1'),
    (b'"before":40', b'"before":40.00000000000000001'),
    (b'"before":40', b'"before":40.1'),
    (b'"before":40', b'"before":"40"'),
    (b'"before":40', b'"before":-40'),
    (b'"holds":true', b'"holds":1'),
    (b'"holds":true', b'"holds":"true"'),
    (b'"epsilon":1e-9', b'"epsilon":1.0000000000000000001e-9'),
    (b'"epsilon":1e-9', b'"epsilon":-0.0'),
    (b'{"_type"', b' \r\n\t{"_type"'),
    (b'{"_type"', b'\xef\xbb\xbf{"_type"'),
    (b'{"_type"', b'\x0b{"_type"'),
    (b'{"_type"', b'{} {"_type"'),
    (b'"_type":', b'"_type" : '),
    (b'"_type":', b'"\\u005ftype":'),
    (b'"localhost/lethe"', b'"localhost\\/lethe"'),
    (b'"certificate":"c-1"', b'"certificate":"c\\u002d1"'),
)


def mutated_cases(count: int = 1_000, seed: int = 16) -> Iterator[Case]:
    """Yield `count` cases, the same for the same seed, taking turns among the ways to mutate."""
    draw = random.Random(seed)
    yield from itertools.islice(_take_turns([way(draw) for way in WAYS]), count)


def _take_turns(ways: list[Iterator[Case]]) -> Iterator[Case]:
    while ways:
        for way in list(ways):
            case = next(way, None)
            if case is None:
                ways.remove(way)
            else:
                yield case


def _any_draft(draw: random.Random) -> tuple[str, Draft]:
    name = draw.choice(list(KINDS))
    return name, KINDS[name]().change(index=draw.randrange(9))


def _bytes(draw: random.Random) -> Iterator[Case]:
    """Bytes of the bundle changed, put in, left out, cut off."""
    while True:
        name, draft = _any_draft(draw)
        whole = draft.write()
        at = draw.randrange(len(whole))
        head, byte, tail = whole[:at], whole[at : at + 1], whole[at + 1 :]
        way, content = draw.choice(
            [
                ("flipped", head + bytes([byte[0] ^ 1 << draw.randrange(8)]) + tail),
                ("inserted", head + draw.choice([b" ", b"0", b"a", b'"', b"\x00", b"\n", b"="]) + byte + tail),
                ("removed", head + tail),
                ("repeated", head + byte + byte + tail),
                ("cut", head),
            ]
        )
        if content != whole:
            yield Case(f"bytes/{way}/{name}/{at}", content, key_list())


def _outer_members(draw: random.Random) -> Iterator[Case]:
    """Members of the file changed after signing, and the file written canonically."""
    while True:
        name, draft = _any_draft(draw)
        where, bundle = edited(draw, json.loads(draft.write()))
        yield Case(f"members/{name}/{where}", write_json(bundle), key_list())


def _signed_members(draw: random.Random) -> Iterator[Case]:
    """Members of the statement changed before signing, and the result signed and logged."""
    while True:
        name, draft = _any_draft(draw)
        where, statement = edited(draw, draft.statement)
        yield Case(f"signed/{name}/{where}", draft.change(statement=statement).write(), key_list())


def _checked_members(draw: random.Random) -> Iterator[Case]:
    """Members that verifiers read, changed before signing."""
    names = "records", "dataset", "forgotten", "bound", "policy", "erasure", "log", "subjects", "models_in_store"
    while True:
        name, draft = _any_draft(draw)
        content = draft.statement["predicate"]
        where, part = edited(draw, {key: content[key] for key in names if key in content})
        statement = {**draft.statement, "predicate": {**{k: v for k, v in content.items() if k not in names}, **part}}
        yield Case(f"checked/{name}/{where}", draft.change(statement=statement).write(), key_list())


def _raw_payloads(_: random.Random) -> Iterator[Case]:
    """Bytes of the statement changed before signing."""
    for number, (old, new) in enumerate(RAW_EDITS):
        draft = certificate().change(payload=lambda whole, old=old, new=new: whole.replace(old, new))
        yield Case(f"payload/{number}", draft.write(), key_list())


def _entries(draw: random.Random) -> Iterator[Case]:
    """Members of the entry changed before it is logged."""
    while True:
        name, draft = _any_draft(draw)
        entry = json.loads(json.loads(draft.write())["log"]["entry"])
        where, changed = edited(draw, entry)
        if set(changed) == set(entry):  # a member that is absent would be filled in
            yield Case(f"entry/{name}/{where}", KINDS[name]().change(entry=changed).write(), key_list())


def _swapped(draw: random.Random) -> Iterator[Case]:
    """Parts of one genuine bundle put into another."""
    while True:
        (name, first), (other, second) = _any_draft(draw), _any_draft(draw)
        parent, part = draw.choice(SWAPPED_PARTS)
        bundle = json.loads(first.write())
        donor = json.loads(second.change(size=draw.choice([9, 10, 17])).write())
        if parent:
            bundle[parent][part] = donor[parent][part]
        else:
            bundle[part] = donor[part]
        yield Case(f"swapped/{part}/{other}-to-{name}", write_json(bundle), key_list())


def _origins(_: random.Random) -> Iterator[Case]:
    """Another name of the log in each place that names it."""
    for name, make in KINDS.items():
        draft, pem = make(), SIGNER.public_pem.encode()
        renamed = make()
        renamed.statement["predicate"]["log"]["origin"] = ELSEWHERE.origin
        everywhere = renamed.change(log_signer=ELSEWHERE)
        for keys, label in ((key_list(), "list"), (pem, "pem"), (key_list(ELSEWHERE), "other-list")):
            yield Case(f"origin/{name}/checkpoint/{label}", draft.change(log_signer=ELSEWHERE).write(), keys)
            yield Case(f"origin/{name}/statement/{label}", renamed.write(), keys)
            yield Case(f"origin/{name}/both/{label}", everywhere.write(), keys)
            yield Case(f"origin/{name}/later/{label}", draft.write(), keys, draft.later(12, ELSEWHERE))
            yield Case(f"origin/{name}/option/{label}", draft.write(), keys, origin=ELSEWHERE.origin)
            yield Case(f"origin/{name}/unlogged/{label}", renamed.change(is_logged=False).write(), keys)


def _uses(_: random.Random) -> Iterator[Case]:
    """Keys that sign what they are not for, and lists with other uses."""
    for name, make in KINDS.items():
        draft = make()
        yield Case(f"use/{name}/statement-by-log-key", draft.change(signer=SWAPPED).write(), key_list())
        yield Case(f"use/{name}/checkpoint-by-statement-key", draft.change(log_signer=SWAPPED).write(), key_list())
        yield Case(f"use/{name}/both", draft.change(signer=SWAPPED, log_signer=SWAPPED).write(), key_list())
        yield Case(f"use/{name}/later", draft.write(), key_list(), draft.later(12, SWAPPED))
        for use in ("statements", "log", None, "", "both", ["log"], 1):
            yield Case(f"use/{name}/list-{use}", draft.write(), key_list(statements={"use": use}))


def _times(_: random.Random) -> Iterator[Case]:
    """Each time written in many ways, and dates of keys around it."""
    for time in TIMES:
        for member in ("received_at", "issued_at"):
            draft = certificate(**{member: time})
            yield Case(f"time/{member}/{time}", draft.write(), key_list())
        yield Case(f"time/at/{time}", certificate().change(entry={"at": time}).write(), key_list())
        yield Case(f"time/receipt/at/{time}", receipt().change(entry={"at": time}).write(), key_list())
        for use, member in itertools.product(("statements", "log"), ("retired_at", "revoked_at")):
            yield Case(f"time/{use}/{member}/{time}", certificate().write(), key_list(**{use: {member: time}}))
            keys = key_list(**{use: {member: time}})
            yield Case(f"time/receipt/{use}/{member}/{time}", receipt().write(), keys, receipt().later(12))


def _key_lists(draw: random.Random) -> Iterator[Case]:
    """Members of the list of keys changed."""
    bundle = certificate().change(note=FIRST.cosign).write()
    keys = json.loads(key_list(log={"revoked_at": REVOCATION, "retired_at": None}, witnesses=[FIRST.vkey, SECOND.vkey]))
    while True:
        where, changed = edited(draw, keys)
        yield Case(f"keys/{where}", bundle, json.dumps(changed).encode())


def _notes(draw: random.Random) -> Iterator[Case]:
    """The checkpoint's text changed after signing, or signed with another size or root."""
    edits: list[Callable[[str], str]] = [
        lambda note: note[:-1],
        lambda note: note + "\n",
        lambda note: note.replace("\n\n", "\nextension\n\n"),
        lambda note: note.replace("\n9\n", "\n09\n"),
        lambda note: note.replace("\n9\n", "\n10\n"),
        lambda note: note.replace("\n9\n", "\n9 \n"),
        lambda note: note.replace("\n", "\r\n"),
        lambda note: note.replace("\u2014", "-"),
        lambda note: note.replace("\u2014 ", "\u2014  "),
        lambda note: note + note.splitlines(keepends=True)[-1],
        lambda note: note.partition("\n\n")[0] + "\n\n",
        lambda note: FIRST.cosign(FIRST.cosign(note)),
        lambda note: SECOND.cosign(note),
        lambda note: FIRST.cosign(note, 1 << 37),
        lambda note: FIRST.cosign(note, (1 << 37) - 1),
        lambda note: FIRST.cosign(note, 0),
        lambda note: FIRST.cosign(note.replace("\n9\n", "\n8\n")).replace("\n8\n", "\n9\n"),
    ]
    for number, edit in enumerate(edits):
        for later in (False, True):
            draft = certificate() if later else certificate().change(note=edit)
            proof = draft.later(12, note=edit) if later else None
            yield Case(f"note/{number}/{later}", draft.write(), key_list(witnesses=[FIRST.vkey]), proof)
    while True:
        at, character = draw.randrange(400), draw.choice("0aA+/= \n\u2014\x00é")

        def put(note: str, at: int = at, character: str = character) -> str:
            cosigned = FIRST.cosign(note)
            return cosigned[:at] + character + cosigned[at + 1 :]

        draft = certificate().change(note=put)
        yield Case(f"note/character/{at}", draft.write(), key_list(witnesses=[FIRST.vkey]))


def _later_proofs(draw: random.Random) -> Iterator[Case]:
    """Later proofs changed, of another size, under another key, about another log."""
    both = json.loads(key_list(statements={"revoked_at": REVOCATION}))
    both["keys"] += json.loads(key_list(SUCCESSOR))["keys"]
    keys = json.dumps(both).encode()
    while True:
        name, draft = _any_draft(draw)
        size, signer = draw.randint(9, 40), draw.choice([SIGNER, SUCCESSOR])
        proof = json.loads(
            draft.change(size=draw.choice([9, 9, 8 + draw.randrange(1, 9)])).later(max(size, 17), signer)
        )
        where, changed = edited(draw, proof) if draw.random() < 0.6 else ("as it is", proof)
        yield Case(f"later/{name}/{size}/{where}", draft.write(), keys, json.dumps(changed).encode())


def _witnesses(draw: random.Random) -> Iterator[Case]:
    """Required witnesses, with cosignatures around the revocation of a key."""
    while True:
        keys = key_list(**{draw.choice(["statements", "log"]): {"revoked_at": REVOCATION}}, witnesses=[FIRST.vkey])
        time = BEFORE_REVOCATION + draw.choice([0, 57_599, 57_600, 57_601, 10**6])
        signers = draw.choice([(FIRST,), (SECOND,), (FIRST, SECOND), ()])
        required = draw.choice([(), (FIRST.vkey,), (SECOND.vkey,), (SECOND.vkey[:-1],), (), (FIRST.vkey, SECOND.vkey)])

        def cosign(note: str, signers: Any = signers, time: int = time) -> str:
            for witness in signers:
                note = witness.cosign(note, time)
            return note

        names = "+".join(witness.name for witness in signers)
        draft = certificate().change(note=cosign)
        yield Case(f"witness/{names}/{time}/{len(required)}", draft.write(), keys, witnesses=required)


def _numbers(_: random.Random) -> Iterator[Case]:
    """Each number that verifiers read, with each wrong value."""
    for parent, member in (("bound", "epsilon"), ("policy", "epsilon"), ("records", "before"), ("bound", "interval")):
        for number, value in enumerate(WRONG):
            draft = KINDS["estimated" if member == "interval" else "certificate"]()
            content = draft.statement["predicate"]
            content[parent][member] = [value, value] if member == "interval" else value
            yield Case(f"number/{parent}/{member}/{number}", draft.write(), key_list())


WAYS: tuple[Callable[[random.Random], Iterator[Case]], ...] = (
    _bytes,
    _outer_members,
    _signed_members,
    _checked_members,
    _checked_members,
    _raw_payloads,
    _entries,
    _swapped,
    _origins,
    _uses,
    _times,
    _key_lists,
    _notes,
    _later_proofs,
    _witnesses,
    _numbers,
)
