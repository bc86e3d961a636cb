"""`lethe certificate reissue`: issue certificates again after a key was revoked."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from lethe.cli.options import AsJson, DataDir
from lethe.cli.output import print_result
from lethe.cli.store import open_store

if TYPE_CHECKING:
    from service.settings import Settings
    from service.store.certificates.reissue import Affected, Reissuer
    from service.store.database import Database

CHUNK_SIZE = 500
"""Certificates issued again in one transaction, under one checkpoint of the log."""


def reissue(
    certificate_id: Annotated[uuid.UUID | None, typer.Argument(metavar="[ID]", help="Id of one certificate.")] = None,
    key: Annotated[
        str | None,
        typer.Option(metavar="KEYID", help="All certificates and absences that are refused because of this key."),
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Issue certificates again whose key was revoked, so that verifiers accept them again.

    A new certificate states the same facts under the keys in use now and names the one that it replaces. The old ones
    stay available.
    """
    from service.store.errors import KeyInactive, NotReplaceable

    with open_store(data_dir) as (settings, database):
        try:
            reissuer = _open_reissuer(settings, database)
            affected = _find_affected(database, certificate_id, key, reissuer)
            successors = _reissue_certificates(database, affected.certificate_ids, reissuer)
            statements = _reissue_absences(database, affected.absence_ids, reissuer)
        except (NotReplaceable, KeyInactive) as error:
            raise typer.BadParameter(str(error)) from None
    lines = [f"{old} replaced by {new}" for old, new in successors.items()]
    lines += [f"absence of {deletion_id} replaced" for deletion_id in statements]
    print_result({"certificates": successors, "absences": statements}, lines or ["nothing to issue again"], as_json)


def _open_reissuer(settings: Settings, database: Database) -> Reissuer:
    from service.store.certificates.reissue import Reissuer
    from service.store.signing.keys import open_signer

    witnesses = [witness.verifier_key for witness in settings.log_witnesses]
    return Reissuer(open_signer(settings, database), witnesses, "lethe certificate reissue")


def _find_affected(
    database: Database, certificate_id: uuid.UUID | None, key_id: str | None, reissuer: Reissuer
) -> Affected:
    from service.store.certificates.reissue import Affected, find_affected

    if key_id is not None and certificate_id is None:
        with database.reading() as session:
            return find_affected(session, key_id, reissuer)
    if certificate_id is None or key_id is not None:
        raise typer.BadParameter("give the id of a certificate, or --key with the id of a revoked key")
    return Affected([certificate_id], [])


def _reissue_certificates(database: Database, ids: Sequence[uuid.UUID], reissuer: Reissuer) -> dict[str, str]:
    from service.store.certificates.reissue import reissue_certificates

    successors: dict[str, str] = {}
    for start in range(0, len(ids), CHUNK_SIZE):
        with database.writing() as session:
            new = reissue_certificates(session, ids[start : start + CHUNK_SIZE], reissuer)
        successors.update({str(old_id): str(new_id) for old_id, new_id in new.items()})
    return successors


def _reissue_absences(database: Database, ids: Sequence[uuid.UUID], reissuer: Reissuer) -> dict[str, str]:
    from service.store.certificates.reissue import reissue_absence

    statements: dict[str, str] = {}
    for deletion_id in ids:
        with database.writing() as session:
            statements[str(deletion_id)] = reissue_absence(session, deletion_id, reissuer)
    return statements
