"""The loop of `dualstream consume` against a log and a server in memory, with every failure."""

import itertools
import json
import random
import threading

import pytest

from dualstream.client import Refused
from dualstream.consume.reader import Message, ReaderError
from tests.consume.fakes import FakeLog, FakeReader, FakeServer, away, refused
from tests.consume.support import A, B, C, Letters, consumer, drained, numbers, row
from tests.fuzzing import SCALE


def test_each_partition_is_learned_once_in_its_order():
    log = FakeLog(**{A: [row(n) for n in range(10)], B: [row(n) for n in range(100, 103)]})
    reader, server = FakeReader(log), FakeServer()
    drained(consumer(reader, server), reader, server)
    assert [n for n in numbers(server) if n < 100] == list(range(10))
    assert [n for n in numbers(server) if n >= 100] == [100, 101, 102]
    assert all(count <= 4 for _, _, _, count in server.requests)
    # Each batch begins where the one before it ended.
    of_a = [(start, end) for name, start, end, _ in server.requests if name == A]
    assert [end for _, end in of_a[:-1]] == [start for start, _ in of_a[1:]]


def test_it_starts_at_the_cursor():
    log = FakeLog(**{A: [row(n) for n in range(10)]})
    reader, server = FakeReader(log), FakeServer()
    server.cursors[A] = 7
    drained(consumer(reader, server), reader, server)
    assert numbers(server) == [7, 8, 9] and server.requests[0][1:3] == (7, 10)
    assert server.lags == [0]


def test_gaps_of_a_compacted_log_are_passed():
    log = FakeLog(**{A: []})
    log.messages[A] = [Message(A, offset, row(offset)) for offset in (3, 4, 9, 20)]
    reader, server = FakeReader(log), FakeServer()
    server.cursors[A] = 1
    drained(consumer(reader, server, max_rows=2), reader, server)
    assert [request[1:3] for request in server.requests] == [(1, 5), (5, 21)]


def test_the_bytes_of_a_batch_are_limited():
    log = FakeLog(**{A: [row(n) for n in range(9)]})
    reader, server = FakeReader(log), FakeServer()
    drained(consumer(reader, server, max_rows=100, max_bytes=3 * len(row(1)) + 5), reader, server)
    assert [count for *_, count in server.requests] == [3, 3, 3]


def test_reading_pauses_also_if_no_row_may_wait():
    reader, pauses = FakeReader(FakeLog(**{A: []})), list[float]()
    read = reader.read
    reader.read = lambda rows, seconds: pauses.append(seconds) or read(rows, seconds)
    consumer(reader, FakeServer(), max_wait_s=0.0).turn()
    assert pauses == [pytest.approx(0.02)]


def test_a_batch_waits_for_rows_until_its_time():
    log, now = FakeLog(**{A: [row(0), row(1)]}), [0.0]
    reader, server = FakeReader(log), FakeServer()
    slow = consumer(reader, server, max_wait_s=1.0, clock=lambda: now[0])
    slow.turn()
    now[0] = 0.9
    slow.turn()
    assert server.requests == []
    now[0] = 1.0
    slow.turn()
    assert server.requests == [(A, 0, 2, 2)]


def test_stop_posts_what_was_read():
    log = FakeLog(**{A: [row(0), row(1)]})
    reader, server = FakeReader(log), FakeServer()
    slow = consumer(reader, server, max_wait_s=60.0)
    reader.on_read = slow.stop
    slow.run()
    assert numbers(server) == [0, 1]


def test_stop_does_not_wait_for_a_server_that_is_away():
    log = FakeLog(**{A: [row(0)]})
    reader, server = FakeReader(log), FakeServer()
    slow = consumer(reader, server, max_wait_s=60.0)
    server.failures = [None, *[away()] * 50]
    reader.on_read = slow.stop
    slow.run()
    assert server.learned == [] and len(server.failures) == 49


def test_it_waits_as_long_as_the_server_asks():
    log = FakeLog(**{A: [row(0)]})
    reader, server = FakeReader(log), FakeServer()
    server.failures = [away(), None, away(7.0), away(), away()]
    drained(consumer(reader, server), reader, server)
    assert numbers(server) == [0] and 7.0 <= sum(reader.waited_s) < 8.0
    # Every wait is short, so that a signal ends it.
    assert all(0 < one <= 0.5 for one in reader.waited_s)


