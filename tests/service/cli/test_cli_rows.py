"""learn and predict in a terminal: every format and compression, and kill -9 on both sides."""

import asyncio
import gzip
import json
import lzma
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.ipc
import pytest
import zstandard
from typer.testing import CliRunner, Result

from dualstream.client import AsyncClient, Client, LearnedStream, RowFile, kind_of
from dualstream.client.resumable_files import read_ahead
from dualstream.client.rows import LARGEST_BODY
from dualstream.service.cli import app
from dualstream.service.cli.demo.server_process import ServerProcess
from dualstream.service.journal import open_journal
from dualstream.wire.plural import plural
from tests.forked import ForkedProcess
from tests.history import check_history
from tests.ports import free_port

SPEC = {"algorithm": "passive_aggressive", "features": {"kind": "indexed", "dim": 4}}
ROWS = 60
X = [[(k % 7) / 2, k % 3, 1.5, k % 2] for k in range(ROWS)]
Y = [k % 2 for k in range(ROWS)]
# The history checker reads a journal from its beginning.
KEPT = ["--keep-records", "1000000"]


def ndjson() -> bytes:
    lines = [
        {"x": {str(k + 1): v for k, v in enumerate(x)}, "y": y} for x, y in zip(X, Y, strict=True)
    ]
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


def table() -> bytes:
    columns = {str(k + 1): [float(x[k]) for x in X] for k in range(4)} | {"y": Y}
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, (made := pa.table(columns)).schema) as writer:
        writer.write_table(made)
    return sink.getvalue().to_pybytes()


def lines(form: str) -> bytes:
    return "".join(
        form.format(y, " ".join(f"{k + 1}:{v}" for k, v in enumerate(x)))
        for x, y in zip(X, Y, strict=True)
    ).encode()


FILES = {
    "rows.json": json.dumps({"x": X, "y": Y}).encode(),
    "rows.ndjson": ndjson(),
    "rows.csv": b"1,2,3,4,y\n"
    + "".join(",".join(map(str, [*x, y])) + "\n" for x, y in zip(X, Y, strict=True)).encode(),
    "rows.arrow": table(),
    "rows.vw": lines("{} | {}\n"),
    "rows.libsvm": lines("{} {}\n"),
    "rows.svm.gz": gzip.compress(lines("{} {}\n")[:900]) + gzip.compress(lines("{} {}\n")[900:]),
    "rows.jsonl.xz": lzma.compress(ndjson()),
    "rows.csv.zst": b"",
}
FILES["rows.csv.zst"] = b"".join(
    zstandard.compress(part) for part in (FILES["rows.csv"][:500], FILES["rows.csv"][500:])
)


@pytest.fixture
def server(shared_server: ServerProcess) -> ServerProcess:
    return shared_server


@pytest.fixture
def model(server, request) -> Iterator[str]:
    name = request.node.name.partition("[")[0][:60]
    with Client(server.url) as client:
        client.create(name, SPEC)
        yield name
        client.delete(name)


def run(server: ServerProcess, *args: str, given: bytes = b"") -> Result:
    return CliRunner().invoke(app, [*args, "--url", server.url, "--patience", "0"], input=given)


def test_the_same_rows_in_every_format_learn_the_same(server, tmp_path):
    digests, scores = {}, {}
    with Client(server.url) as client:
        for name, content in FILES.items():
            client.create("same", SPEC)
            (tmp_path / name).write_bytes(content)
            first = run(server, "learn", "same", str(tmp_path / name), "--json")
            assert first.exit_code == 0, first.output
            [got] = json.loads(first.stdout)["files"]
            assert (got["learned"], got["rejected"], got["seq"]) == (ROWS, 0, ROWS), name
            digests[name] = client.get("same", digest=True).state_digest
            scored = run(server, "predict", "same", str(tmp_path / name))
            assert scored.exit_code == 0, scored.output
            scores[name] = scored.stdout
            # The same again, by another path to it and by a pattern: nothing is new.
            again = run(server, "learn", "same", f"{tmp_path}/../{tmp_path.name}/{name[:-1]}?")
            assert again.exit_code == 0 and "nothing new" in again.stdout, again.output
            assert client.get("same").seq == ROWS
            client.delete("same")
    assert len(set(digests.values())) == len(set(scores.values())) == 1, digests
    header, *rows = scores["rows.csv"].splitlines()
    assert header == "score,label,probability" and len(rows) == ROWS


