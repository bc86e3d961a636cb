from __future__ import annotations

import stat
from pathlib import Path

import pytest
from cryptography import x509

from service.settings import ConfigurationError, Settings
from service.store.signing.processor_identity import ProcessorIdentity


def settings(folder: Path, **changes: object) -> Settings:
    return Settings(data_dir=folder, _env_file=None, **changes)  # type: ignore[call-arg, arg-type]


def test_key_and_certificate_are_created_once_and_the_key_is_private(tmp_path: Path) -> None:
    first, second = (ProcessorIdentity.load(settings(tmp_path, processor_domain="lethe.example")) for _ in range(2))
    assert first.certificate_pem == second.certificate_pem
    assert first.sign(b"body") == second.sign(b"body") != first.sign(b"another")
    assert stat.S_IMODE((tmp_path / "opendsr" / "key.pem").stat().st_mode) == 0o600
    certificate = x509.load_pem_x509_certificate(first.certificate_pem.encode())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["lethe.example"]


def test_files_from_an_authority_are_used_instead(tmp_path: Path) -> None:
    ProcessorIdentity.load(settings(tmp_path / "authority", processor_domain="lethe.example"))
    key, certificate = (tmp_path / "authority" / "opendsr" / name for name in ("key.pem", "certificate.pem"))
    files = {"opendsr_key_file": key, "opendsr_certificate_file": certificate}
    identity = ProcessorIdentity.load(settings(tmp_path / "mine", processor_domain="lethe.example", **files))
    assert identity.certificate_pem == certificate.read_text()
    assert not (tmp_path / "mine").exists()


def test_files_that_do_not_match_are_refused(tmp_path: Path) -> None:
    for name in ("one", "other"):
        ProcessorIdentity.load(settings(tmp_path / name))
    key, certificate = tmp_path / "one" / "opendsr" / "key.pem", tmp_path / "other" / "opendsr" / "certificate.pem"
    with pytest.raises(ConfigurationError, match="does not match the key"):
        ProcessorIdentity.load(settings(tmp_path, opendsr_key_file=key, opendsr_certificate_file=certificate))
    with pytest.raises(ConfigurationError, match="LETHE_OPENDSR_KEY_FILE"):
        ProcessorIdentity.load(settings(tmp_path, opendsr_key_file=key))
    with pytest.raises(ConfigurationError, match="does not name elsewhere"):
        ProcessorIdentity.load(settings(tmp_path / "one", processor_domain="elsewhere"))
