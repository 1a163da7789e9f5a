"""Late labels of `dualstream consume` against a log and a server in memory."""

import json
import random

from msgspec.structs import replace

from dualstream.consume.labels import Labels
from dualstream.consume.loop import Consumer
from tests.consume.fakes import FakeLog, FakeReader, FakeServer, Topic, away, refused
from tests.consume.support import A, B, Letters, Rows, consumer, drained, features, predicting
from tests.fuzzing import SCALE

C = "kafka/views/0"


def label(number: int, y: int | None = None) -> bytes:
    return json.dumps({"id": f"v{number}", "y": number % 2 if y is None else y, "at": 1}).encode()


def labelling(
    reader: FakeReader, server: FakeServer, rows: Rows | None = None, **options
) -> Consumer:
    one = consumer(reader, server, **options)
    one._step = Labels(server, rows, one.counters)
    return one


def test_labels_are_learned_once_and_the_cursor_moves_without_rows():
    server = FakeServer()
    server.waiting = {f"v{n}": 1 for n in range(250)}
    reader = FakeReader(FakeLog(**{A: [label(n) for n in [*range(250), 7, 8]]}))
    one = labelling(reader, server, max_rows=300)
    drained(one, reader, server)
    assert server.labels == {f"v{n}": n % 2 for n in range(250)} and server.waiting == {}
    assert server.requests == [(A, 0, 252, 0)] and server.learned == []
    assert (one.counters.learned, one.counters.duplicates, one.counters.refused) == (250, 2, 0)


def test_labels_that_are_not_learned_are_dead_letters_with_the_reason():
    server, dead = FakeServer(), Letters()
    server.waiting, server.labels = {"v1": 1}, {"v2": 1}
    values = [label(1), label(2), label(3), b'{"id": "v4"}', b'{"y": 1, "id": null}', b"{"]
    reader = FakeReader(FakeLog(**{A: values}))
    drained(labelling(reader, server, dead=dead, max_rows=9), reader, server)
    result = dict((offset, reason) for _, offset, reason in dead.written)
    assert result.pop(5).startswith("not JSON")
    assert result == {
        1: "id: learned with another label",
        2: "id: unknown-sample: no row waits for the label of 'v3'",
        3: "the label has no field 'y'",
        4: "the label has no field 'id'",
    }
    assert server.labels == {"v1": 1, "v2": 1}


def test_dead_letters_of_labels_are_written_before_the_cursor_passes_them():
    reader, server = FakeReader(FakeLog(**{A: [label(1)]})), FakeServer()
    dead, cursors = Letters(failures=2), []
    reader.on_wait = lambda: cursors.append(server.cursors.get(A))
    drained(labelling(reader, server, dead=dead), reader, server)
    assert cursors == [None] * 2 and len(dead.written) == 1


def test_a_label_waits_for_its_row():
    """Rows 0 to 4 are scored; the label of row 7 waits, and the labels after it wait with it."""
    log = FakeLog(**{A: [label(n) for n in (1, 7, 99, 2)], C: [features(n) for n in range(9)]})
    reader, server, dead = FakeReader(log, [A]), FakeServer(), Letters()
    server.cursors[C] = 5
    server.waiting = {f"v{n}": 1 for n in range(5)}
    waits = 0

    def score_more() -> None:
        nonlocal waits
        waits += 1
        assert server.cursors.get(A) is None and dead.written == []
        number = server.cursors[C]
        if number < 9:
            server.waiting[f"v{number}"] = 1
            server.cursors[C] += 1
        # Rows that are written later are not waited for.
        last = log.messages[C][-1]
        log.messages[C].append(replace(last, offset=last.offset + 1))

    reader.on_wait = score_more
    one = labelling(reader, server, Rows(server.sources, log, C), dead=dead)
    drained(one, reader, server)
    assert waits >= 3 and set(server.labels) == {"v1", "v2", "v7"}
    assert [offset for _, offset, _ in dead.written] == [2]
    assert (one.counters.learned, one.counters.duplicates) == (3, 0)


