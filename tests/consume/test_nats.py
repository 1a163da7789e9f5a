"""The reader of NATS JetStream on a real nats-server, and `dualstream consume nats://...`."""

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from typer.testing import CliRunner

from dualstream.client import BadInput, Client
from dualstream.consume.loop import Consumer
from dualstream.consume.nats import NatsReader, parse_nats
from dualstream.consume.reader import Message, ReaderError
from dualstream.consume.rows import RowLines
from dualstream.service.cli import app
from tests.consume.fakes import FakeServer, away
from tests.consume.support import Letters, numbers, row, until
from tests.docs.documents import ROOT
from tests.nats_server import NatsServer, running_nats
from tests.service.conftest import shared_server

__all__ = ["shared_server"]


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with running_nats(tmp_path_factory.mktemp("nats")) as server:
        yield server


@pytest.fixture
def reading(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., NatsReader]]:
    """Makes readers, which are closed afterwards."""
    made: list[NatsReader] = []
    monkeypatch.setattr("dualstream.consume.nats.ANSWER_S", 20.0)

    def read(url: str, said: list[str] | None = None) -> NatsReader:
        lines = [] if said is None else said
        made.append(NatsReader(parse_nats(url), lines.append))
        return made[-1]

    yield read
    for one in made:
        one.close()


def consumer(reader: NatsReader, server: FakeServer, **options: Any) -> Consumer:
    options = {"max_rows": 20, "max_bytes": 1_000_000, "max_wait_s": 0.05} | options
    return Consumer(reader, server, RowLines(), options.pop("dead", Letters()), **options)


def test_a_stream_is_read_from_the_cursor(nats, reading):
    url = nats.create("whole")
    nats.send("whole", [row(n) for n in range(100)])
    server = FakeServer()
    # A batch waits until it is full, also if the messages come in parts.
    one = consumer(reading(url), server, max_wait_s=60.0)
    one.run(until_end=True)
    assert numbers(server) == list(range(100)) and server.cursors == {"nats/whole": 101}
    assert server.lags == [80, 60, 40, 20, 0]
    nats.send("whole", [row(100)])
    consumer(reading(url), server).run(until_end=True)
    assert numbers(server) == list(range(101))


def test_messages_have_subject_time_and_headers(nats, reading):
    reader = reading(nats.create("fields"))
    nats.send("fields", [b"{}", b""], tenant="acme")
    reader.start("nats/fields", 1)
    first, second = reader.read(2, 30.0)
    assert (first.source, first.offset, first.value) == ("nats/fields", 1, b"{}")
    assert first.key == b"fields.a" and first.headers == (("tenant", b"acme"),)
    assert first.timestamp_ms > 1_700_000_000_000 and second.offset == 2


def test_new_messages_are_read_and_latest_begins_at_the_end(nats, reading):
    url = nats.create("latest")
    nats.send("latest", [row(0), row(1)])
    server = FakeServer()
    one = consumer(reading(url), server, reset="latest")
    until(lambda: bool(server.cursors), one)
    for number in (2, 3):
        nats.send("latest", [row(number)])
        until(lambda number=number: numbers(server)[-1:] == [number], one)
    assert numbers(server) == [2, 3]


def test_two_readers_of_one_stream_learn_each_message_once(nats, reading):
    url, server = nats.create("shared"), FakeServer()
    both = [consumer(reading(url), server, max_rows=n) for n in (7, 5)]
    sent, deadline = 0, time.monotonic() + 60
    while sent < 120 or sum(one.counters.moved for one in both) < 2:
        assert time.monotonic() < deadline
        nats.send("shared", [row(n) for n in range(sent, sent + 30)])
        sent += 30
        until(lambda sent=sent: len(server.learned) == sent, *both)
    assert numbers(server) == list(range(sent))
    # The consumers of earlier starts are deleted.
    assert len(nats.ask(lambda js: js.consumers_info("shared"))) <= 2
    one = NatsReader(parse_nats(nats.create("closed")), print)
    one.start("nats/closed", 1)
    one.read(1, 0.01)
    assert len(nats.ask(lambda js: js.consumers_info("closed"))) == 1
    one.close()
    assert nats.ask(lambda js: js.consumers_info("closed")) == []


def test_large_messages_are_read_a_few_at_once(nats, reading):
    """More than the client holds for a subscription."""
    reader = reading(nats.create("large"))
    nats.send("large", [b" " * 1_000_000] * 40)
    reader.start("nats/large", 1)
    results: list[list[Message]] = []
    deadline = time.monotonic() + 60
    while sum(map(len, results)) < 40:
        assert time.monotonic() < deadline
        if some := reader.read(1000 if results else 20, 1.0):
            results.append(some)
    assert [one.offset for some in results for one in some] == list(range(1, 41))
    assert all(len(some) <= 5 for some in results[1:])


