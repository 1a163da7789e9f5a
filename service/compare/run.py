"""The run of a comparison: blocks of rows in order through all contestants."""

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from dualstream.service.compare.contestants import Contestant, Predictions
from dualstream.service.compare.figures import Figures, Gain, losses_of
from dualstream.service.compare.peers import Peer
from dualstream.service.compare.schedule import Block, Schedule
from dualstream.service.compare.stored_rows import StoredRows
from dualstream.solvers.evaluation.drift import DriftWatch
from dualstream.solvers.jit import Floats

REPEATED_S = 1.0
"""Within these seconds Ctrl-C is the same one, pressed twice."""
OnBlock = Callable[["Run", int], None]
"""Receives the run, and how many rows are done."""


@dataclass(slots=True)
class Run:
    """Contestants and their figures; the first one is compared with each of the others."""

    task: str
    rows: StoredRows
    schedule: Schedule
    contestants: list[Contestant]
    compare_from: int | None = None
    """The first row that counts, from which every contestant predicts; None before it."""
    starts_at: int = 0
    """Earlier rows never count."""
    done: int = 0
    """Rows that are done."""
    is_interrupted: bool = False
    figures: dict[str, Figures] = field(default_factory=dict)
    gains: dict[str, Gain] = field(default_factory=dict)
    drift: DriftWatch = field(default_factory=lambda: DriftWatch(()))
    """Watches the losses of the first contestant."""
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def __post_init__(self) -> None:
        for one in self.contestants:
            self.figures[one.name] = Figures(self.task, len(self.rows))
        for one in self.contestants[1:]:
            self.gains[one.name] = Gain(self.task)
        if self.task == "regression":
            from dualstream.solvers.evaluation.drift import DETECTORS

            self.drift = DriftWatch(DETECTORS)

    @property
    def first(self) -> Contestant:
        return self.contestants[0]

    def go(self, on_block: OnBlock | None = None) -> None:
        """Run all blocks. After an interrupt the figures are those of the rows so far."""
        begin = time.perf_counter()
        try:
            for block in self.schedule.blocks():
                self._run_block(block)
                self.rows.release_pages()
                if on_block is not None:
                    on_block(self, block.stop)
        except KeyboardInterrupt:
            self.is_interrupted = True
        self.seconds = time.perf_counter() - begin

    def _run_block(self, block: Block) -> None:
        if block.retrains:
            self._retrain(block)
        predictions = {one.name: one.step(block) for one in self.contestants}
        truth = self.rows.labels(block.first, block.stop)
        losses = {name: losses_of(self.task, truth, one) for name, one in predictions.items()}
        self._watch(losses[self.first.name], block)
        is_ready = all(one.can_predict for one in self.contestants)
        if self.compare_from is None and is_ready and block.stop > self.starts_at:
            self.compare_from = max(block.first, self.starts_at)
        with undivided():
            if self.compare_from is not None:
                self._count(block, truth, predictions, losses)
            self.done = block.stop

    def _retrain(self, block: Block) -> None:
        for one in list(self.contestants):
            if isinstance(one, Peer):
                one.train(block)
                if not one.can_predict:
                    self.leave_out(one, f"{one.name} is left out: {one.reason}")

    def leave_out(self, one: Contestant, note: str) -> None:
        """Go on without a contestant that cannot predict."""
        self.contestants.remove(one)
        del self.figures[one.name], self.gains[one.name]
        self.notes.append(note)

    def _watch(self, losses: Floats, block: Block) -> None:
        everywhere = np.ones(len(losses), np.bool_)
        self.drift.watch(losses, everywhere, block.first + 1, block.first)

    def _count(
        self,
        block: Block,
        truth: Floats,
        predictions: Mapping[str, Predictions],
        losses: Mapping[str, Floats],
    ) -> None:
        """Count a block for all contestants, or for none."""
        assert self.compare_from is not None
        skipped = max(0, self.compare_from - block.first)
        first, ours = block.first + skipped, losses[self.first.name][skipped:]
        for name, figures in self.figures.items():
            one = predictions[name].between(skipped, len(truth))
            figures.add(first, truth[skipped:], one, losses[name][skipped:])
            if name in self.gains:
                self.gains[name].add(ours, losses[name][skipped:])


@contextmanager
def one_interrupt() -> Iterator[None]:
    """Ignore Ctrl-C within REPEATED_S after another one, which has the result written."""
    if not _interrupts():
        yield
        return
    last = -math.inf

    def handle(_number: int, _frame: object) -> None:
        nonlocal last
        before, last = last, time.monotonic()
        if last > before + REPEATED_S:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _interrupts() -> bool:
    """Does Ctrl-C interrupt this thread? Not in the background."""
    is_main = threading.current_thread() is threading.main_thread()
    return is_main and callable(signal.getsignal(signal.SIGINT))


@contextmanager
def undivided() -> Iterator[None]:
    """Let Ctrl-C wait until the end of this work."""
    if not _interrupts():
        yield
        return
    interrupts: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: interrupts.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if interrupts and callable(before):
        before(signal.SIGINT, None)
