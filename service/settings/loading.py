"""Loading of the settings, from the environment or a `.env` file.

Two modes:

- embedded (neither DATABASE_URL nor REDIS_URL is set): SQLite, a child Redis and all secrets are in the data folder and
  created at first start;
- deployed (both are set): nothing is created, and a missing or placeholder secret is an error that names the variable.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from pydantic import SecretStr, ValidationError

from service.settings.keys import ConfigurationError, ensure_key_file, make_private_folder, read_key
from service.settings.settings import Settings

PLACEHOLDERS = ("change-me", "changeme", "placeholder", "password", "secret")
BOTH_OR_NEITHER = "set both DATABASE_URL and REDIS_URL, or neither for embedded mode."


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


def _with_local_secrets(settings: Settings) -> Settings:
    make_private_folder(settings.data_dir)
    folder = settings.data_dir / "secrets"
    local: dict[str, SecretStr | Path] = {}
    if not settings.identity_key_source.variables:
        local["identity_key_file"] = ensure_key_file(folder / "identity_key.key")
    if not settings.signing_key_source.variables:
        local["signing_key_file"] = ensure_key_file(folder / "signing_key.key")
    if not settings.log_key_source.variables:
        local["log_key_file"] = ensure_key_file(folder / "log_key.key")
    return settings.model_copy(update=local)


def _reject_unsafe(settings: Settings) -> None:
    for variable, value in (("DATABASE_URL", settings.database_url), ("REDIS_URL", settings.redis_url)):
        text = value.get_secret_value().strip() if value else ""
        if not text:
            raise ConfigurationError(f"{variable} is not set: {BOTH_OR_NEITHER}")
        if (urlsplit(text).password or "").lower() in PLACEHOLDERS:
            raise ConfigurationError(f"{variable} has a placeholder password: replace it by the real one.")
    for source in (settings.signing_key_source, settings.log_key_source):
        if source.command is None:  # run only when the key is needed: most CLI commands do not
            read_key(source)


def _describe(error: ValidationError) -> str:
    lines = []
    for problem in error.errors(include_input=False, include_url=False):
        name = str(problem["loc"][0]).upper()
        variable = name if name in ("DATABASE_URL", "REDIS_URL") else f"LETHE_{name.removeprefix('LETHE_')}"
        lines.append(f"{variable}: {problem['msg']}")
    return "; ".join(lines)
