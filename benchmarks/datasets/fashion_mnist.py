"""Fashion-MNIST (H. Xiao, K. Rasul, R. Vollgraf, 2017) as the BIF paper uses it: 32×32 pixels in [-0.5, 0.5].

70,000 grey images of clothes in ten classes: 60,000 for training, 10,000 for testing.
"""

from __future__ import annotations

import gzip
import hashlib
import shutil
import tempfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from benchmarks.datasets.torchvision_import import torchvision_datasets
from ml.errors import InvalidInput

DEBIAN_FOLDER = Path("/usr/share/datasets/fashion-mnist")  # of the package dataset-fashion-mnist
# Digests of the contents. Debian rewrites the headers of the .gz files, so those differ from torchvision's.
SHA256 = {
    "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}
_SIDE = 32
_CHUNK_ROWS = 1024
_REMEDY = (
    "install Debian's package dataset-fashion-mnist, or pass as `folder` a folder with the four files *-ubyte.gz of "
    "https://github.com/zalandoresearch/fashion-mnist"
)


def fashion_mnist(train: bool = True, folder: Path | None = None, checksums: Mapping[str, str] = SHA256) -> Tensor:
    """Return rows of 1,024 pixels and the class 0 to 9: (60,000 or 10,000, 1,025) in float32, up to 246 MB.

    `folder` holds the .gz files; the default is the folder of Debian's package. Missing files are downloaded into
    `folder` or, without one, for this call only. `checksums` are the SHA-256 of the unpacked files.
    """
    datasets = torchvision_datasets()
    part = "train" if train else "t10k"
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        source = folder or (DEBIAN_FOLDER if DEBIAN_FOLDER.is_dir() else scratch)
        unpacked = [
            _unpack(_find(datasets, source, file), scratch / file, checksums[file])
            for file in (f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte")
        ]
        images, labels = datasets.mnist.read_image_file(unpacked[0]), datasets.mnist.read_label_file(unpacked[1])
    return _rows(images, labels)


def _find(datasets: Any, folder: Path, file: str) -> Path:
    archive = folder / f"{file}.gz"
    if not archive.is_file():
        md5 = dict(datasets.FashionMNIST.resources)[archive.name]
        url = datasets.FashionMNIST.mirrors[0] + archive.name
        try:
            datasets.utils.download_url(url, folder, archive.name, md5)
        except (OSError, RuntimeError) as error:
            archive.unlink(missing_ok=True)  # a partial file would pass for a complete one next time
            raise InvalidInput(f"{archive} is missing and cannot be downloaded ({error}): {_REMEDY}") from error
    return archive


def _unpack(archive: Path, target: Path, checksum: str) -> str:
    """Unpack and check an archive, and return the path as a string, which torchvision's reader needs."""
    try:
        with gzip.open(archive) as packed, target.open("wb") as plain:
            shutil.copyfileobj(packed, plain)
    except (OSError, EOFError, zlib.error) as error:
        raise InvalidInput(f"{archive} cannot be unpacked ({error}): {_REMEDY}") from error
    with target.open("rb") as plain:
        digest = hashlib.file_digest(plain, "sha256").hexdigest()
    if digest != checksum:
        raise InvalidInput(f"{archive} is not Fashion-MNIST (SHA-256 {digest}): {_REMEDY}")
    return str(target)


def _rows(images: Tensor, labels: Tensor) -> Tensor:
    """Resize in chunks, so that the data set is in memory only once."""
    rows = torch.empty(len(images), _SIDE**2 + 1)
    for chunk, pixels in zip(torch.split(rows, _CHUNK_ROWS), torch.split(images, _CHUNK_ROWS), strict=True):
        resized = interpolate(pixels.unsqueeze(1).float(), size=(_SIDE, _SIDE), mode="bilinear", align_corners=False)
        chunk[:, :-1] = resized.flatten(1) / 255 - 0.5
    rows[:, -1] = labels
    return rows
