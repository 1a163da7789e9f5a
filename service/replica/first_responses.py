"""First responses of a model's last requests with an idempotency key.

A repeated request gets the first response. Every replica computes these responses from the entries
it applies, so any worker can answer, also one started later. They are bookkeeping next to the
state: nothing learned depends on them, and a setting limits their number.
"""

from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple, TypeVar

import numpy as np

from dualstream.service.journal.record import ROW_KINDS, KeyKind, Parts
from dualstream.service.replica.row_sums import (
    MIN_ARRAY_ROWS,
    Column,
    count,
    indices_where,
    mean,
    where_not,
)
from dualstream.solvers import Batch, CorruptState, Outcome, State

MAX_KEPT_ANSWERS = 1000
"""Requests with a key whose first responses are kept, per model."""
KEPT_ROWS = 100_000
"""Rows whose score and id are kept, per model. Of older requests only the sums are kept."""

Joined = TypeVar("Joined", bytes, list[int], list[bytes])


@dataclass(slots=True)
class KeyedRequest:
    """A request with a key in the journal; its rows begin at `first_seq`."""

    key: bytes
    first_seq: int
    count: int
    ids: tuple[bytes, ...] = ()
    """Stored keys of the rows that have an id, in order."""


@dataclass(slots=True)
class AnsweredRows:
    """Per-row part of a first response, in journal order."""

    scores: Column
    rejected: list[int]
    """Indices of the rows that were not learned."""
    ids: tuple[bytes, ...]
    set_aside: int = 0
    """Number of the last rows that were quarantined because learning was paused."""


@dataclass(slots=True)
class Answer:
    """First response: the result of the rows that one request journalled, up to `seq`."""

    seq: int
    count: int
    learned: int
    mistakes: int | None
    loss: float | None
    rows: AnsweredRows | None
    """None after more than KEPT_ROWS later rows."""


def answer_without_rows(seq: int, task: str) -> Answer:
    """Response to a request whose rows were all known already; nothing is kept for it."""
    mistakes = None if task == "regression" else 0
    return Answer(seq, 0, 0, mistakes, None, AnsweredRows([], [], ()))


class _Columns(NamedTuple):
    """Per-row results of a batch; `rejected` is None if no row was rejected."""

    scores: Column
    losses: Column
    rejected: Column | None
    wrong: Column | None

    def listed(self) -> "_Columns":
        rejected, wrong = map(_listed, (self.rejected, self.wrong))
        return _Columns(_listed(self.scores) or (), _listed(self.losses) or (), rejected, wrong)


