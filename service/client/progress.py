"""A bar in the terminal, on standard error, while rows are learned."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress as Bar,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from service.client.steps import Progress


class ProgressBar:
    """Called after each request with how far it has come."""

    def __init__(self, name: str, size: int | None = None, *, is_file: bool = False) -> None:
        shown = [TextColumn("{task.description}"), BarColumn()]
        if is_file:
            shown.append(DownloadColumn())
        shown += [TextColumn("{task.fields[rows]:,} rows"), TimeElapsedColumn()]
        self._bar = Bar(*shown, console=Console(stderr=True))
        self._task: TaskID = self._bar.add_task(name, total=size, rows=0)

    def __call__(self, progress: Progress) -> None:
        done = progress.rows if progress.piece is None else progress.piece.read
        self._bar.update(self._task, completed=done, rows=progress.rows)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()
