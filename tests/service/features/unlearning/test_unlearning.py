"""DELETE of a sample: the state is without it at once, and soon the store is, whoever dies."""

import asyncio
import sqlite3
import time
from typing import Any

import numpy as np
import pytest

from dualstream.service.features.guard.state import Guarding
from dualstream.service.features.unlearning import cleanup as clean_up
from dualstream.service.features.unlearning.cleanup import UnlearnCleanup
from dualstream.service.journal import open_journal
from dualstream.service.journal.protocol import (
    Conflict,
    JournalUnavailable,
    Limits,
    MissingPosition,
    TooManyVersions,
    Trimmed,
    Version,
)
from dualstream.service.journal.record import KeyKind, make_key
from dualstream.service.models import creation
from dualstream.service.models.registry import ModelRegistry
from dualstream.service.models.versions import roll_back_to_seq, take_version
from dualstream.service.replica.requests import ControlRequest
from dualstream.wire.problem_json import Problem
from tests.service.conftest import assert_problem
from tests.service.features.unlearning.support import (
    SPEC,
    learn,
    of_five,
    registry_on,
    sample,
    unlearning,
)
from tests.service.journal.leftovers import is_in, kept_bytes
from tests.service.support import bits, lose_last_entry, replica_of
from tests.support import PATIENCE_S

PARTS_BYTES = 3 << 20
"""More than two parts of a copy, in any store."""


def mark(id_: str) -> bytes:
    """The bytes of the sample's row in any file."""
    return np.array(sample(id_)["x"]).tobytes()


def unlearn(client, id_: str, model: str = "m"):
    return client.delete(f"/models/{model}/samples/{id_}")


def unlearn_wholly(client, id_: str, model: str = "m") -> dict[str, Any]:
    """Ask until the store is clean."""
    deadline = time.monotonic() + 60
    answer = unlearn(client, id_, model)
    assert answer.status_code in (200, 202), answer.text
    while answer.status_code == 202:
        assert answer.json()["status"] == "cleaning" and time.monotonic() < deadline
        time.sleep(0.005)
        answer = unlearn(client, id_, model)
    assert answer.status_code == 200 and answer.json()["status"] == "done"
    return answer.json()


def test_an_unlearned_sample_leaves_state_and_store(serve, store):
    client, other = serve(store=store, snapshot_every=10), serve(store=store)
    assert client.put("/models/m", json=SPEC).status_code == 201
    for i in range(25):
        client.post("/models/m/learn", json=sample(f"person/{i}"))
    assert is_in(mark("person/22"), kept_bytes(store))
    before = replica_of(client).learner.weights
    got = unlearn_wholly(client, "person/22")
    assert got == {"model": "m", "sample": "person/22", "seq": 26, "status": "done"}
    assert not is_in(mark("person/22"), kept_bytes(store))
    assert is_in(mark("person/23"), kept_bytes(store))
    assert replica_of(client).learner.retained == 19
    assert not np.array_equal(replica_of(client).learner.weights, before)
    # Whoever read of it has the same state, and so has one who starts now.
    assert other.get("/models/m/predict?x=1:1&min_seq=26").json()["seq"] == 26
    assert unlearn(other, "person/22").json() == got
    fresh = serve(store=store)
    assert fresh.get("/models/m").json()["seq"] == 26
    assert bits(replica_of(fresh)) == bits(replica_of(other)) == bits(replica_of(client))
    # A late repetition of the old request is not learned, as its id is still known.
    again = fresh.post("/models/m/learn", json=sample("person/22")).json()
    assert again["duplicate"] is True and again["seq"] == 23
    assert fresh.post("/models/m/learn", json=sample("new")).json()["seq"] == 27
    assert unlearn_wholly(fresh, "new")["seq"] == 28


def test_the_journal_from_before_is_gone(serve, store):
    client = serve(store=store)
    client.put("/models/m", json=SPEC)
    for i in range(5):
        client.post("/models/m/learn", json=sample(str(i)))
    assert unlearn_wholly(client, "1")["seq"] == 6
    client.post("/models/m/learn", json=sample("later"))

    async def look() -> None:
        journal = await open_journal(store)
        try:
            record = await journal.get("m")
            where = ("m", record.incarnation)
            assert [position.seq for position in await journal.snapshots(*where)] == [6]
            assert [entry.seq for entry in await journal.read(*where, 6)] == [7]
            with pytest.raises(Trimmed):
                await journal.read(*where, 5)
        finally:
            await journal.close()

    asyncio.run(look())


