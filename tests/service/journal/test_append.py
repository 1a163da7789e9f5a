"""What an append promises, on every store."""

import asyncio
import os

import pytest

from dualstream.service.journal.chain import first_chain, next_chain
from dualstream.service.journal.protocol import (
    Change,
    CursorMove,
    CursorMoved,
    Journal,
    KeyEntry,
    Limits,
    LogPosition,
    MissingPosition,
    ModelChanged,
    Part,
)
from dualstream.service.journal.record import KeyKind, make_key
from tests.service.journal.conftest import Store
from tests.service.journal.groups import Log, fingerprint, keyed, places, request, rows, whole

pytestmark = pytest.mark.anyio


async def test_parts_are_placed_in_order_and_make_one_entry(journal: Journal):
    log = await Log.create(journal)
    first = await log.append(rows(1, 2), rows(3))
    second = await log.append(rows(4))
    assert places(first) == [(1, 2, "new"), (3, 3, "new")]
    assert (first.first_seq, first.seq) == (1, 3)
    assert places(second) == [(4, 4, "new")]
    entries = await journal.read(log.model, log.incarnation, 0)
    assert [(entry.first_seq, entry.seq) for entry in entries] == [(1, 3), (4, 4)]
    assert entries[0].body == rows(1, 2).body + rows(3).body
    assert await log.tags() == [1, 2, 3, 4]


async def test_the_chain_runs_from_the_incarnation_through_every_nonce(journal: Journal):
    log = await Log.create(journal)
    assert log.record.chain == first_chain(log.incarnation)
    chain = log.record.chain
    for tag in range(3):
        nonce = os.urandom(16)
        appended = await log.append(rows(tag), nonce=nonce)
        assert appended.previous == chain
        chain = next_chain(chain, nonce)
        assert appended.chain == chain
    entries = await journal.read(log.model, log.incarnation, 0)
    assert entries[-1].chain == chain
    record = await journal.get(log.model)
    assert (record.seq, record.chain) == (3, chain)


async def test_entries_carry_nonce_and_the_time_of_the_store(journal: Journal):
    log = await Log.create(journal)
    for tag in range(3):
        await log.append(rows(tag), nonce=bytes([tag]) * 16)
    entries = await journal.read(log.model, log.incarnation, 0)
    assert [entry.nonce for entry in entries] == [bytes([tag]) * 16 for tag in range(3)]
    assert log.record.created_ms <= entries[0].time_ms <= entries[2].time_ms
    assert entries[2].time_ms - log.record.created_ms < 60_000


async def test_a_repeated_nonce_is_answered_as_the_first_time(journal: Journal):
    log = await Log.create(journal)
    await log.append(rows(1, id="a"))
    nonce = os.urandom(16)
    group = [rows(2), rows(3, id="a"), rows(4, 5, id="b")]
    first = await log.append(*group, nonce=nonce, known_seq=1)
    await log.append(rows(6))
    again = await log.append(*group, nonce=nonce, known_seq=1)
    assert again == first
    assert await log.tags() == [1, 2, 4, 5, 6]


async def test_a_repeated_nonce_is_answered_though_nothing_was_new(journal: Journal):
    log = await Log.create(journal)
    await log.append(rows(1, id="a"))
    nonce = os.urandom(16)
    first = await log.append(rows(2, id="a"), nonce=nonce)
    await log.append(rows(3))
    again = await log.append(rows(2, id="a"), nonce=nonce)
    assert again == first
    assert (again.first_seq, again.seq, again.previous) == (None, None, again.chain)


async def test_a_known_id_is_left_out_and_the_rest_is_taken(journal: Journal):
    log = await Log.create(journal)
    await log.append(rows(1), rows(2, id="a"))
    appended = await log.append(rows(3), rows(4, id="a"), rows(5, id="b"))
    assert places(appended) == [(3, 3, "new"), (2, 2, "duplicate"), (4, 4, "new")]
    assert await log.tags() == [1, 2, 3, 5]


async def test_an_id_twice_in_one_group_is_taken_once(journal: Journal):
    log = await Log.create(journal)
    appended = await log.append(rows(1), rows(2, id="a"), rows(3, id="a"), rows(4))
    assert places(appended) == [(1, 1, "new"), (2, 2, "new"), (2, 2, "duplicate"), (3, 3, "new")]
    assert await log.tags() == [1, 2, 4]


