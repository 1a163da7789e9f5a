"""Many models from one topic, against a log and servers in memory."""

import json
import random
from typing import Any

import pytest

from dualstream.client import BadInput, Refused
from dualstream.consume.reader import Message, ReaderError
from dualstream.consume.routed_models import check_route
from tests.consume.fakes import FakeLog, FakeReader, FakeServer, away, refused
from tests.consume.support import A, B, World, numbers
from tests.fuzzing import SCALE


def row(number: int, tenant: Any, y: Any = None) -> bytes:
    y = number % 2 if y is None else y
    return json.dumps({"x": {"n": number}, "y": y, "meta": {"tenant": tenant}}).encode()


def test_each_model_learns_its_rows_and_has_its_own_cursor():
    world = World("a", "b", "7")
    log = FakeLog(**{A: [row(n, tenant) for n, tenant in enumerate("aabaaa")] + [row(6, 7)]})
    reader = FakeReader(log)
    one = world.routed(reader, max_rows=3)
    world.drained(one, reader)
    assert {model: numbers(server) for model, server in world.models.items()} == {
        "a": [0, 1, 3, 4, 5],
        "b": [2],
        "7": [6],
    }
    assert [world.models[model].cursors[A] for model in "ab7"] == [6, 3, 7]
    assert one.counters.learned == 7 and world.dead.written == []


def test_the_model_may_be_in_the_key_or_in_a_header():
    world = World("a", "b")
    log = FakeLog(**{A: []})
    log.messages[A] = [
        Message(A, 0, row(0, "x"), b"a", headers=[("tenant", b"b")]),
        Message(A, 1, row(1, "x"), b"b"),
        Message(A, 2, row(2, "x"), b"\xff", headers=[("tenant", b"b")]),
    ]
    world.drained(world.routed(FakeReader(log), "key"), FakeReader(log))
    assert numbers(world.models["a"]) == [0] and numbers(world.models["b"]) == [1]
    assert world.dead.written == [(A, 2, "the key of the message is not UTF-8")]
    world = World("a", "b")
    world.drained(world.routed(FakeReader(log), "headers.tenant"), FakeReader(log))
    assert numbers(world.models["b"]) == [0, 2]
    reason = "the message has no headers.tenant, which names its model"
    assert world.dead.written == [(A, 1, reason)]


def test_rows_without_a_model_are_dead_letters_with_the_reason():
    world = World("a")
    values = [row(0, "a"), row(1, "no"), row(2, None), row(3, "a/b"), row(4, True), row(5, "a", 9)]
    values += [b'{"y": 1, "meta": {"tenant": %b}}' % one for one in (b"1e999", b"1.0", b"[1]")]
    reader = FakeReader(FakeLog(**{A: values}))
    one = world.routed(reader, max_rows=9)
    world.drained(one, reader)
    assert numbers(world.models["a"]) == [0] and one.counters.refused == 8
    assert dict((offset, reason) for _, offset, reason in world.dead.written) == {
        1: "unknown-model",
        2: "the message has no value.meta.tenant, which names its model",
        3: "value.meta.tenant is no id of a model: 'a/b'",
        4: "value.meta.tenant is no id of a model: 'true'",
        5: "y: no label",
        6: "value.meta.tenant is no id of a model: '1e999'",
        7: "value.meta.tenant is no id of a model: '1.0'",
        8: "value.meta.tenant is no id of a model: '[1]'",
    }


def test_models_that_do_not_exist_can_be_created():
    world = World("a")
    reader = FakeReader(FakeLog(**{A: [row(n, tenant) for n, tenant in enumerate("abab")]}))

    def create(model: str) -> None:
        world.models[model] = FakeServer()

    world.drained(world.routed(reader, create=create), reader)
    assert numbers(world.models["b"]) == [1, 3] and world.dead.written == []


