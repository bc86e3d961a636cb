"""All settings of Lethe, each with its default and its description. `loading.py` reads them."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from urllib.parse import quote

from pydantic import Field, SecretStr, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from service.settings.broker_socket import broker_socket
from service.settings.callback_targets import AllowedTargets
from service.settings.key_sources import KeySource
from service.settings.keys import read_key, read_key_list, require_one
from service.settings.witnesses import Witness, parse_witnesses

LONGEST_SECONDS = {"lease_seconds": 45, "sweep_seconds": 10}
"""Upper limits. Together they are below the 60 seconds within which a dead worker's batch must continue."""


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
    refresh_below: float = Field(
        default=0.8,
        ge=0,
        le=1,
        description="Share of a sample set's draws below which an idle worker continues its chains, for draws with "
        "even weights. 0.8 leaves room to forget once more as much as was forgotten since. 0: only on request.",
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
        return read_key_list(self.identity_key_source)

    def signing_key_bytes(self) -> bytes:
        return read_key(self.signing_key_source)

    def log_key_bytes(self) -> bytes:
        return read_key(self.log_key_source)

    @property
    def identity_key_source(self) -> KeySource:
        """Return where the identity keys come from."""
        source = KeySource("LETHE_IDENTITY_KEY", self.identity_key, self.identity_key_file, self.identity_key_command)
        return require_one(source)

    @property
    def signing_key_source(self) -> KeySource:
        """Return where the key comes from that signs statements."""
        source = KeySource("LETHE_SIGNING_KEY", self.signing_key, self.signing_key_file, self.signing_key_command)
        return require_one(source)

    @property
    def log_key_source(self) -> KeySource:
        """Return where the key comes from that signs checkpoints."""
        return require_one(KeySource("LETHE_LOG_KEY", self.log_key, self.log_key_file, self.log_key_command))


def _parse_networks(text: str) -> tuple[IPv4Network | IPv6Network, ...]:
    return tuple(ip_network(part.strip()) for part in text.split(",") if part.strip())
