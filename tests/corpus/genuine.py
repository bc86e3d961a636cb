"""Genuine bundles: those issued by earlier versions, and fresh ones of every kind with what an auditor may add."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import tests.lethe.verify
from service.store.signing.statements import StatementSigner
from tests.bundles import POSTERIOR, SIGNER, key_list
from tests.corpus.cases import Case
from tests.corpus.drafts import KINDS, certificate
from tests.lethe.verify.test_checkpoints import FIRST, SECOND

ISSUED_BEFORE = Path(tests.lethe.verify.__path__[0]) / "issued_before"
BEFORE_REVOCATION, REVOCATION = 1_794_816_000, "2026-11-17T00:00:00Z"
"""2026-11-16T08:00:00Z, and the later time at which a key is revoked."""
SUCCESSOR = StatementSigner(bytes([7]) * 32, bytes([8]) * 32)


def genuine_cases() -> Iterator[Case]:
    """Yield genuine bundles; some are unconfirmed for want of evidence."""
    keys = (ISSUED_BEFORE / "lethe-keys.json").read_bytes()
    for path in sorted(ISSUED_BEFORE.glob("[acrd]*.json")):
        yield Case(f"before/{path.stem}", path.read_bytes(), keys)
    for name, make in KINDS.items():
        draft = make()
        yield Case(f"fresh/{name}", draft.write(), key_list())
        yield Case(f"fresh/{name}/pem", draft.write(), SIGNER.public_pem.encode())
        yield Case(f"fresh/{name}/origin", draft.write(), SIGNER.public_pem.encode(), origin=SIGNER.origin)
        yield Case(f"fresh/{name}/unlogged", draft.change(is_logged=False).write(), key_list())
        for size in (9, 10, 16, 300):
            yield Case(f"fresh/{name}/later-{size}", draft.write(), key_list(), draft.later(size))
        for index, size in ((0, 1), (0, 2), (1, 2), (255, 256), (256, 257), (2, 300)):
            yield Case(
                f"fresh/{name}/entry-{index}-of-{size}", draft.change(index=index, size=size).write(), key_list()
            )
    yield Case("fresh/certificate/posterior", certificate().write(), key_list(), posterior=POSTERIOR)
    yield from _witnessed()
    yield from _revoked()


def _witnessed() -> Iterator[Case]:
    cosigned = certificate().change(note=lambda note: SECOND.cosign(FIRST.cosign(note))).write()
    listed = key_list(witnesses=[FIRST.vkey, SECOND.vkey])
    yield Case("witnesses/listed", cosigned, listed)
    yield Case("witnesses/required", cosigned, key_list(), witnesses=[FIRST.vkey, SECOND.vkey])
    yield Case("witnesses/listed-and-required", cosigned, listed, witnesses=[SECOND.vkey])
    yield Case("witnesses/listed-only", certificate().write(), listed)


def _revoked() -> Iterator[Case]:
    draft, revoked = certificate(), {"revoked_at": REVOCATION}
    for use in ("statements", "log"):
        keys = key_list(**{use: revoked}, witnesses=[FIRST.vkey])
        yield Case(f"revoked/{use}", draft.write(), keys)
        yield Case(f"revoked/{use}/unlogged", draft.change(is_logged=False).write(), keys)
        yield Case(f"revoked/{use}/later", draft.write(), keys, draft.later(12))
        for name, time in (("before", BEFORE_REVOCATION), ("after", BEFORE_REVOCATION + 86_400)):
            cosigned = draft.change(note=lambda note, time=time: FIRST.cosign(note, time))
            yield Case(f"revoked/{use}/witness-{name}", cosigned.write(), keys)
            later = draft.later(12, note=lambda note, time=time: FIRST.cosign(note, time))
            yield Case(f"revoked/{use}/later-witness-{name}", draft.write(), keys, later)
    both = (SIGNER.public_pem + SUCCESSOR.public_pem).encode()
    yield Case("successor/later", draft.write(), both, draft.later(12, SUCCESSOR))
