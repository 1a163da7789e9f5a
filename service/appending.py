"""One append of a group, sent with the same nonce until its outcome is known.

A store whose answer is lost may have done what it was asked to, or not: the nonce makes it
harmless to ask again. Stores keep the last nonces alone; so what is asked for again tells behind
which place it was asked for first, as nothing of it stands before that.
"""

import asyncio

from service.controls import copy_named_by
from service.groups import Group, is_guarded
from service.journal.protocol import (
    Appended,
    AppendRequest,
    Journal,
    JournalUnavailable,
    NonceForgotten,
    OutcomeUnknown,
    Place,
)
from service.outside import Outside
from service.replica import Replica
from service.requests import Request

FIRST_PAUSE_S = 0.01
LONGEST_PAUSE_S = 0.5


class Appending:
    """Appends the groups of one model, behind what its replica has seen."""

    __slots__ = ("_journal", "_outside", "_replica", "_timeout_s")

    def __init__(
        self, journal: Journal, replica: Replica, timeout_s: float, outside: Outside
    ) -> None:
        self._journal = journal
        self._replica = replica
        self._timeout_s = timeout_s
        self._outside = outside

    def send(self, group: Group) -> "asyncio.Future[Appended]":
        """Append the group once; what is raised, too, is told by the future."""
        try:
            replica, first = self._replica, group.requests[0]
            cursor, copy, change, held = None, None, None, None
            if isinstance(first, Request):
                cursor = first.cursor
            else:  # the store has to hold the copy then
                copy, change, held = copy_named_by(first.control), first.change, first.held
            place = Place(replica.seq, replica.chain)
            if group.front is not None and group.front.seq > place.seq:
                place = group.front
            repeats = group.asked if cursor is None else None
            group.asked = repeats or place
            request = AppendRequest(
                replica.id,
                replica.incarnation,
                group.nonce,
                place.seq,
                group.parts,
                cursor,
                copy,
                change,
                held,
                repeats,
            )
            return asyncio.ensure_future(self._journal.append(request))
        except Exception as error:
            failed = asyncio.get_running_loop().create_future()
            failed.set_exception(error)
            return failed

    async def until_known(self, group: Group) -> Appended:
        """Append the group, or go on with what is sent of it, until the outcome is known.

        Raises JournalUnavailable when nothing was done, OutcomeUnknown at the deadline, or where
        it comes so late that nobody can tell any more.
        """
        sent, group.sent = group.sent, None
        began = self._outside.clock() if sent is None else group.began
        deadline = began + self._timeout_s
        pause = FIRST_PAUSE_S
        unknown: OutcomeUnknown | None = None
        while True:
            try:
                return await (self.send(group) if sent is None else sent)
            except NonceForgotten:
                if not is_guarded(group):
                    raise
                sent = group.asked = None  # it is asked for as if for the first time
                continue
            except OutcomeUnknown as error:
                unknown = error
            except JournalUnavailable as error:
                if unknown is None:
                    raise
                unknown = OutcomeUnknown(str(error))
            sent = None
            if self._outside.clock() + pause > deadline:
                raise unknown
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)
