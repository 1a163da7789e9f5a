"""A log and a server in memory for the loop of `dualstream consume`, with failures by script.

The server follows the contract of source offsets: it applies a batch only if it begins at the
cursor, and answers 409 with the cursor, or a duplicate. Without a cursor it applies only a batch
that says it is the first one.
"""

import json
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from dualstream.client import PredictedMany, Refused, Unreachable
from dualstream.consume.batch import CursorMove, Outcome, Row, outcome_of
from dualstream.consume.fields import RowFields
from dualstream.consume.reader import Bounds, Message, Reader, Record
from dualstream.wire.schemas import Duplicate, Learned


class FakeLog:
    """Partitions as lists of messages; `first` are the offsets where they begin."""

    def __init__(self, **partitions: Sequence[bytes | None]) -> None:
        self.messages = {
            name: [Message(name, offset, value) for offset, value in enumerate(values)]
            for name, values in partitions.items()
        }
        self.first = dict.fromkeys(partitions, 0)

    def bounds(self, source: str) -> Bounds:
        kept = self.messages[source]
        end = kept[-1].offset + 1 if kept else self.first[source]
        return Bounds(self.first[source], end, self.first[source])


class FakeReader(Reader):
    """Reader of a FakeLog. Every call is an event that `on_call` may answer with a failure."""

    def __init__(self, log: FakeLog, assigned: Sequence[str] | None = None) -> None:
        self.log = log
        self.epoch, self.reads_ahead = 0, True
        self.mine = list(log.messages if assigned is None else assigned)
        self.positions: dict[str, int] = {}
        self.waited_s: list[float] = []
        self.on_wait: Callable[[], None] = lambda: None
        self.on_read: Callable[[], None] = lambda: None
        self.new: set[str] = set()
        self.gone: list[str] = []
        self.closed = False

    def rebalance(self, *mine: str) -> None:
        """Assign these partitions; all of them must be started again."""
        self.mine = list(mine)
        self.epoch += 1

    def assigned(self) -> list[str]:
        return self.mine

    def bounds(self, source: str) -> Bounds | None:
        return self.log.bounds(source)

    def is_new(self, source: str) -> bool:
        return source in self.new

    def start(self, source: str, offset: int) -> None:
        self.positions[source] = offset

    def read(self, rows: int, seconds: float) -> list[Message]:
        results: list[Message] = []
        for source in self.mine:
            first, end, _ = self.log.bounds(source)
            if not first <= self.positions.get(source, first) <= end:
                self.gone.append(source)
                del self.positions[source]
            elif source in self.positions:
                after = [
                    message
                    for message in self.log.messages[source]
                    if message.offset >= self.positions[source]
                ][: rows - len(results)]
                results += after
                if after:
                    self.positions[source] = after[-1].offset + 1
        self.on_read()
        return results

    def lost(self) -> list[str]:
        gone, self.gone = self.gone, []
        return gone

    def is_at_end(self, source: str) -> bool:
        return self.positions.get(source) == self.log.bounds(source).end

    def lag(self, source: str, offset: int) -> int | None:
        return max(0, self.log.bounds(source).end - offset)

    def keep_alive(self, seconds: float) -> None:
        self.waited_s.append(seconds)
        self.on_wait()

    def close(self) -> None:
        self.closed = True


