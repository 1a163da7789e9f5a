"""Models out of memory learn by their weights alone, and only the time that it takes tells."""

import asyncio
import random
from typing import Any

import msgspec
import numpy as np
import pytest

from service.bare import MOST_GROUPS
from service.catalog import Catalog
from service.errors import Problem
from service.groups import BULK_ROWS
from service.journal.protocol import (
    CursorMoved,
    JournalUnavailable,
    NotReplicated,
    OutcomeUnknown,
)
from service.model import Model
from service.replica import Replica
from service.retained import NOBODY
from service.unread import Unread, with_bare
from solvers import Batch, bare
from tests.service.snapshots import bits
from tests.service.test_many_models import (
    ADULT,
    IDS,
    bits_of,
    create,
    held,
    learn,
    leave,
    rows,
    serving,
)
from tests.service.test_unread import OTHERS, Asked, gone, replayed

HASHED = {"algorithm": "dual_ascent", "loss": "hinge", "features": {"kind": "hashed", "bits": 8}}


def in_places(found: Batch) -> Batch:
    """As rows of a hashed model."""
    return Batch(found.indptr, found.indices, found.values, found.labels, found.weights, 256)


async def away(catalog: Catalog) -> None:
    """The model `m` has learned 300 rows and is out of memory; nothing was learned bare yet."""
    await gone(catalog)
    await bits_of(catalog, "m")
    await leave(catalog, "m", OTHERS)
    groups(catalog)
    catalog.telemetry._bare_groups.reset()


async def learned(catalog: Catalog, first: int, last: int, key: str | None = None) -> Any:
    """The receipt of rows that the model `m` learns without coming into memory."""
    before = groups(catalog)
    receipt = await learn(catalog, "m", rows(first, last), key)
    assert catalog.find("m") is None and groups(catalog) == before + 1
    return receipt


def groups(catalog: Catalog) -> int:
    """How many were learned bare."""
    return int(catalog.telemetry._bare_groups._value.get())


async def scores_of(catalog: Catalog, last: int) -> list[float]:
    """What one says of each row who learns so many in one go."""
    learner = Replica(await catalog.journal.get("m")).learner
    return learner.learn(rows(0, last)).scores.tolist()


def test_rows_are_answered_as_by_the_whole_model_and_the_store_is_asked_once(store, monkeypatch):
    async def scenario() -> None:
        async with serving(store, models_held=2) as catalog:
            await away(catalog)
            asked, scores = Asked(catalog, monkeypatch), []
            for first, last in ((300, 301), (301, 310), (310, 311)):
                receipt = await learned(catalog, first, last)
                assert (receipt.placed.first_seq, receipt.placed.seq) == (first + 1, last)
                scores += receipt.scores
            assert asked.since() == ["append"] * 3
            assert scores == (await scores_of(catalog, 311))[300:]
            assert await bits_of(catalog, "m") == await replayed(catalog)

    asyncio.run(scenario())


def test_what_others_append_is_learned_before(store, monkeypatch):
    async def scenario() -> None:
        async with serving(store, models_held=2) as catalog, serving(store) as other:
            await away(catalog)
            await learned(catalog, 300, 301)
            await learn(other, "m", rows(301, 320))
            asked = Asked(catalog, monkeypatch)
            receipt = await learned(catalog, 320, 321)
            assert asked.since() == ["append"]
            assert receipt.scores == (await scores_of(catalog, 321))[320:]

    asyncio.run(scenario())


def test_one_that_learns_often_comes_into_memory(store):
    async def scenario() -> None:
        async with serving(store, models_held=2) as catalog:
            await away(catalog)
            for n in range(MOST_GROUPS):
                await learned(catalog, 300 + n, 301 + n)
            await learn(catalog, "m", rows(300 + MOST_GROUPS, 301 + MOST_GROUPS))
            model = catalog.find("m")
            assert model is not None and groups(catalog) == MOST_GROUPS
            assert bits(model.replica) == await replayed(catalog)
            # and the next time that it has left it begins anew
            await leave(catalog, "m", OTHERS)
            await learned(catalog, 301 + MOST_GROUPS, 302 + MOST_GROUPS)

    asyncio.run(scenario())


