"""The journal in memory keeps the contract: it answers as SQLite does. And it can lose."""

import random
from pathlib import Path

import pytest

from dualstream.service.journal import open_journal
from dualstream.service.journal.protocol import (
    Appended,
    AppendRequest,
    LogPosition,
    MissingPosition,
    Part,
)
from tests.service.journal.groups import (
    CLIENT_SPEC,
    SPEC,
    keyed,
    label_key,
    late_label,
    pending_row,
    places,
    rows,
    some_group,
)
from tests.simulation.log import Log
from tests.simulation.store import Store

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def made() -> tuple[Store, Log]:
    store = Store()
    record, _ = store.create("m", SPEC, CLIENT_SPEC)
    return store, store.log("m", record.incarnation)


def append(store: Store, log: Log, *parts: Part, nonce: int = 0, known_seq: int = 0) -> Appended:
    return store.append(
        AppendRequest("m", log.incarnation, nonce.to_bytes(16, "big"), known_seq, parts)
    )


@pytest.mark.parametrize("seed", range(6))
async def test_the_same_appends_have_the_same_answers(tmp_path: Path, seed: int):
    chance = random.Random(seed)
    store, log = made()
    journal = await open_journal(f"sqlite:///{tmp_path / 'journal.db'}")
    other, _ = await journal.create("m", SPEC, CLIENT_SPEC)
    nonce = 0
    for _ in range(60):
        group, known_seq = some_group(chance), chance.randrange(1 + log.seq)
        nonce += chance.random() < 0.9
        mine = append(store, log, *group, nonce=nonce, known_seq=known_seq)
        theirs = await journal.append(
            AppendRequest("m", other.incarnation, nonce.to_bytes(16, "big"), known_seq, group)
        )
        assert mine.positions == theirs.positions
        assert (mine.first_seq, mine.seq, mine.more) == (theirs.first_seq, theirs.seq, theirs.more)
        assert [e.body for e in mine.entries] == [e.body for e in theirs.entries]
    entries = store.read("m", log.incarnation, 0)
    assert [(e.first_seq, e.seq, e.body) for e in entries] == [
        (e.first_seq, e.seq, e.body) for e in await journal.read("m", other.incarnation, 0)
    ]
    await journal.close()


@pytest.mark.parametrize("seed", range(3))
async def test_stores_agree_on_expected_positions(tmp_path: Path, seed: int):
    chance = random.Random(seed)
    store, log = made()
    journal = await open_journal(f"sqlite:///{tmp_path / 'journal.db'}")
    other, _ = await journal.create("m", SPEC, CLIENT_SPEC)
    stood, refused = [(0, log.chain, other.chain)], 0
    for nonce in range(40):
        seq, mine, theirs = chance.choice(stood)
        seq += chance.randrange(2)
        inputs = nonce.to_bytes(16, "big"), 0, [rows(*range(chance.randint(1, 3)))]
        try:
            appended = store.append(
                AppendRequest("m", log.incarnation, *inputs, held=LogPosition(seq, mine))
            )
        except MissingPosition:
            refused += 1
            with pytest.raises(MissingPosition):
                await journal.append(
                    AppendRequest("m", other.incarnation, *inputs, held=LogPosition(seq, theirs))
                )
            continue
        got = await journal.append(
            AppendRequest("m", other.incarnation, *inputs, held=LogPosition(seq, theirs))
        )
        assert got.seq == appended.seq == log.seq
        stood.append((log.seq, log.chain, got.chain))
    assert 10 < refused < 30
    await journal.close()


def test_lost_tail_takes_entries_keys_and_nonces_along():
    store, log = made()
    append(store, log, keyed("a", 1), nonce=1)
    stood = log.chain
    append(store, log, keyed("b", 2), nonce=2)
    append(store, log, keyed("b", 2), nonce=3)
    log.lose(2, now=0, with_snapshots=True)
    assert (log.seq, log.chain, len(log.entries)) == (1, stood, 1)
    again = append(store, log, keyed("a", 1), keyed("b", 2), nonce=2)
    assert places(again) == [(1, 1, "duplicate"), (2, 2, "new")]


def test_snapshots_may_outlive_their_entries():
    for with_snapshots, kept in ((True, None), (False, 2)):
        store, log = made()
        append(store, log, rows(1, 2))
        assert store.snapshot_put("m", log.incarnation, 2, log.chain, b"state")
        log.lose(1, now=0, with_snapshots=with_snapshots)
        snapshot = store.snapshot_get("m", log.incarnation)
        assert (snapshot and snapshot.seq) == kept


def test_a_lost_label_leaves_its_row_waiting():
    store, log = made()
    store.remember("m", log.incarnation, [pending_row("a"), pending_row("b", b"other")])
    append(store, log, late_label("a"), nonce=1)
    append(store, log, late_label("a"), late_label("b"), nonce=2)
    assert store.remembered("m", log.incarnation, [label_key("a"), label_key("b")]) == [None, None]
    assert store.awaiting_labels() == []
    log.lose(1, now=0, with_snapshots=True)
    result = store.remembered("m", log.incarnation, [label_key("a"), label_key("b")])
    assert [row and row.body for row in result] == [None, b"other"]
    log.lose(1, now=0, with_snapshots=True)
    assert [got.rows for got in store.awaiting_labels()] == [2]


def test_rows_expire_by_the_clock_unless_they_have_a_default_label():
    now = [0.0]
    store = Store(clock=lambda: now[0], remember_s=1.0)
    record, _ = store.create("m", SPEC, CLIENT_SPEC)
    inputs = "m", record.incarnation
    store.remember(*inputs, [pending_row("a"), pending_row("b", default=b"1", wait_s=0.5)])

    def found() -> list[bytes | None]:
        rows = store.remembered(*inputs, [label_key("a"), label_key("b")])
        return [row and row.body for row in rows]

    assert found() == [b"row", b"row"] and not store.awaiting_labels()[0].is_due
    now[0] = 0.6
    due = store.overdue(*inputs)
    assert ([row.key for row in due.rows], due.expired) == ([label_key("b")], 0)
    now[0] = 1.0
    assert found() == [b"", b"row"]
    assert [store.overdue(*inputs).expired for _ in range(2)] == [1, 0]
    assert store.awaiting_labels()[0].rows == 1
    now[0] = 2.5
    store.overdue(*inputs)
    assert found() == [None, b"row"]
    append(store, store.log(*inputs), late_label("b"))
    assert store.awaiting_labels() == []
