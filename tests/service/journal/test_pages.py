"""Pages of entries are parsed on first access."""

import weakref
from functools import partial

import pytest

from dualstream.service.journal.page import Page, end_of, size_of
from dualstream.service.journal.protocol import Entry
from dualstream.service.journal.record import CorruptRecord

ENTRIES = [Entry(seq, seq, b"n" * 16, "0" * 40, 0, b"body") for seq in (1, 2, 3)]


class Answer(bytes):
    """An answer that counts how often it was parsed."""

    parsed = 0


def parse(answer: Answer) -> list[Entry]:
    answer.parsed += 1
    return list(ENTRIES)


def test_it_is_a_sequence_that_is_parsed_once():
    answer = Answer()
    page = Page(3, 252, partial(parse, answer))
    assert page and end_of(page) == 3 and size_of(page) == 252 and answer.parsed == 0
    assert list(page) == ENTRIES and page[1:] == ENTRIES[1:] and page[-1] == ENTRIES[-1]
    assert len(page) == 3 and answer.parsed == 1
    assert (end_of(ENTRIES), size_of(ENTRIES)) == (3, 252)


def test_what_was_parsed_is_let_go_of():
    class Told:
        def entries(self) -> list[Entry]:
            return list(ENTRIES)

    got = Told()
    gone = weakref.ref(got)
    page = Page(3, 252, got.entries)
    del got
    assert gone() is not None
    assert list(page) == ENTRIES
    assert gone() is None


def test_damage_is_shown_at_each_look():
    def damaged() -> list[Entry]:
        raise CorruptRecord("planted")

    page = Page(3, 252, damaged)
    for _ in range(2):
        with pytest.raises(CorruptRecord, match="planted"):
            list(page)