def test_one_that_learns_all_the_time_does_so_too(store):
    """As one group waits behind the other it never leaves in between."""

    async def scenario() -> None:
        async with serving(store, models_held=2) as catalog:
            await away(catalog)

            async def client(first: int) -> list[tuple[int, float]]:
                told = []
                for n in range(first, first + 2 * MOST_GROUPS):
                    receipt = await learn(catalog, "m", rows(n, n + 1))
                    told.append((receipt.placed.seq, receipt.scores[0]))
                return told

            clients = (client(300 + 2 * MOST_GROUPS * n) for n in range(3))
            told = [one for of in await asyncio.gather(*clients) for one in of]
            assert "m" in held(catalog) and 0 < groups(catalog) <= MOST_GROUPS
            reader = Replica(await catalog.journal.get("m"))
            entries = await catalog.journal.read("m", reader.incarnation, 0)
            content = reader.rows_of(entries)
            assert content is not None
            scores = np.concatenate([reader.learner.learn(one).scores for one in content.records])
            assert sorted(told) == list(enumerate(scores.tolist(), 1))[300:]
            assert await bits_of(catalog, "m") == await replayed(catalog)

    asyncio.run(scenario())


def test_where_there_is_room_it_comes_into_memory_at_once(store):
    async def scenario() -> None:
        async with serving(store, models_held=2) as catalog:
            await away(catalog)
            catalog.forget(next(iter(catalog)))
            await learn(catalog, "m", rows(300, 301))
            assert "m" in held(catalog) and not groups(catalog)

    asyncio.run(scenario())


def test_a_key_that_is_known_is_answered_as_the_first_time(store):
    async def scenario() -> None:
        async with serving(store, models_held=2) as catalog:
            await away(catalog)
            first = await learned(catalog, 300, 302, "key")
            again = await learn(catalog, "m", rows(300, 302), "key")
            assert again.placed.duplicate and again.placed.seq == 302
            assert list(again.answer.rows.scores) == first.scores
            assert "m" in held(catalog)

    asyncio.run(scenario())


def test_who_asks_for_the_model_meanwhile_gets_the_whole(store):
    async def scenario() -> None:
        async with serving(store, models_held=2) as catalog:
            await away(catalog)
            learning = asyncio.create_task(learn(catalog, "m", rows(300, 301)))
            await asyncio.sleep(0)
            model = await catalog.get("m")
            await learning
            assert groups(catalog) == 1 and model is catalog.find("m")
            assert model.replica.seq == 301 and not model.replica.is_bare
            assert bits(model.replica) == await replayed(catalog)

    asyncio.run(scenario())


@pytest.mark.parametrize("is_made_anew", [False, True])
def test_who_waits_for_one_that_is_deleted_is_told(store, monkeypatch, is_made_anew):
    async def scenario() -> None:
        async with serving(store, models_held=2) as catalog:
            await away(catalog)
            append = catalog.journal.append

            async def late(*given: Any, **more: Any) -> Any:
                appended = await append(*given, **more)
                monkeypatch.undo()
                await catalog.delete("m")
                if is_made_anew:
                    await catalog.create("m", ADULT)
                return appended

            monkeypatch.setattr(catalog.journal, "append", late)
            learning = asyncio.create_task(learn(catalog, "m", rows(300, 301)))
            await asyncio.sleep(0)
            asking = asyncio.create_task(catalog.get("m"))
            assert (await learning).placed.seq == 301
            if is_made_anew:
                assert (await asyncio.wait_for(asking, 5)).replica.seq == 0
            else:
                with pytest.raises(Problem, match="no model"):
                    await asyncio.wait_for(asking, 5)

    asyncio.run(scenario())