def test_a_batch_whose_answer_was_lost_is_a_duplicate():
    log = FakeLog(**{A: [row(n) for n in range(6)]})
    reader, server = FakeReader(log), FakeServer()
    server.failures = [None, ("lost", away()), refused(500, "internal-error")]
    one = consumer(reader, server)
    drained(one, reader, server)
    assert numbers(server) == list(range(6)) and one.counters.duplicates == 4


def test_a_lost_answer_is_repeated_with_the_reasons_of_refused_rows():
    reader, server, dead = FakeReader(FakeLog(**{A: [row(0), b"{}"]})), FakeServer(), Letters()
    server.failures = [None, ("lost", away())]
    one = consumer(reader, server, dead=dead)
    drained(one, reader, server)
    assert dead.written == [(A, 1, "y: no label")]
    assert (one.counters.duplicates, one.counters.refused) == (1, 1)


def test_rows_whose_ids_are_all_known_are_counted_once():
    value = json.dumps({"x": {"n": 1}, "y": 1, "id": "a"}).encode()
    reader, server = FakeReader(FakeLog(**{A: [value, value]})), FakeServer()
    one = consumer(reader, server, max_rows=1)
    drained(one, reader, server)
    assert (one.counters.learned, one.counters.duplicates) == (1, 1)


def test_a_consumer_that_was_overtaken_continues_at_the_cursor():
    log = FakeLog(**{A: [row(n) for n in range(12)]})
    reader, server = FakeReader(log), FakeServer()

    def overtake() -> None:
        if len(server.requests) == 2:  # another consumer posts 4 to 6
            server._append(A, 4, 7, [row(n) for n in (4, 5, 6)])

    server.before_learn = overtake
    one = consumer(reader, server)
    drained(one, reader, server)
    assert numbers(server) == list(range(12)) and one.counters.moved == 1


def test_messages_of_a_revoked_partition_are_dropped_while_the_server_is_away():
    log = FakeLog(**{A: [row(n) for n in range(4)], B: [row(n) for n in range(100, 104)]})
    reader, server = FakeReader(log, [A]), FakeServer()
    server.failures = [None, away()]
    reader.on_wait = lambda: reader.rebalance(B)
    drained(consumer(reader, server), reader, server)
    assert numbers(server) == [100, 101, 102, 103] and A not in server.cursors


def test_messages_that_were_read_across_a_rebalance_are_dropped():
    """The reader has passed messages that the loop dropped: it must start at the cursor again."""
    log = FakeLog(**{A: [row(n) for n in range(8)]})
    reader, server = FakeReader(log), FakeServer()
    times = iter(range(100))
    reader.on_read = lambda: reader.rebalance(A) if next(times) in (1, 2) else None
    drained(consumer(reader, server), reader, server)
    assert numbers(server) == list(range(8))


def test_messages_are_read_while_the_server_learns():
    reader, server = FakeReader(FakeLog(**{A: [row(n) for n in range(12)]})), FakeServer()
    is_read = threading.Event()
    waits = []

    def read() -> None:
        if threading.current_thread() is not threading.main_thread():
            is_read.set()

    def learn() -> None:
        waits.append(is_read.wait(30.0))

    reader.on_read, server.before_learn = read, learn
    reader.rebalance(A)
    one = consumer(reader, server)
    one.run(until_end=True)
    assert numbers(server) == list(range(12)) and waits == [True] * 3


def test_messages_that_were_read_ahead_are_dropped_when_the_cursor_moves_back():
    """The store loses rows 2 and 3 after the batches that follow them were read."""
    reader, server = FakeReader(FakeLog(**{A: [row(n) for n in range(16)]})), FakeServer()

    def lose() -> None:
        if len(server.requests) == 2:
            server.cursors[A], server.learned = 2, server.learned[:2]

    server.before_learn = lose
    one = consumer(reader, server)
    drained(one, reader, server)
    assert numbers(server) == list(range(16)) and one.counters.moved == 1


