"""Commands that show or change a model say what the API says."""

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import dualstream
from dualstream.client import Client, Source
from dualstream.service.cli import app
from dualstream.service.cli.demo.server_process import ServerProcess
from tests.service.features.guard.support import GUARDED, samples

SPEC = {"algorithm": "dual_ascent", "features": {"kind": "indexed", "dim": 3}}

ROWS = [({"1": 1.0, "2": float(k % 3)}, k % 2) for k in range(40)]
WINDOW = {"window": {"kind": "sliding", "length": 30}, "average": None}


@pytest.fixture
def client(shared_server: ServerProcess) -> Iterator[Client]:
    with Client(shared_server.url) as one:
        one.create("m", SPEC | WINDOW)
        one.learn("m", [x for x, _ in ROWS], [y for _, y in ROWS])
        yield one
        for model in one.models():
            one.delete(model.id)


@pytest.fixture
def run(shared_server: ServerProcess):
    def run(*args: str, given: str | None = None) -> Result:
        address = shared_server.url.removeprefix("http://")  # without a scheme
        return CliRunner().invoke(app, [*args, "--url", address, "--patience", "0"], input=given)

    return run


def test_status_of_a_server(run, client: Client):
    got = run("status")
    assert got.exit_code == 0 and got.stdout.startswith("ready\n")
    assert "durability normal" in got.stdout and "1 in memory" in got.stdout
    assert json.loads(run("status", "--json").stdout)["ready"] is True


def test_server_that_is_down_is_named_at_once(tmp_path: Path):
    began = time.monotonic()
    got = CliRunner().invoke(app, ["status", "--url", "localhost:9", "--patience", "0.3"])
    assert got.exit_code == 4 and time.monotonic() - began < 30
    first, last = got.stderr.splitlines()
    assert re.fullmatch(r"http://localhost:9: no answer: .*; trying again for 0 s", first)
    assert last.startswith("http://localhost:9: no answer") and got.stdout == ""


def test_show_has_counts_error_and_spec(run, client: Client):
    got = run("show", "m")
    assert "m: seq 40" in got.stdout and "40 learned, 0 rejected" in got.stdout
    rolling = client.metrics("m")["rolling"]
    least = min(one["error_rate"] for one in rolling["baselines"].values())
    assert f"last 40 rows: {rolling['error_rate']:.4g}, best baseline {least:.4g}" in got.stdout
    assert json.loads(got.stdout.partition("spec")[2]) == client.get("m").spec
    document = json.loads(run("show", "m", "--json").stdout)
    assert document["seq"] == 40 and document["metrics"] == client.metrics("m")


def test_metrics_by_the_values_of_a_column(run, client: Client):
    columns = {"types": {"country": "category"}, "label": "y"}
    client.create("s", {"algorithm": "sgd", "columns": columns, "segments": ["country"]})
    rows = [{"country": "ABA"[n % 3], "y": n % 3 == 1} for n in range(30)]
    client.learn("s", rows)
    result = client.segments("s", "country")
    total, *segments = result.since_start
    assert total.rows == 30 and {one.value: one.rows for one in segments} == {"A": 20, "B": 10}
    head, names, *lines = run("metrics", "s", "--by", "country").stdout.splitlines()
    assert head == "s: seq 30, harm in log loss"
    assert names.split()[:3] == ["country", "rows", "harm"]
    assert [line.split()[0] for line in lines] == [one.value for one in result.since_start]
    assert lines[1].split()[1:3] == [f"{segments[0].rows:.0f}", f"{segments[0].harm:.4g}"]
    shown = json.loads(run("metrics", "s", "--by", "country", "--json").stdout)
    assert shown["since_start"][1]["harm"] == segments[0].harm
    refused = run("metrics", "s", "--by", "city")
    assert refused.exit_code == 3 and "it has country" in refused.stderr


def test_metrics_of_decisions_and_intervals(run, client: Client):
    fields = {"costs": {"false_negative": 9}, "alert_rate": 0.1, "intervals": {"coverage": 0.8}}
    client.create("decided", {"features": {"kind": "hashed", "bits": 8}, **fields})
    client.learn(
        "decided", [{"a": at % 7} for at in range(60)], [int(at % 7 > 4) for at in range(60)]
    )
    lines = [line.split() for line in run("metrics", "decided").stdout.splitlines()]
    shown = {line[0]: line[1:] for line in lines if line}
    assert shown["costs.rows"] == ["60", "60"]
    assert shown["alerts.rows"] == ["40", "40"]
    assert shown["coverage"][0] == "0.8" and len(shown["coverage"]) == 3
    client.delete("decided")


def test_metrics_members_and_weights(run, client: Client):
    metrics = run("metrics", "m").stdout
    (line,) = [line for line in metrics.splitlines() if line.split()[:1] == ["error_rate"]]
    previous = client.metrics("m")
    kinds = ("since_start", "rolling", "fading")
    assert line.split()[1:] == [f"{previous[kind]['error_rate']:.4g}" for kind in kinds]
    assert json.loads(run("metrics", "m", "--json").stdout) == previous

    lines = run("weights", "m", "--top", "2").stdout.splitlines()
    top = client.weights("m", top=2)
    assert [one.split() for one in lines[1:3]] == [
        [str(one.index), f"{one.weight:.6g}"] for one in top.weights
    ]
    assert f"{top.nonzeros} of 3 weights not 0" in lines[3]

    none = run("members", "m")
    assert none.exit_code == 3 and "has no members" in none.stderr
    client.create("p", {"members": "eight"})
    client.learn("p", {"a": 1}, 1)
    names = [line.split()[0] for line in run("members", "p").stdout.splitlines()[1:]]
    members = client.members("p").members
    assert set(names) == {one.name for one in members}
    shares = [next(one.weight for one in members if one.name == name) for name in names]
    assert shares == sorted(shares, reverse=True)


