"""Every setting of Lethe, read once from the environment (or a `.env` file).

Two ways to run:

- embedded (neither DATABASE_URL nor REDIS_URL is set): SQLite, a child Redis and all secrets live under the data
  folder, made at first start;
- deployed (both are set): nothing is made up, so a missing or placeholder secret stops the start and is named.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import secrets
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote, urlsplit

from pydantic import Field, SecretStr, ValidationError, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from service.settings.broker_socket import broker_socket
from service.settings.callback_targets import AllowedTargets
from service.settings.key_sources import COMMAND, KeyUnavailable, read_key_file, run_key_command
from service.settings.witnesses import Witness, parse_witnesses

PLACEHOLDERS = ("change-me", "changeme", "placeholder", "password", "secret")
KEY_BYTES = 32
LONGEST_SECONDS = {"lease_seconds": 45, "sweep_seconds": 10}
"""Together below the 60 seconds within which a dead worker's batch goes on."""


class ConfigurationError(Exception):
    """The environment does not describe a Lethe that may start. The message names the variable and the remedy."""


class Settings(BaseSettings):
    """What the environment may set; the field name in capitals behind LETHE_ unless an alias says otherwise."""

    model_config = SettingsConfigDict(
        env_prefix="LETHE_", env_file=".env", extra="ignore", frozen=True, populate_by_name=True
    )

    data_dir: Path = Path(".lethe")
    database_url: SecretStr | None = Field(default=None, validation_alias="DATABASE_URL")
    redis_url: SecretStr | None = Field(default=None, validation_alias="REDIS_URL")
    identity_key: SecretStr | None = None
    """Base64 of 32 bytes; keys the HMAC under which identities are looked up. Losing it loses every subject."""
    signing_key: SecretStr | None = None
    """Base64 of a 32-byte Ed25519 seed; signs receipts and certificates. It, or one of the next two (docs/keys.md)."""
    signing_key_file: Path | None = None
    """A file that holds the same, readable by its owner alone. The embedded default makes one."""
    signing_key_command: SecretStr | None = None
    """A command that prints the same, such as a vault's client. Split as a shell would, but run without one."""

    artifact_url: SecretStr | None = None
    """Where artifacts live if not below the data folder: any URL of fsspec, such as s3://bucket/prefix. Credentials and
    endpoint are read by fsspec and the store's own library from the environment of the process (not from .env):
    AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL, or anything else as FSSPEC_S3_<ARGUMENT>."""

    max_body_bytes: int = Field(default=1 << 20, gt=0)
    max_upload_bytes: int = Field(default=1 << 30, gt=0)
    """Limit for model registrations, which carry a data set."""
    max_bulk_bytes: int = Field(default=16 << 20, gt=0)
    """Limit for many deletions in one request."""

    rate_per_second: float = Field(default=500.0, gt=0)
    """How many requests a token may send in the long run; past it, 429."""
    rate_burst: int = Field(default=5_000, ge=1)
    """How many it may send at once after a rest."""
    token_cache_seconds: float = Field(default=1.0, ge=0)
    """A revoked token is refused everywhere after this long."""
    idempotency_wait_seconds: float = Field(default=2.0, ge=0)
    """How long a repeated request waits for the answer to the first before it is told to come again."""

    import_root: Path | None = None
    """The folder below which models may be registered by location; unset, none may."""

    batch_window_seconds: float = Field(default=1.0, ge=0)
    """How long a deletion waits, so that a burst of requests becomes one batch; hours make it a nightly one. Never
    longer than a tenth of the time to its deadline."""
    batch_most_deletions: int = Field(default=10_000, ge=1)
    """The largest batch. What is left over is for the next one, after other models had their turn."""
    batch_largest_fraction: float = Field(default=0.5, gt=0, le=1)
    """Of a model's current records: the most that one batch forgets, unless a single deletion names more."""
    lease_seconds: float = Field(default=15.0, gt=0)
    """A worker silent for this long has lost its batch; it renews three times as often. At most 45."""
    sweep_seconds: float = Field(default=1.0, gt=0)
    """How often work that nobody does is looked for. At most 10."""
    max_attempts: int = Field(default=5, ge=1)
    """After so many failures that may pass a deletion is given up, until somebody retries it."""
    task_seconds: float = Field(default=6 * 3600.0, gt=0)
    """A batch that computes for longer than this is stopped and fails with that reason."""
    worker_memory_bytes: int = Field(default=0, ge=0)
    """A worker's process that holds more than this after a batch is replaced by a fresh one; 0 for never."""
    shutdown_seconds: float = Field(default=20.0, ge=0)
    """How long a worker that is told to stop may go on with its batch; then it gives it back to the others."""
    superseded_retention_seconds: float = Field(default=0.0, ge=0)
    """How long a superseded posterior is kept. Erased rows are never kept."""

    callback_allow: str = ""
    """Hosts and networks that callbacks may go to though they are not public, or speak plain http: comma-separated."""
    callback_attempts: int = Field(default=15, ge=1)
    callback_base_seconds: float = Field(default=10.0, gt=0)
    """The delay after the first failure. It doubles each time, up to an hour."""
    callback_timeout_seconds: float = Field(default=10.0, gt=0)
    """For one attempt, from the look-up of the name to the status of the answer."""

    processor_domain: str = Field(default="localhost", pattern=r"^[A-Za-z0-9.-]{1,253}$")
    """The name under which platforms know us; the OpenDSR certificate carries it."""
    public_url: str = Field(default="", pattern=r"^(https?://[^\s?#]+)?$")
    """Where others reach the API, such as https://lethe.example.org. Unset, callbacks do not say where results are."""
    opendsr_key_file: Path | None = None
    opendsr_certificate_file: Path | None = None
    """PEM files from a certificate authority, instead of those made at first start."""

    log_origin: str = Field(default="", max_length=200, pattern=r"^[!-*,-~]*$")
    """The name of the transparency log, in each of its checkpoints: like a URL without its scheme, never changed again.
    Empty for the processor's domain and /lethe."""
    checkpoint_file: Path | None = None
    """A file, best on another machine's disk, to which each new checkpoint of the log is appended."""
    checkpoint_url: SecretStr | None = None
    """Where each new checkpoint is PUT."""
    witnesses: str = ""
    """Who is asked to sign each new checkpoint: verifier keys of C2SP, each with @ and a URL, comma-separated."""

    log_level: str = "INFO"

    @field_validator("import_root", "signing_key_file", "checkpoint_file")
    @classmethod
    def _empty_is_unset(cls, path: Path | None) -> Path | None:
        # An empty variable would otherwise mean the working directory, where secrets may be.
        return None if path == Path() else path

    @field_validator("lease_seconds", "sweep_seconds")
    @classmethod
    def _takes_over_in_time(cls, seconds: float, field: ValidationInfo) -> float:
        most = LONGEST_SECONDS[str(field.field_name)]
        if seconds > most:
            raise ValueError(f"choose at most {most}, so that a dead worker's batch goes on within 60 seconds")
        return seconds

    @field_validator("callback_allow")
    @classmethod
    def _are_targets(cls, text: str) -> str:
        AllowedTargets.parse(text)
        return text

    @field_validator("witnesses")
    @classmethod
    def _are_witnesses(cls, text: str) -> str:
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
        # Hosting providers hand out the driverless forms; psycopg 3 is the one driver we ship.
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
    def log_witnesses(self) -> Sequence[Witness]:
        return parse_witnesses(self.witnesses)

    @property
    def artifact_dir(self) -> Path:
        return self.data_dir / "artifacts"

    @property
    def token_dir(self) -> Path:
        return self.data_dir / "tokens"

    def identity_key_bytes(self) -> bytes:
        return _decode_key("LETHE_IDENTITY_KEY", self.identity_key)

    def signing_key_bytes(self) -> bytes:
        try:
            return _decode_key(self.signing_key_source, self._signing_key_text())
        except KeyUnavailable as error:
            raise ConfigurationError(str(error)) from None

    @property
    def signing_key_source(self) -> str:
        """The variable that leads to the signing key. Two of them might lead to two keys, so they are refused."""
        sources = ("signing_key", "signing_key_file", "signing_key_command")
        given = [f"LETHE_{name.upper()}" for name in sources if getattr(self, name)]
        if len(given) > 1:
            raise ConfigurationError(f"{' and '.join(given)} are set: keep the one that leads to the key in use.")
        return given[0] if given else "LETHE_SIGNING_KEY"

    def _signing_key_text(self) -> SecretStr | None:
        if self.signing_key_file:
            return SecretStr(read_key_file(self.signing_key_file))
        if self.signing_key_command:
            return SecretStr(run_key_command(self.signing_key_command.get_secret_value()))
        return self.signing_key


