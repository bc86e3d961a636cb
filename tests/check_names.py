"""Check of `make check`: names that fit any value are refused. Run as `python -m tests.check_names`."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("benchmarks", "examples", "lethe", "migrations", "ml", "service", "tests", "vocabulary", "worker")
VAGUE_NAMES = {"found", "one", "told", "known", "of", "said", "place", "moment", "here", "thing", "stuff"}


def vague_names(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and name of each variable, argument, function or class whose name says nothing about its value."""
    for node in ast.walk(ast.parse(source)):
        name = _bound_name(node)
        if name is not None and name.strip("_").lower() in VAGUE_NAMES:
            yield node.lineno, name  # type: ignore[attr-defined]


def _bound_name(node: ast.AST) -> str | None:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return node.id
    if isinstance(node, ast.arg):
        return node.arg
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return node.name
    if isinstance(node, ast.alias):
        return node.asname
    return None


def main() -> int:
    count = 0
    for path in sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")):
        for line, name in vague_names(path.read_text(encoding="utf-8")):
            print(f"{path.relative_to(ROOT)}:{line}: {name!r} fits any value: name what it holds")  # noqa: T201
            count += 1
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
