"""Predictions and late labels of many models, against a log and servers in memory."""

import json
import random
import sys

import pytest

from dualstream.client import PredictedMany
from dualstream.consume.labels import Labels
from dualstream.consume.loop import Consumer
from dualstream.consume.predictions import Predictions
from dualstream.consume.reader import Record
from tests.consume.fakes import FakeLog, FakeReader, FakeServer, Topic, away, refused
from tests.consume.support import A, B, Group, Rows, World as Routes, numbers
from tests.fuzzing import SCALE

C = "kafka/views/0"


class Model(FakeServer):
    """A model whose predictions have its name."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def predict(self, lines, remember):
        answer = super().predict(lines, remember)
        answer.model = self.name
        return answer


class World(Routes):
    """Models, a topic of predictions, and the groups of those that score and that label."""

    def __init__(self, *models: str) -> None:
        super().__init__()
        self.models = {model: Model(model) for model in models}
        self.topic, self.scorers, self.labellers = Topic(), Group(), Group()

    def create(self, model: str) -> None:
        self.models.setdefault(model, Model(model))

    def predicting(self, reader: FakeReader, **options) -> Consumer:
        self.group = self.scorers
        one = self.routed(reader, **options)
        one._step = Predictions(one._server, self.topic, one.counters, lambda line: None)
        return one

    def labelling(self, reader: FakeReader, log: FakeLog | None = None, **options) -> Consumer:
        rows = None if log is None else Rows(self.scorers.committed, log, C)
        self.group = self.labellers
        one = self.routed(reader, **options)
        one._step = Labels(one._server, rows, one.counters)
        return one

    def read(self, one: Consumer, reader: FakeReader, group: Group) -> None:
        self.group = group
        self.drained(one, reader)


def message(number: int, tenant: object, **more) -> bytes:
    """A row without a label. Ids are unique within a model only."""
    fields = {"x": {"n": number}, "id": f"v{number}", "meta": {"tenant": tenant}}
    return json.dumps(fields | more).encode()


def label(number: int, tenant: object) -> bytes:
    y = (number + ord(str(tenant)[0])) % 2
    return json.dumps({"id": f"v{number}", "y": y, "meta": {"tenant": tenant}}).encode()


def scored(world: World) -> list[tuple[str, str]]:
    return [(one["model"], one["id"]) for one in world.topic.values]


def test_each_row_is_scored_by_its_model_and_labelled_rows_are_learned():
    world = World("a", "b")
    values = [message(0, "a"), message(0, "b"), message(1, "a", y=1), message(2, "b")]
    reader = FakeReader(FakeLog(**{A: values}))
    one = world.predicting(reader)
    world.drained(one, reader)
    assert scored(world) == [("a", "v0"), ("b", "v0"), ("b", "v2")]
    assert numbers(world.models["a"]) == [1] and numbers(world.models["b"]) == []
    # The cursor of a model passes its rows, also if it has learned none of them.
    assert [world.models[name].cursors for name in "ab"] == [{A: 4}, {A: 4}]
    assert (one.counters.predicted, one.counters.learned) == (3, 1)
    # Another group reads all of them again.
    world.scorers = Group()
    again = world.predicting(reader := FakeReader(reader.log))
    world.drained(again, reader)
    assert len(world.topic.records) == 3 and numbers(world.models["a"]) == [1]
    assert (again.counters.predicted, again.counters.duplicates) == (0, 4)


def test_a_row_that_is_nested_too_deeply_is_a_dead_letter():
    """Depths around the limit of the decoder, which depends on the calls that lead to it."""
    depths = range(sys.getrecursionlimit() - 150, sys.getrecursionlimit() + 10)
    values = [b'{"x": %b%b, "meta": {"tenant": "a"}}' % (b"[" * n, b"]" * n) for n in depths]
    for route in (World.predicting, World.labelling):
        world = World("a")
        world.models["a"].predict = lambda lines, remember: PredictedMany(
            *("a", 0, [None] * len(lines), [None] * len(lines), None),
            errors=[{"index": n, "reason": "nested"} for n in range(len(lines))],
        )
        reader = FakeReader(FakeLog(**{A: values}))
        world.drained(route(world, reader), reader)
        assert sorted(offset for _, offset, _ in world.dead.written) == list(range(len(values)))


def test_rows_are_scored_again_after_a_kill_before_the_commit_and_wait_once():
    """Killed after the predictions are written, when one of two models has moved its cursor."""
    world = World("a", "b")
    reader = FakeReader(FakeLog(**{A: [message(n, "ab"[n % 2]) for n in range(4)]}))

    def kill() -> None:
        raise KeyboardInterrupt

    world.models["b"].before_learn = kill
    with pytest.raises(KeyboardInterrupt):
        world.predicting(reader).turn()
    assert world.scorers.offsets == {} and len(world.topic.records) == 4
    world.models["b"].before_learn = lambda: None
    again = FakeReader(reader.log)
    world.drained(world.predicting(again), again)
    assert sorted(scored(world)) == [
        ("a", "v0"),
        ("a", "v2"),
        *sorted(2 * [("b", "v1"), ("b", "v3")]),
    ]
    assert [len(world.models[name].waiting) for name in "ab"] == [2, 2]


def test_rows_of_unknown_models_are_dead_letters_or_create_their_model():
    values = [message(0, "a"), message(1, "b"), message(2, None), message(3, "b", y=1)]
    world = World("a")
    reader = FakeReader(FakeLog(**{A: values}))
    world.drained(world.predicting(reader), reader)
    missing = "the message has no value.meta.tenant, which names its model"
    assert sorted(world.dead.written) == [
        *((A, 1, "unknown-model"), (A, 2, missing), (A, 3, "unknown-model"))
    ]
    assert scored(world) == [("a", "v0")]
    world = World("a")
    reader = FakeReader(reader.log)
    world.drained(world.predicting(reader, create=world.create), reader)
    assert scored(world) == [("a", "v0"), ("b", "v1")] and numbers(world.models["b"]) == [3]
    assert world.dead.written == [(A, 2, missing)]


def test_a_model_that_is_deleted_is_no_longer_scored():
    world = World("a", "b")
    log = FakeLog(**{A: [message(0, "a"), message(1, "b")]})
    reader = FakeReader(log)
    one = world.predicting(reader)
    world.drained(one, reader)
    world.models["a"].failures = [refused(404, "unknown-model")]
    gone = world.models.pop("a")
    last = log.messages[A][-1]
    log.messages[A] += [
        type(last)(A, 2 + n, message(2 + n, tenant)) for n, tenant in enumerate("ab")
    ]
    world.drained(one, reader)
    assert gone.failures == [] and world.dead.written == [(A, 2, "unknown-model")]
    assert scored(world)[2:] == [("b", "v3")]


def test_a_model_that_is_overloaded_does_not_make_the_others_score_again():
    world = World(*"abcd")
    reader = FakeReader(FakeLog(**{A: [message(n, "abcd"[n]) for n in range(4)]}))
    one = world.predicting(reader)
    one.turn()  # the models' cursors are known
    calls = []
    for name in "abcd":
        server = world.models[name]
        predict = server.predict
        server.predict = lambda lines, remember, n=name, p=predict: (
            calls.append(n) or p(lines, remember)
        )
    reader.log.messages[A] += [
        type(one)(A, 4 + n, message(4 + n, "abcd"[n]))
        for n, one in enumerate(reader.log.messages[A])
    ]
    world.models["c"].failures = [refused(503, "overloaded")]
    world.drained(one, reader)
    assert calls == ["a", "b", "c", "c", "d"] and len(world.topic.records) == 8


def test_labels_are_learned_by_id_and_model():
    world = World("a", "b")
    for name in "ab":
        world.models[name].waiting = {"v0": 1, "v1": 1}
    values = [label(0, "a"), label(0, "b"), label(1, "b"), label(2, "a"), label(1, "no")]
    reader = FakeReader(FakeLog(**{A: values}))
    one = world.labelling(reader, max_rows=9)
    world.drained(one, reader)
    assert world.models["a"].labels == {"v0": 1}
    assert world.models["b"].labels == {"v0": 0, "v1": 1}
    assert [offset for _, offset, _ in sorted(world.dead.written)] == [3, 4]
    assert world.models["a"].cursors == {A: 5}
    # Another group reads them again, and the cursors pass them.
    world.labellers = Group()
    again = world.labelling(reader := FakeReader(reader.log), max_rows=9)
    world.drained(again, reader)
    assert (again.counters.learned, again.counters.duplicates, again.counters.refused) == (0, 4, 1)


def test_a_label_waits_for_the_row_that_creates_its_model():
    world = World()
    log = FakeLog(**{A: [label(0, "a"), label(9, "a"), label(0, None)], C: [message(0, "a")]})
    labels, views = FakeReader(log, [A]), FakeReader(log, [C])
    scoring = world.predicting(views, create=world.create)
    waits = []

    def score() -> None:
        waits.append(list(world.dead.written))
        if len(waits) == 3:
            scoring.turn()

    labels.on_wait = score
    one = world.labelling(labels, log)
    world.read(one, labels, world.labellers)
    assert waits == [[]] * 3 and world.models["a"].labels == {"v0": 1}
    assert sorted(offset for _, offset, _ in world.dead.written) == [1, 2]


def test_any_order_of_failures_joins_every_label_once(monkeypatch, subtests):
    """Two processes score and two label; models are created, and answers and commits are lost."""
    for seed in range(int(100 * SCALE)):
        with subtests.test(seed=seed):
            monkeypatch.setattr("dualstream.consume.routed_models.MAX_MODELS", 2)
            chance = random.Random(seed)
            world = World("a", "b")
            rows = [
                (n, tenant) for n in range(25) for tenant in chance.choice(["ab", "a", "bc", "c"])
            ]
            never = [(n, tenant) for n in range(25, 28) for tenant in "abd"]
            inputs = [*rows, *never, *chance.sample(rows, 4)]
            chance.shuffle(inputs)
            log = FakeLog(
                **{
                    A: [label(*one) for one in inputs[::2]],
                    B: [label(*one) for one in inputs[1::2]],
                },
                **{C: [message(*one) for one in rows]},
            )
            processes: list[tuple[Consumer, FakeReader, Group]] = []
            for mine in ([A, B], [B], [C], [C]):
                reader = FakeReader(log, mine)
                # A label that waits ends its turn, as if the partitions had changed.
                reader.on_wait = lambda reader=reader: reader.rebalance(*reader.mine)
                size = chance.randint(1, 9)
                if mine == [C]:
                    one = world.predicting(reader, max_rows=size, create=world.create)
                    processes.append((one, reader, world.scorers))
                else:
                    one = world.labelling(reader, log, max_rows=size)
                    processes.append((one, reader, world.labellers))
            for _ in range(200):
                if chance.random() < 0.3:
                    chance.choice(list(world.models.values())).failures = [
                        chance.choice([None, away(), ("lost", away()), refused(503, "overloaded")])
                        for _ in range(3)
                    ]
                one, _, group = chance.choice(processes)
                group.failures = chance.random() < 0.1
                world.topic.failures = chance.random() < 0.1
                one.turn()
            for server in world.models.values():
                server.failures = []
            for one, reader, group in reversed(processes):
                group.failures = world.topic.failures = 0
                reader.rebalance(
                    *reader.mine
                )  # the other process may have committed an earlier offset
                world.read(one, reader, group)
            for name, server in world.models.items():
                expected = {
                    f"v{n}": json.loads(label(n, name))["y"] for n, of in rows if of == name
                }
                assert server.labels == expected and server.waiting == {}, name
            assert set(scored(world)) == {(tenant, f"v{n}") for n, tenant in rows}
            letters = [
                json.loads(log.messages[source][offset].value)
                for source, offset, _ in world.dead.written
            ]
            assert {(one["meta"]["tenant"], one["id"]) for one in letters} == {
                (tenant, f"v{n}") for n, tenant in never
            }
            assert all(isinstance(one, Record) and one.key for one in world.topic.records)