def test_versions_and_rollback(run, client: Client):
    digest = client.get("m", digest=True).state_digest
    taken = run("versions", "m", "--take", "v1", "--note", "before the sale")
    assert taken.exit_code == 0 and "v1" in taken.stdout and "before the sale" in taken.stdout
    client.learn("m", ROWS[0][0], 1)
    assert run("rollback", "m", "--version", "v1", given="n\n").exit_code == 1
    assert client.get("m", digest=True).state_digest != digest
    done = run("rollback", "m", "--version", "v1", given="y\n")
    assert "serves the state of version v1" in done.stdout
    assert client.get("m", digest=True).state_digest == digest
    assert run("rollback", "m", "--seq", "10", "--yes").exit_code == 0
    assert run("rollback", "m", "--yes").exit_code == 2
    unknown = run("rollback", "m", "--version", "v9", "--yes")
    assert unknown.exit_code == 3 and "v9" in unknown.stderr


def test_sources_are_listed_set_and_forgotten(run, client: Client):
    client.learn(
        "m", [{"1": 1.0}] * 3, [0, 1, 0], source=Source("kafka/t/0", 5, 7, lag=1200, first=True)
    )
    (line,) = run("sources", "m").stdout.splitlines()[1:]
    assert re.fullmatch(r" ?kafka/t/0 +8 +1,200 +3 +0 +\d{4}-\d\d-\d\d [\d:]{8} *", line)
    run("sources", "m", "--set", "kafka/t/0=1200")
    got = run("sources", "m", "--set", "redis/s=5-0", "--json")
    assert [(one["name"], one["next"]) for one in json.loads(got.stdout)] == [
        ("kafka/t/0", 1200),
        ("redis/s", "5-0"),
    ]
    assert "kafka" not in run("sources", "m", "--forget", "kafka/t/0").stdout
    assert [(one.name, one.next) for one in client.sources("m")] == [("redis/s", "5-0")]
    for wrong in ("redis/s", "=5", "redis/s="):
        got = run("sources", "m", "--set", wrong)
        assert got.exit_code == 2 and f"NAME=OFFSET, got '{wrong}'" in got.stderr


def test_labels_of_remembered_rows(run, client: Client):
    client.predict_and_remember("m", [{"1": 1.0}, {"1": 2.0}], ["a=7", "b"])
    done = run("labels", "m", "a=7=1", "b=0")
    assert done.exit_code == 0 and "2 rows learned" in done.stdout
    assert client.get("m").samples == 42
    client.predict_and_remember("m", [{"1": 1.0}], ["c"])
    for label in "10":
        done = run("labels", "m", f"c={label}", "--revise")
        assert done.exit_code == 0 and "1 row learned" in done.stdout
    assert run("labels", "m", "b").exit_code == 2
    assert run("labels", "m", "none=1").exit_code == 3


def test_refit_is_waited_for(run, client: Client):
    done = run("refit", "m", "--tol", "1e-8")
    assert done.exit_code == 0, done.output
    assert "by sdca is done" in done.stdout
    (job,) = client.refits("m").refits
    assert job.status == "done" and job.converged and job.relative_gap <= 1e-8
    begun = json.loads(run("refit", "m", "--no-wait", "--json").stdout)
    while client.read_refit("m", begun["job"]).is_under_way:
        time.sleep(0.05)
    run("refit", "m", "--option", "shrinking=false", "--option", "visits=cyclic")
    assert client.refits("m").refits[0].options == {"shrinking": False, "visits": "cyclic"}
    assert "--option needs NAME=VALUE" in run("refit", "m", "--option", "visits").stderr
    assert "options.visits" in run("refit", "m", "--option", "visits=any").stderr
    wrong = run("refit", "m", "--method", "sdcaa")
    assert wrong.exit_code == 3 and "sdca" in wrong.stderr
    client.create("empty", SPEC)
    assert "learn some first" in run("refit", "empty").stderr


def test_pause_is_ended(run, client: Client):
    client.create("g", GUARDED)
    for rows in (samples(0, 103), samples(103, 163, bad=True)):
        client.learn("g", [row["x"] for row in rows], [row["y"] for row in rows])
    deadline = time.monotonic() + 60
    while (ended := run("resume", "g", "--rows", "drop")).exit_code:
        assert time.monotonic() < deadline, ended.output
        time.sleep(0.1)
    assert "g: learns again since seq" in ended.stdout
    again = run("resume", "g", "--rows", "drop")
    assert again.exit_code == 3 and "not paused" in again.stderr
    assert run("resume", "g", "--rows", "burn").exit_code == 2


def test_value_that_is_misspelt_is_suggested(run, client: Client):
    got = run("create", "x", "--set", "loss=logistik")
    assert got.exit_code == 3 and "did you mean 'logistic'?" in got.stderr
    assert "did you mean 'loss'?" in run("create", "x", "--set", "los=hinge").stderr
    other = run("create", "m", "--set", "loss=hinge")
    assert "--replace deletes it first" in other.stderr and "If-Match" not in other.stderr


def test_version_of_the_program(run):
    got = CliRunner().invoke(app, ["--version"])
    assert got.exit_code == 0 and got.stdout == f"dualstream {dualstream.__version__}\n"
