"""From one store into another: the same to the bit, wherever a run is cut off."""

import asyncio
import json
import os
import random
import time
from contextlib import asynccontextmanager, contextmanager

import msgspec
import pytest
import redis
from starlette.testclient import TestClient
from typer.testing import CliRunner

from service import cli
from service.app import create_app
from service.journal import open_journal
from service.journal.protocol import (
    AppendRequest,
    Change,
    CursorMove,
    JournalUnavailable,
    ModelChanged,
    Part,
    Place,
    ToRemember,
    Trimmed,
    UnknownModel,
    Version,
)
from service.journal.record import encode_rows
from service.journal.redis.keys import keys_of
from service.journal.redis.records import MODELS, WAITING
from service.migration import Mover, Refused, migrate, run_migration
from service.replica import Replica
from service.settings import MOST_AUDIT_DAYS, Settings
from tests.journal.groups import request, rows
from tests.journal.leftovers import kept_bytes
from tests.service.conftest import SPEC

MEMBERS = [{"name": "dual", "algorithm": "dual_ascent"}, {"name": "steps", "algorithm": "sgd"}]
FEATURES = {"kind": "hashed", "bits": 10}
NAMED = {"algorithm": "portfolio", "features": FEATURES, "members": MEMBERS, "retain": 50}
SECRET = b"the sample that was unlearned"
WRITES = (
    "adopt_identity",
    "claim_identity",
    "stage",
    "stage_entries",
    "stage_keys",
    "stage_rows",
    "stage_rest",
    "put_changes",
    "unstage",
    "copy_put",
    "version_put",
    "snapshot_put",
)


class Killed(Exception):
    """The process ends here."""


@pytest.fixture(params=["sqlite-redis", "redis-sqlite", "sqlite-sqlite", "redis-redis"])
def stores(request, tmp_path):
    """The URLs of two empty stores."""
    urls = []
    for number, kind in enumerate(request.param.split("-")):
        if kind == "sqlite":
            urls.append(f"sqlite:///{tmp_path / f'{number}.db'}")
            continue
        server = request.getfixturevalue("redis_server")
        urls.append(f"redis://127.0.0.1:{server.port}/{number}")
        with redis.Redis.from_url(urls[-1]) as client:
            client.flushall()
    return urls


@asynccontextmanager
async def opened(*urls):
    journals = [await open_journal(url) for url in urls]
    try:
        yield journals
    finally:
        for journal in journals:
            await journal.close()


@contextmanager
def served(url):
    """A client of a server that is stopped afterwards."""
    with TestClient(create_app(Settings(store=url, snapshot_every=20))) as client:
        deadline = time.monotonic() + 30
        while client.get("/readyz").status_code != 200:
            assert time.monotonic() < deadline, client.get("/readyz").text
            time.sleep(0.01)
        yield client


def learned(url) -> None:
    """Three models: with ids, keys, a snapshot; with names, controls, a row that waits; empty."""
    with served(url) as client:
        client.put("/models/ids", json=SPEC).raise_for_status()
        for number in range(30):
            samples = [{"x": [number, 0, 1, 0, 2], "y": number % 2, "id": f"a{number}"}]
            learn(client, "ids", samples, f"request {number}")
        client.put("/models/names", json=NAMED).raise_for_status()
        for number in range(10):
            samples = [{"x": {"city": f"c{number}", "age": number}, "y": number % 2}] * 3
            learn(client, "names", samples, f"request {number}")
        new = {"name": "new", "algorithm": "perceptron"}
        client.post("/models/names/members", json=new).raise_for_status()
        learn(client, "names", [{"x": {"city": "c1"}, "y": 1}], "the last one")
        client.post("/models/names/versions", json={"name": "monday"}).raise_for_status()
        client.post("/models/names/rollback", json={"version": "monday"}).raise_for_status()
        waits = {"x": {"city": "c2"}, "id": "late"}
        client.post("/models/names/predict?remember=true", json=waits).raise_for_status()
        client.put("/models/gone", json=SPEC).raise_for_status()
        client.delete("/models/gone").raise_for_status()
        client.put("/models/empty", json=SPEC).raise_for_status()
    asyncio.run(named_and_trimmed(url))


