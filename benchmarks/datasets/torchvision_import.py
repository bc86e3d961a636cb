"""Import of torchvision with a torch that it was not built for.

A torchvision built for CUDA cannot load its compiled operators with a CPU torch. Its data sets need none of them, but
its import registers two detection operators and fails if they do not exist. Declaring their schemas is enough.
"""

import importlib
from types import ModuleType

import torch

from ml.errors import InvalidInput

_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
# Kept alive: a library's declarations end with the library object.
_declared: list[torch.library.Library] = []


def torchvision_datasets() -> ModuleType:
    """Return torchvision.datasets. Declare the operators only if the import fails without them."""
    try:
        return importlib.import_module("torchvision.datasets")
    except ModuleNotFoundError as error:
        raise InvalidInput(f"image data sets need {error.name}: pip install torchvision") from error
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
    _declare_operators()
    return importlib.import_module("torchvision.datasets")


def _declare_operators() -> None:
    library = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
    for name in ("nms", "qnms"):
        library.define(name + _SCHEMA)  # type: ignore[no-untyped-call]
    _declared.append(library)