def test_an_error_of_reading_ahead_ends_the_command_after_the_answer_is_handled():
    values = [row(0), b'{"x": {"n": 1}}', row(2), row(3), row(4)]
    reader, server, dead = FakeReader(FakeLog(**{A: values})), FakeServer(), Letters()

    def read() -> None:
        if threading.current_thread() is not threading.main_thread():
            raise ReaderError("the topic is gone")

    reader.on_read = read
    reader.rebalance(A)
    one = consumer(reader, server, dead=dead)
    with pytest.raises(ReaderError, match="the topic is gone"):
        one.run(until_end=True)
    assert numbers(server) == [0, 2, 3] and one.counters.learned == 3
    assert dead.written == [(A, 1, "y: no label")]


def test_partitions_that_are_revoked_have_no_progress():
    log = FakeLog(**{A: [row(0)], B: [row(1)]})
    reader, server = FakeReader(log), FakeServer()
    one = consumer(reader, server)
    drained(one, reader, server)
    assert set(one.counters.partitions) == {A, B}
    reader.rebalance(B)
    one.turn()
    assert set(one.counters.partitions) == {B}


def test_bad_messages_are_dead_letters_and_the_cursor_passes_them():
    values = [row(0), None, b"", b"{", b"[1]", b'{"x": {"n": 5}}', row(6), b"null"]
    reader, server, dead = FakeReader(FakeLog(**{A: values})), FakeServer(), Letters()
    one = consumer(reader, server, dead=dead, max_rows=100)
    drained(one, reader, server)
    assert numbers(server) == [0, 6] and server.cursors[A] == 8
    reasons = {offset: reason for _, offset, reason in dead.written}
    assert sorted(reasons) == [1, 2, 3, 4, 5, 7] and one.counters.refused == 6
    assert "tombstone" in reasons[1] and reasons[2] == "the message is empty"
    assert "not JSON" in reasons[3] and "object" in reasons[4] and reasons[5] == "y: no label"


def test_a_batch_without_a_good_row_moves_the_cursor():
    values = [b'{"x": {}}'] * 5 + [None] * 4 + [row(9)]
    reader, server, dead = FakeReader(FakeLog(**{A: values})), FakeServer(), Letters()
    drained(consumer(reader, server, dead=dead), reader, server)
    assert numbers(server) == [9] and sorted(dead.written)[-1][1] == 8 and len(dead.written) == 9


AVRO = b"\0\0\0\0\x07\x02"


def test_a_source_without_any_row_stops_before_its_cursor_moves():
    reader, server, dead = FakeReader(FakeLog(**{A: [AVRO] * 15})), FakeServer(), Letters()
    one = consumer(reader, server, dead=dead, max_rows=10)
    with pytest.raises(ReaderError) as none:
        one.run()
    assert str(none.value) == (
        f"{A}: refused the first 10 messages: Avro or Protobuf of a schema registry"
        " (schema 7); write JSON; to make them dead letters, set the cursor to 0"
    )
    assert (server.requests, server.cursors, dead.written) == ([], {}, [])


def test_a_source_whose_rows_are_all_refused_stops_before_its_cursor_moves(subtests):
    for first in [[], [AVRO] * 3]:
        with subtests.test(first=first):
            log = FakeLog(**{A: [*first, *[b'{"x": {}}'] * 300]})
            reader, server, dead = FakeReader(log), FakeServer(), Letters()
            server.failures = [None, away()]
            one = consumer(reader, server, dead=dead, max_rows=1000)
            with pytest.raises(ReaderError, match="refused the first 100 messages: y: no label; "):
                one.run()
            assert (server.requests, server.cursors, dead.written) == ([], {}, [])
            server.cursors[A] = 0
            again = FakeReader(log)
            drained(consumer(again, server, dead=dead, max_rows=1000), again, server)
            assert len(dead.written) == len(log.messages[A])


def test_refused_rows_after_a_learned_one_are_passed():
    log = FakeLog(**{A: [row(0)]})
    reader, server, dead = FakeReader(log), FakeServer(), Letters()
    one = consumer(reader, server, dead=dead, max_rows=1000)
    drained(one, reader, server)
    log.messages[A] += [Message(A, n, b'{"x": {}}') for n in range(1, 31)]
    drained(one, reader, server)
    assert len(dead.written) == 30