def learn(client, model: str, samples: list, key: str):
    headers = {"Idempotency-Key": key}
    answer = client.post(f"/models/{model}/learn", json={"samples": samples}, headers=headers)
    answer.raise_for_status()
    return answer


async def named_and_trimmed(url: str) -> None:
    """A version, a cursor, and a log that does not begin at its beginning any more."""
    async with opened(url) as [journal]:
        ids = await journal.get("ids")
        snapshot = await journal.snapshot_get("ids", ids.incarnation)
        digest = await journal.copy_put("ids", ids.incarnation, snapshot.data)
        of = (snapshot.seq, snapshot.chain, digest, len(snapshot.data))
        await journal.version_put("ids", ids.incarnation, Version("v1", *of, note="a note"))
        await journal.trim("ids", ids.incarnation, snapshot.seq - 1)


async def grown(journal, model: str, *texts: bytes):
    """The model with an entry more for each text, made where there is none."""
    record, _ = await journal.create(model, b"{}", b"{}")
    for text in texts:
        parts = [Part(text, 1)]
        await journal.append(AppendRequest(model, record.incarnation, os.urandom(16), 10**9, parts))
    return await journal.get(model)


async def everything(journal, model: str) -> dict:
    """All that a store keeps of a model."""
    record = await journal.get(model)
    own = (model, record.incarnation)
    after = 0
    try:
        await journal.read(*own, 0)
    except Trimmed as trimmed:
        after = trimmed.kept_from - 1
    entries = []
    while page := await journal.read(*own, entries[-1].seq if entries else after):
        entries += page
    keys, at = [], 0
    while at is not None:
        some, at = await journal.kept_keys(*own, at)
        keys += some
    waiting, at = await journal.kept_rows(*own, 0)
    assert at is None or not (await journal.kept_rows(*own, at))[0]
    snapshots = [await journal.snapshot_get(*own, n) for n in (0, 1)]
    copies = await journal.copies(*own)
    return {
        "record": record,
        "trimmed": after,
        "entries": entries,
        "keys": keys,
        "appends": await journal.kept_appends(*own),
        "cursors": await journal.cursors(*own),
        "waiting": list(waiting),
        "snapshots": [found and (found.seq, found.chain, found.data) for found in snapshots],
        "copies": [(c, await journal.copy_get(*own, c.digest)) for c in copies],
        "uses": list(await journal.copy_uses(*own)),
        "versions": list(await journal.versions(*own)),
    }


async def changes(journal) -> list:
    """The log of changes, but for places, which are each store's own."""
    found = await journal.audit(limit=1000)
    return [msgspec.structs.replace(one, place="") for one in found]


async def bits(journal, model: str) -> dict[str, bytes]:
    """What a server that starts on the store computes."""
    replica = Replica(await journal.get(model))
    await replica.load(journal)
    return {name: array.tobytes() for name, array in replica.capture().arrays.items()}


class Cut:
    """A journal in which the process ends at the `at`-th write, before it or just after."""

    def __init__(self, journal, at: int, is_after: bool) -> None:
        self._journal, self._left, self._is_after = journal, at, is_after

    def __getattr__(self, name):
        method = getattr(self._journal, name)
        if name not in WRITES:
            return method

        async def counted(*given):
            self._left -= 1
            if self._left < 0 and not self._is_after:
                raise Killed
            answer = await method(*given)
            if self._left < 0:
                raise Killed
            return answer

        return counted


