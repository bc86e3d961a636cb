"""Bundles to print: a statement of each kind."""

from __future__ import annotations

import base64
import hashlib
import io
import json
from collections.abc import Callable
from typing import Any

from pypdf import PdfReader

from tests.bundles import sign
from vocabulary.certificate import ABSENCE_TYPE, CERTIFICATE_TYPE, RECEIPT_TYPE, CertificatePredicate

Change = Callable[[dict[str, Any]], object]
CHECKPOINT = f"lethe.example.org/log\n128\n{base64.b64encode(bytes(32)).decode()}\n\n— lethe.example.org c2lnbmVk\n"


def digest(value: object) -> str:
    return hashlib.sha256(str(value).encode()).hexdigest()


def request() -> dict[str, Any]:
    return {
        "deletion": "0d3f98dc-ba30-4d8c-b54d-905bd2c7d72a",
        "regulation": "gdpr",
        "subjects": [digest("ada")],
        "received_at": "2026-11-16T08:00:00.000Z",
    }


SOFTWARE = {"name": "lethe", "version": "0.1.0", "sources_sha256": digest("sources")}
SAMPLE_CONSTANTS = {
    "n_before": 40,
    "draws": 2000,
    "estimate": 2.4e-7,
    "relative_ess": 0.9,
    "k_hat": 0.1,
    "effective_draws": 25069.7,
    "unevenness": None,
    "rounding": 1e-12,
    "chain_r_hat": 1.01,
    "chain_ess": 900.0,
    "chain_width": 1.0,
    "gaussian": {"kl": 3.25, "paper_order": 4.5},
}


def rung(name: str, **members: Any) -> dict[str, Any]:
    absent = {"epsilon": None, "level": "none", "at_least": 0.0, "failure": None, "solver": None}
    return {"name": name, **absent, **members}


def attack(auc: float) -> dict[str, float]:
    return {"auc": auc, "error": 0.02, "advantage_above": 0.31, "advantage_below": 0.01, "chance": 0.12}


def side(auc: float) -> dict[str, Any]:
    quantiles = [step / 20 for step in range(21)]
    return {
        "forgotten": attack(auc),
        "retained": attack(0.7),
        "forgotten_quantiles": quantiles,
        "retained_quantiles": [score + 0.5 for score in quantiles],
        "never_seen_quantiles": [score - 0.5 for score in quantiles],
    }


def risk(bound: float) -> dict[str, Any]:
    return {
        "risk": 0.08,
        "risk_limit": 0.1,
        "kl": 12.0,
        "rows": 36,
        "draws": 200,
        "delta": 0.05,
        "bound": bound,
        "vacuous": False,
    }


def dataset(name: str, records: int) -> dict[str, Any]:
    return {"digest": digest(name), "root": digest(name + "!"), "records": records}


def forgotten_proof(count: int) -> dict[str, Any]:
    return {
        "commitments": [digest(number) for number in range(1, count + 1)],
        "before": {"places": list(range(count)), "proof": [digest("before")]},
        "after": {"neighbours": [{"place": 0, "commitment": digest("next")}], "proof": [digest("after")]},
    }


def shift(rows: int, kl: float, label: float | None) -> dict[str, Any]:
    """Return predictions of a group of rows before and after."""
    error = None if label is None else 0.05
    return {
        "rows": rows,
        "kl": kl,
        "kl_error": None if rows == 4 else kl / 10,
        "kl_max": 2 * kl,
        "kl_reverse": kl,
        "noise": 0.004,
        "label_before": label,
        "label_after": label,
        "error_before": error,
        "error_after": error,
    }


def predicate(change: Change = lambda _: None) -> CertificatePredicate:
    """Return a complete predicate as the printer reads it."""
    content = certificate_content()
    change(content)
    return CertificatePredicate.model_validate(content)