async def test_nothing_new_makes_no_entry(journal: Journal):
    log = await Log.create(journal)
    before = await log.append(rows(1, id="a"))
    appended = await log.append(rows(2, id="a"))
    assert (appended.first_seq, appended.seq) == (None, None)
    assert appended.previous == appended.chain == before.chain
    assert await log.last_seq() == 1


async def test_the_same_id_with_another_payload_is_a_conflict_for_that_part(journal: Journal):
    log = await Log.create(journal)
    await log.append(rows(1, id="a", payload="x"))
    appended = await log.append(rows(2, id="a", payload="y"), rows(3, id="b"))
    assert places(appended) == [(1, 1, "conflict"), (2, 2, "new")]
    assert await log.tags() == [1, 3]


async def test_an_id_and_a_request_key_of_the_same_text_are_two_keys(journal: Journal):
    log = await Log.create(journal)
    appended = await log.append(rows(1, id="a"), keyed("a", 2), keyed("a", 3, kind=KeyKind.CHUNK))
    assert places(appended) == [(1, 1, "new"), (2, 2, "new"), (3, 3, "new")]


async def test_a_repeated_request_is_left_out_as_a_whole(journal: Journal):
    log = await Log.create(journal)
    await log.append(rows(9))
    group = [keyed("r", 1, 2), rows(3, continues=True), rows(4, id="a", continues=True)]
    first = await log.append(*group)
    assert places(first) == [(2, 3, "new"), (4, 4, "new"), (5, 5, "new")]
    again = await log.append(rows(8), *group, rows(7))
    assert places(again) == [(6, 6, "new"), *[(2, 5, "duplicate")] * 3, (7, 7, "new")]
    assert {position.count for position in again.positions[1:4]} == {4}
    assert await log.tags() == [9, 1, 2, 3, 4, 8, 7]


async def test_a_request_twice_in_one_group_is_taken_once(journal: Journal):
    log = await Log.create(journal)
    group = request("r", rows(1, id="a"), rows(2, 3))
    appended = await log.append(*group, *group)
    assert places(appended) == [
        (1, 0, "new"),
        (1, 1, "new"),
        (2, 3, "new"),
        *[(1, 3, "duplicate")] * 3,
    ]
    assert await log.tags() == [1, 2, 3]


async def test_a_request_with_another_payload_is_a_conflict_as_a_whole(journal: Journal):
    log = await Log.create(journal)
    await log.append(*request("r", rows(1, id="a"), payload="x"))
    appended = await log.append(*request("r", rows(2, id="b"), rows(3), payload="y"), rows(4))
    assert places(appended) == [*[(1, 1, "conflict")] * 3, (2, 2, "new")]
    assert await log.tags() == [1, 4]
    assert places(await log.append(rows(5, id="b"))) == [(3, 3, "new")]


async def test_a_request_counts_only_what_was_journalled_for_it(journal: Journal):
    log = await Log.create(journal)
    await log.append(rows(1, id="a"))
    group = request("r", rows(2, id="a"), rows(3), rows(4, id="b"))
    first = await log.append(*group)
    assert places(first) == [(2, 1, "new"), (1, 1, "duplicate"), (2, 2, "new"), (3, 3, "new")]
    again = await log.append(*group)
    assert places(again) == [(2, 3, "duplicate")] * 4
    assert {position.count for position in again.positions} == {2}


async def test_a_request_of_which_all_rows_are_known_makes_no_entry(journal: Journal):
    log = await Log.create(journal)
    await log.append(rows(1, id="a"))
    group = request("r", rows(2, id="a"))
    first = await log.append(*group)
    assert places(first) == [(2, 1, "new"), (1, 1, "duplicate")]
    assert first.seq is None
    await log.append(rows(3))
    again = await log.append(*group)
    assert places(again) == [(2, 1, "duplicate")] * 2
    assert {position.count for position in again.positions} == {0}
    assert await log.tags() == [1, 3]


async def test_a_request_of_which_all_rows_conflict_does_not_use_its_key(journal: Journal):
    log = await Log.create(journal)
    await log.append(rows(1, id="a", payload="x"))
    await log.append(*request("r", rows(2, id="a", payload="y"), payload="1"))
    appended = await log.append(*request("r", rows(3), payload="2"))
    assert places(appended) == [(2, 1, "new"), (2, 2, "new")]


