"""`dualstream consume --observe`: rows without a label, against servers in memory."""

import json
from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from dualstream.client import BadInput, Learned, Refused, Source
from dualstream.consume.reader import ReaderError
from dualstream.consume.schemes import ConsumeOptions
from dualstream.consume.server import ModelServer
from tests.consume.fakes import FakeLog, FakeReader, away, refused
from tests.consume.support import A, B, Letters, World, consumer


def event(number: int) -> bytes:
    return json.dumps({"card": "a", "amount": number}).encode()


class Observes:
    """Client of a server that observes rows with an amount, and has nothing else to learn."""

    def __init__(self) -> None:
        self.cursors: dict[str, int] = {}
        self.observed: list[int] = []
        self.lost = 0
        """Answers that are lost."""

    def sources(self, model: str) -> list[SimpleNamespace]:
        return [SimpleNamespace(name=name, next=end) for name, end in self.cursors.items()]

    def observe_lines(self, model: str, lines: bytes, *, source: Source) -> Learned:
        rows = [json.loads(line) for line in lines.splitlines()]
        bad = [index for index, row in enumerate(rows) if "amount" not in row]
        assert isinstance(source.to, int) and (source.first or source.name in self.cursors)
        is_duplicate = self.cursors.get(source.name, 0) > source.to
        good = [] if is_duplicate else [row["amount"] for row in rows if "amount" in row]
        self.cursors[source.name] = source.to + 1
        self.observed += good
        if self.lost:
            self.lost -= 1
            raise away()
        errors = [{"index": index, "reason": "no amount"} for index in bad]
        counts = (len(good), 0, None, None, len(bad))
        return Learned("m", 1, *counts, is_duplicate, errors=errors)

    def predict_lines(self, model: str, lines: Sequence[bytes], *, remember: bool) -> None:
        assert not remember
        if not any(b"amount" in line for line in lines):
            raise refused(422, "invalid-rows", errors=[{"index": 0, "reason": "no amount"}])


def test_messages_are_observed_once_and_bad_ones_are_dead_letters():
    client, dead = Observes(), Letters()
    values = [*map(event, range(10)), b"{}", b"no row", *map(event, range(10, 20))]
    reader = FakeReader(FakeLog(**{A: values, B: [event(n) for n in range(20, 30)]}))
    reader.rebalance(A, B)
    client.lost = 2
    one = consumer(reader, ModelServer(client, "m", observes=True), dead=dead)
    one.run(until_end=True)
    assert sorted(client.observed) == list(range(30)) and client.cursors == {A: 22, B: 10}
    assert [offset for _, offset, _ in dead.written] == [11, 10]
    counters = one.counters
    # The answers to the first batch are lost, so its rows count as duplicates.
    assert (counters.learned + counters.duplicates, counters.refused) == (30, 2)
    assert counters.duplicates == 4 and counters.waits == 2
    again = consumer(reader, ModelServer(client, "m", observes=True), dead=dead)
    again.run(until_end=True)
    assert len(client.observed) == 30 and again.counters.learned == 0


def test_a_topic_whose_first_messages_are_all_refused_moves_no_cursor():
    client = Observes()
    reader = FakeReader(FakeLog(**{A: [b"{}"] * 20}))
    reader.rebalance(A)
    one = consumer(reader, ModelServer(client, "m", observes=True), max_rows=10)
    with pytest.raises(ReaderError, match="refused the first 10 messages: no amount"):
        one.run(until_end=True)
    assert not client.cursors
    client.predict_lines = lambda *_, **__: (_ for _ in ()).throw(refused(413, "body-too-large"))
    assert ModelServer(client, "m", observes=True).refusal([(None, b"{}")]) is None


def test_rows_of_routed_models_without_history_are_dead_letters():
    world = World("a", "b")
    world.models["b"].before_learn = lambda: (_ for _ in ()).throw(
        refused(409, "nothing-to-observe")
    )
    rows = [json.dumps({"x": {}, "y": 1, "tenant": "ab"[n % 2]}).encode() for n in range(8)]
    reader = FakeReader(FakeLog(**{A: rows}))
    reader.rebalance(A)
    one = world.routed(reader, "value.tenant")
    world.drained(one, reader)
    assert len(world.models["a"].learned) == 4 == one.counters.refused
    assert {reason for *_, reason in world.dead.written} == {"nothing-to-observe"}
    world.models["b"].before_learn = lambda: (_ for _ in ()).throw(refused(409, "paused"))
    reader.log.messages[A] += FakeLog(**{A: [*[b""] * 8, *rows]}).messages[A][8:]
    with pytest.raises(Refused, match="paused"):
        world.drained(world.routed(reader, "value.tenant"), reader)


def test_options_that_exclude_each_other():
    nothing = dict.fromkeys(ConsumeOptions._fields)
    options = ConsumeOptions(**nothing | {"source": "kafka://h:1/t", "model": "m", "observe": True})
    options.check()
    assert options.group_id == "dualstream-m-observe"
    assert options._replace(observe=False).group_id == "dualstream-m"
    assert options._replace(group="g").group_id == "g"
    for wrong in ({"labels": True}, {"predict_to": "scores"}, {"features": "rows"}):
        with pytest.raises(BadInput):
            options._replace(**wrong).check()