def test_the_server_is_killed_in_the_middle(tmp_path, reading, monkeypatch):
    monkeypatch.setattr("dualstream.consume.nats.ANSWER_S", 2.0)  # also the wait of each close
    with running_nats(tmp_path) as nats:
        url, model, said = nats.create("killed"), FakeServer(), []
        nats.send("killed", [row(n) for n in range(60)])
        one = consumer(reading(url, said), model)
        until(lambda: len(model.learned) >= 20, one)
        other = NatsReader(parse_nats(url), print)
        consumer(other, FakeServer()).turn()
        nats.kill()
        one.turn()
        other.read(1, 0.1)
        other.close()  # with a request that is not sent
        nats.start()
        nats.send("killed", [row(n) for n in range(60, 80)])
        until(lambda: len(model.learned) == 80, one, seconds=60)
    assert numbers(model) == list(range(80)) and len(said) < 6


def test_a_delivery_that_is_lost_is_read_again(nats, reading, monkeypatch):
    url, server = nats.create("drops"), FakeServer()
    nats.send("drops", [row(n) for n in range(50)])
    reader = reading(url)
    one = consumer(reader, server)
    until(lambda: len(server.learned) >= 20, one)
    fetch = reader._pull.fetch

    async def dropping(rows: int, seconds: float) -> list[Any]:
        return (await fetch(rows, seconds))[3:]

    monkeypatch.setattr(reader._pull, "fetch", dropping)
    until(lambda: len(server.learned) == 50, one)
    assert numbers(server) == list(range(50))


def test_messages_that_are_deleted_one_by_one_are_passed_and_trimmed_ones_are_lost(nats, reading):
    url, server = nats.create("gaps"), FakeServer()
    nats.send("gaps", [row(n) for n in range(6)])
    nats.ask(lambda js: js.delete_msg("gaps", 3))
    reader = reading(url)
    one = consumer(reader, server)
    until(lambda: len(server.learned) == 5, one)
    assert numbers(server) == [0, 1, 3, 4, 5]
    # Trimmed after they were learned, and then before.
    nats.ask(lambda js: js.purge_stream("gaps"))
    nats.send("gaps", [row(6)])
    until(lambda: len(server.learned) == 6, one)

    def waiting_requests() -> int:
        reader.bounds("nats/gaps")  # the answer says that the server has the last request
        (about,) = nats.ask(lambda js: js.consumers_info("gaps"))
        return about.num_waiting

    # A request that has not expired would get the messages before they are trimmed.
    until(lambda: not waiting_requests())
    nats.send("gaps", [row(n) for n in range(7, 12)])
    nats.ask(lambda js: js.purge_stream("gaps", keep=2))
    expected = "nats/gaps: the model's cursor is 8, but the log begins at 11: 3 offsets are gone"
    with pytest.raises(ReaderError, match=expected):
        until(lambda: False, one)
    with pytest.raises(ReaderError, match=expected):
        until(lambda: False, consumer(reading(url), server))
    consumer(reading(url), server, reset="earliest").run(until_end=True)
    assert numbers(server)[-2:] == [10, 11]
    # Made again: the log ends before the cursor.
    nats.ask(lambda js: js.delete_stream("gaps"))
    nats.create("gaps")
    with pytest.raises(ReaderError, match="the log ends at 1: it was truncated or made again"):
        until(lambda: False, consumer(reading(url), server))


def test_reader_detects_a_recreated_stream(nats, reading):
    """Also if it has the number of the cursor."""
    url, server = nats.create("again"), FakeServer()
    nats.send("again", [row(n) for n in range(5)])
    one = consumer(reading(url), server)
    until(lambda: len(server.learned) == 5, one)
    nats.ask(lambda js: js.delete_stream("again"))
    nats.create("again")
    nats.send("again", [row(n) for n in range(9)])
    with pytest.raises(ReaderError, match="made again, so the cursor 6 is not one of its numbers"):
        until(lambda: False, one)
    assert numbers(server) == list(range(5))


def test_a_reset_continues_in_a_shorter_stream_that_is_made_again(nats, reading):
    url, server = nats.create("shorter"), FakeServer()
    nats.send("shorter", [row(n) for n in range(5)])
    one = consumer(reading(url), server, reset="earliest")
    until(lambda: len(server.learned) == 5, one)
    nats.ask(lambda js: js.delete_stream("shorter"))
    nats.create("shorter")
    nats.send("shorter", [row(5), row(6)])
    until(lambda: len(server.learned) == 7, one)
    assert numbers(server) == list(range(7))


