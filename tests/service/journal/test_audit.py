"""Audit log on every store: each change is stored once, together with its write."""

import asyncio
from collections import Counter
from typing import Any

import msgspec
import pytest

from dualstream.service.journal.audit import Audited
from dualstream.service.journal.protocol import (
    AppendRequest,
    Change,
    Conflict,
    CursorMove,
    CursorMoved,
    Journal,
    Limits,
    ModelChanged,
    UnknownModel,
    Version,
)
from tests.service.journal.conftest import Store
from tests.service.journal.groups import CLIENT_SPEC, SPEC, Log, keyed, rows

pytestmark = pytest.mark.anyio


def change(action: str, **detail: Any) -> Change:
    return Change(action, "request", "owner", "0123456789abcdef", detail)


async def got(journal: Journal, model: str | None = None, **options: Any) -> list[tuple[str, int]]:
    return [(one.change.action, one.seq) for one in await journal.audit(model, **options)]


async def test_what_is_done_is_shown_once_and_what_is_not_done_is_not(journal: Journal):
    first, made = await journal.create("m", SPEC, CLIENT_SPEC, change("create"))
    assert made and not (await journal.create("m", SPEC, CLIENT_SPEC, change("again")))[1]
    where = "m", first.incarnation
    log = Log(journal, first)

    async def append(nonce: int, *parts: Any, **beside: Any) -> Any:
        return await log.append(*parts, nonce=nonce.to_bytes(16, "big"), **beside)

    await append(1, rows(1, 2))
    for _ in range(3):  # a repeated nonce, as after an answer that was lost
        await append(2, keyed("k", 3), change=change("control"))
    await append(3, keyed("k", 3), change=change("duplicate"))
    move = CursorMove("place", None, "1")
    await append(4, cursor=move, change=change("move"))
    with pytest.raises(CursorMoved):
        await append(5, cursor=move, change=change("late"))
    with pytest.raises(ModelChanged):
        await journal.append(
            AppendRequest("m", "0" * 32, b"n" * 16, 0, [rows(4)], change=change("other"))
        )
    digest = await journal.copy_put(*where, b"state")
    named = Version("v", 3, (await journal.get("m")).chain, digest, 5)
    for action in ("version", "version again"):
        await journal.version_put(*where, named, change(action))
    digest = await journal.copy_put(*where, b"other")
    with pytest.raises(Conflict):
        await journal.version_put(*where, Version("v", 3, named.chain, digest, 5), change("late"))
    for action in ("unname", "unname again"):
        await journal.version_delete(*where, "v", change(action))
    stands = await journal.get("m")
    with pytest.raises(Conflict):
        await journal.replace(*where, 1, stands.chain, SPEC, CLIENT_SPEC, change("late"))
    second = await journal.replace(*where, 3, stands.chain, SPEC, CLIENT_SPEC, change("replace"))
    with pytest.raises(ModelChanged):
        await journal.delete(*where, change("late"))
    await journal.delete("m", None, change("delete"))
    with pytest.raises(UnknownModel):
        await journal.delete("m", None, change("again"))
    third, _ = await journal.create("m", SPEC, CLIENT_SPEC, change("create"))
    assert await got(journal, "m") == [
        ("create", 0), ("control", 3), ("move", 3), ("version", 3), ("unname", 3),
        ("replace", 0), ("delete", 0), ("create", 0),
    ]  # fmt: skip
    result = await journal.audit("m")
    incarnations = [first.incarnation] * 5 + [second.incarnation] * 2 + [third.incarnation]
    assert [one.incarnation for one in result] == incarnations
    assert [one.time_ms for one in result] == sorted(one.time_ms for one in result)
    assert result[0].change == change("create") and {one.model for one in result} == {"m"}
    assert await journal.audit("nobody") == []


async def test_changes_are_read_page_by_page_of_one_model_and_of_all(journal: Journal):
    ids = [f"m{n}" for n in range(7)]
    for round_ in range(3):
        for id_ in ids:
            if round_ == 2:
                await journal.delete(id_, None, change("delete"))
            else:
                await journal.create(id_, SPEC, CLIENT_SPEC, change("create"))
                if round_ == 0:
                    await journal.delete(id_, None, change("delete"))
    whole = await journal.audit(limit=1000)
    assert len(whole) == 28 and len({one.place for one in whole}) == 28
    assert [one.time_ms for one in whole] == sorted(one.time_ms for one in whole)
    for model in (None, "m3"):
        expected = [one for one in whole if model in (None, one.model)]
        for limit in (1, 3, 28):
            paged: list[Any] = []
            after = None
            while page := await journal.audit(model, after, limit):
                assert len(page) <= limit
                paged += page
                after = page[-1].place
            assert paged == expected
    for wrong in ("x", "7", "1-.m", "9" * 40 + "-1.m"):
        with pytest.raises(ValueError):
            await journal.audit(None, wrong)


async def test_changes_of_another_store_are_shown_with_those_there_in_order_of_time(
    journal: Journal,
):
    await journal.create("m", SPEC, CLIENT_SPEC, change("create"))
    await journal.create("n", SPEC, CLIENT_SPEC, change("create"))
    await journal.delete("m", None, change("delete"))
    before = await journal.audit()
    [made, gone] = await journal.audit("m")

    def other(action: str, time_ms: int, number: int) -> Audited:
        position = f"{time_ms}-{number}.m"
        return Audited(position, time_ms, "m", "0" * 40, 7, change(action))

    old = [other("old", made.time_ms - 10, 5), other("twin", made.time_ms - 9, 6)]
    old += [other("twin", made.time_ms - 9, 7), other("same moment", gone.time_ms, 0)]
    late = [other("late", gone.time_ms + 10, 8), other("later", gone.time_ms + 10, 9)]
    for case in (old[1:3], old, old + late, old + late):
        await journal.put_changes(case)
    whole = await journal.audit()
    assert [one.time_ms for one in whole] == sorted(one.time_ms for one in whole)
    assert Counter(map(without_place, whole)) == Counter(map(without_place, before + old + late))
    assert len({one.place for one in whole}) == len(whole)
    of_model = await journal.audit("m")
    assert of_model == [one for one in whole if one.model == "m"]
    names = [one.change.action for one in of_model]
    assert names[:3] == ["old", "twin", "twin"] and names[-2:] == ["late", "later"]
    assert sorted(names[3:-2]) == ["create", "delete", "same moment"]
    # Page by page nothing is returned twice, and what is written afterwards comes last
    paged, after = [], None
    while page := await journal.audit("m", after, 1):
        paged += page
        after = page[-1].place
    assert paged == of_model
    await journal.delete("n", None, change("the last"))
    assert (await got(journal, "n"))[-1] == ("the last", 0)


def without_place(one: Audited) -> bytes:
    return msgspec.json.encode(msgspec.structs.replace(one, place=""))


async def test_old_changes_go_and_young_ones_stay(store: Store):
    async with store.journal(Limits(audit_s=0.02)) as brief, store.journal() as journal:
        for model in ("m1", "m2"):
            await brief.create(model, SPEC, CLIENT_SPEC, change("create"))
        await asyncio.sleep(0.05)
        await brief.delete("m2", None, change("delete"))
        await journal.create("young", SPEC, CLIENT_SPEC, change("create"))
        assert ("create", "young") in [
            (one.change.action, one.model) for one in await journal.audit()
        ]
        assert await got(journal, "m1") == []
        assert await got(journal, "m2") in ([("delete", 0)], [])  # it may be old by now, too
