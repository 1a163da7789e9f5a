"""Refit: solves a model's window offline in a thread and enters the result as a control.

One worker computes; the others apply its result at its position in the journal, as any control.
The refit table (`table.py`) decides which worker computes. If two workers compute the same
refit, the key of the control lets the first result win. A scheduled refit is tried by every worker
at each half of `every` samples, so another worker takes over a refit whose process died.
"""

import asyncio
import contextlib
import logging
import threading
import weakref
from functools import partial
from hashlib import sha256
from typing import Any

from dualstream.service.features.refits.controls import Refit, records_of
from dualstream.service.features.refits.table import (
    UNDER_WAY,
    RefitJob,
    RefitTable,
    UnderWay,
    now_ms,
)
from dualstream.service.features.refits.window import last_rows
from dualstream.service.journal import protocol
from dualstream.service.journal.audit import Author
from dualstream.service.journal.record import Control, KeyKind, decode, make_key
from dualstream.service.models.job import Job
from dualstream.service.models.model import Model
from dualstream.service.replica.replica import Replica
from dualstream.service.replica.requests import ControlRequest, OutcomeForgotten
from dualstream.solvers import Batch, RefitError
from dualstream.solvers.offline import refit_methods
from dualstream.solvers.refit import refit

log = logging.getLogger("dualstream.refits")

HEARTBEAT_S = 1.0
"""Interval of progress reports to the refit table, and of checks for a cancellation."""
ATTEMPTS = 10
"""Appends of one result, HEARTBEAT_S apart, while the store is away."""
MAX_BYTES = 64 * 1024 * 1024
"""Size limit of a result, which is one record of the journal."""
MAX_EPOCHS = 1000


class RecordsLost(Exception):
    """The journal has lost records that a refit was computed from."""


