"""torchvision beside a torch that it was not built for.

A torchvision built for CUDA cannot load its compiled operators beside a CPU torch. Its data sets need none of them, yet
its import describes two detection operators and fails where these do not exist. Declaring their schemas is enough.
"""

import importlib
from types import ModuleType

import torch

from ml.errors import InvalidInput

_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
# A library's declarations live as long as the library does.
_declared: list[torch.library.Library] = []


def torchvision_datasets() -> ModuleType:
    """torchvision.datasets; the operators are declared only if torchvision fails for want of them."""
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