def test_cut_off_anywhere_it_goes_on_to_the_same_bits(stores, monkeypatch):
    monkeypatch.setattr("service.migration.READ_BYTES", 1)  # an entry at a time
    of, to = stores
    learned(of)
    chance = random.Random(5)

    async def run() -> int:
        async with opened(of, to) as (source, target):
            before = {model: await everything(source, model) for model in ("empty", "ids", "names")}
            cuts = 0
            while True:
                cut = Cut(target, chance.randint(0, 14), chance.random() < 0.5)
                try:
                    moved = await migrate(source, cut)
                    break
                except Killed:
                    cuts += 1
                    for record in await target.list():  # what is seen is whole
                        assert await everything(target, record.id) == before[record.id]
            assert [done.model for done in moved] == list(before)
            assert {done.model: done.seq for done in moved} == {"empty": 0, "ids": 30, "names": 33}
            for model, kept in before.items():
                assert await everything(target, model) == kept
                assert await everything(source, model) == kept
                assert await bits(target, model) == await bits(source, model)
            assert await target.identity() == await source.identity()
            told = await changes(source)
            names = ["create", "member_add", "version", "rollback"]
            actions = ["create", *names, "create", "delete", "create"]
            assert [one.change.action for one in told] == actions
            assert await changes(target) == told
            assert all(done.was_there for done in await migrate(source, target))
            assert await changes(target) == told
            return cuts

    assert asyncio.run(run()) > 4
    # A fresh server goes on there, and knows what was learned
    with served(to) as client, served(of) as old:
        first = learn(client, "ids", [{"x": [29, 0, 1, 0, 2], "y": 1, "id": "a29"}], "request 29")
        assert first.headers["Idempotency-Replayed"] == "true"
        samples = [{"x": [28, 0, 1, 0, 2], "y": 0, "id": "a28"}]
        again = learn(client, "ids", samples, "another key").json()
        assert again["duplicates"] == [{"index": 0, "seq": 29}]
        members = [each.get("/models/names/members").json() for each in (client, old)]
        assert members[0] == members[1]


def test_a_server_that_takes_the_targets_place_is_not_gone_on_with(
    redis_server, tmp_path, monkeypatch
):
    """It may lack what the other one had acknowledged: here the snapshots of a trimmed log."""
    of, to = f"sqlite:///{tmp_path / 'of.db'}", redis_server.url
    true = Mover._move_keys

    async def behind_a_failover(self, staged):
        if self._record.id == "ids" and not failed_over:
            with redis.Redis.from_url(to) as target:
                target.delete(*target.keys("ds:{ids}:snap*"))
                target.execute_command("CLIENT", "KILL", "TYPE", "normal")
            failed_over.append(self)
        await true(self, staged)

    async def compared() -> None:
        async with opened(of, to) as (source, target):
            for model in ("empty", "ids", "names"):
                assert await everything(target, model) == await everything(source, model)
                assert await bits(target, model) == await bits(source, model)
            rows = [await journal.awaiting_labels() for journal in (source, target)]
            assert [(found.model, found.rows) for found in rows[1]] == [("names", 1)]
            assert [found.rows for found in rows[0]] == [1]
            assert await changes(target) == await changes(source)

    failed_over = []
    learned(of)
    with redis.Redis.from_url(to) as target:
        target.flushall()
        monkeypatch.setattr(Mover, "_move_keys", behind_a_failover)
        with pytest.raises(JournalUnavailable, match="run this again"):
            asyncio.run(run_migration(of, to))
        assert failed_over and target.zrange(MODELS, 0, -1) == [b"empty"]
        asyncio.run(run_migration(of, to))
        asyncio.run(compared())
        # One that is there whole is missed on the lists beside it, of other slots.
        target.delete(MODELS, WAITING)
        asyncio.run(run_migration(of, to))
        asyncio.run(compared())


def test_target_with_other_models_is_refused_untouched(stores):
    of, to = stores

    async def run() -> None:
        async with opened(of, to) as (source, target):
            for name in ("a", "b"):
                record, _ = await source.create(name, b"{}", b"{}")
            other, _ = await target.create("b", b"{}", b"{}")
            with pytest.raises(Refused, match="another model 'b'"):
                await migrate(source, target)
            assert await target.list() == [other]
            await target.delete("b")
            # One that has gone on by itself is not taken back
            await migrate(source, target)
            part = Part(encode_rows([0, 1], [3], [1.0], [1.0]), 1)
            await target.append("b", record.incarnation, os.urandom(16), 0, [part])
            with pytest.raises(Refused, match="gone on by itself"):
                await migrate(source, target)
            await target.delete("b")
            # Nor are states of another kind of machine taken in
            await source.adopt_identity("one")
            await target.adopt_identity("two")
            with pytest.raises(Refused, match="'one', the target's as 'two'"):
                await migrate(source, target)
            with pytest.raises(UnknownModel):
                await target.get("b")

    asyncio.run(run())


