"""Predictions of `dualstream consume` against a log, a server and a topic in memory."""

import json
import random

import pytest

from dualstream.consume.fields import RowFields
from dualstream.consume.reader import ReaderError
from tests.consume.fakes import FakeLog, FakeReader, FakeServer, Topic, away, refused
from tests.consume.support import A, B, Letters, drained, features, numbers, predicting, row


def test_rows_without_a_label_are_scored_and_the_others_are_learned():
    values = [row(0), features(1), features(2, y=None), row(3), features(4, id=7)]
    reader, server, topic = FakeReader(FakeLog(**{A: values})), FakeServer(), Topic()
    one = predicting(reader, server, topic)
    drained(one, reader, server)
    assert numbers(server) == [0, 3] and server.cursors == {A: 5}
    assert [value["id"] for value in topic.values] == ["v1", "v2", 7]
    assert [record.key for record in topic.records] == [b"v1", b"v2", b"7"]
    # Rows are scored before those of their batch are learned.
    same = {"score": 0.5, "label": 1, "probability": 0.6, "model": "m"}
    assert topic.values[0] == {"id": "v1", "seq": 0} | same
    assert topic.values[2]["seq"] == 2
    assert (one.counters.learned, one.counters.predicted, one.counters.refused) == (2, 3, 0)
    assert set(server.waiting) == {"v1", "v2", 7}


def test_predictions_are_written_before_the_cursor_passes_their_rows():
    reader, server = FakeReader(FakeLog(**{A: [features(n) for n in range(4)]})), FakeServer()
    topic, cursors = Topic(failures=3), []
    reader.on_wait = lambda: cursors.append((server.cursors.get(A), len(topic.records)))
    drained(predicting(reader, server, topic), reader, server)
    assert cursors == [(None, 0)] * 3 and len(topic.records) == 4


def test_a_row_is_scored_again_after_a_kill_and_waits_once():
    """The first process is killed between the prediction and the cursor."""
    values = [row(0), *[features(n) for n in range(1, 4)]]
    reader, server, topic = FakeReader(FakeLog(**{A: values})), FakeServer(), Topic()

    def kill() -> None:
        raise KeyboardInterrupt

    server.before_learn = kill
    with pytest.raises(KeyboardInterrupt):
        predicting(reader, server, topic).turn()
    assert len(topic.records) == 3 and server.cursors == {}
    server.before_learn = lambda: None
    again = FakeReader(reader.log)
    drained(predicting(again, server, topic), again, server)
    assert [value["id"] for value in topic.values] == 2 * ["v1", "v2", "v3"]
    assert len(server.waiting) == 3 and numbers(server) == [0]


def test_a_row_that_cannot_be_scored_is_a_dead_letter():
    values = [b'{"x": {"n": 1}}', features(2)] * 150
    reader, server, topic, dead = FakeReader(FakeLog(**{A: values})), FakeServer(), Topic(), []
    letters = Letters()
    one = predicting(reader, server, topic, dead=letters, max_rows=300)
    drained(one, reader, server)
    assert letters.written == [(A, offset, "id: no id") for offset in range(0, 300, 2)]
    # Rows of one id are in different requests.
    assert len(topic.records) == 150 and one.counters.refused == 150 and dead == []


def test_a_body_that_is_too_large_is_halved():
    values = [features(1), features(2, text="z" * 500), features(3)]
    reader, server, topic = FakeReader(FakeLog(**{A: values})), FakeServer(), Topic()
    letters = Letters()
    server.max_body = 100
    drained(predicting(reader, server, topic, dead=letters), reader, server)
    assert [value["id"] for value in topic.values] == ["v1", "v3"]
    assert letters.written == [(A, 1, "body-too-large")]


def test_a_model_that_cannot_remember_predicts():
    reader, server, topic = FakeReader(FakeLog(**{A: [features(1), b"{}"]})), FakeServer(), Topic()
    server.can_remember, said = False, []
    drained(predicting(reader, server, topic, said=said), reader, server)
    assert [value["id"] for value in topic.values] == ["v1", None] and server.waiting == {}
    assert [record.key for record in topic.records] == [b"v1", None]
    assert said == ["predictions are written, but cannot-remember"]


def test_a_topic_with_a_tiny_limit_is_an_error():
    reader, server, topic = FakeReader(FakeLog(**{A: [features(1)]})), FakeServer(), Topic()
    topic.too_large = True
    with pytest.raises(ReaderError, match="refuses predictions as too large"):
        predicting(reader, server, topic).run()


def test_any_order_of_failures_scores_all_rows_and_learns_each_label_once(subtests):
    for seed in range(30):
        with subtests.test(seed=seed):
            chance = random.Random(seed)
            values = {
                name: [chance.choice([row, features])(base + n) for n in range(40)]
                for name, base in ((A, 0), (B, 1000))
            }
            log, server, topic = (
                FakeLog(**values),
                FakeServer(),
                Topic(failures=chance.randrange(3)),
            )
            readers = [FakeReader(log, [A, B]), FakeReader(log, [B])]  # both have B
            both = [
                predicting(one, server, topic, max_rows=chance.randint(1, 9)) for one in readers
            ]
            for _ in range(100):
                if chance.random() < 0.4:
                    server.failures = [
                        chance.choice([None, away(), ("lost", away()), refused(503, "overloaded")])
                        for _ in range(3)
                    ]
                if chance.random() < 0.2:
                    topic.failures = 1
                    chance.choice(readers).rebalance(*chance.choice([(A,), (B,), (A, B)]))
                chance.choice(both).turn()
            server.failures = []
            for reader, one in zip(readers, both, strict=True):
                reader.rebalance(A, B)
                drained(one, reader, server)
            flat = [json.loads(value) for some in values.values() for value in some]
            assert sorted(numbers(server)) == sorted(one["x"]["n"] for one in flat if "y" in one)
            scored = {value["id"] for value in topic.values}
            assert scored == {one["id"] for one in flat if "id" in one} == set(server.waiting)


FLAT = {"columns": {"label": "clicked", "id": "view.id", "missing": ["", "NA", None]}}


@pytest.mark.parametrize(
    ("spec", "line", "id_", "label"),
    [
        ({}, b'{"x": {"a": 1}, "y": 0, "id": "e1"}', b'"e1"', b"0"),
        ({}, b'{"x": [1], "y": false}', None, b"false"),
        ({}, b'{"x": [1], "y": null, "id": 12345678901234567890}', b"12345678901234567890", None),
        ({}, b'{"x": [1], "y": ""}', None, b'""'),
        ({"columns": None}, b'{"x": [1], "y": 1.50}', None, b"1.50"),
        (FLAT, b'{"clicked": "yes", "view": {"id": "e1"}}', b'"e1"', b'"yes"'),
        (FLAT, b'{"clicked": "NA", "view.id": 5, "view": {"id": 6}}', b"5", None),
        (FLAT, b'{"clicked": "", "view": 7}', None, None),
        (FLAT, b'{"x": 1, "y": 2, "id": 3}', None, None),  # coordinates
        (FLAT, b'{"x": {"a": 1}, "y": 1, "id": "e1"}', b'"e1"', b"1"),
        (FLAT, b'{"x": {"a": 1}, "clicked": 0}', None, b"0"),
        ({"columns": {"label": "y", "id": None}}, b'{"id": 3}', b"3", None),
    ],
)
def test_id_and_label_have_the_names_of_the_specification(spec, line, id_, label):
    assert RowFields(spec).read(line) == (id_, label)
