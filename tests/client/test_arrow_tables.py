"""Tables with the Arrow C stream interface give the models and scores that JSON lines give."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from dualstream.client import AsyncClient, BadInput, Client, Refused, Source, Unreachable
from dualstream.client.arrow_tables import PIECE_BYTES, TableBodies, bodies_of_table
from tests.client.support import FLAT, NAMED, digest, flat, learn_lines, named

ROOT = Path(__file__).parent.parent.parent


class Stream:
    """Another library's table: nothing but the interface."""

    def __init__(self, table: pa.Table | pa.RecordBatchReader) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


@pytest.fixture
def server(shared_server):
    with Client(shared_server.url) as client:
        yield client
        for model in client.models():
            if model.id.startswith("tables-"):
                client.delete(model.id)


def explicit(row: dict) -> dict:
    y, weight = row.pop("y"), row.pop("weight")
    return {"x": row, "y": y, "weight": weight}


def with_views(table: pa.Table) -> Stream:
    """As Polars exports texts: views, and dictionaries of views."""
    city = table.column("city").combine_chunks()
    if not pa.types.is_dictionary(city.type):
        city = city.dictionary_encode()
    views = pa.DictionaryArray.from_arrays(city.indices, city.dictionary.cast(pa.string_view()))
    table = table.set_column(table.schema.get_field_index("city"), "city", views)
    if "zip" in table.schema.names:
        texts = table.column("zip").cast(pa.string_view())
        table = table.set_column(table.schema.get_field_index("zip"), "zip", texts)
    return Stream(table)


LIBRARIES = {
    "pyarrow": lambda table: table,
    "reader": lambda table: table.to_reader(max_chunksize=7),
    "interface": Stream,
    "views": with_views,
}


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_table_gives_the_model_that_lines_give(server, library):
    for spec, table in ((NAMED, named(2500)), (FLAT, flat(2500))):
        rows = table.to_pylist()
        server.create("tables-lines", spec, replace=True)
        server.create("tables-arrow", spec, replace=True)
        learn_lines(server, "tables-lines", [explicit(r) if spec is NAMED else r for r in rows])
        got = server.learn("tables-arrow", LIBRARIES[library](table))
        assert (got.learned, got.rejected, got.chunks) == (2500, 0, 2)
        assert digest(server, "tables-arrow") == digest(server, "tables-lines")

        scored = server.predict("tables-arrow", LIBRARIES[library](table))
        rows = table.to_pylist()
        lines = [explicit(row)["x"] for row in rows] if spec is NAMED else rows
        apart = server.predict("tables-lines", lines)
        assert scored.schema.names == ["score", "label", "probability"]
        assert scored.column("score").to_pylist() == apart.scores
        assert scored.column("label").to_pylist() == apart.labels
        assert scored.column("probability").to_pylist() == (apart.probabilities or [None] * 2500)


def test_a_dataframe_is_sent_as_before_and_also_has_a_source(server):
    frame = named(300).to_pandas()
    for model in ("tables-frame", "tables-source"):
        server.create(model, NAMED)
    got = server.learn("tables-frame", frame, "y", weight="weight", rows_per_request=100)
    assert got.chunks == 3
    got = server.learn("tables-source", frame, source="frame")
    assert (got.learned, got.source.next) == (300, 300)
    assert digest(server, "tables-source") == digest(server, "tables-frame")
    indexed = frame.set_index(pd.Index(range(7, 307), name="key"))
    server.create("tables-index", NAMED)
    server.learn("tables-index", indexed, source="frame")
    assert digest(server, "tables-index") == digest(server, "tables-frame")


def test_refused_rows_have_their_row_numbers(server):
    table = named(3000)
    price = table.column("price").to_numpy().copy()
    price[[5, 1700, 2999]] = [np.nan, np.inf, 1e101]
    table = table.set_column(1, "price", pa.array(price))
    server.create("tables-bad", NAMED)
    got = server.learn("tables-bad", table, scores=True)
    assert (got.learned, got.rejected) == (2997, 3)
    assert [error["index"] for error in got.errors] == [5, 1700, 2999]
    assert [row for row, score in enumerate(got.scores) if score is None] == [5, 1700, 2999]
    scored = server.predict("tables-bad", table)
    for name in ("score", "label", "probability"):
        nulls = scored.column(name).is_null().to_numpy()
        assert np.flatnonzero(nulls).tolist() == [5, 1700, 2999]
    with pytest.raises(Refused) as refused:
        server.learn("tables-bad", table.slice(5, 1))
    assert refused.value.kind == "invalid-rows" and refused.value.errors[0]["index"] == 0
    server.create("tables-bad-2", NAMED)
    got = server.learn("tables-bad-2", table, source="t")
    assert [error["index"] for error in got.errors] == [5, 1700, 2999]