def test_there_is_no_way_back_to_before(serve, store):
    client = serve(store=store)
    client.put("/models/m", json=SPEC)
    for i in range(4):
        client.post("/models/m/learn", json=sample(str(i)))
    assert client.post("/models/m/versions", json={"name": "before"}).status_code == 201
    assert unlearn_wholly(client, "1")["seq"] == 5
    after = bits(replica_of(client))
    assert client.post("/models/m/versions", json={"name": "after"}).json()["seq"] == 5
    client.post("/models/m/learn", json=sample("4"))
    assert_problem(
        client.post("/models/m/rollback", json={"version": "before"}), 404, "unknown-version"
    )
    for seq in (0, 3, 4):
        gone = client.post("/models/m/rollback", json={"seq": seq})
        assert_problem(gone, 410, "not-kept")
    got = client.get("/models/m/versions").json()
    assert [version["name"] for version in got["versions"]] == ["after"]
    assert got["kept_from"] == 6
    assert client.post("/models/m/rollback", json={"version": "after"}).status_code == 200
    now = bits(replica_of(client))
    # Of its state differs what was answered, as to the rollback itself.
    assert {n.partition(".")[0] for n in after if now[n] != after[n]} <= {"answers", "outcomes"}
    # What was gone back to knows that the sample was unlearned, too.
    assert unlearn(client, "1").json()["status"] == "done"
    assert unlearn_wholly(client, "2")["seq"] == 8


def test_what_is_known_to_be_forgotten_is_refused_before_the_journal(serve, store, monkeypatch):
    monkeypatch.setattr(clean_up.UnlearnCleanup, "begin", lambda self, delay_s=0.0: None)
    client = serve(store=store)
    client.put("/models/m", json=SPEC)
    for i in range(4):
        client.post("/models/m/learn", json=sample(str(i)))
    client.post("/models/m/versions", json={"name": "before"})
    assert unlearn(client, "1").status_code == 202
    for to in ({"version": "before"}, {"seq": 2}):
        for _ in range(2):  # the key is not used
            fields = {"json": to, "headers": {"idempotency-key": str(to)}}
            got = assert_problem(client.post("/models/m/rollback", **fields), 410, "not-kept")
            assert (got["first"], got["last"]) == (5, 5) and "unlearned at seq 5" in got["detail"]
    assert client.get("/models/m").json()["seq"] == 5


class Late:
    """A journal at which one call arrives after all that is under way."""

    def __init__(self, journal: Any, call: str) -> None:
        self._journal, self._call = journal, call
        self.meanwhile: Any = None

    def __getattr__(self, name: str) -> Any:
        return self._after_all if name == self._call else getattr(self._journal, name)

    async def _after_all(self, *args: Any, **more: Any) -> Any:
        await self.meanwhile()
        return await getattr(self._journal, self._call)(*args, **more)


@pytest.mark.parametrize(
    ("goes_back", "late_call"), [(False, "version_put"), (False, "copy_put"), (True, "copy_put")]
)
def test_nothing_is_kept_of_a_state_that_a_sample_is_unlearned_under(store, goes_back, late_call):
    async def scenario() -> None:
        journal = await open_journal(store)
        try:
            registry = await prepared(store, journal)
            other = registry_on(journal)
            late = Late(journal, late_call)
            model = await registry.get("m")

            async def unlearned_by_another() -> None:
                kept = await other.get("m")
                await kept.submit(ControlRequest.of(unlearning("2")))
                kept.job(UnlearnCleanup).begin()
                await cleaned(other)

            late.meanwhile = unlearned_by_another
            where = ("m", model.record.incarnation)
            if goes_back:
                with pytest.raises(Problem, match="a sample was unlearned at seq"):
                    await roll_back_to_seq(model, late, model.replica.seq, None, b"")
                assert (await journal.get("m")).seq == model.replica.parts.forgotten_seq
            else:
                with pytest.raises(MissingPosition):
                    await take_version(model, late, "w", "")
            assert not await journal.versions(*where)
            assert not await journal.copies(*where, with_partial=True)
            assert not is_in(mark("2"), kept_bytes(store))
            await registry.close()
            await other.close()
        finally:
            await journal.close()

    asyncio.run(scenario())