def test_a_snapshot_falls_due_as_ever(store):
    """Else the journal of who always learns bare would never be trimmed."""

    async def scenario() -> None:
        async with serving(store, models_held=2, snapshot_every=302) as catalog:
            await away(catalog)
            await learned(catalog, 300, 301)
            receipt = await learn(catalog, "m", rows(301, 302))
            assert receipt.scores == (await scores_of(catalog, 302))[301:]
            model = catalog.find("m")
            assert model is not None
            await model.close()
            snapshot = await catalog.journal.snapshot_get("m", model.record.incarnation)
            assert snapshot is not None and snapshot.seq == 302
            # One whose journal does not begin at the beginning goes on bare, too.
            await leave(catalog, "m", OTHERS)
            receipt = await learned(catalog, 302, 303)
            assert receipt.scores == (await scores_of(catalog, 303))[302:]

    asyncio.run(scenario())


def test_the_whole_model_is_learned_in_slices_where_its_rows_take_long(store, monkeypatch):
    """As many rows at a time as such rows are known to take a moment."""

    async def scenario() -> None:
        async with serving(store, models_held=2, snapshot_every=301) as catalog:
            await away(catalog)
            model = await catalog.get(OTHERS[0])
            model.spec.s_per_row = 1e-4
            monkeypatch.setattr("service.replica.MEASURED_ROWS", 1000)
            sizes, learn_slice = [], Replica._learn_slice
            monkeypatch.setattr(
                Replica,
                "_learn_slice",
                lambda self, batch: sizes.append(len(batch)) or learn_slice(self, batch),
            )
            await learn(catalog, "m", rows(300, 301))
            assert "m" in held(catalog) and sizes[:2] == [1, 20] and sum(sizes) == 302

    asyncio.run(scenario())


def test_rows_that_are_less_durable_than_asked_for_are_told_so_and_learned(store, monkeypatch):
    async def scenario() -> None:
        async with serving(store, models_held=2) as catalog:
            await away(catalog)
            await learned(catalog, 300, 301)
            append = catalog.journal.append

            async def short(*given: Any, **more: Any) -> Any:
                return msgspec.structs.replace(await append(*given, **more), shortfall="planted")

            with monkeypatch.context() as planted:
                planted.setattr(catalog.journal, "append", short)
                with pytest.raises(NotReplicated):
                    await learn(catalog, "m", rows(301, 302))
            await leave(catalog, "m", OTHERS)
            receipt = await learned(catalog, 302, 303)
            assert receipt.scores == (await scores_of(catalog, 303))[302:]
            assert await bits_of(catalog, "m") == await replayed(catalog)

    asyncio.run(scenario())


@pytest.mark.parametrize("last", [301, 300 + BULK_ROWS])
def test_rows_are_answered_where_others_write_the_snapshot_that_is_due(store, monkeypatch, last):
    """The whole model comes by it, and has not seen what became of them."""

    async def scenario() -> None:
        async with serving(store, models_held=2, snapshot_every=301) as catalog:
            await away(catalog)
            async with serving(store) as other:
                append = catalog.journal.append

                async def overtaken(*given: Any, **more: Any) -> Any:
                    appended = await append(*given, **more)
                    await learn(other, "m", rows(last, last + 1))
                    await (await other.get("m")).write_snapshot()
                    return appended

                monkeypatch.setattr(catalog.journal, "append", overtaken)
                receipt = await learn(catalog, "m", rows(300, last), "key")
            model = catalog.find("m")
            assert model is not None and model.replica.restored_seq == last + 1
            assert list(receipt.scores) == (await scores_of(catalog, last))[300:]

    asyncio.run(scenario())


