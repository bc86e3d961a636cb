"""Values that a member may wrongly have, and edits of JSON at random places."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from typing import Any

Path = tuple[str | int, ...]

WRONG: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    1,
    -1,
    4,
    36,
    40,
    1.5,
    -0.5,
    1e-9,
    1e300,
    -1e300,
    2**53 - 1,
    2**53,
    2**62,
    10**400,
    "",
    "x",
    "d-1",
    "\u2028 \x00\x1f\x7f é 😀",
    "proved",
    "estimated",
    "retrained",
    "none",
    "0" * 64,
    "A" * 64,
    "a" * 63,
    "0" * 64 + "\n",
    [],
    [[]],
    [1],
    ["0" * 64],
    {},
    {"a": {}},
    {"sha256": "0" * 64},
)
TIMES = (
    "2026-11-16T08:00:00.000Z",
    "2026-11-16T07:59:59.999999Z",
    "2026-11-16T08:00:05.000001Z",
    "2026-11-16T09:00:05+01:00",
    "2026-11-16T08:00:05.0001200Z",
    "2026-11-16T08:00:05",
    "2026-11-16 08:00:05Z",
    "2026-11-16T08:00:05z",
    "2026-11-16T24:00:00Z",
    "2026-11-16T08:00:60Z",
    "2026-02-29T08:00:00Z",
    "2024-02-29T08:00:00Z",
    "2028-02-29T08:00:00Z",
    "2026-11-16T08:00:05-00:00",
    "2026-11-16T08:00:05+23:59",
    "2026-11-16T08:00:05+24:00",
    "2026-11-16T08:00:05,5Z",
    "0001-01-01T00:00:00+00:01",
    "0001-01-01T00:00:00Z",
    "0000-01-01T00:00:00Z",
    "9999-12-31T23:59:59.999999-00:01",
    "9999-12-31T23:59:59Z",
    "+002026-11-16T08:00:05Z",
    "1794816005",
    "２026-11-16T08:00:05Z",
)


def paths_of(value: Any, prefix: Path = ()) -> Iterator[Path]:
    """Yield the path of every value but the outermost."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*prefix, key)
        yield from paths_of(item, (*prefix, key))


def value_at(value: Any, path: Path) -> Any:
    for key in path:
        value = value[key]
    return value


def with_value(value: Any, path: Path, new: Any) -> Any:
    """Return a copy with another value at the path."""
    changed = copy.deepcopy(value)
    value_at(changed, path[:-1])[path[-1]] = new
    return changed


def without(value: Any, path: Path) -> Any:
    """Return a copy that lacks the value at the path."""
    changed = copy.deepcopy(value)
    del value_at(changed, path[:-1])[path[-1]]
    return changed


def edited(draw: random.Random, value: Any) -> tuple[str, Any]:
    """Return a name and a copy with one change at a random place."""
    path = draw.choice(list(paths_of(value)))
    name = "/".join(map(str, path))
    item = value_at(value, path)
    match draw.randrange(6):
        case 0:
            return f"{name}/absent", without(value, path)
        case 1 if isinstance(item, list) and item:
            return f"{name}/repeated", with_value(value, path, [*item, item[-1]])
        case 2 if isinstance(item, list) and len(item) > 1:
            return f"{name}/reversed", with_value(value, path, item[::-1])
        case 3 if isinstance(item, list) and item:
            return f"{name}/shortened", with_value(value, path, item[:-1])
        case 4 if isinstance(item, dict):
            return f"{name}/extended", with_value(value, path, {**item, "unknown": draw.choice(WRONG)})
        case _:
            number = draw.randrange(len(WRONG))
            return f"{name}/wrong-{number}", with_value(value, path, copy.deepcopy(WRONG[number]))