def test_a_version_that_is_one_too_many_leaves_no_copy(store):
    """But for one that something else names."""

    async def scenario() -> None:
        journal = await open_journal(store, limits=Limits(max_versions=1))
        try:
            registry = registry_on(journal)
            model = await of_five(registry)
            where = ("m", model.record.incarnation)
            first, _ = await take_version(model, journal, "first", "")
            with pytest.raises(TooManyVersions):
                await take_version(model, journal, "second", "")
            assert [copy.digest for copy in await journal.copies(*where)] == [first.digest]
            await learn(model, "5")
            for name, error in (("second", TooManyVersions), ("first", Conflict)):
                with pytest.raises(error):
                    await take_version(model, journal, name, "")
                assert [copy.digest for copy in await journal.copies(*where)] == [first.digest]
            await registry.close()
        finally:
            await journal.close()

    asyncio.run(scenario())


def test_a_rollback_that_does_not_enter_leaves_no_copy(store):
    """Its key was used for another one."""

    async def scenario() -> None:
        journal = await open_journal(store)
        try:
            registry = registry_on(journal)
            model = await of_five(registry)
            where, key = ("m", model.record.incarnation), make_key(KeyKind.REQUEST, "key")
            order, _ = await roll_back_to_seq(model, journal, 3, key, b"to 3")
            for seq, request in ((3, b"to 3"), (2, b"to 2")):
                _, receipt = await roll_back_to_seq(model, journal, seq, key, request)
                assert receipt.position.duplicate or receipt.position.conflict
                assert [copy.digest for copy in await journal.copies(*where)] == [order.digest]
            await registry.close()
        finally:
            await journal.close()

    asyncio.run(scenario())


def test_half_written_copy_is_deleted(store, monkeypatch):
    """Its writer died: it may be of a state that has the sample."""

    async def scenario() -> None:
        journal = await open_journal(store)
        try:
            registry = registry_on(journal)
            model = await of_five(registry)
            where = ("m", model.record.incarnation)
            data = model.replica.capture().encode().data + bytes(PARTS_BYTES)
            name = "_put_copy_part" if store.startswith("sqlite") else "_copy"
            write, parts = getattr(journal, name), []

            async def write_one(*args: Any) -> Any:
                if name == "_put_copy_part" or "part" in args:
                    parts.append(args)
                    if len(parts) > 1:
                        await asyncio.Event().wait()
                return await write(*args)

            with monkeypatch.context() as dying:
                dying.setattr(journal, name, write_one)
                writing = asyncio.create_task(journal.copy_put(*where, data))
                while len(parts) < 2:
                    await asyncio.sleep(0.001)
                assert await journal.copies(*where, with_partial=True)
                writing.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await writing
            assert not await journal.copies(*where)
            await model.submit(ControlRequest.of(unlearning("2")))
            model.job(UnlearnCleanup).begin()
            await cleaned(registry)
            assert not await journal.copies(*where, with_partial=True)
            assert not is_in(mark("2"), kept_bytes(store))
            await registry.close()
        finally:
            await journal.close()

    asyncio.run(scenario())


def test_what_cannot_be_unlearned_is_refused_with_the_reason(serve, store):
    client = serve(store=store)
    client.put("/models/m", json=SPEC)
    for i in range(22):
        client.post("/models/m/learn", json=sample(str(i)))
    client.post("/models/m/learn", json=sample("weightless") | {"weight": 0})
    assert_problem(unlearn(client, "never"), 404, "unknown-sample")
    assert_problem(unlearn(client, "1", "none"), 404, "unknown-model")
    assert_problem(unlearn(client, "x" * 256), 422, "invalid-sample-id")
    for id_, seq in (("1", 2), ("weightless", 23)):
        got = assert_problem(unlearn(client, id_), 409, "sample-not-retained")
        assert f"at seq {seq}," in got["detail"] and "20 retained rows" in got["detail"]
    assert client.get("/models/m").json()["seq"] == 23
    sgd = {"algorithm": "sgd", "features": SPEC["features"]}
    for name, spec in (("sgd", sgd), ("balanced", SPEC | {"scaling": "balanced"})):
        client.put(f"/models/{name}", json=spec)
        client.post(f"/models/{name}/learn", json=sample("1"))
        got = assert_problem(unlearn(client, "1", name), 409, "cannot-unlearn")
        assert name in got["detail"]