class KeyedRequests:
    """Requests with a key among the parts of a body; the first part begins at `first_seq`."""

    def __init__(self, parts: Parts, first_seq: int) -> None:
        self._parts, self._first_seq = parts, first_seq
        self._has_keys = parts.has_keys

    def within(self, first_seq: int, seq: int, most: int) -> list[KeyedRequest]:
        """The last `most` requests that have rows, all of them in first_seq .. seq."""
        if not self._has_keys:
            return []
        starts, stops, begins, ends = self._requests
        whole = np.flatnonzero((begins < ends) & (first_seq <= begins) & (ends <= seq + 1))
        whole = whole[max(0, len(whole) - most) :]
        chosen = (column[whole].tolist() for column in (starts, stops, begins, ends))
        return [
            KeyedRequest(self._parts.key(start), begin, end - begin, self._ids(start, stop))
            for start, stop, begin, end in zip(*chosen, strict=True)
        ]

    @cached_property
    def _requests(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """For each request with a key: its first part, its end part, its first seq, its end seq."""
        bounds = np.append(np.flatnonzero(~self._parts.continuing), len(self._parts))
        starts, stops = bounds[:-1], bounds[1:]
        is_keyed = np.isin(self._parts.key_kinds[starts], (KeyKind.REQUEST, KeyKind.CHUNK))
        starts, stops = starts[is_keyed], stops[is_keyed]
        seqs = self._first_seq + np.append(0, np.cumsum(self._parts.counts))
        return starts, stops, seqs[starts], seqs[stops]

    def _ids(self, start: int, stop: int) -> tuple[bytes, ...]:
        """Stored keys of the parts of a request that have an id."""
        if stop == start + 1:
            return ()
        numbers = np.flatnonzero(np.isin(self._parts.key_kinds[start + 1 : stop], ROW_KINDS))
        return tuple(self._parts.key(start + 1 + number) for number in numbers.tolist())


class FirstResponses:
    """First responses of one model, by idempotency key."""

    __slots__ = ("_by_key", "_kept", "_rows", "_task")

    def __init__(self, task: str, kept: int = MAX_KEPT_ANSWERS) -> None:
        self._task = task
        self._kept = kept
        self._by_key: dict[bytes, Answer] = {}
        self._rows = 0

    def __len__(self) -> int:
        return len(self._by_key)

    def find(self, key: bytes, seq: int) -> Answer | None:
        """Response to the request with this key whose last row is at `seq`."""
        answer = self._by_key.get(key)
        return answer if answer is not None and answer.seq == seq else None

    def keep(
        self, requests: Sequence[KeyedRequest], first_seq: int, batch: Batch, outcome: Outcome
    ) -> None:
        """Keep responses to requests whose rows are all in `batch`.

        The batch begins at `first_seq`.
        """
        if not requests:
            return
        last_seq = first_seq + len(batch) - 1
        whole = [
            request
            for request in requests
            if request.count
            and first_seq <= request.first_seq
            and request.first_seq + request.count - 1 <= last_seq
        ]
        if not whole or not self._kept:
            return
        whole = whole[-self._kept :]
        known = whole[0].first_seq - first_seq
        batch, outcome = batch[known:], outcome[known:]
        wrong = None if self._task == "regression" else _are_wrong(batch, outcome)
        rejected = outcome.rejected if outcome.rejected.any() else None
        columns = _Columns(outcome.scores, outcome.losses, rejected, wrong)
        if len(batch) < MIN_ARRAY_ROWS * len(whole):
            columns = columns.listed()
        for request in whole:
            begins = request.first_seq - first_seq - known
            self._put(request, begins, columns)
            if outcome.set_aside is not None:
                self._count_set_aside(request, outcome.set_aside[begins : begins + request.count])

    def _count_set_aside(self, request: KeyedRequest, rows: np.ndarray) -> None:
        answer = self._by_key.get(request.key)
        if answer is not None and answer.rows is not None:
            answer.rows.set_aside = int(rows.sum())

    def _put(self, request: KeyedRequest, begins: int, columns: "_Columns") -> None:
        """Keep the response to a request whose rows begin at index `begins` of the columns."""
        ends = begins + request.count
        losses, rejected = columns.losses[begins:ends], None
        wrong = None if columns.wrong is None else columns.wrong[begins:ends]
        if columns.rejected is not None:
            rejected = columns.rejected[begins:ends]
            losses = where_not(rejected, losses)
            wrong = None if wrong is None else where_not(rejected, wrong)
        scores = columns.scores[begins:ends]
        if isinstance(scores, np.ndarray):
            scores = scores.copy()  # a view keeps the whole batch in memory
        answer = Answer(
            request.first_seq + request.count - 1,
            request.count,
            len(losses),
            None if wrong is None else count(wrong),
            mean(losses),
            AnsweredRows(scores, indices_where(rejected), request.ids),
        )
        before = self._by_key.pop(request.key, None)
        if before is not None and before.rows is not None:
            self._rows -= before.count
        self._by_key[request.key] = answer
        self._rows += answer.count
        self._evict()

    def _evict(self) -> None:
        while len(self._by_key) > self._kept:
            oldest = self._by_key.pop(next(iter(self._by_key)))
            self._rows -= oldest.count if oldest.rows is not None else 0
        if self._rows > KEPT_ROWS:
            for answer in self._by_key.values():
                if answer.rows is not None:
                    answer.rows = None
                    self._rows -= answer.count
                if self._rows <= KEPT_ROWS:
                    return

    def state(self) -> State:
        """Return the responses as arrays, oldest first."""
        answers = list(self._by_key.values())
        rows = [answer.rows for answer in answers]
        ids = [id_ for part in rows if part is not None for id_ in part.ids]
        nan = float("nan")
        set_aside = [0 if part is None else part.set_aside for part in rows]
        return {
            "set_aside": _whole(set_aside),
            "keys": _joined(list(self._by_key)),
            "key_ends": _ends(list(self._by_key)),
            "seqs": _whole(answer.seq for answer in answers),
            "counts": _whole(answer.count for answer in answers),
            "learned": _whole(answer.learned for answer in answers),
            "mistakes": _whole(
                -1 if answer.mistakes is None else answer.mistakes for answer in answers
            ),
            "losses": np.array([nan if a.loss is None else a.loss for a in answers], np.float64),
            "has_rows": np.array([part is not None for part in rows], np.bool_),
            "scores": np.concatenate(
                [np.empty(0), *(part.scores for part in rows if part is not None)]
            ),
            "rejected": _whole(at for part in rows if part is not None for at in part.rejected),
            "rejected_ends": _ends([part.rejected if part is not None else [] for part in rows]),
            "ids": _joined(ids),
            "id_ends": _ends(ids),
            "ids_of": _ends([part.ids if part is not None else () for part in rows]),
        }

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Restore from arrays; without arrays nothing is kept. Raises CorruptState."""
        self._by_key.clear()
        self._rows = 0
        if not state:
            return
        try:
            self._read(state)
        except (KeyError, ValueError, IndexError) as error:
            raise CorruptState(f"the kept first responses are damaged: {error!r}") from error
        self._evict()

    def _read(self, state: Mapping[str, np.ndarray]) -> None:
        keys = _split(state["keys"].tobytes(), state["key_ends"].tolist())
        ids = _split(state["ids"].tobytes(), state["id_ends"].tolist())
        rejected = _split(state["rejected"].tolist(), state["rejected_ends"].tolist())
        ids_of = _split(ids, state["ids_of"].tolist())
        sums = zip(
            *(state[name].tolist() for name in ("seqs", "counts", "learned", "mistakes", "losses")),
            strict=True,
        )
        scored = 0
        has_rows = state["has_rows"].tolist()
        set_aside = state["set_aside"].tolist()
        for number, (seq, n, learned, mistakes, loss) in enumerate(sums):
            rows = None
            if has_rows[number]:
                scores = state["scores"][scored : scored + n].copy()
                scored += n
                ids_there = tuple(ids_of[number])
                rows = AnsweredRows(scores, rejected[number], ids_there, set_aside[number])
                self._rows += n
            self._by_key[keys[number]] = Answer(
                seq, n, learned, None if mistakes < 0 else mistakes, loss if learned else None, rows
            )


def _are_wrong(batch: Batch, outcome: Outcome) -> np.ndarray:
    """Mask of rows that were predicted wrongly."""
    if outcome.predicted is not None:
        named = [*outcome.classes, None]  # an index of -1 is no class
        predicted = [named[index] for index in outcome.predicted.tolist()]
        classes = [  # an observed row has none
            None if label != label else batch.classes[int(label)] for label in batch.labels.tolist()
        ]
        return np.array([a != b for a, b in zip(predicted, classes, strict=True)], np.bool_)
    wrong: np.ndarray = (outcome.scores >= 0) != (batch.labels == 1.0)
    return wrong


def _listed(column: Column | None) -> Column | None:
    return column.tolist() if isinstance(column, np.ndarray) else column


def _whole(numbers: Iterable[int]) -> np.ndarray:
    return np.array(list(numbers), np.int64)


def _ends(items: Sequence[Sized]) -> np.ndarray:
    """End offset of each item in the concatenation."""
    return np.cumsum([len(item) for item in items], dtype=np.int64)


def _joined(texts: Sequence[bytes]) -> np.ndarray:
    return np.frombuffer(b"".join(texts), np.uint8).copy()


def _split(joined: Joined, ends: Sequence[int]) -> list[Joined]:
    """Split a concatenation at these end offsets."""
    if ends and ends[-1] != len(joined):
        raise ValueError(f"{len(joined)} joined items, not {ends[-1]}")
    return [joined[start:end] for start, end in pairwise([0, *ends])]