def test_the_lag_grows_while_the_server_is_away(nats, reading):
    url, server, lags = nats.create("lag"), FakeServer(), []
    nats.send("lag", [row(n) for n in range(3)])
    reader = reading(url)
    one, wait = consumer(reader, server, max_rows=3), reader.keep_alive

    def keep_alive(seconds: float) -> None:
        lags.append(one.counters.partitions["nats/lag"].lag_rows)
        nats.send("lag", [row(3)])
        wait(seconds)

    reader.keep_alive = keep_alive
    server.failures = [None, away(), away(), away()]
    until(lambda: len(server.learned) >= 3, one)
    assert lags == [3, 4, 5]


def test_errors_name_the_stream_and_what_is_wrong(nats, reading, monkeypatch):
    with pytest.raises(ReaderError, match="the stream 'nothing' does not exist; create it"):
        reading(f"{nats.url}/nothing")
    with (
        monkeypatch.context() as soon,
        pytest.raises(ReaderError, match="no NATS server answers at nats://127.0.0.1:9: .*111"),
    ):
        soon.setattr("dualstream.consume.nats.START_S", 0.5)
        reading("nats://ann:secret@127.0.0.1:9/s")
    nats.create("work", retention="workqueue")
    with pytest.raises(ReaderError, match="nats/work cannot be read: .*ack policy"):
        until(lambda: False, consumer(reading(f"{nats.url}/work"), FakeServer()))
    for wrong in ("h:1", "h:1/", "h:1/a/b", "/s", "h/s?a=b", ":pw@h:1"):
        with pytest.raises(BadInput, match="a stream is nats://HOST:PORT/STREAM, got ") as bad:
            parse_nats(f"nats://{wrong}")
        assert "pw" not in str(bad.value)


def test_a_user_needs_the_subjects_that_the_guide_names(reading, tmp_path, monkeypatch):
    guide = (ROOT / "docs/guides/nats.md").read_text()
    named = re.search(r"The user needs the subjects (.*)", guide)[1]
    publish = json.dumps(re.findall(r"`(\$[^`]+)`", named))
    (tmp_path / "users.conf").write_text(
        "authorization {users: [{user: boss, password: pw}, {user: ann, password: secret,"
        f' permissions: {{publish: {publish}, subscribe: ["_INBOX.>"]}}}}]}}'
    )
    with running_nats(tmp_path, "-c", str(tmp_path / "users.conf")) as guarded:
        bare, guarded.url = guarded.url, guarded.url.replace("//", "//boss:pw@")
        guarded.create("guarded")
        guarded.send("guarded", [row(0), row(1)])
        monkeypatch.setattr("dualstream.consume.nats.START_S", 2.0)
        with pytest.raises(ReaderError, match="no NATS server answers at .*Authorization"):
            reading(f"{bare}/guarded")
        monkeypatch.setattr("dualstream.consume.nats.START_S", 10.0)
        stream, server = parse_nats(f"{bare}/guarded"), FakeServer()
        with closing(NatsReader(stream, print, "ann", "secret")) as reader:
            consumer(reader, server).run(until_end=True)
        reading(f"{bare}/guarded".replace("//", "//ann:secret@"))
        assert numbers(server) == [0, 1]


def test_the_command_learns_a_stream_once(nats, shared_server, tmp_path):
    source = nats.create("CLICKS")
    rows = [
        {"x": {"n": n % 13, "site": f"s{n % 7}"}, "y": int(n % 3 == 0), "id": f"m{n}"}
        for n in range(300)
    ]
    nats.send("CLICKS", [json.dumps(one).encode() for one in rows])
    nats.send("CLICKS", [b"{", json.dumps(rows[7]).encode()])
    dead = tmp_path / "dead.ndjson"
    with Client(shared_server.url) as client:
        spec = {"algorithm": "dual_ascent", "features": {"kind": "hashed", "bits": 10}}
        for model in ("clicks", "same"):
            client.create(model, spec)
        flags = ["--until-end", "--json", "--url", shared_server.url, "--dead-letter", str(dead)]
        done = CliRunner().invoke(app, ["consume", source, "--model", "clicks", *flags])
        counted = json.loads(done.stdout)
        assert done.exit_code == 1 and (counted["learned"], counted["duplicates"]) == (300, 1)
        assert [json.loads(line)["offset"] for line in dead.read_text().splitlines()] == [301]
        client.learn_iter("same", rows)
        mine, theirs = client.get("clicks", digest=True), client.get("same", digest=True)
        assert mine.state_digest == theirs.state_digest
        assert [(one.name, one.next) for one in client.sources("clicks")] == [("nats/CLICKS", 303)]
        for wrong, named in (
            (["--group", "g"], "--group is an option of kafka:// sources"),
            (["--dead-letter", "nats://h/s"], "--dead-letter must be a file for this source"),
        ):
            done = CliRunner().invoke(app, ["consume", source, "--model", "clicks", *wrong])
            assert done.exit_code == 2 and named in done.stderr
        for model in ("clicks", "same"):
            client.delete(model)