def test_messages_that_are_no_rows_are_passed_after_a_row_and_if_they_are_few(subtests):
    for values in [[AVRO] * 9, [*[AVRO] * 9, row(9), *[AVRO] * 20], [row(0), *[AVRO] * 30]]:
        with subtests.test(values=values):
            reader, server, dead = FakeReader(FakeLog(**{A: values})), FakeServer(), Letters()
            drained(consumer(reader, server, dead=dead, max_rows=10), reader, server)
            assert len(dead.written) == values.count(AVRO)


def test_messages_that_are_no_rows_are_passed_if_the_model_has_learned_from_the_source():
    log = FakeLog(**{A: [row(0), *[AVRO] * 30], B: [AVRO] * 30})
    reader, server, dead = FakeReader(log), FakeServer(), Letters()
    server.cursors[A] = 1
    drained(consumer(reader, server, dead=dead, max_rows=10), reader, server)
    assert len(dead.written) == 60


def test_refused_rows_beyond_the_listed_reasons_are_found_by_their_scores():
    values = [row(0)] + [b'{"x": {}}'] * 150 + [row(151)]
    reader, server, dead = FakeReader(FakeLog(**{A: values})), FakeServer(), Letters()
    drained(consumer(reader, server, dead=dead, max_rows=1000), reader, server)
    assert sorted(offset for _, offset, _ in dead.written) == list(range(1, 151))


def test_rows_in_quarantine_are_no_dead_letters():
    class Paused(FakeServer):
        def _append(self, *args):
            answer = super()._append(*args)
            answer.rejected, answer.learned = answer.count, 0
            answer.errors = [
                {"index": n, "reason": "paused: the row waits"} for n in range(answer.count)
            ]
            return answer

    reader, server, dead = FakeReader(FakeLog(**{A: [row(0), row(1)]})), Paused(), Letters()
    one = consumer(reader, server, dead=dead)
    drained(one, reader, server)
    assert dead.written == [] and (one.counters.paused, one.counters.refused) == (2, 0)


def test_dead_letters_that_cannot_be_written_hold_the_cursor():
    reader, server = FakeReader(FakeLog(**{A: [None, row(1)]})), FakeServer()
    dead, cursors = Letters(failures=3), []
    reader.on_wait = lambda: cursors.append(server.cursors.get(A))
    drained(consumer(reader, server, dead=dead), reader, server)
    assert cursors == [None] * 3 and [offset for _, offset, _ in dead.written] == [0]


def test_dead_letters_of_a_learned_batch_survive_a_rebalance():
    values = [row(0), b'{"x": {}}']
    reader, server, dead = FakeReader(FakeLog(**{A: values})), FakeServer(), Letters(failures=2)
    reader.on_wait = lambda: reader.rebalance(A)
    drained(consumer(reader, server, dead=dead), reader, server)
    assert [offset for _, offset, _ in dead.written] == [1]


def test_a_body_that_is_too_large_is_halved():
    log = FakeLog(**{A: [row(n) for n in range(7)]})
    reader, server = FakeReader(log), FakeServer()
    server.max_rows = 2
    drained(consumer(reader, server, max_rows=7), reader, server)
    assert numbers(server) == list(range(7))


def test_a_message_that_is_too_large_alone_is_a_dead_letter():
    big = json.dumps({"x": {"n": 2, "text": "z" * 500}, "y": 1}).encode()
    log = FakeLog(**{A: [row(0), big, row(2)]})
    reader, server, dead = FakeReader(log), FakeServer(), Letters()
    server.max_body = 300
    drained(consumer(reader, server, dead=dead), reader, server)
    assert numbers(server) == [0, 2] and dead.written == [(A, 1, "body-too-large")]


def test_a_deleted_model_ends_the_consumer():
    reader, server = FakeReader(FakeLog(**{A: [row(0)]})), FakeServer()
    server.failures = [None, away(), refused(404, "unknown-model")]
    with pytest.raises(Refused, match="unknown-model"):
        consumer(reader, server).run()


