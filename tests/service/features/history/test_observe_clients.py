"""Events without a label, by the client, the command and a consumer: the same state, each once."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import redis
from typer.testing import CliRunner

from dualstream.client import AsyncClient, Client, Refused, RowFile, Source
from dualstream.service.cli import app

GROUP = {
    "by": "card",
    "time": "at",
    "of": "amount",
    "stats": ["count", "mean", "since"],
    "half_life": ["1d"],
}
SPEC = {
    "algorithm": "dual_ascent",
    "columns": {
        "label": "fraud",
        "id": "tx",
        "types": {"card": "category", "at": "time", "amount": "number"},
    },
    "history": [GROUP],
}
EVENTS = 300


def event(number: int) -> dict[str, Any]:
    at = f"2026-05-{1 + number // 48:02}T{number // 2 % 24:02}:30:00Z"
    return {"card": f"c{number % 7}", "at": at, "amount": number % 11 + 0.5, "tx": f"t{number}"}


ROWS = [event(number) for number in range(EVENTS)]


@pytest.fixture
def client(shared_server) -> Iterator[Client]:
    with Client(shared_server.url) as client:
        client.create("payments", SPEC)
        yield client
        for model in client.models():
            client.delete(model.id)


@pytest.fixture
def digest(client) -> str:
    """Digest of the state after all events."""
    client.create("same", SPEC)
    empty = client.get("same", digest=True).state_digest
    assert client.observe("same", ROWS).count == EVENTS
    digest = client.get("same", digest=True).state_digest
    assert digest is not None and digest != empty
    return digest


def check(client: Client, digest: str) -> None:
    """Has the model observed each event once, and learned nothing?"""
    model = client.get("payments", digest=True)
    assert (model.seq, model.samples, model.state_digest) == (EVENTS, 0, digest)


def test_rows_are_observed_once_by_the_client(client, digest, tmp_path):
    path = tmp_path / "rows.ndjson"
    path.write_text("\n".join(map(json.dumps, ROWS)))
    table = pa.Table.from_pylist(ROWS)
    lines = path.read_bytes()
    everything = Source("s", 0, EVENTS - 1, first=True)
    for number, (send, options) in enumerate(
        [
            (lambda **more: client.observe("payments", ROWS, **more), {"key": "k"}),
            (lambda **more: client.observe("payments", table, **more), {"key": "k"}),
            (lambda **more: client.observe("payments", ROWS, **more), {"source": everything}),
            (lambda **more: client.observe("payments", table, **more), {"source": "s"}),
            (
                lambda **more: client.observe_lines("payments", lines, **more),
                {"source": everything},
            ),
            (
                lambda: client.observe_file("payments", RowFile(str(path), "application/x-ndjson")),
                {},
            ),
        ]
    ):
        client.delete("payments")
        client.create("payments", SPEC)
        first = send(**options)
        assert (first.count, first.learned, first.rejected) == (EVENTS, 0, 0), number
        check(client, digest)
        again = send(**options)
        assert again.duplicate or again.chunks == 0, number
        check(client, digest)
    # Ids alone are enough, too; and those of other rows are refused.
    again = client.observe("payments", ROWS)
    assert again.duplicate and again.left_out() == EVENTS
    changed = client.observe("payments", [ROWS[0] | {"amount": 99}, event(EVENTS)])
    assert (changed.count, changed.rejected, changed.errors[0]["index"]) == (1, 1, 0)


def test_one_row_is_observed_and_changes_predictions(client):
    rows = [event(n) | {"fraud": int(n % 7 == 1)} for n in range(EVENTS)]
    client.learn("payments", rows)
    before = client.predict("payments", event(1) | {"at": "2026-05-10T00:00:00Z"}).score
    another = event(EVENTS) | {"card": "c1"}
    del another["tx"]
    one = client.observe("payments", another, ids="another")
    assert (one.count, one.learned, one.seq) == (1, 0, EVENTS + 1)
    after = client.predict("payments", event(1) | {"at": "2026-05-10T00:00:00Z"}).score
    assert before != after and client.get("payments").samples == EVENTS


def test_the_async_client_observes_and_a_model_without_history_does_not(
    client, digest, shared_server
):
    async def observe() -> None:
        async with AsyncClient(shared_server.url) as one:
            for _ in range(2):
                await one.observe("payments", ROWS, key="k", rows_per_request=64)
            await one.create("plain", {"columns": SPEC["columns"]})
            with pytest.raises(Refused) as refused:
                await one.observe("plain", ROWS)
            assert (refused.value.status, refused.value.kind) == (409, "nothing-to-observe")

    asyncio.run(observe())
    check(client, digest)


def run(server, *arguments: str) -> str:
    done = CliRunner().invoke(app, [*arguments, "--url", server.url])
    assert done.exit_code == 0, done.output
    return done.stdout.replace("\n", " ")


def test_files_are_observed_once_by_the_command(client, digest, shared_server, tmp_path):
    names = list(ROWS[0])
    table = [",".join(str(row[name]) for name in names) for row in ROWS]
    folder = tmp_path / "day"
    folder.mkdir()
    Path(folder / "rows.csv").write_text("\n".join([",".join(names), *table]))
    for path, known in (
        (f"{folder}/rows.csv", "1 chunk observed before"),
        (f"{folder}/", "all rows were observed before"),
    ):
        client.delete("payments")
        client.create("payments", SPEC)
        said = run(shared_server, "observe", "payments", path)
        assert f"{EVENTS} rows observed, seq {EVENTS}" in said
        check(client, digest)
        assert f"nothing new, {known}" in run(shared_server, "observe", "payments", path)
        check(client, digest)


def test_a_stream_is_observed_once_by_a_consumer(client, digest, shared_server, redis_server):
    command = ("consume", f"{redis_server.url}/events", "--model", "payments", "--observe")
    with redis.Redis.from_url(redis_server.url) as store:
        store.flushall()
        for row in ROWS:
            store.xadd("events", row)
    run_it = lambda: run(shared_server, *command, "--until-end", "--batch-rows", "64")  # noqa: E731
    assert f"{EVENTS} rows observed" in run_it()
    check(client, digest)
    assert " 0 rows observed" in run_it()
    check(client, digest)
