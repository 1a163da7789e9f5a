"""Slips with what is kept of states: snapshots, versions, copies, and what is let go."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np

import dualstream.service.features.unlearning.cleanup
import dualstream.service.models.versions
import dualstream.service.replica.replica
from dualstream.service.features.unlearning.state import RetainedIds
from dualstream.service.journal.protocol import Entry, Snapshot
from dualstream.service.journal.record import Control
from dualstream.service.models.model import Model
from dualstream.service.replica.replica import Replica
from dualstream.service.replica.state import Captured, PositionedState
from tests.simulation.bugs.planting import Bug
from tests.simulation.log import Log
from tests.simulation.store import Store


def _uncounted(true: Any, self: Replica, *args: Any) -> None:
    """A snapshot does not bring back the count of refused controls."""
    true(self, *args)
    self.refused_controls = 0


@dataclass(frozen=True)
class _Late(Captured):
    replica: Any = None

    @property
    def snapshot_arrays(self) -> dict[str, np.ndarray]:
        return PositionedState.capture(self.replica).snapshot_arrays

    def as_copy(self) -> Snapshot:
        now = PositionedState.capture(self.replica)
        return replace(now, seq=self.seq, chain=self.chain, header=self.header).as_copy()


def _uncopied(true: Any, self: Replica) -> Any:
    """The state is read when it is encoded, while learning goes on."""
    of = true(self)
    return _Late(of.seq, of.chain, of.arrays, of.header, of.make_parts, of.bookkeeping, self)


def _older_instead(true: Any, self: Store, model: str, incarnation: str, *args: Any) -> bool:
    """A slow writer's snapshot takes the place of a newer one."""
    log = self.log(model, incarnation)
    stored = log.snapshots
    log.snapshots = []
    try:
        return bool(true(self, model, incarnation, *args))
    finally:
        log.snapshots = [*stored, *log.snapshots][-2:]


async def _counted_prediction(true: Any, self: Replica, batch: Any) -> Any:
    """A prediction leaves a trace in the metrics."""
    scores, seq, chain = await true(self, batch)
    self.progress.update(batch.labels, scores, np.abs(scores), np.ones(len(batch), bool))
    return scores, seq, chain


async def _promised(true: Any, *args: Any) -> bool:
    """The store is reported as clean before it is."""
    return True


def _forgotten(true: Any, self: RetainedIds, *args: Any) -> None:
    """A snapshot does not bring back who the retained rows are."""


def _by_seq(true: Any, self: RetainedIds, digest: bytes) -> None:
    """The rows behind an unlearned one keep their numbers."""
    entered = self._entered
    true(self, digest)
    self._entered = entered


def _to_the_newest(true: Any, self: Store, model: str, incarnation: str, *args: Any) -> None:
    """The journal is trimmed to the newest snapshot, as if no snapshot were ever damaged."""
    through, later = args
    true(self, model, incarnation, through, None if later is None else 0)


def _left_with_none(true: Any, self: Store, model: str, incarnation: str, before: int) -> None:
    """Snapshots go whether the log holds a newer one or has lost what that was of, ..."""
    log = self.log(model, incarnation)
    log.snapshots = [kept for kept in log.snapshots if kept.seq >= before]


def _to_anywhere(true: Any, self: Store, model: str, incarnation: str, *args: Any) -> None:
    """... and the journal before it with them."""
    through, later = args
    true(self, model, incarnation, through, later or None)


def _whoever_names_it(true: Any, self: Store, log: Log, digest: str) -> None:
    """A copy goes with the record that names it, whether a version does as well or not."""
    log.stored.pop(digest, None)


class _Unread:
    """A journal that hides from readers that it was trimmed."""

    def __init__(self, journal: Any) -> None:
        self._journal = journal
        self.copy_get = journal.copy_get

    async def read(self, *args: Any) -> Sequence[Entry]:
        *_, limit = args
        result: Sequence[Entry] = [] if limit == 1 else await self._journal.read(*args)
        return result


async def _not_asked_again(
    true: Any, self: Replica, kinds: Any, control: Control, journal: Any
) -> Any:
    """A copy that went with the record that names it is taken for a lost one."""
    return await true(self, kinds, control, _Unread(journal))


def _of_lost_records(true: Any, self: Store, model: str, incarnation: str, *args: Any) -> Any:
    """A version is taken of records that the log has lost or trimmed."""
    version, *others = args
    version = msgspec.structs.replace(version, created_ms=1)
    return true(self, model, incarnation, version, *others)


def _as_it_was(true: Any, self: Model, lost: Any) -> None:
    """Nothing is cleaned up of what comes with a rebuilding."""
    self.count_lost(lost)


async def _left_there(true: Any, *args: Any) -> None:
    """A copy that is not named waits for the next trim."""


BUGS = {
    "copy without a name left behind": Bug(
        [(dualstream.service.models.versions, "_discard_copy", _left_there)]
    ),
    "snapshot without a count": Bug([(Replica, "restore", _uncounted)]),
    "snapshot not copied": Bug([(Replica, "capture", _uncopied)]),
    "older snapshot replaces a newer one": Bug([(Store, "snapshot_put", _older_instead)]),
    "store taken for clean too early": Bug(
        [(dualstream.service.features.unlearning.cleanup, "clean_up", _promised)]
    ),
    "nothing cleaned behind a rebuilding": Bug([(Model, "on_loss", _as_it_was)]),
    "snapshot without who is in it": Bug([(RetainedIds, "restore", _forgotten)]),
    "ids out of step with their rows": Bug([(RetainedIds, "_close_up", _by_seq)]),
    "trim past the older snapshot": Bug([(Store, "trim", _to_the_newest)]),
    "copy of a version gone with a record": Bug([(Store, "_collect", _whoever_names_it)]),
    "prediction changes the state": Bug([(Replica, "predict", _counted_prediction)]),
    "version of what is lost": Bug([(Store, "version_put", _of_lost_records)]),
    "no snapshot left": Bug(
        [(Store, "snapshots_drop", _left_with_none), (Store, "trim", _to_anywhere)]
    ),
    "copy gone with its record": Bug(
        [(dualstream.service.replica.replica, "apply_control", _not_asked_again)]
    ),
}
