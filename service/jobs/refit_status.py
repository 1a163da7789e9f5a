"""The refits of one model, as all processes see them: a list that the store keeps beside the log.

It is a cursor, so that it is changed by compare and set, goes with its model and moves with it. It
tells who computes what and how far that is; nothing of a state depends on it. Whoever computes
writes every few seconds: a job that nobody has written of for `LOST_MS` was lost with its process.
"""

import time
from collections.abc import Callable

import msgspec

from dualstream.service.clock import SYSTEM_CLOCK, Clock
from dualstream.service.journal.protocol import (
    AppendRequest,
    Change,
    CursorMove,
    CursorMoved,
    Journal,
)
from dualstream.service.replica.replica import Replica

CURSOR = "refits"
KEPT = 20
"""So many jobs of a model are known, the newest ones."""
LOST_MS = 10_000
UNDER_WAY = ("waiting", "running", "entering")


class RefitJob(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One refit. Times are wall-clock milliseconds, and told only."""

    job: str
    status: str = "waiting"
    """waiting, running, entering; then done, refused, superseded, cancelled, failed or lost."""
    method: str
    tol: float
    max_epochs: int
    window_rows: int | None = None
    """Of how many of the journal's last records; None where rows are retained."""
    due: int | None = None
    """The count of samples that it fell due at; None where somebody asked for it."""
    seq: int | None = None
    """Of the last record before the window that it is of."""
    rows: int | None = None
    epochs: int = 0
    relative_gap_before: float | None = None
    relative_gap: float | None = None
    dual_before: float | None = None
    dual: float | None = None
    converged: bool | None = None
    entered_seq: int | None = None
    """Of the control by which it entered the model, or was refused."""
    retained: int | None = None
    """How many of its rows were still in the window there."""
    dropped: list[str] | None = None
    """Named functions that the window cannot tell from those before; None without any."""
    coefficients_are_unique: bool | None = None
    reason: str | None = None
    is_asked_to_end: bool = False
    created_ms: int = 0
    updated_ms: int = 0

    @property
    def is_under_way(self) -> bool:
        """Whether somebody computes it, as far as is known."""
        return self.status in UNDER_WAY and now_ms() - self.updated_ms < LOST_MS


class UnderWay(Exception):
    """Another refit of the model is under way."""

    def __init__(self, job: str) -> None:
        super().__init__(f"the refit {job!r} of this model is under way")
        self.job = job


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class RefitTable:
    """The jobs of one model, the newest first."""

    def __init__(self, replica: Replica, journal: Journal, clock: Clock = SYSTEM_CLOCK) -> None:
        self._replica = replica
        self._journal = journal
        self._clock = clock

    async def read(self) -> list[RefitJob]:
        """All that are known. Raises ModelChanged, JournalUnavailable."""
        return _jobs(await self._stored())

    async def begin(self, job: RefitJob, told: Change | None = None) -> None:
        """Put a new job on the board, and in the log of changes. Raises UnderWay where one is."""

        def add(jobs: list[RefitJob]) -> list[RefitJob]:
            for other in jobs:
                if other.is_under_way:
                    raise UnderWay(other.job)
            return [job, *jobs][:KEPT]

        await self._change(add, told)

    async def write(self, job: RefitJob) -> RefitJob:
        """Let the board say this of a job; what it said before."""
        before, job.updated_ms = job, now_ms()

        def put(jobs: list[RefitJob]) -> list[RefitJob]:
            nonlocal before
            before = next((other for other in jobs if other.job == job.job), job)
            asked = before.is_asked_to_end
            own = msgspec.structs.replace(job, is_asked_to_end=asked)
            return [own if other.job == job.job else other for other in jobs]

        await self._change(put)
        return before

    async def ask_to_end(self, name: str, told: Change | None = None) -> None:
        """Tell whoever computes the job to leave it, once; and the log of changes."""

        def ask(jobs: list[RefitJob]) -> list[RefitJob] | None:
            asked = [
                msgspec.structs.replace(job, is_asked_to_end=True) if job.job == name else job
                for job in jobs
            ]
            return None if asked == jobs else asked

        await self._change(ask, told)

    async def _stored(self) -> str | None:
        return await self._journal.cursor(self._replica.id, self._replica.incarnation, CURSOR)

    async def _change(
        self, change: Callable[[list[RefitJob]], list[RefitJob] | None], told: Change | None = None
    ) -> None:
        """Compare and set until nobody came in between; None leaves all as it is.

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
                    AppendRequest(*where, nonce, replica.seq, (), move, change=told)
                )
                return
            except CursorMoved:
                continue


def _jobs(stored: str | None) -> list[RefitJob]:
    """As they are: one that its process has not written of for long is lost."""
    jobs = [] if stored is None else msgspec.json.decode(stored, type=list[RefitJob])
    for job in jobs:
        if job.status in UNDER_WAY and not job.is_under_way:
            job.status, job.reason = "lost", "nobody has told of it: its process has died"
    return jobs