def test_a_killed_process_is_resumed_by_the_cursors_of_the_models():
    """Killed after the first model of the batch has learned: the next one reads the batch again."""
    world = World("a", "b")
    log = FakeLog(**{A: [row(n, "ab"[n % 2]) for n in range(6)]})

    def kill() -> None:
        raise KeyboardInterrupt

    world.models["b"].before_learn = kill
    with pytest.raises(KeyboardInterrupt):
        world.routed(FakeReader(log)).turn()
    assert numbers(world.models["a"]) == [0, 2] and world.group.offsets == {}
    world.models["b"].before_learn = lambda: None
    again = world.routed(FakeReader(log), max_rows=3)
    world.drained(again, FakeReader(log))
    assert numbers(world.models["a"]) == [0, 2, 4] and numbers(world.models["b"]) == [1, 3, 5]
    assert again.counters.duplicates == 2


def test_a_commit_that_fails_is_repeated_and_nothing_is_learned_again():
    world = World("a")
    reader = FakeReader(FakeLog(**{A: [row(n, "a") for n in range(3)]}))
    world.group.failures = 2
    one = world.routed(reader)
    world.drained(one, reader)
    assert len(world.models["a"].requests) == 1
    assert (one.counters.learned, one.counters.duplicates) == (3, 0)


def test_a_store_that_has_lost_rows_gets_them_again():
    world = World("a", "b")
    log = FakeLog(**{A: [row(n, "ab"[n % 2]) for n in range(8)]})
    reader = FakeReader(log)
    one = world.routed(reader)
    world.drained(one, reader)
    lost = world.models["a"]
    lost.learned, lost.cursors[A] = lost.learned[:1], 2
    log.messages[A].append(Message(A, 8, row(8, "a")))
    world.drained(one, reader)
    assert numbers(lost) == [0, 2, 4, 6, 8] and numbers(world.models["b"]) == [1, 3, 5, 7]


@pytest.mark.parametrize("is_away", [False, True])
@pytest.mark.parametrize("deleted", [False, True])
def test_a_model_that_has_lost_a_partition_gets_its_rows_again(is_away, deleted):
    """From the first message, although it looks like a model that is new; also after a 503."""
    world = World("a", "b")
    log = FakeLog(**{A: [row(n, "ab"[n % 2]) for n in range(8)]})
    reader = FakeReader(log)

    def create(model: str) -> None:
        world.models[model] = FakeServer()

    one = world.routed(reader, create=create if deleted else None)
    world.drained(one, reader)
    if deleted:
        world.models.pop("a").failures = [refused(404, "unknown-model")]
    else:
        world.models["a"].restore()
        world.models["a"].failures = [refused(503, "store-unavailable")] * is_away
    world.models["b"].failures = [refused(503, "store-unavailable")] * is_away
    log.messages[A] += [Message(A, 8, row(8, "a")), Message(A, 9, row(9, "b"))]
    world.drained(one, reader)
    assert numbers(world.models["a"]) == [0, 2, 4, 6, 8]
    assert numbers(world.models["b"]) == [1, 3, 5, 7, 9]
    lost = f"{A}: model a: the server no longer has the cursor, which was 8; continues at the first"
    assert [line for line in world.said if "waiting" not in line] == [f"{lost} message"]
    if not is_away and not deleted:  # of a store that lost both, the partition is read once
        for model in world.models.values():
            model.restore()
        log.messages[A] += [Message(A, n, row(n, "ab"[n % 2])) for n in (10, 11)]
        moved = one.counters.moved
        world.drained(one, reader)
        assert [numbers(world.models[name])[-1] for name in "ab"] == [10, 11]
        assert [len(world.models[name].learned) for name in "ab"] == [6, 6]
        assert one.counters.moved == moved + 1
    # A model that comes later begins at its first row.
    world.models["c"] = FakeServer()
    log.messages[A].append(Message(A, 12, row(12, "c")))
    requests = len(world.models["a"].requests)
    world.drained(one, reader)
    assert numbers(world.models["c"]) == [12] and len(world.models["a"].requests) == requests


def test_a_body_that_is_too_large_is_halved():
    world = World("a")
    big = json.dumps({"x": {"n": 2, "t": "z" * 500}, "y": 1, "meta": {"tenant": "a"}}).encode()
    values = [row(0, "a"), row(1, "a"), big, row(3, "a")]
    reader = FakeReader(FakeLog(**{A: values}))
    world.models["a"].max_body = 150
    one = world.routed(reader)
    world.drained(one, reader)
    assert numbers(world.models["a"]) == [0, 1, 3]
    assert world.dead.written == [(A, 2, "body-too-large")] and one.counters.learned == 3