@pytest.mark.parametrize("cursor", [2, 11])
def test_a_cursor_outside_the_log_is_refused_by_name(cursor):
    log = FakeLog(**{A: [row(n) for n in range(10)]})
    log.first[A] = 5
    reader, server = FakeReader(log), FakeServer()
    server.cursors[A] = cursor
    with pytest.raises(ReaderError, match=f"{A}: the model's cursor is {cursor}, but the log"):
        consumer(reader, server).run()
    assert server.requests == []


@pytest.mark.parametrize(
    ("cursor", "reset", "learned"),
    [
        (2, "earliest", [5, 6, 7, 8, 9, 10]),
        (2, "latest", [10]),
        (11, "earliest", [5, 6, 7, 8, 9, 10]),
        (11, "latest", [10]),
        (7, "latest", [7, 8, 9, 10]),
        (None, "earliest", [5, 6, 7, 8, 9, 10]),
        (None, None, [5, 6, 7, 8, 9, 10]),
        (None, "latest", [10]),
    ],
)
def test_reset_decides_where_it_continues(cursor, reset, learned):
    log = FakeLog(**{A: [row(n) for n in range(10)]})
    log.first[A], log.messages[A] = 5, log.messages[A][5:]
    reader, server = FakeReader(log), FakeServer()
    if cursor is not None:
        server.cursors[A] = cursor
    one = consumer(reader, server, reset=reset)
    one.turn()
    one._start_sources()
    log.messages[A].append(Message(A, 10, row(10)))
    drained(one, reader, server)
    assert numbers(server) == learned and server.cursors[A] == 11


def test_a_partition_that_was_added_later_begins_at_its_first_message():
    log = FakeLog(**{A: [row(0)], B: [row(1)]})
    reader, server = FakeReader(log, [A]), FakeServer()
    one = consumer(reader, server, reset="latest")
    one.turn()
    reader.new = {B}
    reader.rebalance(A, B)
    drained(one, reader, server)
    assert numbers(server) == [1]


def test_latest_is_kept_across_a_restart_before_the_first_message():
    log = FakeLog(**{A: [row(0), row(1)]})
    reader, server = FakeReader(log), FakeServer()
    consumer(reader, server, reset="latest").turn()
    log.messages[A].append(Message(A, 2, row(2)))
    again = FakeReader(log)
    drained(consumer(again, server, reset="latest"), again, server)
    assert numbers(server) == [2]


def test_latest_after_a_gap_is_kept_across_a_restart():
    log = FakeLog(**{A: []})
    log.first[A], log.messages[A] = 6, [Message(A, n, row(n)) for n in (6, 7)]
    server = FakeServer()
    server.cursors[A] = 2
    one = consumer(FakeReader(log), server, reset="latest")
    for _ in range(3):
        one.turn()
    log.messages[A].append(Message(A, 8, row(8)))
    again = FakeReader(log)
    drained(consumer(again, server), again, server)
    assert numbers(server) == [8]


def test_latest_of_two_consumers_at_once_is_the_first_one():
    log = FakeLog(**{A: [row(0), row(1)]})
    reader, server = FakeReader(log), FakeServer()
    # Another consumer has set the cursor since this one has read it.
    server.before_learn = lambda: server.cursors.setdefault(A, 0)
    drained(consumer(reader, server, reset="latest"), reader, server)
    assert numbers(server) == [0, 1]


def test_a_partition_whose_offset_left_the_log_while_it_ran_is_started_again():
    log = FakeLog(**{A: [row(n) for n in range(4)]})
    reader, server = FakeReader(log), FakeServer()
    one = consumer(reader, server)
    one.turn()
    log.first[A], log.messages[A] = 6, [Message(A, 6, row(6))]
    with pytest.raises(ReaderError, match="the log begins at 6: 2 offsets are gone"):
        one.run()