def test_labels_of_several_types_are_texts(server):
    server.create("tables-classes", NAMED | {"task": "multiclass"})
    server.learn("tables-classes", [{"a": 1}, {"b": 1}, {"c": 1}] * 50, [1, "two", True] * 50)
    rows = {"a": [1.0, 0, 0], "b": [0.0, 1, 0], "c": [0.0, 0, 1]}
    scored = server.predict("tables-classes", pa.table(rows))
    assert scored.column("label").to_pylist() == ["1", "two", "true"]
    server.create("tables-price", NAMED | {"task": "regression", "loss": "squared"})
    server.learn("tables-price", pa.table({"a": [1.0, 2.0], "y": [0.5, 1.0]}))
    scored = server.predict("tables-price", pa.table({"a": [1.0]}))
    assert scored.column("probability").to_pylist() == [None]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (lambda c: c.learn("m", named(3), "y"), "a table takes no argument 'y'; its label"),
        (lambda c: c.learn("m", named(3), names=["a"]), "a table takes no argument 'names'"),
        (lambda c: c.learn("m", named(3), source=Source("s", 0, 2)), "source='NAME'"),
        (lambda c: c.learn("m", named(3), source="s", key="k"), "either a key or a source"),
        (lambda c: c.learn("m", [{"a": 1}], source="s"), "needs a table with the Arrow C stream"),
        (lambda c: c.predict("m", named(3), explain=True), "a table takes no argument 'explain'"),
        (lambda c: c.predict_and_remember("m", named(3), [1, 2, 3]), "only learn, observe and"),
        (lambda c: c.learn("m", pa.chunked_array([[1, 2]])), "the table cannot be read: .*struct"),
        (lambda c: c.learn("m", named(0)), "there are no rows to send"),
        (lambda c: c.predict("m", named(0)), "there are no rows to send"),
        (lambda c: c.learn("m", named(0), source="s"), "there are no rows to send"),
        (lambda c: c.learn("m", named(3), offset=3), "an offset needs the name of a source"),
        (lambda c: c.learn("m", named(3), source="s", offset=-3), "the offset must be 0 or more"),
        (lambda c: c.learn("m", named(3), source="é"), "the source's name must have"),
    ],
)
def test_what_cannot_be_sent(given, why):
    with Client("http://127.0.0.1:9", patience_s=0) as client:
        with pytest.raises(BadInput, match=why):
            given(client)


def test_columns_that_no_model_reads_are_named(server):
    server.create("tables-wrong", NAMED)
    with pytest.raises(Refused, match="column 'at' has type timestamp"):
        server.learn("tables-wrong", flat(3).rename_columns(["y", *flat(3).schema.names[1:]]))
    with pytest.raises(Refused, match="label column is missing; name it y or label"):
        server.learn("tables-wrong", pa.table({"a": [1.0]}))


def test_pyarrow_is_asked_for(monkeypatch):
    table = Stream(named(3))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with Client("http://127.0.0.1:9", patience_s=0) as client:
        for call in (client.learn, client.predict):
            with pytest.raises(BadInput, match=r"needs pyarrow: pip install 'dualstream\[arrow\]'"):
                call("m", table)


def test_the_bodies_follow_from_the_rows_alone():
    table = pa.concat_tables([flat(5000), flat(3000, 1)])

    def under_nulls(seed: int) -> pa.Array:
        """Numbers with nulls, and something else in memory under each null."""
        data = np.random.default_rng(seed).integers(0, 9, 8000)
        data[::2] = 3
        valid = np.packbits(np.arange(8000) % 2 == 0, bitorder="little").tobytes()
        return pa.Array.from_buffers(pa.int64(), 8000, [pa.py_buffer(valid), pa.py_buffer(data)])

    def bodies(seed: int, rows: int) -> list[bytes]:
        inputs = table.append_column("n", under_nulls(seed))
        return [body.content for body in bodies_of_table(inputs.to_reader(max_chunksize=rows))]

    first = bodies(0, 8000)
    assert len(first) == 2 and bodies(1, 1) == bodies(2, 333) == first
    read = pa.concat_tables(pa.ipc.open_stream(one).read_all() for one in first)
    assert read.drop("n").to_pylist() == table.to_pylist()


