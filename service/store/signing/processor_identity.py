"""Key and certificate of Lethe as an OpenDSR processor.

Platforms check an RSA signature (PKCS#1 v1.5 with SHA-256, the padding that live platforms verify) with an X.509
certificate whose subject alternative name is the processor's domain. Both are created at first start and can be
replaced by files from a certificate authority.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.x509.oid import NameOID

from service.settings import ConfigurationError, Settings, write_private_file
from service.store.access.secret_checks import OPENDSR_KEY, CheckValue, ensure_match
from service.store.database import Database

KEY_BITS = 3072
VALID_FOR = timedelta(days=3650)


@dataclass(frozen=True)
class ProcessorIdentity:
    domain: str
    certificate_pem: str
    _key: rsa.RSAPrivateKey

    @classmethod
    def load(cls, settings: Settings) -> ProcessorIdentity:
        """Read key and certificate. Create both if neither is configured or present."""
        folder = settings.data_dir / "opendsr"
        key_file = settings.opendsr_key_file or folder / "key.pem"
        certificate_file = settings.opendsr_certificate_file or folder / "certificate.pem"
        if not settings.opendsr_key_file and not settings.opendsr_certificate_file:
            _create(settings.processor_domain, key_file, certificate_file)
        return cls._read(settings.processor_domain, key_file, certificate_file)

    @classmethod
    def _read(cls, domain: str, key_file: Path, certificate_file: Path) -> ProcessorIdentity:
        try:
            key = serialization.load_pem_private_key(key_file.read_bytes(), password=None)
            pem = certificate_file.read_text()
            certificate = x509.load_pem_x509_certificate(pem.encode())
        except (OSError, ValueError, TypeError) as error:
            raise ConfigurationError(
                f"the OpenDSR key or certificate cannot be read ({type(error).__name__}): set LETHE_OPENDSR_KEY_FILE "
                "and LETHE_OPENDSR_CERTIFICATE_FILE to matching PEM files, or unset both"
            ) from None
        if not isinstance(key, rsa.RSAPrivateKey) or key.public_key() != certificate.public_key():
            raise ConfigurationError(
                "the OpenDSR certificate does not match the key, or the key is not RSA: use the RSA key that the "
                "certificate was issued for"
            )
        if domain not in _names(certificate):
            raise ConfigurationError(
                f"the OpenDSR certificate does not name {domain}: set LETHE_PROCESSOR_DOMAIN to a name in it"
            )
        return cls(domain, pem, key)

    @property
    def check(self) -> CheckValue:
        """Return the digest of the public key, by which the database recognises the key."""
        public = self._key.public_key().public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        return CheckValue(OPENDSR_KEY, hashlib.sha256(public).digest())

    def sign(self, body: bytes) -> str:
        """Return the signature as base64. The same bytes get the same signature, so repeated answers are identical."""
        return base64.b64encode(self._key.sign(body, padding.PKCS1v15(), hashes.SHA256())).decode()


def open_processor(settings: Settings, database: Database) -> ProcessorIdentity:
    """Return the identity of this process. Raise ConfigurationError if the database was used with another key."""
    processor = ProcessorIdentity.load(settings)
    ensure_match(database, processor.check)
    return processor


def _names(certificate: x509.Certificate) -> list[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return names.get_values_for_type(x509.DNSName)


def _create(domain: str, key_file: Path, certificate_file: Path) -> None:
    """Create what is missing, the key first: of two processes that start at once, both use the first one's key."""
    if not key_file.exists():
        key = rsa.generate_private_key(public_exponent=65537, key_size=KEY_BITS)
        pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        with contextlib.suppress(FileExistsError):
            write_private_file(key_file, pem.decode())
    if not certificate_file.exists():
        loaded = serialization.load_pem_private_key(key_file.read_bytes(), password=None)
        if not isinstance(loaded, rsa.RSAPrivateKey):
            raise ConfigurationError(f"{key_file} does not contain an RSA key: remove it, and Lethe creates one")
        with contextlib.suppress(FileExistsError):
            write_private_file(certificate_file, _self_signed(domain, loaded))


def _self_signed(domain: str, key: rsa.RSAPrivateKey) -> str:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, domain[:64])])
    start = datetime.now(UTC) - timedelta(hours=1)  # clocks differ
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + VALID_FOR)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(domain)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM).decode()