class Dying:
    """A journal of a process that dies at its n-th step of a clean-up."""

    STEPS = (
        "snapshot_put", "snapshot_get", "snapshots_drop", "versions", "version_delete", "trim",
        "copies", "copy_get", "copy_delete", "scrub", "append",
    )  # fmt: skip

    def __init__(self, journal: Any) -> None:
        self._journal = journal
        self.left = 10**9
        self.done: list[str] = []

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._journal, name)
        if name not in self.STEPS:
            return method

        async def step(*args: Any, **more: Any) -> Any:
            if self.left <= 0:
                raise JournalUnavailable("planted: dead")
            self.left -= 1
            self.done.append(name)
            return await method(*args, **more)

        return step


async def prepared(store: str, journal: Any) -> ModelRegistry:
    """A model of five samples, with a snapshot, a version and a copy without a name."""
    registry = registry_on(journal)
    if await journal.count():
        await creation.delete(registry, "m")
    model = await of_five(registry)
    await model.snapshots.write()
    where = ("m", model.record.incarnation)
    snapshot = model.replica.capture().encode()
    digest = await journal.copy_put(*where, snapshot.data)
    version = Version("v", snapshot.seq, snapshot.chain, digest, len(snapshot.data))
    await journal.version_put(*where, version)
    await journal.copy_put(*where, snapshot.data + b" ")
    return registry


async def cleaned(registry: ModelRegistry, seq: int = 6) -> Any:
    model = await registry.get("m")
    async with asyncio.timeout(PATIENCE_S):
        while not await model.job(UnlearnCleanup).is_done(seq):
            await asyncio.sleep(0.005)
    return model


def test_a_death_at_any_step_is_made_good_by_the_next_process(store, monkeypatch):
    monkeypatch.setattr(clean_up, "RETRY_S", 0.005)
    monkeypatch.setattr("dualstream.service.features.unlearning.cleanup.LEFT_TO_OTHERS_S", 0.001)

    async def dies_after(steps: int) -> list[str]:
        journal = await open_journal(store)
        dying = Dying(journal)
        try:
            registry = await prepared(store, dying)
            model = await registry.get("m")
            dying.done, dying.left = [], steps + 1  # the control itself comes first
            await model.submit(ControlRequest.of(unlearning("2")))
            model.job(UnlearnCleanup).begin()
            if steps < 1000:
                while dying.left:
                    await asyncio.sleep(0.001)
                await asyncio.sleep(0.01)
                assert not await model.job(UnlearnCleanup).is_done(6)
            else:
                await cleaned(registry)
            expected = bits(model.replica)
            await registry.close()
            done = dying.done
            registry = registry_on(journal)
            model = await cleaned(registry)
            assert bits(model.replica) == expected
            where = ("m", model.record.incarnation)
            assert not await journal.versions(*where) and not await journal.copies(*where)
            await registry.close()
            assert not is_in(mark("2"), kept_bytes(store))
            return done
        finally:
            await journal.close()

    steps = asyncio.run(dies_after(1000))[1:]
    assert set(steps) == set(Dying.STEPS)
    for number in range(len(steps)):
        asyncio.run(dies_after(number))


def test_nothing_is_deleted_before_a_good_snapshot_exists(store, monkeypatch):
    monkeypatch.setattr(clean_up, "RETRY_S", 0.005)

    async def scenario() -> None:
        journal = await open_journal(store)
        damaged = Damaging(journal, 3)
        try:
            registry = await prepared(store, damaged)
            model = await registry.get("m")
            where = ("m", model.record.incarnation)
            await model.submit(ControlRequest.of(unlearning("2")))
            model.job(UnlearnCleanup).begin()
            while damaged.left:
                assert len(await journal.read(*where, 0)) == 6
                assert len(await journal.versions(*where)) == 1
                await asyncio.sleep(0.001)
            await cleaned(registry)
            await registry.close()
            assert bits((await registry_on(journal).get("m")).replica) == bits(model.replica)
            assert not is_in(mark("2"), kept_bytes(store))
        finally:
            await journal.close()

    asyncio.run(scenario())


class Damaging:
    """A journal that keeps some snapshots otherwise than they were written, from the second on."""

    def __init__(self, journal: Any, count: int) -> None:
        self._journal, self.left = journal, count
        self._is_first = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._journal, name)

    async def snapshot_put(self, *args: Any) -> bool:
        *position, data, replaces = args
        if self.left and not self._is_first:
            self.left -= 1
            data = data[:-9] + bytes(9)
        self._is_first = False
        return await self._journal.snapshot_put(*position, data, replaces)


