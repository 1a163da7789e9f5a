"""`dualstream consume` as users run it: a broker, a server, and the command in its own process."""

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx
import pytest
from typer.testing import CliRunner

from dualstream.client import Client
from dualstream.service.cli import app
from tests.consume.support import samples
from tests.forked import ForkedProcess
from tests.service.conftest import shared_server
from tests.tansu import Broker, running_tansu

__all__ = ["shared_server"]

SPEC = {"algorithm": "dual_ascent", "features": {"kind": "hashed", "bits": 10}}
# Tansu begins a group after half of the session timeout.
SHORT = ("--kafka", "session.timeout.ms=1000", "--kafka", "heartbeat.interval.ms=200")
FLAT = SPEC | {"columns": {"label": "clicked", "id": "event", "types": {"at": "time"}}}


@pytest.fixture(scope="module")
def tansu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with running_tansu(tmp_path_factory.mktemp("tansu") / "log") as broker:
        yield broker


@pytest.fixture
def client(shared_server) -> Iterator[Client]:
    with Client(shared_server.url) as client:
        yield client
        for model in client.models():
            client.delete(model.id)


def row(number: int) -> bytes:
    x = {"n": number % 13, "site": f"s{number % 7}"}
    return json.dumps({"x": x, "y": int(number % 3 == 0), "id": f"m{number}"}).encode()


@contextmanager
def started(
    server, topic: str, *flags: str, model: str | None = "clicks"
) -> Iterator[ForkedProcess]:
    """The command in a process of its own, which is killed if it has not ended."""
    command = [sys.executable, "-m", "dualstream.service", "consume", topic]
    command += [] if model is None else ["--model", model]
    process = ForkedProcess([*command, "--url", server.url, *SHORT, *flags], stderr=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@contextmanager
def begun(
    tansu: Broker, server, topic: str, is_begun: Callable[[], bool], *flags: str
) -> Iterator[ForkedProcess]:
    """As `started`, once it has begun. Reads in another group where Tansu has stopped the first."""
    for group in ("first", "second", "third"):
        with started(server, tansu.url(topic), *flags, "--group", group) as process:
            deadline = time.monotonic() + 30
            while not is_begun() and time.monotonic() < deadline:
                time.sleep(0.05)
            if is_begun():
                yield process
                return
        assert not tansu.has_working_group(topic, group), "the command learns nothing"
    raise AssertionError("the broker gives no group partitions")


def consumed(server, topic: str, *flags: str, model: str | None = "clicks") -> tuple[int, str, str]:
    """Exit code and output of a run to the end of the topic."""
    with started(server, topic, "--until-end", *flags, model=model) as process:
        said, errors = process.communicate(timeout=100)
    return process.returncode, said, errors


def refused(server, *arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["consume", *arguments, "--url", server.url, *SHORT])
    return done.exit_code, done.stderr


def test_a_topic_is_learned_once_and_bad_messages_are_dead_letters(
    tansu, client, shared_server, tmp_path
):
    topic = tansu.create("whole")
    tansu.send("whole", [row(n) for n in range(500)])
    tansu.send("whole", [None, b"", b"{", b'{"x": {"n": 1}}', row(7)])
    tansu.send("whole", [row(n) for n in range(500, 700)])
    client.create("clicks", SPEC)
    dead = tmp_path / "dead.ndjson"
    flags = ("--dead-letter", str(dead), "--batch-rows", "64", "--json")
    code, said, errors = consumed(shared_server, topic, *flags)
    assert (code, errors) == (1, ""), errors
    counted = json.loads(said)
    assert counted["learned"] == 700 and counted["refused"] == 4
    assert counted["duplicates"] == 1  # row 7 has a known id
    letters = [json.loads(line) for line in dead.read_text().splitlines()]
    assert [letter["offset"] for letter in letters] == [500, 501, 502, 503]
    assert "label" in letters[-1]["reason"]
    # The state is that of one learner that saw the rows.
    client.create("same", SPEC)
    rows = [json.loads(row(n)) for n in range(700)]
    client.learn_iter("same", rows)
    mine, theirs = client.get("clicks", digest=True), client.get("same", digest=True)
    assert (mine.samples, mine.state_digest) == (700, theirs.state_digest)
    (cursor,) = client.sources("clicks")
    assert (cursor.name, cursor.next, cursor.lag) == ("kafka/whole/0", 705, 0)
    # A second run finds nothing new, in another group, too.
    assert json.loads(consumed(shared_server, topic, *flags, "--group", "other")[1])["learned"] == 0
    tansu.send("whole", [row(700)])
    assert json.loads(consumed(shared_server, topic, *flags)[1])["learned"] == 1


def test_flat_rows_get_columns_from_key_time_and_headers(tansu, client, shared_server):
    topic = tansu.create("flat")
    client.create("clicks", FLAT)
    value = b'{"clicked": 1, "event": "e1", "site": "news"}'
    tansu.send("flat", [value], key=b"ann", headers=[("tenant", b"acme")])
    inputs = ("key=user", "headers.tenant=tenant", "timestamp=at")
    code, said, errors = consumed(
        shared_server, topic, *(flag for one in inputs for flag in ("--column", one))
    )
    assert (code, errors) == (0, "") and "1 row learned" in said
    names = {weight.name for weight in client.weights("clicks").weights}
    assert {"site=news", "user=ann", "tenant=acme", "at.hour.sin"} <= names


def test_each_model_learns_its_messages_of_one_topic(tansu, client, shared_server, tmp_path):
    topic = tansu.create("tenants", 2)
    for number in range(60):
        tenant = "abc"[number % 3]
        tansu.send("tenants", [row(number)], number % 2, headers=[("tenant", tenant.encode())])
    client.create("a", SPEC)
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps(SPEC))
    flags = ("--route", "headers.tenant", "--batch-rows", "7", "--json")
    code, said, errors = consumed(shared_server, topic, *flags, model=None)
    assert code == 1 and "no model 'b'" in errors
    counted = json.loads(said)
    assert (counted["learned"], counted["refused"]) == (20, 40)
    # The second run begins after the messages that the first has passed.
    flags += ("--create", str(spec))
    tansu.send("tenants", [row(60)], headers=[("tenant", b"a")])
    counted = json.loads(consumed(shared_server, topic, *flags, model=None)[1])
    assert (counted["learned"], counted["duplicates"], counted["refused"]) == (1, 0, 0)
    # Another group reads all of them: a's rows are before its cursors.
    counted = json.loads(consumed(shared_server, topic, *flags, "--group", "g", model=None)[1])
    assert (counted["learned"], counted["duplicates"], counted["refused"]) == (40, 21, 0)
    assert [client.get(model).samples for model in "abc"] == [21, 20, 20]