@pytest.mark.parametrize("reset", [None, "latest"])
@pytest.mark.parametrize("is_noticed_by", ["batch", "rebalance"])
def test_a_store_that_has_lost_the_source_gets_its_rows_again(reset, is_noticed_by):
    """Whatever --reset says, which is for the first start: these rows were learned."""
    log, said = FakeLog(**{A: []}), list[str]()
    reader, server = FakeReader(log), FakeServer()
    one = consumer(reader, server, reset=reset, log=said.append)
    one.turn()
    log.messages[A] = [Message(A, n, row(n)) for n in range(10)]
    drained(one, reader, server)
    server.restore()
    log.messages[A].append(Message(A, 10, row(10)))
    if is_noticed_by == "rebalance":
        reader.rebalance(A)
    drained(one, reader, server)
    assert numbers(server) == list(range(11))
    lost = f"{A}: the server no longer has the cursor, which was 10; continues at the first message"
    assert said == [lost]
    # The log has lost the first ones, too.
    server.restore()
    log.first[A], log.messages[A] = 6, log.messages[A][6:]
    log.messages[A].append(Message(A, 11, row(11)))
    drained(one, reader, server)
    assert numbers(server) == [6, 7, 8, 9, 10, 11]
    assert said[1] == lost.replace("10", "11") + "; up to 6 messages gone before it"


def test_a_lost_source_is_remembered_until_a_batch_is_learned():
    """A rebalance comes before the first batch: it must not begin at the end of the log."""
    log = FakeLog(**{A: []})
    reader, server = FakeReader(log), FakeServer()
    one = consumer(reader, server, reset="latest")
    one.turn()
    log.messages[A] = [Message(A, n, row(n)) for n in range(6)]
    drained(one, reader, server)
    server.restore()
    log.messages[A].append(Message(A, 6, row(6)))
    one.turn()
    assert (one.counters.moved, server.cursors) == (1, {})
    one._start_sources()
    reader.rebalance(A)
    drained(one, reader, server)
    assert numbers(server) == list(range(7))


def play_failures(seed):
    """Two consumers share partitions: lost answers, 503, overlapping rebalances, bad rows.

    The store goes back to earlier states, also to the one before the first row.
    """
    chance = random.Random(seed)
    values, expected = {}, []
    for name, base in ((A, 0), (B, 1000), (C, 2000)):
        values[name] = [
            chance.choice([row(base + n)] * 6 + [None, b"{", b'{"x": {}}']) for n in range(40)
        ]
        expected += [base + n for n, value in enumerate(values[name]) if value and b'"y"' in value]
    log, server, dead = (FakeLog(**values), FakeServer(), Letters(failures=chance.randrange(3)))
    readers = [FakeReader(log, [A, B]), FakeReader(log, [B, C])]  # both have B
    both = [
        consumer(reader, server, dead=dead, max_rows=chance.randint(1, 9)) for reader in readers
    ]
    mine = [names for count in (1, 2, 3) for names in itertools.combinations((A, B, C), count)]

    def shake() -> None:
        if chance.random() < 0.3:
            chance.choice(readers).rebalance(*chance.choice(mine))

    for reader in readers:
        reader.on_wait = reader.on_read = shake
    backups = [server.saved()]
    for _ in range(400):
        if chance.random() < 0.4:
            server.failures = [
                chance.choice([None, away(), ("lost", away()), refused(503, "overloaded")])
                for _ in range(3)
            ]
        if chance.random() < 0.02:
            backups.append(server.saved())
            server.restore(chance.choice(backups))
        chance.choice(both).turn()
    server.failures = []
    for reader in readers:
        reader.on_wait = reader.on_read = lambda: None
        reader.rebalance(A, B, C)
    for reader, one in zip(readers, both, strict=True):
        drained(one, reader, server)
    assert sorted(numbers(server)) == expected
    for base in (0, 1000, 2000):
        results = [n for n in numbers(server) if base <= n < base + 1000]
        assert results == sorted(results)
    # Messages that are no rows are dead letters at least once.
    broken = {(name, n) for name in values for n, v in enumerate(values[name]) if v in (None, b"{")}
    assert broken <= {(source, offset) for source, offset, _ in dead.written}


def test_any_order_of_failures_learns_every_message_once(subtests):
    for seed in range(int(100 * SCALE)):
        with subtests.test(seed=seed):
            play_failures(seed)
