"""All that one store keeps of its models, into another store, to the bit.

A model is written where nobody finds it, and shown once it is whole; what was written before a run
was cut off is gone on with by the next one. The source is only read.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from service.beside_log import Beside, Mark, beside, read_mark, told
from service.journal import make_journal, sqlite_path
from service.journal.audit import Where
from service.journal.chain import next_chain
from service.journal.moving import MOVED, Movable, Staged
from service.journal.protocol import (
    Conflict,
    CopyUse,
    Head,
    JournalUnavailable,
    Limits,
    ModelChanged,
    ModelRecord,
    Place,
    Trimmed,
    UnknownModel,
)
from service.settings import MOST_AUDIT_DAYS

PAGE = 100
CHANGES = 1000
READ_BYTES = 1 << 20
# So often a model's tail is copied once more before its source counts as being written.
ROUNDS = 5
# Of the target: no fewer versions, and keys and changes for no shorter, than any servers may allow.
LIMITS = Limits(max_versions=1 << 31, key_ttl_s=400 * 86400, audit_s=MOST_AUDIT_DAYS * 86400)

Tell = Callable[[str], None]


class Refused(Exception):
    """It cannot be done, or not now; the message says what to do."""


class Moved(msgspec.Struct, frozen=True):
    """What became of one model: `entries` is how many this run has copied."""

    model: str
    seq: int
    entries: int
    was_there: bool


class Found(NamedTuple):
    """A model of the source, and what the target has of it."""

    record: ModelRecord
    there: ModelRecord | None
    whole: Mark | None
    """What stands beside the source's log, where the target has all there is."""


class Copied(NamedTuple):
    """What the target has by now: up to where, and what stood beside the source's log then."""

    head: Head
    mark: Mark


async def migrate(source: Movable, target: Movable, tell: Tell = lambda line: None) -> list[Moved]:
    """Copy every model of `source` into `target`; what is there already stays as it is.

    Raises Refused: where the target holds another model of an id, or of one what the source does
    not have; where the stores belong to different kinds of machines; where the source is being
    written.
    """
    records = [record async for record in _records(source)]
    found = [await _look(source, target, record) for record in records]
    await _take_identity(source, target)
    moved, copied = [], {}
    for number, one in enumerate(found, 1):
        done, copied[one.record.id] = await _move(source, target, one)
        moved.append(done)
        what = "is there" if done.was_there else f"{done.entries:,} entries copied"
        tell(f"{number}/{len(found)} {done.model}: {what}, up to seq {done.seq:,}")
    await _move_changes(source, target)
    await _check_still(source, copied)
    return moved


async def run_migration(of: str, to: str, tell: Tell = lambda line: None) -> list[Moved]:
    """`migrate` between the stores at two URLs. Raises ValueError for a URL that is none."""
    if of == to:
        raise Refused("the two stores are the same")
    path = sqlite_path(of)
    if path is not None and not Path(path).is_file():
        raise Refused(f"there is no file {path}")
    source = make_journal(of, None, LIMITS)
    # A failover may lose what this run had written: the next one begins by looking what is there.
    target = make_journal(to, None, LIMITS, stays=True)
    try:
        await source.open()
        await target.open()
        moved = await migrate(source, target, tell)
        await target.settle()
        await target.ping()  # by the server that all of it was written to
        return moved
    finally:
        await source.close()
        await target.close()


async def _records(journal: Movable) -> AsyncIterator[ModelRecord]:
    after = ""
    while page := await journal.list(after, PAGE):
        for record in page:
            yield record
        after = page[-1].id


async def _find(journal: Movable, model: str) -> ModelRecord | None:
    try:
        return await journal.get(model)
    except UnknownModel:
        return None