def test_each_model_observes_its_messages_of_one_topic(tansu, client, shared_server, tmp_path):
    topic = tansu.create("events", 2)
    for number in range(60):
        event = {"tenant": "abc"[number % 3], "card": f"c{number % 5}"}
        tansu.send("events", [json.dumps(event).encode()], number % 2)
    columns = {"columns": {"label": "fraud", "types": {"card": "category"}}}
    by_card = {"by": "card", "stats": ["count"], "half_life": [10]}
    for model in "ab":
        client.create(model, SPEC | columns | {"history": [by_card]})
    client.create("c", SPEC | columns)
    flags = ("--route", "value.tenant", "--observe", "--json")
    for group, learned in (("first", 40), ("second", 0)):
        code, said, _ = consumed(shared_server, topic, *flags, "--group", group, model=None)
        counted = json.loads(said)
        assert (code, counted["learned"], counted["refused"]) == (1, learned, 20)
        assert counted["duplicates"] == 40 - learned
        assert [client.get(model).seq for model in "abc"] == [20, 20, 0]


def test_sigterm_posts_what_was_read_and_metrics_are_served(tansu, client, shared_server):
    tansu.create("stops")
    client.create("clicks", SPEC)
    tansu.send("stops", [row(n) for n in range(100)])
    flags = ("--batch-wait", "600", "--batch-rows", "60", "--metrics-port", "0")
    is_begun = lambda: client.get("clicks").samples == 60  # noqa: E731
    with begun(tansu, shared_server, "stops", is_begun, *flags) as process:
        url = re.search(r"http://\S+", process.stderr.readline()).group()
        lag = 'dualstream_consume_lag_rows{model="clicks",source="kafka/stops/0"}'
        deadline = time.monotonic() + 30
        while samples(httpx.get(url).text).get(lag) != 40:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        said, errors = process.communicate(timeout=100)
    assert (process.returncode, errors) == (0, ""), errors
    assert "100 rows learned" in said and client.get("clicks").samples == 100


