"""All that one store keeps of its models, into another store, to the bit.

A model is written where nobody finds it, and shown once it is whole; what was written before a run
was cut off is gone on with by the next one. The source is only read.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from service.journal import make_journal, sqlite_path
from service.journal.audit import Where
from service.journal.chain import next_chain
from service.journal.moving import Movable, Staged
from service.journal.protocol import (
    Conflict,
    CopyUse,
    JournalUnavailable,
    Limits,
    ModelChanged,
    ModelRecord,
    Place,
    Trimmed,
    UnknownModel,
)

PAGE = 100
CHANGES = 1000
READ_BYTES = 1 << 20
# So often a model's tail is copied once more before its source counts as being written.
ROUNDS = 5
# Of the target: no fewer versions, and keys for no shorter, than the servers of the source allowed.
LIMITS = Limits(max_versions=1 << 31, key_ttl_s=400 * 86400)

Tell = Callable[[str], None]


class Refused(Exception):
    """It cannot be done, or not now; the message says what to do."""


class Moved(msgspec.Struct, frozen=True):
    """What became of one model: `entries` is how many this run has copied."""

    model: str
    seq: int
    entries: int
    was_there: bool


async def migrate(source: Movable, target: Movable, tell: Tell = lambda line: None) -> list[Moved]:
    """Copy every model of `source` into `target`; what is there already stays as it is.

    Raises Refused: where the target holds another model of an id, or more of one than the source;
    where the stores belong to different kinds of machines; where the source is being written.
    """
    records = [record async for record in _records(source)]
    found = [await _find(target, record.id) for record in records]
    for record, there in zip(records, found, strict=True):
        await _check_room(source, record, there)
    await _take_identity(source, target)
    moved = {}
    for number, (record, there) in enumerate(zip(records, found, strict=True), 1):
        done = moved[record.id] = await _move(source, target, record, there)
        what = "is there" if done.was_there else f"{done.entries:,} entries copied"
        tell(f"{number}/{len(records)} {record.id}: {what}, up to seq {done.seq:,}")
    await _move_changes(source, target)
    await _check_still(source, records, moved)
    return list(moved.values())


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


async def _check_room(source: Movable, record: ModelRecord, there: ModelRecord | None) -> None:
    """Raises Refused where the target's model is none that the source's may take the place of."""
    if there is None:
        return
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


async def _check_still(
    source: Movable, records: Sequence[ModelRecord], moved: Mapping[str, Moved]
) -> None:
    """Raises Refused where a model was written after it was copied, or made since."""
    late = {record.id async for record in _records(source)} - moved.keys()
    heads = await source.heads([record.id for record in records])
    for record, head in zip(records, heads, strict=True):
        if isinstance(head, JournalUnavailable):
            raise head
        if head is None or (head.incarnation, head.seq) != (
            record.incarnation,
            moved[record.id].seq,
        ):
            late.add(record.id)
    if late:
        raise Refused(
            f"the source is being written ({', '.join(sorted(late)[:5])}): stop its servers and "
            "run this again, it goes on where it stands"
        )


async def _move(
    source: Movable, target: Movable, record: ModelRecord, there: ModelRecord | None
) -> Moved:
    try:
        if there is not None and (there.seq, there.chain) == (record.seq, record.chain):
            await target.unstage(there)  # a run may have been cut off before its last step
            return Moved(record.id, there.seq, 0, True)
        return await Mover(source, target, record, there).move()
    except (ModelChanged, UnknownModel):
        raise _changed(record.id) from None
    except Conflict as conflict:
        raise Refused(f"model {record.id!r}: {conflict}") from conflict


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

    async def move(self) -> Moved:
        """Raises Refused, and what the journals raise."""
        for _ in range(ROUNDS):
            with suppress(Trimmed):  # the source has let go of what was to come next
                found = await self._copy()
                if found is not None:
                    await self._target.unstage(found)
                    return Moved(found.id, found.seq, self._entries, False)
        raise Refused(
            f"model {self._record.id!r} is being written: stop the source's servers and run this "
            "again, it goes on where it stands"
        )

    async def _copy(self) -> ModelRecord | None:
        """The model, once what is staged of it is all that the source has; None where it moved on.

        Raises Trimmed.
        """
        model, incarnation = self._record.id, self._record.incarnation
        record = await self._source.get(model)
        self._cursors = await self._source.cursors(model, incarnation)
        trimmed = await self._trimmed()
        staged = await self._stage(record, trimmed)
        await self._move_copies(staged)
        staged = await self._move_entries(staged)
        await self._move_versions(staged)
        await self._move_snapshots(staged)
        await self._move_keys(staged)
        await self._move_rows(staged)
        self._has_leftovers = await self._find_leftovers(staged)
        found = await self._source.get(model)
        is_it = (found.incarnation, found.seq, found.chain) == (
            incarnation,
            staged.seq,
            staged.chain,
        )
        stands = is_it and await self._trimmed() == trimmed
        return found if stands and not self._has_leftovers else None

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

    async def _trimmed(self) -> int:
        """The last seq of which the source keeps no row."""
        try:
            await self._source.read(self._record.id, self._record.incarnation, 0, 1)
        except Trimmed as trimmed:
            return trimmed.kept_from - 1
        return 0

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
