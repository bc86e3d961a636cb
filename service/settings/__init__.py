"""Settings of the service and its workers, read once from the environment."""

from service.settings.keys import ConfigurationError, make_private_folder, new_key, write_private_file
from service.settings.loading import load_settings
from service.settings.settings import Settings

__all__ = ["ConfigurationError", "Settings", "load_settings", "make_private_folder", "new_key", "write_private_file"]
