"""Progress bars on standard error, so that results can be piped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

OnProgress = Callable[[str, float], None]


@contextmanager
def stages() -> Iterator[Callable[[str], OnProgress]]:
    """Yield a function that adds a bar with a name and returns its `on_progress(stage, fraction)` callback."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:

        def bar(name: str) -> OnProgress:
            task = progress.add_task(name, total=1.0)
            return lambda stage, fraction: progress.update(task, description=f"{name}: {stage}", completed=fraction)

        yield bar
