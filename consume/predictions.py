"""Predictions of `dualstream consume`: scores rows without a label, and writes the answers.

The rows are remembered for their late labels. They are scored before the cursor passes them. So
after a kill they may be scored again, which replaces the waiting row and learns nothing.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw

from dualstream.client import PredictedMany, Refused
from dualstream.consume.batch import Row, span
from dualstream.consume.counters import Counters
from dualstream.consume.dead_letters import DeadLetter, reasons
from dualstream.consume.reader import ReaderError, Record
from dualstream.consume.server import TOO_LARGE, ModelServer, Server
from dualstream.wire.problem_json import MAX_ERRORS

if TYPE_CHECKING:
    from dualstream.consume.kafka_writer import KafkaWriter


class Predictions:
    """Scores the rows of a batch that have no label; a Step of the loop."""

    def __init__(
        self, models: Server, writer: "KafkaWriter", counters: Counters, log: Callable[[str], None]
    ) -> None:
        self._models, self._writer, self._counters, self._log = models, writer, counters, log
        self._batch: tuple[str, int, int] | None = None
        """The batch that the following describes, which is kept for a call after a failure."""
        self._left: dict[int, Row] = {}
        """Rows of models that have not scored theirs, by offset."""
        self._labelled: list[Row] = []
        self._records: list[Record] = []
        self._letters: list[DeadLetter] = []

    def take(self, rows: Sequence[Row]) -> tuple[list[Row], list[DeadLetter]]:
        """Score rows and write the answers; returns the labelled rows, and the refused ones."""
        if not rows:
            return [], []
        if self._batch != span(rows):
            self._batch, self._left = span(rows), {row[0].offset: row for row in rows}
            self._labelled, self._records, self._letters = [], [], []
        passed, letters = self._models.each(list(self._left.values()), self._take)
        if self._records and self._writer.write(self._records):
            raise ReaderError("the broker refuses predictions as too large; raise its limit")
        self._counters.predicted += len(self._records)
        self._counters.duplicates += passed
        self._batch = None
        return self._labelled, [*self._letters, *letters]

    def _take(self, server: ModelServer, rows: Sequence[Row]) -> None:
        """Score the rows of one model."""
        labelled, unlabelled, ids = list[Row](), list[Row](), list[bytes | None]()
        fields = server.fields
        for row in rows:
            id_, label = fields.read(row[1])
            if label is None:
                unlabelled.append(row)
                ids.append(id_)
            else:
                labelled.append(row)
        letters, records = list[DeadLetter](), list[Record]()
        for first, end in _requests(ids):
            self._score(server, unlabelled[first:end], ids[first:end], records, letters)
        self._labelled += labelled
        self._records += records
        self._letters += letters
        for message, _ in rows:
            del self._left[message.offset]

    def _score(
        self,
        server: ModelServer,
        rows: Sequence[Row],
        ids: Sequence[bytes | None],
        records: list[Record],
        letters: list[DeadLetter],
    ) -> None:
        """Score rows of one request, or of several if the server says it is too large."""
        try:
            answer = server.predict([line for _, line in rows], server.remembers)
        except Refused as refused:
            if refused.kind == "cannot-remember" and server.remembers:
                self._log(f"predictions are written, but {refused.detail}")
                server.remembers = False
                self._score(server, rows, ids, records, letters)
            elif refused.kind not in TOO_LARGE:
                raise
            elif len(rows) == 1:
                letters.append(DeadLetter(rows[0][0], refused.detail))
            else:
                middle = len(rows) // 2
                self._score(server, rows[:middle], ids[:middle], records, letters)
                self._score(server, rows[middle:], ids[middle:], records, letters)
            return
        bad = dict(reasons(answer.errors or ()))
        letters += [DeadLetter(rows[index][0], bad[index]) for index in sorted(bad)]
        fields = answer.fields_of_features()
        records += [
            _record(answer, fields, index, id_) for index, id_ in enumerate(ids) if index not in bad
        ]


def _requests(ids: Sequence[bytes | None]) -> Iterator[tuple[int, int]]:
    """Begin and end of requests: in each an id occurs once, and every error is in the answer."""
    first, seen = 0, set[bytes]()
    for index, key in enumerate(map(_key, ids)):
        if index - first == MAX_ERRORS or key in seen:
            yield first, index
            first, seen = index, set()
        if key is not None:
            seen.add(key)
    if ids:
        yield first, len(ids)


def _key(id_: bytes | None) -> bytes | None:
    """The text of an id, as the server compares ids."""
    if id_ is None or not id_.startswith(b'"'):
        return id_
    return msgspec.json.decode(id_, type=str).encode()


def _record(
    answer: PredictedMany, fields: Mapping[str, Sequence[Any]], index: int, id_: bytes | None
) -> Record:
    """A prediction: the fields of the API's answer, and the row's id, which is also the key."""
    value: dict[str, Any] = {
        "id": None if id_ is None else Raw(id_),
        "score": answer.scores[index],
        "label": answer.labels[index],
    }
    if answer.probabilities is not None:
        value["probability"] = answer.probabilities[index]
    value |= {name: values[index] for name, values in fields.items()}
    value |= {"model": answer.model, "seq": answer.seq}
    return Record(msgspec.json.encode(value), _key(id_))
