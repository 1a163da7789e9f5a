"""Files of object stores, web servers and partitioned folders: each row is learned once."""

import csv
import gzip
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from typer.testing import CliRunner

from dualstream.client import BadInput, Client, Refused, RowFile, kind_of
from dualstream.client.partitions import partitions_of, values_of, with_columns
from dualstream.client.stores import stored_files
from dualstream.service.cli import app
from tests.client.support import FLAT, NAMED, digest, flat, learn_lines, named
from tests.docs.documents import ROOT
from tests.s3_server import running_s3

DAYS = ("2024-01-02", "2024-01-10", "2024-01-09")
DAILY = {"columns": FLAT["columns"] | {"types": FLAT["columns"]["types"] | {"day": "category"}}}


@pytest.fixture(scope="module")
def buckets(tmp_path_factory):
    return tmp_path_factory.mktemp("buckets")


@pytest.fixture(scope="module")
def s3(buckets):
    with running_s3(buckets) as variables, pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        yield variables


@pytest.fixture
def server(shared_server):
    with Client(shared_server.url) as client:
        yield client
        for model in client.models():
            if model.id.startswith("stores-"):
                client.delete(model.id)


def learn(server, model: str, *args: object, code: int = 0, spec=NAMED):
    """The files of `dualstream learn`, or its error."""
    if model not in {result.id for result in server.models()}:
        server.create(model, spec)
    args = ("learn", model, *map(str, args), "--url", str(server._http.base_url), "--json")
    done = CliRunner().invoke(app, args)
    assert done.exit_code == code, done.output
    if code == 2:
        assert len(done.stderr.splitlines()) == 1, done.stderr
        return done.stderr
    return json.loads(done.stdout)["files"]


def write_days(folder, parts: int = 2, rows: int = 500) -> None:
    for at, day in enumerate(DAYS):
        below = folder / f"day={day}"
        below.mkdir(parents=True)
        for part in range(parts):
            table = flat(rows, seed=at * parts + part)
            parquet.write_table(table, below / f"part-{part}.parquet", row_group_size=200)
        (below / "_SUCCESS").touch()


def test_a_partitioned_bucket_is_learned_once(server, buckets, s3):
    folder = buckets / "daily" / "clicks"
    write_days(folder)
    files = learn(server, "stores-s3", "s3://daily/clicks", spec=DAILY)
    names = [f"day={day}/part-{part}.parquet" for day in sorted(DAYS) for part in (0, 1)]
    assert [file["file"] for file in files] == [f"s3://daily/clicks/{name}" for name in names]
    assert [file["learned"] for file in files] == [500] * 6

    rows = []
    for day in sorted(DAYS):
        for part in (0, 1):
            table = flat(500, seed=DAYS.index(day) * 2 + part)
            rows += [row | {"day": day} for row in table.to_pylist()]
    server.create("stores-lines", DAILY)
    learn_lines(server, "stores-lines", rows)
    learn(server, "stores-local", folder, spec=DAILY)
    assert digest(server, "stores-s3") == digest(server, "stores-lines")
    assert digest(server, "stores-s3") == digest(server, "stores-local")
    assert {source.name for source in server.sources("stores-s3")} == {
        f"s3://daily/clicks/{name}" for name in names
    }
    assert {source.name for source in server.sources("stores-local")} == {
        str(folder / name) for name in names
    }

    for model, of in (("stores-s3", "s3://daily/clicks/"), ("stores-local", f"{folder}/day=*/")):
        assert [file["chunks"] for file in learn(server, model, of)] == [0] * 6
    parquet.write_table(flat(7), folder / f"day={DAYS[0]}" / "part-2.parquet")
    for model, of in (("stores-s3", "s3://daily/clicks/day=*/part-*"), ("stores-local", folder)):
        assert sum(file["learned"] for file in learn(server, model, of)) == 7
    assert digest(server, "stores-s3") == digest(server, "stores-local")


