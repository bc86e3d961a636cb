"""Bundles to print: small statements of each kind, signed as the service signs them."""

from __future__ import annotations

import base64
import hashlib
import io
import json
from collections.abc import Callable
from typing import Any

from pypdf import PdfReader

from service.store.signing.statements import ABSENCE_TYPE, CERTIFICATE_TYPE, RECEIPT_TYPE, StatementSigner, bundle

SIGNER = StatementSigner(bytes(range(32)))
Change = Callable[[dict[str, Any]], object]
CHECKPOINT = f"lethe.example.org/log\n128\n{base64.b64encode(bytes(32)).decode()}\n\n— lethe.example.org c2lnbmVk\n"


def digest(of: object) -> str:
    return hashlib.sha256(str(of).encode()).hexdigest()


def request() -> dict[str, Any]:
    return {
        "deletion": "0d3f98dc-ba30-4d8c-b54d-905bd2c7d72a",
        "regulation": "gdpr",
        "subjects": [digest("ada")],
        "received_at": "2026-11-16T08:00:00.000Z",
    }


def attack(auc: float) -> dict[str, float]:
    return {"auc": auc, "error": 0.02, "advantage_above": 0.31, "advantage_below": 0.01, "chance": 0.12}


def side(auc: float) -> dict[str, Any]:
    quantiles = [place / 20 for place in range(21)]
    return {
        "forgotten": attack(auc),
        "retained": attack(0.7),
        "forgotten_quantiles": quantiles,
        "retained_quantiles": [score + 0.5 for score in quantiles],
        "never_seen_quantiles": [score - 0.5 for score in quantiles],
    }


def risk(bound: float) -> dict[str, Any]:
    return {"risk": 0.08, "risk_limit": 0.1, "kl": 12.0, "rows": 36, "draws": 200, "delta": 0.05, "bound": bound}


def dataset(name: str, records: int) -> dict[str, Any]:
    return {"digest": digest(name), "root": digest(name + "!"), "records": records}


def forgotten() -> dict[str, Any]:
    """All that a certificate can say."""
    return {
        **request(),
        "certificate": "07f5d746-b099-4e94-8f98-b5a81efe3cc8",
        "named_records": [17],
        "issued_at": "2026-11-20T08:00:05.000Z",
        "due_at": "2026-12-16T08:00:00.000Z",
        "model": {"id": "m-1", "name": "demo", "family": "gaussian-mixture", "posterior": "variational", "config": {}},
        "records": {"before": 40, "after": 36, "forgotten_in_batch": 4},
        "dataset": {"before": dataset("before", 40), "after": dataset("after", 36)},
        "forgotten": {"commitments": [digest(1), digest(2)]},
        "policy": {"epsilon": 1e-6, "level": "proved", "rungs": ["influence"], "seconds": None},
        "bound": {
            "epsilon": 2.5e-7,
            "epsilon_reverse": 2.6e-7,
            "level": "proved",
            "interval": None,
            "n_retained": 36,
            "reference": "the minimiser of the retained energy in the same basin",
            "direction": "epsilon bounds KL(processed ‖ reference)",
            "assumptions": [
                {"name": "curvature", "holds": True, "value": 262.5, "limit": 0, "meaning": "it curves upwards"}
            ],
            "constants": {"lipschitz": 25069.7, "gaussian": {"lambda_min": 3.25}, "unevenness": None},
            "not_proved": ["Copies that are kept outside Lethe are not covered."],
        },
        "rungs": [
            {"name": "influence", "steps": 1, "epsilon": None, "level": "none", "seconds": 0.007, "at_least": 0.155},
            {"name": "newton", "steps": 0, "epsilon": None, "level": "none", "seconds": 2.0, "failure": "it is NaN"},
            {"name": "warm", "steps": 3, "epsilon": 2.5e-7, "level": "proved", "seconds": 4.0, "at_least": 2.5e-7},
        ],
        "effects": {
            "release": [{"draws": 1, "nats": 2.5e-7, "advantage": 0.00035}],
            "membership": {
                "before": side(0.71),
                "after": side(0.507),
                "worst": {"position": 3, "p_value_before": 0.004, "p_value": 0.31, "adjusted": 1.0},
            },
            "pac_bayes": {"before": risk(0.17), "after": risk(0.18), "not_proved": ["Rows are taken for independent."]},
        },
        "seconds": 6.1,
    }


def bare() -> dict[str, Any]:
    """The least that the verifier takes for a certificate."""
    return {
        "deletion": "d-1",
        "received_at": "2026-11-16T08:00:00.000Z",
        "issued_at": "2026-11-16T08:00:05.000Z",
        "records": {"before": 40, "after": 36, "forgotten_in_batch": 4},
        "policy": {"epsilon": 1e-6, "level": "proved"},
        "bound": {"epsilon": 1e-9, "level": "proved", "assumptions": [{"name": "curvature", "holds": True}]},
    }


def certificate(change: Change = lambda _: None, content: dict[str, Any] | None = None, *, logged: bool = True) -> str:
    content = content or forgotten()
    change(content)
    subjects = [{"name": f"model/m-1/version/{n}", "digest": {"sha256": digest(n)}} for n in (1, 2)]
    return bundle(SIGNER.sign(CERTIFICATE_TYPE, subjects, content), _log() if logged else None)


def receipt(change: Change = lambda _: None, *, logged: bool = True) -> str:
    content = request()
    change(content)
    return bundle(SIGNER.sign(RECEIPT_TYPE, [_asked()], content), _log() if logged else None)


def absence() -> str:
    content = {
        **request(),
        "regulation": "ccpa",
        "issued_at": "2026-11-16T08:00:01.000Z",
        "models_in_store": 3,
        "statement": "No model holds records of the subjects.",
        "not_proved": ["Records kept outside Lethe are not covered."],
    }
    return bundle(SIGNER.sign(ABSENCE_TYPE, [_asked()], content), _log())


def text_of(pdf: bytes) -> str:
    """As one line, since paper and screens break lines at different places."""
    return " ".join(" ".join(page.extract_text() for page in PdfReader(io.BytesIO(pdf)).pages).split())


def _asked() -> dict[str, Any]:
    return {"name": "deletion/d-1", "digest": {"sha256": digest("asked")}}


def _log() -> dict[str, Any]:
    return {"checkpoint": CHECKPOINT, "entry": json.dumps({"action": "x"}), "index": 41, "proof": [digest("proof")]}
