"""Whether the journal, as an append tells it, can be the one that a replica has come by.

An append is asked behind some place, and tells a piece of the path from there: the entries of
others, and where its own begins and ends. A replica forks where the journal's path parts from its
own: entries were lost, and others may stand in their place.
"""

from service.journal.chain import next_chain
from service.journal.protocol import Appended, Entry, Place
from service.trail import Trail


def parts_at(appended: Appended, place: Place) -> bool:
    """Whether an append that was asked behind `place` shows that the journal has lost that."""
    for entry in appended.entries:
        if entry.seq > place.seq:
            return not follows(entry, place.chain)
    if appended.entries or appended.more:
        return False
    goes_on = appended.first_seq in (None, place.seq + 1)
    return not goes_on or appended.previous != place.chain


def may_have_parted(appended: Appended, place: Place, trail: Trail) -> bool:
    """Whether what an append tells and what led to `place` differ, or may: the head tells.

    It was asked behind another place, or answers what was asked before; it may be older than what
    the replica has come by since, or tell of what that has lost. What lies before all that is
    remembered may be either.
    """
    for entry in appended.entries:
        if entry.seq > place.seq:
            is_next = entry.first_seq == place.seq + 1
            return not follows(entry, place.chain) if is_next else entry.first_seq <= place.seq
        if not trail.holds(entry.seq, entry.chain):
            return True
    if appended.seq is None or appended.first_seq is None:
        is_all = not appended.entries and not appended.more
        return is_all and not trail.has_come_by(appended.chain)
    if appended.seq <= place.seq:
        return not trail.holds(appended.seq, appended.chain)
    if appended.first_seq == place.seq + 1:
        return appended.previous != place.chain
    return appended.first_seq <= place.seq  # no entry ends in the midst of another


def follows(entry: Entry, chain: str) -> bool:
    """Whether the entry comes right behind one that ends with `chain`."""
    return next_chain(chain, entry.nonce) == entry.chain
