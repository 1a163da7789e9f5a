"""Planted faults: each stands in for a method of the service's own classes, as a slip would.

A simulation that finds none of them would prove nothing. Every function here is given the true
method first; what it does otherwise is what its docstring says.
"""

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import msgspec
import numpy as np

import service.applying
import service.clean_up
import service.committer
import service.controls
import service.entries
import service.late_labels
import service.quarantine
import service.recovery
import service.refit_board
import service.replica
import service.versions
import service.watched
from service.appending import Appending
from service.applying import Applying
from service.catalog import Catalog
from service.committer import Committer
from service.controls import Refit
from service.entries import as_batch
from service.held import Held
from service.journal.chain import next_chain
from service.journal.protocol import Entry, ModelChanged, Part, Snapshot
from service.journal.record import Control, KeyKind, Rows, decode_merged, make_key
from service.loading import Loading
from service.model import Model
from service.pausing import Pausing
from service.recovery import Forked
from service.refit_board import Job
from service.replica import Replica
from service.requests import ControlRequest, Request
from service.retained import RetainedIds
from service.states import Captured
from service.trail import Trail
from solvers import Batch, Outcome
from tests.simulation.log import Log
from tests.simulation.store import Store


@dataclass(frozen=True)
class Bug:
    """What stands in for what: (class or module, name, function)."""

    patches: Sequence[tuple[Any, str, Callable[..., Any]]]

    @contextlib.contextmanager
    def planted(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for owner, name, planted in self.patches:
                standing_in = _standing_in(planted, getattr(owner, name))
                stack.enter_context(patch.object(owner, name, standing_in))
            yield


def _standing_in(planted: Callable[..., Any], true: Any) -> Callable[..., Any]:
    return lambda *given, **named: planted(true, *given, **named)


# -- appending ---------------------------------------------------------------------------------


def _fresh_nonce(true: Any, self: Appending, group: Any) -> Any:
    """What is repeated is taken for something new."""
    before = getattr(self._replica, "sent_nonce", None)
    self._replica.sent_nonce = group.nonce  # type: ignore[attr-defined]
    if group.nonce == before:
        group = msgspec.structs.replace(group, nonce=self._outside.nonce())
    return true(self, group)


def _keys_seen(true: Any, self: Store, model: str, incarnation: str, *given: Any) -> Any:
    """Keys are held against what the appender has seen, not in the append."""
    log = self.log(model, incarnation)
    unseen = {key: known for key, known in log.keys.items() if known.seq > given[1]}
    for key in unseen:
        del log.keys[key]
    appended = true(self, model, incarnation, *given)
    log.keys = unseen | log.keys
    return appended


def _labels_unkeyed(true: Any, *given: Any) -> Request:
    """Whether a label was learned is looked up before the append, and there alone."""
    request: Request = true(*given)
    request.parts = [
        part if part.count == 0 else Part(part.body, 1, continues=part.continues)
        for part in request.parts
    ]
    return request


def _keys_forgotten(true: Any, self: Store, mine: str) -> Any:
    """Keys live as long as the process: whoever starts has none."""
    for log in self.logs.values():
        log.keys.clear()
    return true(self, mine)


def _learned_early(true: Any, self: Appending, group: Any) -> Any:
    """Learn first, journal then."""
    replica = self._replica
    _, (block,) = decode_merged(b"".join(part.body for part in group.parts))
    if not isinstance(block, Control):
        stood = replica.seq
        replica.early = replica._learn_slice(as_batch(block, replica.dim))  # type: ignore[attr-defined]
        replica.seq = stood
    return true(self, group)


def _not_again(true: Any, self: Replica, seq: int, chain: str, *given: Any) -> Any:
    self.seq, self.chain = seq, chain
    return self.early[: len(given[0])]  # type: ignore[attr-defined]


async def _nor_again(true: Any, self: Replica, seq: int, chain: str, *given: Any) -> Any:
    return _not_again(true, self, seq, chain, *given)


def _as_if_new(true: Any, rows: Rows, dim: int) -> Batch:
    """Whoever reads the journal scores rows anew that were served long ago."""
    return replace(true(rows, dim), served=None)


# -- answering ---------------------------------------------------------------------------------


def _other_end(true: Any, requests: Any, placed: Any, outcome: Outcome | None, *given: Any) -> Any:
    """A group's receipts are cut from the outcome's other end."""
    return true(requests, placed, None if outcome is None else outcome[::-1], *given)


def _one_before(true: Any, done: Any, first_seq: int, seq: int) -> Any:
    """What is handed over belongs to the record before."""
    return true(done, first_seq - 1, seq - 1) or true(done, first_seq, seq)


def _nothing(true: Any, self: Any, *given: Any) -> None:
    """The check is not made."""


# -- following the journal ---------------------------------------------------------------------


async def _any_chain(true: Any, self: Replica, entries: Sequence[Entry], *given: Any) -> None:
    """Whatever comes next is taken to follow."""
    chain, seq, fitting = self.chain, self.seq, []
    for entry in entries:
        chain = next_chain(chain, entry.nonce)
        first_seq = min(entry.first_seq, seq + 1)
        fitting.append(msgspec.structs.replace(entry, chain=chain, first_seq=first_seq))
        seq = entry.seq
    await true(self, fitting, *given)
    if entries:
        self.chain = entries[-1].chain


def _controls_first(true: Any, self: Replica, entries: Any) -> Any:
    """Controls are applied before the rows that came with them."""
    names, records, *others = true(self, entries)
    return names, sorted(records, key=lambda record: not isinstance(record, Control)), *others


async def _only_new(true: Any, self: Applying, group: Any, appended: Any, *given: Any) -> Any:
    """The chain is looked at only where something was new."""
    if appended.seq is None:
        appended = msgspec.structs.replace(appended, more=True)
    return await true(self, group, appended, *given)


async def _looked_once(true: Any, self: Applying, read_already: bool) -> None:
    """What the head tells of and a read does not find is left to the next refresh."""
    replica = self._replica
    record = await self._journal.get(replica.id)
    if record.incarnation != replica.incarnation:
        raise ModelChanged(replica.id)
    replica.check_head(record)
    if not read_already or record.seq > replica.seq:
        await replica.catch_up(self._journal)


async def _served_meanwhile(true: Any, self: Applying, fork: Exception) -> None:
    """A fork is served until the rebuilding begins."""
    if isinstance(fork, Forked):
        self.on_fork(self._replica.id)
    record = await self._journal.get(self._replica.id)
    if record.incarnation != self._replica.incarnation:
        raise ModelChanged(self._replica.id)
    await self._replica.rebuild(record, self._journal)


@contextlib.asynccontextmanager
async def _whoever_came_before(true: Any, self: Replica) -> AsyncIterator[None]:
    """Who asked before a fork was known is served of it after."""
    async with self.still():
        yield


async def _with_its_caller(true: Any, self: Committer, seq: int | None = None) -> None:
    """A refresh is cancelled with the request that asked for it."""
    await self._refresh(seq)


async def _unwatched(true: Any, self: Replica, *given: Any) -> Any:
    """A rebuilding does not know what a committer waits for."""
    watched, self.watched = self.watched, {}
    try:
        return await true(self, *given)
    finally:
        self.watched = watched


def _old_progress(true: Any, self: Replica, other: Replica) -> None:
    """A rebuilt replica keeps its old metrics."""
    other.progress = self.progress
    true(self, other)


def _left_waiting(true: Any, self: Loading, model: Any) -> None:
    """Nobody tells those who wait for a loading that its client has left."""
    if model is not None:
        true(self, model)


# -- snapshots and predictions -----------------------------------------------------------------


async def _any_snapshot(true: Any, replica: Replica, snapshot: Any, journal: Any) -> None:
    """A snapshot that nothing follows is taken for the journal's end."""
    await replica.catch_up(journal)


def _anywhere(true: Any, *given: Any) -> bool:
    """So it is where it was read together with the model's head."""
    return True


def _uncounted(true: Any, self: Replica, *given: Any) -> None:
    """A snapshot does not bring back the count of refused controls."""
    true(self, *given)
    self.refused_controls = 0


@dataclass
class _Late:
    captured: Captured
    replica: Replica

    @property
    def seq(self) -> int:
        return self.captured.seq

    def encode(self) -> Snapshot:
        return self._now().encode()

    def as_copy(self) -> Snapshot:
        return self._now().as_copy()

    def _now(self) -> Captured:
        of = self.captured
        return Captured(of.seq, of.chain, self.replica._state(), of.header)


def _uncopied(true: Any, self: Replica) -> Any:
    """The state is read when it is encoded, while learning goes on."""
    return _Late(true(self), self)


def _older_instead(true: Any, self: Store, model: str, incarnation: str, *given: Any) -> bool:
    """A slow writer's snapshot takes the place of a newer one."""
    log = self.log(model, incarnation)
    stored = log.snapshots
    log.snapshots = []
    try:
        return bool(true(self, model, incarnation, *given))
    finally:
        log.snapshots = [*stored, *log.snapshots][-2:]


async def _counted_prediction(true: Any, self: Replica, batch: Any) -> Any:
    """A prediction leaves a trace in the metrics."""
    scores, seq, chain = await true(self, batch)
    self.progress.update(batch.labels, scores, np.abs(scores), np.ones(len(batch), bool))
    return scores, seq, chain


# -- leaving memory ----------------------------------------------------------------------------


def _whoever_uses_it(true: Any, self: Held, model: Model) -> bool:
    """A model leaves in the middle of a request."""
    return model.is_idle


# -- unlearning --------------------------------------------------------------------------------


async def _promised(true: Any, *given: Any) -> bool:
    """The store is told to be clean before it is."""
    return True


def _forgotten(true: Any, self: RetainedIds, state: Any) -> None:
    """A snapshot does not bring back who the retained rows are."""
    true(self, {})


def _by_seq(true: Any, self: RetainedIds, digest: bytes) -> None:
    """The rows behind an unlearned one keep their numbers."""
    entered = self._entered
    true(self, digest)
    self._entered = entered


# -- going back --------------------------------------------------------------------------------


def _kept_metrics(true: Any, self: Replica, *given: Any) -> None:
    """A rollback restores the learner alone."""
    progress = self.progress
    true(self, *given)
    self.progress = progress


async def _one_too_few(true: Any, journal: Any, record: Any, seq: int) -> Any:
    """The state at a seq is computed of the records before it."""
    return await true(journal, record, max(0, seq - 1))


def _to_the_newest(true: Any, self: Store, model: str, incarnation: str, *given: Any) -> None:
    """The journal is trimmed to the newest snapshot, as if no snapshot were ever damaged."""
    through, behind = given
    true(self, model, incarnation, through, None if behind is None else 0)


def _whoever_names_it(true: Any, self: Store, log: Log, digest: str) -> None:
    """A copy goes with the record that names it, whether a version does as well or not."""
    log.stored.pop(digest, None)


class _Unread:
    """A journal that does not tell that it was trimmed to who reads for nothing else."""

    def __init__(self, journal: Any) -> None:
        self._journal = journal
        self.copy_get = journal.copy_get

    async def read(self, *given: Any) -> Sequence[Entry]:
        *_, limit = given
        found: Sequence[Entry] = [] if limit == 1 else await self._journal.read(*given)
        return found


async def _not_asked_again(true: Any, self: Replica, control: Control, journal: Any) -> Any:
    """A copy that went with the record that names it is taken for a lost one."""
    return await true(self, control, _Unread(journal))


# -- pauses ------------------------------------------------------------------------------------


def _held_twice(true: Any, *given: Any) -> Iterator[Any]:
    """The rows of a quarantine are learned, and then once more."""
    for held in true(*given):
        yield held
        yield held


async def _whatever_is_held(true: Any, self: Model, through: int) -> int:
    """The journal is trimmed as if nobody needed the rows of a quarantine any more."""
    return through


# -- refits and deletions ----------------------------------------------------------------------


def _under_its_own(
    true: Any, order: Any, key: bytes | None = None, *given: Any, **named: Any
) -> ControlRequest:
    """Each result of a refit enters, whether another one came first or not."""
    if isinstance(order, Refit):
        key = make_key(KeyKind.REFIT, order.job)
    request: ControlRequest = true(order, key, *given, **named)
    return request


def _under_way_for_ever(true: Any, stored: str | None) -> list[Job]:
    """Nobody takes over what was lost with its process."""
    return [] if stored is None else msgspec.json.decode(stored, type=list[Job])


def _behind_anything(true: Any, *given: Any) -> None:
    """Weights enter a state that others were computed of."""


async def _whichever_is_there(true: Any, self: Catalog, *given: Any) -> tuple[None, None]:
    """A deletion takes whatever has the id when the store hears of it."""
    return None, None


def _joined(true: Any, self: Trail, seq: int, chain: str) -> None:
    """A replica is taken to have come from where it stood to where a snapshot stands."""
    self.pass_by(seq, chain)


def _told_again(true: Any, self: Trail, other: Trail) -> Any:
    """What was lost is told by each who rebuilds what was forked."""
    return self._lost_in(other)


def _begun_from(true: Any, self: Replica, bare: Any) -> None:
    """Where a bare replica began is remembered, ..."""
    begun = msgspec.structs.replace(bare, trail=bare.trail.trimmed())
    self.begun_from = begun  # type: ignore[attr-defined]
    true(self, bare)


def _where_it_began(true: Any, self: Replica, *given: Any) -> Any:
    """... and kept as the place of what has learned since."""
    found = true(self, *given)
    if not self.is_bare:
        return found
    begun: Any = self.begun_from  # type: ignore[attr-defined]
    return msgspec.structs.replace(found, seq=begun.seq, chain=begun.chain, trail=begun.trail)


def _all_new(true: Any, place: Any) -> bool:
    """A row that is known counts as a new one."""
    return False


BUGS = {
    "no nonce on retry": Bug([(Appending, "send", _fresh_nonce)]),
    "key checked outside the append": Bug([(Store, "append", _keys_seen)]),
    "label key checked outside the append": Bug(
        [(service.late_labels, "request_of", _labels_unkeyed)]
    ),
    "label learned without what was served": Bug([(service.entries, "as_batch", _as_if_new)]),
    "duplicate learned again after restart": Bug([(Store, "claim_identity", _keys_forgotten)]),
    "apply before append": Bug(
        [
            (Appending, "send", _learned_early),
            (Replica, "learn_own", _not_again),
            (Replica, "apply_own", _nor_again),
        ]
    ),
    "receipts of a group mis-ordered": Bug([(service.committer, "receipts_of", _other_end)]),
    "outcome of another record handed over": Bug(
        [(service.watched, "within", _one_before), (service.replica, "within", _one_before)]
    ),
    "acknowledged though known to be lost": Bug([(Applying, "_check_kept", _nothing)]),
    "no chain check": Bug([(Replica, "apply", _any_chain)]),
    "no chain check at once": Bug([(Replica, "check_order", _nothing)]),
    "control applied out of place": Bug([(Replica, "_beyond", _controls_first)]),
    "no chain check where nothing is new": Bug([(Applying, "apply", _only_new)]),
    "fork served until it is rebuilt": Bug(
        [(Applying, "_rebuild", _served_meanwhile), (Applying, "_has_parted", _nothing)]
    ),
    "fork served for one more turn": Bug([(Applying, "_has_parted", _nothing)]),
    "fork served to who asked before": Bug([(Replica, "serving", _whoever_came_before)]),
    "refresh cancelled with its caller": Bug([(Committer, "refresh", _with_its_caller)]),
    "rebuild forgets what is watched": Bug([(Replica, "rebuild", _unwatched)]),
    "rebuild keeps the old metrics": Bug([(Replica, "_take_over", _old_progress)]),
    "snapshot that does not lead on": Bug(
        [
            (service.recovery, "_go_on_from", _any_snapshot),
            (service.recovery, "_leads_there", _anywhere),
        ]
    ),
    "snapshot without a count": Bug([(Replica, "restore", _uncounted)]),
    "snapshot not copied": Bug([(Replica, "capture", _uncopied)]),
    "older snapshot replaces a newer one": Bug([(Store, "snapshot_put", _older_instead)]),
    "store taken for clean too early": Bug([(service.clean_up, "clean_up", _promised)]),
    "snapshot without who is in it": Bug([(RetainedIds, "restore", _forgotten)]),
    "ids out of step with their rows": Bug([(RetainedIds, "_close_up", _by_seq)]),
    "rollback keeps the metrics": Bug([(Replica, "become", _kept_metrics)]),
    "rollback by one too many": Bug([(service.versions, "state_at", _one_too_few)]),
    "trim past the older snapshot": Bug([(Store, "trim", _to_the_newest)]),
    "copy of a version gone with a record": Bug([(Store, "_collect", _whoever_names_it)]),
    "prediction changes the state": Bug([(Replica, "predict", _counted_prediction)]),
    "quarantine learned twice": Bug([(service.quarantine, "rows_held", _held_twice)]),
    "quarantine trimmed away": Bug([(Model, "_may_go", _whatever_is_held)]),
    "weights entered behind a control": Bug(
        [(service.controls, "_check_follows", _behind_anything)]
    ),
    "refit entered twice": Bug([(ControlRequest, "of", _under_its_own)]),
    "lost refit left alone": Bug([(service.refit_board, "_jobs", _under_way_for_ever)]),
    "late deletion of what was made since": Bug([(Catalog, "_to_delete", _whichever_is_there)]),
    "snapshot joined to what was before": Bug([(Trail, "begin", _joined)]),
    "loss counted again": Bug([(Trail, "give_way_to", _told_again)]),
    "evicted in the middle of a request": Bug([(Held, "_may_go", _whoever_uses_it)]),
    "bare learner kept at where it began": Bug(
        [(Replica, "_go_on_from", _begun_from), (Replica, "bare", _where_it_began)]
    ),
    "known rows answered by a bare replica": Bug([(service.applying, "is_left", _all_new)]),
    "loading left by its client": Bug([(Loading, "end", _left_waiting)]),
}

RARE = {
    "rollback goes on where its model was let go": Bug([(Pausing, "stop", _nothing)]),
    "copy gone with its record": Bug([(service.replica, "obey_in_place", _not_asked_again)]),
    "head lost before it is read": Bug([(Applying, "_hold_against_head", _looked_once)]),
}
"""No seed is known that finds them: tests of test_replay.py and test_many_models.py do."""