PATTERNS = [
    ("", "day=1/a.csv day=1/x/b.csv day=2/a.csv c.csv"),
    ("day=1", "day=1/a.csv day=1/x/b.csv"),
    ("day=*/", "day=1/a.csv day=1/x/b.csv day=2/a.csv"),
    ("day=*/*.csv", "day=1/a.csv day=2/a.csv"),
    ("day=[2-9]/?.csv", "day=2/a.csv"),
    ("**/*.csv", "day=1/a.csv day=1/x/b.csv day=2/a.csv c.csv"),
    ("*", "c.csv _SUCCESS"),
    ("c.csv", "c.csv"),
]


@pytest.mark.parametrize(("pattern", "expected"), PATTERNS)
def test_patterns_are_those_of_local_files(server, buckets, s3, pattern, expected):
    folder = buckets / "many"
    for name in ("day=1/a.csv", "day=1/x/b.csv", "day=2/a.csv", "c.csv", "_SUCCESS", ".new/d.csv"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("a,y\n1,1\n")
    names = sorted(expected.split())
    if "?" not in pattern:  # begins the options of a URL
        results = [file.name for file in stored_files(f"s3://many/{pattern}")]
        assert results == [f"s3://many/{name}" for name in names]
    files = learn(server, "stores-many", f"{folder}/{pattern}", "--format", "csv")
    assert [file["file"] for file in files] == [str(folder / name) for name in names]


SLOWED = """
import time

from dualstream.client import Client
from dualstream.service.cli import app

perform, performed = Client._perform, []


def slowly(self, action):
    performed.append(action)
    time.sleep(0.3 * (len(performed) > 14))
    return perform(self, action)


Client._perform = slowly
app()
"""
"""The command `dualstream`, slow after some requests: it is killed before its end."""


def test_a_killed_run_is_resumed(server, buckets, s3):
    """Every row once, in order: the state is that of a local run."""
    folder = buckets / "killed"
    for hour in range(6):
        (folder / f"hour={hour}").mkdir(parents=True)
        table = named(20_000, hour)
        parquet.write_table(table, folder / f"hour={hour}/a.parquet", row_group_size=3000)
    server.create("stores-killed", NAMED)
    url = str(server._http.base_url)
    command = [sys.executable, "-c", SLOWED, "learn", "stores-killed", "s3://killed/"]
    process = subprocess.Popen([*command, "--url", url], env=os.environ | {"PYTHONPATH": str(ROOT)})
    deadline = time.monotonic() + 60
    while server.get("stores-killed").samples < 25_000 and time.monotonic() < deadline:
        time.sleep(0.002)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert 25_000 <= server.get("stores-killed").samples < 120_000
    files = learn(server, "stores-killed", "s3://killed/")
    assert files[0]["chunks"] == 0 and files[-1]["learned"] == 20_000
    learn(server, "stores-whole", folder)
    assert server.get("stores-killed").samples == 120_000
    assert digest(server, "stores-killed") == digest(server, "stores-whole")


def lines(n: int) -> bytes:
    rows = ({"x": {"a": k % 7, "text": "x" * 90 + str(k % 3)}, "y": k % 2} for k in range(n))
    return "\n".join(map(json.dumps, rows)).encode()


@pytest.mark.parametrize("name", ["rows.ndjson", "rows.ndjson.gz", "rows.arrows", "rows.feather"])
def test_a_file_is_resumed_at_its_offset(server, buckets, s3, name):
    folder = buckets / "resumed"
    folder.mkdir(exist_ok=True)
    content, samples = lines(30_000), 30_000
    if name.endswith(".gz"):
        content = gzip.compress(content)
    elif not name.endswith("ndjson"):
        sink, samples = pa.BufferOutputStream(), 60_000
        made = pa.ipc.new_file if name.endswith("feather") else pa.ipc.new_stream
        with made(sink, named(1).schema) as writer:
            writer.write_table(named(60_000), max_chunksize=700)
        content = sink.getvalue().to_pybytes()
    (folder / name).write_bytes(content)
    [stored] = stored_files(f"s3://resumed/{name}")
    file = RowFile(stored.name, kind_of(name), stored=stored, source=stored.name)
    server.create("stores-text", NAMED)

    def stop(progress) -> None:
        assert 0 < progress.piece.read <= len(content)
        if progress.piece.number == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        server.learn_file("stores-text", file, on_progress=stop)
    assert 0 < server.get("stores-text").samples < samples
    [again] = learn(server, "stores-text", f"s3://resumed/{name}")
    assert again["duplicate_chunks"] == 0 and server.get("stores-text").samples == samples
    learn(server, "stores-key", folder / name)
    assert digest(server, "stores-text") == digest(server, "stores-key")

    end, _, digest_ = server.sources("stores-text")[0].next.partition(":")
    for at in (int(end) + 1, 1000):
        server.set_source("stores-text", file.source, f"{at}:{digest_}")
        if name.endswith("feather") and at < int(end):  # any row may follow
            continue
        with pytest.raises(BadInput, match="has changed since|but its source is at row"):
            server.learn_file("stores-text", file)
    for wrong in (1000, "text", ":1"):
        server.set_source("stores-text", file.source, wrong)
        with pytest.raises(BadInput, match=f"is not that of a file; .* --forget {file.source}`"):
            server.learn_file("stores-text", file)


def written(path, rows: int, seed: int) -> None:
    """Rows of fixed width, so that files of the same number of rows have the same length."""
    rng = np.random.default_rng(seed)
    table = pa.table({"a": rng.normal(size=rows), "y": rng.integers(0, 2, rows)})
    if path.suffix == ".parquet":
        parquet.write_table(table, path, compression="none", use_dictionary=False)
    elif path.suffix == ".feather":
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)
    else:
        values = [f"{int(1e6 * abs(a)):09}" for a in table["a"].to_pylist()]
        pairs = list(zip(values, table["y"].to_pylist(), strict=True))
        if path.suffix == ".csv":
            text = "a,y\n" + "".join(f"{a},{y}\n" for a, y in pairs)
        else:
            lines = [f'{{"x": {{"a": 1{a}}}, "y": {y}}}' for a, y in pairs]
            is_json = path.suffix == ".json"
            text = f"[{','.join(lines)}]" if is_json else "\n".join(lines) + "\n"
        path.write_text(text)


