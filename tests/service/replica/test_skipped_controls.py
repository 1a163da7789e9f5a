"""Controls that a worker passes by loading another worker's snapshot still report their outcome.

Other writers append more in front of the control than the store returns, and write a snapshot after
it. The journal is trimmed to that snapshot before the append is answered.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from dualstream.service.features.unlearning.cleanup import UnlearnCleanup
from dualstream.service.journal.protocol import AppendRequest
from tests.service.conftest import assert_problem
from tests.service.features.guard.support import GUARDED, learn, paused, samples
from tests.service.features.members.support import PAIR, SPARSE, names
from tests.service.features.refits.support import begin, finished
from tests.service.replica.snapshot_damage import SPEC

Act = Callable[[], Any]


@pytest.fixture(autouse=True)
def tells_less(monkeypatch):
    """Of what its caller has not seen an append tells one entry."""
    for store in ("sqlite.append", "redis.store"):
        monkeypatch.setattr(f"dualstream.service.journal.{store}.ENTRY_BYTES", 1)


@pytest.fixture
def passed(monkeypatch):
    """The next control of `one` comes behind what `other` does, who writes the snapshot."""

    def by(one: Any, other: Any, action: Act = lambda: None) -> None:
        journal = one.app._registry.journal
        append = journal.append

        def in_front() -> None:
            action()
            for first in (200, 210):
                learn(other, samples(first, first + 2))

        async def write_snapshot() -> None:
            model = other.app._registry.find("m")
            await model.refresh()
            await model.snapshots.write()
            where = ("m", model.record.incarnation)
            await other.app._registry.journal.trim(*where, model.replica.seq, behind=0)

        async def late(request: AppendRequest) -> Any:
            is_cursor = not request.parts
            if is_cursor:
                return await append(request)
            monkeypatch.setattr(journal, "append", append)
            await asyncio.to_thread(in_front)
            appended = await append(request)
            await asyncio.to_thread(other.portal.call, write_snapshot)
            assert appended.more
            return appended

        monkeypatch.setattr(journal, "append", late)

    return by


@pytest.fixture
def two(serve, store, monkeypatch):
    """Two workers on one store, of which none cleans it."""
    monkeypatch.setattr(UnlearnCleanup, "begin", lambda *args: None)
    return serve(store=store), serve(store=store)


def place(client: Any) -> tuple[int, int]:
    """Where its snapshot stood, and where it stands."""
    replica = client.app._registry.find("m").replica
    return replica.restored_seq, replica.seq


def test_a_refused_rollback(two, passed):
    one, other = two
    one.put("/models/m", json=SPEC | {"retain": 100})
    learn(one, samples(0, 30, ids=True))
    assert one.post("/models/m/versions", json={"name": "early"}).status_code == 201
    passed(one, other, lambda: other.delete("/models/m/samples/s3"))
    got = assert_problem(one.post("/models/m/rollback", json={"version": "early"}), 410, "not-kept")
    assert "unlearned at seq 31" in got["detail"]
    assert place(one) == (36, 36)


def test_a_rollback_that_is_done(two, passed):
    one, other = two
    one.put("/models/m", json=SPEC)
    learn(one, samples(0, 30))
    one.post("/models/m/versions", json={"name": "early"})
    passed(one, other)
    got = one.post("/models/m/rollback", json={"version": "early"})
    assert got.status_code == 200 and got.json()["seq"] == 35
    assert place(one) == (35, 35)


@pytest.mark.parametrize("is_refused", [False, True])
def test_a_resumption(two, passed, is_refused):
    one, other = two
    one.put("/models/m", json=GUARDED)
    learn(one, samples(0, 100) + samples(100, 140, bad=True))
    paused(one), paused(other)
    drop = "/models/m/resume?rows=drop"
    passed(one, other, lambda: other.post(drop) if is_refused else None)
    answer = one.post("/models/m/resume?rows=learn")
    if is_refused:
        assert "not paused since" in assert_problem(answer, 409, "not-paused")["detail"]
    else:
        assert answer.status_code == 200 and answer.json()["learned"] > 4
    restored_seq, seq = place(one)
    assert restored_seq == seq


@pytest.mark.parametrize("is_refused", [False, True])
def test_a_refit(two, passed, is_refused):
    one, other = two
    one.put("/models/m", json=SPEC | {"retain": 100})
    learn(one, samples(0, 30, ids=True))
    passed(one, other, lambda: other.delete("/models/m/samples/s3") if is_refused else None)
    got = finished(one, begin(one)["job"])
    assert got["status"] == ("refused" if is_refused else "done"), got
    if is_refused:
        assert "unlearned at seq 31" in got["reason"]
    assert (got["retained"] or 0) == (0 if is_refused else 30)


def test_members_come_are_promoted_and_go(two, passed):
    one, other = two
    assert one.put("/models/m", json=PAIR).status_code == 201
    learn(one, samples(0, 30))

    def passed_by(method: str, path: str, **more: Any) -> Any:
        passed(one, other)
        answer = one.request(method, f"/models/m{path}", **more)
        restored_seq, seq = place(one)
        assert restored_seq == seq
        return answer

    added = passed_by("POST", "/members", json=SPARSE)
    assert added.status_code == 201 and added.json()["name"] == "sparse"
    promoted = passed_by("POST", "/members/sparse/promote")
    assert promoted.status_code == 200, promoted.text
    assert promoted.json()["name"] == "sparse" and promoted.json()["weight"] == 1.0
    assert promoted.json()["seq"] == one.get("/models/m/members").json()["seq"]
    assert passed_by("DELETE", "/promotion").json()["promoted"] is None
    assert passed_by("DELETE", "/members/sparse").status_code == 204
    assert names(one) == ["dual", "steps"]


def test_a_member_that_is_promoted_and_gone(two, passed):
    """It cannot be shown any more: no snapshot keeps how it stood."""
    one, other = two
    assert (
        one.put("/models/m", json=PAIR | {"members": [*PAIR["members"], SPARSE]}).status_code == 201
    )
    passed(one, other)
    journal = one.app._registry.journal
    late = journal.append

    async def then_it_goes(*args: Any) -> Any:
        appended = await late(*args)

        async def trim() -> None:
            model = other.app._registry.find("m")
            await model.snapshots.write()
            await journal_of.trim("m", model.record.incarnation, model.replica.seq, behind=0)

        journal_of = other.app._registry.journal
        for path in ("promotion", "members/sparse"):
            got = await asyncio.to_thread(other.delete, f"/models/m/{path}")
            assert got.status_code in (200, 204), got.text
        await asyncio.to_thread(other.portal.call, trim)
        return appended

    journal.append = then_it_goes
    got = assert_problem(one.post("/models/m/members/sparse/promote"), 409, "conflict")
    assert "a later one has undone it" in got["detail"]


def test_what_no_snapshot_keeps_is_of_unknown_outcome(serve, store, passed, monkeypatch):
    """It is journalled, and no client is answered that it was done or refused."""
    monkeypatch.setattr("dualstream.service.models.registry.MAX_KEPT_ANSWERS", 0)
    one, other = serve(store=store), serve(store=store)
    assert one.put("/models/m", json=PAIR).status_code == 201
    passed(one, other)
    got = assert_problem(one.post("/models/m/members/steps/promote"), 503, "outcome-unknown")
    assert got["outcome"] == "unknown" and "the promote is journalled at seq 5" in got["detail"]
    assert one.get("/readyz").json().get("degraded") is None
    again = one.post("/models/m/members/steps/promote")
    assert again.status_code == 200 and again.json()["seq"] == 5
