"""Label timeouts: rows whose label does not come in time are learned with their default label.

Every worker has a timer. It does not matter which worker appends a label first, because its key is
accepted once. Rows without a default label are deleted.
"""

import asyncio
import logging
import time
from contextlib import suppress

from dualstream.service.journal import protocol
from dualstream.service.models.late_labels import learn_defaults
from dualstream.service.models.registry import ModelRegistry
from dualstream.wire.problem_json import Problem

log = logging.getLogger("dualstream.label_timeouts")

SWEEP_S = 1.0
BATCH_ROWS = 1000
# Largest share of the time that sweeps take.
SWEEP_SHARE = 0.1


class DefaultLabels:
    """Sweeps the waiting rows of all models of the store."""

    def __init__(self, registry: ModelRegistry, journal: protocol.Journal) -> None:
        self._registry = registry
        self._journal = journal
        self._trouble: str | None = None

    async def run(self) -> None:
        """Sweep until cancelled."""
        while True:
            began = time.monotonic()
            try:
                await self.sweep()
                self._trouble = None
            except Exception as error:
                self._log_once(error)
            spent_s = time.monotonic() - began
            await asyncio.sleep(max(SWEEP_S, spent_s / SWEEP_SHARE))

    async def sweep(self) -> None:
        """Sweep once. Skips models that cannot be served.

        Raises what the store raises; and the error of a model, such as a damaged row, after the
        others have had their turn.
        """
        models = await self._journal.awaiting_labels()
        self._registry.counters.saw_waiting({waiting.model: waiting.rows for waiting in models})
        trouble: Exception | None = None
        for waiting in models:
            if waiting.is_due:
                try:
                    with suppress(protocol.ModelChanged):
                        await self._learn_overdue(waiting)
                except (protocol.JournalUnavailable, protocol.OutcomeUnknown):
                    raise
                except Exception as error:
                    trouble = trouble or error
        if trouble is not None:
            raise trouble

    async def _learn_overdue(self, waiting: protocol.AwaitingLabels) -> None:
        seen: bytes | None = None
        while True:
            due = await self._journal.overdue(waiting.model, waiting.incarnation, BATCH_ROWS)
            if due.expired:
                self._registry.counters.saw_expired(waiting.model, due.expired)
            if not due.rows or due.rows[0].key == seen:
                if due.expired == 0 or due.rows:
                    return
                continue
            seen = due.rows[0].key
            with self._registry.pinned(waiting.model):
                try:
                    model = await self._registry.get(waiting.model)
                except Problem as problem:  # unreadable, and logged
                    log.debug("model %r: %s", waiting.model, problem.detail)
                    return
                if model.record.incarnation != waiting.incarnation:
                    return
                try:
                    receipt = await learn_defaults(model, due.rows)
                except Problem as problem:  # it accepts no rows now: retry at the next sweep
                    log.debug("model %r: %s", waiting.model, problem.detail)
                    return
                self._registry.counters.saw_default_labels(receipt.position.count)

    def _log_once(self, error: Exception) -> None:
        """Log an error once until it changes."""
        if str(error) != self._trouble:
            trace = None if isinstance(error, protocol.JournalError) else error
            log.warning("cannot learn default labels: %s", error, exc_info=trace)
        self._trouble = str(error)
