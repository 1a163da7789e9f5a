"""`dualstream consume redis://...` as users run it, with Redis and a server."""

import json
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import httpx
import pytest
import redis
from typer.testing import CliRunner

from dualstream.client import Client
from dualstream.service.cli import app
from dualstream.service.cli.demo.server_process import ServerProcess
from tests.consume.support import samples, started
from tests.docs.documents import ROOT
from tests.service.conftest import shared_server

__all__ = ["shared_server"]

SPEC = {"algorithm": "dual_ascent", "features": {"kind": "hashed", "bits": 10}}
FLAT = SPEC | {"columns": {"label": "clicked", "id": "event", "types": {"at": "time"}}}


@pytest.fixture
def client(shared_server) -> Iterator[Client]:
    with Client(shared_server.url) as client:
        yield client
        for model in client.models():
            client.delete(model.id)


@pytest.fixture
def store(redis_server) -> Iterator[Any]:
    with redis.Redis.from_url(redis_server.url, decode_responses=True) as store:
        store.flushall()
        yield store


def row(number: int) -> dict[str, Any]:
    x = {"n": number % 13, "site": f"s{number % 7}"}
    return {"x": x, "y": int(number % 3 == 0), "id": f"m{number}"}


def entry(number: int) -> dict[str, str]:
    """The row as JSON or as fields."""
    one = row(number)
    if number % 2:
        return {"json": json.dumps(one)}
    fields = {f"x.{name}": str(value) for name, value in one["x"].items()}
    return fields | {"y": str(one["y"]), "id": one["id"]}


def refused(server, *arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["consume", *arguments, "--url", server.url])
    return done.exit_code, done.stderr


def consumed(server, *arguments: str) -> dict[str, Any]:
    """Counters of a run to the end of the stream."""
    inputs = [*arguments, "--model", "clicks", "--until-end", "--json", "--url", server.url]
    done = CliRunner().invoke(app, ["consume", *inputs])
    assert done.exit_code == bool(json.loads(done.stdout)["refused"]), done.output
    return json.loads(done.stdout)


def test_a_stream_is_learned_once_and_broken_entries_are_dead_letters(
    store, client, shared_server, redis_server
):
    source = f"{redis_server.url}/clicks"
    for number in range(500):
        store.xadd("clicks", entry(number))
    for bad in ({"y": "1"}, {"x.n": "1"}, {"x.n": "1", "y": "maybe"}, entry(7)):
        store.xadd("clicks", bad)
    for number in range(500, 700):
        store.xadd("clicks", entry(number))
    client.create("clicks", SPEC)
    flags = ("--dead-letter", f"{redis_server.url}/dead", "--batch-rows", "64")
    with started(shared_server, source, "--until-end", *flags) as process:
        said, errors = process.communicate(timeout=100)
    assert (process.returncode, errors) == (1, "")
    assert said == f"{source}: 700 rows learned, 1 learned before, 3 refused\n"
    letters = [fields for _, fields in store.xrange("dead")]
    ids = [id_ for id_, _ in store.xrange("clicks")[500:503]]
    assert [letter["dead.id"] for letter in letters] == ids
    reasons = [letter["dead.reason"] for letter in letters]
    assert reasons[0].startswith("send the features") and "`y` is missing" in reasons[1]
    assert "'maybe' is not a label" in reasons[2] and letters[2]["y"] == "maybe"
    # The state is that of one learner that saw the rows.
    client.create("same", SPEC)
    client.learn_iter("same", [row(number) for number in range(700)])
    mine, theirs = client.get("clicks", digest=True), client.get("same", digest=True)
    assert (mine.samples, mine.state_digest) == (700, theirs.state_digest)
    (cursor,) = client.sources("clicks")
    last = store.xinfo_stream("clicks")["last-generated-id"]
    assert (cursor.name, cursor.next, cursor.lag) == ("redis/clicks", last, 0)
    # A second run finds nothing new; the stream is as it was.
    assert consumed(shared_server, source)["learned"] == 0
    assert store.xlen("clicks") == 704
    store.xadd("clicks", entry(700))
    counters = consumed(shared_server, source)
    assert counters["learned"] == 1
    last = store.xinfo_stream("clicks")["last-generated-id"]
    assert counters["partitions"]["redis/clicks"]["offset"] == last


