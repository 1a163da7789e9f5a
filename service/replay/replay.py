"""Replay of a journal: an earlier state, or the state under another spec. Read-only."""

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from dualstream.service.journal import open_journal, sqlite_path
from dualstream.service.journal.chain import next_chain
from dualstream.service.journal.protocol import Entry, Journal, ModelRecord
from dualstream.service.journal.record import Control, decode_merged, holds_control
from dualstream.service.replay import history
from dualstream.service.replay.history import ReplicaOfOtherHistory, read_late_rows
from dualstream.service.replica.entries import split_at
from dualstream.service.replica.features import Features
from dualstream.service.replica.fork_detection import Forked
from dualstream.service.replica.point_in_time import NotKept, kept_from, state_at
from dualstream.service.replica.replica import Replica
from dualstream.service.replica.spec import canonical, check_spec, read_spec
from dualstream.solvers import InvalidSpec, resolve_spec
from dualstream.solvers.rows.columns.inputs import inputs_of
from dualstream.solvers.rows.hashing import hash_names

# Fields of the spec that determine how rows are encoded.
ENCODING = ("features", "task", "labels", "columns", "crosses")


class Refused(Exception):
    """The state cannot be computed."""


class Replayed(msgspec.Struct, frozen=True):
    """Result of a replay.

    from_seq            first record applied; greater than `seq` if none was, 0 for a stored state
    left_out_rollbacks  rollbacks skipped under another spec: they name states of the model's spec
    left_out_refits     refits skipped under another spec: they solve another problem
    left_out_pauses     pauses and resumes skipped under another spec: all rows are learned
    """

    model: str
    seq: int
    from_seq: int
    spec: dict[str, Any]
    samples: int
    rejected: int
    refused_controls: int
    left_out_rollbacks: int
    left_out_refits: int
    left_out_pauses: int
    state_digest: str
    metrics: dict[str, Any]
    segments: dict[str, Any]
    """Metrics by the values of each column of `segments`."""


async def replay(
    features: Features, store: str, model: str, until: int | None, changes: dict[str, Any]
) -> Replayed:
    """State of the model at `until` (default: end of the journal), with `changes` of its spec.

    Raises Refused, and the errors of the store.
    """
    path = sqlite_path(store)
    if path is not None and not Path(path).exists():
        raise Refused(f"no store at {path}; give its URL with --store")
    journal = await open_journal(store)
    try:
        record = await journal.get(model)
        seq = record.seq if until is None else until
        if changes:
            return _result(*await under_another_spec(features, journal, record, seq, changes))
        replica = await state_at(features, journal, record, seq)
        first = replica.restored_seq + 1 if seq > replica.restored_seq else 0
        return _result(replica, first, Counter())
    except NotKept as error:
        raise Refused(str(error)) from error
    finally:
        await journal.close()


def parse_changes(texts: Sequence[str]) -> dict[str, Any]:
    """Parse `window.beta=0.999`; a value that is not JSON is a text. Raises Refused."""
    changes: dict[str, Any] = {}
    for one in texts:
        path, equals, value = one.partition("=")
        if not equals or not all(path.split(".")):
            raise Refused(f"--set needs PATH=VALUE, e.g. window.beta=0.999, got {one!r}")
        try:
            changes[path] = json.loads(value)
        except ValueError:
            changes[path] = value
    return changes


def changed_spec(record: ModelRecord, changes: dict[str, Any]) -> dict[str, Any]:
    """The model's spec with these fields set, resolved. Raises Refused."""
    before = read_spec(record.spec)
    spec = read_spec(record.given)
    for path, value in changes.items():
        *folders, field = path.split(".")
        target, standing = spec, before
        for folder in folders:
            standing = _opened(standing.get(folder))
            kind = {"kind": standing["kind"]} if "kind" in standing else {}
            target[folder] = _opened(target[folder]) if folder in target else kind
            target = target[folder]
        target[field] = value
    try:
        resolved = resolve_spec(spec)
    except InvalidSpec as error:
        raise Refused(str(error)) from error
    for field in ENCODING:
        if resolved.get(field) != before.get(field):
            raise _needs_the_file(field, "the journal's rows are encoded with it")
    why_not = history.why_not(inputs_of(before), inputs_of(resolved))
    if why_not is not None:
        raise _needs_the_file("history", why_not)
    return resolved


