"""Faults of followers of a journal: forks, rebuilds, the journal's end, counted losses."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec

import dualstream.service.replica.commit
import dualstream.service.replica.recovery
from dualstream.service.features.certificate.reference_optimum import References
from dualstream.service.journal.chain import next_chain
from dualstream.service.journal.page import end_of
from dualstream.service.journal.protocol import Entry, ModelChanged
from dualstream.service.journal.record import Control
from dualstream.service.replica.commit import Committer
from dualstream.service.replica.fork_detection import Lineage
from dualstream.service.replica.recovery import NoBase
from dualstream.service.replica.replica import Replica
from tests.simulation.bugs.planting import Bug, nothing


async def _any_chain(true: Any, self: Replica, entries: Sequence[Entry], *args: Any) -> None:
    """Whatever comes next is taken to follow."""
    chain, seq, fitting = self.chain, self.seq, []
    for entry in entries:
        chain = next_chain(chain, entry.nonce)
        first_seq = min(entry.first_seq, seq + 1)
        fitting.append(msgspec.structs.replace(entry, chain=chain, first_seq=first_seq))
        seq = entry.seq
    await true(self, fitting, *args)
    if entries:
        self.chain = entries[-1].chain


def _controls_first(true: Any, self: Replica, entries: Any) -> Any:
    """Controls are applied before the rows that came with them."""
    names, records, *others = true(self, entries)
    return names, sorted(records, key=lambda record: not isinstance(record, Control)), *others


async def _only_new(true: Any, self: Committer, group: Any, appended: Any, *args: Any) -> Any:
    """The chain is looked at only where something was new."""
    if appended.seq is None:
        appended = msgspec.structs.replace(appended, more=True)
    return await true(self, group, appended, *args)


async def _looked_once(true: Any, replica: Replica, journal: Any, has_read: bool) -> None:
    """Records that the head has but a read does not find are left to the next refresh."""
    record = await journal.get(replica.id)
    if record.incarnation != replica.incarnation:
        raise ModelChanged(replica.id)
    replica.check_head(record)
    if not has_read or record.seq > replica.seq:
        await replica.catch_up(journal)


async def _served_meanwhile(true: Any, self: Committer, cause: Exception) -> None:
    """A fork is served until the rebuilding begins."""
    await self._journal.get(self._replica.id)
    await true(self, cause)


def _in_a_task(true: Any, work: Any) -> None:
    """The answer to an append is looked at one iteration of the event loop later."""
    asyncio.create_task(work)


@contextlib.asynccontextmanager
async def _whoever_came_before(true: Any, self: Replica) -> AsyncIterator[None]:
    """Who asked before a fork was known is served of it after."""
    async with self.still():
        yield


async def _with_its_caller(true: Any, self: Committer, seq: int | None = None) -> None:
    """A refresh is cancelled with the request that asked for it."""
    await self._refresh(seq)


async def _unwatched(true: Any, replica: Replica, *args: Any) -> Any:
    """A rebuilding does not know what a committer waits for."""
    watched, replica.watched = replica.watched, {}
    try:
        return await true(replica, *args)
    finally:
        replica.watched = watched


def _old_progress(true: Any, self: Replica, other: Replica) -> None:
    """A rebuilt replica keeps its old metrics."""
    other.progress = self.progress
    true(self, other)


def _any_snapshot(true: Any, replica: Replica, begins_at: int, head: Any) -> bool:
    """A snapshot that nothing follows is taken for the journal's end."""
    return replica.seq == begins_at > 0 or true(replica, begins_at, head)  # type: ignore[no-any-return]


def _any_replay(true: Any, replica: Replica, begins_at: int, head: Any) -> bool:
    """The end of what is replayed is taken for the journal's, whatever its head says."""
    return begins_at == 0 or true(replica, begins_at, head)  # type: ignore[no-any-return]


def _any_rows_behind(true: Any, replica: Replica, begins_at: int, head: Any) -> bool:
    """The end of what follows a snapshot is taken for the journal's."""
    return replica.seq > begins_at > 0 or true(replica, begins_at, head)  # type: ignore[no-any-return]


def _any_rebuilt(true: Any, replica: Replica, begins_at: int, head: Any) -> bool:
    """A rebuild stops where its reads stop, even before the head that was read earlier."""
    return replica.lineage._kept is None or true(replica, begins_at, head)  # type: ignore[no-any-return]