@pytest.mark.parametrize("what", ["control", "many", "trimmed"])
def test_what_takes_the_whole_model_brings_it(store, monkeypatch, what):
    async def scenario() -> None:
        async with serving(store, models_held=2) as catalog, serving(store) as other:
            await away(catalog)
            model = await other.get("m")
            if what == "control":
                await learn(other, "m", rows(300, 301), "a sample")
                await _unlearn_nothing(other)
            elif what == "trimmed":
                for last in (310, 320):
                    await learn(other, "m", rows(last - 10, last))
                    await model.write_snapshot()
                await other.journal.trim("m", model.record.incarnation, 310, behind=1)
            else:
                monkeypatch.setattr("service.replica.INLINE_S", 0.0)
            await model.refresh()
            first = model.replica.seq
            receipt = await learn(catalog, "m", rows(first, first + 1))
            assert receipt.placed.seq == first + 1 and groups(catalog) == 0
            await model.refresh()
            found = catalog.find("m")
            assert found is not None and not found.replica.is_bare
            assert bits(found.replica) == bits(model.replica)

    asyncio.run(scenario())


async def _unlearn_nothing(catalog: Catalog) -> None:
    """A control that is refused: its sample is not retained."""
    from service.controls import Unlearn
    from service.requests import ControlRequest

    model = await catalog.get("m")
    await model.submit(ControlRequest.of(Unlearn("d" * 32)))


@pytest.mark.parametrize("lost", [1, 5])
def test_a_loss_is_found_and_counted(store, lost):
    """The store lost what the bare learner had learned, and others appended in its place."""

    async def scenario() -> None:
        async with serving(store, models_held=2) as catalog, serving(store) as other:
            await away(catalog)
            await _stand_beyond(catalog, lost)
            await learn(other, "m", rows(301, 303))
            receipt = await learn(catalog, "m", rows(303, 304))
            assert receipt.placed.seq == 303
            found = catalog.find("m")
            assert found is not None and bits(found.replica) == await replayed(catalog)
            text = (await catalog.telemetry.exposition(catalog)).decode()
            assert 'dualstream_forks_total{model="m"} 1.0' in text
            assert f'dualstream_lost_records_total{{model="m"}} {lost}.0' in text

    asyncio.run(scenario())


@pytest.mark.parametrize("way", ["read", "appended to", "appended to, first in vain"])
@pytest.mark.parametrize("share", [1 / 8, 0])
def test_a_loss_is_counted_once_by_whatever_brings_the_model_back(store, monkeypatch, way, share):
    """The store lost what the model had learned when it left memory, bare or not."""

    async def scenario() -> None:
        monkeypatch.setattr("service.unread.MAX_BARE_SHARE", share)
        async with serving(store, models_held=2) as catalog:
            await away(catalog)
            await _stand_beyond(catalog, 3)
            if way == "read":
                assert (await catalog.get("m")).replica.seq == 300
            if way == "appended to, first in vain":

                async def fail(*given: Any, **more: Any) -> Any:
                    raise JournalUnavailable("planted")

                with monkeypatch.context() as planted:
                    planted.setattr(catalog.journal, "append", fail)
                    with pytest.raises(JournalUnavailable):
                        await learn(catalog, "m", rows(300, 301))
            if way != "read":
                await learn(catalog, "m", rows(300, 301))
            assert await bits_of(catalog, "m") == await replayed(catalog)
            model = catalog.find("m")
            assert model is not None
            catalog._held._evict(model)
            assert await bits_of(catalog, "m") == await replayed(catalog)
            text = (await catalog.telemetry.exposition(catalog)).decode()
            assert 'dualstream_lost_records_total{model="m"} 3.0' in text

    asyncio.run(scenario())