async def _look(source: Movable, target: Movable, record: ModelRecord) -> Found:
    """Raises Refused where the target's model is none that the source's may take the place of."""
    there = await _find(target, record.id)
    if there is None:
        return Found(record, None, None)
    await _check_room(source, record, there)
    try:
        return Found(record, there, await _mark_of_whole(source, target, record, there))
    except ModelChanged:
        raise _changed(record.id) from None


async def _mark_of_whole(
    source: Movable, target: Movable, record: ModelRecord, there: ModelRecord
) -> Mark | None:
    """What stands beside the source's log, if the target has all there is; else None.

    Raises ModelChanged; Refused where the source has more, and the target what is not the source's.
    """
    own = record.id, record.incarnation
    left = await target.cursor(*own, MOVED)
    moved = None if left is None else read_mark(left)
    has = await told(target, *own)
    is_touched = moved is None or has != moved.told
    if (there.seq, there.chain) == (record.seq, record.chain):
        now = (await beside(source, *own)).mark
        if moved is not None and moved.is_still(now):
            return now
        if is_touched and has == now.told:
            return now
    if is_touched and has:
        raise Refused(
            f"the target's model {record.id!r} has gone on by itself: its versions, its rows that "
            "wait for labels or its cursors are not those that were copied, and the source has "
            "others by now, too: delete it there first"
        )
    return None


async def _check_room(source: Movable, record: ModelRecord, there: ModelRecord) -> None:
    """Raises Refused where the source's log does not lead on from the target's."""
    if there.incarnation != record.incarnation:
        raise Refused(f"the target holds another model {record.id!r}: delete one of them first")
    try:
        goes_on = await _holds(source, record, Place(there.seq, there.chain))
    except Trimmed:
        raise Refused(
            f"the target's model {record.id!r} ends at seq {there.seq}, and what the source keeps "
            "does not tell any more whether it goes on from there: delete it there first"
        ) from None
    except ModelChanged:
        raise _changed(record.id) from None
    if not goes_on:
        raise Refused(
            f"the target's model {record.id!r} has gone on by itself, to seq {there.seq}: "
            f"the source, which ends at seq {record.seq}, does not lead on from there"
        )


async def _holds(source: Movable, record: ModelRecord, place: Place) -> bool:
    """Whether the source's log leads on from there, or ended there when the record was read.

    Raises Trimmed, ModelChanged.
    """
    following = await source.read(record.id, record.incarnation, place.seq, 1)
    if not following:
        return place == Place(record.seq, record.chain)
    first = following[0]
    return first.first_seq == place.seq + 1 and next_chain(place.chain, first.nonce) == first.chain


def _changed(model: str) -> Refused:
    return Refused(f"model {model!r} was deleted or made anew meanwhile")


async def _take_identity(source: Movable, target: Movable) -> None:
    """The states are those of the machines that the source's identity stands for."""
    identity = await source.identity()
    if identity is None:
        return
    if await target.count() == 0:
        await target.adopt_identity(identity)
    found = await target.claim_identity(identity)
    if found != identity:
        raise Refused(
            f"the source's states were computed as {identity!r}, the target's as {found!r}: "
            "adopt one of the stores first (dualstream serve --adopt)"
        )


async def _move_changes(source: Movable, target: Movable) -> None:
    """The log of who changed what, also of models that are gone."""
    newest: dict[str, int] = {}
    after: str | None = None
    while page := await source.audit(None, after, CHANGES):
        after = page[-1].place
        told = []
        for one in page:
            where = Where.read(one.place)
            # By a clock that was set back: of one model the later one is not the older one.
            time_ms = newest[one.model] = max(where.time_ms, newest.get(one.model, 0))
            place = str(where._replace(time_ms=time_ms))
            told.append(msgspec.structs.replace(one, place=place, time_ms=time_ms))
        await target.put_changes(told)