def _needs_the_file(field: str, why_not: str) -> Refused:
    remedy = (
        "learn the file again with the new specification, or try it with"
        " `dualstream compare FILE --columns SPEC`"
    )
    return Refused(f"{field} cannot change so, because {why_not}; {remedy}")


def _opened(value: Any) -> dict[str, Any]:
    """A field as an object; a text is the short form of {"kind": text}."""
    if isinstance(value, str):
        return {"kind": value}
    return value if isinstance(value, dict) else {}


async def under_another_spec(
    features: Features, journal: Journal, record: ModelRecord, until: int, changes: dict[str, Any]
) -> tuple[Replica, int, Counter[str]]:
    """Replica at `until`, the first record that it learned, and the controls left out by kind."""
    check_spec(record)
    spec = await asyncio.to_thread(changed_spec, record, changes)
    first = await kept_from(journal, record)
    if not first - 1 <= until <= record.seq:
        raise NotKept(record.id, until, first, record.seq)
    replica = await _empty_replica(features, journal, record, first - 1, until, spec)
    for part in replica.parts:
        part.ignore_pauses()
    replica.seq = first - 1
    replica.parts.absent.add(1, first - 1)
    left_out = Counter[str]()
    # The chain before a trimmed journal is unknown.
    chain = replica.chain if first == 1 else None
    while replica.seq < until:
        entries = await journal.read(replica.id, replica.incarnation, replica.seq)
        if not entries:
            raise Forked(f"model {replica.id!r}: the journal ends at seq {replica.seq}")
        _check_chain(replica, chain, entries)
        chain = entries[-1].chain
        for run in split_at(entries, features.is_of_its_spec):
            if replica.seq >= until:
                break
            kind = _kind_of_its_spec(features, run[0])
            if kind is not None:
                left_out[kind] += 1
                replica.skip(run[0])
                continue
            whole = [entry for entry in run if entry.seq <= until]
            if whole:
                await replica.apply_run(whole, journal)
            if replica.seq < until and len(whole) < len(run):
                await replica.learn_part(run[len(whole)], until)
    return replica, first, left_out


async def _empty_replica(
    features: Features,
    journal: Journal,
    record: ModelRecord,
    after: int,
    until: int,
    spec: dict[str, Any],
) -> Replica:
    """A replica with this spec that has learned nothing, for the records after `after`."""
    before = read_spec(record.spec)
    if spec.get("history") == before.get("history"):
        replica = Replica(record, features, kept_answers=0, spec=canonical(spec))
        replica.forget_what_served(features.parts(before).served_width)
        return replica
    inputs = inputs_of(before)
    late = await read_late_rows(journal, record, after, until, inputs.row_width)
    names = []
    if late is not None:
        # Some columns are of single classes, which only a state knows.
        learner: Any = (await state_at(features, journal, record, until)).learner
        names = learner.history.names
    columns = hash_names(names, spec["features"]["bits"])
    return ReplicaOfOtherHistory(record, features, canonical(spec), inputs, columns, late)


def _check_chain(replica: Replica, chain: str | None, entries: Sequence[Entry]) -> None:
    """Raise Forked if the entries do not continue `chain`."""
    for entry in entries:
        if chain is not None and next_chain(chain, entry.nonce) != entry.chain:
            raise Forked(
                f"model {replica.id!r}: the hash chain breaks after seq {entry.first_seq - 1}"
            )
        chain = entry.chain


def _kind_of_its_spec(features: Features, entry: Entry) -> str | None:
    """Kind of a control that depends on the model's spec; None for other entries."""
    if not holds_control(entry.body):
        return None
    _, blocks = decode_merged(entry.body)
    controls = (
        block for block in blocks if isinstance(block, Control) and features.is_of_its_spec(block)
    )
    return next((control.kind for control in controls), None)


def _result(replica: Replica, from_seq: int, left_out: Counter[str]) -> Replayed:
    return Replayed(
        model=replica.id,
        seq=replica.seq,
        from_seq=from_seq,
        spec=replica.spec,
        samples=replica.learner.samples,
        rejected=replica.rejected,
        refused_controls=replica.refused_controls,
        left_out_rollbacks=left_out["rollback"],
        left_out_refits=left_out["refit"],
        left_out_pauses=left_out["pause"] + left_out["resume"],
        state_digest=replica.capture().state_digest(),
        metrics=replica.progress.summary() | replica.parts.metrics(),
        segments={
            column: replica.parts.metrics_by(column) for column in replica.spec.get("segments", ())
        },
    )