def test_rows_of_all_lengths_are_in_bodies_of_about_a_mebibyte():
    rng = np.random.default_rng(0)
    lengths = [*rng.integers(0, 200, 20_000), 3 * PIECE_BYTES, *[PIECE_BYTES // 3] * 7, 1, 2]
    table = pa.table({"a": ["x" * int(n) for n in lengths], "n": range(len(lengths))})
    bodies = list(bodies_of_table(table.to_reader(max_chunksize=9000)))
    read = [pa.ipc.open_stream(body.content).read_all() for body in bodies]
    assert pa.concat_tables(read).column("n").to_pylist() == list(range(len(lengths)))
    assert [body.rows for body in bodies] == [len(part) for part in read]
    sizes = [len(body.content) for body in bodies if body.rows > 1]
    assert max(sizes) <= PIECE_BYTES + 2000 and len(bodies) < 25
    assert len(bodies) - len(sizes) <= 4


def test_a_long_stream_needs_the_memory_of_a_few_bodies():
    batches = 200
    rows = 0

    def made() -> Iterator[pa.RecordBatch]:
        for seed in range(batches):
            yield from named(1000, seed).to_batches()

    before = pa.total_allocated_bytes()
    most = 0
    for body in bodies_of_table(pa.RecordBatchReader.from_batches(named(1).schema, made())):
        rows += body.rows
        most = max(most, pa.total_allocated_bytes() - before)
    assert rows == 200_000 and most < 6 * PIECE_BYTES
    whole = named(1).schema.empty_table().nbytes + sum(b.nbytes for b in made())
    assert whole > 6 * PIECE_BYTES


# -- sources ---------------------------------------------------------------------------------------


class Failing(httpx.HTTPTransport):
    """Performs requests and then breaks: the answer to the last one is lost."""

    def __init__(self, requests: int) -> None:
        super().__init__()
        self.left = requests

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if self.left <= 0:
            raise httpx.ConnectError("planted")
        response = super().handle_request(request)
        self.left -= 1
        if not self.left:
            response.read()
            raise httpx.ReadError("planted")
        return response


def test_tables_that_continue_a_source_are_one_table(server):
    table = pa.concat_tables([named(5000, seed) for seed in range(2)])
    server.create("tables-whole", NAMED)
    server.create("tables-parts", NAMED)
    server.learn("tables-whole", table, source="t")
    with pytest.raises(Refused) as unknown:  # its first 7,000 rows would be missing
        server.learn("tables-parts", table.slice(7000), source="t", offset=7000)
    assert unknown.value.kind == "unknown-source" and server.sources("tables-parts") == []
    server.learn("tables-parts", table.slice(0, 7000), source="t")
    with pytest.raises(Refused, match="source") as refused:
        server.learn("tables-parts", table.slice(8000), source="t", offset=8000)
    assert (refused.value.kind, refused.value.problem["cursor"]) == ("source-moved", 7000)
    # The first 2,000 rows of this part are known.
    rest = server.learn("tables-parts", table.slice(5000), source="t", offset=5000)
    assert (rest.learned, rest.source.next) == (3000, 10_000)
    assert digest(server, "tables-parts") == digest(server, "tables-whole")


def test_a_source_that_is_lost_while_a_table_is_sent_ends_the_run(server, shared_server):
    table = named(30_000)
    server.create("tables-lost", NAMED)

    def parts() -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(table.to_batches(max_chunksize=1000)):
            if number == 20:
                assert server.sources("tables-lost")[0].next >= 1000
                server.forget_source("tables-lost", "t")
            yield batch

    with Client(shared_server.url) as client, pytest.raises(Refused) as refused:
        reader = pa.RecordBatchReader.from_batches(table.schema, parts())
        client.learn("tables-lost", reader, source="t")
    assert refused.value.kind == "unknown-source" and server.sources("tables-lost") == []
    assert server.get("tables-lost").samples <= 20_000
    assert server.learn("tables-lost", table, source="t").source.next == 30_000


def test_a_source_resumes_at_the_row_where_it_was_killed(server, shared_server):
    table = pa.concat_tables([named(40_000, seed) for seed in range(3)])
    server.create("tables-whole", NAMED)
    server.create("tables-killed", NAMED)
    whole = server.learn("tables-whole", table, source="t")
    assert (whole.learned, whole.source.next, whole.duplicate) == (120_000, 120_000, False)
    assert whole.chunks > 4
    learned = []
    for requests in (1, 2, 3, 2):
        http = httpx.Client(base_url=shared_server.url, transport=Failing(requests))
        with Client(http=http, patience_s=0) as client:
            with pytest.raises(Unreachable):
                client.learn("tables-killed", table, source="t")
        learned.append(server.get("tables-killed").samples)
    # Each run asks for the cursor with its first piece.
    assert learned[0] == 1000 and learned == sorted(set(learned)) and learned[-1] < 120_000
    rest = server.learn("tables-killed", table.to_reader(max_chunksize=1234), source="t")
    assert rest.learned == 120_000 - learned[-1] and rest.source.next == 120_000
    assert digest(server, "tables-killed") == digest(server, "tables-whole")
    again = server.learn("tables-killed", table, source="t")
    assert (again.duplicate, again.learned, again.seq) == (True, 0, 120_000)

    grown = pa.concat_tables([table, named(50, 9)])
    more = server.learn("tables-killed", grown, source="t", scores=True)
    assert (more.learned, more.source.next) == (50, 120_050)
    assert server.learn("tables-killed", named(3), source="other").learned == 3
    with pytest.raises(
        BadInput, match="the table has 2,000 rows, but its source is at row 120,050"
    ):
        server.learn("tables-killed", table.slice(0, 2000), source="t")


SLOW = """
import sys
import time

import pyarrow as pa

from dualstream.client import Client
from tests.client.support import named


def slowly():
    for seed in range(100):
        time.sleep(0.02 if seed < 10 else 0.2)
        yield from named(1000, seed).to_batches()


reader = pa.RecordBatchReader.from_batches(named(1).schema, slowly())
Client(sys.argv[1]).learn("tables-slow", reader, source="t")
"""


def test_a_killed_process_is_resumed_by_another(server, shared_server):
    server.create("tables-slow", NAMED)
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW, shared_server.url], env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    deadline = time.monotonic() + 60
    while server.get("tables-slow").samples < 2000 and time.monotonic() < deadline:
        time.sleep(0.02)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert 2000 <= server.get("tables-slow").samples < 100_000
    table = pa.concat_tables([named(1000, seed) for seed in range(100)])
    assert server.learn("tables-slow", table, source="t").source.next == 100_000
    server.create("tables-fast", NAMED)
    server.learn("tables-fast", table)
    assert digest(server, "tables-slow") == digest(server, "tables-fast")


@pytest.mark.parametrize("cursor", [1, 999, 1000, 1001, 2900, 2999])
def test_a_source_continues_at_any_row(server, cursor):
    server.create("tables-any", NAMED)
    server.set_source("tables-any", "t", cursor)
    bad = named(3000).to_pandas()
    bad.loc[2999, "price"] = np.inf
    got = server.learn("tables-any", pa.Table.from_pandas(bad), source="t")
    assert (got.learned, got.rejected) == (2999 - cursor, 1)
    assert [error["index"] for error in got.errors] == [2999]
    server.create("tables-rows", NAMED)
    if cursor < 2999:
        server.learn("tables-rows", named(3000).slice(cursor, 2999 - cursor))
        assert digest(server, "tables-any") == digest(server, "tables-rows")
    server.delete("tables-rows")
    server.set_source("tables-any", "t", "text")
    with pytest.raises(Refused) as moved:
        server.learn("tables-any", named(3), source="t")
    assert moved.value.kind == "source-moved"


def test_a_key_is_repeated_and_both_clients_take_tables(server, shared_server):
    table = named(70_000)
    server.create("tables-key", NAMED)

    async def learn() -> None:
        async with AsyncClient(shared_server.url) as client:
            first = await client.learn("tables-key", table, key="monday")
            again = await client.learn(
                "tables-key", table.to_reader(max_chunksize=99), key="monday"
            )
            assert first.learned == 70_000 and first.chunks > 2
            assert again.duplicate and again.duplicate_chunks == first.chunks
            assert (await client.learn("tables-key", table, source="t")).learned == 70_000
            assert len(await client.predict("tables-key", table)) == 70_000
            with pytest.raises(Refused) as changed:
                await client.learn("tables-key", named(70_000, 1), key="monday")
            assert changed.value.kind == "idempotency-key-reused"

    asyncio.run(learn())
    assert server.get("tables-key").samples == 140_000


def test_a_table_whose_reader_fails_is_named(server):
    server.create("tables-broken", NAMED)

    def broken() -> Iterator[pa.RecordBatch]:
        yield from named(1000).to_batches()
        raise KeyError("planted")

    reader = pa.RecordBatchReader.from_batches(named(1).schema, broken())
    with pytest.raises(BadInput, match="the table cannot be read: .*planted"):
        server.learn("tables-broken", Stream(reader))
    assert isinstance(bodies_of_table(named(3)), TableBodies)
