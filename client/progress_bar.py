"""Progress of a learn: argument of progress listeners, and a progress bar."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self, TypeAlias

from dualstream.client.resumable_files import Piece
from dualstream.wire.printable import printable
from dualstream.wire.schemas import Learned


@dataclass(frozen=True)
class Progress:
    """State of a learn after a request."""

    rows: int
    """Rows sent so far, valid and invalid."""
    response: Learned
    """Response to this request; row indices count over all requests."""
    piece: Piece | None = None
    """The chunk of a file that this request sent."""


OnProgress: TypeAlias = Callable[[Progress], None]


def both(*listeners: OnProgress | None) -> OnProgress:
    """A listener that calls those that are not None."""

    def call(progress: Progress) -> None:
        for listener in listeners:
            if listener is not None:
                listener(progress)

    return call


class ProgressBar:
    """A listener that draws a bar on standard error."""

    def __init__(self, name: str, size: int | None = None, *, is_file: bool = False) -> None:
        # Lazy import: only a bar needs rich.
        from rich import progress as bars
        from rich.console import Console

        shown = [bars.TextColumn("{task.description}", markup=False), bars.BarColumn()]
        if is_file:
            shown.append(bars.DownloadColumn())
        shown += [bars.TextColumn("{task.fields[rows]:,} rows"), bars.TimeElapsedColumn()]
        self._bar = bars.Progress(*shown, console=Console(stderr=True))
        self._task = self._bar.add_task(printable(name), total=size, rows=0)

    def __call__(self, progress: Progress) -> None:
        done = progress.rows if progress.piece is None else progress.piece.read
        self._bar.update(self._task, completed=done, rows=progress.rows)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()