def test_no_fork_is_counted_where_the_whole_model_could_not_be_read(store, monkeypatch):
    async def scenario() -> None:
        async with serving(store, models_held=2) as catalog:
            await away(catalog)
            await learned(catalog, 300, 302, "key")
            read, failing = catalog.journal.read, [JournalUnavailable("planted")]

            async def fail_once(*given: Any, **more: Any) -> Any:
                if failing:
                    raise failing.pop()
                return await read(*given, **more)

            monkeypatch.setattr(catalog.journal, "read", fail_once)
            # The second one waits for the append of the first, whose answer takes the whole model.
            first = asyncio.create_task(learn(catalog, "m", rows(300, 302), "key"))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            second = asyncio.create_task(learn(catalog, "m", rows(300, 302), "key"))
            with pytest.raises(OutcomeUnknown):
                await first
            assert (await second).placed.duplicate
            assert await bits_of(catalog, "m") == await replayed(catalog)
            text = (await catalog.telemetry.exposition(catalog)).decode()
            assert 'dualstream_forks_total{model="m"}' not in text

    asyncio.run(scenario())


async def _stand_beyond(catalog: Catalog, count: int = 1) -> None:
    """What is kept of the model has learned rows that the store has lost since."""
    assert isinstance(await catalog.to_learn("m"), Unread)
    kept = catalog.openings._left.get("m")
    assert kept is not None and kept.trail is not None
    if kept.bare is None:
        for seq in range(301, 301 + count):
            kept.trail.pass_by(seq, f"{seq:064}")
        return
    lost = Replica(kept.record, bare=kept.bare)
    for seq in range(301, 301 + count):
        lost.learn_own(seq, f"{seq:064}", rows(seq - 1, seq), (), (), NOBODY)
    bare = lost.bare()
    assert bare is not None
    catalog.openings._keep(with_bare(kept, bare, kept.door))


def test_a_loss_is_counted_where_the_rebuilding_fails(store, monkeypatch):
    """By whoever loads the model next."""

    async def scenario() -> None:
        async with serving(store, models_held=2) as catalog, serving(store) as other:
            await away(catalog)
            await _stand_beyond(catalog)
            await learn(other, "m", rows(301, 303))

            async def fail(*given: Any, **more: Any) -> Any:
                raise JournalUnavailable("planted")

            with monkeypatch.context() as planted:
                planted.setattr(catalog.journal, "read", fail)
                with pytest.raises(OutcomeUnknown):
                    await learn(catalog, "m", rows(303, 304))
            assert await bits_of(catalog, "m") == await replayed(catalog)
            text = (await catalog.telemetry.exposition(catalog)).decode()
            assert 'dualstream_forks_total{model="m"} 1.0' in text
            assert 'dualstream_lost_records_total{model="m"} 1.0' in text

    asyncio.run(scenario())


def test_a_loss_is_counted_once_where_rows_wait_for_one_that_failed(store, monkeypatch):
    """They meet what the store has lost, and whoever asks for the model waits for them."""

    async def scenario() -> None:
        async with serving(store, models_held=2) as catalog:
            await away(catalog)
            await _stand_beyond(catalog, 3)
            append, failing = catalog.journal.append, [CursorMoved("planted", None)]
            waits, asked = asyncio.Event(), asyncio.Event()

            async def fail_once(*given: Any, **more: Any) -> Any:
                if failing:
                    await waits.wait()
                    raise failing.pop()
                await asked.wait()
                return await append(*given, **more)

            monkeypatch.setattr(catalog.journal, "append", fail_once)
            fails = asyncio.create_task(learn(catalog, "m", rows(300, 301)))
            await asyncio.sleep(0.01)
            waiting = asyncio.create_task(learn(catalog, "m", rows(301, 302)))
            await asyncio.sleep(0.01)
            waits.set()
            with pytest.raises(CursorMoved):
                await fails
            asking = asyncio.create_task(catalog.get("m"))
            await asyncio.sleep(0.01)
            assert not asking.done()
            asked.set()
            assert (await waiting).placed.seq == 301
            assert await asking is catalog.find("m")
            text = (await catalog.telemetry.exposition(catalog)).decode()
            assert 'dualstream_lost_records_total{model="m"} 3.0' in text

    asyncio.run(scenario())


