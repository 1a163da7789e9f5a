"""Dump models into an archive (`dualstream dump`), while servers may write to the store.

A model is dumped as of one log position. Later data is omitted. If the store deletes data of that
position during the dump, the model is dumped again.
"""

import hashlib
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import BinaryIO

import msgspec

from dualstream.service.archive import format as f
from dualstream.service.journal import make_journal, protocol, sqlite_path
from dualstream.service.journal.archive_access import ArchiveJournal, Position
from dualstream.service.journal.audit import AuditPosition

PAGE = 100
CHANGES_AT_ONCE = 1000
ROWS_IN_MEMORY = 64 * 1024 * 1024
"""Bytes of a model's pending rows from which they are in a temporary file."""
ROUNDS = 5
"""Attempts to dump a model before giving up."""

Say = Callable[[str], None]


class Refused(Exception):
    """The command cannot be executed; the message says what to do."""


class _Moved(Exception):
    """The store deleted data of the position being dumped."""


async def run_dump(url: str, model: str | None, file: BinaryIO, say: Say) -> None:
    """Dump one model of the store at `url`, or all models if `model` is None.

    Raises Refused, ValueError for an invalid URL, and the journal's exceptions.
    """
    path = sqlite_path(url)
    if path is not None and not Path(path).is_file():
        raise Refused(f"no file {path}; name the store with --store")
    journal = make_journal(url, None, protocol.DEFAULT_LIMITS)
    try:
        await journal.open()
        await dump(journal, model, file, say)
    finally:
        await journal.close()


async def dump(journal: ArchiveJournal, model: str | None, file: BinaryIO, say: Say) -> None:
    """Dump from an open journal; see `run_dump`."""
    if model is not None:
        await journal.get(model)  # before anything is written
    opening = f.Opening(model is None, time.time_ns() // 1_000_000)
    archive = f.ArchiveWriter(file, opening)
    identity = await journal.identity()
    if model is not None:
        say(await _dump_model(journal, archive, identity, model))
    else:
        async for model_id in _models(journal):
            with suppress(protocol.UnknownModel):  # deleted since it was listed
                say(await _dump_model(journal, archive, identity, model_id))
        await _dump_changes(journal, archive)
    archive.end()


async def _models(journal: ArchiveJournal) -> AsyncIterator[str]:
    after = ""
    while page := await journal.list(after, PAGE):
        for record in page:
            yield record.id
        after = page[-1].id


async def _dump_model(
    journal: ArchiveJournal, archive: f.ArchiveWriter, identity: str | None, model: str
) -> str:
    for _ in range(ROUNDS):
        count = archive.count
        with suppress(protocol.Trimmed, protocol.ModelChanged, _Moved):
            position = await _dump_position(journal, archive, identity, model)
            return f"{model}: dumped up to seq {position.record.seq:,}"
        if archive.count > count:
            archive.add(f.VOID)
    raise Refused(
        f"model {model!r} changed {ROUNDS} times while it was read; run the command again"
    )


async def _dump_position(
    journal: ArchiveJournal, archive: f.ArchiveWriter, identity: str | None, model: str
) -> Position:
    """Write the sections of a model. Raises Trimmed, ModelChanged, _Moved, UnknownModel."""
    before = await journal.get(model)
    own = model, before.incarnation
    with _RowPages() as pages:
        # Read before the position: a later label deletes its row from the store.
        async for page in journal.kept_rows(*own):
            pages.add(page)
        position = await journal.position(model)
        if position.record.incarnation != before.incarnation:
            raise protocol.ModelChanged(model)
        labelled = await _labelled(journal, pages, before.seq, position)
        await _dump_log(journal, archive, identity, position)
        for page in pages:
            archive.add(f.ROWS, *[row for row in page if row.key not in labelled])
    return position


async def _dump_log(
    journal: ArchiveJournal, archive: f.ArchiveWriter, identity: str | None, position: Position
) -> None:
    """Write the sections of a model, except for its pending rows."""
    record, trimmed, cursors = position
    model, own = record.id, (record.id, record.incarnation)
    archive.add(f.MODEL, f.StoredModel(record, trimmed, cursors, identity))
    versions = [one for one in await journal.versions(*own) if one.seq <= record.seq]
    uses = [one for one in await journal.copy_uses(*own) if trimmed < one.seq <= record.seq]
    for digest in sorted({one.digest for one in versions} | {one.digest for one in uses}):
        data = await journal.copy_get(*own, digest)
        if data is None:
            raise _Moved
        if hashlib.sha256(data).hexdigest() != digest:
            raise Refused(f"the copy {digest} of model {model!r} is damaged in the store")
        archive.add_bytes(f.COPY, data)
    archive.add(f.USES, *uses)
    await _dump_entries(journal, archive, position)
    archive.add(f.VERSIONS, *versions)
    for snapshot in await _snapshots(journal, position):
        archive.add(f.SNAPSHOTS, snapshot)
    async for keys in journal.kept_keys(*own):
        archive.add(f.KEYS, *[key for key in keys if key.seq <= record.seq])


class _RowPages:
    """Pages of pending rows, in memory or in a temporary file."""

    def __init__(self) -> None:
        self._file = SpooledTemporaryFile(ROWS_IN_MEMORY)
        self._decode = msgspec.msgpack.Decoder(list[protocol.PendingRow]).decode

    def __enter__(self) -> "_RowPages":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, page: Sequence[protocol.PendingRow]) -> None:
        if page:
            data = msgspec.msgpack.encode(page)
            self._file.write(len(data).to_bytes(8, "little") + data)

    def __iter__(self) -> Iterator[list[protocol.PendingRow]]:
        self._file.seek(0)
        while size := self._file.read(8):
            yield self._decode(self._file.read(int.from_bytes(size, "little")))