@pytest.mark.parametrize("is_trimmed", [False, True])
def test_target_that_was_left_behind_after_it_had_learned_on_is_refused_untouched(
    stores, is_trimmed
):
    async def run() -> None:
        async with opened(*stores) as (source, target):
            await grown(source, "m", b"1")
            await migrate(source, target)
            await grown(target, "m", b"acknowledged")
            await grown(source, "a", b"1")
            record = await grown(source, "m", b"2", b"3", b"4")
            if is_trimmed:
                await source.snapshot_put("m", record.incarnation, 4, record.chain, b"state")
                await source.trim("m", record.incarnation, 4)
            kept = await everything(target, "m")
            for _ in range(2):
                with pytest.raises(Refused, match="delete it" if is_trimmed else "by itself"):
                    await migrate(source, target)
                assert await everything(target, "m") == kept
                assert [found.id for found in await target.list()] == ["m"]
            # Once it is gone, there is room
            await target.delete("m")
            await migrate(source, target)
            for model in ("a", "m"):
                assert await everything(target, model) == await everything(source, model)

    asyncio.run(run())


def test_target_that_is_served_meanwhile_loses_nothing_that_it_acknowledged(stores, monkeypatch):
    of, to = stores

    async def run() -> None:
        async with opened(of, to, to) as (source, target, server):
            record = await grown(source, "m", b"1")
            await migrate(source, target)
            await grown(source, "m", b"2")
            staged, refused = target.stage_entries, []

            async def written_to(*given):
                parts = [Part(b"late", 1)]
                with pytest.raises(ModelChanged):
                    await server.append("m", record.incarnation, os.urandom(16), 1, parts)
                refused.append(parts)
                await staged(*given)

            # Once it is staged nobody writes to it
            monkeypatch.setattr(target, "stage_entries", written_to)
            await migrate(source, target)
            assert refused
            assert await everything(target, "m") == await everything(source, "m")
            monkeypatch.undo()
            # What is written just before keeps it from being staged
            await grown(source, "m", b"3")
            stage = target.stage

            async def late(*given, **named):
                await grown(server, "m", b"acknowledged")
                return await stage(*given, **named)

            monkeypatch.setattr(target, "stage", late)
            with pytest.raises(Refused, match="gone on by itself meanwhile"):
                await migrate(source, target)
            monkeypatch.undo()
            kept = await everything(target, "m")
            assert [entry.body for entry in kept["entries"]] == [b"1", b"2", b"acknowledged"]
            assert await target.list() == [kept["record"]]

    asyncio.run(run())


@pytest.mark.parametrize("learned_since", [(), (b"other 2",), (b"other 2", b"3", b"4")])
def test_what_the_source_has_lost_since_does_not_stand_in_the_way(
    stores, monkeypatch, learned_since
):
    async def run() -> None:
        async with opened(*stores) as (source, target):
            record = await grown(source, "m", b"1", b"2")
            own = "m", record.incarnation
            [first, _] = await source.read(*own, 0)
            appends = await source.kept_appends(*own)

            async def killed(*given):
                raise Killed

            monkeypatch.setattr(target, "stage_rest", killed)
            with pytest.raises(Killed):
                await migrate(source, target)
            monkeypatch.undo()
            # As after a failover of the source: it ends before, and goes on from there
            staged = await source.stage(record, 0, Place(record.seq, record.chain), is_anew=True)
            await source.stage_entries(*staged.own, [first], [])
            await source.stage_rest(*staged.own, appends[:1], {})
            end = msgspec.structs.replace(record, seq=1, chain=first.chain)
            await source.unstage(end)
            await grown(source, "m", *learned_since)
            await migrate(source, target)
            assert await everything(target, "m") == await everything(source, "m")

    asyncio.run(run())


class Cleaned:
    """A model with an unlearned sample, and what `service.clean_up` does, in two halves."""

    async def make(self, journal) -> None:
        self.journal = journal
        record = await grown(journal, "m", SECRET)
        self.own = "m", record.incarnation
        await journal.snapshot_put(*self.own, 1, record.chain, b"state with " + SECRET)
        digest = await journal.copy_put(*self.own, b"copy with " + SECRET)
        await journal.version_put(*self.own, Version("v1", 1, record.chain, digest, 28))
        self.unnamed = await journal.copy_put(*self.own, b"another copy with " + SECRET)
        self.record = await grown(journal, "m", b"unlearn it")

    async def begin(self) -> None:
        await self.journal.snapshot_put(*self.own, 2, self.record.chain, b"clean state")
        await self.journal.snapshots_drop(*self.own, 2)
        await self.journal.trim(*self.own, 2, behind=0)

    async def end(self) -> None:
        await self.journal.version_delete(*self.own, "v1")
        await self.journal.copy_delete(*self.own, self.unnamed)
        assert await self.journal.scrub(*self.own)
        move = CursorMove("unlearned", None, "2")
        await self.journal.append(AppendRequest(*self.own, os.urandom(16), 2, (), move))