def test_standard_input_is_new_each_time_but_under_a_key(server, model):
    kinds = {"libsvm": "rows.svm.gz", "csv": "rows.csv.zst", "ndjson": "rows.jsonl.xz"}
    for name in kinds.values():
        form = next(form for form, file in kinds.items() if file == name)
        for _ in range(2):
            done = run(server, "learn", model, "-", "--format", form, given=FILES[name])
            assert done.exit_code == 0 and "60 rows learned" in done.output, done.output
    keyed = ["learn", model, "--format", "arrow", "--key", "k"]
    assert "60 rows learned" in run(server, *keyed, given=FILES["rows.arrow"]).stdout
    assert "nothing new" in run(server, *keyed, given=FILES["rows.arrow"]).stdout
    changed = run(server, *keyed, "--json", given=FILES["rows.arrow"] * 2)
    assert changed.exit_code == 3 and "a changed file" in changed.stderr
    assert json.loads(changed.stdout)["type"] == "/problems/idempotency-key-reused"
    with Client(server.url) as client:
        assert client.get(model).samples == 7 * ROWS


def test_rows_that_are_refused_are_shown_by_their_lines(server, model, tmp_path):
    bad = tmp_path / "bad.libsvm"
    bad.write_bytes(FILES["rows.libsvm"] + b"1 9:1\n2 1:1\n")
    done = run(server, "learn", model, str(bad))
    assert done.exit_code == 1 and "60 rows learned, 2 refused" in done.stdout
    assert "bad.libsvm: line 61: " in done.stderr and "bad.libsvm: line 62: " in done.stderr
    scored = run(server, "predict", model, str(bad), "--json")
    assert scored.exit_code == 1 and scored.stdout.count("\n") == 62
    assert json.loads(scored.stdout.splitlines()[60])["score"] is None
    assert "bad.libsvm: line 61: " in scored.stderr
    long = tmp_path / "long.csv"  # of two chunks, each with the header
    row = b"0.5,1,2,3,1\n"
    long.write_bytes(b"1,2,3,4,y\n" + row * 90_000 + b"\n0,1e200,0,0,1\n")
    scored = run(server, "predict", model, str(long))
    assert scored.exit_code == 1 and scored.stdout.count("\n") == 90_002
    assert "long.csv: line 90003: /x/2: " in scored.stderr
    cars = tmp_path / "cars.csv"
    cars.write_bytes(b"1,weight,y\n" + b"1,2500,0\n2,1800,1\n" * 100_000)
    done = run(server, "learn", model, str(cars))
    assert done.exit_code == 0 and done.stderr.count("cars.csv: warning: the column 'weight'") == 1
    one = run(server, "predict", model, "-x", "1=0.5", "-x", "3=2", "--json")
    with Client(server.url) as client:
        row = {"1": 0.5, "3": 2}
        assert json.loads(one.stdout)["score"] == client.predict(model, row).score


def long_batches(first: int, bad: bool) -> bytes:
    """An Arrow stream of a batch of more than 1 MiB, and with `bad` a second one that begins so."""
    batches = []
    for start, rows in ((0, first), (first, 2_500))[: 1 + bad]:
        columns: dict[str, list] = {str(k): [float(k % 3)] * rows for k in range(1, 61)}
        columns["y"] = [7 if start else 1, *[0] * (rows - 1)]
        columns["id"] = [f"r{start + row}" for row in range(rows)]
        batches.append(pa.record_batch(columns))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            assert batch.nbytes > LARGEST_BODY
            writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def long_lines(first: int, bad: bool) -> bytes:
    """Lines of NDJSON of more than 1 MiB each, and with `bad` one that is refused."""
    room = b" " * (LARGEST_BODY + 1)
    good = [b'{"x":{"1":0.5},%s"y":1,"id":"r%d"}\n' % (room, row) for row in range(first)]
    return b"".join([*good, *[b'{"x":{"1":0.5},"y":7}\n{"x":{"2":1},"y":0}\n'] * bad])