async def _labelled(
    journal: ArchiveJournal, pages: _RowPages, before: int, position: Position
) -> set[bytes]:
    """Keys of rows whose label was journalled between the seq `before` and the position.

    A labelled row that was read with this label stays.
    """
    record = position.record
    keys: set[bytes] = set()
    if before == record.seq:
        return keys
    for page in pages:
        entries = await journal.known(record.id, record.incarnation, [row.key for row in page])
        keys |= {
            row.key
            for row, one in zip(page, entries, strict=True)
            if one is not None and before < one.seq <= record.seq and one.seq != row.seq
        }
    return keys


async def _dump_entries(
    journal: ArchiveJournal, archive: f.ArchiveWriter, position: Position
) -> None:
    record, seq, chain = position.record, position.trimmed, ""
    while seq < record.seq:
        page = await journal.read(record.id, record.incarnation, seq)
        entries = [entry for entry in page if entry.seq <= record.seq]
        if not entries:
            raise _Moved
        seq, chain = entries[-1].seq, entries[-1].chain
        archive.add(f.ENTRIES, *entries)
    if chain not in ("", record.chain):
        raise _Moved


async def _snapshots(journal: ArchiveJournal, position: Position) -> list[protocol.Snapshot]:
    """Snapshots from which the position's entries continue, oldest first."""
    record, trimmed, _ = position
    kept = []
    is_any_later = False
    for n in (1, 0):
        snapshot = await journal.snapshot_get(record.id, record.incarnation, n)
        if snapshot is not None and trimmed <= snapshot.seq <= record.seq:
            kept.append(msgspec.structs.replace(snapshot, where=""))
        is_any_later = is_any_later or (snapshot is not None and snapshot.seq > record.seq)
    if trimmed and not kept and is_any_later:
        raise _Moved
    return kept


async def _dump_changes(journal: ArchiveJournal, archive: f.ArchiveWriter) -> None:
    """Dump the audit log, including changes of deleted models."""
    newest: dict[str, int] = {}
    after: str | None = None
    while page := await journal.audit(None, after, CHANGES_AT_ONCE):
        after = page[-1].place
        changes = []
        for one in page:
            where = AuditPosition.read(one.place)
            # If the clock was set back, a later change gets the time of the one before it.
            time_ms = newest[one.model] = max(where.time_ms, newest.get(one.model, 0))
            position = str(where._replace(time_ms=time_ms))
            changes.append(msgspec.structs.replace(one, place=position, time_ms=time_ms))
        archive.add(f.CHANGES, *changes)