def test_a_cursor_after_the_end_of_the_log_ends_the_command():
    """The topic was made again: its rows would count as learned before."""
    world = World("a", "b")
    world.models["b"].cursors[A], world.group.end = 50, 2
    reader = FakeReader(FakeLog(**{A: [row(0, "a"), row(1, "b")]}))
    one = world.routed(reader)
    named = "model b: kafka/t/0: the model's cursor is 50, .*: dualstream sources b --set kaf"
    with pytest.raises(ReaderError, match=named):
        one.turn()
    assert numbers(world.models["b"]) == [] and world.group.offsets == {}


@pytest.mark.parametrize("reset", [None, "latest"])
def test_reset_sets_the_offset_of_the_group(reset):
    world = World("a")
    log = FakeLog(**{A: [row(0, "a"), row(1, "a")]})
    reader = FakeReader(log)
    one = world.routed(reader, reset=reset)
    one.turn()
    assert world.group.offsets == {A: 2}
    log.messages[A].append(Message(A, 2, row(2, "a")))
    world.drained(one, reader)
    assert numbers(world.models["a"]) == ([2] if reset else [0, 1, 2])


def test_other_refusals_end_the_command():
    world = World("a")
    world.models["a"].failures = [None, refused(403, "forbidden")]
    with pytest.raises(Refused, match="forbidden"):
        world.routed(FakeReader(FakeLog(**{A: [row(0, "a")]}))).run()


@pytest.mark.parametrize("route", ["tenant", "value.", "headers", "value", "offset", ""])
def test_a_bad_route_is_refused(route):
    with pytest.raises(BadInput, match="--route must be key, headers.NAME or value.COLUMN"):
        check_route(route)


def test_any_order_of_failures_learns_every_row_once(monkeypatch, subtests):
    """Two processes share partitions; answers and commits are lost; models come and are slow."""
    for seed in range(int(100 * SCALE)):
        with subtests.test(seed=seed):
            monkeypatch.setattr("dualstream.consume.routed_models.MAX_MODELS", 2)
            chance = random.Random(seed)
            world = World("a", "b", "c")
            tenants = {name: chance.choices("aaabcd", k=40) for name in (A, B)}
            values = {
                name: [row(base + n, tenant) for n, tenant in enumerate(tenants[name])]
                for name, base in ((A, 0), (B, 1000))
            }
            log = FakeLog(**values)
            readers = [FakeReader(log, [A, B]), FakeReader(log, [B])]  # both have B
            both = [world.routed(reader, max_rows=chance.randint(1, 9)) for reader in readers]
            for _ in range(150):
                if chance.random() < 0.4:
                    chance.choice(list(world.models.values())).failures = [
                        chance.choice([None, away(), ("lost", away()), refused(503, "overloaded")])
                        for _ in range(3)
                    ]
                if chance.random() < 0.2:
                    world.group.failures = 1
                    reader = chance.choice(readers)
                    reader.on_wait = lambda reader=reader: reader.rebalance(*reader.mine)
                    reader.rebalance(*chance.choice([(A,), (B,), (A, B)]))
                chance.choice(both).turn()
            for server in world.models.values():
                server.failures = []
            for reader, one in zip(readers, both, strict=True):
                reader.rebalance(A, B)
                world.drained(one, reader)
            for model, server in world.models.items():
                expected = [
                    base + n
                    for name, base in ((A, 0), (B, 1000))
                    for n, tenant in enumerate(tenants[name])
                    if tenant == model
                ]
                assert sorted(numbers(server)) == expected
                for base in (0, 1000):
                    results = [n for n in numbers(server) if base <= n < base + 1000]
                    assert results == sorted(results)
            unknown = {
                (name, n) for name in (A, B) for n, t in enumerate(tenants[name]) if t == "d"
            }
            assert {(source, offset) for source, offset, _ in world.dead.written} == unknown
