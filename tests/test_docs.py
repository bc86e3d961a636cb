"""The documentation: links resolve, named files exist, generated pages are current."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from docs.generate import REFERENCE, cli_page, pages

REPOSITORY = Path(__file__).resolve().parents[1]
PAGES = sorted([*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/**/*.md")])
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
PACKAGES = "benchmarks|deploy|docs|examples|lethe|migrations|ml|service|tests|vocabulary|worker"
SOURCE_PATH = re.compile(rf"(?<![\w./-])(?:{PACKAGES})/(?:[\w.-]+/)*(?:[\w-]+(?:\.\w+)+)?")
LONGEST_README_LINE = 120


def page_name(page: Path) -> str:
    return str(page.relative_to(REPOSITORY))


def prose(page: Path) -> str:
    """Return the text of a page without its code blocks."""
    return re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> Iterator[str]:
    """Yield the anchors of a page's headings, as GitHub derives them."""
    for heading in re.findall(r"^#+ (.+)$", prose(page), flags=re.MULTILINE):
        text = LINK.sub(lambda link: link[0][1 : link[0].index("]")], heading)
        yield re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_relative_links_resolve(page: Path) -> None:
    broken = []
    for link in LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_named_source_files_exist(page: Path) -> None:
    missing = {path for path in SOURCE_PATH.findall(page.read_text()) if not (REPOSITORY / path).exists()}
    assert missing == set()


def test_every_page_is_in_the_index() -> None:
    index = REPOSITORY / "docs/index.md"
    decisions = REPOSITORY / "docs/decisions/index.md"
    linked = {(page.parent / link.partition("#")[0]).resolve() for page in (index, decisions) for link in links(page)}
    unlinked = {page_name(page) for page in PAGES if "docs" in page.parts} - {
        page_name(page) for page in linked | {index} if page.is_relative_to(REPOSITORY)
    }
    assert unlinked == set()


def links(page: Path) -> list[str]:
    return LINK.findall(prose(page))


def test_the_tests_that_pages_name_exist() -> None:
    names = {name for page in PAGES for name in re.findall(r"`(tests/[\w/]+\.py(?:::\w+)?)`", page.read_text())}
    assert len(names) > 100
    assert {name for name in names if not _test_exists(*name.split("::"))} == set()


def _test_exists(path: str, function: str | None = None) -> bool:
    file = REPOSITORY / path
    return file.exists() and (function is None or f"def {function}(" in file.read_text())


def test_the_readme_fits_a_screen() -> None:
    lines = (REPOSITORY / "README.md").read_text().splitlines()
    assert max(len(line) for line in lines) <= LONGEST_README_LINE
    assert len(lines) <= 60


def test_the_readme_has_the_two_commands() -> None:
    readme = (REPOSITORY / "README.md").read_text()
    assert "    make demo " in readme
    assert "    make test " in readme


@pytest.mark.parametrize("name", ["settings.md", "cli.md", "api.md", "certificate.md"])
def test_generated_pages_are_current(name: str) -> None:
    assert (REFERENCE / name).read_text() == pages()[name], "run `make docs` and commit the page"


def test_every_setting_has_a_description() -> None:
    rows = [line for line in pages()["settings.md"].splitlines() if line.startswith("| `")]
    assert [row.split("|")[1] for row in rows if not row.split("|")[5].strip()] == []


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("delete", ["--regulation", "--model", "--json"]),
        ("certificate get", ["--out", "--as"]),
        ("key rotate", ["--data-dir", "--print"]),
    ],
)
def test_options_are_spelled_as_typed(command: str, options: list[str]) -> None:
    section = cli_page().partition(f"## `lethe {command}`\n")[2].partition("\n## ")[0]
    assert [option for option in options if f"| `{option}` |" not in section] == []