@pytest.mark.parametrize("suffix", ["parquet", "feather", "ndjson", "csv", "json"])
@pytest.mark.parametrize("rows", [20, 60_000])
def test_a_file_that_was_replaced_ends_the_run(server, tmp_path, suffix, rows):
    """By one of as many rows, and bytes, or of more: none of them is taken as learned."""
    path, model = tmp_path / f"a.{suffix}", "stores-replaced"
    written(path, rows, 1)
    size = path.stat().st_size
    [file] = learn(server, model, tmp_path)
    assert file["learned"] == rows
    os.utime(path, (1, 1))  # a copy of the file is the same file
    [file] = learn(server, model, tmp_path)
    assert file["chunks"] == 0
    for seed, count in ((2, rows), (1, rows + 20), (2, 2 * rows)):
        written(path, count, seed)
        assert (path.stat().st_size == size) == (count == rows)
        said = learn(server, model, tmp_path, code=2)
        assert f"{path}: it has changed since its source {path} learned" in said
    assert server.get(model).samples == rows
    written(path, rows, 1)
    [file] = learn(server, model, tmp_path)
    assert file["chunks"] == 0


@pytest.mark.parametrize("suffix", ["parquet", "feather", "ndjson"])
def test_a_file_that_is_replaced_during_an_interruption_ends_the_next_run(server, tmp_path, suffix):
    path, model = tmp_path / f"a.{suffix}", "stores-replaced"
    written(path, 300_000, 1)
    server.create(model, NAMED)

    def stop(progress) -> None:
        raise KeyboardInterrupt

    name = str(path)
    with pytest.raises(KeyboardInterrupt):
        server.learn_file(model, RowFile(name, kind_of(name), source=name), on_progress=stop)
    assert 0 < server.get(model).samples < 300_000
    written(path, 300_000, 2)
    assert "it has changed since" in learn(server, model, tmp_path, code=2)
    written(path, 300_000, 1)
    learn(server, model, tmp_path)
    assert server.get(model).samples == 300_000