@pytest.mark.parametrize(
    "between", ["two runs", "two halves and runs", "entries and cursors", "two whole runs"]
)
def test_what_was_unlearned_does_not_come_along_with_the_word_that_it_is_gone(
    stores, monkeypatch, between
):
    true, cleaned = Mover._move_keys, Cleaned()

    async def begun_again(self, staged):
        monkeypatch.undo()
        if between != "entries and cursors":
            raise Killed
        await cleaned.begin()
        await cleaned.end()
        await true(self, staged)

    async def run() -> None:
        async with opened(*stores) as (source, target):
            await cleaned.make(source)
            if between == "two whole runs":
                await migrate(source, target)
                await cleaned.begin()
                await cleaned.end()
            monkeypatch.setattr(Mover, "_move_keys", begun_again)
            if between == "two halves and runs":
                await cleaned.begin()
            if between.endswith(" runs"):
                with pytest.raises(Killed):
                    await migrate(source, target)
                if between == "two runs":
                    await cleaned.begin()
                if between != "two whole runs":
                    await cleaned.end()
            await migrate(source, target)
            kept = await everything(target, "m")
            assert kept == await everything(source, "m")
            assert kept["cursors"] == {"unlearned": "2"} and SECRET not in str(kept).encode()
            await target.settle()
            assert SECRET not in kept_bytes(stores[1])

    asyncio.run(run())


class Besides:
    """All that is written of a model without an entry, a bit more each time."""

    def __init__(self, journal, record) -> None:
        self.journal, self.place = journal, (record.seq, record.chain)
        self.own, self.count = (record.id, record.incarnation), 0

    async def remember(self) -> None:
        await self.journal.remember(*self.own, [ToRemember(b"\4late%d" % self.count, b"a row")])

    async def name(self) -> None:
        digest = await self.journal.copy_put(*self.own, b"state %d" % self.count)
        version = Version(f"v{self.count}", *self.place, digest, 7)
        await self.journal.version_put(*self.own, version)

    async def rename(self) -> None:
        for version in await self.journal.versions(*self.own):
            await self.journal.version_delete(*self.own, version.name)
        await self.name()

    async def move(self) -> None:
        before = await self.journal.cursor(*self.own, "a cursor")
        move = CursorMove("a cursor", before, str(self.count))
        await self.journal.append(AppendRequest(*self.own, os.urandom(16), self.place[0], (), move))

    async def repeat(self) -> None:
        parts = request(f"key {self.count}", rows(1, id="id"))
        await self.journal.append(AppendRequest(*self.own, os.urandom(16), self.place[0], parts))

    async def keep(self) -> None:
        data = b"state %d" % self.count
        await self.journal.snapshot_put(*self.own, *self.place, data, replaces=self.count > 0)

    async def all_of(self, *which: str) -> None:
        for name in which or BESIDES:
            await getattr(self, name)()
        self.count += 1


BESIDES = ("remember", "name", "move", "repeat", "rename")


async def beside_of(journal, model: str) -> Besides:
    record, _ = await journal.create(model, b"{}", b"{}")
    await journal.append(
        AppendRequest(model, record.incarnation, os.urandom(16), 0, [rows(1, id="id")])
    )
    return Besides(journal, await journal.get(model))


@pytest.mark.parametrize("what", [*BESIDES, "keep", "all_of"])
def test_what_comes_without_an_entry_between_two_runs_is_brought_over(stores, monkeypatch, what):
    async def run() -> None:
        async with opened(*stores) as (source, target):
            written = await beside_of(source, "m")
            await written.all_of()
            await grown(source, "n", b"1")
            shown = target.unstage

            async def late(record):
                await shown(record)
                if record.id == "m":
                    await grown(source, "n", b"another")
                    await written.all_of(*([] if what == "all_of" else [what]))

            monkeypatch.setattr(target, "unstage", late)
            with pytest.raises(Refused, match=r"being written \(m\)"):
                await migrate(source, target)
            monkeypatch.undo()
            # All that is said to be needed is to run it again
            done = await migrate(source, target)
            assert [(one.model, one.entries, one.was_there) for one in done] == [
                ("m", 0, False),
                ("n", 0, True),
            ]
            for model in ("m", "n"):
                assert await everything(target, model) == await everything(source, model)
            assert all(one.was_there for one in await migrate(source, target))

    asyncio.run(run())


