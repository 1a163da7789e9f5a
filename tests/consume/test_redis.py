"""The reader of Redis streams on a real Redis: cursors, trimmed and deleted entries, restarts."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from dualstream.client import BadInput
from dualstream.consume.dead_letters import DeadLetter
from dualstream.consume.entries import EntryLines, offset_of
from dualstream.consume.loop import Consumer
from dualstream.consume.reader import Message, ReaderError
from dualstream.consume.redis import RedisLetters, RedisReader, parse_stream
from tests.consume.fakes import FakeServer, away
from tests.consume.support import Letters, numbers, row, until
from tests.redis_server import RedisServer, redis_or_skip

CLICKS = "redis/clicks"


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[Any]:
    with redis.Redis.from_url(redis_server.url) as client:
        client.flushall()
        yield client


@pytest.fixture
def reading(redis_server: RedisServer) -> Iterator[Callable[..., RedisReader]]:
    """Makes readers of the stream `clicks`, which are closed afterwards."""
    made: list[RedisReader] = []

    def read(name: str = "clicks", said: list[str] | None = None, url: str = "") -> RedisReader:
        lines = [] if said is None else said
        stream = parse_stream(f"{url or redis_server.url}/{name}")
        made.append(RedisReader(stream, None, lines.append))
        return made[-1]

    yield read
    for one in made:
        one.close()


def add(client: Any, *args: int, ms: int | None = None) -> None:
    """Add rows of these numbers; with `ms` their ids are ms-NUMBER."""
    for number in args:
        client.xadd("clicks", {"json": row(number)}, "*" if ms is None else f"{ms}-{number}")


def consumer(reader: RedisReader, server: FakeServer, **options: Any) -> Consumer:
    options = {"max_rows": 20, "max_bytes": 1_000_000, "max_wait_s": 0.02} | options
    return Consumer(reader, server, EntryLines(), options.pop("dead", Letters()), **options)


def run(reader: RedisReader, server: FakeServer, **options: Any) -> Consumer:
    """Run to the end of the stream."""
    one = consumer(reader, server, **options)
    one.run(until_end=True)
    return one


def test_a_stream_is_read_from_the_cursor(client, reading):
    add(client, *range(100))
    server = FakeServer()
    one = run(reading(), server)
    assert numbers(server) == list(range(100))
    assert max(count for *_, count in server.requests) == 20
    last = client.xinfo_stream("clicks")["last-generated-id"].decode()
    assert server.cursors == {CLICKS: offset_of(last) + 1}
    # From its first entry on, the lag counts down to 0.
    assert server.lags == [80, 60, 40, 20, 0]
    progress = one.counters.partitions[CLICKS]
    assert (progress.offset, progress.lag_rows) == (last, 0)
    assert progress.timestamp_ms == int(last.partition("-")[0])
    add(client, 100, 101)
    run(reading(), server)
    assert numbers(server) == list(range(102))


def test_the_lag_in_the_middle_of_a_stream_is_known_from_its_end_on(client, reading):
    add(client, *range(1, 9), ms=5)
    reader = reading()
    reader.start(CLICKS, offset_of("5-4"))
    assert len(reader.read(2, 0.0)) == 2 and reader.lag(CLICKS, offset_of("5-6")) is None
    assert len(reader.read(9, 0.0)) == 3 and reader.lag(CLICKS, offset_of("5-7")) == 2


def test_a_consumer_waits_for_a_stream_and_for_entries(client, reading):
    said: list[str] = []
    server = FakeServer()
    one = consumer(reading(said=said), server)
    one.turn()
    assert said == ["redis/clicks: the stream has no entries yet; waiting for the first one"]
    for number in range(3):
        add(client, number)
        until(lambda number=number: numbers(server) == list(range(number + 1)), one)
    run(reading("nothing"), FakeServer())


def test_latest_begins_at_the_end(client, reading):
    add(client, 0, 1)
    server = FakeServer()
    consumer(reading(), server, reset="latest").turn()
    add(client, 2)
    run(reading(), server, reset="latest")
    assert numbers(server) == [2]


def test_two_readers_of_one_stream_learn_each_entry_once(client, reading):
    server = FakeServer()
    both = [consumer(reading(), server, max_rows=7), consumer(reading(), server, max_rows=5)]
    for first in range(0, 300, 30):
        add(client, *range(first, first + 30))
        until(lambda first=first: len(server.learned) == first + 30, *both)
    assert numbers(server) == list(range(300))


def test_broken_entries_are_dead_letters_and_the_cursor_passes_them(client, reading):
    add(client, 0)
    bad = [client.xadd("clicks", case).decode() for case in ({"y": 1}, {"json": "{"})]
    add(client, 1)
    unlabelled = client.xadd("clicks", {"x.n": "5"}).decode()
    server, dead = FakeServer(), Letters()
    one = run(reading(), server, dead=dead)
    assert numbers(server) == [0, 1] and one.counters.refused == 3
    assert [(offset, reason.partition(":")[0]) for _, offset, reason in dead.written] == [
        (offset_of(bad[0]), "send the features in the field x, or in fields x.NAME"),
        (offset_of(bad[1]), "not JSON"),
        (offset_of(unlabelled), "y"),
    ]
    assert server.cursors[CLICKS] == offset_of(unlabelled) + 1


# -- entries that are gone -------------------------------------------------------------------------


def test_trimmed_entries_end_the_command_unless_it_is_reset(client, reading):
    add(client, *range(10))
    server = FakeServer()
    run(reading(), server)
    add(client, *range(10, 20))
    client.xtrim("clicks", maxlen=5, approximate=False)
    first = client.xrange("clicks", count=1)[0][0].decode()
    with pytest.raises(ReaderError) as lost:
        run(reading(), server)
    cursor = reading().cursor(server.cursors[CLICKS])
    assert str(lost.value) == (
        f"redis/clicks: the model's cursor is {cursor}, but the stream begins at {first}: it was"
        " trimmed, or deleted and made again, so entries between them may be lost; continue with"
        " --reset earliest or --reset latest"
    )
    run(reading(), server, reset="earliest")
    assert numbers(server) == [*range(10), *range(15, 20)]
    client.xtrim("clicks", maxlen=0, approximate=False)
    add(client, 20)
    run(reading(), server, reset="latest")
    add(client, 21)
    run(reading(), server)
    assert numbers(server)[-2:] == [19, 21]


def test_trimming_what_is_learned_loses_nothing(client, reading):
    """Also if nothing remains of the stream, or a producer deletes each entry."""
    server, last = FakeServer(), "0-0"
    one = consumer(reading(), server)
    for number in range(12):
        add(client, number)
        until(lambda number=number: len(server.learned) == number + 1, one)
        last = client.xinfo_stream("clicks")["last-generated-id"]
        if number % 3 == 0:
            client.xdel("clicks", last)
        elif number % 3 == 1:
            client.xtrim("clicks", maxlen=0, approximate=False)
        else:  # the cursor's entry remains
            client.xtrim("clicks", minid=last, approximate=False)
            one = consumer(reading(), server)
    assert numbers(server) == list(range(12))
    # A process that starts at the end of an empty stream finds nothing lost, either.
    client.xtrim("clicks", maxlen=0, approximate=False)
    run(reading(), server)


@pytest.mark.parametrize("seed", range(5))
def test_lost_entries_are_found_exactly_and_the_lag_is_exact(client, reading, seed):
    """Entries are added, trimmed and read at random, against a list of what is kept."""
    chance, reader = random.Random(seed), reading()
    kept: list[int] = []
    added, position = 0, 0  # entries ever added, and read or lost
    reader.start(CLICKS, 0)
    for _ in range(100):
        step = chance.random()
        if step < 0.4:
            for _ in range(chance.randint(1, 5)):
                added += 1
                kept.append(added)
                client.xadd("clicks", {"n": added}, f"{added}-1")
        elif step < 0.6:
            # Mostly what was read.
            keep = max(0, added - position + chance.randint(-1, 6))
            client.xtrim("clicks", maxlen=keep, approximate=False)
            kept = kept[max(0, len(kept) - keep) :]
        else:
            unread = [number for number in kept if number > position]
            count = chance.randint(1, 8)
            result = reader.read(count, 0.0)
            if unread and unread[0] > position + 1 or not unread and added > position:
                assert result == [] and reader.lost() == [CLICKS]
                bounds = reader.bounds(CLICKS)
                assert bounds is not None
                reader.start(CLICKS, bounds.first)
                assert reader.lag(CLICKS, bounds.first) == len(kept)
                position = kept[0] - 1 if kept else added
                continue
            assert not reader.lost()
            assert [int(one.headers[0][1]) for one in result] == unread[:count]
            position += len(result)
            if result:
                lag = reader.lag(CLICKS, result[-1].offset + 1)
                assert lag == len(unread) - len(result)


def test_a_stream_that_was_deleted_or_lost_its_end_is_refused(client, reading):
    add(client, 5, 6, 7, ms=9)
    server = FakeServer()
    run(reading(), server)
    client.delete("clicks")
    with pytest.raises(ReaderError, match="cursor is 9-7, but the stream ends at 0-0: it was dele"):
        run(reading(), server)
    add(client, 1, 2, ms=9)
    with pytest.raises(ReaderError, match="but the stream ends at 9-2: "):
        run(reading(), server)
    run(reading(), server, reset="earliest")
    assert numbers(server) == [5, 6, 7, 1, 2]
    # Made again with later ids: those between the cursor and the first one may be lost.
    client.delete("clicks")
    add(client, 3, ms=10)
    with pytest.raises(ReaderError, match="cursor is 9-2, but the stream begins at 10-3: it was"):
        run(reading(), server)
    run(reading(), server, reset="earliest")
    assert numbers(server)[-1] == 3


def test_reader_detects_a_recreated_stream(client, reading, subtests):
    """Whatever the reader has read of the old one, and however long the new one is."""
    for new in [0, 1, 2, 3, 50]:
        with subtests.test(new=new):
            for read in range(5):
                client.delete("clicks")
                add(client, *range(1, 6), ms=9)
                reader = reading()
                reader.start(CLICKS, offset_of("9-1"))
                if read:
                    assert len(reader.read(read, 0.0)) == read
                client.delete("clicks")
                add(client, *range(new), ms=10)
                assert reader.read(9, 0.0) == [] and reader.lost() == [CLICKS], read
                bounds = reader.bounds(CLICKS)
                reader.start(CLICKS, bounds.first)
                assert len(reader.read(99, 0.0)) == new


def test_a_stream_that_is_made_again_while_the_server_is_away_is_noticed(client, reading):
    add(client, *range(1, 21), ms=9)
    reader, server = reading(), FakeServer()
    one, wait = consumer(reader, server, max_rows=5), reader.keep_alive

    def keep_alive(seconds: float) -> None:
        client.delete("clicks")
        add(client, *range(1, 4), ms=10)
        wait(seconds)

    reader.keep_alive = keep_alive
    server.failures = [None, None, away()]
    with pytest.raises(ReaderError, match="cursor is 9-10, but the stream begins at 10-1"):
        until(lambda: False, one)
    assert numbers(server) == [*range(1, 11)]
    run(reading(), server, reset="earliest")
    assert numbers(server) == [*range(1, 11), 1, 2, 3]


def test_a_cursor_before_every_entry_loses_nothing(client, reading):
    add(client, 1, 2, ms=9)
    server = FakeServer()
    server.cursors[CLICKS] = offset_of("0-0") + 1
    run(reading(), server)
    assert numbers(server) == [1, 2]


def test_a_reader_that_runs_notices_a_deleted_stream(client, reading):
    add(client, 5, ms=9)
    server = FakeServer()
    one = consumer(reading(), server)
    until(lambda: numbers(server) == [5], one)
    client.delete("clicks")
    with pytest.raises(ReaderError, match="the stream ends at 0-0"):
        until(lambda: False, one)


# -- Redis and the server are away -----------------------------------------------------------------


def test_redis_is_restarted_in_the_middle(reading):
    with redis_or_skip(appendfsync="always") as server:
        said: list[str] = []
        model = FakeServer()
        with redis.Redis.from_url(server.url) as client:
            add(client, *range(60))
            one = consumer(reading(said=said, url=server.url), model, max_rows=20)
            until(lambda: len(model.learned) >= 20, one)
            server.kill()
            one.turn()
            one.turn()
            server.start()
            add(client, *range(60, 80))
            until(lambda: len(model.learned) == 80, one)
        assert numbers(model) == list(range(80))
        assert said[0].startswith("Redis does not answer: ") and said[-1] == "Redis answers"
        assert len(said) < 6


def test_the_lag_grows_while_the_server_is_away(client, reading):
    add(client, *range(3))
    reader, server, lags = reading(), FakeServer(), []
    one, wait = consumer(reader, server, max_rows=3), reader.keep_alive

    def keep_alive(seconds: float) -> None:
        lags.append(one.counters.partitions[CLICKS].lag_rows)
        add(client, 3)
        wait(seconds)

    reader.keep_alive = keep_alive
    server.failures = [None, away(), away(), away()]
    until(lambda: len(server.learned) == 3, one)
    assert lags == [3, 4, 5]
    until(lambda: len(server.learned) == 6, one)


def test_errors_name_the_stream_and_what_is_wrong(client, reading, redis_server, monkeypatch):
    monkeypatch.setattr("dualstream.consume.redis.START_S", 0.1)
    client.lpush("list", "1")
    with pytest.raises(ReaderError, match="redis/list cannot be read: WRONGTYPE"):
        reading("list")
    with pytest.raises(ReaderError, match="no Redis answers at redis://127.0.0.1:9/0"):
        reading(url="redis://ann:secret@127.0.0.1:9/0")
    with pytest.raises(ReaderError, match="redis/clicks: Redis refuses the password"):
        reading(url=redis_server.url.replace("//", "//ann:secret@"))
    client.acl_setuser("bob", enabled=True, passwords=["+pw"], keys=["*"], commands=["+ping"])
    with pytest.raises(ReaderError, match="redis/clicks cannot be read: .*no permissions"):
        reading(url=redis_server.url.replace("//", "//bob:pw@"))
    client.acl_deluser("bob")


# -- addresses and dead letters --------------------------------------------------------------------


def test_addresses_of_streams():
    stream = parse_stream("rediss://ann:p%40w@h:1/2/ds:{clicks}:in?ssl_ca_certs=/ca.pem")
    assert stream.database == "rediss://ann:p%40w@h:1/2?ssl_ca_certs=/ca.pem"
    assert stream.source == "redis/ds:{clicks}:in"
    assert parse_stream("redis://h/0/a/b%3Fc%20d").name == "a/b?c d"
    for wrong in ("h:1/s", "h:1/0/", "h:1/0", "/0/s", "h:1/0/s#t", ":pw@h:1/s"):
        with pytest.raises(BadInput, match="a stream is redis://HOST:PORT/DB/STREAM, got ") as bad:
            parse_stream(f"redis://{wrong}")
        assert "pw" not in str(bad.value)
    with pytest.raises(BadInput, match="printable ASCII"):
        parse_stream("redis://h:1/0/%C3%A9")


def test_a_dead_letter_stream_has_the_reason_and_the_fields(client, redis_server):
    stream = parse_stream(f"{redis_server.url}/dead")
    fields = (("y", b"maybe"), ("\udcff", b"\x00"))
    letter = DeadLetter(Message(CLICKS, 7, None, headers=fields, id="0-7"), "no label")
    RedisLetters(stream, None).write([letter, letter])
    (_, result), _ = client.xrange("dead")
    assert result == {
        b"dead.source": b"redis/clicks",
        b"dead.id": b"0-7",
        b"dead.reason": b"no label",
        b"y": b"maybe",
        b"\xff": b"\x00",
    }
    client.lpush("list", "1")
    with pytest.raises(ReaderError, match="the stream 'list' cannot be written: WRONGTYPE"):
        RedisLetters(stream._replace(name="list"), None)
