"""Damaged entries and files: refused by name, one model at a time, and never learned from."""

import asyncio
import random
import sqlite3
import struct
from collections.abc import Callable

import pytest
import redis

from dualstream.service.features import ALL
from dualstream.service.journal import open_journal
from dualstream.service.journal.protocol import AppendRequest, Part
from dualstream.service.models import creation
from dualstream.service.replica.recovery import NoBase, recover
from dualstream.service.replica.replica import Replica
from dualstream.service.replica.requests import Request
from dualstream.service.replica.spec import DamagedSpec, canonical
from dualstream.solvers import resolve_spec
from dualstream.wire.problem_json import Problem
from tests.service.conftest import assert_problem
from tests.service.models.support import rows, serving
from tests.service.support import ADULT, learn_adult, loaded, until_reason
from tests.support import until

Damage = Callable[[dict], None]
"""Changes an entry in place: first_seq, count, nonce, chain, body."""

HEADER = struct.Struct("<QIIQ16s40s")


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def damage_entry(store: str, number: int, damage: Damage) -> str:
    """Damage entry `number` (from 0) of model m. Return the name of the log in error messages."""
    if store.startswith("sqlite"):
        path = store.removeprefix("sqlite:///")
        _damage_row(path, number, damage)
        return path
    with redis.Redis.from_url(store) as client:
        _damage_stream(client, number, damage)
    return "ds:{m}:log"


def _damage_row(path: str, number: int, damage: Damage) -> None:
    with sqlite3.connect(path) as db:
        names = ("rowid", "seq", "first_seq", "nonce", "chain", "body")
        rows = db.execute(
            "SELECT entries.rowid, seq, first_seq, nonce, chain, body FROM entries JOIN models"
            " USING (model) WHERE id = 'm' ORDER BY seq"
        ).fetchall()
        entry = dict(zip(names, rows[number], strict=True))
        entry["chain"] = entry["chain"].encode()
        damage(entry)
        db.execute(
            "UPDATE entries SET first_seq = ?, nonce = ?, chain = ?, body = ? WHERE rowid = ?",
            (
                entry["first_seq"],
                entry["nonce"],
                entry["chain"].decode("latin-1"),
                entry["body"],
                entry["rowid"],
            ),
        )
    db.close()


def _damage_stream(client: "redis.Redis", number: int, damage: Damage) -> None:
    """A stream's entries cannot be changed: it is written again."""
    log = "ds:{m}:log"
    entries = client.xrange(log)
    client.delete(log)
    for at, (entry_id, fields) in enumerate(entries):
        if at == number:
            packed = fields[b"e"]
            first, count, _, time_ms, nonce, chain = HEADER.unpack_from(packed)
            body = packed[HEADER.size :]
            entry = {"first_seq": first, "nonce": nonce, "chain": chain, "body": body}
            damage(entry)
            header = HEADER.pack(
                entry["first_seq"],
                count,
                len(entry["body"]),
                time_ms,
                entry["nonce"],
                entry["chain"],
            )
            fields = {b"e": header + entry["body"]}
        client.xadd(log, fields, id=entry_id)


def flip(name: str, bit: int) -> Damage:
    def damage(entry: dict) -> None:
        bits = 8 * len(entry[name])
        entry[name] = flipped(entry[name], bit % bits)

    return damage


def cut(entry: dict) -> None:
    entry["body"] = entry["body"][:-3]


def emptied(entry: dict) -> None:
    entry["body"] = b""


def of_later_version(entry: dict) -> None:
    entry["body"] = b"\x02" + entry["body"][1:]


def begin_earlier(entry: dict) -> None:
    entry["first_seq"] -= 2


def begin_later(entry: dict) -> None:
    entry["first_seq"] += 1


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (flip("body", 300), "at seq 8: the part at byte 0 has a wrong checksum"),
        (cut, "at seq 8: "),
        (emptied, "at seq 8: 0 records instead of 4"),
        (of_later_version, "at seq 8: record version 2"),
        (begin_earlier, "begins at seq 3, but the one before it ends at seq 4"),
        (begin_later, "begins at seq 6, but the one before it ends at seq 4"),
        (flip("nonce", 5), "the journal at seq 8 does not follow from seq 4"),
        (flip("chain", 1), "the journal at seq 8 does not follow from seq 4"),
    ],
)
def test_a_damaged_entry_stops_its_model_alone_and_is_named(serve, store, damage, reason):
    client = serve(store=store)
    for model in ("m", "other"):
        client.put(f"/models/{model}", json=ADULT)
    for first in range(0, 12, 4):
        learn_adult(client, first, first + 4)
    kept: dict = {}
    damage_entry(store, 1, kept.update)
    name = damage_entry(store, 1, damage)

    late = serve(store=store)
    for path in ("", "/metrics", "/predict?x=1:1"):
        got = assert_problem(late.get(f"/models/m{path}"), 503, "unreadable-journal")
        assert name in got["detail"] and reason in got["detail"]
    assert_problem(learn_adult(late, 12, 13), 503, "unreadable-journal")
    verbose = late.get("/readyz?verbose")
    assert verbose.status_code == 200 and verbose.json()["unreadable"].keys() == {"m"}
    assert learn_adult(late, 0, 5, "other").json()["seq"] == 5

    # Who has applied it already goes on from memory, and is right.
    assert learn_adult(client, 12, 14).json()["seq"] == 14
    damage_entry(store, 1, lambda entry: entry.update(kept))
    digest = client.get("/models/m?digest=true").json()["state_digest"]
    assert digest == loaded(store).capture().state_digest()