def test_fields_of_a_model_with_columns_are_a_flat_row(
    store, client, shared_server, redis_server, tmp_path
):
    client.create("clicks", FLAT)
    store.xadd("flat", {"clicked": "1", "event": "e1", "site": "news", "price": "3.5"}, "1-1")
    store.xadd("flat", {"clicked": "", "site": "news"}, "1-2")
    dead = tmp_path / "dead.ndjson"
    inputs = ("--column", "timestamp=at", "--dead-letter", str(dead))
    assert consumed(shared_server, f"{redis_server.url}/flat", *inputs)["learned"] == 1
    names = {weight.name for weight in client.weights("clicks").weights}
    assert {"site=news", "price", "at.hour.sin"} <= names
    (letter,) = map(json.loads, dead.read_text().splitlines())
    assert "clicked" in letter.pop("reason")
    assert letter == {
        "source": "redis/flat",
        "offset": "1-2",
        "timestamp": "1970-01-01T00:00:00.001000Z",
        "fields": [{"name": "clicked", "value": ""}, {"name": "site", "value": "news"}],
    }


def test_sigterm_posts_what_was_read_and_metrics_are_served(
    store, client, shared_server, redis_server
):
    client.create("clicks", SPEC)
    for number in range(100):
        store.xadd("stops", entry(number))
    flags = ("--batch-wait", "600", "--batch-rows", "60", "--metrics-port", "0")
    with started(shared_server, f"{redis_server.url}/stops", *flags) as process:
        url = re.search(r"http://\S+", process.stderr.readline()).group()
        labels = '{model="clicks",source="redis/stops"}'
        deadline = time.monotonic() + 30
        while (result := samples(httpx.get(url).text)).get(
            f"dualstream_consume_lag_rows{labels}"
        ) != 40:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert result[f"dualstream_consume_lag_seconds{labels}"] > 0
        assert client.get("clicks").samples == 60
        process.send_signal(signal.SIGTERM)
        said, errors = process.communicate(timeout=100)
    assert (process.returncode, errors) == (0, ""), errors
    assert "100 rows learned" in said and client.get("clicks").samples == 100


def test_the_password_is_in_the_url_or_the_environment_and_never_shown(
    store, client, shared_server, redis_server, monkeypatch
):
    client.create("clicks", SPEC)
    store.xadd("clicks", entry(1))
    text = (ROOT / "docs/guides/redis.md").read_text()
    needed = re.search(r"The user needs the commands (.*?), and", text, re.DOTALL)[1]
    commands = [f"+{name.lower()}" for name in re.findall(r"`(\w+)`", needed)]
    assert len(commands) == 6
    store.acl_setuser(
        "ann", enabled=True, passwords=["+s:3cret"], keys=["clicks"], commands=commands
    )
    database = store.client_info()["db"]
    source = f"redis://ann@127.0.0.1:{redis_server.port}/{database}/clicks"
    run = ("--model", "clicks", "--until-end")
    monkeypatch.setenv("REDISCLI_AUTH", "s:3cret")
    try:
        for url in (source, source.replace("ann@", "ann:s%3A3cret@")):
            done = CliRunner().invoke(app, ["consume", url, *run, "--url", shared_server.url])
            assert done.exit_code == 0 and done.stdout.startswith("redis://127.0.0.1:")
        monkeypatch.setenv("REDISCLI_AUTH", "wrong")
        code, said = refused(shared_server, source, *run)
        assert code == 2 and "Redis refuses the password" in said
    finally:
        store.acl_deluser("ann")
    assert client.get("clicks").samples == 1