@pytest.mark.parametrize(
    ("ending", "rows_of", "first", "learned", "place"),
    [("arrow", long_batches, 2_600, 2_499, "row 2600"), ("ndjson", long_lines, 3, 1, "line 4")],
)
def test_rows_count_over_chunks_that_the_server_cuts_again(
    server, tmp_path, ending, rows_of, first, learned, place
):
    previous, more = tmp_path / f"a.{ending}", tmp_path / f"b.{ending}"
    previous.write_bytes(rows_of(first, bad=False))
    more.write_bytes(rows_of(first, bad=True))
    spec = {"algorithm": "passive_aggressive", "features": {"kind": "indexed", "dim": 60}}

    def in_terminal(model: str) -> dict:
        done = run(server, "learn", model, str(more))
        assert f"{more}: {place}: /y: 7 is not a label" in done.stderr, done.output
        assert f"{plural(learned, 'row')} learned" in done.stdout
        assert f"{first:,} known by their ids, 1 refused" in done.stdout
        again = run(server, "learn", model, str(more), "--json")
        return json.loads(again.stdout)["files"][0]

    def by_client(model: str) -> dict:
        with Client(server.url) as client:
            got = client.learn_file(model, RowFile(str(more), kind_of(more.name)))
        return msgspec.to_builtins(got)

    model = f"cut-{ending}"
    for way in (in_terminal, by_client):
        with Client(server.url) as client:
            client.create(model, spec)
            client.learn_file(model, RowFile(str(previous), kind_of(previous.name)))
            got = way(model)
            client.delete(model)
        assert (got["learned"], got["rejected"], got["duplicate_rows"]) == (learned, 1, first)
        assert [error["index"] for error in got["errors"]] == [first]


