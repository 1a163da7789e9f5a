"""What producers XADD to ds:{ID}:in is learned once, in order; what cannot be is shown why."""

import asyncio
import json
import re
import shlex
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from hypothesis import given, strategies as st

from dualstream.service.cli.demo.server_process import ServerProcess
from dualstream.service.codecs import RowSchema, parse_messages
from dualstream.service.jobs import redis_input
from dualstream.service.journal import open_journal
from dualstream.service.journal.protocol import Journal
from dualstream.service.journal.record import Rows
from dualstream.service.replica.replica import Replica
from dualstream.service.replica.requests import Request
from dualstream.service.server.app import create_app
from dualstream.service.settings import Settings
from dualstream.solvers import resolve_spec
from tests.docs.documents import ROOT
from tests.history import Acknowledged, check_history
from tests.redis_server import RedisServer, redis_or_skip
from tests.service.api.test_guard import GUARDED, learn, learned_of, paused, resume, samples, view
from tests.service.conftest import SPEC, assert_problem
from tests.service.jobs.test_follower import until
from tests.service.replica.test_replica import bits, loaded, replica_of

PATIENCE_S = 30.0
IN, DEAD = "ds:{m}:in", "ds:{m}:dead"
HASHED = {"algorithm": "sgd", "loss": "logistic", "features": {"kind": "hashed", "bits": 10}}


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test does not wait for who was overtaken, or in trouble."""
    monkeypatch.setattr(redis_input, "LOST_S", 0.05)
    monkeypatch.setattr(redis_input, "TROUBLE_S", 0.05)


@pytest.fixture
def url(redis_server: RedisServer) -> str:
    with redis.Redis.from_url(redis_server.url) as client:
        client.flushall()
    return redis_server.url


@pytest.fixture
def client(url: str) -> Iterator[Any]:
    with redis.Redis.from_url(url) as client:
        yield client


def taken(client: Any, key: str = IN) -> None:
    """Wait until nothing waits in an input."""
    until(lambda: client.xlen(key) == 0, PATIENCE_S)


def dead(client: Any) -> list[tuple[str, dict[bytes, bytes]]]:
    """Reasons and fields."""
    found = []
    for _, fields in client.xrange(DEAD):
        assert fields.pop(b"dead.id")
        found.append((fields.pop(b"dead.reason").decode(), fields))
    return found


def sample(**fields: Any) -> dict[str, str]:
    return {"json": json.dumps(fields)}


MESSAGES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    # as it is written to Redis, as it is posted
    ({"json": '{"x": {"a": "news", "b": 3}, "y": 1}'}, {"x": {"a": "news", "b": 3}, "y": 1}),
    ({"y": "0", "x.site": "mail", "x.price": "2.5"}, {"x": {"site": "mail", "price": 2.5}, "y": 0}),
    ({"x.new": "true", "y": "-1", "weight": "2"}, {"x": {"new": True}, "y": -1, "weight": 2}),
    ({"y": "true", "id": "7", "x.a:b": "1e-3"}, {"x": {"a:b": 0.001}, "y": True, "id": 7}),
]  # fmt: skip


def test_messages_are_learned_as_posted_samples_are(serve, url, client):
    got, posted = serve(store=url, redis_input=True), serve()
    for server in (got, posted):
        server.put("/models/m", json=HASHED)
    for message, row in MESSAGES:
        client.xadd(IN, message)
        assert posted.post("/models/m/learn", json=row).status_code == 200
    until(lambda: got.get("/models/m").json()["seq"] == len(MESSAGES), PATIENCE_S)
    for route in ("/models/m/weights", "/models/m/metrics"):
        assert got.get(route).json() | {"etag": 0} == posted.get(route).json() | {"etag": 0}
    assert client.exists(DEAD) == 0
    # Another worker, which comes later, finds nothing more to learn
    assert bits(replica_of(serve(store=url, redis_input=True))) == bits(replica_of(got))


def test_the_index_form_and_named_labels(serve, url, client):
    got, posted = serve(store=url, redis_input=True), serve()
    spec = SPEC | {"labels": ["no", "1"]}
    for server in (got, posted):
        server.put("/models/m", json=spec)
    client.xadd(IN, {"x": "3:1,5:0.5", "y": "1"})
    client.xadd(IN, {"x": "", "y": "no", "weight": ".5"})
    posted.post("/models/m/learn", json={"x": {"3": 1, "5": 0.5}, "y": "1"})
    posted.post("/models/m/learn", json={"x": {}, "y": "no", "weight": 0.5})
    until(lambda: got.get("/models/m").json()["seq"] == 2, PATIENCE_S)
    assert got.get("/models/m/weights").json() == posted.get("/models/m/weights").json()


BAD: list[tuple[dict[Any, Any], str]] = [
    ({"y": "1"}, "/x: send the features in the field x, or in fields x.NAME"),
    ({"y": "1", "x": "1:1", "x.2": "1"}, "/x: send the features in the field x, or"),
    ({"x": "1:1"}, "/y: the label `y` is missing"),
    ({"x": "1:1", "y": "maybe"}, "/y: 'maybe' is not a label"),
    ({"x": "6:1", "y": "1"}, "/x/6: index 6 is above dim 5"),
    ({"x.1": "word", "y": "1"}, "/x/1: "),
    ({"x": "1:nan", "y": "1"}, "/x/1: "),
    ({"x": "1:1", "y": "1", "weight": "-1"}, "/weight: "),
    ({"x": "1:1", "y": "1", "id": "a\nb"}, "/id: "),
    ({"x": "1:1", "y": "1", "colour": "red"}, "/colour: unknown field 'colour'"),
    ({"json": '{"x": [1], "y": 1'}, ""),
    ({"json": '{"x": {"1": 1}}'}, "/y: the label `y` is missing"),
    ({"json": '{"x": {"1": 1}, "y": 1}', "y": "1"}, "/json: a message with the field json must"),
    ({"json": '{"x": {"1": 1}, "y": null}'}, "/y: the label is null"),
    ({"x": "1:1", "y": b"\xff"}, "the message is not UTF-8"),
    ({"x": "1:1", "y": "1" * 5000}, "the message has 5005 bytes; the limit is 4000"),
]


NAMES = [b"json", b"y", b"weight", b"id", b"x", b"x.1", b"x.a", b"x.", b"other", b"\xff"]
NAMES.append(b"x." + b"9" * 5000)  # Python reads no such number
TEXTS = [
    *(b"1", b"-1", b"0.5", b"1e999", b"9" * 400, b"9" * 5000, b"-" + b"9" * 400, b"nan", b"true"),
    *(b"", b"1:1", b"1:1,1:2", b"1:", b"1:" + b"9" * 5000, b"null", b"\xff\x00", b"a\nb"),
    *(
        b'{"x": [1], "y": 1}',
        b'{"x": {}, "y": 1, "id": "\\ud800"}',
        b'{"x": {"\\ud800": 1}, "y": 1}',
    ),
    *(b'{"x": [' + b"9" * 400 + b'], "y": 1}', b'{"x": [1], "y": ' + b"9" * 5000 + b"}"),
    b'{"x": {"' + b"9" * 5000 + b'": 1}, "y": 1}',
    *(b"[" * 5000, b'{"x": ' + b"[" * 5000, b'{"x": {"1": 1, "1": 2}, "y": 1}', b"{}"),
]


@pytest.mark.parametrize("spec", [SPEC, HASHED, {"task": "regression"}, {"task": "multiclass"}])
def test_no_message_stops_those_behind_it(spec):
    schema = RowSchema(resolve_spec(spec))
    good = [(b"json", b'{"x": {"1": 1}, "y": 1}')]

    @given(st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(TEXTS)), max_size=5))
    def check(fields):
        parsed = parse_messages(schema, [fields, good], 1 << 20)
        assert parsed.row_indices[-1] == 1
        assert [*parsed.row_indices, *(error.index for error in parsed.errors)] in ([0, 1], [1, 0])
        Request.of(parsed.rows, None, None)

    for name in NAMES:
        for text in TEXTS:
            check.hypothesis.inner_test([(name, text), (b"y", b"1")][: 1 + (name[:2] == b"x.")])
    check()


def test_bad_messages_are_dead_once_with_the_reason(serve, url, client):
    # Given two workers that both try
    one, _ = (serve(store=url, redis_input=True, max_body_bytes=4000) for _ in range(2))
    one.put("/models/m", json=SPEC)
    for number, (message, _) in enumerate(BAD):
        client.xadd(IN, message)
        client.xadd(IN, {"x": f"1:{number}", "y": "1"})
    taken(client)
    found = dead(client)
    assert len(found) == len(BAD)
    for (message, reason), (got, fields) in zip(BAD, found, strict=True):
        assert got.startswith(reason) and got, (message, got)
        written = {
            n.encode(): t if isinstance(t, bytes) else t.encode() for n, t in message.items()
        }
        assert fields == written
    assert one.get("/models/m").status_code == 200
    until(lambda: one.get("/models/m").json()["seq"] == len(BAD), PATIENCE_S)


def test_ids_are_those_of_posted_samples(serve, url, client):
    server = serve(store=url, redis_input=True)
    server.put("/models/m", json=SPEC)
    posted = {"x": {"1": 1}, "y": 1, "id": "a"}
    assert server.post("/models/m/learn", json=posted).json()["learned"] == 1
    client.xadd(IN, sample(**posted))  # the same
    client.xadd(IN, {"x": "2:1", "y": "1", "id": "a"})  # another one
    client.xadd(IN, {"x": "2:1", "y": "1"})
    client.xadd(IN, {"x": "3:1", "y": "1", "id": "b"})
    taken(client)
    assert dead(client) == [
        ("/id: the id was used for another sample", {b"x": b"2:1", b"y": b"1", b"id": b"a"})
    ]
    again = server.post("/models/m/learn", json={"x": {"3": 1}, "y": 1, "id": "b"}).json()
    assert again["duplicate"] is True and again["seq"] == 3
    said = server.get("/metrics").text
    assert 'dualstream_input_taken_total{model="m"} 3.0' in said
    assert 'dualstream_input_dead_total{model="m"} 1.0' in said


def test_messages_to_a_paused_model_are_set_aside_and_wait_where_that_is_full(
    serve, url, client, monkeypatch
):
    monkeypatch.setattr("dualstream.service.models.model.MAX_QUARANTINE_RECORDS", 100)
    got, free = serve(store=url, redis_input=True), serve()
    got.put("/models/m", json=GUARDED)
    free.put("/models/m", json=SPEC)
    rows = [*samples(0, 100), *samples(100, 160, bad=True), *samples(160, 300)]
    learn(free, rows)

    def send(first: int, last: int) -> None:
        for row in rows[first:last]:
            client.xadd(IN, sample(**row))

    send(0, 160)
    taken(client)
    now = paused(got)
    held_from = now["held_from"]
    assert now["quantity"] == "loss" and 80 <= held_from < 160
    # What comes while it is paused is journalled and moves nothing, and no message is dead.
    send(160, 170)
    taken(client)
    until(lambda: got.get("/models/m").json()["seq"] == 171, PATIENCE_S)  # and the pause
    aside = view(got)
    assert aside["samples"] == held_from
    assert aside["paused"]["held_records"] == 171 - held_from
    # Once the quarantine is full messages wait in their stream.
    send(170, 290)
    until(lambda: got.get("/models/m").json()["seq"] - held_from >= 100, PATIENCE_S)
    send(290, 300)
    answer = got.post("/models/m/learn", json=rows[0])
    assert_problem(answer, 429, "quarantine-full")
    assert client.xlen(IN) >= 10 and view(got)["samples"] == held_from
    # Learned after all, each is learned once, in order: it is the model without a guard.
    assert resume(got, "learn").status_code == 200
    taken(client)
    until(lambda: view(got)["samples"] == len(rows), PATIENCE_S)
    assert dead(client) == []
    state = learned_of(got, "m"), learned_of(free, "m")
    for name in ("retained.seqs", "progress.drift_events"):  # seqs differ by the controls
        state[0].pop(name), state[1].pop(name)
    assert state[0] == state[1]


def test_models_that_are_not_in_memory_come_for_their_messages(serve, url, client):
    server = serve(store=url, redis_input=True, models_held=1)
    ids = [f"m{number}" for number in range(12)]
    for model in ids:
        server.put(f"/models/{model}", json=SPEC)
        client.xadd(f"ds:{{{model}}}:in", {"x": "1:1", "y": "1"})
    client.xadd("ds:{later}:in", {"x": "1:1", "y": "1"})
    for model in ids:
        until(lambda model=model: client.xlen(f"ds:{{{model}}}:in") == 0, PATIENCE_S)
        assert server.get(f"/models/{model}").json()["seq"] == 1
    # What was there before its model waits for it
    assert client.xlen("ds:{later}:in") == 1
    server.put("/models/later", json=SPEC)
    taken(client, "ds:{later}:in")


def test_a_model_in_trouble_keeps_no_other_from_its_messages(serve, url, client):
    server = serve(store=url, redis_input=True)
    for model in ("broken", "m"):
        server.put(f"/models/{model}", json=SPEC)
    client.lpush("ds:{broken}:in", "no stream")
    until(lambda: 'input_pending{model="broken"} 1.0' in server.get("/metrics").text, PATIENCE_S)
    client.xadd(IN, {"x": "1:1", "y": "1"})
    taken(client)
    learned = server.post("/models/broken/learn", json={"x": {"1": 1}, "y": 1})
    assert learned.status_code == 200
    # and when the key is free it goes on
    client.delete("ds:{broken}:in")
    client.xadd("ds:{broken}:in", {"x": "1:1", "y": "1"})
    taken(client, "ds:{broken}:in")


def test_messages_go_to_the_model_that_was_made_again_elsewhere(serve, url, client):
    one, other = serve(store=url, redis_input=True), serve(store=url)
    one.put("/models/m", json=SPEC)
    client.xadd(IN, {"x": "1:1", "y": "1"})
    taken(client)
    other.delete("/models/m")
    other.put("/models/m", json=SPEC | {"rho": 0.5})
    client.xadd(IN, {"x": "1:1", "y": "1"})
    client.xadd(IN, {"x": "2:1", "y": "1"})
    until(lambda: other.get("/models/m").json()["seq"] == 2, PATIENCE_S)
    assert bits(replica_of(one)) == bits(loaded(url))


def test_the_store_goes_away_and_comes_back(serve):
    with redis_or_skip(appendfsync="always") as server:
        both = [serve(store=server.url, redis_input=True) for _ in range(2)]
        both[0].put("/models/m", json=SPEC)
        with redis.Redis.from_url(server.url) as client:
            for number in range(300):
                client.xadd(IN, {"x": f"1:{number}", "y": "1"})
        server.kill()
        server.start()
        with redis.Redis.from_url(server.url) as client:
            taken(client)
            client.xadd(IN, {"x": "1:300", "y": "1"})
            taken(client)
        asyncio.run(check(server.url, list(range(301))))


def test_two_workers_of_which_one_is_killed_learn_each_message_once_in_order(serve, url, client):
    keep = 10**9  # the whole journal
    server = ServerProcess(url, ["--redis-input", "--snapshot-every", str(keep)], wait=False)
    is_killed, written = threading.Event(), [0]
    producer = threading.Thread(target=produce, args=(url, is_killed, written))
    try:
        one = serve(store=url, redis_input=True, snapshot_every=keep)
        one.put("/models/m", json=SPEC)
        server.wait_until("ready")
        producer.start()
        until(lambda: int(client.hget("ds:{m}:head", "seq")) > 500, PATIENCE_S)
    finally:
        server.kill()
        is_killed.set()
    producer.join()
    taken(client)
    assert [int(f[b"x"][2:]) for _, f in dead(client)] == list(range(0, written[0], 10))
    asyncio.run(check(url, [n for n in range(written[0]) if n % 10]))
    assert bits(replica_of(one)) == bits(loaded(url))


def produce(url: str, is_killed: threading.Event, written: list[int]) -> None:
    """Until a worker is killed, and a little longer. Every tenth is bad; every third has an id."""
    left = 10
    with redis.Redis.from_url(url) as client:
        while left:
            pipeline = client.pipeline(transaction=False)
            for n in range(written[0], written[0] + 50):
                row = {"x": f"1:{n}", "y": "1" if n % 10 else "maybe"}
                pipeline.xadd(IN, row | ({"id": f"n{n}"} if n % 3 == 0 else {}))
            pipeline.execute()
            written[0] += 50
            left -= is_killed.is_set()
            time.sleep(0.002)


async def check(url: str, written: list[int]) -> None:
    """The journal holds the rows of these values, each once and in this order, and no other."""
    got = [Acknowledged(value, seq) for seq, value in enumerate(written, 1)]
    journal = await open_journal(url)
    try:
        samples = loaded_in(journal)
        sent = dict.fromkeys(written, 1)
        await check_history(journal, "m", got, tags_of=values_of, sent=sent, samples=await samples)
    finally:
        await journal.close()


async def loaded_in(journal: Journal) -> int:
    """The rows that a state has learned which has read the journal."""
    replica = Replica(await journal.get("m"))
    await replica.load(journal)
    return replica.learner.samples


def values_of(found: Rows) -> list[int]:
    """The value of the one feature of each row, 0 where it has none."""
    ends, numbers = found.indptr.tolist(), found.values.tolist()
    pairs = zip(ends, ends[1:], strict=False)
    return [int(numbers[first]) if stop > first else 0 for first, stop in pairs]


def test_a_store_without_inputs_is_refused_at_start(tmp_path):
    settings = Settings(store=f"sqlite:///{tmp_path / 'unused.db'}", redis_input=True)
    with pytest.raises(ValueError, match="DUALSTREAM_REDIS_INPUT=1 needs a Redis store"):
        create_app(settings)
    assert list(tmp_path.iterdir()) == []


def test_the_commands_of_the_document_run_as_written(serve, url, client):
    text = (ROOT / "docs/guides/redis-input.md").read_text()
    commands = [
        shlex.split(line)[1:]
        for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
        for line in block.replace("\\\n", " ").splitlines()
        if line.startswith("redis-cli ")
    ]
    server = serve(store=url, redis_input=True)
    server.put("/models/clicks", json={})
    answers = []
    for command in commands:
        answers.append(client.execute_command(*command))
        taken(client, "ds:{clicks}:in")
    *ids, waits, ((_, fields),) = answers
    assert len(ids) == 4 and waits == 0
    assert server.get("/models/clicks").json()["seq"] == 3
    assert f'4) "{fields[b"dead.reason"].decode()}"' in text