def test_it_stays_for_rows_in_bulk_that_are_appended_behind_those_that_fail(store, monkeypatch):
    """They were taken off the line already: a model that left would learn them unseen."""

    async def scenario() -> None:
        async with serving(store, models_held=2) as catalog:
            await away(catalog)
            append, get = catalog.journal.append, catalog.journal.get
            failing, appended, goes_on = [JournalUnavailable("planted")], [], asyncio.Event()

            async def fail_once(*given: Any) -> Any:
                if failing:
                    await asyncio.sleep(0.1)
                    raise failing.pop()
                return await get(*given)

            async def held_up(*given: Any, **more: Any) -> Any:
                appended.append(given)
                if len(appended) > 1:
                    await goes_on.wait()
                return await append(*given, **more)

            monkeypatch.setattr(catalog.journal, "get", fail_once)
            monkeypatch.setattr(catalog.journal, "append", held_up)
            first = asyncio.create_task(learn(catalog, "m", rows(300, 1400)))
            await asyncio.sleep(0.05)
            opening = catalog.openings.under_way("m")
            assert opening is not None and opening.replica.is_bare
            second = asyncio.create_task(learn(catalog, "m", rows(100, 1200)))
            with pytest.raises(OutcomeUnknown):  # they are journalled, and the model is not there
                await first
            assert len(appended) == 2 and catalog.openings.under_way("m") is opening
            goes_on.set()
            assert (await second).placed.seq == 2500
            assert catalog.find("m") is opening
            assert await bits_of(catalog, "m") == await replayed(catalog)

    asyncio.run(scenario())


def test_a_loss_is_counted_of_what_learned_before_it_was_told_that_it_is_made(store, monkeypatch):
    """The answer to its making comes late: others have used it, and it has left memory."""
    counted = []

    async def scenario() -> None:
        async with serving(store, models_held=2) as catalog:
            await create(catalog, OTHERS)
            made = catalog.journal.create

            async def answered_late(*given: Any) -> Any:
                answer = await made(*given)
                await learn(catalog, "m", rows(0, 7))
                await leave(catalog, "m", OTHERS)
                return answer

            monkeypatch.setattr(catalog.journal, "create", answered_late)
            count = Model.count_lost_since
            monkeypatch.setattr(
                Model, "count_lost_since", lambda *given: (counted.append(given[1]), count(*given))
            )
            await catalog.create("m", ADULT)

    asyncio.run(scenario())
    assert counted[-1] is not None and counted[-1].end == 7


@pytest.mark.parametrize("error", [JournalUnavailable, OutcomeUnknown])
def test_where_the_store_is_away_it_goes_on_from_where_it_stands(store, monkeypatch, error):
    """By what others have appended, its own rows among them where they came to be journalled."""

    async def scenario() -> None:
        monkeypatch.setattr("service.model.MAX_APPEND_S", 0.05)
        async with serving(store, models_held=2) as catalog:
            await away(catalog)
            append = catalog.journal.append

            async def fail(*given: Any, **more: Any) -> Any:
                if error is OutcomeUnknown:
                    await append(*given, **more)
                raise error("planted")

            with monkeypatch.context() as planted:
                planted.setattr(catalog.journal, "append", fail)
                learning = [learn(catalog, "m", rows(n, n + 1), f"key {n}") for n in (300, 301)]
                for failed in await asyncio.gather(*learning, return_exceptions=True):
                    assert isinstance(failed, error)
            first = 300 + 2 * (error is OutcomeUnknown)
            receipt = await learned(catalog, first, first + 1)
            assert receipt.scores == (await scores_of(catalog, first + 1))[first:]
            assert await bits_of(catalog, "m") == await replayed(catalog)

    asyncio.run(scenario())


