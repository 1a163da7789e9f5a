"""Slips on the way of a request: its append, its keys, its turn and its answer."""

from dataclasses import replace
from typing import Any

import msgspec

import dualstream.service.models.late_labels
import dualstream.service.replica.commit
import dualstream.service.replica.entries
import dualstream.service.replica.outcomes
import dualstream.service.replica.replica
import tests.simulation.late
from dualstream.service.codecs import ListedRows
from dualstream.service.codecs.parsed_rows import inputs_alone
from dualstream.service.journal.protocol import AppendRequest, OutcomeUnknown, Part
from dualstream.service.journal.record import Control, Rows, decode_merged
from dualstream.service.replica.absent import AbsentSeqs
from dualstream.service.replica.commit import Committer
from dualstream.service.replica.entries import as_batch
from dualstream.service.replica.groups import next_group
from dualstream.service.replica.replica import Replica
from dualstream.service.replica.requests import NewRows, Request
from dualstream.solvers import Batch, Outcome
from tests.simulation.bugs.planting import Bug, nothing
from tests.simulation.store import Store


def _fresh_nonce(true: Any, self: Committer, group: Any) -> Any:
    """What is repeated is taken for something new."""
    before = getattr(self._replica, "sent_nonce", None)
    self._replica.sent_nonce = group.nonce  # type: ignore[attr-defined]
    if group.nonce == before:
        group = msgspec.structs.replace(group, nonce=self._clock.new_nonce())
    return true(self, group)


def _anew(true: Any, self: Committer, group: Any) -> Any:
    """What is asked for again does not tell where it was asked for first."""
    group.first_known = None
    return true(self, group)


def _keys_seen(true: Any, self: Store, request: AppendRequest) -> Any:
    """Keys are compared with what the appender has seen, not within the append."""
    log = self.log(request.model, request.incarnation)
    unseen = {
        key: previous for key, previous in log.keys.items() if previous.seq > request.known_seq
    }
    for key in unseen:
        del log.keys[key]
    appended = true(self, request)
    log.keys = unseen | log.keys
    return appended


def _in_part(true: Any, self: Store, request: AppendRequest) -> Any:
    """What is to be taken whole or not at all is taken part by part."""
    replace, parts = msgspec.structs.replace, request.parts
    if any(part.whole for part in parts):
        parts = [replace(part, whole=False, continues=False) for part in parts]
    return true(self, replace(request, parts=parts))


def _as_it_is_now(true: Any, labels: Any, waiting: Any, *args: Any) -> Any:
    """A label that a repeated request did not find is passed over once its row waits."""
    got = true(labels, waiting, *args)
    got.unknown = [position for position in got.unknown if waiting[position] is None]
    return got


def _labels_unkeyed(true: Any, *args: Any) -> Request:
    """Whether a label was learned is looked up before the append, and there alone."""
    request: Request = true(*args)
    request.parts = [
        part if part.count == 0 else Part(part.body, 1, continues=part.continues)
        for part in request.parts
    ]
    return request


def _whatever_is_brought(true: Any, self: Store, model: str, incarnation: str, rows: Any) -> Any:
    """A row waits again whose label is known."""
    log = self.log(model, incarnation)
    keys, log.keys = log.keys, {}
    try:
        return true(self, model, incarnation, rows)
    finally:
        log.keys = keys


def _as_if_none_waited(true: Any, self: Store, request: AppendRequest) -> Any:
    """A row that waits enters the history again when it is predicted again."""
    log = self.log(request.model, request.incarnation)
    waits, log.waits = log.waits, {}
    try:
        return true(self, request)
    finally:
        labels = {part.key for part in request.parts if part.pending is None}
        log.waits |= {key: row for key, row in waits.items() if key not in labels}


async def _in_two_steps(true: Any, journal: Any, model: Any, served: Any, wait: Any) -> int:
    """A row is stored for its label, and enters the history in a step of its own."""
    if served.columns is None:
        return await true(journal, model, served, wait)
    record, waiting = model.record, served.waiting(wait)
    count: int = await journal.remember(record.id, record.incarnation, waiting)
    entering = inputs_alone(model.row_schema, served.rows)
    await model.submit(Request.of(entering, None, None))
    return count


def _without_columns(true: Any, columns: Batch, rows: ListedRows) -> Any:
    """A row waits without the columns that it was served with."""
    return rows.indptr, rows.indices, rows.values


def _keys_forgotten(true: Any, self: Store, mine: str) -> Any:
    """Keys live as long as the process: a new process has none."""
    for log in self.logs.values():
        log.keys.clear()
    return true(self, mine)


def _learned_early(true: Any, self: Committer, group: Any) -> Any:
    """Learn first, journal then."""
    replica = self._replica
    _, (block,) = decode_merged(b"".join(part.body for part in group.parts))
    if not isinstance(block, Control):
        stood = replica.seq
        replica.early = replica._learn_slice(as_batch(block, replica.dim))  # type: ignore[attr-defined]
        replica.seq = stood
    return true(self, group)