def damage_head(store: str, of_sqlite: str, of_redis: Callable[[dict[bytes, bytes]], dict]) -> None:
    """Change where the head of model m stands: by SQL, or by what its hash is to have instead."""
    if store.startswith("sqlite"):
        with sqlite3.connect(store.removeprefix("sqlite:///")) as db:
            db.execute(f"UPDATE heads SET {of_sqlite}")
        db.close()
    else:
        with redis.Redis.from_url(store) as at:
            at.hset("ds:{m}:head", mapping=of_redis(at.hgetall("ds:{m}:head")))


def damage_chain(store: str) -> None:
    damage_head(
        store,
        "chain = 'not' || substr(chain, 4)",
        lambda head: {"chain": b"not" + head[b"chain"][3:]},
    )


@pytest.mark.parametrize("snapshot_every", [100, 3], ids=["no snapshot", "behind a snapshot"])
def test_a_damaged_head_is_found_before_anything_is_appended_to_it(
    serve, no_follower, store, snapshot_every
):
    client = serve(store=store, snapshot_every=snapshot_every)
    client.put("/models/m", json=ADULT)
    learn_adult(client, 0, 3)
    learn_adult(client, 3, 4)
    damage_chain(store)
    late = serve(store=store)
    for answer in (late.get("/models/m"), learn_adult(late, 4, 5)):
        got = assert_problem(answer, 503, "unreadable-journal")
        assert "ends at seq 4 with chain not" in got["detail"] and "outcome" not in got
    assert client.get("/models/m").json()["seq"] == 4
    # Who holds it appends, and comes to know.
    got = assert_problem(learn_adult(client, 4, 5), 503, "unreadable-journal")
    assert got["outcome"] == "journalled"


@pytest.mark.parametrize("snapshot_every", [100, 3, 4])
def test_a_head_of_more_than_there_is_is_found(serve, store, snapshot_every):
    client = serve(store=store, snapshot_every=snapshot_every)
    client.put("/models/m", json=ADULT)
    learn_adult(client, 0, 3)
    learn_adult(client, 3, 4)
    damage_head(store, "seq = 9", lambda _: {"seq": b"9"})
    late = serve(store=store)
    for answer in (late.get("/models/m"), learn_adult(late, 4, 5)):
        got = assert_problem(answer, 503, "unreadable-journal")
        assert "ends at seq 4, before its head" in got["detail"] and "outcome" not in got


def test_model_is_evicted_if_its_head_is_beyond_the_entries(store):
    async def scenario() -> None:
        async with serving(store) as registry:
            model, _ = await creation.create(registry, "m", ADULT)
            await model.submit(Request.of(rows(0, 4), None, None))
            damage_head(store, "seq = 9", lambda _: {"seq": b"9"})
            with pytest.raises(NoBase, match="ends at seq 4, before its head"):
                await asyncio.wait_for(model.refresh(), 60.0)
            # Rows appended after that head are lost to every reader of the journal.
            with pytest.raises(Problem, match="before its head") as refusal:
                await registry.get("m")
            assert refusal.value.slug == "unreadable-journal"

    asyncio.run(scenario())


def test_any_bit_of_a_body_is_found(serve, store):
    client = serve(store=store)
    client.put("/models/m", json=ADULT)
    for first in range(0, 12, 4):
        learn_adult(client, first, first + 4, **{"idempotency-key": f"k{first}"})
    chance = random.Random(5)

    async def read() -> str:
        journal = await open_journal(store)
        try:
            await recover(Replica(await journal.get("m"), ALL), journal)
        except Exception as error:
            return str(error)
        finally:
            await journal.close()
        return "nothing found"

    for bit in chance.sample(range(8 * 100), 25):
        damage_entry(store, 2, flip("body", bit))
        assert "the entry at seq 12: " in asyncio.run(read()), bit
        damage_entry(store, 2, flip("body", bit))
    assert asyncio.run(read()) == "nothing found"


