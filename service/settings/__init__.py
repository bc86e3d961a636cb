"""Settings of the service and its workers, read once from the environment."""

from service.settings.settings import ConfigurationError, Settings, load_settings, new_key, write_private_file

__all__ = ["ConfigurationError", "Settings", "load_settings", "new_key", "write_private_file"]
