"""All settings of Lethe, read once from the environment or a `.env` file.

Two modes:

- embedded (neither DATABASE_URL nor REDIS_URL is set): SQLite, a child Redis and all secrets are in the data folder and
  created at first start;
- deployed (both are set): nothing is created, and a missing or placeholder secret is an error that names the variable.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import secrets
from collections.abc import Sequence
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from urllib.parse import quote, urlsplit

from pydantic import Field, SecretStr, ValidationError, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from service.settings.broker_socket import broker_socket
from service.settings.callback_targets import AllowedTargets
from service.settings.key_sources import KeySource, KeyUnavailable
from service.settings.witnesses import Witness, parse_witnesses

PLACEHOLDERS = ("change-me", "changeme", "placeholder", "password", "secret")
KEY_BYTES = 32
LONGEST_SECONDS = {"lease_seconds": 45, "sweep_seconds": 10}
"""Upper limits. Together they are below the 60 seconds within which a dead worker's batch must continue."""


class ConfigurationError(Exception):
    """Configuration with which Lethe cannot start. The message names the variable and the remedy."""


class Settings(BaseSettings):
    """Settings by environment variable: LETHE_ and the field name in capitals, unless it has an alias."""

    model_config = SettingsConfigDict(
        env_prefix="LETHE_", env_file=".env", extra="ignore", frozen=True, populate_by_name=True
    )

    data_dir: Path = Field(
        default=Path(".lethe"), description="Data folder: artifacts, and in embedded mode the database and secrets."
    )
    database_url: SecretStr | None = Field(
        default=None,
        validation_alias="DATABASE_URL",
        description="URL of the PostgreSQL database. Set it together with REDIS_URL, or neither for embedded mode.",
    )
    redis_url: SecretStr | None = Field(
        default=None,
        validation_alias="REDIS_URL",
        description="URL of the Redis broker. Set it together with DATABASE_URL, or neither for embedded mode.",
    )
    identity_key: SecretStr | None = Field(
        default=None,
        description="Base64 of the 32-byte key that hashes identities; after a rotation all keys, oldest first, "
        "separated by commas. Only the API needs it. Without it, no subject can be found again.",
    )
    identity_key_file: Path | None = Field(
        default=None,
        description="File with the identity keys, readable by its owner only. Replaces LETHE_IDENTITY_KEY.",
    )
    identity_key_command: SecretStr | None = Field(
        default=None,
        description="Command that prints the identity keys, run without a shell. Replaces LETHE_IDENTITY_KEY.",
    )
    signing_key: SecretStr | None = Field(
        default=None,
        description="Base64 of the 32-byte Ed25519 seed that signs receipts, certificates and callbacks.",
    )
    signing_key_file: Path | None = Field(
        default=None,
        description="File with the signing key, readable by its owner only. Replaces LETHE_SIGNING_KEY.",
    )
    signing_key_command: SecretStr | None = Field(
        default=None,
        description="Command that prints the signing key, run without a shell. Replaces LETHE_SIGNING_KEY.",
    )
    log_key: SecretStr | None = Field(
        default=None,
        description="Base64 of the 32-byte Ed25519 seed that signs the log's checkpoints. Not the signing key.",
    )
    log_key_file: Path | None = Field(
        default=None,
        description="File with the log key, readable by its owner only. Replaces LETHE_LOG_KEY.",
    )
    log_key_command: SecretStr | None = Field(
        default=None,
        description="Command that prints the log key, run without a shell. Replaces LETHE_LOG_KEY.",
    )

    artifact_url: SecretStr | None = Field(
        default=None,
        description="fsspec URL of the artifact store, such as s3://bucket/prefix. Unset: a folder in the data folder. "
        "Credentials and endpoint come from the process environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, "
        "AWS_ENDPOINT_URL, or FSSPEC_S3_<ARGUMENT>), not from .env.",
    )

    min_free_bytes: int = Field(
        default=256 << 20,
        ge=0,
        description="Free space, on the disks of the data folder and of temporary files, below which `/readyz` fails.",
    )

    max_body_bytes: int = Field(default=1 << 20, gt=0, description="Largest request body, except as below.")
    max_upload_bytes: int = Field(default=1 << 30, gt=0, description="Largest model registration, data set included.")
    max_bulk_bytes: int = Field(default=16 << 20, gt=0, description="Largest bulk request of deletions.")

    rate_per_second: float = Field(
        default=500.0, gt=0, description="Requests per second that a token may send on average. Above it: status 429."
    )
    rate_burst: int = Field(
        default=5_000,
        ge=1,
        description="Requests that a token may send at once after being idle. Above it: status 429. A line of a bulk "
        "request counts as a request, and may be spent in advance.",
    )
    refused_tokens_per_second: float = Field(
        default=10.0,
        gt=0,
        description="Requests per second without a valid token that an address may send to one API process on average. "
        "Above it: status 429.",
    )
    refused_tokens_burst: int = Field(
        default=50, ge=1, description="Requests without a valid token that an address may send at once."
    )
    trusted_proxies: str = Field(
        default="",
        description="Comma-separated addresses and networks of proxies whose X-Forwarded-For names the client. Unset: "
        "the client is the peer of the connection.",
    )
    max_connections: int = Field(
        default=2_000,
        ge=1,
        description="Open connections to an API process. A new one displaces the one that has waited longest without a "
        "request.",
    )
    max_connections_per_address: int = Field(
        default=500, ge=1, description="Open connections from one address (IPv6: /64), except trusted proxies."
    )
    header_seconds: float = Field(
        default=10.0, gt=0, description="Seconds within which a request's header must arrive."
    )
    progress_seconds: float = Field(
        default=10.0,
        gt=0,
        description="Seconds in which a client must send or take 1,000 bytes a second of a body or an answer.",
    )
    idle_seconds: int = Field(
        default=5,
        gt=0,
        description="Seconds that a connection may be idle between requests. Choose more than a proxy in front does.",
    )
    token_cache_seconds: float = Field(
        default=1.0, ge=0, description="Seconds until a revoked token is rejected by every process."
    )
    idempotency_wait_seconds: float = Field(
        default=2.0,
        ge=0,
        description="Seconds that a repeated request waits for the first one to finish. Then: status 409.",
    )

    import_root: Path | None = Field(
        default=None,
        description="Folder from which models may be imported by location. Unset: importing is disabled.",
    )

    batch_window_seconds: float = Field(
        default=1.0,
        ge=0,
        description="Seconds that a deletion waits at most, and at least half of it, for others to share a batch; "
        "never longer than a tenth of the time to its deadline. Until it ends, the caller can cancel and does not see "
        "which models hold the subject. Hours make nightly batches. 0: every deletion is binding on arrival.",
    )
    batch_most_deletions: int = Field(
        default=10_000, ge=1, description="Most deletions in one batch. The others wait for the model's next turn."
    )
    batch_largest_fraction: float = Field(
        default=0.5,
        gt=0,
        le=1,
        description="Largest fraction of a model's records that one batch forgets, unless one deletion names more.",
    )
    lease_seconds: float = Field(
        default=15.0,
        gt=0,
        description="Seconds without a renewal after which a worker loses its batch, at most 45. "
        "Workers renew three times as often.",
    )
    sweep_seconds: float = Field(
        default=1.0, gt=0, description="Seconds between searches for due work without a worker, at most 10."
    )
    max_attempts: int = Field(
        default=5, ge=1, description="Transient failures allowed before a deletion is marked failed."
    )
    task_seconds: float = Field(
        default=6 * 3600.0, gt=0, description="Seconds that a batch may compute before it is stopped and fails."
    )
    worker_memory_bytes: int = Field(
        default=0,
        ge=0,
        description="Memory above which a worker process is replaced after its batch. 0: never.",
    )
    shutdown_seconds: float = Field(
        default=20.0,
        ge=0,
        description="Seconds that a stopping worker may continue with its batch before it releases it.",
    )
    superseded_retention_seconds: float = Field(
        default=0.0,
        ge=0,
        description="Seconds that a superseded posterior is retained. Erased rows are never retained.",
    )

    callback_allow: str = Field(
        default="",
        description="Comma-separated hosts and networks that callbacks may reach although they are not public or use "
        "plain http.",
    )
    callback_attempts: int = Field(default=15, ge=1, description="Attempts before a callback is marked dead.")
    callback_base_seconds: float = Field(
        default=10.0,
        gt=0,
        description="Seconds before the second attempt of a callback. The delay doubles each time, up to an hour.",
    )
    callback_timeout_seconds: float = Field(
        default=10.0, gt=0, description="Seconds for one callback attempt, from name lookup to response status."
    )

    processor_domain: str = Field(
        default="localhost",
        pattern=r"^[A-Za-z0-9.-]{1,253}$",
        description="Domain of this OpenDSR processor, named in its certificate.",
    )
    public_url: str = Field(
        default="",
        pattern=r"^(https?://[^\s?#]+)?$",
        description="Public URL of the API, such as https://lethe.example.org. Unset: OpenDSR callbacks have no "
        "links to results.",
    )
    opendsr_key_file: Path | None = Field(
        default=None, description="PEM file with the OpenDSR RSA key. Unset: one is created in the data folder."
    )
    opendsr_certificate_file: Path | None = Field(
        default=None,
        description="PEM file with the OpenDSR certificate from an authority. Unset: a self-signed one is created.",
    )

    public_log: bool = Field(
        default=True,
        description="Whether checkpoints, proofs and public keys need no token. They hold no identity. Otherwise "
        "checkpoints and proofs need a token of role auditor or operator, and keys any token.",
    )
    log_origin: str = Field(
        default="",
        max_length=200,
        pattern=r"^[!-*,-~]*$",
        description="Name of the transparency log, like a URL without its scheme. Never change it. Unset: the "
        "processor's domain and /lethe.",
    )
    checkpoint_file: Path | None = Field(
        default=None,
        description="File to which each new checkpoint is appended, best on another machine's disk.",
    )
    checkpoint_url: SecretStr | None = Field(
        default=None, description="URL to which each new checkpoint is sent with PUT."
    )
    witnesses: str = Field(
        default="",
        description="Comma-separated witnesses that cosign each new checkpoint: C2SP verifier key, @ and URL.",
    )

    log_level: str = Field(default="INFO", description="Lowest level of log lines that are written.")

    @field_validator("import_root", "identity_key_file", "signing_key_file", "log_key_file", "checkpoint_file")
    @classmethod
    def _empty_is_unset(cls, path: Path | None) -> Path | None:
        # Otherwise an empty variable would mean the working directory, which may contain secrets.
        return None if path == Path() else path

    @field_validator("lease_seconds", "sweep_seconds")
    @classmethod
    def _check_takeover_time(cls, seconds: float, field: ValidationInfo) -> float:
        limit = LONGEST_SECONDS[str(field.field_name)]
        if seconds > limit:
            raise ValueError(f"choose at most {limit}, so that a dead worker's batch continues within 60 seconds")
        return seconds

    @field_validator("trusted_proxies")
    @classmethod
    def _check_proxies(cls, text: str) -> str:
        _parse_networks(text)
        return text

    @field_validator("callback_allow")
    @classmethod
    def _check_targets(cls, text: str) -> str:
        AllowedTargets.parse(text)
        return text

    @field_validator("witnesses")
    @classmethod
    def _check_witnesses(cls, text: str) -> str:
        parse_witnesses(text)
        return text

    @property
    def origin(self) -> str:
        return self.log_origin or f"{self.processor_domain}/lethe"

    @property
    def embedded(self) -> bool:
        return self.database_url is None and self.redis_url is None

    @property
    def database(self) -> str:
        if self.database_url is None:
            return f"sqlite:///{self.data_dir.resolve() / 'lethe.db'}"
        url = self.database_url.get_secret_value()
        # Hosting providers use URLs without a driver; psycopg 3 is the only driver that Lethe installs.
        for prefix in ("postgresql://", "postgres://"):
            if url.startswith(prefix):
                return "postgresql+psycopg://" + url.removeprefix(prefix)
        return url

    @property
    def broker(self) -> str:
        if self.redis_url is None:
            return f"redis+socket://{quote(str(broker_socket(self.data_dir)))}"
        return self.redis_url.get_secret_value()

    @property
    def callback_targets(self) -> AllowedTargets:
        return AllowedTargets.parse(self.callback_allow)

    @property
    def proxy_networks(self) -> tuple[IPv4Network | IPv6Network, ...]:
        return _parse_networks(self.trusted_proxies)

    @property
    def log_witnesses(self) -> Sequence[Witness]:
        return parse_witnesses(self.witnesses)

    @property
    def artifact_dir(self) -> Path:
        return self.data_dir / "artifacts"

    @property
    def token_dir(self) -> Path:
        return self.data_dir / "tokens"

    def identity_keys(self) -> Sequence[bytes]:
        """Return the identity keys, oldest first. Workers and the sweep never ask for them."""
        source = self.identity_key_source
        text = _read_text(source)
        parts = text.get_secret_value().split(",") if text else [""]
        return [_decode_key(source.variable, SecretStr(part.strip())) for part in parts]

    def signing_key_bytes(self) -> bytes:
        return _read_key(self.signing_key_source)

    def log_key_bytes(self) -> bytes:
        return _read_key(self.log_key_source)

    @property
    def identity_key_source(self) -> KeySource:
        """Return where the identity keys come from."""
        source = KeySource("LETHE_IDENTITY_KEY", self.identity_key, self.identity_key_file, self.identity_key_command)
        return _require_one(source)

    @property
    def signing_key_source(self) -> KeySource:
        """Return where the key comes from that signs statements."""
        source = KeySource("LETHE_SIGNING_KEY", self.signing_key, self.signing_key_file, self.signing_key_command)
        return _require_one(source)

    @property
    def log_key_source(self) -> KeySource:
        """Return where the key comes from that signs checkpoints."""
        return _require_one(KeySource("LETHE_LOG_KEY", self.log_key, self.log_key_file, self.log_key_command))