def test_what_comes_without_an_entry_while_it_is_copied_comes_along(stores, monkeypatch):
    true = Mover._move_rows

    async def run() -> None:
        async with opened(*stores) as (source, target):
            written = await beside_of(source, "m")

            async def late(self, staged):
                await true(self, staged)
                if written.count < times:
                    await written.all_of()

            monkeypatch.setattr(Mover, "_move_rows", late)
            times = 2
            await migrate(source, target)
            assert await everything(target, "m") == await everything(source, "m")
            await target.delete("m")
            times = 1000
            with pytest.raises(Refused, match="'m' is being written"):
                await migrate(source, target)

    asyncio.run(run())


@pytest.mark.parametrize("what", ["remember", "name", "move"])
@pytest.mark.parametrize("learned", [False, True])
def test_what_the_target_acknowledged_without_an_entry_is_not_taken_back(stores, what, learned):
    async def run() -> None:
        async with opened(*stores) as (source, target):
            written = await beside_of(source, "m")
            await written.all_of()
            await migrate(source, target)
            served = Besides(target, await target.get("m"))
            served.count = 10
            await served.all_of(what)
            kept = await everything(target, "m")
            assert [one.was_there for one in await migrate(source, target)] == [True]
            assert await everything(target, "m") == kept
            # Now that both have something of their own nobody can bring them together
            if learned:
                await grown(source, "m", b"1")
            else:
                await written.all_of()
            with pytest.raises(Refused, match="gone on by itself: its versions"):
                await migrate(source, target)
            assert await everything(target, "m") == kept

    asyncio.run(run())


def test_keys_that_expire_meanwhile_are_no_writing(redis_server, tmp_path, monkeypatch):
    to, of = f"sqlite:///{tmp_path / 'to.db'}", redis_server.url
    expired = (b"keys", b"keyq", b"nonces", b"nonceq")

    async def run() -> None:
        with redis.Redis.from_url(of) as client:
            client.flushall()
            async with opened(of, to) as (source, target):
                written = await beside_of(source, "m")
                await written.all_of()
                shown = target.unstage

                async def late(record):
                    await shown(record)
                    client.delete(*(keys_of("m").prefix + name for name in expired))

                monkeypatch.setattr(target, "unstage", late)
                assert [one.was_there for one in await migrate(source, target)] == [False]
                assert [one.was_there for one in await migrate(source, target)] == [True]

    asyncio.run(run())


def test_source_that_is_written_meanwhile_is_told_and_caught_up_with(stores, monkeypatch):
    of, to = stores
    part = Part(encode_rows([0, 1], [3], [1.0], [1.0]), 1)

    async def run() -> None:
        async with opened(of, to) as (source, target):
            first, _ = await source.create("a", b"{}", b"{}")
            await source.create("b", b"{}", b"{}")

            async def append(line: str = "") -> None:
                await source.append("a", first.incarnation, os.urandom(16), 10**9, [part])

            await append()
            shown = target.unstage

            async def late(record):
                await shown(record)
                if record.id == "a":
                    await append()

            monkeypatch.setattr(target, "unstage", late)
            with pytest.raises(Refused, match=r"being written \(a\)"):
                await migrate(source, target)
            monkeypatch.undo()
            staged = target.stage_rest

            async def busy(*given):
                await append()
                await staged(*given)

            monkeypatch.setattr(target, "stage_rest", busy)
            with pytest.raises(Refused, match="'a' is being written"):
                await migrate(source, target)
            monkeypatch.undo()
            moved = await migrate(source, target)
            assert [(done.model, done.was_there) for done in moved] == [("a", False), ("b", True)]
            assert await everything(target, "a") == await everything(source, "a")

    asyncio.run(run())