async def _check_still(source: Movable, copied: Mapping[str, Copied]) -> None:
    """Raises Refused where a model was written after it was copied, or made since."""
    late = {record.id async for record in _records(source)} - copied.keys()
    heads = await source.heads(list(copied))
    for (model, done), head in zip(copied.items(), heads, strict=True):
        if isinstance(head, JournalUnavailable):
            raise head
        if head != done.head or not await _is_still(source, model, done):
            late.add(model)
    if late:
        raise Refused(
            f"the source is being written ({', '.join(sorted(late)[:5])}): stop its servers and "
            "run this again, it goes on where it stands"
        )


async def _is_still(source: Movable, model: str, done: Copied) -> bool:
    """Whether all that stands beside the log is what was copied."""
    try:
        return done.mark.is_still((await beside(source, model, done.head.incarnation)).mark)
    except ModelChanged:
        return False


async def _move(source: Movable, target: Movable, found: Found) -> tuple[Moved, Copied]:
    record = found.record
    try:
        if found.there is not None and found.whole is not None:
            await target.unstage(found.there)  # a run may have been cut off before its last step
            is_there = Moved(record.id, record.seq, 0, True)
            return is_there, Copied(_head(record), found.whole)
        return await Mover(source, target, record, found.there).move()
    except (ModelChanged, UnknownModel):
        raise _changed(record.id) from None
    except Conflict as conflict:
        raise Refused(f"model {record.id!r}: {conflict}") from conflict


def _head(record: ModelRecord) -> Head:
    return Head(record.incarnation, record.seq, record.chain)


