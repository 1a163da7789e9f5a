"""Loop of `dualstream consume`: reads partitions and posts batches, exactly once.

The model's cursor of a partition is the next offset to learn. It moves in the step that journals
the rows. So a batch that is posted again is a duplicate, and a consumer whose partition another
one has read in the same time is refused (409) and continues at the cursor. If the server has lost
the cursor, and so all rows, it refuses the batch, too, and the partition is read from its begin.
"""

import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from dualstream.client import Refused, Unreachable
from dualstream.consume.batch import Batch, CursorMove, Outcome, Row, Step
from dualstream.consume.counters import Counters, Partition
from dualstream.consume.dead_letters import DeadLetter, DeadLetters, LoggedLetters
from dualstream.consume.reader import Bounds, Message, Reader, ReaderError, lost_cursor
from dualstream.consume.rows import BadMessage, RowLines
from dualstream.consume.server import ELSEWHERE, TOO_LARGE, Server
from dualstream.wire.plural import plural
from dualstream.wire.problem_json import MAX_ERRORS

T = TypeVar("T")

EARLIEST, LATEST = "earliest", "latest"
TRANSIENT = ("model-changed",)
FIRST_WAIT_S, MAX_WAIT_S = 0.1, 5.0
SLICE_S, MIN_PAUSE_S = 0.5, 0.02
"""Longest call that a signal does not end, and shortest one if no row waits."""
MIN_RUN = 10
"""Messages of a new source that are all refused, at which the consumer stops."""
HOW_TO_RESET = "continue with --reset earliest or --reset latest"


class Changed(Exception):
    """The partitions have changed, or the consumer stops: what is in memory is not posted."""


Read = list[tuple[Message, bytes | str]]
"""Messages, each with its row as a line of JSON, or the reason why it has no row."""