class Refits(Job):
    """The refits of one model."""

    def __init__(self, model: Model) -> None:
        self._model_ref = weakref.ref(model)
        self._thread = model.deps.refit_thread
        self._journal = model.deps.journal
        self._table = RefitTable(model.replica, self._journal, model.clock)
        self._local: dict[str, tuple[RefitJob, threading.Event, asyncio.Task[None]]] = {}
        self._begin_tasks: set[asyncio.Task[None]] = set()
        spec = model.replica.spec
        self.why_not = refit_methods.why_not_refit(spec)
        """Why the model cannot be refitted. None if it can."""
        self.is_of_journal = refit_methods.takes_weights(spec)
        """Is the window read from the journal, because the model retains no rows?"""
        self._schedule = spec.get("refit")
        self.methods = () if self.why_not is not None else refit_methods.refit_methods(spec)
        """Methods that can solve the window. The first is the default."""
        self._half_periods = self._count_half_periods()

    @classmethod
    def is_due(cls, replica: Replica, since: int) -> bool:
        """A loaded model with `refit` in its specification checks at once whether one is due."""
        return since == 0 and replica.spec.get("refit") is not None

    @property
    def _model(self) -> Model:
        model = self._model_ref()
        assert model is not None  # the caller holds it
        return model

    # -- requests --------------------------------------------------------------------------------

    async def begin(
        self,
        method: str,
        tol: float,
        max_epochs: int = MAX_EPOCHS,
        due: int | None = None,
        rows: int | None = None,
        by: Author | None = None,
        options: dict[str, Any] | None = None,
    ) -> RefitJob:
        """Start a refit, for a request or by schedule.

        rows     number of journal records to solve, for a model that retains no rows
        options  of the method

        Raises UnderWay, and what the store raises.
        """
        if rows is None and self.is_of_journal:
            rows = (self._schedule or {}).get("rows", refit_methods.WINDOW_ROWS)
        job = RefitJob(
            job=sha256(self._model.clock.new_nonce()).hexdigest()[:12],
            method=method,
            tol=tol,
            max_epochs=max_epochs,
            options=options or {},
            window_rows=rows,
            due=due,
            created_ms=now_ms(),
            updated_ms=now_ms(),
        )
        # A refit that has just ended may not be in the table yet.
        ended = [task for other, _, task in self._local.values() if other.status not in UNDER_WAY]
        if ended:
            await asyncio.wait(ended)
        change = None
        if by is not None:
            how = {"method": method, "tol": tol, "max_epochs": max_epochs}
            how |= {} if rows is None else {"rows": rows}
            how |= {"options": options} if options else {}
            change = by.change("refit_begin", job=job.job, **how)
        await self._table.begin(job, change)
        ending = threading.Event()
        task = asyncio.create_task(self._run(self._model, job, ending, by))
        self._local[job.job] = job, ending, task
        task.add_done_callback(lambda _: self._local.pop(job.job, None))
        return job

    async def all(self) -> list[RefitJob]:
        """All known refits, newest first. Raises ModelChanged, JournalUnavailable."""
        return [self._live(job) for job in await self._table.read()]

    async def find(self, name: str) -> RefitJob | None:
        """The refit with this name."""
        return next((job for job in await self.all() if job.job == name), None)

    async def add(self, job: RefitJob) -> None:
        """List weights that a request has set. If the store fails, they are not listed."""
        with contextlib.suppress(protocol.JournalError):
            await self._table.add(job)

    async def end(self, name: str, by: Author) -> None:
        """Cancel a refit in any process, unless its result is being entered."""
        here = self._local.get(name)
        await self._table.request_cancel(name, by.change("refit_cancel", job=name))
        if here is not None:
            _, ending, task = here
            ending.set()
            await asyncio.wait([task], timeout=HEARTBEAT_S)

    def _live(self, job: RefitJob) -> RefitJob:
        return self._local[job.job][0] if job.job in self._local else job

    # -- schedule --------------------------------------------------------------------------------

    def _count_half_periods(self) -> int:
        if self._schedule is None:
            return 0
        return int(self._model.replica.learner.samples // max(1, self._schedule["every"] // 2))

    def on_advance(self) -> None:
        """Called between two groups: start a scheduled refit that is due."""
        if self._schedule is None:
            return
        halves = self._count_half_periods()
        if halves == self._half_periods:
            return
        self._half_periods = halves
        every = self._schedule["every"]
        due = self._model.replica.learner.samples // every * every
        if due:
            task = asyncio.create_task(self._begin_due(self._model, due))
            self._begin_tasks.add(task)
            task.add_done_callback(self._begin_tasks.discard)

    async def _begin_due(self, model: Model, due: int) -> None:
        assert self._schedule is not None
        try:
            for job in await self._table.read():
                if job.due == due and job.status not in ("lost", "failed"):
                    return
            how = self._schedule
            await self.begin(how["method"], how["tol"], due=due, options=how.get("options"))
        except UnderWay:
            pass
        except protocol.JournalError as error:
            log.warning("model %r: a scheduled refit was not started: %s", model.record.id, error)

    # -- computing -------------------------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        """Is a refit under way in this process?"""
        return bool(self._local or self._begin_tasks)

    def stop(self) -> None:
        """Abandon the refits under way."""
        for _, ending, task in self._local.values():
            ending.set()
            task.cancel()
        for other in self._begin_tasks:
            other.cancel()

    async def close(self) -> None:
        """Stop and wait."""
        tasks = [task for _, _, task in self._local.values()] + list(self._begin_tasks)
        self.stop()
        if tasks:
            await asyncio.wait(tasks)

    async def _run(
        self, model: Model, job: RefitJob, ending: threading.Event, by: Author | None
    ) -> None:
        """`model` is held from before the task begins: its caller may forget it by then."""
        heartbeat = asyncio.create_task(self._heartbeat(job, ending))
        name = model.record.id
        try:
            async with self._thread.turn:
                job.status = "running"
                await self._compute(job, ending, by)
        except asyncio.CancelledError:
            ending.set()
            job.status, job.reason = "lost", "its process was stopped"
            raise
        except RecordsLost as error:
            job.status, job.reason = "lost", str(error)
        except RefitError as error:
            job.status, job.reason = "refused", str(error)
        except (protocol.ModelChanged, protocol.UnknownModel):
            job.status, job.reason = "lost", "the model was deleted or replaced"
        except protocol.JournalError as error:
            job.status, job.reason = "failed", str(error)
        except Exception as error:
            log.exception("model %r: the refit %s failed", name, job.job)
            job.status, job.reason = "failed", f"{type(error).__name__}: {error}"
        finally:
            heartbeat.cancel()
            with contextlib.suppress(protocol.JournalError, asyncio.CancelledError):
                await self._table.write(job)
        model.deps.counters.saw_refit(name, job.status == "done")
        log.info("model %r: the refit %s of seq %s is %s", name, job.job, job.seq, job.status)

    async def _compute(self, job: RefitJob, ending: threading.Event, by: Author | None) -> None:
        model = self._model
        if not ending.is_set():
            await model.refresh()
            async with model.committer.between_groups():
                origin = model.replica.position
                job.seq = origin.seq
                records = records_of(model.replica)
                learner = model.replica.learner
                problems = await model.replica.view(partial(refit.problems_of, learner))
            rows = None
            if job.window_rows is not None:
                requested = job.seq, job.window_rows
                rows = await last_rows(
                    self._journal, model.replica, *requested, self._thread.run, ending.is_set
                )
                if rows is None and not ending.is_set():
                    raise RefitError("the kept journal has no row that the model has learned")
            result: Any = None
            if not ending.is_set():
                result = await self._thread.run(_solve, problems, rows, job, ending)
        if ending.is_set():
            job.status = "cancelled"
            return
        arrays = result.arrays
        if sum(array.nbytes for array in arrays.values()) > MAX_BYTES:
            raise RefitError(f"the result has more than {MAX_BYTES} bytes")
        assert job.seq is not None
        job.status = "entering"
        counted = None if job.window_rows is None else records
        order = Refit(job.job, job.seq, job.method, counted)
        key = f"seq-{job.seq}" if job.due is None else f"every-{job.due}"
        # One fingerprint for all results: two results of the same refit are never equal.
        request = ControlRequest.of(order, make_key(KeyKind.REFIT, key), b"refit", arrays, by)
        receipt = await self._submit(request, origin)
        job.entered_seq = receipt.position.seq
        outcome = receipt.control_outcome
        if receipt.position.duplicate and await self._is_own(job, receipt.position.seq):
            # The first append had succeeded, and its answer was lost.
            outcome = model.replica.control_outcomes.of(receipt.position.seq, request.control)
        elif receipt.position.duplicate:
            job.status, job.reason = "superseded", f"another result for {key} was entered first"
            return
        if outcome is None:
            raise OutcomeForgotten(request.control.kind, receipt.position.seq)
        if outcome.refusal is not None:
            job.status, job.reason = "refused", outcome.refusal
        else:
            job.status, job.retained = "done", outcome.rows

    async def _is_own(self, job: RefitJob, seq: int) -> bool:
        """Is the record at `seq` the result of this job? Raises what a read raises."""
        replica = self._model.replica
        if (change := replica.control_outcomes.at(seq)) is not None:
            return bool(change.fields.get("job") == job.job)
        entries = await self._journal.read(replica.id, replica.incarnation, seq - 1, 1)
        blocks = [block for entry in entries[:1] for _, block in decode(entry.body)]
        return any(isinstance(one, Control) and one.fields["job"] == job.job for one in blocks)

    async def _submit(self, request: ControlRequest, origin: protocol.LogPosition) -> Any:
        """Append the result, unless the journal has lost the state at `origin` that it was computed
        from.

        Raises RecordsLost; RefitError if a sample was unlearned since; what the store raises.
        """
        for tried in range(ATTEMPTS):
            try:
                request.held = await self._model.position_beyond(origin)
                since = self._model.replica.parts.forgotten_seq
                if since > origin.seq:
                    raise RefitError(
                        f"a sample was unlearned at seq {since}, after the window at {origin.seq}"
                    )
                if request.held is None:
                    raise RecordsLost(f"the journal has since lost records up to seq {origin.seq}")
                return await self._model.submit(request)
            except (protocol.JournalUnavailable, protocol.OutcomeUnknown, protocol.MissingPosition):
                # The key makes a retry harmless, and each attempt checks again.
                if tried == ATTEMPTS - 1:
                    raise
            await asyncio.sleep(HEARTBEAT_S)
        raise AssertionError("not reached")

    async def _heartbeat(self, job: RefitJob, ending: threading.Event) -> None:
        """Write the progress into the refit table, and read whether to cancel."""
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            try:
                if (await self._table.write(job)).is_asked_to_end:
                    ending.set()
            except (protocol.ModelChanged, protocol.UnknownModel):
                ending.set()
                return
            except protocol.JournalError:
                continue


def _solve(problems: Any, rows: Batch | None, job: RefitJob, ending: threading.Event) -> Any:
    """Runs in the solver thread. Raises RefitError."""

    def look(run: refit.RefitRun) -> None:
        job.epochs, job.converged = run.epochs, run.converged
        job.relative_gap, job.dual = run.relative_gap, run.dual

    run = refit.begin_refit(problems, job.method, job.tol, job.max_epochs, rows, job.options)
    job.rows = run.rows
    job.relative_gap_before, job.dual_before = run.relative_gap_before, run.dual_before
    if not run.run(ending.is_set, look):
        return None
    job.relative_gap_before = run.relative_gap_before
    refitted = run.refitted()
    job.dropped, job.coefficients_are_unique = refitted.dropped, refitted.coefficients_are_unique
    return refitted
