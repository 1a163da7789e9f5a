"""Refits of one model in this process: computed in a thread, entered as a control of numbers.

One worker computes; the others apply what it found, in its place in the journal, as any control.
Which worker that is the board decides (`refit_board.py`), and should two compute the same, the
key `refit` of the control lets the first result win. A refit that falls due by itself is tried by
every worker that comes by, at each half of `every` samples: so one that was lost with its process
is taken over by whoever comes by next.
"""

import asyncio
import contextlib
import logging
import threading
import weakref
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from dualstream.service.concurrency import SingleThread
from dualstream.service.jobs.refit_status import UNDER_WAY, RefitJob, RefitTable, UnderWay, now_ms
from dualstream.service.jobs.refit_window import last_rows
from dualstream.service.journal.author import Author
from dualstream.service.journal.protocol import (
    Journal,
    JournalError,
    JournalUnavailable,
    ModelChanged,
    NotHeld,
    OutcomeUnknown,
    Place,
    UnknownModel,
)
from dualstream.service.journal.record import Control, KeyKind, decode, make_key
from dualstream.service.models.job import Job
from dualstream.service.replica.controls import Refit, records_of
from dualstream.service.replica.receipts import OutcomeForgotten
from dualstream.service.replica.requests import ControlRequest
from dualstream.solvers import (
    WINDOW_ROWS,
    Batch,
    RefitError,
    RefitRun,
    begin_refit,
    problems_of,
    takes_weights,
    why_not_refit,
)
from dualstream.solvers.core.refit_methods import refit_methods

if TYPE_CHECKING:
    from dualstream.service.models.model import Model

log = logging.getLogger("dualstream.refits")

BEAT_S = 1.0
"""How often the board is told how far a refit is, and asked whether it shall end."""
TRIES = 10
"""Appends of one result, a beat apart, while the store is away."""
MAX_BYTES = 64 * 1024 * 1024
"""What enters a model is one record, which the journal has to hold."""
MAX_EPOCHS = 1000
NICENESS = 19
"""Of the thread that computes; that of Linux which gives way most.

Below it there is SCHED_IDLE: with the interpreter's lock in hand such a thread might be left
standing for half a second, and everybody who answers with it.
"""


class RecordsLost(Exception):
    """The journal no longer has what a refit was computed of."""


class SolverThread(SingleThread):
    """Low-priority thread in which a process computes one refit after another."""

    def __init__(self) -> None:
        super().__init__("refit", NICENESS)
        self.turn = asyncio.Lock()
        """Held for the whole of a refit, which runs several pieces of work in the thread."""


