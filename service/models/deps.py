"""ModelDeps: what a model and its jobs need from the process."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from dualstream.service.concurrency import SingleThread
from dualstream.service.journal.protocol import Journal
from dualstream.service.models.job import Job
from dualstream.service.models.store_status import StoreIdentity, StoreStatus
from dualstream.service.models.waiting_requests import WaitingRequests
from dualstream.service.replica.clock import Clock
from dualstream.service.replica.features import Features
from dualstream.service.settings import Settings

NICENESS = 10
"""Priority of long solves: a tenth of a busy core.

A lower one harms requests: on busy cores a thread of niceness 19 may be suspended for 0.3 s while
it holds the GIL, and every request then waits; one of niceness 10 for a few hundredths.
"""


class SolverThread(SingleThread):
    """Low-priority thread for long solves, one after another: refits and reference optima."""

    def __init__(self) -> None:
        super().__init__("refit", NICENESS)
        self.turn = asyncio.Lock()
        """Held for a whole solve, which runs several pieces of work in the thread."""


class Counters(Protocol):
    """Counters of a process. Prometheus metrics implement them."""

    def saw_group(self, rows: int, seconds: float) -> None: ...
    def saw_load(self, seconds: float) -> None: ...
    def saw_eviction(self) -> None: ...
    def saw_delete(self, model: str) -> None: ...
    def saw_fork(self, model: str) -> None: ...
    def saw_loss(self, model: str, records: int) -> None: ...
    def saw_refit(self, model: str, has_entered: bool) -> None: ...
    def saw_refused(self, model: str, rows: int) -> None: ...
    def saw_refused_columns(self, model: str, rows: Mapping[str, int]) -> None: ...
    def refused_columns(self, model: str) -> Mapping[str, int]: ...
    def saw_label(self, model: str, delay_s: float) -> None: ...
    def saw_waiting(self, rows: Mapping[str, int]) -> None: ...
    def saw_expired(self, model: str, rows: int) -> None: ...
    def saw_default_labels(self, rows: int) -> None: ...
    def saw_revised(self, labels: int) -> None: ...


@dataclass(frozen=True, slots=True)
class ModelDeps:
    """Services of the process that every model shares."""

    journal: Journal
    settings: Settings
    counters: Counters
    clock: Clock
    store_identity: StoreIdentity
    store_status: StoreStatus
    waiting: WaitingRequests
    features: Features
    jobs: Sequence[type[Job]]
    """The kinds of jobs that start by themselves."""
    refit_thread: SolverThread = field(default_factory=SolverThread)
    reference_thread: SolverThread = field(default_factory=SolverThread)