def test_command_copies_a_store_and_says_so(tmp_path):
    of, to = (f"sqlite:///{tmp_path / name}.db" for name in ("of", "to"))
    with served(of) as client:
        client.put("/models/m", json=SPEC).raise_for_status()
        client.post("/models/m/learn", json={"x": [1, 0, 0, 0, 0], "y": 1}).raise_for_status()
    run = CliRunner().invoke(cli.app, ["migrate", "--from", of, "--to", to])
    assert run.exit_code == 0, run.output
    assert "1/1 m: 1 entries copied, up to seq 1" in run.output
    run = CliRunner().invoke(cli.app, ["migrate", "--from", of, "--to", to, "--json"])
    told = [{"model": "m", "seq": 1, "entries": 0, "was_there": True}]
    assert json.loads(run.output) == {"models": told}
    for wrong in (["--from", of, "--to", of], ["--from", f"{of}x", "--to", to]):
        refused = CliRunner().invoke(cli.app, ["migrate", *wrong])
        assert refused.exit_code == 2 and (
            "the same" in refused.output or "no file" in refused.output
        )


def test_keys_stay_as_long_as_any_server_may_keep_them(redis_server, tmp_path):
    of, to = f"sqlite:///{tmp_path / 'of.db'}", redis_server.url
    with served(of) as client, redis.Redis.from_url(to) as target:
        target.flushall()
        client.put("/models/m", json=SPEC).raise_for_status()
        learn(client, "m", [{"x": [1, 0, 0, 0, 0], "y": 1}], "a key")
        asyncio.run(run_migration(of, to))
        own = keys_of("m")
        for kept in (own.keys, own.prefix + b"keyq"):  # of an idle model all of them go at once
            assert target.ttl(kept) > 300 * 86400


def test_a_target_that_had_the_id_before_lacks_no_change(stores):
    async def run() -> None:
        async with opened(*stores) as (source, target):
            await source.create("m", b"{}", b"{}", Change("create"))
            old = await changes(source)
            await until_later(old[-1].time_ms)
            await target.create("m", b"{}", b"{}", Change("create", key="of the target"))
            await target.delete("m", None, Change("delete", key="of the target"))
            own = await changes(target)
            await until_later(own[-1].time_ms)
            await grown(source, "m", b"1")
            await source.create("n", b"{}", b"{}", Change("create"))
            for _ in range(2):
                await migrate(source, target)
                assert await changes(target) == [*old, *own, *(await changes(source))[1:]]

    asyncio.run(run())


async def until_later(time_ms: int) -> None:
    """Return once the clock shows a later time."""
    while time.time_ns() // 1_000_000 <= time_ms:
        await asyncio.sleep(0.001)


def test_changes_stay_as_long_as_any_server_may_keep_them(redis_server, tmp_path):
    of, to = f"sqlite:///{tmp_path / 'of.db'}", redis_server.url
    with served(of) as client, redis.Redis.from_url(to) as target:
        target.flushall()
        client.put("/models/gone", json=SPEC).raise_for_status()
        client.delete("/models/gone").raise_for_status()
        asyncio.run(run_migration(of, to))
        most_s = MOST_AUDIT_DAYS * 86400
        assert most_s - 60 < target.ttl(keys_of("gone").audit) <= most_s


def test_rows_that_wait_find_their_labels_in_the_other_store(stores):
    of, to = stores
    with served(of) as client:
        client.put("/models/m", json=SPEC).raise_for_status()
        samples = [{"x": [n, 1, 0, 0, 0], "id": f"i{n}"} for n in range(300)]
        asked = {"params": {"remember": "true"}, "json": {"samples": samples}}
        client.post("/models/m/predict", **asked).raise_for_status()
    asyncio.run(moved(of, to))
    with served(to) as client:
        labels = [{"id": f"i{n}", "y": n % 2} for n in range(300)]
        told = client.post("/models/m/labels", json={"labels": labels}).json()
        assert (told["count"], told["rejected"]) == (300, 0)
        assert client.portal.call(client.app._catalog.journal.awaiting_labels) == []


async def moved(of, to) -> None:
    async with opened(of, to) as (source, target):
        await migrate(source, target)
        rows = [(await j.awaiting_labels())[0].rows for j in (source, target)]
        assert rows == [300, 300]
