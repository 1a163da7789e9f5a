"""Full copies of states that are put away to be named, by a version or by a control.

A copy may have a sample that is unlearned while it is on its way to the store, and whoever cleans
the store of that looks for no copies that come later: so one that is not named goes.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from service.controls import why_forgotten
from service.journal.protocol import Conflict, Journal, JournalError, Snapshot

if TYPE_CHECKING:
    from service.model import Model


@dataclass(slots=True)
class PutAway:
    """A copy that is in the store."""

    digest: str
    is_named: bool = False
    """Whether its holder has named it. Nothing is asked of the store then: it answers at once, or
    what it tells may be lost by then."""


@asynccontextmanager
async def put_away(model: "Model", journal: Journal, copy: Snapshot) -> AsyncIterator[PutAway]:
    """A copy in the store, for whoever names it while this is held.

    If he does not, it stays only where something else names it. Others who put away the same may
    have to do it again.
    """
    digest = await journal.copy_put(model.record.id, model.record.incarnation, copy.data)
    away = PutAway(digest)
    try:
        yield away
    finally:
        if not away.is_named:
            with suppress(JournalError):  # it goes with a trim, once it has had no name for long
                await _let_go(model, journal, digest, copy.seq)


async def _let_go(model: "Model", journal: Journal, digest: str, seq: int) -> None:
    """Delete the copy of the state at `seq`, unless something names it."""
    where = (model.record.id, model.record.incarnation)
    try:
        await journal.copy_delete(*where, digest)
    except Conflict:
        return
    if model.replica.retained.why_not is None:
        await model.refresh()
        if why_forgotten(model.replica, seq) is not None:
            await journal.scrub(*where)