def test_a_model_that_is_deleted_underneath_ends_the_command(tansu, client, shared_server):
    tansu.create("deleted")
    client.create("clicks", SPEC)
    tansu.send("deleted", [row(1)])
    is_begun = lambda: client.get("clicks").samples == 1  # noqa: E731
    with begun(tansu, shared_server, "deleted", is_begun) as process:
        client.delete("clicks")
        tansu.send("deleted", [row(2)])
        said, errors = process.communicate(timeout=100)
    assert (process.returncode, said) == (3, "") and errors.startswith("no model 'clicks'; ")


def test_errors_are_one_line_and_name_what_to_do(tansu, client, shared_server, tmp_path):
    topic, broker = tansu.create("errors"), f"kafka://{tansu.brokers}"
    model = ("--model", "clicks")
    code, why = refused(shared_server, topic, *model)
    assert code == 3 and why.startswith("no model 'clicks'; `dualstream models` lists")
    client.create("clicks", SPEC)
    code, said = refused(shared_server, f"{broker}/nothing", *model)
    assert code == 2 and said.startswith("the topic 'nothing' cannot be read: ")
    for wrong, named in (
        (["clicks"], "the source must be kafka://HOST:PORT/TOPIC, redis://HOST"),
        (["kafka://user:secret@host/clicks"], "credentials do not belong into the URL"),
        ([topic, "--reset", "newest"], "--reset must be earliest or latest, got 'newest'"),
        ([topic, "--kafka", "group.id=x"], "--kafka group.id: use --group"),
        ([topic, "--kafka", "no.such=x"], '--kafka: No such configuration property: "no.such"'),
        ([topic, "--kafka", "@no"], "--kafka @no: cannot read the file: "),
        ([topic, "--column", "value=a"], "--column value=a: the field must be key, "),
        ([topic, "--dead-letter", str(tmp_path)], "cannot write the file: Is a directory"),
        ([topic, "--dead-letter", f"{broker}/no"], "the topic 'no' does not exist at "),
        ([topic, "--predict-to", "no"], "the topic 'no' does not exist at "),
        ([topic, "--predict-to", "errors"], "the source itself cannot be written; choose another"),
        ([topic, "--labels", "--features", "no"], "the topic 'no' cannot be read: "),
        ([topic, "--labels", "--predict-to", "no"], "--labels and --predict-to are two commands"),
        ([topic, "--features", "errors"], "--features belongs to --labels"),
        ([topic, "--create", "errors"], "--create belongs to --route"),
        ([topic, "--route", "key", "--create", "s", "--labels"], "--create belongs to the command"),
        ([topic, "--route", "key"], "send either --model ID or --route FIELD"),
        ([topic, "--route", "tenant"], "--route must be key, headers.NAME or value.COLUMN, got "),
    ):
        code, said = refused(shared_server, *wrong, *model)
        assert code == 2 and named in said and said.count("\n") == 1, (wrong, said)
        assert "secret" not in said
    assert "kafka/errors/0" not in {one.name for one in client.sources("clicks")}
    tansu.send("errors", [row(1)])
    client.set_source("clicks", "kafka/errors/0", "5-0")
    # In a group of its own: the earlier commands left theirs.
    code, said = refused(shared_server, topic, *model, "--group", "text")
    assert code == 2 and said == (
        "the cursor of kafka/errors/0 is '5-0', not an offset; set it to the next one:"
        " dualstream sources clicks --set kafka/errors/0=OFFSET\n"
    )


def test_a_command_without_confluent_kafka_names_the_extra(shared_server, monkeypatch):
    monkeypatch.setattr("dualstream.consume.schemes.find_spec", lambda name: None)
    assert refused(shared_server, "kafka://h:1/t", "--model", "m") == (
        2,
        "kafka:// needs confluent-kafka: pip install 'dualstream[kafka]'\n",
    )
