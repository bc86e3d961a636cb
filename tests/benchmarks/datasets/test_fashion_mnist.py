"""On a tiny data set in the same format; and on the real one where it is installed."""

from __future__ import annotations

import gzip
import hashlib
import struct
from importlib.util import find_spec
from pathlib import Path
from urllib.error import URLError

import pytest
import torch
from torch import Tensor

from benchmarks.datasets import fashion_mnist as module
from benchmarks.datasets.fashion_mnist import DEBIAN_FOLDER, fashion_mnist
from benchmarks.datasets.torchvision_import import torchvision_datasets
from ml.errors import InvalidInput

pytestmark = pytest.mark.skipif(find_spec("torchvision") is None, reason="torchvision is not installed")

IMAGES, LABELS = "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"


def idx(values: Tensor) -> bytes:
    """The IDX format: two zeros, the type (8: unsigned bytes), the number of axes, their lengths, the values."""
    return struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape) + bytes(values.flatten().tolist())


class Tiny:
    def __init__(self, folder: Path) -> None:
        self.folder, self.checksums = folder, {}
        generator = torch.Generator().manual_seed(0)
        self.images = torch.randint(256, (5, 28, 28), generator=generator)
        self.images[0], self.images[1] = 0, 255
        self.labels = torch.tensor([3, 1, 4, 1, 5])
        for name, values in ((IMAGES, self.images), (LABELS, self.labels)):
            (folder / f"{name}.gz").write_bytes(gzip.compress(idx(values)))
            self.checksums[name] = hashlib.sha256(idx(values)).hexdigest()

    def read(self) -> Tensor:
        return fashion_mnist(train=False, folder=self.folder, checksums=self.checksums)


@pytest.fixture
def tiny(tmp_path: Path) -> Tiny:
    return Tiny(tmp_path)


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise URLError("no route to host")

    monkeypatch.setattr(torchvision_datasets().utils, "download_url", fail)


def bilinear(image: Tensor, side: int) -> Tensor:
    """The picture at the centres of side×side cells by linear interpolation, as a matrix on each side of it."""
    length = len(image)
    centres = ((torch.arange(side) + 0.5) * length / side - 0.5).clamp(0, length - 1)
    weights = (1 - (centres.unsqueeze(1) - torch.arange(length)).abs()).clamp(min=0)
    return weights @ image.float() @ weights.T


def test_rows_of_a_tiny_data_set(tiny: Tiny) -> None:
    rows = tiny.read()
    assert rows.shape == (5, 1025)
    assert rows.dtype == torch.float32
    assert rows[:, -1].tolist() == [3, 1, 4, 1, 5]
    expected = torch.stack([bilinear(image, 32) for image in tiny.images]).flatten(1) / 255 - 0.5
    assert torch.allclose(rows[:, :-1], expected, atol=1e-5)
    assert torch.equal(rows[0, :-1], torch.full((1024,), -0.5))
    assert torch.allclose(rows[1, :-1], torch.full((1024,), 0.5), atol=1e-6)


def test_chunks_leave_no_seam(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = tiny.read()
    monkeypatch.setattr(module, "_CHUNK_ROWS", 2)
    assert torch.equal(tiny.read(), whole)


def test_the_folder_is_only_read(tiny: Tiny) -> None:
    before = {path: path.stat().st_mtime_ns for path in tiny.folder.iterdir()}
    tiny.read()
    assert {path: path.stat().st_mtime_ns for path in tiny.folder.iterdir()} == before


def test_other_data_is_refused(tiny: Tiny) -> None:
    with pytest.raises(InvalidInput, match=r"t10k-images-idx3-ubyte\.gz is not Fashion-MNIST"):
        fashion_mnist(train=False, folder=tiny.folder)


def test_changed_labels_are_refused(tiny: Tiny) -> None:
    (tiny.folder / f"{LABELS}.gz").write_bytes(gzip.compress(idx(tiny.labels.flip(0))))
    with pytest.raises(InvalidInput, match=r"t10k-labels-idx1-ubyte\.gz is not Fashion-MNIST"):
        tiny.read()


@pytest.mark.parametrize("content", [b"no archive at all", gzip.compress(bytes(range(256)) * 9)[:-20], b""])
def test_a_broken_archive_is_refused(tiny: Tiny, content: bytes) -> None:
    (tiny.folder / f"{IMAGES}.gz").write_bytes(content)
    with pytest.raises(InvalidInput, match=r"cannot be unpacked|is not Fashion-MNIST"):
        tiny.read()


@pytest.mark.usefixtures("no_network")
def test_without_folder_and_network_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        InvalidInput, match=r"no route to host.*install Debian's package dataset-fashion-mnist, or pass"
    ):
        fashion_mnist(folder=tmp_path / "nowhere")
    monkeypatch.setattr(module, "DEBIAN_FOLDER", tmp_path / "not-debian")
    with pytest.raises(
        InvalidInput, match=r"no route to host.*install Debian's package dataset-fashion-mnist, or pass"
    ):
        fashion_mnist()


def test_missing_files_are_downloaded_into_the_folder_and_checked(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def download(url: str, root: Path, filename: str, md5: str) -> None:
        asked.append((url, md5))
        root.mkdir(exist_ok=True)
        (root / filename).write_bytes((tiny.folder / filename).read_bytes())

    monkeypatch.setattr(torchvision_datasets().utils, "download_url", download)
    target = tmp_path / "fetched"
    rows = fashion_mnist(train=False, folder=target, checksums=tiny.checksums)
    assert torch.equal(rows, tiny.read())
    official = dict(torchvision_datasets().FashionMNIST.resources)
    assert [md5 for _, md5 in asked] == [official[f"{IMAGES}.gz"], official[f"{LABELS}.gz"]]
    assert all(url.startswith("http") and url.endswith(".gz") for url, _ in asked)
    fashion_mnist(train=False, folder=target, checksums=tiny.checksums)
    assert len(asked) == 2


def test_half_a_download_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def break_off(url: str, root: Path, filename: str, md5: str) -> None:
        (root / filename).write_bytes(b"half")
        raise RuntimeError("File not found or corrupted.")

    monkeypatch.setattr(torchvision_datasets().utils, "download_url", break_off)
    with pytest.raises(InvalidInput, match="cannot be downloaded"):
        fashion_mnist(folder=tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.skipif(not DEBIAN_FOLDER.is_dir(), reason="Debian's package dataset-fashion-mnist is not installed")
def test_the_real_data_set() -> None:
    for train, n in ((True, 60_000), (False, 10_000)):
        rows = fashion_mnist(train)
        assert rows.shape == (n, 1025)
        assert torch.bincount(rows[:, -1].long()).tolist() == [n // 10] * 10
        low, high = torch.aminmax(rows[:, :-1])
        assert (float(low), float(high)) == pytest.approx((-0.5, 0.5), abs=1e-6)
    trousers, sandals = (rows[rows[:, -1] == label, :-1].mean(0).view(32, 32) for label in (1, 5))
    assert float(trousers[:, 12:20].mean()) > float(trousers[:, :6].mean()) + 0.3
    assert float(sandals[:8].mean()) < float(sandals[14:24].mean())
