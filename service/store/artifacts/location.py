"""Location of the artifact store, as configured."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from service.settings import ConfigurationError, Settings
from service.store.artifacts.folder import ArtifactFolder
from service.store.artifacts.store import ArtifactStore


def open_artifacts(settings: Settings) -> ArtifactStore:
    """Return the folder in the data folder, or the store at LETHE_ARTIFACT_URL. Nothing is connected yet."""
    url = settings.artifact_url.get_secret_value() if settings.artifact_url else ""
    if not url:
        return ArtifactFolder(settings.artifact_dir)
    if url.startswith("file://"):
        return ArtifactFolder(Path(unquote(urlsplit(url).path)))
    # Imported late: fsspec and an S3 client take most of a second.
    from service.store.artifacts.bucket import ArtifactBucket

    try:
        return ArtifactBucket(url)
    except (ImportError, ValueError) as error:
        raise ConfigurationError(
            f"LETHE_ARTIFACT_URL cannot be opened ({type(error).__name__}): write it like s3://bucket/prefix, and "
            "install the package that fsspec needs for it (for S3: pip install 'lethe[s3]')."
        ) from error