def test_they_take_a_part_of_the_budget_and_the_oldest_are_let_go(store, monkeypatch):
    async def scenario() -> None:
        async with serving(store, models_held=1) as catalog:
            await create(catalog, IDS)
            await bits_of(catalog, IDS[0])
            openings = catalog.openings
            assert openings.bare_count == len(IDS) - 1
            each, rest = divmod(openings.bare_bytes, openings.bare_count)
            assert rest == 0 and 2 * 8 * 124 < each < 4_000
            assert catalog._held.bytes_beside == openings.bare_bytes
        monkeypatch.setattr("service.unread.MAX_BARE_SHARE", 20 * each / 2**30)
        async with serving(store, models_held=1) as catalog:
            await create(catalog, [f"n{n}" for n in range(30)])
            assert catalog.openings.bare_count == 20
            # One that is kept no longer is read by its first append.
            before = groups(catalog)
            await learn(catalog, "n0", rows(0, 1))
            assert groups(catalog) == before and "n0" in held(catalog)
        monkeypatch.setattr("service.unread.MAX_BARE_SHARE", 0)
        async with serving(store, models_held=1) as catalog:
            await create(catalog, ["o0", "o1"])
            await learn(catalog, "o0", rows(0, 1))
            assert not groups(catalog) and not catalog.openings.bare_count

    asyncio.run(scenario())


def test_what_is_too_large_to_be_kept_is_not_copied(store, monkeypatch):
    """But for the first of its specification, which shows what it takes."""
    copied = []
    monkeypatch.setattr(
        "service.placed_state.bare_learner", lambda one: copied.append(1) or bare(one)
    )

    async def scenario() -> None:
        async with serving(store, models_held=1, models_bytes=100_000) as catalog:
            await create(catalog, IDS)
            assert catalog.openings.bare_count == 0 and len(held(catalog)) == len(copied) == 1

    asyncio.run(scenario())


def test_names_that_are_told_meanwhile_are_counted(store):
    """They may take a hundred times as much as the weights."""
    names = [(n % 256, f"name {n}") for n in range(5_000)]

    async def scenario() -> None:
        async with serving(store, models_held=2) as catalog:
            await catalog.create("m", HASHED)
            await create(catalog, OTHERS)
            await leave(catalog, "m", OTHERS)
            before = catalog.openings.bare_bytes
            for n in range(2):
                await learn(catalog, "m", in_places(rows(n, n + 1)))
                found = await catalog.to_learn("m")
                assert isinstance(found, Unread)
                found.door.told(names, n + 1)  # as who was answered does
            assert catalog.openings.bare_bytes > before + 100 * len(names)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "spec", [ADULT, HASHED, {"algorithm": "sgd"} | ADULT | {"algorithm": "sgd"}]
)
def test_many_come_and_go_by_chance_and_nobody_can_tell(store, spec):
    """Two workers on one store, each of which holds two of six models."""
    ids, chance = IDS[:6], random.Random(7)

    async def scenario() -> None:
        async with serving(store, models_held=2) as one, serving(store, models_held=2) as other:
            for model_id in ids:
                await one.create(model_id, spec)
            told: dict[str, dict[int, float]] = {model_id: {} for model_id in ids}

            def batch(n: int) -> Batch:
                return in_places(rows(n, n + 1)) if spec is HASHED else rows(n, n + 1)

            async def client(first: int) -> None:
                for n in range(first, first + 60):
                    model_id = ids[min(chance.randrange(6), chance.randrange(6))]
                    receipt = await learn(chance.choice((one, other)), model_id, batch(n))
                    told[model_id][receipt.placed.seq] = receipt.scores[0]

            await asyncio.gather(*(client(100 * n) for n in range(3)))
            assert groups(one) > 20 and groups(other) > 20
            for model_id in ids:
                reader = Replica(await one.journal.get(model_id))
                scores: list[float] = []
                for entry in await one.journal.read(model_id, reader.incarnation, 0):
                    content = reader.rows_of([entry])
                    assert content is not None
                    scores += reader.learn_entries([entry], content).scores.tolist()
                assert scores == [told[model_id][seq] for seq in range(1, len(scores) + 1)]
                for catalog in (one, other):
                    model = await catalog.get(model_id)
                    await model.refresh()
                    assert bits(model.replica) == bits(reader)

    asyncio.run(scenario())
