"""Parquet and Arrow files: learned once, in bounded memory, as the rows of other files."""

import asyncio
import json
import sys

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as parquet
import pytest
from typer.testing import CliRunner

from dualstream.client import AsyncClient, BadInput, Client, NoRows, RowFile, kind_of
from dualstream.client.arrow_tables import PIECE_BYTES
from dualstream.client.resumable_files import PARQUET
from dualstream.service.cli import app
from tests.client.support import FLAT, NAMED, digest, flat, learn_lines, named


@pytest.fixture
def server(shared_server):
    with Client(shared_server.url) as client:
        yield client
        for model in client.models():
            if model.id.startswith("files-"):
                client.delete(model.id)


def run(shared_server, *args: object):
    done = CliRunner().invoke(app, [*map(str, args), "--url", shared_server.url, "--json"])
    assert "Traceback" not in done.stderr, done.stderr
    return done


def write_feather(table: pa.Table, path: object) -> None:
    pyarrow.feather.write_feather(table, path, compression="lz4", chunksize=700)


def write_arrow(table: pa.Table, path: object) -> None:
    with pa.ipc.new_file(path, table.schema) as writer:
        for batch in table.unify_dictionaries().to_batches(max_chunksize=900):
            writer.write_batch(batch)


def write_stream(table: pa.Table, path: object) -> None:
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=900)


WRITERS = {
    "a.parquet": lambda table, path: parquet.write_table(table, path, row_group_size=800),
    "b": lambda table, path: parquet.write_table(table, path, compression="zstd"),
    "c.feather": write_feather,
    "d.arrow": write_arrow,
    "e.arrows": write_stream,
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_file_gives_the_model_that_lines_give_and_is_learned_once(
    server, shared_server, tmp_path, name
):
    table = flat(3000)
    WRITERS[name](table, tmp_path / name)
    server.create("files-lines", FLAT, replace=True)
    server.create("files-table", FLAT, replace=True)
    learn_lines(server, "files-lines", table.to_pylist())
    done = run(shared_server, "learn", "files-table", tmp_path / name)
    [learned] = json.loads(done.stdout)["files"]
    assert (done.exit_code, learned["learned"], learned["duplicate"]) == (0, 3000, False)
    assert digest(server, "files-table") == digest(server, "files-lines")
    [again] = json.loads(run(shared_server, "learn", "files-table", tmp_path / name).stdout)[
        "files"
    ]
    assert again["duplicate"] and server.get("files-table").samples == 3000

    done = run(shared_server, "predict", "files-table", tmp_path / name)
    scores = [json.loads(line)["score"] for line in done.stdout.splitlines()]
    assert scores == server.predict("files-table", table).column("score").to_pylist()


def test_patterns_and_a_run_that_is_repeated(server, shared_server, tmp_path):
    for month in range(3):
        parquet.write_table(named(20_000, month), tmp_path / f"m{month}.parquet")
    server.create("files-glob", NAMED)
    server.create("files-one", NAMED)
    path = str(tmp_path / "m1.parquet")
    learned = server.learn_file("files-glob", RowFile(path, kind_of(path)))
    assert learned.learned == 20_000 and learned.chunks > 1
    done = run(shared_server, "learn", "files-glob", tmp_path / "m*.parquet")
    files = json.loads(done.stdout)["files"]
    assert [file["duplicate"] for file in files] == [False, True, False]
    for month in (1, 0, 2):
        server.learn("files-one", named(20_000, month))
    assert digest(server, "files-glob") == digest(server, "files-one")

    bad = named(3000).to_pandas()
    bad.loc[[4, 2500], "price"] = float("inf")
    bad.to_parquet(tmp_path / "bad.parquet")
    done = run(shared_server, "learn", "files-glob", tmp_path / "bad.parquet")
    assert done.exit_code == 1
    [file] = json.loads(done.stdout)["files"]
    assert [error["index"] for error in file["errors"]] == [4, 2500]


def test_a_run_that_was_interrupted_is_repeated(server, tmp_path):
    path = str(tmp_path / "rows.parquet")
    parquet.write_table(named(60_000), path, row_group_size=10_000)
    server.create("files-killed", NAMED)
    server.create("files-whole", NAMED)
    file = RowFile(path, kind_of(path))

    def stop(progress) -> None:
        assert 0 < progress.piece.read <= file.size()
        if progress.piece.number == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        server.learn_file("files-killed", file, on_progress=stop)
    assert 0 < server.get("files-killed").samples < 60_000
    got = server.learn_file("files-killed", file)
    assert got.duplicate_chunks == 2 and server.get("files-killed").samples == 60_000

    async def learn() -> None:
        async with AsyncClient(server._http.base_url.__str__()) as client:
            assert (await client.learn_file("files-whole", file)).learned == 60_000

    asyncio.run(learn())
    assert digest(server, "files-killed") == digest(server, "files-whole")


def test_a_long_file_needs_the_memory_of_a_few_chunks(tmp_path):
    path = str(tmp_path / "long.parquet")
    table = named(1000)
    with parquet.ParquetWriter(path, table.schema) as writer:
        for seed in range(200):
            writer.write_table(named(1000, seed))
    before, most, rows = pa.total_allocated_bytes(), 0, 0
    for piece in RowFile(path, PARQUET).pieces():
        rows += pa.ipc.open_stream(piece.content).read_all().num_rows
        most = max(most, pa.total_allocated_bytes() - before)
    assert rows == 200_000 and most < 8 * PIECE_BYTES


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("a.parquet", b"", "a.parquet cannot be read: Parquet file size is 0 bytes"),
        ("a.parquet", b"PAR1 nonsense", "a.parquet cannot be read: "),
        ("a.parquet", b"a,y\n1,2\n3,4\n", "a.parquet cannot be read: "),
        ("a.feather", b"ARROW1 nonsense", "a.feather cannot be read: "),
    ],
)
def test_damaged_files_are_named(tmp_path, name, content, why):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(BadInput, match=why):
        list(RowFile(str(path), kind_of(str(path))).pieces())


def test_what_cannot_be_read(server, shared_server, tmp_path, monkeypatch):
    path = tmp_path / "a.parquet"
    parquet.write_table(named(0), path)
    server.create("files-none", NAMED)
    with pytest.raises(NoRows, match=r"a\.parquet: the file has no rows"):
        server.learn_file("files-none", RowFile(str(path), PARQUET))
    write_arrow(named(3), tmp_path / "a.csv")
    with pytest.raises(BadInput, match="this is an Arrow file; give the format arrow"):
        list(RowFile(str(tmp_path / "a.csv"), "text/csv").pieces())
    for form, content in (("parquet", path), ("arrow", tmp_path / "a.csv")):
        done = CliRunner().invoke(
            app, ["learn", "files-none", "-", "--format", form], input=content.read_bytes()
        )
        assert done.exit_code == 2 and "give the name of a file" in done.stderr, done.stderr
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    done = run(shared_server, "learn", "files-none", path)
    assert done.exit_code == 2 and "needs pyarrow: pip install 'dualstream[arrow]'" in done.stderr
