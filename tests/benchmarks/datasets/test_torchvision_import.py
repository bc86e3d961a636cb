from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import pytest

from benchmarks.datasets import torchvision_import
from benchmarks.datasets.torchvision_import import torchvision_datasets
from ml.errors import InvalidInput

pytestmark = pytest.mark.skipif(find_spec("torchvision") is None, reason="torchvision is not installed")

# Whoever declares a namespace a second time is refused by torch, so a second declaration would not go unseen.
DECLARE = """
import torch
library = torch.library.Library("torchvision", "DEF")
for name in ("nms", "qnms"):
    library.define(name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""
IMPORT = """
from benchmarks.datasets import torchvision_import
for _ in range(2):
    print(torchvision_import.torchvision_datasets().FashionMNIST.__name__, len(torchvision_import._declared))
"""


def run(script: str) -> list[str]:
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


@pytest.fixture(scope="module")
def plain_import_works() -> bool:
    return (
        subprocess.run([sys.executable, "-c", "import torchvision"], capture_output=True, check=False).returncode == 0
    )


@pytest.mark.slow
def test_the_data_sets_can_be_imported_whatever_torch_it_was_built_for(plain_import_works: bool) -> None:
    declared = 0 if plain_import_works else 1
    assert run(IMPORT) == [f"FashionMNIST {declared}"] * 2


@pytest.mark.slow
def test_operators_that_exist_are_left_alone(plain_import_works: bool) -> None:
    if plain_import_works:
        pytest.skip("this torchvision brings the operators: the test above has seen that they were left alone")
    assert run(DECLARE + IMPORT) == ["FashionMNIST 0"] * 2


def test_another_failure_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise RuntimeError(f"{name} is broken")

    monkeypatch.setattr(torchvision_import.importlib, "import_module", fail)
    with pytest.raises(RuntimeError, match=r"torchvision\.datasets is broken"):
        torchvision_datasets()


def test_a_missing_torchvision_is_told_how_to_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", None)
    monkeypatch.delitem(sys.modules, "torchvision.datasets", raising=False)
    with pytest.raises(InvalidInput, match="pip install torchvision"):
        torchvision_datasets()
