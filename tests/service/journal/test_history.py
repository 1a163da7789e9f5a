"""The history checker finds what is planted."""

import os
from dataclasses import replace

import msgspec
import pytest

from dualstream.service.journal.chain import first_chain, next_chain
from dualstream.service.journal.protocol import Entry, Part
from dualstream.service.journal.record import encode_control
from tests.history import Acknowledged, HistoryBroken, check_entries
from tests.service.journal.groups import keyed, request, rows


def journal_of(*groups: list[Part], incarnation: str = "one") -> list[Entry]:
    entries: list[Entry] = []
    seq, chain = 0, first_chain(incarnation)
    for group in groups:
        nonce = os.urandom(16)
        chain = next_chain(chain, nonce)
        count = sum(part.count for part in group)
        body = b"".join(part.body for part in group)
        entries.append(Entry(seq + 1, seq + count, nonce, chain, 0, body))
        seq += count
    return entries


ENTRIES = journal_of(
    [rows(1, id="a"), rows(2, id="b")],
    [*request("r", rows(3), rows(4, id="c"))],
    [Part(encode_control("pause"), 1), keyed("s", 5, 6)],
)
ANSWERS = [
    Acknowledged("a", 1),
    Acknowledged("b", 2),
    Acknowledged("r", 4, 2),
    Acknowledged("s", 7, 2),
]


def test_a_sound_history_is_reported():
    report = check_entries(ENTRIES, "one", ANSWERS, samples=5, rejected=1)
    assert (report.entries, report.rows, report.controls) == (3, 6, 1)
    assert (report.acknowledged, report.unacknowledged, report.seq) == (6, 0, 7)
    assert report.chain == ENTRIES[-1].chain


def test_an_answer_that_was_lost_is_no_fault():
    report = check_entries(ENTRIES, "one", ANSWERS[1:])
    assert (report.acknowledged, report.unacknowledged) == (5, 1)


def test_the_same_answer_twice_is_no_fault():
    assert check_entries(ENTRIES, "one", ANSWERS + ANSWERS).acknowledged == 6


def test_rows_may_be_shown_apart_by_what_they_hold():
    answers = [Acknowledged(tag, seq) for tag, seq in ((1, 1), (4, 4), (6, 7))]
    report = check_entries(ENTRIES, "one", answers, tags_of=lambda result: result.indices.tolist())
    assert (report.acknowledged, report.unacknowledged) == (3, 3)


def rechained(entries: list[Entry]) -> list[Entry]:
    """The entries as a journal would hold them that never had the others."""
    groups: list[Entry] = []
    seq, chain = 0, first_chain("one")
    for entry in entries:
        count = entry.seq - entry.first_seq + 1
        chain = next_chain(chain, entry.nonce)
        placement = {"first_seq": seq + 1, "seq": seq + count, "chain": chain}
        groups.append(msgspec.structs.replace(entry, **placement))
        seq += count
    return groups


def broken(entries: list[Entry], answers: list[Acknowledged] = ANSWERS, **options) -> str:
    with pytest.raises(HistoryBroken) as result:
        check_entries(entries, "one", answers, **options)
    return str(result.value)


def test_a_lost_entry_is_found():
    assert "after seq 2 comes 5" in broken([ENTRIES[0], ENTRIES[2]])
    assert "lost: Acknowledged(tag='r'" in broken(rechained([ENTRIES[0], ENTRIES[2]]))


def test_a_lost_end_is_found():
    assert "lost: Acknowledged(tag='s'" in broken(ENTRIES[:2])
    assert "lost" in broken([])


def test_a_doubled_row_is_found():
    doubled = journal_of([rows(1, id="a")], [rows(1, id="a")])
    assert "duplicated: 'a' is journalled 2 times" in broken(doubled, ANSWERS[:1])
    assert "duplicated: 'r'" in broken(rechained([*ENTRIES, ENTRIES[1]]))


def test_a_doubled_row_that_was_never_acknowledged_is_found():
    doubled = journal_of([rows(1, id="a")], [rows(1, id="a")])
    assert "'a' was sent 1 times and journalled 2 times" in broken(doubled, [], sent={"a": 1})
    assert "was sent 0 times" in broken(ENTRIES, [], sent={"a": 1})


def test_a_wrong_seq_is_found():
    answers = [replace(ANSWERS[0], seq=2), *ANSWERS[1:]]
    assert "lost: Acknowledged(tag='a', seq=2" in broken(ENTRIES, answers)
    assert "lost" in broken(ENTRIES, [replace(ANSWERS[0], seq=99)])


def test_two_answers_to_one_request_must_agree():
    assert "was answered" in broken(ENTRIES, [*ANSWERS, Acknowledged("a", 2)])


def test_a_broken_chain_is_found():
    forged = msgspec.structs.replace(ENTRIES[1], nonce=b"x" * 16)
    assert "the chain is broken at seq 4" in broken([ENTRIES[0], forged, ENTRIES[2]])
    other = journal_of([rows(1, id="a")], incarnation="other")
    assert "the chain is broken at seq 1" in broken(other, [])


def test_an_entry_that_holds_less_than_it_says_is_found():
    short = msgspec.structs.replace(ENTRIES[0], body=rows(1, id="a").body)
    assert "the entry at seq 2 holds 1 records" in broken([short, *ENTRIES[1:]])


def test_a_damaged_entry_is_found():
    body = ENTRIES[1].body[:-1] + b"\x00"
    damaged = msgspec.structs.replace(ENTRIES[1], body=body)
    assert "the entry at seq 4 cannot be read" in broken([ENTRIES[0], damaged, ENTRIES[2]])


def test_a_state_that_learned_less_or_more_is_found():
    assert "6 rows journalled, 5 learned" in broken(ENTRIES, samples=5)
    assert "6 rows journalled, 7 learned" in broken(ENTRIES, samples=7)
