"""While the store is away predictions go on and say so; when it is back everything does."""

import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from dualstream.service.journal import open_journal
from dualstream.service.journal.protocol import JournalUnavailable
from dualstream.service.journal.sqlite import SqliteJournal
from dualstream.service.models import model as model_module, store_status as status_module
from dualstream.service.server import app as app_module
from dualstream.service.settings import without_password
from tests.redis_server import RedisServer, redis_or_skip
from tests.service.conftest import SPEC, assert_problem
from tests.service.support import bits, learn_row, loaded, replica_of
from tests.support import until

PATIENCE_S = 30.0


@pytest.fixture(autouse=True)
def stale_after(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets the age of a stale state; until then none is stale, however busy the machine is."""

    def set_age(seconds: float) -> None:
        for module in (status_module, model_module):
            monkeypatch.setattr(module, "STALE_S", seconds)

    set_age(3600.0)
    return set_age


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """A server that the test may kill."""
    with redis_or_skip(appendfsync="always") as server:
        yield server


READS = ["", "/metrics", "/weights", "/certificate", "/timeline"]


def test_what_is_known_is_shown_as_stale_until_the_store_is_back(serve, server, stale_after):
    # Given two workers of which one only predicts
    one, other = serve(store=server.url), serve(store=server.url)
    one.put("/models/m", json=SPEC)
    seq = learn_row(one, 10)
    until(lambda: other.get("/models/m").json()["seq"] == seq, PATIENCE_S)
    etag = other.get("/models/m").headers["etag"]
    fresh = other.get("/models/m/predict?x=1:1")
    assert fresh.headers["etag"] == etag and "stale" not in fresh.json()
    # When the store is away, learning is refused at once, and predictions go on
    server.kill()
    stale_after(2.0)
    for client in (one, other):
        assert_problem(client.post("/models/m/learn", json={"x": {"1": 1}, "y": 1}), 503, AWAY)
        until(lambda c=client: is_stale(c), PATIENCE_S)
    for client in (one, other):
        got = client.get("/models/m/predict?x=1:1")
        assert "etag" not in got.headers
        marks = {name: got.json()[name] for name in ("stale", "age_seconds")}
        assert marks["stale"] is True and marks["age_seconds"] >= 2
        assert got.json() == fresh.json() | marks
        many = client.post("/models/m/predict", json={"samples": [{"x": {"1": 1}}]}).json()
        assert many["stale"] is True and many["age_seconds"] >= 2
        for route in READS:
            read = client.get(f"/models/m{route}", headers={"if-none-match": etag})
            assert read.status_code == 200 and "etag" not in read.headers
            assert read.json()["stale"] is True and read.json()["age_seconds"] >= 2
        # What the replica does not have is not shown
        assert client.get(f"/models/m/predict?x=1:1&min_seq={seq}").status_code == 200
        beyond = client.get(f"/models/m/predict?x=1:1&min_seq={seq + 1}")
        assert_problem(beyond, 503, AWAY)
        assert_problem(client.put("/models/n", json=SPEC), 503, AWAY)
        ready = client.get("/readyz")
        assert ready.status_code == 200
        assert ready.json()["ready"] is True and ready.json()["degraded"] == ["store"]
        assert "Redis" in ready.json()["reason"]
        assert "dualstream_store_available 0.0" in client.get("/metrics").text
    # When it is back, restarted from its files, everything goes on
    server.start()
    until(lambda: one.post("/models/m/learn", json=ROW).status_code == 200, PATIENCE_S)
    until(lambda: other.get("/models/m").json()["seq"] == seq + 1, PATIENCE_S)
    for client in (one, other):
        until(lambda c=client: "degraded" not in c.get("/readyz").json(), PATIENCE_S)
        until(lambda c=client: not is_stale(c), PATIENCE_S)
    stale_after(3600.0)
    for client in (one, other):
        assert client.get("/models/m").headers["etag"] != etag
        assert "stale" not in client.get("/models/m").json()
        assert "dualstream_store_available 1.0" in client.get("/metrics").text
        assert bits(replica_of(client)) == bits(loaded(server.url))


AWAY = "store-unavailable"
ROW = {"x": {"1": 1}, "y": 1}


def is_stale(client) -> bool:
    return client.get("/models/m/predict?x=1:1").json().get("stale", False)


def test_the_durability_shown_is_the_one_that_the_server_came_back_with(serve, server):
    client = serve(store=server.url)
    client.put("/models/m", json=SPEC)
    assert client.post("/models/m/learn", json=ROW).headers["dualstream-durability"] == "always"
    server.kill()
    server.options["appendfsync"] = "everysec"
    server.start()
    until(
        lambda: (
            client.post("/models/m/learn", json=ROW).headers.get("dualstream-durability")
            == "everysec"
        ),
        PATIENCE_S,
    )
    assert client.get("/readyz?verbose").json()["durability"] == "everysec"


def test_less_durable_than_asked_for_is_shown_and_not_learned_on(serve, server):
    client = serve(store=server.url, durability="always")
    client.put("/models/m", json=SPEC)
    server.kill()
    server.options["appendfsync"] = "everysec"
    server.start()
    until(lambda: "always was asked" in client.get("/readyz").json().get("reason", ""), PATIENCE_S)
    assert client.get("/readyz").status_code == 200
    got = assert_problem(client.post("/models/m/learn", json=ROW), 503, AWAY)
    assert "keeps everysec, always was asked for" in got["detail"]


def test_a_file_that_is_locked_refuses_appends_until_it_is_free(
    serve, tmp_path, monkeypatch, stale_after
):
    path = tmp_path / "locked.db"
    monkeypatch.setattr(
        app_module, "make_journal", lambda *_: SqliteJournal(str(path), busy_timeout_s=0.1)
    )
    client = serve()
    client.put("/models/m", json=SPEC)
    learn_row(client, 2)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        assert_problem(client.post("/models/m/learn", json=ROW), 503, AWAY)
        until(lambda: client.get("/readyz").json().get("degraded") == ["store"], PATIENCE_S)
        assert "locked" in client.get("/readyz").json()["reason"]
        # It can be read, so what is shown is known to be the newest
        time.sleep(2.5)
        stale_after(2.0)
        until(lambda: not is_stale(client), PATIENCE_S)
    finally:
        other.close()
    stale_after(3600.0)
    assert learn_row(client) == 3
    until(lambda: "degraded" not in client.get("/readyz").json(), PATIENCE_S)
    assert bits(replica_of(client)) == bits(loaded(f"sqlite:///{path}"))


@pytest.mark.parametrize("shape", ["rows", "control"])
def test_what_too_few_replicas_have_is_journalled_and_answered_when_they_have_it(
    client, monkeypatch, shape
):
    # Given a store whose replicas lag behind two appends
    spec = {"algorithm": "portfolio", "features": SPEC["features"]}
    assert client.put("/models/m", json=spec).status_code == 201
    journal = client.app._registry.journal
    append, short = journal.append, ["1 of 2 replicas had it"] * 2

    async def append_short(*args, **named):
        appended = await append(*args, **named)
        return msgspec.structs.replace(appended, shortfall=short.pop() if short else None)

    monkeypatch.setattr(journal, "append", append_short)
    keyed = {"idempotency-key": "k"}

    def ask():
        if shape == "rows":
            return client.post("/models/m/learn", json=ROW, headers=keyed)
        spec = {"algorithm": "perceptron", "name": "new"}
        return client.post("/models/m/members", json=spec, headers=keyed)

    # When a client repeats its request until it is answered
    for _ in range(2 if shape == "rows" else 1):
        got = assert_problem(ask(), 503, "not-replicated")
        assert got["outcome"] == "journalled" and "1 of 2 replicas had it" in got["detail"]
        assert client.get("/models/m").json()["seq"] == 1
    answered = ask()
    # Then it was done once
    assert answered.status_code == 200, answered.text
    assert client.get("/models/m").json()["seq"] == 1
    if shape == "rows":
        assert answered.json()["duplicate"] is True and answered.json()["seq"] == 1
        assert answered.headers["idempotency-replayed"] == "true"


def test_predictions_do_not_ask_the_store(model, monkeypatch):
    """Neither while it is there nor while it is away: the time of the last look is looked at."""
    learn_row(model, 2)
    journal = model.app._registry.journal

    async def asked(*_, **__):
        raise AssertionError("a prediction asked the store")

    for name in ("get", "read", "append", "known", "snapshot_get"):
        monkeypatch.setattr(journal, name, asked)
    assert model.get("/models/m/predict?x=1:1").status_code == 200
    # The clock is moved, not what the follower noted: it may look, and note, at any moment.
    much_later = SimpleNamespace(monotonic=lambda: time.monotonic() + 1e6)
    monkeypatch.setattr(model_module, "time", much_later)
    assert model.get("/models/m/predict?x=1:1").json()["stale"] is True


@pytest.mark.anyio
async def test_a_store_whose_opening_failed_leaves_nothing_open(tmp_path: Path):
    with pytest.raises(JournalUnavailable):
        await open_journal("redis://127.0.0.1:1/0")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://h:1/0", "redis://h:1/0"),
        ("redis://me:secret@h:1/0", "redis://me:***@h:1/0"),
        ("redis+cluster://:secret@a:1,b:2", "redis+cluster://:***@a:1,b:2"),
        (
            "redis+sentinel://me:secret@a:1,[::1]:2/main?sentinel_password=secret&client_name=x",
            "redis+sentinel://me:***@a:1,[::1]:2/main?sentinel_password=***&client_name=x",
        ),
        ("sqlite:////tmp/a@b.db", "sqlite:////tmp/a@b.db"),
    ],
)
def test_no_password_of_a_store_is_shown(url: str, shown: str):
    assert without_password(url) == shown