def certificate_content() -> dict[str, Any]:
    """Return all that a certificate can say."""
    return {
        **request(),
        "certificate": "07f5d746-b099-4e94-8f98-b5a81efe3cc8",
        "named_records": [17],
        "issued_at": "2026-11-20T08:00:05.000Z",
        "due_at": "2026-12-16T08:00:00.000Z",
        "model": {"id": "m-1", "name": "demo", "family": "gaussian-mixture", "posterior": "variational", "config": {}},
        "records": {"before": 40, "after": 36, "forgotten_in_batch": 4},
        "dataset": {"before": dataset("before", 40), "after": dataset("after", 36)},
        "forgotten": forgotten_proof(2),
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
            "constants": SAMPLE_CONSTANTS,
            "not_proved": ["Copies that are kept outside Lethe are not covered."],
            "reasons": [],
        },
        "rungs": [
            rung("influence", steps=1, seconds=0.007, at_least=0.155),
            rung("newton", steps=0, seconds=2.0, failure="it is NaN"),
            rung("warm", steps=3, epsilon=2.5e-7, level="proved", seconds=4.0, at_least=2.5e-7),
        ],
        "effects": {
            "release": [{"draws": 1, "nats": 2.5e-7, "advantage": 0.00035}],
            "membership": {
                "before": side(0.71),
                "after": side(0.507),
                "worst": {"p_value_before": 0.004, "p_value": 0.31, "adjusted": 1.0, "commitment": digest("ada")},
                "n_forgotten": 4,
                "n_retained": 36,
                "n_never_seen": 30,
            },
            "pac_bayes": {"before": risk(0.17), "after": risk(0.18), "not_proved": ["Rows are taken for independent."]},
            "function_space": {
                "forgotten": shift(4, kl=0.21, label=None),
                "retained": shift(256, kl=0.0031, label=0.93),
                "never_seen": None,
                "draws_before": 64,
                "draws_after": 64,
            },
        },
        "seconds": 6.1,
        "erasure": {
            "destroyed": [{"digest": digest("before"), "kind": "dataset"}],
            "scheduled": [{"at": "2026-11-20T09:00:05.000Z", "digest": digest("version 1"), "kind": "posterior"}],
        },
        "not_proved": ["The roots rest on the software that signed this."],
        "software": SOFTWARE,
    }


def earlier_content() -> dict[str, Any]:
    """Return what a certificate of an early version said."""
    return {
        "deletion": "d-1",
        "received_at": "2026-11-16T08:00:00.000Z",
        "issued_at": "2026-11-16T08:00:05.000Z",
        "records": {"before": 40, "after": 36, "forgotten_in_batch": 4},
        "policy": {"epsilon": 1e-6, "level": "proved"},
        "bound": {"epsilon": 1e-9, "level": "proved", "assumptions": [{"name": "curvature", "holds": True}]},
    }


def certificate(change: Change = lambda _: None, content: dict[str, Any] | None = None, *, logged: bool = True) -> str:
    content = content or certificate_content()
    change(content)
    subjects = [{"name": f"model/m-1/version/{n}", "digest": {"sha256": digest(n)}} for n in (1, 2)]
    return sign(CERTIFICATE_TYPE, subjects, content, log=_log() if logged else None)


def receipt(change: Change = lambda _: None, *, logged: bool = True) -> str:
    content = {**request(), "log": {"origin": "lethe.example.org/log", "leaf": digest("leaf"), "within_seconds": 2}}
    change(content)
    return sign(RECEIPT_TYPE, [_request_subject()], content, log=_log() if logged else None)


def absence() -> str:
    content = {
        **request(),
        "regulation": "ccpa",
        "issued_at": "2026-11-16T08:00:01.000Z",
        "models_in_store": 3,
        "statement": "No model holds records of the subjects.",
        "not_proved": ["Records kept outside Lethe are not covered."],
        "software": SOFTWARE,
    }
    return sign(ABSENCE_TYPE, [_request_subject()], content, log=_log())


def text_of(pdf: bytes) -> str:
    """Return the text as one line, since line breaks differ between the forms."""
    return " ".join(" ".join(page.extract_text() for page in PdfReader(io.BytesIO(pdf)).pages).split())


def _request_subject() -> dict[str, Any]:
    return {"name": "deletion/d-1", "digest": {"sha256": digest("asked")}}


def _log() -> dict[str, Any]:
    return {"checkpoint": CHECKPOINT, "entry": json.dumps({"action": "x"}), "index": 41, "proof": [digest("proof")]}
