"""Slips with controls: rollbacks, pauses and refits, and what those are made of."""

from collections.abc import Iterator
from typing import Any

import msgspec

import dualstream.service.features.guard.controls
import dualstream.service.features.guard.quarantine
import dualstream.service.features.refits.controls
import dualstream.service.features.refits.table
import dualstream.service.models.versions
import dualstream.service.replica.copies
import dualstream.service.replica.point_in_time
from dualstream.service.features.guard.state import Guarding
from dualstream.service.features.refits.controls import Refit
from dualstream.service.features.refits.job import Refits
from dualstream.service.features.refits.table import RefitJob
from dualstream.service.journal.protocol import AppendRequest
from dualstream.service.journal.record import KeyKind, make_key
from dualstream.service.models.snapshots import Snapshots
from dualstream.service.replica.copies import why_forgotten
from dualstream.service.replica.fork_detection import Lineage
from dualstream.service.replica.outcomes import ControlOutcomes
from dualstream.service.replica.replica import Replica
from dualstream.service.replica.requests import ControlRequest
from tests.simulation.bugs.planting import Bug, nothing
from tests.simulation.store import Store


def _kept_metrics(true: Any, self: Replica, *args: Any) -> None:
    """A rollback restores the learner alone."""
    progress = self.progress
    true(self, *args)
    self.progress = progress


async def _one_too_few(true: Any, *args: Any) -> Any:
    """The state at a seq is computed of the records before it."""
    *others, seq = args
    return await true(*others, max(0, seq - 1))


async def _held_by_all(true: Any, *args: Any) -> None:
    """A snapshot or version of lost records that has the right seq is gone back to."""


def _journalled_first(true: Any, *args: Any) -> None:
    """That there is no way back is found out once the rollback is in the journal."""


def _whatever_was_lost(true: Any, self: Store, request: AppendRequest) -> Any:
    """A control enters behind anything."""
    return true(self, msgspec.structs.replace(request, held=None))


def _still_to_come(true: Any, subject: Any, seq: int) -> str | None:
    """There is a way back to a seq that the journal has not come to."""
    return why_forgotten(subject, seq)


def _from_anywhere(true: Any, self: Lineage, *args: Any) -> bool:
    """A check for a lost position never finds it lost."""
    return True


def _held_twice(true: Any, *args: Any) -> Iterator[Any]:
    """The rows of a quarantine are learned, and then once more."""
    for kept in true(*args):
        yield kept
        yield kept


async def _whatever_is_held(true: Any, self: Snapshots, through: int) -> int:
    """The journal is trimmed although a quarantine still needs its rows."""
    return through


def _shown_apart_by_nobody(true: Any, self: Guarding, *args: Any) -> Any:
    """A state of between a trip and its rollback is taken for one of the last good look."""
    self.pauses.is_settled = True
    return true(self, *args)


def _from_the_trip_on(true: Any, self: Guarding, oldest: int, seq: int) -> int | None:
    """What a trip may put into quarantine is kept by who has seen the trip."""
    return self.pauses.kept_after(oldest)


def _under_its_own(
    true: Any, order: Any, key: bytes | None = None, *args: Any, **named: Any
) -> ControlRequest:
    """Each result of a refit enters, whether another one came first or not."""
    if isinstance(order, Refit):
        key = make_key(KeyKind.REFIT, order.job)
    request: ControlRequest = true(order, key, *args, **named)
    return request


def _under_way_for_ever(true: Any, stored: str | None) -> list[RefitJob]:
    """No worker resumes a job whose process died."""
    return [] if stored is None else msgspec.json.decode(stored, type=list[RefitJob])


def _behind_anything(true: Any, *args: Any) -> None:
    """Weights enter a state that others were computed of."""


async def _anothers(true: Any, *args: Any) -> bool:
    """A refit that meets its own record, as its first append went unseen, was another's."""
    return False


BUGS = {
    "rollback keeps the metrics": Bug([(Replica, "restore_copy", _kept_metrics)]),
    "rollback by one too many": Bug(
        [(dualstream.service.models.versions, "state_at", _one_too_few)]
    ),
    "rollback to what was lost": Bug(
        [
            (Store, "append", _whatever_was_lost),
            (dualstream.service.replica.copies, "why_no_way_back", _still_to_come),
            (dualstream.service.features.guard.controls, "why_no_way_back", _still_to_come),
            (dualstream.service.models.versions, "why_no_way_back", _still_to_come),
        ]
    ),
    "refit of what was lost": Bug([(Lineage, "includes", _from_anywhere)]),
    "quarantine learned twice": Bug(
        [(dualstream.service.features.guard.quarantine, "quarantined_rows", _held_twice)]
    ),
    "quarantine trimmed away": Bug([(Snapshots, "_may_trim", _whatever_is_held)]),
    "weights entered behind a control": Bug(
        [(dualstream.service.features.refits.controls, "_check_follows", _behind_anything)]
    ),
    "refit entered twice": Bug([(ControlRequest, "of", _under_its_own)]),
    "lost refit left alone": Bug(
        [(dualstream.service.features.refits.table, "_jobs", _under_way_for_ever)]
    ),
    "rows of a state in its quarantine": Bug([(Guarding, "on_restored", _shown_apart_by_nobody)]),
    "own refit taken for another": Bug([(Refits, "_is_own", _anothers)]),
    "refused when it is journalled": Bug(
        [
            (dualstream.service.models.versions, "why_forgotten", _journalled_first),
            (dualstream.service.models.versions, "why_no_way_back", _journalled_first),
        ]
    ),
    "gone back to a snapshot of what is lost": Bug(
        [(dualstream.service.replica.point_in_time, "_check_held", _held_by_all)]
    ),
    "verdict that a snapshot brings not told": Bug([(ControlOutcomes, "of", nothing)]),
    "quarantine to come trimmed away": Bug([(Guarding, "kept_after", _from_the_trip_on)]),
}
