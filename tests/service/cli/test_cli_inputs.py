"""Inputs and outputs of `learn` and `predict`: pipes, empty files, a full disk, numbers."""

import gzip
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dualstream.client import BadInput, Client, RowFile
from dualstream.service.cli import app
from dualstream.service.cli.demo.server_process import ServerProcess
from dualstream.service.cli.rows import _texts, _values
from tests.shell import run_script

SPEC = {"algorithm": "passive_aggressive", "features": {"kind": "indexed", "dim": 2}}
ROWS = b"1,2,y\n0.5,1,1\n-0.5,2,0\n0.25,3,1\n"
UNWRITTEN = "the output cannot be written: No space left on device"
COMMAND = f"{sys.executable} -m dualstream.service"


@pytest.fixture
def model(shared_server: ServerProcess) -> Iterator[str]:
    with Client(shared_server.url) as client:
        client.create("inputs", SPEC)
        yield "inputs"
        client.delete("inputs")


def shell(server: ServerProcess, script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"DUALSTREAM_URL": server.url}
    return subprocess.run(
        ["bash", "-c", script.replace("dualstream", COMMAND)],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize(
    "script",
    [
        "dualstream learn inputs --format csv <(zcat rows.csv.gz)",
        "zcat rows.csv.gz | dualstream learn inputs --format csv /dev/stdin",
        "dualstream learn inputs --format csv <(cat rows.csv.gz)",
        "dualstream learn inputs --format csv /dev/stdin < rows.csv.gz",
        "rm -f p; mkfifo p; zcat rows.csv.gz > p & dualstream learn inputs --format csv p",
        "dualstream learn inputs --format csv <(zcat rows.csv.gz | head -3)"
        " <(zcat rows.csv.gz | sed 2,3d)",
    ],
)
def test_pipes_are_read_as_files_are(shared_server, model, tmp_path, script):
    (tmp_path / "rows.csv.gz").write_bytes(gzip.compress(ROWS))
    for times in (1, 2):  # what a pipe brings is new every time
        done = run_script(script, tmp_path, {"DUALSTREAM_URL": shared_server.url})
        assert (done.returncode, done.stderr) == (0, ""), done
        with Client(shared_server.url) as client:
            expected = 3 if "< rows" in script else 3 * times
            assert client.get(model).samples == expected


def test_a_pipe_without_a_format_is_refused_with_the_option(shared_server, model, tmp_path):
    done = shell(shared_server, "dualstream learn inputs <(echo 1)", tmp_path)
    assert done.returncode == 2 and "is a pipe and needs a format: --format json|" in done.stderr


EMPTY = {
    "empty.csv": b"",
    "header.csv": b"1,2,y\n",
    "empty.ndjson": b"",
    "blank.ndjson": b"\n\n",
    "comment.libsvm": b"",
    "empty.csv.gz": gzip.compress(b""),
    "empty.arrow": b"",
}


@pytest.mark.parametrize("command", ["learn", "predict"])
@pytest.mark.parametrize("name", EMPTY)
def test_a_file_without_rows_does_not_end_the_run(shared_server, model, tmp_path, name, command):
    (tmp_path / name).write_bytes(EMPTY[name])
    (tmp_path / "rows.csv").write_bytes(ROWS)
    (tmp_path / "last.csv").write_bytes(ROWS[:14])
    files = [str(tmp_path / one) for one in (name, "rows.csv", "last.csv")]
    arguments = [command, "inputs", "--url", shared_server.url]
    done = CliRunner().invoke(app, [*arguments, *files])
    assert done.exit_code == 0, done.output
    assert f"{name}: the file has no rows" in done.stderr
    if command == "learn":
        with Client(shared_server.url) as client:
            assert client.get(model).samples == 4
    else:
        assert len(done.stdout.splitlines()) == 1 + 4
    (tmp_path / "other.csv").write_bytes(b"")
    for case in (files[:1], [files[0], str(tmp_path / "other.csv")]):
        alone = CliRunner().invoke(app, [*arguments, *case])
        why = "the file has no rows" if len(case) == 1 else "none of the 2 files has rows"
        assert (alone.exit_code, why in alone.stderr) == (2, True), alone.output


@pytest.mark.parametrize(
    ("script", "code", "said"),
    [
        ("dualstream predict inputs rows.csv > /dev/full", 2, "the output cannot be written: No s"),
        (
            "dualstream predict inputs rows.csv --json > /dev/full",
            2,
            "the output cannot be written",
        ),
        ("dualstream models > /dev/full", 2, "the output cannot be written"),
        ("dualstream predict inputs -x 1=1 > /dev/full", 2, "the output cannot be written"),
        ("dualstream predict inputs many.csv | head -1; exit ${PIPESTATUS[0]}", 0, ""),
        ("dualstream models | true; exit ${PIPESTATUS[0]}", 0, ""),
        ("dualstream models >&-", 0, ""),
        ("dualstream models 2>/dev/full", 0, ""),
        ("dualstream watch inputs --json | true; exit ${PIPESTATUS[0]}", 0, ""),
        ("dualstream --help > /dev/full", 2, "the output cannot be written"),
        ("dualstream --help | true; exit ${PIPESTATUS[0]}", 0, ""),
    ],
)
def test_an_output_that_cannot_be_written_is_an_error(
    shared_server, model, tmp_path, script, code, said
):
    (tmp_path / "rows.csv").write_bytes(ROWS)
    (tmp_path / "many.csv").write_bytes(b"1,2\n" + b"0.5,1\n" * 200_000)
    done = shell(shared_server, script, tmp_path)
    assert done.returncode == code and said in done.stderr, done.stderr
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr
    assert len(done.stderr.splitlines()) == bool(said)


def test_a_prediction_that_fails_prints_no_header(shared_server, model, tmp_path):
    (tmp_path / "rows.csv").write_bytes(ROWS)
    for case in ("missing.csv", "rows.csv --version v", "-x 1=inf"):
        env = {"DUALSTREAM_URL": shared_server.url}
        done = run_script(f"dualstream predict inputs {case}", tmp_path, env)
        assert done.returncode in (2, 3) and done.stdout == "" and done.stderr, case


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("39", 39),
        ("-1.5", -1.5),
        (".5", 0.5),
        ("5.", 5.0),
        ("+5", 5),
        ("1e3", 1000.0),
        ("1E-3", 0.001),
        ("0", 0),
        ("0.5", 0.5),
        ("true", True),
        ("TRUE", True),
        ("False", False),
        ("02134", "02134"),
        ("05", "05"),
        ("1_000", "1_000"),
        ("1,5", "1,5"),
        ("0x10", "0x10"),
        ("Oslo", "Oslo"),
        ("a=b", "a=b"),
        ("null", "null"),
        ("info", "info"),
        (" 5", 5),
        ("\u0665", "\u0665"),
    ],
)
def test_the_text_of_a_feature_is_read_as_in_a_table(text, value):
    row = _values(_texts([f"a={text}"]))
    assert row == {"a": value} and type(row["a"]) is type(value)