def test_a_file_whose_source_is_lost_while_it_is_sent_ends_the_run(server, tmp_path):
    (tmp_path / "rows.ndjson").write_bytes(lines(30_000))
    name = str(tmp_path / "rows.ndjson")
    server.create("stores-lost", NAMED)

    def lose(progress) -> None:
        if progress.piece.number == 0:
            server.forget_source("stores-lost", name)

    with pytest.raises(Refused) as refused:
        server.learn_file(
            "stores-lost", RowFile(name, kind_of(name), source=name), on_progress=lose
        )
    assert refused.value.kind == "unknown-source" and server.sources("stores-lost") == []
    samples = server.get("stores-lost").samples
    [again] = learn(server, "stores-lost", tmp_path)
    assert 0 < samples < again["learned"] == 30_000


class Web(SimpleHTTPRequestHandler):
    """Files of a folder, for those with a password."""

    def do_GET(self) -> None:
        if self.headers["authorization"] != "Basic dXNlcjpwYXNz":  # user:pass
            self.send_error(403, "Forbidden")
        else:
            super().do_GET()

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def web(tmp_path):
    handler = partial(Web, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_files_of_a_web_server(server, tmp_path, web):
    """It has no ranges, and the URL has credentials that no source and no message has."""
    (tmp_path / "day=7").mkdir()
    parquet.write_table(named(3000), tmp_path / "day=7" / "a.parquet")
    (tmp_path / "b.ndjson.gz").write_bytes(gzip.compress(lines(50)))
    names = ["day=7/a.parquet", "b.ndjson.gz"]
    signed = [f"http://user:pass@{web}/{name}?X-Amz-Signature=12" for name in names]
    files = learn(server, "stores-web", *signed)
    assert [file["file"] for file in files] == [f"http://{web}/{name}" for name in names]
    assert [file["learned"] for file in files] == [3000, 50]
    assert [file["chunks"] for file in learn(server, "stores-web", *signed)] == [0, 0]
    assert sorted(one.name for one in server.sources("stores-web")) == [
        f"http://{web}/b.ndjson.gz",
        f"http://{web}/day=7/a.parquet",
    ]
    learn(server, "stores-web-local", *(tmp_path / name for name in names))
    assert digest(server, "stores-web") == digest(server, "stores-web-local")
    said = learn(server, "stores-web", f"http://user:pass@{web}/no.csv?v=2", code=2)
    assert said == f"http://{web}/no.csv?v=2: the server answered 404 File not found\n"
    said = learn(server, "stores-web", f"http://{web}/b.ndjson.gz", code=2)
    assert "the server answered 403 Forbidden" in said
    assert "refused" in learn(server, "stores-web", "http://127.0.0.1:1/a.csv", code=2)


def test_other_commands_take_urls_too(server, buckets, s3):
    folder = buckets / "others" / "day=2024-01-02"
    folder.mkdir(parents=True)
    parquet.write_table(named(300), folder / "a.parquet")
    url = "s3://others/day=2024-01-02/a.parquet"
    done = CliRunner().invoke(app, ["infer", url, "--label", "y", "--json"])
    columns = {one["name"]: one["type"] for one in json.loads(done.stdout)["columns"]}
    assert columns["day"] == "ignore" and columns["price"] == "number"
    [file] = learn(server, "stores-others", url, "--key", "k")
    assert file["learned"] == 300 and server.sources("stores-others") == []
    assert learn(server, "stores-others", url, "--key", "k")[0]["duplicate"]
    args = ["predict", "stores-others", url, "--url", str(server._http.base_url), "--json"]
    scores = [json.loads(line)["score"] for line in CliRunner().invoke(app, args).stdout.split()]
    table = named(300).append_column("day", pa.repeat("2024-01-02", 300))
    assert scores == server.predict("stores-others", table).column("score").to_pylist()


def test_what_cannot_be_read_is_one_line(server, buckets, s3, tmp_path, monkeypatch):
    (buckets / "errors").mkdir()
    (buckets / "errors" / "rows.csv").write_text("a,label\n1,1\n")
    said = partial(learn, server, "stores-errors", code=2)
    assert said("s3://errors/none.csv") == "no file s3://errors/none.csv\n"
    assert said("s3://errors/*.parquet") == "no file matches s3://errors/*.parquet\n"
    assert said("s3://nowhere/rows.csv") == "no file s3://nowhere/rows.csv\n"
    assert "no file s3://nowhere/" in said("s3://nowhere/")
    options = "scheme=http&endpoint_override=127.0.0.1:1&retry_limit_seconds=0.1"
    away = said(f"gs://anonymous@errors/rows.csv?{options}")
    assert away.startswith("gs://errors/rows.csv: ") and "Could not connect" in away
    assert said("ftp://a/b.csv").startswith("ftp:// is no known kind of URL; known: s3://")
    assert "no file in the folder" in said(tmp_path)
    assert "neither a URL nor of a folder" in said("s3://errors/rows.csv", "--skip", "1")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    for url in ("s3://errors/rows.csv", "s3://errors/*.csv"):
        assert f"{url}: access denied; check the credentials" in said(url)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert said("s3://errors/a.csv") == (
        "s3://errors/a.csv needs pyarrow: pip install 'dualstream[arrow]'\n"
    )


def test_a_first_chunk_without_a_good_row_ends_the_run(server, tmp_path):
    (tmp_path / "a.ndjson").write_text('{"x": {"a": 1}}\n' * 2)
    said = learn(server, "stores-bad", tmp_path, code=2)
    assert "a.ndjson: no row of the first chunk is valid: the label" in said
    assert f"`dualstream sources stores-bad --forget {tmp_path}/a.ndjson`" in said


def test_a_file_whose_name_is_too_long_for_a_source(server, tmp_path):
    path = tmp_path / ("\u00fc" * 80 + ".ndjson")
    path.write_bytes(lines(1))
    said = learn(server, "stores-long", tmp_path, code=2)
    assert "must have 1 to 256 printable ASCII characters; send the file with --key" in said
    assert learn(server, "stores-long", tmp_path, "--key", "k")[0]["learned"] == 1


def test_partitions_are_values_of_the_table_of_texts():
    path = "b/day=2024-01-01/hour=7/zip=02134/city=New%20York/x=nan"
    assert values_of(partitions_of(f"{path}/none=__HIVE_DEFAULT_PARTITION__/a=b")) == {
        "day": "2024-01-01",
        "hour": 7,
        "zip": "02134",
        "city": "New York",
        "x": "nan",
    }


def read_csv(body: bytes, sign: str = ",") -> list[dict]:
    return list(csv.DictReader(io.StringIO(body.decode().lstrip(), newline=""), delimiter=sign))


@pytest.mark.parametrize("sign", [",", ";"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_partitions_of_csv(sign, end):
    rows = [["a", "own", "y"], ["1", "x", "0"], [f'q"{sign}{end}r', "x", "1"], ["", "x", "0"]]
    sink = io.StringIO()
    csv.writer(sink, delimiter=sign, lineterminator=end).writerows(rows)
    body = f"{end}{sink.getvalue()}{end}".encode()
    columns = {"city": f'New{sign} "York"', "own": "7", "day": "2024-01-01"}
    new = with_columns("text/csv", body, columns)
    before = [
        row | {name: columns[name] for name in ("city", "day")} for row in read_csv(body, sign)
    ]
    assert read_csv(new, sign) == before and len(before) == 3
    assert new.count(b"\n") == body.count(b"\n")
    single = with_columns("text/csv", f"a{end}1{end}{end}2".encode(), {"day": "x"})
    assert read_csv(single, ",") == [{"day": "x", "a": text} for text in ("1", "", "2")]
    for broken in (b"a,y\r1,2\r", b'"a,y\n' + b"1,2\n" * 50_000, b"\xff,y\n1,2\n"):
        assert with_columns("text/csv", broken, {"b": "1"}).endswith(broken[-4:])


def test_partitions_of_ndjson():
    lines = [
        b'{"a": 1.50, "own": 2}',
        b'{"x": {"a": 1, "own": {"b": [1]}}, "y": 1}',
        b'{"x": [1, 2], "y": 0}',
        b'{"x": {"a": 1}}',
        b'{"id": "\\"x\\": {", "x" : {}, "y": 1}',
        b"not JSON",
        b"",
    ]
    columns = {"own": "3", "y": "0", "city": "Z\u00fcrich"}
    new = with_columns("application/x-ndjson", b"\n".join(lines), columns).split(b"\n")
    assert json.loads(new[0]) == {"a": 1.5, "own": 2, "y": 0, "city": "Z\u00fcrich"}
    assert b"1.50" in new[0]
    x = {"a": 1, "own": {"b": [1]}, "city": "Z\u00fcrich"}
    assert json.loads(new[1]) == {"x": x, "y": 1}
    assert json.loads(new[3]) == {"x": {"a": 1, "own": 3, "city": "Z\u00fcrich"}, "y": 0}
    x = {"own": 3, "city": "Z\u00fcrich"}
    assert json.loads(new[4]) == {"id": '"x": {', "x": x, "y": 1}
    assert [new[2], *new[5:]] == [lines[2], *lines[5:]]
    for repeated in (b'{"a": 1, "a": 2}', b'{"x": {"a": 1, "a": 2}}'):  # refused by the server
        assert with_columns("application/x-ndjson", repeated, columns).count(b'"a"') == 2


def test_the_formats_of_a_partition_give_one_model(server, tmp_path):
    """The column is learned, and a file of several chunks is resumed by keys and by offsets."""
    table = named(20_000)
    texts = "\n".join(json.dumps(row) for row in table.select(["age", "price", "y"]).to_pylist())
    for day in (1, 2):
        (tmp_path / f"day={day}").mkdir()
        (tmp_path / f"day={day}" / "a.ndjson").write_text(texts)
    spec = {"algorithm": "sgd", "columns": {"label": "y"}}
    files = learn(server, "stores-flat", tmp_path, spec=spec)
    assert [file["learned"] for file in files] == [20_000] * 2 and files[0]["chunks"] > 1
    rows = [json.loads(text) for text in texts.splitlines()]
    server.create("stores-rows", spec)
    learn_lines(server, "stores-rows", [{"day": day, **row} for day in (1, 2) for row in rows])
    assert digest(server, "stores-flat") == digest(server, "stores-rows")
    server.create("stores-none", spec)
    learn_lines(server, "stores-none", rows * 2)
    assert digest(server, "stores-flat") != digest(server, "stores-none")


def test_a_column_of_the_file_has_precedence(tmp_path):
    (tmp_path / "age=7").mkdir()
    path = str(tmp_path / "age=7" / "a.parquet")
    parquet.write_table(named(50), path)
    [piece] = RowFile(path, kind_of(path)).pieces()
    assert pa.ipc.open_stream(piece.content).read_all() == named(50)