async def _started_once(true: Any, *args: Any) -> None:
    """Entries that vanish between two reads of a journal fail its reader."""
    if (failure := await true(*args)) is not None:
        raise NoBase(failure)


def _joined(true: Any, self: Lineage, seq: int, chain: str) -> None:
    """A replica is taken to have come from where it stood to where a snapshot stands."""
    self.add(seq, chain)


def _parted_for_sure(true: Any, self: Lineage, other: Lineage) -> Any:
    """Who was overtaken by the trimming counts what it cannot see as lost."""
    has_diverged, self.has_diverged = self.has_diverged, True
    try:
        return true(self, other)
    finally:
        self.has_diverged = has_diverged


def _by_its_seq(true: Any, self: Committer, appended: Any) -> None:
    """An entry is identified by its seq alone."""
    if any(placement.seq > self._replica.seq for placement in appended.positions):
        true(self, appended)


async def _by_seq_alone(true: Any, self: References) -> Any:
    """The optimum of a window is kept for any window that ends at its seq."""
    model = self._model_ref()
    result = None if model is None else model.job(References).newest
    return result if result and result.position.seq == model.replica.seq else await true(self)


def _led_on(true: Any, *args: Any) -> bool:
    """Nothing is lost while an optimum is computed."""
    return True


async def _read_and_kept(true: Any, self: Replica, journal: Any, some: Sequence[Entry]) -> Any:
    """What is read ahead is looked at once it is its turn."""
    return await self._read(journal, end_of(some))


BUGS = {
    "acknowledged though known to be lost": Bug([(Committer, "_check_kept", nothing)]),
    "acknowledged though others stand there": Bug([(Committer, "_check_kept", _by_its_seq)]),
    "no chain check": Bug([(Replica, "apply", _any_chain)]),
    "no chain check at once": Bug([(Replica, "check_order", nothing)]),
    "control applied out of place": Bug([(Replica, "_content_after", _controls_first)]),
    "no chain check where nothing is new": Bug([(Committer, "_apply", _only_new)]),
    "fork served until it is rebuilt": Bug(
        [
            (Committer, "_rebuild", _served_meanwhile),
            (dualstream.service.replica.commit, "contradicts", nothing),
        ]
    ),
    "fork served for one more turn": Bug(
        [(dualstream.service.replica.commit, "start", _in_a_task)]
    ),
    "fork served to who asked before": Bug([(Replica, "serving", _whoever_came_before)]),
    "refresh cancelled with its caller": Bug([(Committer, "refresh", _with_its_caller)]),
    "rebuild forgets what is watched": Bug(
        [(dualstream.service.replica.commit, "rebuild", _unwatched)]
    ),
    "rebuild keeps the old metrics": Bug([(Replica, "_replace_state", _old_progress)]),
    "snapshot that does not lead on": Bug(
        [(dualstream.service.replica.recovery, "_leads_there", _any_snapshot)]
    ),
    "head not looked at behind a replay": Bug(
        [(dualstream.service.replica.recovery, "_leads_there", _any_replay)]
    ),
    "head not looked at behind a snapshot": Bug(
        [(dualstream.service.replica.recovery, "_leads_there", _any_rows_behind)]
    ),
    "snapshot joined to what was before": Bug([(Lineage, "begin", _joined)]),
    "overtaken taken for lost": Bug([(Lineage, "lost_in", _parted_for_sure)]),
    "entries gone between two reads": Bug(
        [(dualstream.service.replica.recovery, "_failure_of_starts", _started_once)]
    ),
    "head lost before it is read": Bug(
        [(dualstream.service.replica.commit, "reach_head", _looked_once)]
    ),
    "let go and goes on": Bug([(Committer, "refuse", nothing)]),
    "head behind it served on": Bug([(Committer, "suspect", nothing)]),
    "half a row kept": Bug([(Committer, "_mark_forked_after", nothing)]),
    "page read ahead not looked at": Bug([(Replica, "_read_ahead", _read_and_kept)]),
    "reference of whatever has its seq": Bug([(References, "find", _by_seq_alone)]),
    "reference of what is lost meanwhile": Bug([(Replica, "leads_on_from", _led_on)]),
    "rebuilt to anywhere": Bug(
        [(dualstream.service.replica.recovery, "_leads_there", _any_rebuilt)]
    ),
}
