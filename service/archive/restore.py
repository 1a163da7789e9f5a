"""Restore models of an archive into a store (`dualstream restore`) that servers may use.

A model is first staged, invisible to readers. It becomes visible in one step once the section after
its last one was read: then all of its bytes were verified.
"""

from contextlib import suppress
from typing import BinaryIO

from dualstream.service.archive import format as f
from dualstream.service.archive.dump import Refused, Say
from dualstream.service.journal import make_journal, protocol
from dualstream.service.journal.archive_access import ArchiveJournal, KeptKey, Staged
from dualstream.service.journal.audit import Audited
from dualstream.service.journal.state_copies import CopyUse
from dualstream.service.settings import MAX_AUDIT_DAYS
from dualstream.wire.schemas import MODEL_ID

LIMITS = protocol.Limits(
    max_versions=1 << 31, key_ttl_s=400 * 86400, audit_s=MAX_AUDIT_DAYS * 86400
)
"""Highest limits that a server of the store can have, so that a restore drops nothing."""


async def run_restore(url: str, is_store: bool, file: BinaryIO, say: Say) -> None:
    """Restore the archive in `file`, of one model or a whole store, into the store at `url`.

    Raises Refused, DamagedArchive, ValueError for an invalid URL, and the journal's exceptions.
    """
    # Pinned to one server: after a failover, the new primary may lack what was written.
    journal = make_journal(url, None, LIMITS, is_pinned=True)
    try:
        await journal.open()
        await restore(journal, is_store, file, say)
        await journal.settle()
        await journal.ping()  # raises if another server has taken over
    finally:
        await journal.close()


async def restore(journal: ArchiveJournal, is_store: bool, file: BinaryIO, say: Say) -> None:
    """Restore into an open journal; see `run_restore`."""
    restoring: _Model | None = None
    try:
        for section in f.ArchiveReader(file):
            if section.kind in (f.MODEL, f.CHANGES) and restoring is not None:
                await restoring.show(say)
                restoring = None
            if section.number == 0:
                _check_opening(section, is_store)
            elif section.kind == f.MODEL:
                restoring = await _begin(journal, section, is_store)
            elif section.kind == f.VOID:
                if restoring is not None:
                    await restoring.discard()
                restoring = None
            elif section.kind == f.CHANGES:
                await journal.put_changes(section.rows(Audited))
            elif restoring is None:
                raise f.DamagedArchive(f"{section}: it does not belong to a model")
            else:
                await restoring.put(section)
        if restoring is not None:
            await restoring.show(say)
    except BaseException as error:
        if restoring is not None:
            with suppress(protocol.JournalError):
                await restoring.discard()
        if isinstance(error, protocol.ModelChanged):
            raise Refused(f"{error}, by another process during the restore") from error
        raise


def _check_opening(section: f.Section, is_store: bool) -> None:
    """Raise DamagedArchive; Refused for an archive of a store without --all."""
    if section.kind != f.ARCHIVE:
        raise f.DamagedArchive(f"{section}: not the first section of an archive")
    opening = section.row(f.Opening)
    if opening.is_store and not is_store:
        raise Refused("the archive holds a whole store; restore it with --all")


async def _begin(journal: ArchiveJournal, section: f.Section, is_store: bool) -> "_Model":
    """Stage the model of a section. Raises DamagedArchive, Refused."""
    model = section.row(f.StoredModel)
    record = model.record
    if not MODEL_ID.fullmatch(record.id):
        raise f.DamagedArchive(f"{section}: {record.id!r} is not a model id")
    try:
        there = await journal.get(record.id)
    except protocol.UnknownModel:
        await _check_identity(journal, model.identity)
        staged = await journal.stage(record, model.trimmed, model.cursors)
        return _Model(journal, model, staged)
    if is_store and there.incarnation == record.incarnation:
        return _Model(journal, model, None)
    raise Refused(f"model {record.id!r} exists in this store; delete it first")


async def _check_identity(journal: ArchiveJournal, identity: str | None) -> None:
    """Raise Refused if the store's states were computed with another numeric identity."""
    stored = await journal.identity()
    if identity and stored not in (None, identity) and await journal.count():
        raise Refused(
            f"the archive's states were computed as {identity!r}, this store's as {stored!r}; "
            "adopt one of the stores first (dualstream serve --adopt)"
        )


class _Model:
    """A model being restored; `staged` is None if the store already has the model."""

    def __init__(
        self, journal: ArchiveJournal, model: f.StoredModel, staged: Staged | None
    ) -> None:
        self._journal, self._model, self._staged = journal, model, staged
        self._uses: dict[int, CopyUse] = {}

    async def put(self, section: f.Section) -> None:
        """Write a section. Raises DamagedArchive, and the journal's exceptions."""
        if self._staged is None:
            return
        journal, staged = self._journal, self._staged
        if section.kind == f.COPY:
            await journal.copy_put(*staged, section.payload)
        elif section.kind == f.USES:
            self._uses = {use.seq: use for use in section.rows(CopyUse)}
        elif section.kind == f.ENTRIES:
            entries = section.rows(protocol.Entry)
            named = [self._uses[entry.seq] for entry in entries if entry.seq in self._uses]
            await journal.stage_entries(staged, entries, named)
        elif section.kind == f.VERSIONS:
            for version in section.rows(protocol.Version):
                await journal.version_put(*staged, version)
        elif section.kind == f.SNAPSHOTS:
            for one in section.rows(protocol.Snapshot):
                with suppress(
                    protocol.Conflict
                ):  # the log does not continue from it, so it is of no use
                    await journal.snapshot_put(*staged, one.seq, one.chain, one.data)
        elif section.kind == f.KEYS:
            await journal.stage_keys(staged, section.rows(KeptKey))
        elif section.kind == f.ROWS:
            await journal.stage_rows(staged, section.rows(protocol.PendingRow))

    async def show(self, say: Say) -> None:
        """Make the model visible, and set the store's identity. Raises Refused."""
        record = self._model.record
        if self._staged is None:
            say(f"{record.id}: already in this store, left unchanged")
            return
        await self._adopt(self._model.identity)
        await self._journal.show(self._staged, record)
        self._staged = None
        say(f"{record.id}: restored up to seq {record.seq:,}")

    async def _adopt(self, identity: str | None) -> None:
        if not identity:
            return
        if await self._journal.count() == 0:
            await self._journal.adopt_identity(identity)
        await self._journal.claim_identity(identity)

    async def discard(self) -> None:
        if self._staged is not None:
            await self._journal.discard(self._staged)