def test_a_label_that_waits_is_no_part_of_another_partition():
    """The first partition waits and is revoked; the other one has a message that is no label."""
    log = FakeLog(**{A: [label(7)], B: [b"{"], C: [features(7)]})
    reader, server, dead = FakeReader(log, [A]), FakeServer(), Letters()
    reader.on_wait = lambda: reader.rebalance(B)
    one = labelling(reader, server, Rows(server.sources, log, C), dead=dead)
    one.turn()
    drained(one, reader, server)
    assert [source for source, *_ in dead.written] == [B]
    server.waiting["v7"] = 1
    reader.rebalance(A, B)
    drained(one, reader, server)
    assert server.labels == {"v7": 1} and one.counters.learned == 1


def test_a_row_that_is_scored_between_the_label_and_the_look_at_the_cursors_is_found():
    log = FakeLog(**{A: [label(0)], C: [features(0)]})
    reader, server, dead = FakeReader(log, [A]), FakeServer(), Letters()

    class Late(Rows):
        def is_read(self, ends):
            server.waiting["v0"] = 1
            return True

    drained(labelling(reader, server, Late(server.sources, log, C), dead=dead), reader, server)
    assert server.labels == {"v0": 0} and dead.written == []


def test_a_paused_model_keeps_labels_in_quarantine():
    class Paused(FakeServer):
        def label(self, lines):
            answer = super().label(lines)
            answer.learned, answer.errors = 0, [{"index": 0, "pointer": "", "reason": "paused: w"}]
            return answer

    server, dead = Paused(), Letters()
    server.waiting = {"v1": 1}
    reader = FakeReader(FakeLog(**{A: [label(1)]}))
    one = labelling(reader, server, dead=dead)
    drained(one, reader, server)
    assert dead.written == [] and (one.counters.learned, one.counters.paused) == (0, 1)


def test_any_order_of_failures_joins_every_label_once(subtests):
    """Rows and labels in shuffled order, two processes of each, lost answers and rebalances."""
    for seed in range(int(100 * SCALE)):
        with subtests.test(seed=seed):
            chance = random.Random(seed)
            joined, never = list(range(60)), list(range(60, 66))
            chance.shuffle(joined)
            labels = [*joined, *never, *chance.sample(joined, 5)]  # some twice, some without a row
            log = FakeLog(
                **{A: [label(n) for n in labels[::2]], B: [label(n) for n in labels[1::2]]},
                **{C: [features(n) for n in range(60)]},
            )
            server, topic, dead = FakeServer(), Topic(), Letters(failures=chance.randrange(3))
            rows, processes, readers = Rows(server.sources, log, C), [], []
            for mine in ([A, B], [B], [C], [C]):
                reader = FakeReader(log, mine)
                fields = {"dead": dead, "max_rows": chance.randint(1, 9)}
                if mine == [C]:
                    processes.append(predicting(reader, server, topic, **fields))
                else:
                    processes.append(labelling(reader, server, rows, **fields))
                readers.append(reader)
            # A label that waits ends its turn, as if the partitions had changed.
            for reader in readers:
                reader.on_wait = lambda reader=reader: reader.rebalance(*reader.mine)
            for _ in range(150):
                if chance.random() < 0.3:
                    server.failures = [
                        chance.choice([None, away(), ("lost", away()), refused(503, "overloaded")])
                        for _ in range(3)
                    ]
                rows.failures = chance.random() < 0.1
                topic.failures = chance.random() < 0.1
                chance.choice(processes).turn()
            server.failures = []
            for reader, one in reversed(list(zip(readers, processes, strict=True))):
                drained(one, reader, server)
            assert server.labels == {f"v{n}": n % 2 for n in range(60)} and server.waiting == {}
            unknown = {offset for _, offset, reason in dead.written if "unknown" in reason}
            assert len(dead.written) >= 6 and unknown
            lines = [
                json.loads(log.messages[source][offset].value) for source, offset, _ in dead.written
            ]
            assert {line["id"] for line in lines} == {f"v{n}" for n in never}
