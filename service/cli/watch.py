"""Command `watch`: live table of models."""

import asyncio
import sys
import time
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer
from rich.live import Live

from dualstream.client import AsyncClient, BadInput, Event, Unreachable
from dualstream.service.cli import connection
from dualstream.service.cli.commands import app
from dualstream.service.cli.common import JSON, Table, console, print_json

PAUSE_S = 0.5


@dataclass
class _Watched:
    """Last event of each model, and the number of events."""

    models: list[str]
    limit: int | None
    is_json: bool
    live: Live | None
    last: dict[str, dict[str, Any]] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    events: int = 0

    def on_event(self, model: str, event: Event) -> None:
        self.events += 1
        if event.kind == "deleted":
            self.gone.add(model)
        else:
            self.last[model] = event.data
        if self.is_json:
            print_json({"event": event.kind, **event.data})
            sys.stdout.flush()
        elif self.live is not None:
            self.live.update(table_of(self.models, self.last, self.gone), refresh=True)

    @property
    def is_over(self) -> bool:
        return self.limit is not None and self.events >= self.limit


@app.command()
def watch(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            help="Ids of models; default: all.", autocompletion=connection.complete_model
        ),
    ] = None,
    every_ms: Annotated[
        int,
        typer.Option(min=100, max=60_000, help="Minimum time in ms between two events of a model."),
    ] = 500,
    count: Annotated[int | None, typer.Option(min=1, help="Exit after this many events.")] = None,
    url: connection.Url = connection.URL,
    api_key: connection.ApiKey = None,
    patience: connection.Patience = connection.PATIENCE_S,
    as_json: JSON = False,
) -> None:
    """Show a live table of models while they learn, until Ctrl-C.

    With --json, print one JSON object per event and line. Reconnects when the server restarts.

    Examples:

        dualstream watch clicks spam
        dualstream watch clicks --json --count 10
    """
    with connection.ending(as_json):
        asyncio.run(_watch(models or [], every_ms, count, url, api_key, patience, as_json))


async def _watch(
    models: list[str],
    every_ms: int,
    count: int | None,
    url: str,
    api_key: str | None,
    patience_s: float,
    is_json: bool,
) -> None:
    async with AsyncClient(
        url, api_key=api_key, patience_s=patience_s, on_retry=connection.on_retry(url)
    ) as client:
        models = models or [model.id for model in await client.models()]
        if not models:
            raise BadInput("the server has no models to watch")
        with Live(console=console, auto_refresh=False) as live:
            watched = _Watched(models, count, is_json, None if is_json else live)
            listening = [
                asyncio.create_task(_listen(client, model, every_ms, patience_s, watched))
                for model in models
            ]
            try:
                await _first_end(listening, watched)
            finally:
                for task in listening:
                    task.cancel()
                await asyncio.gather(*listening, return_exceptions=True)
        if not is_json and not console.is_terminal:
            console.line()  # rich ends the table so only in a terminal


async def _first_end(listening: list["asyncio.Task[None]"], watched: _Watched) -> None:
    """Wait until all models are deleted, `limit` events arrived, or a task fails."""
    pending = set(listening)
    while pending and not watched.is_over:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()


async def _listen(
    client: AsyncClient, model: str, every_ms: int, patience_s: float, watched: _Watched
) -> None:
    """Receive events of one model until it is deleted; reconnect when the stream breaks."""
    silent_since = time.monotonic()
    while True:
        try:
            async for event in client.events(model, every_ms=every_ms):
                silent_since = time.monotonic()
                watched.on_event(model, event)
                if event.kind == "deleted" or watched.is_over:
                    return
        except Unreachable:
            if time.monotonic() - silent_since > patience_s:
                raise
        await asyncio.sleep(PAUSE_S)


def table_of(models: list[str], last: dict[str, dict[str, Any]], gone: set[str]) -> Table:
    """Table with one line per model, from its last event."""
    table = Table(
        "model", "seq", "samples", "rows/s", "error", "baseline", "loss", "refused", box=None
    )
    for column in table.columns[1:]:
        column.justify = "right"
    for model in models:
        if model in gone:
            table.add_row(model, "deleted")
            continue
        event = last.get(model, {})
        rolling = event.get("rolling") or {}
        name = "error_rate" if "error_rate" in rolling else "mae"
        baselines = [losses.get(name) for losses in (rolling.get("baselines") or {}).values()]
        least = min((value for value in baselines if value is not None), default=None)
        table.add_row(
            model,
            _count(event.get("seq")),
            _count(event.get("samples")),
            "paused" if event.get("paused") else _count(event.get("rows_per_second")),
            _number(rolling.get(name)),
            _number(least),
            _number(rolling.get("loss")),
            _count(event.get("rejected")),
        )
    return table


def _count(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
