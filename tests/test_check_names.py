from __future__ import annotations

import pytest

from tests import check_names
from tests.check_names import main, vague_names


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("found = 1", ["found"]),
        ("found: int = 1", ["found"]),
        ("for of, certificate in pairs: pass", ["of"]),
        ("def told(known, *, _one=1): pass", ["told", "known", "_one"]),
        ("class Place: pass", ["Place"]),
        ("import lethe as thing", ["thing"]),
        ("[one for one in rows]", ["one"]),
        ("with open(path) as here: pass", ["here"]),
        ("if (said := read()): pass", ["said"]),
    ],
)
def test_vague_names_are_reported(source: str, names: list[str]) -> None:
    assert sorted(name for _, name in vague_names(source)) == sorted(names)


@pytest.mark.parametrize(
    "source",
    ["deletion.found", "return_value = known_keys", "call(of=1)", "found", "'one'", "foundation = 1", "import thing"],
)
def test_uses_and_longer_names_are_not_reported(source: str) -> None:
    assert list(vague_names(source)) == []


def test_the_line_is_reported() -> None:
    assert list(vague_names("import os\n\nmoment = os.times()\n")) == [(3, "moment")]


def test_the_check_fails_with_file_line_and_name(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path_factory.mktemp("repository")
    (root / "worker").mkdir()
    (root / "worker" / "app.py").write_text("queue = 1\n")
    monkeypatch.setattr(check_names, "ROOT", root)
    assert main() == 0
    (root / "worker" / "app.py").write_text("queue = 1\nfound = 2\n")
    assert main() == 1
    assert capsys.readouterr().out == "worker/app.py:2: 'found' fits any value: name what it holds\n"