@pytest.mark.parametrize("text", ["1e400", "-1e400", "NaN", "nan", "inf", "-Infinity", "9" * 400])
def test_a_feature_that_is_not_finite_is_refused_by_name(text):
    with pytest.raises(BadInput, match="-x a: .* is not a finite number"):
        _values(_texts([f"a={text}"]))


@pytest.mark.parametrize("given", [["a=1", "a=2"], ["=1"], ["a"]])
def test_a_name_is_given_once(given):
    with pytest.raises(BadInput, match="-x"):
        _texts(given)


def test_columns_of_a_row_are_texts_as_in_a_csv_file(shared_server, tmp_path):
    columns = {"types": {"zip": "category", "price": "number", "member": "boolean", "at": "time"}}
    spec = {"algorithm": "sgd", "columns": columns | {"missing": ["", "NA"]}}
    lines = ["zip,price,member,at,site,age,y", "02134,3.5,yes,2024-05-06T09:30,news,39,1"]
    lines += ["2134,-1,no,2024-05-07T21:00,shop,NA,0"]
    (tmp_path / "rows.csv").write_text("\n".join(lines) + "\n")
    with Client(shared_server.url) as client:
        client.create("typed", spec)
        client.learn_file("typed", RowFile(str(tmp_path / "rows.csv"), "text/csv"))
        called = lines[0].split(",")
        flags = [
            " ".join(
                f"-x {name}={text}" for name, text in zip(called, line.split(","), strict=True)
            )
            for line in lines[1:]
        ]
        script = "dualstream predict typed rows.csv\n"
        script += "\n".join(f"dualstream predict typed {one}" for one in flags)
        env = {"DUALSTREAM_URL": shared_server.url}
        done = run_script(script, tmp_path, env)
        assert done.returncode == 0, done.stderr
        header, first, second, *others = done.stdout.splitlines()
        assert others == [header, first, header, second] and first != second
        weights = {one.name for one in client.weights("typed", top=50).weights}
        assert {"zip=02134", "zip=2134"} <= weights
        refused = run_script("dualstream predict typed -x price=cheap", tmp_path, env)
        assert refused.returncode != 0 and "column 'price' must be a number" in refused.stderr
        client.delete("typed")
