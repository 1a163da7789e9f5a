"""Models that left memory learn before they are read: their journal comes with the append."""

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

import service.model as model_module
from service.catalog import Catalog
from service.codecs.door import DEFAULT_LIMITS
from service.demo.server_process import ServerProcess
from service.errors import Problem
from service.journal import open_journal
from service.journal.protocol import (
    AppendRequest,
    JournalUnavailable,
    ModelChanged,
    ModelRecord,
    OutcomeUnknown,
    Part,
)
from service.journal.record import encode_control
from service.known_specs import KnownSpec
from service.memory import bytes_of
from service.replica import Replica
from service.requests import Request
from service.unread import Kept, Left, Unread
from solvers import FixedSpec, resolve_spec
from tests.service.conftest import assert_problem
from tests.service.snapshots import bits
from tests.service.test_many_models import ADULT, bits_of, create, learn, leave, rows, serving

pytestmark = pytest.mark.usefixtures("never_bare")
WIDER = ADULT | {"features": {"kind": "indexed", "dim": 200}}
OTHERS = ["x", "y"]
SPEC = KnownSpec(FixedSpec(resolve_spec(ADULT)), 0, DEFAULT_LIMITS)


class Asked:
    """Which calls of a catalog's journal were made since they were last looked at."""

    def __init__(self, catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
        self._calls: list[str] = []
        for name in ("append", "base", "get", "read", "snapshot_get"):
            monkeypatch.setattr(catalog.journal, name, self._noted(catalog.journal, name))

    def _noted(self, journal: Any, name: str) -> Any:
        call = getattr(journal, name)

        async def noted(*given: Any, **more: Any) -> Any:
            self._calls.append(name)
            return await call(*given, **more)

        return noted

    def since(self) -> list[str]:
        calls, self._calls[:] = list(self._calls), []
        return calls


async def gone(catalog: Catalog, length: int = 300) -> None:
    """A model that has learned so many rows, and is out of memory."""
    await create(catalog, ["m", *OTHERS])
    await learn(catalog, "m", rows(0, length))
    await leave(catalog, "m", OTHERS)


async def replayed(catalog: Catalog) -> dict[str, bytes]:
    """The bits of the journal, read by somebody else."""
    replica = Replica(await catalog.journal.get("m"))
    await replica.catch_up(catalog.journal)
    return bits(replica)


def test_what_it_is_made_of_comes_with_the_append(store, monkeypatch):
    async def scenario() -> None:
        async with serving(store, models_held=2) as catalog:
            await gone(catalog)
            asked = Asked(catalog, monkeypatch)
            receipt = await learn(catalog, "m", rows(300, 301))
            assert asked.since() == ["append"]
            assert receipt.placed.seq == 301
            model = catalog.find("m")
            assert model is not None and bits(model.replica) == await replayed(catalog)
            # It is scored by what was learned before it.
            before = Replica(await catalog.journal.get("m"))
            learner = before.learner
            learner.learn(rows(0, 300))
            assert receipt.scores[0] == learner.predict(rows(300, 301))[0]

    asyncio.run(scenario())


def test_a_server_that_starts_knows_the_models_of_the_store(store, monkeypatch):
    async def scenario() -> None:
        async with serving(store) as catalog:
            await create(catalog, ["m", *OTHERS])
            await learn(catalog, "m", rows(0, 50))
        async with serving(store, models_held=2) as catalog:
            monkeypatch.setattr("service.catalog.LOADED_AT_START", 0)
            await catalog.prepare()
            asked = Asked(catalog, monkeypatch)
            assert (await learn(catalog, "m", rows(50, 51), "key")).placed.seq == 51
            # and it is known by its key, once it is there as well as when it is not
            for _ in range(2):
                again = await learn(catalog, "m", rows(50, 51), "key")
                assert again.placed.duplicate and again.answer.seq == 51
                assert asked.since().count("base") == 0
                await leave(catalog, "m", OTHERS)
                asked.since()

    asyncio.run(scenario())


def test_who_asks_for_it_meanwhile_waits_for_it_and_who_learns_joins(store, monkeypatch):
    async def scenario() -> None:
        async with serving(store, models_held=2) as catalog:
            await gone(catalog)
            asked = Asked(catalog, monkeypatch)
            learning = [asyncio.create_task(learn(catalog, "m", rows(300, 301)))]
            await asyncio.sleep(0)
            learning.append(asyncio.create_task(learn(catalog, "m", rows(301, 302))))
            asking = asyncio.create_task(catalog.get("m"))
            receipts = await asyncio.gather(*learning)
            model = await asking
            assert {receipt.placed.seq for receipt in receipts} == {301, 302}
            assert model is catalog.find("m") and model.replica.seq >= 301
            assert set(asked.since()) == {"append"}
            assert bits(model.replica) == await replayed(catalog)

    asyncio.run(scenario())


def test_what_it_took_is_known_until_it_has_grown(store, monkeypatch):
    """So the budget holds as if it were measured each time that it comes."""
    measured = []

    def counted(*of: Any) -> int:
        measured.append(of)
        return bytes_of(*of)

    async def scenario() -> None:
        async with serving(store, models_held=2) as catalog, serving(store) as other:
            await gone(catalog)
            monkeypatch.setattr(model_module, "bytes_of", counted)

            async def comes_by(first: int, last: int) -> int:
                """How often it is measured as it comes for these rows."""
                await leave(catalog, "m", OTHERS)
                measured.clear()
                await learn(catalog, "m", rows(first, last))
                model = catalog.find("m")
                assert model is not None and model.replica.seq == last
                times = sum(of[0] is model.replica.learner for of in measured)
                assert catalog.held_bytes == sum(held.bytes for held in catalog)
                told = model.bytes, model._measured_again_at
                model._measure()
                assert told[0] == pytest.approx(model.bytes, rel=0.02)
                model.bytes, model._measured_again_at = told
                return times

            # It was measured as it came for its first rows.
            assert [await comes_by(seq, seq + 1) for seq in (300, 301, 302)] == [0, 0, 0]
            # It learns a quarter more while it is away, and then while it is here.
            await learn(other, "m", rows(303, 380))
            assert await comes_by(380, 381) == 1
            assert await comes_by(381, 382) == 0
            assert await comes_by(382, 500) == 1
            assert await comes_by(500, 501) == 0

    asyncio.run(scenario())


@pytest.mark.parametrize("is_trimmed", [False, True])
def test_one_with_a_snapshot_begins_from_it(store, monkeypatch, is_trimmed):
    async def scenario() -> None:
        async with serving(store, models_held=2) as catalog, serving(store) as other:
            await gone(catalog)
            for last in (310, 320):
                await learn(other, "m", rows(last - 10, last))
                model = await other.get("m")
                await model.write_snapshot()
            if is_trimmed:
                await other.journal.trim("m", model.record.incarnation, 310, behind=1)
            expected = Replica(model.record)
            expected.restore(model.replica.capture().encode())
            receipt = await learn(catalog, "m", rows(320, 321))
            expected.learn_rows(rows(320, 321), 321)
            assert receipt.placed.seq == 321
            held = catalog.find("m")
            assert held is not None
            learned = {
                name: value for name, value in bits(held.replica).items() if "learner" in name
            }
            assert learned.items() <= bits(expected).items()

    asyncio.run(scenario())


@pytest.mark.parametrize("how", ["made anew", "deleted"])
@pytest.mark.parametrize("when", ["before", "while its rows are checked"])
def test_one_that_was_changed_elsewhere_is_not_learned_as_what_it_was(store, how, when):
    async def scenario() -> None:
        async with serving(store, models_held=2) as catalog, serving(store) as other:
            await gone(catalog)

            async def change() -> None:
                await other.delete("m")
                if how == "made anew":
                    await other.create("m", WIDER)

            if when == "before":
                await change()
            unread = await catalog.to_learn("m")
            assert isinstance(unread, Unread)
            if when != "before":
                await change()
            with pytest.raises(ModelChanged):
                await (await unread.opened()).submit(Request.of(rows(0, 1), None, None))
            if how == "deleted":
                with pytest.raises(Problem, match="no model"):
                    await catalog.to_learn("m")
            else:
                model = await catalog.to_learn("m")
                assert not isinstance(model, Unread)
                assert (model.door.dim, model.replica.seq) == (200, 0)

    asyncio.run(scenario())


def test_one_made_anew_here_while_its_rows_are_checked(store):
    async def scenario() -> None:
        async with serving(store, models_held=3) as catalog:
            await create(catalog, ["m", "x", "y", "z"])
            unread = await catalog.to_learn("m")
            assert isinstance(unread, Unread)
            await catalog.delete("m")
            await catalog.create("m", WIDER)
            with pytest.raises(ModelChanged):
                await unread.opened()

    asyncio.run(scenario())


@pytest.mark.parametrize("how", ["made anew", "deleted"])
def test_nothing_is_refused_by_what_it_was(serve, store, how):
    """No follower tells that a model which is not in memory was changed elsewhere."""
    here, other = serve(store=store, models_held=1), serve(store=store)
    for name in ("m", "x"):
        assert here.put(f"/models/{name}", json=ADULT).status_code == 201
    other.delete("/models/m")
    if how == "made anew":
        other.put("/models/m", json=WIDER)
    answer = here.post("/models/m/learn", json={"x": {"150": 1}, "y": 1})
    assert answer.status_code == (200 if how == "made anew" else 404), answer.text


def test_one_that_may_learn_no_more_is_read_first(store):
    """Each time that it left memory it would take one group of rows more."""

    async def scenario() -> None:
        async with serving(store, models_held=2) as catalog:
            await create(catalog, ["m", *OTHERS])
            model = await catalog.get("m")
            model._most_bytes = model.bytes - 1
            await leave(catalog, "m", OTHERS)
            assert not isinstance(await catalog.to_learn("m"), Unread)

    asyncio.run(scenario())


def test_a_snapshot_may_come_meanwhile_of_what_was_appended_since(store, monkeypatch):
    async def scenario() -> None:
        async with serving(store, models_held=2) as catalog, serving(store) as other:
            await gone(catalog)
            await learn(other, "m", rows(300, 310))
            await (await other.get("m")).write_snapshot()
            append = catalog.journal.append

            async def overtaken(*given: Any, **more: Any) -> Any:
                appended = await append(*given, **more)
                monkeypatch.undo()
                await learn(other, "m", rows(311, 320))
                await (await other.get("m")).write_snapshot()
                return appended

            monkeypatch.setattr(catalog.journal, "append", overtaken)
            assert (await learn(catalog, "m", rows(310, 311))).placed.seq == 311
            model = catalog.find("m")
            assert model is not None and not model.replica.is_forked
            forks = b"\ndualstream_forks_total{"
            assert forks not in await catalog.telemetry.exposition(catalog)
            await model.refresh()
            assert model.replica.seq == 320
            assert model.replica.chain == (await other.get("m")).replica.chain

    asyncio.run(scenario())


def test_where_the_store_is_away_it_is_loaded_by_the_next_one(store, monkeypatch):
    async def scenario() -> None:
        async with serving(store, models_held=2) as catalog:
            await gone(catalog)

            async def refuse(*given: Any) -> Any:
                raise JournalUnavailable("planted")

            with monkeypatch.context() as away:
                away.setattr(catalog.journal, "append", refuse)
                learning = asyncio.create_task(learn(catalog, "m", rows(300, 301)))
                await asyncio.sleep(0)
                asking = asyncio.create_task(catalog.get("m"))
                with pytest.raises(JournalUnavailable):
                    await learning
                # Who waited for it loads it.
                assert (await asking).replica.seq == 300
            assert (await learn(catalog, "m", rows(300, 301))).placed.seq == 301
            assert await bits_of(catalog, "m") == await replayed(catalog)

    asyncio.run(scenario())


def test_where_the_store_was_away_rows_that_wait_bring_it(store, monkeypatch):
    """Two replicas of one model would each tell what was lost, or none of them."""

    async def scenario() -> None:
        monkeypatch.setattr("service.model.MAX_APPEND_S", 0.001)
        async with serving(store, models_held=2, request_timeout_s=0.3) as catalog:
            await gone(catalog)
            append, failing = catalog.journal.append, [OutcomeUnknown("planted")]
            goes_on = asyncio.Event()

            async def fail_once(*given: Any) -> Any:
                if failing:
                    await asyncio.sleep(0.01)
                    raise failing.pop()
                await goes_on.wait()
                return await append(*given)

            monkeypatch.setattr(catalog.journal, "append", fail_once)
            first = asyncio.create_task(learn(catalog, "m", rows(300, 301)))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            second = asyncio.create_task(learn(catalog, "m", rows(301, 302)))
            with pytest.raises(OutcomeUnknown):
                await first
            asked = Asked(catalog, monkeypatch)
            with pytest.raises(Problem, match="is being read from its journal") as refusal:
                await catalog.get("m")
            assert refusal.value.status == 503
            asking = asyncio.create_task(catalog.get("m"))
            await asyncio.sleep(0)
            goes_on.set()
            assert (await second).placed.seq == 301
            assert await asking is catalog.find("m") and asked.since() == []
            assert await bits_of(catalog, "m") == await replayed(catalog)

    asyncio.run(scenario())


def test_of_one_that_cannot_be_read_it_is_told_that_the_rows_are_journalled(serve, store):
    """Whoever sends them again needs to know; once that is found out no more are taken."""
    here = serve(store=store, models_held=1)
    for name in ("m", "x"):
        assert here.put(f"/models/{name}", json=ADULT).status_code == 201

    async def damage() -> None:
        journal = await open_journal(store)
        record = await journal.get("m")
        part = Part(encode_control("of a later version", {}), 1)
        await journal.append(AppendRequest("m", record.incarnation, b"n" * 16, 0, [part]))
        await journal.close()

    asyncio.run(damage())
    sample = {"x": {"1": 1}, "y": 1}
    told = assert_problem(here.post("/models/m/learn", json=sample), 503, "unreadable-journal")
    assert told["outcome"] == "journalled"
    told = assert_problem(here.post("/models/m/learn", json=sample), 503, "unreadable-journal")
    assert "outcome" not in told
    assert here.get("/models").json()["models"][0]["seq"] == 2


@pytest.mark.parametrize(
    "given", [{"guard": {"mode": "pause"}}, {"refit": {"every": 100}}], ids=["guard", "refit"]
)
def test_one_with_a_guard_or_refits_is_read_first(store, given):
    """While it is paused, it may take no more rows; and rows that make a refit due begin it."""

    async def scenario() -> None:
        async with serving(store, models_held=1) as catalog:
            await catalog.create("m", ADULT | given)
            await create(catalog, ["x"])
            await leave(catalog, "m", ["x"])
            assert not isinstance(await catalog.to_learn("m"), Unread)

    asyncio.run(scenario())


def test_of_models_that_left_the_last_ones_are_known(monkeypatch):
    monkeypatch.setattr("service.unread.MOST", 2)
    left = Left()
    for name in "abcb":
        left.keep(Kept(ModelRecord(name, "", b"", b"", 0, 0, ""), SPEC))
    assert [left.get(name) is not None for name in "abc"] == [False, True, True]


@pytest.mark.parametrize(("shares", "stay"), [(True, "bcd"), (False, "d")])
def test_of_models_with_large_specs_fewer_are_known(monkeypatch, shares, stay):
    """And of those that share what is known of their spec more."""
    monkeypatch.setattr("service.unread.MOST_BYTES", 16 * 20 + 3 * 40)
    left = Left()
    for name in "abccd":
        known = SPEC if shares else KnownSpec(FixedSpec(resolve_spec(ADULT)), 0, DEFAULT_LIMITS)
        left.keep(Kept(ModelRecord(name, "", b"s" * 20, b"g" * 20, 0, 0, ""), known))
    assert [name for name in "abcd" if left.get(name) is not None] == list(stay)
    for name in "abcd":
        left.pop(name)
    assert not left._bytes and not left._having


@pytest.fixture
def server(tmp_path) -> Iterator[httpx.Client]:
    with ServerProcess(f"sqlite:///{tmp_path / 'many.db'}", ["--models-held", "2"]) as process:
        with httpx.Client(base_url=process.url, timeout=30) as client:
            yield client


def test_requests_learn_by_models_that_come_and_go(server):
    """Over HTTP: refused rows change nothing, and all counts are those of every row."""
    for name in "abcd":
        assert server.put(f"/models/{name}", json=ADULT).status_code == 201
    for round_ in range(5):
        for name in "abcd":
            told = server.post(f"/models/{name}/learn", json={"x": {"1": 1, "7": 1}, "y": 1}).json()
            assert told["seq"] == round_ + 1
            bad = server.post(f"/models/{name}/learn", json={"x": {"124": 1}, "y": 1})
            assert bad.status_code == 422
    for name in "abcd":
        assert server.get(f"/models/{name}/metrics").json()["samples"] == 5
