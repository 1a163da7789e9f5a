"""The other commands of the terminal: models from specs, certificates, watching, measuring."""

import ast
import inspect
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import msgspec
import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from dualstream.client import Client
from dualstream.service.cli import app
from dualstream.service.cli.demo.server_process import ServerProcess
from dualstream.service.cli.models import SUFFIXES
from dualstream.service.cli.watch import table_of
from dualstream.solvers.export import FORMATS
from tests.docs.documents import ROOT

SPEC = {"algorithm": "dual_ascent", "features": {"kind": "indexed", "dim": 3}}


@pytest.fixture
def server(shared_server: ServerProcess) -> ServerProcess:
    return shared_server


@pytest.fixture
def client(server) -> Iterator[Client]:
    with Client(server.url) as one:
        yield one
        for model in one.models():
            one.delete(model.id)


def run(server: ServerProcess, *args: str, given: str | None = None) -> Result:
    return CliRunner().invoke(app, [*args, "--url", server.url, "--patience", "0"], input=given)


def test_models_are_made_of_specs_files_and_fields(server, client, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("spec.json").write_text(json.dumps(SPEC | {"window": "sliding"}))
    made = run(server, "create", "m", "--spec", "spec.json", "--set", "window.length=50", "--json")
    assert made.exit_code == 0, made.output
    spec = json.loads(made.stdout)["spec"]
    assert spec["window"] == {"kind": "sliding", "length": 50} == client.get("m").spec["window"]
    inputs = ["create", "m", "--spec", "-", "--set", "loss=hinge"]
    other = run(server, *inputs, given=json.dumps(SPEC))
    assert other.exit_code == 3 and "another spec" in other.stderr and other.stdout == ""
    replaced = run(server, *inputs, "--replace", given=json.dumps(SPEC))
    assert replaced.exit_code == 0 and "m: dual_ascent, seq 0" in replaced.stdout
    assert client.get("m").spec["loss"] == "hinge"
    Path("rows.csv").write_text("a,y\n" + "0.5,1\n0.25,0\n" * 20)
    inferred = run(server, "infer", "rows.csv", "--create", "m")
    assert inferred.exit_code == 3 and "delete it first: dualstream delete m" in inferred.stderr
    for command in (["create", "a/b"], ["infer", "rows.csv", "--create", "a/b"]):
        slash = run(server, *command)
        assert slash.exit_code == 2 and "a model id has 1 to 128 characters" in slash.stderr
    assert run(server, *inputs, "--replace", given=json.dumps(SPEC)).exit_code == 0
    client.create("n")
    listed = run(server, "models")
    assert "portfolio full" in listed.stdout and "dual_ascent" in listed.stdout
    assert [model["id"] for model in json.loads(run(server, "models", "--json").stdout)] == [
        "m",
        "n",
    ]


@pytest.mark.parametrize(
    ("given", "code", "why"),
    [
        (["--spec", "none.json"], 2, "none.json: No such file"),
        (["--spec", "bad.json"], 2, "bad.json: invalid JSON"),
        (["--spec", "list.json"], 2, "the spec must be a JSON object"),
        (["--set", "rho"], 2, "--set needs PATH=VALUE"),
        (["--set", "rho=1", "--set", "rho.x=1"], 2, "rho is not an object"),
        (["--set", "eta=-1"], 3, "eta must be"),
        (["--set", "algorithm=trees"], 3, "trees"),
    ],
)
def test_what_is_no_spec_is_said(server, tmp_path, monkeypatch, given, code, why):
    monkeypatch.chdir(tmp_path)
    Path("bad.json").write_text("{")
    Path("list.json").write_text("[]")
    done = run(server, "create", "bad", *given)
    assert done.exit_code == code and why in done.stderr, done.output
    assert "Traceback" not in done.output and done.stdout == ""


def test_a_model_is_deleted_once_that_is_confirmed(server, client):
    client.create("m", SPEC)
    assert run(server, "delete", "m", given="n\n").exit_code == 1
    assert client.get("m").seq == 0
    assert run(server, "delete", "m", given="y\n").exit_code == 0
    gone = run(server, "delete", "m", "--yes", "--json")
    assert gone.exit_code == 3 and json.loads(gone.stdout)["status"] == 404


def test_a_certificate_is_shown_as_the_api_does(server, client):
    client.create("m", SPEC)
    client.learn("m", [[1, 0, 2], [0, 1, 0.5]], [1, 0])
    got = json.loads(run(server, "certificate", "m", "--json").stdout)
    assert got["gap"] == client.certificate("m").gap and got["rows"] == 2
    assert f"{got['gap']:.6g}" in run(server, "certificate", "m").stdout
    client.create("sgd", SPEC | {"algorithm": "sgd"})
    none = run(server, "certificate", "sgd")
    assert none.exit_code == 3 and "has no dual problem" in none.stderr


def test_columns_are_shown_as_the_api_does(server, client):
    client.create("m", {"columns": {"types": {"site": "category"}}, "members": "fast"})
    rows = [{"site": "[b]a", "price": 2.0}, {"site": "[b]a", "price": 4.0}, {"site": "c"}]
    body = [row | {"y": n % 2} for n, row in enumerate(rows)]
    httpx.post(f"{server.url}/models/m/learn", json=body).raise_for_status()
    got = json.loads(run(server, "columns", "m", "--sort", "name", "--json").stdout)
    assert [one["name"] for one in got["columns"]] == ["price", "site"]
    assert got["columns"] == msgspec.to_builtins(client.columns("m", sort="name").columns)
    shown = run(server, "columns", "m").stdout.splitlines()
    [price] = [line for line in shown if "price" in line]
    assert price.split() == ["price", "number", "2", "33.3%", "or", "0", "3", "±", "1", "4", "0"]
    [site] = [line for line in shown if "site" in line]
    assert "[b]a (2), c (1)" in site and "0.0%" in site
    price = {"site": "c", "price": "1,234.50", "y": 1}
    httpx.post(f"{server.url}/models/m/learn", json=[price]).raise_for_status()
    [line] = [line for line in run(server, "columns", "m").stdout.splitlines() if "price" in line]
    assert "1 text" in line
    assert run(server, "columns", "m", "--sort", "size").exit_code == 2


def test_events_of_all_models_are_lines_until_they_are_deleted(server, client):
    for name in ("m", "n"):
        client.create(name, SPEC)
        client.learn(name, [1, 0, 0], 1)
    watching = subprocess.Popen(
        [sys.executable, "-m", "dualstream.service", "watch", "--json", "--every-ms", "100"],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT), "DUALSTREAM_URL": server.url},
    )
    first = {(got := json.loads(watching.stdout.readline()))["model"]: got for _ in range(2)}
    assert {name: got["seq"] for name, got in first.items()} == {"m": 1, "n": 1}
    client.learn("m", [1, 0, 0], 1)
    assert json.loads(watching.stdout.readline())["samples"] == 2
    client.delete("m")
    client.delete("n")
    rest, _ = watching.communicate(timeout=60)
    events = [json.loads(line) for line in rest.splitlines()]
    assert sorted(got["model"] for got in events if got["event"] == "deleted") == ["m", "n"]
    assert watching.returncode == 0


