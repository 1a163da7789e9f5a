"""Late labels of `dualstream consume`: messages with the id and the label of a scored row.

A label is learned once by its id, and it is posted before the cursor passes it. A label whose row
is not known waits until all rows that precede it in the topic of the rows have been scored.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dualstream.client import Refused
from dualstream.consume.batch import Row, span
from dualstream.consume.counters import Counters
from dualstream.consume.dead_letters import PAUSED, DeadLetter, reasons
from dualstream.consume.server import ModelServer, Server
from dualstream.wire.problem_json import MAX_ERRORS
from dualstream.wire.schemas import Learned

if TYPE_CHECKING:
    from dualstream.consume.progress import KafkaProgress

UNKNOWN = "id: unknown-sample: "
"""Reason of a label whose row is not remembered."""
_ALL_REFUSED = ("unknown-sample", "expired-sample", "invalid-rows")
"""Problems of a request of which no label was learned."""


class LabelWaits(OSError):
    """Labels of unknown rows, while rows are not scored yet."""


class Labels:
    """Posts the labels of a batch; a Step of the loop.

    rows   topic of the rows; None if clients have scored the rows before their labels are written
    """

    def __init__(self, models: Server, rows: "KafkaProgress | None", counters: Counters) -> None:
        self._models, self._rows, self._counters = models, rows, counters
        self._batch: tuple[str, int, int] | None = None
        """The batch that the following describes, which is kept for a call after a failure."""
        self._left: dict[int, Row] = {}
        """Labels to be posted, by offset."""
        self._letters: list[DeadLetter] = []
        self._ends: dict[str, int] | None = None
        """Ends of the rows' topic after the labels were read."""

    def take(self, rows: Sequence[Row]) -> tuple[list[Row], list[DeadLetter]]:
        """Post labels. Returns no rows, and the refused labels. Raises LabelWaits."""
        if not rows:
            return [], []
        if self._batch != span(rows):
            self._batch, self._left = span(rows), {row[0].offset: row for row in rows}
            self._letters, self._ends = [], None
        passed, unknown = self._post()
        if unknown and self._rows is not None:
            if self._ends is None:
                self._ends = self._rows.ends()
            if not self._rows.is_read(self._ends):
                raise LabelWaits("labels wait for rows that are not scored yet")
            passed, unknown = self._post()
        self._counters.duplicates += passed
        self._batch = None
        return [], [*self._letters, *unknown]

    def _post(self) -> tuple[int, list[DeadLetter]]:
        """Post what is left: see `each`. Labels of unknown rows are dead letters, and stay left."""
        unknown = list[DeadLetter]()
        passed, without_model = self._models.each(
            list(self._left.values()), lambda server, rows: self._label(server, rows, unknown)
        )
        return passed, unknown + without_model

    def _label(self, server: ModelServer, rows: Sequence[Row], unknown: list[DeadLetter]) -> None:
        """Post the labels of one model."""
        fields, labels = server.fields, list[Row]()
        for message, line in rows:
            id_, label = fields.read(line)
            if id_ is None or label is None:
                name = fields.id if id_ is None else fields.label
                self._letters.append(DeadLetter(message, f"the label has no field {name!r}"))
                del self._left[message.offset]
            else:
                labels.append((message, b'{"id":%b,"y":%b}' % (id_, label)))
        for first in range(0, len(labels), MAX_ERRORS):  # so that the answer has every error
            self._label_some(server, labels[first : first + MAX_ERRORS], unknown)

    def _label_some(
        self, server: ModelServer, labels: Sequence[Row], unknown: list[DeadLetter]
    ) -> None:
        """Post labels as one request."""
        try:
            answer = server.label([line for _, line in labels])
        except Refused as refused:
            if refused.kind not in _ALL_REFUSED:
                raise
            answer = Learned(
                "", 0, 0, 0, 0, None, None, False, errors=[dict(one) for one in refused.errors]
            )
        self._counters.learned += answer.count if answer.learned is None else answer.learned
        self._counters.duplicates += answer.left_out()
        stay = set[int]()
        for index, reason in reasons(answer.errors or ()):
            letter = DeadLetter(labels[index][0], reason)
            if reason.startswith(UNKNOWN):
                unknown.append(letter)
                stay.add(letter.message.offset)
            elif reason.startswith(PAUSED):
                self._counters.paused += 1
            else:
                self._letters.append(letter)
        for message, _ in labels:
            if message.offset not in stay:
                del self._left[message.offset]
