"""Commands for secrets that the database recognises: `lethe key rotate-identity` and `lethe key accept-opendsr`."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from lethe.cli.options import DataDir
from lethe.cli.output import print_note
from lethe.cli.store import open_store
from service.settings import new_key

if TYPE_CHECKING:
    from service.settings.key_sources import KeySource

ACTOR = "lethe key rotate-identity"


def rotate_identity(data_dir: DataDir = None) -> None:
    """Replace the identity key, so that the old one alone no longer finds anybody.

    Adds a key to the list and wraps every stored hash with it, in one transaction. A key file is extended. Otherwise
    the new list is printed and nothing is changed: put it where the API has its key and run the command again. Then
    restart the API, which answers 503 until then.
    """
    from service.store.access.identity_keys import add_key, open_hasher

    with open_store(data_dir) as (settings, database):
        source, keys = settings.identity_key_source, [*settings.identity_keys()]
        hasher = open_hasher(settings, database)
        if hasher.key_count == len(keys):
            keys.append(base64.b64decode(new_key()))
            if not _store_keys(source, keys):
                return
        with database.writing() as session:
            for key in keys[hasher.key_count :]:
                subjects = add_key(session, hasher, key, ACTOR)
                hasher = hasher.extended(key)
    print_note(f"Rotated; {subjects} people stay known. Restart the API: until then it answers 503.")


def accept_opendsr(data_dir: DataDir = None) -> None:
    """Accept the configured OpenDSR key in place of the one used so far. Restart the API and the sweep afterwards."""
    from service.store import audit
    from service.store.access.secret_checks import OPENDSR_KEY, replace_value
    from service.store.signing.processor_identity import ProcessorIdentity

    with open_store(data_dir) as (settings, database):
        check = ProcessorIdentity.load(settings).check
        with database.writing() as session:
            replace_value(session, check)
            audit.record(session, "lethe key accept-opendsr", "opendsr_key.replaced", OPENDSR_KEY)
    print_note("Accepted. Restart the API and the sweep; platforms fetch the new certificate from /v2/certificate.pem.")


def _store_keys(source: KeySource, keys: Sequence[bytes]) -> bool:
    """Write the list to the key file. If there is none, print it and return False."""
    from service.settings.key_sources import replace_key_file

    text = ",".join(base64.b64encode(key).decode() for key in keys)
    if source.file is not None:
        replace_key_file(source.file, text)
        return True
    typer.echo(f"{source.variable}={text}" if source.text else text)
    print_note(
        f"Nothing was changed yet. Let {source.variable} supply this list, oldest key first: it works before and after "
        "the rotation. Then run this command again with it."
    )
    return False