def _parse_networks(text: str) -> tuple[IPv4Network | IPv6Network, ...]:
    return tuple(ip_network(part.strip()) for part in text.split(",") if part.strip())


def load_settings(data_dir: Path | None = None) -> Settings:
    """Read the settings. Create missing secrets in embedded mode; reject unsafe settings otherwise."""
    overrides = {} if data_dir is None else {"data_dir": data_dir}
    try:
        settings = Settings(**overrides)  # type: ignore[arg-type]
    except ValidationError as error:
        raise ConfigurationError(_describe(error)) from None
    if settings.embedded:
        return _with_local_secrets(settings)
    _reject_unsafe(settings)
    return settings


def new_key() -> str:
    """Return a new secret for LETHE_IDENTITY_KEY, LETHE_SIGNING_KEY or LETHE_LOG_KEY."""
    return base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode()


def write_private_file(path: Path, text: str) -> None:
    """Create a file that only its owner can read. Raise FileExistsError instead of overwriting.

    The complete file is linked into place, so that a process starting at the same time never reads half a key.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    draft.touch(mode=0o600, exist_ok=False)
    try:
        draft.write_text(text)
        path.hardlink_to(draft)
    finally:
        draft.unlink()


def _with_local_secrets(settings: Settings) -> Settings:
    settings.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder = settings.data_dir / "secrets"
    local: dict[str, SecretStr | Path] = {}
    if not settings.identity_key_source.variables:
        local["identity_key_file"] = _ensure_key_file(folder / "identity_key.key")
    if not settings.signing_key_source.variables:
        local["signing_key_file"] = _ensure_key_file(folder / "signing_key.key")
    if not settings.log_key_source.variables:
        local["log_key_file"] = _ensure_key_file(folder / "log_key.key")
    return settings.model_copy(update=local)


def _ensure_key_file(path: Path) -> Path:
    with contextlib.suppress(FileExistsError):
        write_private_file(path, new_key())
    return path


def _reject_unsafe(settings: Settings) -> None:
    for variable, value in (("DATABASE_URL", settings.database_url), ("REDIS_URL", settings.redis_url)):
        text = value.get_secret_value().strip() if value else ""
        if not text:
            raise ConfigurationError(f"{variable} is not set: {_remedy(variable)}")
        if (urlsplit(text).password or "").lower() in PLACEHOLDERS:
            raise ConfigurationError(f"{variable} has a placeholder password: replace it by the real one.")
    for source in (settings.signing_key_source, settings.log_key_source):
        if source.command is None:  # run only when the key is needed: most CLI commands do not
            _read_key(source)


def _require_one(source: KeySource) -> KeySource:
    """Return the source. Two variables could supply two keys and are an error."""
    if len(source.variables) > 1:
        variables = " and ".join(source.variables)
        raise ConfigurationError(f"{variables} are set: keep the one that supplies the key in use.")
    return source


def _read_key(source: KeySource) -> bytes:
    return _decode_key(source.variable, _read_text(source))


def _read_text(source: KeySource) -> SecretStr | None:
    try:
        return source.read()
    except KeyUnavailable as error:
        raise ConfigurationError(str(error)) from None


def _decode_key(variable: str, value: SecretStr | None) -> bytes:
    if value is None or not value.get_secret_value().strip():
        raise ConfigurationError(f"{variable} is not set: {_remedy(variable)}")
    try:
        key = base64.b64decode(value.get_secret_value(), validate=True)
    except binascii.Error:
        key = b""
    if len(key) != KEY_BYTES or len(set(key)) < 8:
        raise ConfigurationError(
            f"{variable} is a placeholder or damaged (it must be the base64 of {KEY_BYTES} random bytes): "
            f"{_remedy(variable)}"
        )
    return key


def _remedy(variable: str) -> str:
    if variable in ("DATABASE_URL", "REDIS_URL"):
        return "set both DATABASE_URL and REDIS_URL, or neither for embedded mode."
    return "run `lethe secrets` to create one and store it with your other secrets."


def _describe(error: ValidationError) -> str:
    lines = []
    for problem in error.errors(include_input=False, include_url=False):
        name = str(problem["loc"][0]).upper()
        variable = name if name in ("DATABASE_URL", "REDIS_URL") else f"LETHE_{name.removeprefix('LETHE_')}"
        lines.append(f"{variable}: {problem['msg']}")
    return "; ".join(lines)
