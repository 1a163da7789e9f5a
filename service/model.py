"""One model as this process serves it: its replica, its committer, its door, its snapshots."""

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from service.codecs import Door
from service.committer import AnyRequest, Committer, Receipt
from service.errors import Problem
from service.follower import Lag
from service.journal.protocol import Known, ModelChanged, ModelRecord, UnknownModel
from service.journal.record import RecordError
from service.replica import Captured, Replica
from service.trail import Lost
from solvers import MemberLearner, member_learner

if TYPE_CHECKING:
    from service.catalog import Catalog

log = logging.getLogger("dualstream.model")


class Model:
    """One model as this process serves it."""

    def __init__(self, catalog: "Catalog", record: ModelRecord, replica: Replica) -> None:
        self._catalog = catalog
        self.record = record
        self.replica = replica
        self.door = Door(replica.spec)
        self.committer = Committer(
            catalog.journal,
            replica,
            catalog.settings.append_timeout_s,
            on_group=catalog.telemetry.saw_group,
            on_fork=self._on_fork,
            on_loss=self.count_lost,
            on_advance=self._on_advance,
            on_failure=self._let_go_after,
            outside=catalog.outside,
        )
        self.lag = Lag()
        self._snapshot: asyncio.Task[None] | None = None

    async def submit(self, request: AnyRequest) -> Receipt:
        """Make the request durable and apply it. Raises what the journal's append raises."""
        return await self.committer.submit(request)

    async def known(self, keys: Sequence[bytes]) -> list[Known | None]:
        """What the journal keeps under these keys."""
        record = self.record
        return await self._catalog.journal.known(record.id, record.incarnation, keys)

    async def refresh(self, seq: int | None = None) -> None:
        """Apply what other processes have appended, unless the replica has reached `seq`.

        Raises what the journal's read raises.
        """
        await self.committer.refresh(seq)

    def _let_go_after(self, error: Exception) -> None:
        """A model that is gone, or forked and not rebuilt, is loaded by the next request."""
        if isinstance(error, RecordError):
            self._catalog.set_aside(self.record.id, error)
            self._catalog.forget(self)
        if self.replica.is_forked or isinstance(error, ModelChanged | UnknownModel):
            self._catalog.forget(self)

    def members(self) -> MemberLearner:
        """The learner and its members. Raises Problem 404 when it has none."""
        learner = member_learner(self.replica.learner)
        if learner is None:
            raise Problem(404, "no-members", f"model {self.record.id!r} has no members")
        return learner

    async def close(self) -> None:
        await self.committer.drain()
        if self._snapshot is not None:
            await asyncio.wait([self._snapshot])

    def _on_fork(self, model_id: str) -> None:
        """The lost entries may have held the names that this process has told."""
        self._catalog.telemetry.saw_fork(model_id)
        self.door.tell_names_again()

    def count_lost(self, lost: Lost) -> None:
        """Say and count what the journal had lost of what was applied here."""
        if lost.records:
            log.error(
                "model %r: the store has lost %s%d records that were applied here, after seq %d",
                self.record.id,
                "" if lost.is_all else "at least ",
                lost.records,
                lost.kept,
            )
            self._catalog.telemetry.saw_loss(self.record.id, lost.records)

    def _on_advance(self, before: int, after: int) -> None:
        """Called between two groups: a snapshot falls due when `after` passed a multiple."""
        every = self._catalog.settings.snapshot_every
        if after // every > before // every and self._snapshot is None:
            self._snapshot = asyncio.create_task(self._write(self.replica.capture()))

    async def write_snapshot(self, captured: Captured | None = None) -> None:
        """Put a snapshot of the state, as it was captured or is now, into the store."""
        captured = self.replica.capture() if captured is None else captured
        snapshot = await asyncio.to_thread(captured.encode)
        await self._catalog.journal.snapshot_put(
            self.record.id, self.record.incarnation, snapshot.seq, snapshot.chain, snapshot.data
        )

    async def _write(self, captured: Captured) -> None:
        """Learning goes on without the snapshot when the store refuses it; the next one is due."""
        try:
            await self.write_snapshot(captured)
        except Exception:
            log.exception("model %r: snapshot at seq %d failed", self.record.id, captured.seq)
        finally:
            self._snapshot = None