async def test_the_empty_opening_of_a_request_is_journalled_with_its_rows(journal: Journal):
    log = await Log.create(journal)
    await log.append(rows(1, id="a"))
    group = request("r", rows(1, id="a"), rows(2, id="b"))
    await log.append(*group)
    [_, entry] = await journal.read(log.model, log.incarnation, 0)
    assert entry.body == group[0].body + group[2].body


async def test_the_empty_opening_alone_is_not_journalled(journal: Journal):
    log = await Log.create(journal)
    await log.append(rows(1, id="a"))
    await log.append(*request("r", rows(1, id="a")), rows(2))
    [_, entry] = await journal.read(log.model, log.incarnation, 0)
    assert entry.body == rows(2).body


async def known_of(log: Log, *keys: tuple[KeyKind, str]) -> list[int | None]:
    """The seqs that the store keeps under these keys."""
    requests = [make_key(*key) for key in keys]
    result = await log.journal.known(log.model, log.incarnation, requests)
    return [None if one is None else one.seq for one in result]


@pytest.mark.parametrize("has_key", [False, True])
async def test_of_a_whole_request_with_a_conflict_nothing_is_taken(journal: Journal, has_key: bool):
    log = await Log.create(journal)
    await log.append(rows(9), rows(1, id="a", payload="x"))
    parts = [rows(2), rows(3, id="b"), rows(4, id="a", payload="y"), rows(5)]
    group = whole(*(request("r", *parts) if has_key else parts))
    nonce = os.urandom(16)
    appended = await log.append(*group, nonce=nonce)
    opening = [(3, 2, "refused")] * has_key
    others = [(3, 2, "refused")] * 2
    assert places(appended) == [
        *opening,
        *others,
        (2, 2, "refused for a conflict"),
        (3, 2, "refused"),
    ]
    assert appended.seq is None and appended.chain == appended.previous
    assert await log.append(*group, nonce=nonce, known_seq=2) == appended
    assert await log.tags() == [9, 1]
    keys = (KeyKind.REQUEST, "r"), (KeyKind.SAMPLE, "b"), (KeyKind.SAMPLE, "a")
    assert await known_of(log, *keys) == [None, None, 2]
    corrected = [rows(2), rows(3, id="b"), rows(4, id="c"), rows(5)]
    query = request("r", *corrected, payload="z") if has_key else corrected
    assert (await log.append(*whole(*query))).seq == 6
    assert await log.tags() == [9, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("has_key", [False, True])
async def test_rows_of_a_whole_request_may_be_in_conflict_with_each_other(
    journal: Journal, has_key: bool
):
    log = await Log.create(journal)
    await log.append(rows(9))
    parts = [rows(1, id="q", payload="x"), rows(2, id="q", payload="y"), rows(3, id="q")]
    parts += [rows(4, id="q", payload="x"), rows(5)]
    appended = await log.append(*whole(*(request("r", *parts) if has_key else parts)), rows(6))
    happened = ["refused", *["refused for a conflict"] * 2, *["refused"] * 2]
    expected = ["refused"] * has_key + happened
    assert places(appended) == [*((2, 1, what) for what in expected), (2, 2, "new")]
    assert await log.tags() == [9, 6]
    assert await known_of(log, (KeyKind.REQUEST, "r"), (KeyKind.SAMPLE, "q")) == [None, None]


@pytest.mark.parametrize("has_key", [False, True])
async def test_what_is_known_is_left_out_of_a_whole_request_and_the_rest_is_taken(
    journal: Journal, has_key: bool
):
    log = await Log.create(journal)
    await log.append(rows(1, id="a"))
    parts = [rows(1, id="a"), rows(2, id="b"), rows(3), rows(2, id="b")]
    group = whole(*(request("r", *parts) if has_key else parts))
    appended = await log.append(*group)
    opening = [(2, 1, "new")] * has_key
    assert places(appended) == [
        *opening,
        (1, 1, "duplicate"),
        (2, 2, "new"),
        (3, 3, "new"),
        (2, 2, "duplicate"),
    ]
    assert await log.tags() == [1, 2, 3]
    if has_key:
        assert places(await log.append(*group)) == [(2, 3, "duplicate")] * 5
        other = whole(*request("r", rows(4), rows(5, id="a", payload="y"), payload="other"))
        again = await log.append(*other)
        assert places(again) == [(2, 3, "conflict")] * 3
        assert not any(position.refused for position in again.positions)


async def test_a_whole_request_that_is_refused_does_nothing_to_others_of_its_group(
    journal: Journal,
):
    log = await Log.create(journal)
    await log.append(rows(1, id="a", payload="x"))
    before = [rows(2), *request("r", rows(3, id="b"), rows(4))]
    bad = whole(keyed("s", 5), rows(6, id="c", payload="x"), rows(7, id="a", payload="y"))
    alone = whole(rows(8, id="c", payload="z"), rows(9, id="b", payload="y"))
    later = [rows(10, id="c", payload="v"), *whole(*request("s", rows(11), payload="v"))]
    appended = await log.append(*before, *bad, *alone, *later)
    assert places(appended) == [
        (2, 2, "new"),
        (3, 2, "new"),
        (3, 3, "new"),
        (4, 4, "new"),
        *[(5, 4, "refused")] * 2,
        (1, 1, "refused for a conflict"),
        (5, 4, "refused"),
        (3, 3, "refused for a conflict"),
        (5, 5, "new"),
        (6, 5, "new"),
        (6, 6, "new"),
    ]
    assert await log.tags() == [1, 2, 3, 4, 10, 11]
    keys = (KeyKind.REQUEST, "r"), (KeyKind.REQUEST, "s"), (KeyKind.SAMPLE, "c")
    assert await known_of(log, *keys) == [4, 6, 5]


async def test_a_whole_request_of_one_part_is_taken_or_not(journal: Journal):
    log = await Log.create(journal)
    assert places(await log.append(*whole(rows(1, 2)))) == [(1, 2, "new")]
    assert places(await log.append(*whole(rows(3, id="a")))) == [(3, 3, "new")]
    for payload, what in (("", "duplicate"), ("y", "refused for a conflict")):
        again = await log.append(*whole(rows(4, id="a", payload=payload)))
        assert places(again) == [(3, 3, what)]
    assert await log.tags() == [1, 2, 3]


async def test_an_opening_that_no_part_follows_makes_its_key_known(journal: Journal):
    log = await Log.create(journal)
    await log.append(rows(1), rows(2))
    group = [*request("r", payload="1"), *request("s"), rows(3), *request("r", payload="1")]
    group += [*request("r", rows(4), payload="2"), *request("s", rows(5))]
    assert places(await log.append(*group)) == [
        (3, 2, "new"),
        (3, 2, "new"),
        (3, 3, "new"),
        (3, 2, "duplicate"),
        (3, 2, "conflict"),
        (3, 2, "conflict"),
        (3, 2, "duplicate"),
        (3, 2, "duplicate"),
    ]
    assert places(await log.append(*request("r", payload="1"))) == [(3, 2, "duplicate")]
    assert places(await log.append(*request("t"), *request("s", rows(5)))) == [
        (4, 3, "new"),
        (3, 2, "duplicate"),
        (3, 2, "duplicate"),
    ]
    assert await log.last_seq() == 3
    entries = await journal.read(log.model, log.incarnation, 0)
    assert [entry.body for entry in entries[1:]] == [rows(3).body]


@pytest.mark.parametrize(
    "group",
    [
        [rows(1), rows(2, continues=True)],
        [rows(1), *whole(rows(2)), *whole(rows(3), *whole(rows(4)))],
        [rows(1, continues=True)],
        [rows(1, id="a"), rows(2, continues=True)],
        [Part(b"", 0)],
        [keyed("r", 1), Part(b"", 0, continues=True)],
    ],
    ids=["no key", "whole inside", "alone", "an id", "empty", "empty inside"],
)
async def test_parts_that_break_the_rules_are_refused(journal: Journal, group: list[Part]):
    log = await Log.create(journal)
    with pytest.raises(ValueError, match="part"):
        await log.append(*group)
    assert await log.last_seq() == 0


async def test_a_short_nonce_is_refused(journal: Journal):
    log = await Log.create(journal)
    with pytest.raises(ValueError, match="16 bytes"):
        await log.append(rows(1), nonce=b"short")


async def test_the_answer_brings_what_others_appended(journal: Journal):
    log = await Log.create(journal)
    for tag in range(5):
        await log.append(rows(tag, tag))
    appended = await log.append(rows(9), known_seq=4)
    assert [entry.seq for entry in appended.entries] == [6, 8, 10]
    assert appended.entries == tuple(await journal.read(log.model, log.incarnation, 4))[:3]
    assert not appended.more
    assert (await log.append(rows(9), known_seq=11)).entries == ()


async def test_the_answer_brings_at_most_a_mebibyte_but_one_entry(journal: Journal):
    log = await Log.create(journal)
    wide = rows(*range(100_000))
    for tag in range(12):
        await log.append(wide if tag else rows(*range(900_000)))
    appended = await log.append(rows(1), known_seq=0)
    assert [entry.first_seq for entry in appended.entries] == [1]
    assert appended.more
    appended = await log.append(rows(1), known_seq=900_000)
    assert 2 <= len(appended.entries) < 11
    assert sum(len(entry.body) for entry in appended.entries) <= 1 << 20
    assert appended.more


async def test_when_nothing_is_new_the_answer_brings_all_to_the_head(journal: Journal):
    log = await Log.create(journal)
    await log.append(rows(1, id="a"))
    await log.append(rows(2))
    appended = await log.append(rows(3, id="a"), known_seq=0)
    assert [entry.seq for entry in appended.entries] == [1, 2]
    assert appended.entries[-1].chain == appended.previous


async def test_an_answer_beyond_the_kept_rows_says_that_there_is_more(journal: Journal):
    log = await Log.create(journal)
    for tag in range(3):
        await log.append(rows(tag))
    await journal.trim(log.model, log.incarnation, 2)
    appended = await log.append(rows(9), known_seq=1)
    assert (appended.entries, appended.more) == ((), True)


async def test_a_cursor_moves_only_from_where_it_is_expected(journal: Journal):
    log = await Log.create(journal)
    assert await journal.cursor(log.model, log.incarnation, "in") is None
    await log.append(rows(1), cursor=CursorMove("in", None, "5-0"))
    with pytest.raises(CursorMoved) as moved:
        await log.append(rows(2), cursor=CursorMove("in", None, "7-0"))
    assert moved.value.value == "5-0"
    with pytest.raises(CursorMoved):
        await log.append(rows(2), cursor=CursorMove("in", "4-0", "7-0"))
    assert await log.tags() == [1]
    await log.append(rows(2), cursor=CursorMove("in", "5-0", "7-0"))
    assert await journal.cursor(log.model, log.incarnation, "in") == "7-0"
    assert await log.tags() == [1, 2]


async def test_a_cursor_moves_though_nothing_is_new(journal: Journal):
    log = await Log.create(journal)
    await log.append(rows(1, id="a"))
    await log.append(rows(1, id="a"), cursor=CursorMove("in", None, "1"))
    await log.append(cursor=CursorMove("in", "1", "2"))
    assert await journal.cursor(log.model, log.incarnation, "in") == "2"
    assert await log.last_seq() == 1


async def test_a_cursor_can_be_deleted(journal: Journal):
    log = await Log.create(journal)
    where = (log.model, log.incarnation)
    await log.append(cursor=CursorMove("in", None, "1"))
    with pytest.raises(CursorMoved):
        await log.append(cursor=CursorMove("in", "2", None))
    assert await journal.cursor(*where, "in") == "1"
    await log.append(rows(1), cursor=CursorMove("in", "1", None))
    assert await journal.cursor(*where, "in") is None
    assert await journal.cursors(*where, "") == {}
    with pytest.raises(CursorMoved) as moved:
        await log.append(cursor=CursorMove("in", "1", "2"))
    assert moved.value.value is None
    await log.append(cursor=CursorMove("in", None, None))
    await log.append(rows(2), cursor=CursorMove("in", None, ""))  # a value of no characters
    assert await journal.cursor(*where, "in") == ""
    await log.append(rows(3), cursor=CursorMove("in", "", "="))
    assert await journal.cursor(*where, "in") == "="
    assert await log.tags() == [1, 2, 3]


async def test_cursors_are_listed_by_prefix(journal: Journal):
    log = await Log.create(journal)
    other = await Log.create(journal, "other")
    where = (log.model, log.incarnation)
    names = ["in", "s:b", "s:a/%_*", "s:\u00e9", "s", "s:"]
    for name in names:
        await log.append(cursor=CursorMove(name, None, f"value of {name}"))
    await other.append(cursor=CursorMove("s:of another", None, "1"))
    result = await journal.cursors(*where, "s:")
    assert list(result) == ["s:", "s:a/%_*", "s:b", "s:\u00e9"]
    assert result["s:a/%_*"] == "value of s:a/%_*"
    assert list(await journal.cursors(*where, "")) == sorted(names)
    with pytest.raises(ModelChanged):
        await journal.cursors(log.model, "another", "")


async def test_a_repeated_nonce_does_not_look_at_the_cursor_again(journal: Journal):
    log = await Log.create(journal)
    nonce, move = os.urandom(16), CursorMove("in", None, "1")
    first = await log.append(rows(1), nonce=nonce, cursor=move, known_seq=0)
    assert await log.append(rows(1), nonce=nonce, cursor=move, known_seq=0) == first


async def test_what_was_made_of_a_place_comes_in_only_while_the_log_holds_it(journal: Journal):
    log = await Log.create(journal)
    first = await log.append(rows(1, 2))
    second = await log.append(rows(3))
    kept = [
        LogPosition(0, log.record.chain),
        LogPosition(2, first.chain),
        LogPosition(3, second.chain),
    ]
    for tag, index in enumerate(kept, 4):
        assert (await log.append(rows(tag), held=index)).seq == tag
    others = [
        LogPosition(1, first.chain),
        LogPosition(2, second.chain),
        LogPosition(6, second.chain),
    ]
    for index in (*others, LogPosition(7, second.chain), LogPosition(99, second.chain)):
        with pytest.raises(MissingPosition, match=f"chain {index.chain[:8]} at seq {index.seq}"):
            await log.append(keyed("k", 7), nonce=bytes(16), held=index)
    await journal.trim(log.model, log.incarnation, 2)
    with pytest.raises(MissingPosition):
        await log.append(keyed("k", 7), nonce=bytes(16), held=kept[0])
    # Neither nonce nor key are kept of what was refused; what is known needs no place.
    appended = await log.append(keyed("k", 7), nonce=bytes(16), held=kept[1])
    assert (appended.seq, appended.positions[0].duplicate) == (7, False)
    assert (await log.append(keyed("k", 7), held=others[0])).positions[0].duplicate
    assert await log.append(keyed("k", 7), nonce=bytes(16), held=others[0], known_seq=6) == appended


async def test_append_checks_the_position_with_its_other_conditions(journal: Journal):
    log = await Log.create(journal)
    digest = await journal.copy_put(log.model, log.incarnation, b"state")
    got = Change("rollback", "server", None, None, {})
    seq = 0
    for copy in (None, digest):
        for change in (None, got):
            beside = {"copy": copy, "change": change}
            with pytest.raises(MissingPosition):
                await log.append(rows(1), held=LogPosition(seq, "0" * 40), **beside)
            chain = (await journal.get(log.model)).chain
            seq += 1
            assert (
                await log.append(rows(1), held=LogPosition(seq - 1, chain), **beside)
            ).seq == seq
    assert [one.seq for one in await journal.audit(log.model)] == [2, 4]
    assert [use.seq for use in await journal.copy_uses(log.model, log.incarnation)] == [3, 4]


async def test_an_append_to_another_incarnation_does_nothing(journal: Journal):
    log = await Log.create(journal)
    log.incarnation = "another"
    with pytest.raises(ModelChanged):
        await log.append(rows(1))
    log.model = "unknown"
    with pytest.raises(ModelChanged):
        await log.append(rows(1))


async def test_a_slow_appender_does_not_write_into_a_model_made_again(journal: Journal):
    old = await Log.create(journal)
    await old.append(rows(1))
    await journal.delete(old.model)
    with pytest.raises(ModelChanged):
        await old.append(rows(2))
    new = await Log.create(journal)
    assert new.incarnation != old.incarnation
    with pytest.raises(ModelChanged):
        await old.append(rows(3))
    await new.append(rows(4))
    assert await new.tags() == [4]


async def test_keys_and_nonces_do_not_outlive_their_model(journal: Journal):
    old = await Log.create(journal)
    nonce = os.urandom(16)
    await old.append(rows(1, id="a"), nonce=nonce, cursor=CursorMove("in", None, "1"))
    await journal.delete(old.model)
    new = await Log.create(journal)
    appended = await new.append(rows(2, id="a"), nonce=nonce, cursor=CursorMove("in", None, "1"))
    assert places(appended) == [(1, 1, "new")]


async def test_models_do_not_see_each_other(journal: Journal):
    one, other = await Log.create(journal, "one"), await Log.create(journal, "other")
    nonce = os.urandom(16)
    await one.append(rows(1, id="a"), nonce=nonce)
    appended = await other.append(rows(2, id="a"), nonce=nonce)
    assert places(appended) == [(1, 1, "new")]
    assert (await one.tags(), await other.tags()) == ([1], [2])


async def test_concurrent_appenders_get_seqs_without_gap_or_overlap(store: Store):
    async with store.journal() as first, store.journal() as second:
        logs = [await Log.create(journal) for journal in (first, second) for _ in range(4)]

        async def appends(log: Log, start: int) -> list[tuple[int, int]]:
            placement = []
            for tag in range(start, start + 20):
                appended = await log.append(rows(tag), rows(tag))
                placement += [(position.first_seq, tag) for position in appended.positions]
            return placement

        runs = [appends(log, 1000 * number) for number, log in enumerate(logs)]
        placement = sorted(sum(await asyncio.gather(*runs), []))
        assert [seq for seq, _ in placement] == list(range(1, 321))
        assert await logs[0].tags() == [tag for _, tag in placement]


async def test_of_concurrent_appends_of_one_id_one_is_taken(store: Store):
    async with store.journal() as first, store.journal() as second:
        logs = [await Log.create(journal) for journal in (first, second) for _ in range(4)]
        for tag in range(10):
            answers = await asyncio.gather(*(log.append(rows(tag, id=str(tag))) for log in logs))
            assert sorted(places(answer)[0][2] for answer in answers) == ["duplicate"] * 7 + ["new"]
        assert await logs[0].tags() == list(range(10))


async def test_of_concurrent_moves_of_a_cursor_one_is_made(store: Store):
    async with store.journal() as first, store.journal() as second:
        logs = [await Log.create(journal) for journal in (first, second) for _ in range(4)]
        moves = [
            log.append(rows(1), cursor=CursorMove("in", None, str(number)))
            for number, log in enumerate(logs)
        ]
        answers = await asyncio.gather(*moves, return_exceptions=True)
        assert sum(isinstance(answer, CursorMoved) for answer in answers) == 7
        assert await logs[0].last_seq() == 1


async def test_an_empty_append_is_answered(journal: Journal):
    log = await Log.create(journal)
    appended = await log.append()
    assert (appended.positions, appended.seq, appended.chain) == ((), None, log.record.chain)


async def test_what_is_kept_under_keys_is_shown_and_nothing_changed(journal: Journal):
    log = await Log.create(journal)
    await log.append(rows(1, 2), *request("r", rows(3), rows(4, id="a", payload="p")))
    before = await journal.get(log.model)
    keys = [
        make_key(kind, key)
        for kind, key in (
            (KeyKind.SAMPLE, "a"),
            (KeyKind.SAMPLE, "b"),
            (KeyKind.REQUEST, "r"),
            (KeyKind.REQUEST, "a"),
        )
    ]
    result = await journal.known(log.model, log.incarnation, keys)
    assert result == [KeyEntry(4, 1, fingerprint("p")), None, KeyEntry(4, 2, fingerprint("")), None]
    assert await journal.known(log.model, log.incarnation, []) == []
    many = [make_key(KeyKind.SAMPLE, str(number)) for number in range(2500)]
    assert await journal.known(log.model, log.incarnation, many) == [None] * 2500
    assert await journal.get(log.model) == before
    with pytest.raises(ModelChanged):
        await journal.known(log.model, "another", keys)


async def test_what_has_expired_is_not_known(store: Store):
    async with store.journal(Limits(key_ttl_s=0.05)) as journal:
        log = await Log.create(journal)
        await log.append(rows(1, id="a"))
        await asyncio.sleep(0.1)
        key = make_key(KeyKind.SAMPLE, "a")
        assert await journal.known(log.model, log.incarnation, [key]) == [None]