def damage_spec(store: str, damage: Callable[[bytes], bytes]) -> str:
    """Change the stored spec of model m. Return its name in error messages."""
    if store.startswith("sqlite"):
        path = store.removeprefix("sqlite:///")
        with sqlite3.connect(path) as db:
            ((spec,),) = db.execute("SELECT spec FROM models WHERE id = 'm'")
            db.execute("UPDATE models SET spec = ? WHERE id = 'm'", (damage(spec),))
        db.close()
        return f"{path}, table models"
    with redis.Redis.from_url(store) as client:
        client.hset("ds:{m}:spec", "spec", damage(client.hget("ds:{m}:spec", "spec")))
    return "ds:{m}:spec"


@pytest.mark.parametrize(
    "damage",
    [
        # One bit, and it is the spec of another model: which is there, or nowhere.
        lambda spec: spec.replace(b'"rho":0.001', b'"rho":0.003'),
        lambda spec: spec.replace(b'"rho":0.001', b'"rho":0.005'),
        lambda spec: spec[:-5],
        lambda spec: b"",
    ],
)
@pytest.mark.parametrize("snapshot_every", [100, 3])
def test_a_damaged_spec_stops_its_model_alone_and_is_named(serve, store, damage, snapshot_every):
    """Rows and snapshots would fit the other spec as well, and their state be another one."""
    client = serve(store=store, snapshot_every=snapshot_every)
    client.put("/models/m", json=ADULT)
    client.put("/models/other", json=ADULT | {"rho": 0.003})
    learn_adult(client, 0, 3)
    learn_adult(client, 3, 4)
    name = damage_spec(store, damage)

    late = serve(store=store)
    for answer in (
        late.get("/models/m"),
        learn_adult(late, 4, 5),
        late.get("/models/m/predict?x=1:1"),
    ):
        got = assert_problem(answer, 503, "unreadable-journal")
        assert f"{name}: the spec is damaged" in got["detail"]
    assert late.get("/readyz?verbose").json()["unreadable"].keys() == {"m"}
    assert learn_adult(late, 0, 5, "other").json()["seq"] == 5
    # A process that loaded it before the damage continues.
    assert learn_adult(client, 4, 5).json()["seq"] == 5


def test_any_bit_of_a_spec_is_found(store):
    async def scenario() -> None:
        journal = await open_journal(store)
        await journal.create("m", *[canonical(resolve_spec(ADULT))] * 2)
        chance = random.Random(6)
        for bit in chance.sample(range(8 * len(canonical(ADULT))), 25):
            damage_spec(store, lambda spec, bit=bit: flipped(spec, bit))
            with pytest.raises(DamagedSpec):
                Replica(await journal.get("m"), ALL)
            damage_spec(store, lambda spec, bit=bit: flipped(spec, bit))
        Replica(await journal.get("m"), ALL)
        await journal.close()

    asyncio.run(scenario())


def test_follower_stops_before_a_damaged_entry(serve, store):
    client = serve(store=store)
    client.put("/models/m", json=ADULT)
    client.put("/models/other", json=ADULT)
    learn_adult(client, 0, 4)

    async def append_damaged() -> None:
        journal = await open_journal(store)
        try:
            record = await journal.get("m")
            (entry,) = await journal.read("m", record.incarnation, 0)
            part = Part(flipped(entry.body, 100), 4)
            await journal.append(AppendRequest("m", record.incarnation, b"n" * 16, 4, [part]))
        finally:
            await journal.close()

    asyncio.run(append_damaged())
    until(lambda: client.get("/models/m").status_code != 200)
    got = assert_problem(client.get("/models/m"), 503, "unreadable-journal")
    assert "the entry at seq 8" in got["detail"]
    assert learn_adult(client, 0, 4, "other").status_code == 200


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda data: b"not a database at all" + data[21:], "file is not a database"),
        (lambda data: data[:-8192], "malformed"),
    ],
)
def test_a_damaged_file_is_named_while_the_service_waits(serve, tmp_path, spoil, reason):
    path = tmp_path / "spoiled.db"
    store = f"sqlite:///{path}"

    async def fill() -> None:
        journal = await open_journal(store)
        await journal.create("m", b"{}" * 40_000, b"{}")
        await journal.close()

    asyncio.run(fill())
    whole = path.read_bytes()
    path.write_bytes(spoil(whole))
    client = serve(store=store, wait=False)
    got = until_reason(client, reason)
    assert str(path) in got["reason"]
    # Once the file is whole again, without a restart.
    path.write_bytes(whole)
    until(lambda: client.get("/readyz").status_code == 200)
