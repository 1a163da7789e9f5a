"""The timer that gives rows their default labels once their wait is over.

Every worker has one; which of them appends a label first does not matter, as its key lets in one.
Rows without a default label are let go of here.
"""

import asyncio
import logging
import time
from contextlib import suppress

from dualstream.service.jobs.late_labels import learn_defaults
from dualstream.service.journal.protocol import (
    AwaitingLabels,
    Journal,
    JournalError,
    ModelChanged,
)
from dualstream.service.models.registry import ModelRegistry
from dualstream.wire.problems import Problem

log = logging.getLogger("dualstream.default_labels")

SWEEP_S = 1.0
AT_ONCE = 1000
# Of the time, no more than this share goes into looking.
LOOKING_SHARE = 0.1


class DefaultLabels:
    """Looks at the rows that wait, of all models of the store."""

    def __init__(self, catalog: ModelRegistry, journal: Journal) -> None:
        self._catalog = catalog
        self._journal = journal
        self._trouble: str | None = None

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            began = time.monotonic()
            try:
                await self.sweep()
                self._trouble = None
            except Exception as error:
                self._say(error)
            spent_s = time.monotonic() - began
            await asyncio.sleep(max(SWEEP_S, spent_s / LOOKING_SHARE))

    async def sweep(self) -> None:
        """Look once. Raises what the store raises; a model that cannot be served is left alone."""
        models = await self._journal.awaiting_labels()
        self._catalog.telemetry.saw_waiting({told.model: told.rows for told in models})
        for told in models:
            if told.is_due:
                with suppress(ModelChanged):
                    await self._look_after(told)

    async def _look_after(self, told: AwaitingLabels) -> None:
        seen: bytes | None = None
        while True:
            due = await self._journal.overdue(told.model, told.incarnation, AT_ONCE)
            self._catalog.telemetry.saw_expired(due.expired)
            if not due.rows or due.rows[0].key == seen:
                if due.expired == 0 or due.rows:
                    return
                continue
            seen = due.rows[0].key
            with self._catalog.pinned(told.model):
                try:
                    model = await self._catalog.get(told.model)
                except Problem as problem:  # it cannot be read, which was said
                    log.debug("model %r: %s", told.model, problem.detail)
                    return
                if model.record.incarnation != told.incarnation:
                    return
                try:
                    receipt = await learn_defaults(model, due.rows)
                except Problem as problem:  # it takes no rows now; these go on waiting
                    log.debug("model %r: %s", told.model, problem.detail)
                    return
                self._catalog.telemetry.saw_default_labels(receipt.placed.count)

    def _say(self, error: Exception) -> None:
        """Once, as long as it goes on."""
        if str(error) != self._trouble:
            trace = None if isinstance(error, JournalError) else error
            log.warning("rows that wait are not looked after: %s", error, exc_info=trace)
        self._trouble = str(error)