def test_a_clean_up_that_others_overtake_is_done_all_the_same(store, monkeypatch):
    monkeypatch.setattr(clean_up, "RETRY_S", 0.005)

    async def scenario() -> None:
        journal = await open_journal(store)
        try:
            registry = await prepared(store, journal)
            model = await registry.get("m")
            others = [registry_on(journal), registry_on(journal)]
            for other in others:
                await other.get("m")
            await model.submit(ControlRequest.of(unlearning("2")))
            for one in (registry, *others):
                kept = await one.get("m")
                await kept.refresh()
                kept.job(UnlearnCleanup).begin()
            for one in (registry, *others):
                await cleaned(one)
            states = [bits((await one.get("m")).replica) for one in (registry, *others)]
            assert states[0] == states[1] == states[2]
            for one in (registry, *others):
                await one.close()
            assert not is_in(mark("2"), kept_bytes(store))
        finally:
            await journal.close()

    asyncio.run(scenario())


def test_replica_ahead_of_the_store_cleans_it_of_unlearned_rows(tmp_path, monkeypatch):
    """The control comes with a rebuilding, at a seq that the replica had passed before."""
    monkeypatch.setattr("dualstream.service.features.unlearning.cleanup.LEFT_TO_OTHERS_S", 0.001)
    store, path = f"sqlite:///{tmp_path}/lost.db", tmp_path / "lost.db"

    async def scenario() -> None:
        journal = await open_journal(store)
        try:
            registry = registry_on(journal)
            model = await of_five(registry)
            for _ in range(2):
                lose_last_entry(sqlite3.connect(path))
            receipt = await model.submit(ControlRequest.of(unlearning("1")))
            assert receipt.position.seq == model.replica.seq == 4
            assert model.replica.parts.forgotten_seq == 4
            await cleaned(registry, 4)
            await registry.close()
            assert not is_in(mark("1"), kept_bytes(store))
        finally:
            await journal.close()

    asyncio.run(scenario())


def test_close_waits_for_the_clean_up_of_the_last_group(store):
    """The journal is closed next."""

    async def scenario() -> None:
        journal = await open_journal(store)
        try:
            registry = registry_on(journal)
            model = await of_five(registry)
            request = asyncio.create_task(model.submit(ControlRequest.of(unlearning("1"))))
            await asyncio.sleep(0)
            await registry.close()
            assert (await request).position.seq == 6
            assert not model.job(UnlearnCleanup).is_busy
        finally:
            await journal.close()

    asyncio.run(scenario())


def test_guard_copy_is_deleted_after_unlearning(store):
    """Nobody goes back to before that."""
    alarm = {"mode": "pause", "loss": 1.0, "norm": 1.0, "deviations": 0.0}
    alarm |= {"every": 1, "patience": 50, "after": 2, "history": 4}

    async def scenario() -> None:
        journal = await open_journal(store)
        try:
            registry = registry_on(journal)
            model = await of_five(registry, guard=alarm)
            guarding = model.replica.parts.find(Guarding)
            assert guarding is not None and guarding.guard.calm_seq < 5
            await model.submit(ControlRequest.of(unlearning("4")))
            model.job(UnlearnCleanup).begin()
            await cleaned(registry)
            await registry.close()
            assert not is_in(mark("4"), kept_bytes(store))
        finally:
            await journal.close()

    asyncio.run(scenario())


def test_the_store_is_not_clean_where_it_loses_what_it_is_cleaned_by(tmp_path, monkeypatch):
    """A failover to a copy that was behind comes before the journal is let go of."""
    monkeypatch.setattr(clean_up, "RETRY_S", 0.005)
    store, path = f"sqlite:///{tmp_path}/lost.db", tmp_path / "lost.db"

    async def scenario() -> None:
        journal = await open_journal(store)
        try:
            registry = registry_on(journal)
            model = await of_five(registry)
            await model.submit(ControlRequest.of(unlearning("2")))
            await learn(model, "5")
            trim, trimmed = journal.trim, []

            async def lose_and_trim(*args: Any, **more: Any) -> None:
                if not trimmed:
                    lose_last_entry(sqlite3.connect(path))
                    with sqlite3.connect(path) as db:
                        db.execute("DELETE FROM snapshots")
                trimmed.append(await model.job(UnlearnCleanup).is_done(6))
                await trim(*args, **more)

            monkeypatch.setattr(journal, "trim", lose_and_trim)
            model.job(UnlearnCleanup).begin()
            await cleaned(registry)
            assert trimmed == [False, False] and model.replica.seq == 6
            await registry.close()
            assert not is_in(mark("2"), kept_bytes(store))
        finally:
            await journal.close()

    asyncio.run(scenario())