def test_errors_are_one_line_and_name_what_to_do(
    store, client, shared_server, redis_server, monkeypatch
):
    monkeypatch.setattr("dualstream.consume.redis.START_S", 0.1)
    source, model = f"{redis_server.url}/errors", ("--model", "clicks")
    assert refused(shared_server, source, *model)[0] == 3  # no such model
    client.create("clicks", SPEC)
    for wrong, named in (
        (["redis://h:1/clicks"], "a stream is redis://HOST:PORT/DB/STREAM, got redis://h:1/clicks"),
        (["redis://127.0.0.1:9/0/clicks"], "no Redis answers at redis://127.0.0.1:9/0"),
        (["reds://ann:secret@h/0/clicks"], "the source must be kafka://HOST:PORT/TOPIC, redis:"),
        ([source, "--kafka", "a=b"], "--kafka is an option of kafka:// sources"),
        ([source, "--group", "g"], "--group is an option of kafka:// sources"),
        ([source, "--column", "key=user"], "--column key=user: an entry of a stream has timestamp"),
        ([source, "--dead-letter", source], "--dead-letter must not be the source itself"),
        (
            [source, "--dead-letter", "kafka://h:1/t"],
            "--dead-letter must be a file or redis://... for this source",
        ),
        ([source, "--reset", "newest"], "--reset must be earliest or latest, got 'newest'"),
    ):
        code, said = refused(shared_server, *wrong, *model)
        assert code == 2 and named in said and said.count("\n") == 1, (wrong, said)
        assert "secret" not in said
    client.set_source("clicks", "redis/other", 5)
    assert consumed(shared_server, source)["learned"] == 0
    client.set_source("clicks", "redis/errors", 5)
    code, said = refused(shared_server, source, *model)
    assert code == 2 and "the cursor of redis/errors is 5, not an entry id; set it to" in said


def test_a_command_without_redis_names_the_extra(shared_server, monkeypatch):
    monkeypatch.setattr("dualstream.consume.schemes.find_spec", lambda name: None)
    assert refused(shared_server, "redis://h:1/0/s", "--model", "m") == (
        2,
        "redis:// needs redis: pip install 'dualstream[redis]'\n",
    )


def until_samples(client: Client, samples: int) -> None:
    deadline = time.monotonic() + 60
    while (result := client.get("clicks").samples) != samples:
        assert time.monotonic() < deadline, result
        time.sleep(0.02)


def test_a_store_that_is_restored_from_before_the_source_began_gets_all_rows(store, redis_server):
    """The consumer runs on. Afterwards its cursor is deleted: known ids are not learned again."""
    database = f"{redis_server.url[:-1]}1"
    with (
        ServerProcess(database) as server,
        Client(server.url) as client,
        redis.Redis.from_url(database) as inside,
    ):
        client.create("clicks", SPEC)
        client.create("same", SPEC)
        backup = {key: inside.dump(key) for key in inside.scan_iter()}
        source = f"{redis_server.url}/lost"
        for number in range(100):
            store.xadd("lost", entry(number))
        with started(server, source, "--batch-rows", "16") as process:
            until_samples(client, 100)
            with inside.pipeline() as restoring:  # at once: the server reads the store in between
                restoring.flushdb()
                for key, value in backup.items():
                    restoring.restore(key, 0, value)
                restoring.execute()
            for number in range(100, 110):
                store.xadd("lost", entry(number))
            until_samples(client, 110)
            client.learn_iter("same", [row(number) for number in range(110)])
            x = [row(number)["x"] for number in range(20)]
            mine, theirs = client.predict("clicks", x), client.predict("same", x)
            assert mine.scores == theirs.scores
            client.forget_source("clicks", "redis/lost")
            store.xadd("lost", entry(110))
            until_samples(client, 111)
            process.send_signal(signal.SIGTERM)
            said, errors = process.communicate(timeout=100)
    assert process.returncode == 0 and "211 rows learned, 110 learned before" in said
    lost = r"redis/lost: the server no longer has the cursor, which was \d+-\d+; continues at the"
    assert len(re.findall(lost, errors)) == 2, errors


def test_a_signal_ends_the_wait_for_a_server_that_does_not_answer(store, redis_server, monkeypatch):
    """The server accepts requests; it is sent one alone."""
    monkeypatch.setattr("dualstream.service.cli.consume.STOP_S", 0.3)
    store.xadd("clicks", entry(1))
    accepted: list[socket.socket] = []

    def serve() -> None:
        with suppress(OSError):
            while True:
                accepted.append(listening.accept()[0])
                accepted[-1].recv(1000)
                os.kill(os.getpid(), signal.SIGTERM)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve)
        thread.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        inputs = [f"{redis_server.url}/clicks", "--model", "clicks", "--json", "--url", url]
        done = CliRunner().invoke(app, ["consume", *inputs])
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()
    for one in accepted:
        one.close()
    assert (done.exit_code, len(accepted)) == (0, 1), done.output
    assert "stopped while waiting: what the server has not learned stays" in done.stderr
    assert json.loads(done.stdout)["learned"] == 0