class Refits(Job):
    """The refits of one model."""

    def __init__(self, model: "Model", journal: Journal, desk: SolverThread) -> None:
        # A model that leaves memory is free at once: nothing that it has refers back to it.
        self._whose = weakref.ref(model)
        self._desk = desk
        self._journal = journal
        self._board = RefitTable(model.replica, journal, model.outside)
        self._here: dict[str, tuple[RefitJob, threading.Event, asyncio.Task[None]]] = {}
        self._others: set[asyncio.Task[None]] = set()
        spec = model.replica.spec
        self.why_not = why_not_refit(spec)
        """Why the model cannot be refitted; None where it can."""
        self.is_of_journal = takes_weights(spec)
        """Whether the window is read from the journal, as the model retains no rows."""
        self._own = spec.get("refit")
        self.methods = () if self.why_not is not None else refit_methods(spec)
        """How its window can be solved; the first, if nothing else is asked for."""
        self._halves = self._count_halves()

    @property
    def _model(self) -> "Model":
        model = self._whose()
        assert model is not None  # held by whoever calls
        return model

    # -- asked for -------------------------------------------------------------------------------

    async def begin(
        self,
        method: str,
        tol: float,
        max_epochs: int = MAX_EPOCHS,
        due: int | None = None,
        rows: int | None = None,
        by: Author | None = None,
    ) -> RefitJob:
        """Compute a refit from now on, for whoever asked, or because the spec says so.

        rows  of how many of the last records, for a model that retains no rows

        Raises UnderWay, and what the store raises.
        """
        if rows is None and self.is_of_journal:
            rows = (self._own or {}).get("rows", WINDOW_ROWS)
        job = RefitJob(
            job=sha256(self._model.outside.nonce()).hexdigest()[:12],
            method=method,
            tol=tol,
            max_epochs=max_epochs,
            window_rows=rows,
            due=due,
            created_ms=now_ms(),
            updated_ms=now_ms(),
        )
        # What has ended here is not told by the board yet.
        ended = [task for other, _, task in self._here.values() if other.status not in UNDER_WAY]
        if ended:
            await asyncio.wait(ended)
        told = None
        if by is not None:
            how = {"method": method, "tol": tol, "max_epochs": max_epochs}
            how |= {} if rows is None else {"rows": rows}
            told = by.change("refit_begin", job=job.job, **how)
        await self._board.begin(job, told)
        ending = threading.Event()
        task = asyncio.create_task(self._run(job, ending, by))
        self._here[job.job] = job, ending, task
        task.add_done_callback(lambda _: self._here.pop(job.job, None))
        return job

    async def all(self) -> list[RefitJob]:
        """The jobs that are known, the newest first. Raises ModelChanged, JournalUnavailable."""
        return [self._as_here(job) for job in await self._board.read()]

    async def find(self, name: str) -> RefitJob | None:
        """The job of this name."""
        return next((job for job in await self.all() if job.job == name), None)

    async def end(self, name: str, by: Author) -> None:
        """Let whoever computes the job leave it, if it is not entering the model by then."""
        here = self._here.get(name)
        await self._board.ask_to_end(name, by.change("refit_cancel", job=name))
        if here is not None:
            _, ending, task = here
            ending.set()
            await asyncio.wait([task], timeout=BEAT_S)

    def _as_here(self, job: RefitJob) -> RefitJob:
        return self._here[job.job][0] if job.job in self._here else job

    # -- falling due -----------------------------------------------------------------------------

    def _count_halves(self) -> int:
        if self._own is None:
            return 0
        return int(self._model.replica.learner.samples // max(1, self._own["every"] // 2))

    def came_by(self) -> None:
        """Called between two groups: begin what has fallen due, unless somebody has."""
        if self._own is None:
            return
        halves = self._count_halves()
        if halves == self._halves:
            return
        self._halves = halves
        every = self._own["every"]
        due = self._model.replica.learner.samples // every * every
        if due:
            task = asyncio.create_task(self._begin_due(due))
            self._others.add(task)
            task.add_done_callback(self._others.discard)

    async def _begin_due(self, due: int) -> None:
        assert self._own is not None
        model = self._model
        try:
            for job in await self._board.read():
                if job.due == due and job.status not in ("lost", "failed"):
                    return
            await self.begin(self._own["method"], self._own["tol"], due=due)
        except UnderWay:
            pass
        except JournalError as error:
            log.warning("model %r: a refit is put off: %s", model.record.id, error)

    # -- computing -------------------------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        """Whether one is under way here."""
        return bool(self._here or self._others)

    def stop(self) -> None:
        """Leave what is under way."""
        for _, ending, task in self._here.values():
            ending.set()
            task.cancel()
        for other in self._others:
            other.cancel()

    async def close(self) -> None:
        """As `stop`, and wait for it."""
        tasks = [task for _, _, task in self._here.values()] + list(self._others)
        self.stop()
        if tasks:
            await asyncio.wait(tasks)

    async def _run(self, job: RefitJob, ending: threading.Event, by: Author | None) -> None:
        beating = asyncio.create_task(self._beat(job, ending))
        model = self._model
        name = model.record.id
        try:
            async with self._desk.turn:
                job.status = "running"
                await self._compute(job, ending, by)
        except asyncio.CancelledError:
            ending.set()
            job.status, job.reason = "lost", "its process has left it"
            raise
        except RecordsLost as error:
            job.status, job.reason = "lost", str(error)
        except RefitError as error:
            job.status, job.reason = "refused", str(error)
        except (ModelChanged, UnknownModel):
            job.status, job.reason = "lost", "the model is gone, or another one"
        except JournalError as error:
            job.status, job.reason = "failed", str(error)
        except Exception as error:
            log.exception("model %r: the refit %s failed", name, job.job)
            job.status, job.reason = "failed", f"{type(error).__name__}: {error}"
        finally:
            beating.cancel()
            with contextlib.suppress(JournalError, asyncio.CancelledError):
                await self._board.write(job)
        model.saw_refit(job.status == "done")
        log.info("model %r: the refit %s of seq %s is %s", name, job.job, job.seq, job.status)

    async def _compute(self, job: RefitJob, ending: threading.Event, by: Author | None) -> None:
        model = self._model
        if not ending.is_set():
            await model.refresh()
            async with model.committer.between_groups():
                stood = Place(model.replica.seq, model.replica.chain)
                job.seq = stood.seq
                records = records_of(model.replica)
                problems = problems_of(model.replica.learner)
            rows = None
            if job.window_rows is not None:
                asked = job.seq, job.window_rows
                rows = await last_rows(
                    self._journal, model.replica, *asked, self._desk.run, ending.is_set
                )
                if rows is None and not ending.is_set():
                    raise RefitError("no row that it has learned is in the kept journal")
            found: Any = None
            if not ending.is_set():
                found = await self._desk.run(_solve, problems, rows, job, ending)
        if ending.is_set():
            job.status = "cancelled"
            return
        arrays = found.arrays
        if sum(array.nbytes for array in arrays.values()) > MAX_BYTES:
            raise RefitError(f"it has more than {MAX_BYTES} bytes of numbers")
        assert job.seq is not None
        job.status = "entering"
        counted = None if job.window_rows is None else records
        order = Refit(job.job, job.seq, job.method, counted)
        key = f"seq-{job.seq}" if job.due is None else f"every-{job.due}"
        # Two results are never equal, and stand for the same all the same.
        request = ControlRequest.of(order, make_key(KeyKind.REFIT, key), b"refit", arrays, by)
        receipt = await self._submit(request, stood)
        job.entered_seq = receipt.placed.seq
        verdict = receipt.verdict
        if receipt.placed.duplicate and await self._is_own(job, receipt.placed.seq):
            # Sent again, as its first append went unseen.
            verdict = model.replica.verdicts.of(receipt.placed.seq, request.control)
        elif receipt.placed.duplicate:
            job.status, job.reason = "superseded", f"another result for {key} came first"
            return
        if verdict is None:
            raise OutcomeForgotten(request.control.kind, receipt.placed.seq)
        if verdict.refusal is not None:
            job.status, job.reason = "refused", verdict.refusal
        else:
            job.status, job.retained = "done", verdict.rows

    async def _is_own(self, job: RefitJob, seq: int) -> bool:
        """Whether the record at `seq` is the result of this job. Raises what a read raises."""
        replica = self._model.replica
        if (told := replica.verdicts.at(seq)) is not None:
            return bool(told.fields.get("job") == job.job)
        entries = await self._journal.read(replica.id, replica.incarnation, seq - 1, 1)
        blocks = [block for entry in entries[:1] for _, block in decode(entry.body)]
        return any(isinstance(one, Control) and one.fields["job"] == job.job for one in blocks)

    async def _submit(self, request: ControlRequest, stood: Place) -> Any:
        """Let it enter, unless the journal has lost the state at `stood`, which it was computed of.

        Raises RecordsLost, RefitError where a sample was unlearned since, what the store raises.
        """
        for tried in range(TRIES):
            try:
                request.held = await self._model.place_beyond(stood)
                since = self._model.replica.retained.unlearned_seq
                if since > stood.seq:
                    raise RefitError(
                        f"a sample was unlearned at seq {since}, after the window at {stood.seq}"
                    )
                if request.held is None:
                    raise RecordsLost(f"the journal has lost records up to seq {stood.seq} since")
                return await self._model.submit(request)
            except (JournalUnavailable, OutcomeUnknown, NotHeld):
                # Its key makes it harmless to try again, and whoever tries looks again.
                if tried == TRIES - 1:
                    raise
            await asyncio.sleep(BEAT_S)
        raise AssertionError("not reached")

    async def _beat(self, job: RefitJob, ending: threading.Event) -> None:
        """Tell the board how far the job is, and hear from it whether it shall end."""
        while True:
            await asyncio.sleep(BEAT_S)
            try:
                if (await self._board.write(job)).is_asked_to_end:
                    ending.set()
            except (ModelChanged, UnknownModel):
                ending.set()
                return
            except JournalError:
                continue


def _solve(problems: Any, rows: Batch | None, job: RefitJob, ending: threading.Event) -> Any:
    """In the thread. Raises RefitError."""

    def look(run: RefitRun) -> None:
        job.epochs, job.converged = run.epochs, run.converged
        job.relative_gap, job.dual = run.relative_gap, run.dual

    run = begin_refit(problems, job.method, job.tol, job.max_epochs, rows)
    job.rows = run.rows
    job.relative_gap_before, job.dual_before = run.relative_gap_before, run.dual_before
    if not run.run(ending.is_set, look):
        return None
    job.relative_gap_before = run.relative_gap_before
    found = run.refitted()
    job.dropped, job.coefficients_are_unique = found.dropped, found.coefficients_are_unique
    return found