def test_watching_ends_by_interruption_and_where_there_is_nothing(server, client):
    assert "no models to watch" in run(server, "watch").stderr
    assert run(server, "watch", "nobody").exit_code == 3
    client.create("m", SPEC)
    assert run(server, "watch", "m", "--count", "1").stdout.endswith("\n")
    watching = subprocess.Popen(
        [sys.executable, "-m", "dualstream.service", "watch", "m", "--json", "--url", server.url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert json.loads(watching.stdout.readline())["seq"] == 0
    watching.send_signal(signal.SIGINT)
    _, said = watching.communicate(timeout=60)
    assert (watching.returncode, said) == (130, "interrupted\n")


def test_the_table_tells_error_and_the_better_baseline():
    baselines = {"most_frequent": {"error_rate": 0.25}, "last_label": {"error_rate": 0.5}}
    rolling = {"rows": 10, "loss": 0.125, "error_rate": 0.0625, "baselines": baselines}
    got = {"m": {"seq": 1234, "samples": 1200, "rows_per_second": 99.6, "rejected": 34}}
    got["m"]["rolling"] = rolling
    got["guarded"] = {"seq": 9, "samples": 7, "rows_per_second": 0, "paused": {"since": 8}}
    console = Console(width=100, record=True, file=open(os.devnull, "w"))
    with console.file:
        console.print(table_of(["m", "gone", "silent", "guarded"], got, {"gone"}))
    lines = [line.split() for line in console.export_text().splitlines()]
    assert lines[1] == ["m", "1,234", "1,200", "100", "0.0625", "0.25", "0.125", "34"]
    assert lines[2:5] == [["gone", "deleted"], ["silent"], ["guarded", "9", "7", "paused"]]


def test_a_model_is_exported_to_a_file(server, client, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert {name: one.suffix for name, one in FORMATS.items()} == SUFFIXES
    client.create("m", SPEC)
    client.learn("m", [[1.0, 0.5, 0.0], [0.0, 0.0, 2.0]], [1, 0])
    client.create("t", SPEC | {"algorithm": "boosted"})
    for name in FORMATS:
        model = "t" if name == "xgboost" else "m"
        done = run(server, "export", model, "--format", name, "--json")
        assert done.exit_code == 0, done.output
        got = json.loads(done.stdout)
        assert got["file"] == f"{model}.{SUFFIXES[name]}"
        written = Path(got["file"]).read_bytes()
        assert written == client.export(model, name) and len(written) == got["bytes"] > 50
    piped = run(server, "export", "m", "-o", "-")
    assert piped.stdout_bytes == Path("m.json").read_bytes()
    assert json.loads(piped.stdout_bytes)["seq"] == 2
    for case, code, why in (
        (["--format", "pickle"], 2, "--format must be one of json, onnx"),
        (["-o", "-", "--json"], 2, "give another file"),
        (["-o", "none/m.json"], 2, "none/m.json: No such file"),
        (["--member", "a"], 3, "has no members"),
    ):
        refused = run(server, "export", "m", *case)
        assert refused.exit_code == code and why in refused.stderr, refused.output


def test_help_shows_each_example_on_a_line_of_its_own():
    """Typer joins the examples of a help text that has no paragraph before them."""
    helps = [
        (path.name, inspect.cleandoc(ast.get_docstring(node) or ""))
        for path in (ROOT / "service/cli").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
    ]
    examples = [(name, text.split("\n\n")) for name, text in helps if "\nExamples:\n" in text]
    assert len(examples) > 8
    assert [(name, parts) for name, parts in examples if parts[1] == "Examples:"] == []