class FakeServer:
    """One model: its cursors, and the rows that it learned in their order.

    `failures` are taken one by one by `learn`: an exception before the append, ("lost", exception)
    for an answer that is lost after it, or None for a call that works.
    """

    def __init__(self) -> None:
        self.cursors: dict[str, int] = {}
        self.learned: list[Any] = []
        self.ids: set[str] = set()
        self.requests: list[tuple[str, int, int, int]] = []
        self.lags: list[int | None] = []
        self.failures: list[Any] = []
        self.max_rows = 1_000_000
        self.max_body = 1_000_000
        self.before_learn: Callable[[], None] = lambda: None
        self.waiting: dict[str, Any] = {}
        """Remembered rows by their ids."""
        self.remembers, self.can_remember = True, True
        self.labels: dict[str, Any] = {}
        """Learned late labels by their ids."""

    def saved(self) -> tuple[dict[str, int], list[Any], set[str]]:
        """A backup of the store; an empty one is from before the first row."""
        return dict(self.cursors), list(self.learned), set(self.ids)

    def restore(self, saved: tuple[dict[str, int], list[Any], set[str]] = ({}, [], set())) -> None:
        """Go back to a backup."""
        cursors, learned, ids = saved
        self.cursors, self.learned, self.ids = dict(cursors), list(learned), set(ids)

    def sources(self) -> dict[str, int]:
        self._fail()
        return dict(self.cursors)

    def set_source(self, source: str, offset: int) -> None:
        self.cursors[source] = offset

    def learn(self, move: CursorMove, rows: Sequence[Row]) -> Outcome:
        source, start, end, lag, first = move
        lines = [line for _, line in rows]
        self.requests.append((source, start, end, len(lines)))
        self.lags.append(lag)
        self.before_learn()
        if len(lines) > self.max_rows:
            raise refused(413, "too-many-rows")
        if sum(map(len, lines)) > self.max_body:
            raise refused(413, "body-too-large")
        lost = self._fail()
        answer = self._append(source, start, end, lines, first)
        if lost is not None:
            raise lost
        return outcome_of(rows, answer)

    def refusal(self, rows: Sequence[Row]) -> str | None:
        self._fail()
        is_bad = all(json.loads(line).get("y") not in (0, 1) for _, line in rows)
        return "y: no label" if is_bad else None

    def each(self, rows, call):
        if rows:
            call(self, rows)
        return 0, []

    @cached_property
    def fields(self) -> RowFields:
        self._fail()
        return RowFields({})

    def predict(self, lines: Sequence[bytes], remember: bool) -> PredictedMany:
        if len(lines) > self.max_rows:
            raise refused(413, "too-many-rows")
        if sum(map(len, lines)) > self.max_body:
            raise refused(413, "body-too-large")
        if remember and not self.can_remember:
            raise refused(409, "cannot-remember")
        lost = self._fail()
        rows = [json.loads(line) for line in lines]
        ids = [row.get("id") for row in rows]
        inputs = [id_ for id_ in ids if id_ is not None]
        assert 0 < len(ids) <= 100 and len({*inputs}) == len(inputs)
        bad = [index for index, id_ in enumerate(ids) if id_ is None and remember]
        good = {id_: row for id_, row in zip(ids, rows, strict=True) if id_ is not None}
        if remember:
            self.waiting |= {id_: row for id_, row in good.items() if id_ not in self.labels}
        if lost is not None:
            raise lost
        scores = [None if index in bad else 0.5 for index in range(len(rows))]
        answer = PredictedMany("m", len(self.learned), scores, [1] * len(rows), [0.6] * len(rows))
        answer.errors = [{"index": n, "pointer": f"/{n}/id", "reason": "no id"} for n in bad]
        return answer

    def label(self, lines: Sequence[bytes]) -> Learned:
        assert 0 < len(lines) <= 100
        lost = self._fail()
        learned, errors, duplicates = 0, [], []
        for index, one in enumerate(map(json.loads, lines)):
            id_, y = one["id"], one["y"]
            reason = None
            if self.labels.get(id_, y) != y:
                reason = "learned with another label"
            elif id_ in self.labels:
                duplicates.append(Duplicate(index, 1))
            elif self.waiting.pop(id_, None) is None:
                reason = f"unknown-sample: no row waits for the label of {id_!r}"
            else:
                self.labels[id_] = y
                learned += 1
            if reason is not None:
                pointer = f"/labels/{index}/id"
                errors.append({"index": index, "pointer": pointer, "reason": reason})
        if lost is not None:
            raise lost
        if len(errors) == len(lines):
            raise refused(404, "unknown-sample", errors=errors)
        inputs = ("m", 1, learned, learned, 0, 0.5, len(errors), not learned and not errors)
        return Learned(*inputs, duplicates, errors=errors)

    def _fail(self) -> Exception | None:
        failure = self.failures.pop(0) if self.failures else None
        if isinstance(failure, tuple):
            return failure[1]
        if failure is not None:
            raise failure
        return None

    def _append(
        self, source: str, start: int, end: int, lines: Sequence[bytes], first: bool = False
    ) -> Learned:
        assert start <= end - 1 or not lines, (start, end)
        rows = [json.loads(line) for line in lines]
        bad = [index for index, row in enumerate(rows) if row.get("y") not in (0, 1)]
        errors = [
            {"index": index, "pointer": f"/{index}/y", "reason": "no label"} for index in bad
        ][:100]
        cursor = self.cursors.get(source)
        if cursor is None and not first:
            raise refused(409, "unknown-source")
        if cursor is not None and end <= cursor:
            inputs = ("m", len(self.learned), 0, 0, 0, None, len(bad), True)
            return Learned(*inputs, errors=errors)
        if cursor is not None and start != cursor:
            raise refused(409, "source-moved", cursor=cursor)
        scores: list[float | None] = [None] * len(rows)
        duplicates, good = [], []
        for index, row in enumerate(rows):
            if row.get("id") in self.ids:
                duplicates.append(Duplicate(index, 1))
            elif index not in bad:
                scores[index] = 0.0
                good.append(row)
                if "id" in row:
                    self.ids.add(row["id"])
        self.cursors[source] = end
        self.learned += good
        seq, count = len(self.learned), len(good)
        return Learned(
            *("m", seq, count, count, 0, 0.5, len(bad), bool(duplicates) and not good),
            *(duplicates, scores, errors),
        )


class Topic:
    """A topic that is written; the first `failures` writes fail."""

    def __init__(self, failures: int = 0) -> None:
        self.records: list[Record] = []
        self.failures = failures
        self.too_large = False

    def write(self, records: Sequence[Record]) -> list[int]:
        if self.failures:
            self.failures -= 1
            raise OSError("the broker is away")
        self.records += records
        return [0] if self.too_large else []

    @property
    def values(self) -> list[dict[str, Any]]:
        return [json.loads(one.value or b"") for one in self.records]


def refused(status: int, kind: str, **more: Any) -> Refused:
    """A problem of the server."""
    return Refused({"type": f"/problems/{kind}", "detail": kind, **more}, status)


def away(retry_after_s: float = 0.0) -> Unreachable:
    """No answer, or 503 with Retry-After."""
    return Unreachable("no answer", retry_after_s)
