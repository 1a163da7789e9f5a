"""Refit table: the refits of one model, as all processes see them.

The table is a cursor in the store: it is changed by compare-and-set, and it is deleted and copied
with its model. It says which refits are computed and how far they are. No state depends on it. The
computing process writes a heartbeat every second; a refit without a heartbeat for LOST_MS was lost
with its process.
"""

import time
from collections.abc import Callable
from typing import Any

import msgspec

from dualstream.service.journal.protocol import (
    AppendRequest,
    Change,
    CursorMove,
    CursorMoved,
    Journal,
)
from dualstream.service.replica.clock import SYSTEM_CLOCK, Clock
from dualstream.service.replica.replica import Replica

CURSOR = "refits"
KEPT = 20
"""Refits that are kept per model, the newest ones."""
LOST_MS = 10_000
UNDER_WAY = ("waiting", "running", "entering")


class RefitJob(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One refit. Times are wall-clock milliseconds, for display only."""

    job: str
    status: str = "waiting"
    """waiting, running, entering; then done, refused, superseded, cancelled, failed or lost."""
    method: str
    tol: float
    max_epochs: int
    options: dict[str, Any] = msgspec.field(default_factory=dict)
    """Of the method."""
    window_rows: int | None = None
    """Number of journal records to solve. None if the model retains rows."""
    due: int | None = None
    """Sample count at which it was scheduled. None if it was requested."""
    seq: int | None = None
    """Position of the model when its window was read."""
    rows: int | None = None
    epochs: int = 0
    relative_gap_before: float | None = None
    relative_gap: float | None = None
    dual_before: float | None = None
    dual: float | None = None
    converged: bool | None = None
    entered_seq: int | None = None
    """Position of the control with the result, even if it was refused."""
    retained: int | None = None
    """Rows of the refit that were still in the window when the result was entered."""
    dropped: list[str] | None = None
    """Named functions that depend linearly on earlier ones in this window."""
    coefficients_are_unique: bool | None = None
    reason: str | None = None
    is_asked_to_end: bool = False
    created_ms: int = 0
    updated_ms: int = 0

    @property
    def is_under_way(self) -> bool:
        """Is a process computing it, as far as known?"""
        return self.status in UNDER_WAY and now_ms() - self.updated_ms < LOST_MS


class UnderWay(Exception):
    """Another refit of the model is under way."""

    def __init__(self, job: str) -> None:
        super().__init__(f"refit {job!r} of this model is under way; wait for it or cancel it")
        self.job = job


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class RefitTable:
    """The refits of one model, newest first."""

    def __init__(self, replica: Replica, journal: Journal, clock: Clock = SYSTEM_CLOCK) -> None:
        self._replica = replica
        self._journal = journal
        self._clock = clock

    async def read(self) -> list[RefitJob]:
        """All known refits. Raises ModelChanged, JournalUnavailable."""
        return _jobs(await self._stored())

    async def begin(self, job: RefitJob, entry: Change | None = None) -> None:
        """Add a refit to the table and to the log of changes. Raises UnderWay."""

        def add(jobs: list[RefitJob]) -> list[RefitJob]:
            for other in jobs:
                if other.is_under_way:
                    raise UnderWay(other.job)
            return [job, *jobs][:KEPT]

        await self._change(add, entry)

    async def add(self, job: RefitJob) -> None:
        """Add a refit that has ended."""
        await self._change(lambda jobs: [job, *jobs][:KEPT])

    async def write(self, job: RefitJob) -> RefitJob:
        """Write the progress of a refit. Returns its entry before that."""
        before, job.updated_ms = job, now_ms()

        def put(jobs: list[RefitJob]) -> list[RefitJob]:
            nonlocal before
            before = next((other for other in jobs if other.job == job.job), job)
            requested = before.is_asked_to_end
            own = msgspec.structs.replace(job, is_asked_to_end=requested)
            return [own if other.job == job.job else other for other in jobs]

        await self._change(put)
        return before

    async def request_cancel(self, name: str, entry: Change | None = None) -> None:
        """Ask the computing process to cancel the refit. Logged as a change."""

        def mark(jobs: list[RefitJob]) -> list[RefitJob] | None:
            requested = [
                msgspec.structs.replace(job, is_asked_to_end=True) if job.job == name else job
                for job in jobs
            ]
            return None if requested == jobs else requested

        await self._change(mark, entry)

    async def _stored(self) -> str | None:
        return await self._journal.cursor(self._replica.id, self._replica.incarnation, CURSOR)

    async def _change(
        self, change: Callable[[list[RefitJob]], list[RefitJob] | None], entry: Change | None = None
    ) -> None:
        """Compare-and-set until no other process came first. `change` returns None to
        change nothing.

        Raises what an append raises.
        """
        replica = self._replica
        where = (replica.id, replica.incarnation)
        while True:
            before = await self._stored()
            jobs = change(_jobs(before))
            if jobs is None:
                return
            move = CursorMove(CURSOR, before, msgspec.json.encode(jobs).decode())
            nonce = self._clock.new_nonce()
            try:
                await self._journal.append(
                    AppendRequest(*where, nonce, replica.seq, (), move, change=entry)
                )
                return
            except CursorMoved:
                continue


def _jobs(stored: str | None) -> list[RefitJob]:
    """The stored refits. One without a heartbeat is lost."""
    jobs = [] if stored is None else msgspec.json.decode(stored, type=list[RefitJob])
    for job in jobs:
        if job.status in UNDER_WAY and not job.is_under_way:
            job.status, job.reason = "lost", "no heartbeat from its process"
    return jobs