class Consumer:
    """Reads all partitions that `reader` is assigned, and posts their rows.

    While the server learns a batch, a thread reads the next messages.

    reset   where to continue if the cursor is outside the log: earliest, latest, or None (an error)
    step    takes the rows of each batch first
    """

    def __init__(
        self,
        reader: Reader,
        server: Server,
        lines: RowLines,
        dead: DeadLetters,
        *,
        max_rows: int,
        max_bytes: int,
        max_wait_s: float,
        reset: str | None = None,
        step: Step | None = None,
        counters: Counters | None = None,
        log: Callable[[str], None] = lambda line: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reader, self._server, self._lines, self._dead = reader, server, lines, dead
        self._max_rows, self._max_bytes, self._max_wait_s = max_rows, max_bytes, max_wait_s
        self._reset, self._step, self._log, self._clock = reset, step, log, clock
        self.counters = counters or Counters()
        self._batches: dict[str, Batch] = {}
        """The next batch of each started partition."""
        self._outside: set[str] = set()
        """Partitions whose cursor is not in the log, as the reader has found."""
        self._cursors: dict[str, int | None] = {}
        """Cursor of each partition, as last known; None once the server has lost it."""
        self._epoch = reader.epoch
        self._ahead: Read = []
        """What was read while the server learned a batch."""
        self._fault: ReaderError | None = None
        """Why nothing could be read in that time; raised once the answer is handled."""
        self._thread = ThreadPoolExecutor(1)
        self._is_stopping = False
        self._is_proven = False
        """Has the model taken a message, or does it have a cursor of a partition?"""

    def stop(self) -> None:
        """Post what has been read, then end; for signal handlers."""
        self._is_stopping = True

    def run(self, until_end: bool = False) -> None:
        """Read until stopped, or to the end of all partitions. Raises Refused, ReaderError."""
        while not self._is_stopping and not (until_end and self._is_at_end()):
            self.turn()
        try:
            for batch in list(self._batches.values()):
                self._post(batch)
        except Changed:
            self._log("stopped while waiting: the rows that are not posted stay in the source")

    def turn(self) -> None:
        """Start new partitions, read once, and post the batches that are full or old."""
        if self._fault is not None:
            raise self._fault
        try:
            self._start_sources()
            messages, self._ahead = self._ahead or self._read(self._pause_s()), []
            self._check_epoch()
            self._note_lag()
            self._add(messages)
            for batch in list(self._batches.values()):
                if batch.rows_seen and self._clock() - batch.since >= self._max_wait_s:
                    self._post(batch)
        except Changed:
            pass

    # -- start of partitions -----------------------------------------------------------------------

    def _start_sources(self) -> None:
        """Start the partitions that are new, moved or lost at the model's cursors."""
        if self._reader.epoch != self._epoch:
            self._epoch = self._reader.epoch
            self._batches.clear()
            self._outside.clear()
            self.counters.partitions.clear()  # others may read them now
            self._ahead = []
        for source in self._reader.lost():
            self._outside.add(source)
            self._batches.pop(source, None)
        waiting = [name for name in self._reader.assigned() if name not in self._batches]
        if not waiting:
            return
        # The cursors first: the log's end is then not before any of them.
        cursors = self._retry(self._server.sources)
        for source in sorted(waiting):
            cursor = cursors.get(source)
            if cursor is not None:
                self._cursors[source], self._is_proven = cursor, True
            if cursor is not None and source not in self._outside:
                self._start(source, cursor, cursor)
                continue
            bounds = self._reader.bounds(source)
            if bounds is None:
                continue  # asked again in the next turn
            if cursor is None:
                self._start_without_cursor(source, bounds)
            else:
                self._start_outside(source, cursor, bounds)
            self._outside.discard(source)

    def _start(self, source: str, offset: int, cursor: int) -> None:
        """Read a partition from `offset`; the next batch begins at `cursor`."""
        self._reader.start(source, offset)
        self._ahead = [one for one in self._ahead if one[0].source != source]
        self._batches[source] = Batch(source, cursor)
        self.counters.partitions[source] = Partition(self._reader.cursor(cursor))

    def _start_without_cursor(self, source: str, bounds: Bounds) -> None:
        """Read a partition that the model has not learned from, or has lost."""
        offset = bounds.first
        if source in self._cursors:
            self._note_loss(source, bounds)
        elif self._reset == LATEST and not self._reader.is_new(source):
            offset = bounds.end
            if offset:  # set the cursor: a restart before the first message would begin later
                self._move(source, offset - 1, offset)
        self._start(source, offset, offset)

    def _note_loss(self, source: str, bounds: Bounds) -> None:
        """Log that the server has lost the cursor of a partition, once."""
        cursor, self._cursors[source] = self._cursors[source], None
        if cursor is not None:
            self._log(f"{source}: {lost_cursor(self._reader.cursor(cursor), bounds)}")

    def _start_outside(self, source: str, cursor: int, bounds: Bounds) -> None:
        """Read a partition whose log does not have the cursor. Raises ReaderError without reset."""
        if bounds.first <= cursor <= bounds.end:  # it has it again: the broker was behind
            self._start(source, cursor, cursor)
            return
        outside = self._reader.outside(source, cursor, bounds)
        if self._reset is None:
            raise ReaderError(f"{outside}; {HOW_TO_RESET}")
        offset = bounds.first if self._reset == EARLIEST else bounds.end
        self._log(f"{outside}; continues at the {self._reset} message")
        if cursor > bounds.end:
            self._retry(lambda: self._server.set_source(source, offset))
            cursor = offset
        elif self._reset == LATEST:  # move the cursor: a restart before the next message
            self._move(source, cursor, offset)
            cursor = offset
        self._start(source, offset, cursor)

    def _move(self, source: str, start: int, end: int) -> None:
        """Move the cursor without rows. Raises Changed if another consumer was faster."""
        try:
            self._retry(lambda: self._learn_now(CursorMove(source, start, end), ()))
        except Refused as refused:
            if refused.kind not in ELSEWHERE:
                raise
            raise Changed from None

    # -- batches -----------------------------------------------------------------------------------

    def _pause_s(self) -> float:
        """Seconds until the oldest batch must be posted, and at most SLICE_S."""
        since = [batch.since for batch in self._batches.values() if batch.rows_seen]
        pause_s = max(self._max_wait_s, MIN_PAUSE_S)
        if since:
            pause_s = max(0.0, min(since) + self._max_wait_s - self._clock())
        return min(pause_s, SLICE_S)

    def _read(self, seconds: float) -> Read:
        """Read messages, and convert them to rows."""
        messages, line_of = Read(), self._lines.line
        for message in self._reader.read(self._max_rows, seconds):
            try:
                messages.append((message, line_of(message)))
            except BadMessage as bad:
                messages.append((message, str(bad)))
        return messages

    def _add(self, messages: Read) -> None:
        """Add messages to the batches of their partitions; post each whenever it is full."""
        now, batch, source = self._clock(), None, ""
        for message, line in messages:
            if message.source != source:
                source = message.source
                batch = self._batches.get(source)
            if batch is None or message.offset < batch.end:  # it moved: they are read again
                continue
            if isinstance(line, str):
                batch.add_bad(DeadLetter(message, line), now)
            else:
                if batch.rows and batch.size + len(line) > self._max_bytes:
                    self._post(batch)
                    batch = self._batches.get(source)
                    if batch is None:
                        continue
                batch.add(message, line, now)
            if batch.rows_seen >= self._max_rows:
                self._post(batch)
                batch = self._batches.get(source)

    def _post(self, batch: Batch) -> None:
        """Post a batch, until the server has answered; then begin the next one."""
        if not batch.rows_seen:
            return
        self._check_first(batch)
        if self._step is not None:
            step, rows = self._step, batch.rows
            batch.rows, refused_rows = self._retry(lambda: step.take(rows))
            batch.bad += refused_rows
        # In this order: a message whose reason is known is in the dead letters before it is passed.
        if batch.bad:
            self._retry(lambda: self._dead.write(batch.bad))
            self.counters.refused += len(batch.bad)
            batch.bad = []
        try:
            self._send(batch.source, batch.start, batch.end, batch.rows)
        except Refused as refused:
            if refused.kind not in ELSEWHERE:
                raise
            self.counters.moved += 1
            del self._batches[batch.source]
            return
        self._batches[batch.source] = Batch(batch.source, batch.end)
        progress = self.counters.partitions[batch.source]
        progress.offset, progress.timestamp_ms = self._reader.cursor(batch.end), batch.last_ms
        self._note_lag()

    def _check_first(self, batch: Batch) -> None:
        """Raise ReaderError, before the cursor moves, if a new source has only bad messages."""
        if self._is_proven or batch.rows_seen < MIN_RUN:
            return
        rows = batch.rows[:MAX_ERRORS]
        reason = None
        if not rows:
            reason = batch.bad[0].reason
        elif self._step is None and not self.counters.learned:
            reason = self._retry(lambda: self._server.refusal(rows))
        if reason is not None:
            cursor, count = self._reader.cursor(batch.start), len(rows) or len(batch.bad)
            raise ReaderError(
                f"{batch.source}: refused the first {plural(count, 'message')}: {reason}; to make"
                f" them dead letters, set the cursor to {cursor}"
            )
        self._is_proven = True

    def _send(self, source: str, start: int, end: int, rows: Sequence[Row]) -> None:
        """Learn these rows as one append, or as several if the server says it is too large."""
        move = CursorMove(source, start, end, self._reader.lag(source, end))
        try:
            outcome = self._retry(lambda: self._learn(move, rows))
        except Refused as refused:
            if refused.kind not in TOO_LARGE or not rows:
                raise
            if len(rows) > 1:
                middle = len(rows) // 2
                cut = rows[middle][0].offset
                self._send(source, start, cut, rows[:middle])
                self._send(source, cut, end, rows[middle:])
            else:
                outcome = Outcome()
                outcome.refuse(rows, refused.detail)
                self._count(source, outcome)
                self._retry(lambda: self._learn_now(move, ()))
            return
        self._count(source, outcome)

    def _learn(self, move: CursorMove, rows: Sequence[Row]) -> Outcome:
        """Learn rows, and read the next ones in the same time."""
        if self._ahead or not self._reader.reads_ahead:
            return self._learn_now(move, rows)
        reading = self._thread.submit(self._read, 0.0)
        try:
            return self._learn_now(move, rows)
        finally:
            try:
                self._ahead = reading.result()
            except ReaderError as fault:
                self._fault = fault

    def _learn_now(self, move: CursorMove, rows: Sequence[Row]) -> Outcome:
        """Learn rows; those of a partition without a cursor begin it."""
        move = move._replace(first=self._cursors.get(move.source) is None)
        outcome = self._server.learn(move, rows)
        self._cursors[move.source] = move.end
        return outcome

    def _count(self, source: str, outcome: Outcome) -> None:
        """Count rows, and write the dead letters, which the cursor has passed: keep trying."""
        counters, letters = self.counters, outcome.letters
        counters.learned += outcome.learned
        counters.duplicates += outcome.duplicates
        counters.paused += outcome.paused
        counters.refused += outcome.refused
        if not outcome.refused:
            return
        if outcome.refused > len(letters):
            self._log(f"{source}: {plural(outcome.refused - len(letters), 'more row')} refused")
        try:
            self._retry(lambda: self._dead.write(letters), lambda: self._is_stopping)
        except Changed:
            self._log("the dead letters cannot be written; they follow")
            LoggedLetters(self._log, len(letters)).write(letters)

    def _is_at_end(self) -> bool:
        """Is all that the log has learned? Also if other processes have all partitions."""
        assigned = self._reader.assigned()
        return (
            self._reader.epoch > 0
            and not self._ahead
            and self._fault is None
            and all(
                name in self._batches
                and not self._batches[name].rows_seen
                and self._reader.is_at_end(name)
                for name in assigned
            )
        )

    def _note_lag(self) -> None:
        """Update the lag of the metrics."""
        for source, batch in self._batches.items():
            progress = self.counters.partitions[source]
            progress.lag_rows = self._reader.lag(source, batch.start)
            if batch.first_ms is not None:
                progress.timestamp_ms = batch.first_ms

    # -- waiting -----------------------------------------------------------------------------------

    def _retry(self, call: Callable[[], T], gives_up: Callable[[], bool] | None = None) -> T:
        """Call until it works. Raises Changed if that has no use any more, Refused."""
        gives_up = gives_up or self._is_useless
        wait_s, reason = FIRST_WAIT_S, ""
        while True:
            try:
                done = call()
            except (Unreachable, Refused, OSError) as away:
                if isinstance(away, Refused) and not _is_transient(away):
                    raise
                if str(away) != reason:
                    reason = str(away)
                    self._log(f"waiting: {reason}")
                self.counters.waits += 1
                retry_after_s = getattr(away, "retry_after_s", 0.0)
            else:
                if reason:
                    self._log("continues")
                return done
            if gives_up():
                raise Changed
            spread = random.uniform(0.5, 1.0)  # noqa: S311 - spreads consumers; nothing is secret
            left_s = max(wait_s * spread, retry_after_s)
            while left_s > 0:  # in slices, because stop() is to end it
                self._note_lag()
                self._reader.keep_alive(min(left_s, SLICE_S))
                left_s -= SLICE_S
                if gives_up():
                    raise Changed
            wait_s = min(2 * wait_s, MAX_WAIT_S)

    def _is_useless(self) -> bool:
        return self._is_stopping or self._reader.epoch != self._epoch

    def _check_epoch(self) -> None:
        """Raise Changed if the partitions have changed: their messages are read again."""
        if self._reader.epoch != self._epoch:
            raise Changed


def _is_transient(refused: Refused) -> bool:
    return refused.status >= 500 or refused.kind in TRANSIENT
