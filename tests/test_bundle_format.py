"""The documented bundle format: its example is verified, and the values on the page are those of the example."""

from __future__ import annotations

import pytest

from lethe.verify import verify
from tests.corpus.example import FOLDER, PAGE, intermediate_values

FILES = {path.name: path.read_bytes() for path in FOLDER.iterdir()}


def test_the_example_is_verified() -> None:
    later, posterior = FILES["later.json"], FILES["posterior"]
    assert verify(FILES["certificate.json"], FILES["keys.json"], posterior, later).kind == "certificate"


@pytest.mark.parametrize(("name", "value"), intermediate_values().items())
def test_the_page_gives_the_values_of_the_example(name: str, value: str) -> None:
    assert f"| {name} | {value} |" in PAGE.read_text()