def load_settings(data_dir: Path | None = None) -> Settings:
    """Read the environment, make the embedded default's secrets if they are missing, and refuse what is unsafe."""
    overrides = {} if data_dir is None else {"data_dir": data_dir}
    try:
        settings = Settings(**overrides)  # type: ignore[arg-type]
    except ValidationError as error:
        raise ConfigurationError(_describe(error)) from None
    if settings.embedded:
        return _with_local_secrets(settings)
    _refuse_unsafe(settings)
    return settings


def new_key() -> str:
    """A fresh secret for LETHE_IDENTITY_KEY or LETHE_SIGNING_KEY."""
    return base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode()


def write_private(path: Path, text: str) -> None:
    """Create a file that only its owner can read; raises FileExistsError rather than overwrite.

    Linked into place when complete, so that a process starting at the same moment never reads half a key.
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
    made: dict[str, SecretStr | Path] = {}
    if settings.identity_key is None:
        made["identity_key"] = SecretStr(_made(folder / "identity_key.key").read_text().strip())
    if settings.signing_key_source == "LETHE_SIGNING_KEY" and not settings.signing_key:
        made["signing_key_file"] = _made(folder / "signing_key.key")
    return settings.model_copy(update=made)


def _made(path: Path) -> Path:
    with contextlib.suppress(FileExistsError):
        write_private(path, new_key())
    return path


def _refuse_unsafe(settings: Settings) -> None:
    for variable, value in (("DATABASE_URL", settings.database_url), ("REDIS_URL", settings.redis_url)):
        text = value.get_secret_value().strip() if value else ""
        if not text:
            raise ConfigurationError(f"{variable} is not set: {_remedy(variable)}")
        if (urlsplit(text).password or "").lower() in PLACEHOLDERS:
            raise ConfigurationError(f"{variable} still holds a placeholder password: put the real one there.")
    settings.identity_key_bytes()
    if settings.signing_key_source != COMMAND:  # which is run when the key is needed: most commands do without
        settings.signing_key_bytes()


def _decode_key(variable: str, value: SecretStr | None) -> bytes:
    if value is None or not value.get_secret_value().strip():
        raise ConfigurationError(f"{variable} is not set: {_remedy(variable)}")
    try:
        key = base64.b64decode(value.get_secret_value(), validate=True)
    except binascii.Error:
        key = b""
    if len(key) != KEY_BYTES or len(set(key)) < 8:
        raise ConfigurationError(
            f"{variable} is a placeholder or damaged (it must be base64 of {KEY_BYTES} random bytes): "
            f"{_remedy(variable)}"
        )
    return key


def _remedy(variable: str) -> str:
    if variable in ("DATABASE_URL", "REDIS_URL"):
        return "set both DATABASE_URL and REDIS_URL, or neither for the embedded default."
    return "run `lethe secrets` to make one and put it where your other secrets are."


def _describe(error: ValidationError) -> str:
    lines = []
    for problem in error.errors(include_input=False, include_url=False):
        name = str(problem["loc"][0]).upper()
        variable = name if name in ("DATABASE_URL", "REDIS_URL") else f"LETHE_{name.removeprefix('LETHE_')}"
        lines.append(f"{variable}: {problem['msg']}")
    return "; ".join(lines)
