"""Late labels of `dualstream consume`: messages with the id and the label of a scored row.

A label is learned once by its id, and it is posted before the cursor passes it. A label whose row
is not known waits until all rows that precede it in the topic of the rows have been scored.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from dualstream.client import Refused
from dualstream.service.cli.consume.batch import Row
from dualstream.service.cli.consume.counters import Counters
from dualstream.service.cli.consume.dead_letters import PAUSED, DeadLetter, reasons
from dualstream.service.cli.consume.fields import RowFields
from dualstream.wire.problems import MAX_ERRORS
from dualstream.wire.schemas import Learned

UNKNOWN = "id: unknown-sample: "
"""Reason of a label whose row is not remembered."""
_ALL_REFUSED = ("unknown-sample", "expired-sample", "invalid-rows")
"""Problems of a request of which no label was learned."""


class LabelServer(Protocol):
    """The model of a server. Methods raise Unreachable and Refused, without retries."""

    def spec(self) -> Mapping[str, Any]:
        """The model's specification."""
        ...

    def sources(self) -> dict[str, int]:
        """The model's cursors."""
        ...

    def label(self, lines: Sequence[bytes]) -> Learned:
        """Learn labels, each an object with `id` and `y`."""
        ...


class RowTopic(Protocol):
    """The topic of the rows. Methods raise OSError if it does not answer."""

    def ends(self, cursors: Mapping[str, int]) -> dict[str, int]:
        """Offset of the next message to be written, by partition."""
        ...

    def is_read(self, cursors: Mapping[str, int], ends: Mapping[str, int]) -> bool:
        """Are all messages before `ends` also before the cursors?"""
        ...


class LabelWaits(OSError):
    """Labels of unknown rows, while rows are not scored yet."""


class Labels:
    """Posts the labels of a batch; a Step of the loop.

    rows   None if clients have scored the rows before their labels are written
    """

    def __init__(self, server: LabelServer, rows: RowTopic | None, counters: Counters) -> None:
        self._server, self._rows, self._counters = server, rows, counters
        self._fields: RowFields | None = None
        self._batch: tuple[str, int, int] | None = None
        """Source and offsets of the batch that the following describes."""
        self._left: list[Row] = []
        """Labels to be posted, as id and label in JSON."""
        self._letters: list[DeadLetter] = []
        self._ends: dict[str, int] | None = None
        """Ends of the rows' topic after the labels were read."""

    def take(self, rows: Sequence[Row]) -> tuple[list[Row], list[DeadLetter]]:
        """Post labels. Returns no rows, and the refused labels. Raises LabelWaits."""
        if not rows:
            return [], []
        self._begin(rows)
        unknown = self._post()
        if unknown and self._rows is not None:
            cursors = self._server.sources()
            if self._ends is None:
                self._ends = self._rows.ends(cursors)
            if not self._rows.is_read(cursors, self._ends):
                raise LabelWaits("labels wait for rows that are not scored yet")
            unknown = self._post()
        letters, self._letters, self._left, self._batch = [*self._letters, *unknown], [], [], None
        return [], letters

    def _begin(self, rows: Sequence[Row]) -> None:
        """Take the labels of a batch, unless it is the one that is taken already."""
        batch = (rows[0][0].source, rows[0][0].offset, rows[-1][0].offset)
        if batch == self._batch:
            return
        if self._fields is None:
            self._fields = RowFields(self._server.spec())
        self._batch, self._left, self._letters, self._ends = batch, [], [], None
        for message, line in rows:
            id_, label = self._fields.read(line)
            if id_ is None or label is None:
                name = self._fields.id if id_ is None else self._fields.label
                self._letters.append(DeadLetter(message, f"the label has no field {name!r}"))
            else:
                self._left.append((message, b'{"id":%b,"y":%b}' % (id_, label)))

    def _post(self) -> list[DeadLetter]:
        """Post what is left; returns the labels of unknown rows, which stay left."""
        unknown, kept, given = list[DeadLetter](), list[Row](), self._left
        for first in range(0, len(given), MAX_ERRORS):  # so that the answer has every error
            some = given[first : first + MAX_ERRORS]
            try:
                answer = self._server.label([line for _, line in some])
            except Refused as refused:
                if refused.kind not in _ALL_REFUSED:
                    raise
                answer = Learned(
                    "", 0, 0, 0, 0, None, None, False, errors=[dict(one) for one in refused.errors]
                )
            self._counters.learned += answer.count if answer.learned is None else answer.learned
            self._counters.duplicates += answer.left_out()
            for index, reason in reasons(answer.errors or ()):
                letter = DeadLetter(some[index][0], reason)
                if reason.startswith(UNKNOWN):
                    unknown.append(letter)
                    kept.append(some[index])
                elif reason.startswith(PAUSED):
                    self._counters.paused += 1
                else:
                    self._letters.append(letter)
            self._left = kept + given[first + MAX_ERRORS :]
        return unknown
