"""Command `bench`: load test of a running server."""

import asyncio
import math
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import Annotated, Any
from uuid import uuid4

import typer

from dualstream.client import AsyncClient
from dualstream.service.cli.common import (
    JSON,
    PATIENCE_S,
    SOME_REFUSED,
    URL,
    ApiKey,
    Patience,
    Table,
    Url,
    app,
    ending,
    on_retry,
    print_json,
    say,
    show_table,
)

SEED = 20240607
BODIES = 256
BUSY = 0.9


@dataclass(frozen=True)
class Measured:
    """Results of one kind of request."""

    what: str
    requests: int
    rows: int
    seconds: float
    requests_per_s: float
    rows_per_s: float
    p50_ms: float
    p99_ms: float
    longest_ms: float
    client_cpu_share: float


@app.command()
def bench(
    seconds: Annotated[float, typer.Option(min=0.1, help="Duration per kind of request.")] = 5.0,
    connections: Annotated[
        int, typer.Option(min=1, max=1000, help="Number of concurrent requests.")
    ] = 8,
    rows: Annotated[int, typer.Option(min=1, max=10_000, help="Rows per request.")] = 100,
    features: Annotated[int, typer.Option(min=1, help="Features of the model.")] = 100,
    nonzeros: Annotated[int, typer.Option(min=1, help="Non-zero features per row.")] = 10,
    url: Url = URL,
    api_key: ApiKey = None,
    patience: Patience = PATIENCE_S,
    as_json: JSON = False,
) -> None:
    """Measure durable learning and predictions on a running server, from this machine.

    The command creates a model and deletes it afterwards. Each connection sends its next request
    after the response to the last one: a closed loop, which does not measure time in queues. A note
    says when the client itself used more than 90% of a core. At the end the model must have learned
    as many rows as were acknowledged.

    Example:

        dualstream bench --seconds 10 --connections 32 --rows 1
    """
    with ending(as_json):
        sizes = (connections, rows, features, min(nonzeros, features))
        found, learned, acknowledged = asyncio.run(_bench(url, api_key, patience, seconds, *sizes))
    is_right = learned == acknowledged
    if as_json:
        measured = [asdict(one) for one in found]
        print_json({"measured": measured, "acknowledged": acknowledged, "learned": learned})
    else:
        _show(found)
        say(f"{acknowledged:,} rows acknowledged, {learned:,} learned")
    if not is_right:
        raise typer.Exit(SOME_REFUSED)


async def _bench(
    url: str,
    api_key: str | None,
    patience_s: float,
    seconds: float,
    connections: int,
    rows: int,
    features: int,
    nonzeros: int,
) -> tuple[list[Measured], int, int]:
    """Results; number of rows learned, and of rows acknowledged."""
    model = f"bench-{uuid4().hex[:12]}"
    bodies = _bodies(rows, features, nonzeros)
    async with AsyncClient(
        url, api_key=api_key, patience_s=patience_s, on_retry=on_retry(url)
    ) as client:
        spec = {"algorithm": "dual_ascent", "features": {"kind": "indexed", "dim": features}}
        await client.create(model, spec)
        try:

            async def learn(x: list[Any], y: list[int]) -> int:
                return (await client.learn(model, x, y, rows_per_request=rows)).count

            async def predict(x: list[Any], y: list[int]) -> int:
                return len((await client.predict(model, x, rows_per_request=rows)).scores)

            learning = await _measure("learn", learn, bodies, connections, seconds)
            predicting = await _measure("predict", predict, bodies, connections, seconds)
            learned = (await client.get(model)).samples or 0
        finally:
            await client.delete(model)
    return [learning, predicting], learned, learning.rows


async def _measure(
    what: str,
    send: Callable[[list[Any], list[int]], Awaitable[int]],
    bodies: list[tuple[list[Any], list[int]]],
    connections: int,
    seconds: float,
) -> Measured:
    took: list[float] = []
    rows = 0

    async def connection(number: int) -> None:
        nonlocal rows
        place = number
        while time.perf_counter() < ends:
            x, y = bodies[place % len(bodies)]
            place += connections
            sent = time.perf_counter()
            done = await send(x, y)
            took.append(time.perf_counter() - sent)
            rows += done

    began, cpu = time.perf_counter(), time.process_time()
    ends = began + seconds
    await asyncio.gather(*(connection(number) for number in range(connections)))
    lasted = time.perf_counter() - began
    took.sort()
    return Measured(
        what=what,
        requests=len(took),
        rows=rows,
        seconds=round(lasted, 3),
        requests_per_s=round(len(took) / lasted, 1),
        rows_per_s=round(rows / lasted, 1),
        p50_ms=_quantile_ms(took, 0.5),
        p99_ms=_quantile_ms(took, 0.99),
        longest_ms=_quantile_ms(took, 1.0),
        client_cpu_share=round((time.process_time() - cpu) / lasted, 3),
    )


def _quantile_ms(took: list[float], share: float) -> float:
    """Quantile of sorted times, by nearest rank."""
    rank = max(0, math.ceil(share * len(took)) - 1)
    return round(1000 * took[rank], 3)


def _bodies(rows: int, features: int, nonzeros: int) -> list[tuple[list[Any], list[int]]]:
    """Linearly separable rows, equal on every run."""
    chance = random.Random(SEED)  # noqa: S311 - the same rows each time; nothing is secret
    truth = [chance.gauss(0, 1) for _ in range(features)]
    bodies = []
    for _ in range(max(1, BODIES // rows)):
        x, y = [], []
        for _ in range(rows):
            places = chance.sample(range(features), nonzeros)
            row = {str(place + 1): round(chance.gauss(0, 1), 3) for place in places}
            x.append(row)
            y.append(int(sum(truth[int(name) - 1] * value for name, value in row.items()) > 0))
        bodies.append((x, y))
    return bodies


def _show(found: list[Measured]) -> None:
    table = Table("", "requests/s", "rows/s", "p50 ms", "p99 ms", "longest ms", box=None)
    for column in table.columns[1:]:
        column.justify = "right"
    for one in found:
        numbers = (one.requests_per_s, one.rows_per_s, one.p50_ms, one.p99_ms, one.longest_ms)
        table.add_row(one.what, *(f"{number:,.1f}" for number in numbers))
    show_table(table)
    for one in found:
        if one.client_cpu_share > BUSY:
            say(
                f"{one.what}: this client used {one.client_cpu_share:.0%} of a core and limits the"
                " result; the server can do more"
            )
