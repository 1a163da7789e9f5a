"""Answers to appends compared with a replica's lineage, on random journals."""

import random
from collections.abc import Sequence

from dualstream.service.journal.chain import first_chain, next_chain
from dualstream.service.journal.protocol import Appended, Entry, LogPosition
from dualstream.service.replica.fork_detection import Lineage, contradicts, may_contradict

START = LogPosition(0, first_chain("7" * 32))


def grown(chance: random.Random, path: Sequence[Entry], count: int) -> list[Entry]:
    entries = list(path)
    for _ in range(count):
        before = place_of(entries)
        nonce = chance.randbytes(16)
        seq = before.seq + chance.randrange(1, 4)
        chain = next_chain(before.chain, nonce)
        entries.append(Entry(before.seq + 1, seq, nonce, chain, 0, b""))
    return entries


def place_of(entries: Sequence[Entry]) -> LogPosition:
    return LogPosition(entries[-1].seq, entries[-1].chain) if entries else START


def lineage_of(entries: Sequence[Entry]) -> Lineage:
    lineage = Lineage()
    lineage.begin(START.seq, START.chain)
    for entry in entries:
        lineage.add(entry.seq, entry.chain)
    return lineage


def got(chance: random.Random, mine: Sequence[Entry], previous: int) -> Appended:
    """The store's answer: the journal ends with the own entry, or nothing was new."""
    unseen = tuple(entry for entry in mine if entry.seq > previous)
    if chance.random() < 0.4:
        end = place_of(mine)
        return Appended((), None, None, end.chain, end.chain, unseen, False)
    before, last = place_of(mine[:-1]), mine[-1]
    others = unseen[:-1]
    got = others[: chance.randrange(len(others) + 1)]
    more = len(got) < len(others)
    return Appended((), last.first_seq, last.seq, before.chain, last.chain, got, more)


def test_one_on_the_journals_path_is_never_doubted():
    """At any position: before, within or after the returned entries."""
    for seed in range(400):
        never_doubted(random.Random(seed))


def never_doubted(chance):
    journal = grown(chance, [], 8)
    mine = journal[: chance.randrange(1, 8)]
    previous = place_of(mine[: chance.randrange(len(mine))])
    appended = got(chance, mine, previous.seq)
    path = journal[: chance.randrange(9)]
    assert not may_contradict(appended, place_of(path), lineage_of(path))
    assert not contradicts(appended, previous)


def test_append_after_a_lost_entry_is_a_contradiction():
    """Whether its append was asked behind what is left, or behind what is lost."""
    for seed in range(400):
        doubted(random.Random(seed))


def doubted(chance):
    path = grown(chance, [], 8)
    file = place_of(path)
    kept = path[: chance.randrange(8)]
    mine = grown(chance, kept, chance.randrange(1, 9))
    previous = place_of(kept[: chance.randrange(len(kept) + 1)])
    appended = got(chance, mine, previous.seq)
    # The own entry, too, says where it stands; what lies between may be left out.
    is_untold = appended.more and (appended.first_seq or 0) > file.seq + 1
    assert may_contradict(appended, file, lineage_of(path)) or is_untold
    appended = got(chance, mine, file.seq)
    if not appended.more or appended.entries:
        assert contradicts(appended, file)
        assert may_contradict(appended, file, lineage_of(path))


def test_a_repeated_answer_is_of_the_end_that_it_found():
    """A repeated nonce gets its first answer; other writers have appended since."""
    chance = random.Random(1)
    path = grown(chance, [], 5)
    chain = path[2].chain
    repeated = Appended((), None, None, chain, chain, (), False)
    assert not may_contradict(repeated, place_of(path), lineage_of(path))
    assert contradicts(repeated, place_of(path))  # as it was not asked from there
    elsewhere = grown(chance, [], 3)[-1].chain
    lost = Appended((), None, None, elsewhere, elsewhere, (), False)
    assert may_contradict(lost, place_of(path), lineage_of(path))