def test_files_before_one_that_is_refused_are_reported(server, model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("good.csv").write_bytes(FILES["rows.csv"])
    Path("bad.json").write_text("{bad")
    done = run(server, "learn", model, "good.csv", "bad.json")
    assert done.exit_code == 3 and done.stdout.startswith("good.csv: 60 rows learned")
    assert done.stderr.startswith("bad.json: JSON is malformed")


@pytest.mark.parametrize(
    ("given", "code", "why"),
    [
        (["nofile.csv"], 2, "no file nofile.csv in /"),
        (["no*.csv"], 2, "no file matches no*.csv"),
        (["."], 2, "rows.txt: unknown file extension"),
        (["rows.txt"], 2, "unknown file extension"),
        (["rows.csv", "--format", "tsv"], 2, "unknown format 'tsv'"),
        (["-"], 2, "standard input needs a format"),
        (["rows.libsvm.gz"], 2, "the file is not .gz compressed"),
        (["cut.csv.gz"], 2, "compression: "),
        (["cut.csv.zst"], 2, "compression: "),
        (["cut.jsonl.xz"], 2, "compression: "),
        (["empty.csv"], 2, "the file has no rows"),
        (
            ["rows.csv", "--format", "libsvm"],
            3,
            "rows.csv: 61 of 61 rows refused; the first (line 1)",
        ),
        (["rows.csv", "--format", "arrow"], 3, "rows.csv: not a valid Arrow stream"),
        (["rows.csv", "rows.vw", "--skip", "1"], 2, "--skip needs exactly one file"),
        (["rows.csv", "--skip", "2"], 2, "cannot skip 2 chunks; the file has 1"),
        (["rows.csv", "sub/rows.csv", "--key", "k"], 2, "file names must differ"),
    ],
)
def test_what_cannot_be_learned_is_said_in_a_sentence(
    server, model, tmp_path, monkeypatch, given, code, why
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    for name in ("rows.csv", "rows.vw", "sub/rows.csv"):
        Path(name).write_bytes(FILES[Path(name).name])
    Path("rows.txt").write_bytes(b"1 1:1\n")
    Path("rows.libsvm.gz").write_bytes(b"1 1:1\n")
    Path("cut.csv.gz").write_bytes(gzip.compress(FILES["rows.csv"])[:-9])
    Path("cut.csv.zst").write_bytes(zstandard.compress(FILES["rows.csv"])[:-9])
    Path("cut.jsonl.xz").write_bytes(lzma.compress(ndjson())[:-9])
    Path("empty.csv").write_bytes(b"")
    done = run(server, "learn", model, *given)
    assert (done.exit_code, done.stdout) == (code, "") and why in done.stderr, done.output
    assert "Traceback" not in done.output
    with Client(server.url) as client:
        assert client.get(model).seq == 0


def test_servers_and_models_that_are_not_there(server, tmp_path):
    rows = tmp_path / "rows.csv"
    rows.write_bytes(FILES["rows.csv"])
    done = run(server, "learn", "nobody", str(rows))
    assert done.exit_code == 3 and "no model 'nobody'; `dualstream models`" in done.stderr
    away = ["learn", "m", str(rows), "--url", "http://127.0.0.1:9", "--patience", "0.1"]
    done = CliRunner().invoke(app, away)
    assert done.exit_code == 4 and "; start a server with `dualstream serve`" in done.stderr
    done = CliRunner().invoke(app, ["models", "--url", "nonsense://host"])
    assert done.exit_code == 2 and "nonsense" not in done.stdout


class Endless:
    """A stream of rows without an end, which counts what is taken of it."""

    def __init__(self) -> None:
        self.taken = 0

    def read(self, size: int) -> bytes:
        self.taken += size
        return (b"1 1:0.5 2:0.25\n" * (size // 15 + 1))[:size]


def test_memory_has_at_most_one_chunk():
    stream = Endless()
    pieces = RowFile("-", "text/x-libsvm", "k", stream).pieces()
    for number in range(20):
        piece = next(pieces)
        assert piece.number == number and len(piece.content) <= LARGEST_BODY
        assert stream.taken <= (number + 2) * LARGEST_BODY


def test_what_is_made_ahead_comes_in_order_and_fails_in_its_place():
    made: list[int] = []

    def items(last: int) -> Iterator[int]:
        for number in range(last):
            made.append(number)
            yield number
        raise OSError("the disk is gone")

    taken = []
    with pytest.raises(OSError, match="the disk is gone"):
        for number in read_ahead(items(50)):
            taken.append(number)
            assert len(made) <= number + 3
    assert taken == list(range(50))
    assert list(read_ahead(iter([]))) == []
    # Who leaves early is not waited for, and nothing more is made than was under way.
    early = read_ahead(items(1000))
    assert next(early) == 0
    early.close()
    assert len(made) <= 50 + 4


# -- kill -9 -----------------------------------------------------------------------------------

SIZE = 80
MANY = 60_000
# Each row of another value; together they are five chunks.
BODY = "".join(f"{k % 2} 1:{k + 2} 2:0.5".ljust(SIZE - 1) + "\n" for k in range(MANY)).encode()
HALF = 30_000 * SIZE


def test_chunks_may_be_left_out_and_both_clients_cut_alike(server, model, tmp_path):
    path = tmp_path / "rows.libsvm"
    path.write_bytes(BODY)
    file = RowFile(str(path), "text/x-libsvm")

    async def awaited() -> tuple[LearnedStream, list[float | None]]:
        async with AsyncClient(server.url) as client:
            got = await client.learn_file(model, file)
            answers = [answer async for answer in client.predict_file(model, file)]
        return got, [score for answer in answers for score in answer.scores]

    with Client(server.url) as client:
        end = client.learn_file(model, file, skip=3)
        assert end.chunks == 2 and 0 < end.learned < MANY
        got, scores = asyncio.run(awaited())
        assert (got.chunks, got.duplicate_chunks, got.seq) == (5, 2, MANY)
        assert client.get(model).samples == MANY
        assert scores == [s for answer in client.predict_file(model, file) for s in answer.scores]
    done = run(server, "learn", model, str(path), "--skip", "5")
    assert done.exit_code == 0 and "nothing sent" in done.stdout


def test_an_interrupted_run_says_how_far_it_came(server, model, tmp_path):
    path = tmp_path / "rows.libsvm"
    learning = Learning(server.url, model, path)
    with learning.pipe as pipe, Client(server.url) as client:
        pipe.write(BODY[:HALF])
        pipe.flush()
        wait_for_rows(client, model, 2 * LARGEST_BODY * 3 // 4 // SIZE)
        learning.process.send_signal(signal.SIGINT)
        _, said = learning.process.communicate(timeout=60)
    assert learning.process.returncode == 130
    assert re.fullmatch(r".*: (1 chunk|2 chunks) learned; .*\ninterrupted\n", said), said


class Learning:
    """`dualstream learn` of a file that is a pipe, so that a test says how far it comes."""

    def __init__(self, url: str, model: str, path: Path) -> None:
        path.unlink(missing_ok=True)
        os.mkfifo(path)
        command = [sys.executable, "-m", "dualstream.service", "learn", model, str(path), "--json"]
        self.process = ForkedProcess(
            [*command, "--url", url, "--patience", "120"], stderr=subprocess.PIPE
        )
        self.pipe = open(path, "wb")

    def end(self) -> dict:
        """What is shown when all was learned."""
        said, errors = self.process.communicate(timeout=120)
        assert self.process.returncode == 0, errors
        return json.loads(said)["files"][0]


def wait_for_rows(client: Client, model: str, least: int) -> None:
    for _ in count():
        if client.get(model).seq >= least:
            return
        time.sleep(0.02)


def check_each_once(store: str, model: str) -> None:
    def tags_of(rows) -> list[float]:
        return [float(rows.values[start]) for start in rows.indptr[:-1]]

    async def check() -> None:
        journal = await open_journal(store)
        try:
            sent = {float(k + 2): 1 for k in range(MANY)}
            report = await check_history(
                journal, model, [], tags_of=tags_of, sent=sent, samples=MANY
            )
            assert report.rows == MANY
        finally:
            await journal.close()

    asyncio.run(check())


def test_a_command_that_is_killed_is_gone_on_with_by_running_it_again(server, tmp_path):
    path = tmp_path / "rows.libsvm"
    with Client(server.url) as client:
        client.create("m", SPEC)
        killed = Learning(server.url, "m", path)
        with killed.pipe as pipe:
            pipe.write(BODY[:HALF])
            pipe.flush()
            wait_for_rows(client, "m", 1)
            killed.process.kill()
            killed.process.communicate()
        path.unlink()
        path.write_bytes(BODY)
        done = run(server, "learn", "m", str(path), "--json")
        assert done.exit_code == 0, done.output
        [got] = json.loads(done.stdout)["files"]
        assert got["chunks"] == 5 and 1 <= got["duplicate_chunks"] < 5
        assert client.get("m").samples == MANY
        store = server.process.args[server.process.args.index("--store") + 1]
        check_each_once(store, "m")
        client.delete("m")


def test_a_server_that_is_killed_and_comes_back_is_waited_for(tmp_path):
    store, path = f"sqlite:///{tmp_path / 'back.db'}", tmp_path / "rows.libsvm"
    flags = [*KEPT, "--port", str(free_port())]
    with ServerProcess(store, flags) as server, Client(server.url) as client:
        client.create("m", SPEC)
        learning = Learning(server.url, "m", path)
        with learning.pipe as pipe:
            pipe.write(BODY[:HALF])
            pipe.flush()
            wait_for_rows(client, "m", 1)
            server.kill()
            with ServerProcess(store, flags):
                pipe.write(BODY[HALF:])
                pipe.close()
                got = learning.end()
                assert (got["count"], got["rejected"], got["chunks"]) == (MANY, 0, 5)
                assert client.get("m").samples == MANY
    check_each_once(store, "m")