async def _not_again(true: Any, self: Replica, seq: int, chain: str, new: NewRows) -> Any:
    self.seq, self.chain = seq, chain
    return self.early[: len(new.batch)]  # type: ignore[attr-defined]


def _as_if_new(true: Any, rows: Rows, dim: int, *args: Any) -> Batch:
    """A reader of the journal computes scores again for rows that were served long ago."""
    return replace(true(rows, dim, *args), served=None)


def _other_end(
    true: Any, requests: Any, positions: Any, outcome: Outcome | None, *args: Any
) -> Any:
    """A group's receipts are cut from the outcome's other end."""
    return true(requests, positions, None if outcome is None else outcome[::-1], *args)


def _one_before(true: Any, done: Any, first_seq: int, seq: int) -> Any:
    """What is handed over belongs to the record before."""
    return true(done, first_seq - 1, seq - 1) or true(done, first_seq, seq)


def _of_an_empty_line(true: Any, self: Committer, taken: object = None) -> None:
    """The next group is taken from a queue from which all clients may have left."""
    if not self._waiting:
        next_group(self._waiting, self._clock)
    true(self, taken)


async def _said_undone(true: Any, self: Committer, group: Any) -> Any:
    """Of what was appended and not applied, for want of the store, it is said that nothing was."""
    try:
        return await true(self, group)
    except OutcomeUnknown as error:
        raise error.__cause__ or error from None


async def _all_the_same(true: Any, self: Committer, group: Any) -> Any:
    """What was appended ahead is learned, too, by a replica in whose place another one is."""
    refusal, self._refusal = self._refusal, None
    try:
        return await true(self, group)
    finally:
        self._refusal = refusal


def _at_any_moment(
    true: Any, self: Committer, appended: Any, front: Any, is_learning: bool
) -> None:
    """A replica is compared with a later append while it is inside an entry."""
    if is_learning and self._replica.seq == front.seq:
        true(self, appended, self._replica.position, True)
    else:
        true(self, appended, front, is_learning)


def _compared_with_itself(true: Any, self: Store, request: AppendRequest) -> Any:
    """A label replaces the one that its row has, and not the one that it names."""
    waits, parts = self.log(request.model, request.incarnation).waits, []
    for part in request.parts:
        row = waits.get(part.key or b"")
        if part.revisable is not None and part.revisable.replaces and row is not None:
            label = msgspec.structs.replace(part.revisable, replaces=row.label, seq=row.seq)
            part = msgspec.structs.replace(part, revisable=label)
        parts.append(part)
    return true(self, msgspec.structs.replace(request, parts=parts))


def _as_if_all_were_learned(true: Any, self: AbsentSeqs, seq: int) -> bool:
    """A label takes the place of the one before, whether the state has learned that or not."""
    return False


BUGS = {
    "label replaces what was rolled back": Bug(
        [(AbsentSeqs, "__contains__", _as_if_all_were_learned)]
    ),
    "label revised whatever the row has": Bug([(Store, "append", _compared_with_itself)]),
    "label explained by what waits now": Bug(
        [(dualstream.service.models.late_labels, "_explained", _as_it_is_now)]
    ),
    "whole request taken in part": Bug([(Store, "append", _in_part)]),
    "forgotten nonce taken for a new one": Bug([(Committer, "_send", _anew)]),
    "no nonce on retry": Bug([(Committer, "_send", _fresh_nonce)]),
    "key checked outside the append": Bug([(Store, "append", _keys_seen)]),
    "label key checked outside the append": Bug(
        [(dualstream.service.models.late_labels, "request_of", _labels_unkeyed)]
    ),
    "label learned without what was served": Bug(
        [(dualstream.service.replica.entries, "as_batch", _as_if_new)]
    ),
    "row remembered after its label": Bug([(Store, "remember", _whatever_is_brought)]),
    "row that waits enters again": Bug([(Store, "append", _as_if_none_waited)]),
    "row remembered before it enters": Bug([(tests.simulation.late, "remember", _in_two_steps)]),
    "row remembered without its columns": Bug(
        [(dualstream.service.models.late_labels, "_with_inputs", _without_columns)]
    ),
    "duplicate learned again after restart": Bug([(Store, "claim_identity", _keys_forgotten)]),
    "apply before append": Bug(
        [(Committer, "_send", _learned_early), (Replica, "apply_own", _not_again)]
    ),
    "receipts of a group mis-ordered": Bug(
        [(dualstream.service.replica.commit, "receipts_of", _other_end)]
    ),
    "outcome of another record handed over": Bug(
        [(dualstream.service.replica.outcomes, "within", _one_before)]
    ),
    "journalled told as not done": Bug([(Committer, "_commit", _said_undone)]),
    "turn taken for an empty line": Bug([(Committer, "_begin", _of_an_empty_line)]),
    "appended ahead and not looked at": Bug([(Committer, "_look_ahead", nothing)]),
    "appended ahead and looked at in between": Bug([(Committer, "_look_ahead", _at_any_moment)]),
    "place that is not held served on": Bug([(Committer, "_has_lost", nothing)]),
    "appended ahead and refused": Bug([(Committer, "_commit", _all_the_same)]),
}