class Mover:
    """Takes one model over, in an order in which what is named is there before its name.

    The cursors are read before all else: one of them may tell that the store was cleaned of a
    sample, and then nothing that is read after it holds that any more.
    """

    def __init__(
        self, source: Movable, target: Movable, record: ModelRecord, there: ModelRecord | None
    ) -> None:
        self._source, self._target = source, target
        self._record = record
        self._there = None if there is None else Place(there.seq, there.chain)
        self._cursors: Mapping[str, str] = {}
        self._has_leftovers = False
        self._entries = 0

    async def move(self) -> tuple[Moved, Copied]:
        """Raises Refused, and what the journals raise."""
        for _ in range(ROUNDS):
            with suppress(Trimmed):  # the source has let go of what was to come next
                began = await self._beside()
                found = await self._copy(began)
                if found is not None:
                    await self._target.unstage(found)
                    moved = Moved(found.id, found.seq, self._entries, False)
                    return moved, Copied(_head(found), began.mark)
        raise Refused(
            f"model {self._record.id!r} is being written: stop the source's servers and run this "
            "again, it goes on where it stands"
        )

    async def _beside(self) -> Beside:
        return await beside(self._source, self._record.id, self._record.incarnation)

    async def _copy(self, began: Beside) -> ModelRecord | None:
        """The model, once what is staged of it is all that the source has; None where it moved on.

        Raises Trimmed.
        """
        record = await self._source.get(self._record.id)
        self._cursors = {**began.cursors, MOVED: began.mark.text()}
        staged = await self._stage(record, began.trimmed)
        await self._move_copies(staged)
        staged = await self._move_entries(staged)
        await self._move_versions(staged)
        await self._move_snapshots(staged)
        await self._move_keys(staged)
        await self._move_rows(staged)
        self._has_leftovers = await self._find_leftovers(staged)
        found = await self._source.get(self._record.id)
        ends = Head(self._record.incarnation, staged.seq, staged.chain)
        if self._has_leftovers or _head(found) != ends:
            return None
        return found if began.mark.is_still((await self._beside()).mark) else None

    async def _stage(self, record: ModelRecord, trimmed: int) -> Staged:
        """What stands in the target goes on, if it is of the source.

        The source may have lost what was taken over from it: by a failover, or with its disk. Or
        let go of it, maybe of a sample that was unlearned.
        """
        try:
            is_anew = self._has_leftovers
            staged = await self._target.stage(record, trimmed, self._there, is_anew)
        except Conflict as conflict:
            raise Refused(
                f"the target's model {record.id!r} has gone on by itself meanwhile: {conflict}"
            ) from conflict
        if staged.chain:
            place = Place(staged.seq, staged.chain)
            goes_on = await _holds(self._source, record, place)
        else:
            goes_on = staged.seq < record.seq
        if not goes_on:
            staged = await self._target.stage(record, trimmed, is_anew=True)
        return staged

    async def _find_leftovers(self, staged: Staged) -> bool:
        """Whether copies or snapshots are staged that the source does not keep any more."""
        own = self._record.id, self._record.incarnation
        copies = {copy.digest for copy in await self._source.copies(*own)}
        places = set(await self._source.snapshots(*own))
        return not (
            {copy.digest for copy in await self._target.copies(*staged.own)} <= copies
            and set(await self._target.snapshots(*staged.own)) <= places
        )

    async def _move_copies(self, staged: Staged) -> None:
        model, incarnation = self._record.id, self._record.incarnation
        there = {copy.digest for copy in await self._target.copies(*staged.own)}
        for copy in await self._source.copies(model, incarnation):
            if copy.digest in there:
                continue
            data = await self._source.copy_get(model, incarnation, copy.digest)
            if data is None:
                continue  # let go of meanwhile
            if await self._target.copy_put(*staged.own, data) != copy.digest:
                raise Refused(f"the copy {copy.digest} of {model!r} is damaged in the source")

    async def _move_entries(self, staged: Staged) -> Staged:
        model, incarnation = self._record.id, self._record.incarnation
        uses = {use.seq: use for use in await self._source.copy_uses(model, incarnation)}
        while entries := await self._source.read(model, incarnation, staged.seq, READ_BYTES):
            named: list[CopyUse] = [uses[entry.seq] for entry in entries if entry.seq in uses]
            await self._target.stage_entries(*staged.own, entries, named)
            ends = entries[-1]
            staged = Staged(staged.name, staged.incarnation, ends.seq, ends.chain)
            self._entries += len(entries)
        return staged

    async def _move_versions(self, staged: Staged) -> None:
        model, incarnation = self._record.id, self._record.incarnation
        versions = await self._source.versions(model, incarnation)
        names = {version.name: version.digest for version in versions}
        for version in await self._target.versions(*staged.own):
            if names.get(version.name) != version.digest:
                await self._target.version_delete(*staged.own, version.name)
        for version in versions:
            await self._target.version_put(*staged.own, version)

    async def _move_snapshots(self, staged: Staged) -> None:
        """The older one first. One that the log does not lead on from helps nobody there either."""
        model, incarnation = self._record.id, self._record.incarnation
        for n in (1, 0):
            snapshot = await self._source.snapshot_get(model, incarnation, n)
            if snapshot is not None:
                with suppress(Conflict):
                    await self._target.snapshot_put(
                        *staged.own, snapshot.seq, snapshot.chain, snapshot.data
                    )

    async def _move_keys(self, staged: Staged) -> None:
        """The keys with when they came, so that they expire when they would have; all anew."""
        model, incarnation = self._record.id, self._record.incarnation
        at: int | None = 0
        count = 0
        while at is not None:
            keys, at = await self._source.kept_keys(model, incarnation, at)
            await self._target.stage_keys(*staged.own, count, keys)
            count += len(keys)
        appends = await self._source.kept_appends(model, incarnation)
        await self._target.stage_rest(*staged.own, appends, self._cursors)

    async def _move_rows(self, staged: Staged) -> None:
        """The rows that wait for their labels, with when they came; all anew."""
        model, incarnation = self._record.id, self._record.incarnation
        rows, at = await self._source.kept_rows(model, incarnation, 0)
        await self._target.stage_rows(*staged.own, rows, True)
        while at is not None:
            rows, at = await self._source.kept_rows(model, incarnation, at)
            await self._target.stage_rows(*staged.own, rows, False)
