"""A batch of one partition, its rows and bad messages, and the steps before it is learned."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from dualstream.service.cli.consume.dead_letters import DeadLetter
from dualstream.service.cli.consume.reader import Message

Row = tuple[Message, bytes]
"""A message and its row as a line of JSON."""


def span(rows: Sequence[Row]) -> tuple[str, int, int]:
    """Source, first and last offset: equal for the same rows that are taken again."""
    return rows[0][0].source, rows[0][0].offset, rows[-1][0].offset


class Step(Protocol):
    """What is done with the rows of a batch before the cursor passes them.

    It is done again after a failure, and by the next process after a kill.
    """

    def take(self, rows: Sequence[Row]) -> tuple[list[Row], list[DeadLetter]]:
        """Returns the rows that are still to be learned, and dead letters.

        Raises Unreachable and Refused, and OSError to be called again later.
        """
        ...


@dataclass(slots=True)
class Batch:
    """Messages from the offset `start`; the cursor moves from there to `end`."""

    source: str
    start: int
    end: int = field(init=False)
    rows: list[Row] = field(default_factory=list)
    bad: list[DeadLetter] = field(default_factory=list)
    size: int = 0
    """Bytes of the lines."""
    rows_seen: int = 0
    """Messages, good and bad."""
    since: float = 0.0
    """Time of the first message."""
    first_ms: int | None = None
    last_ms: int | None = None
    """Timestamps of the first and the last message, since 1970."""

    def __post_init__(self) -> None:
        self.end = self.start

    def add(self, message: Message, line: bytes, now: float) -> None:
        """Add a good message and its row."""
        if not self.rows_seen:
            self.since, self.first_ms = now, message.timestamp_ms
        self.rows.append((message, line))
        self.size += len(line) + 1
        self.rows_seen += 1
        self.end, self.last_ms = message.offset + 1, message.timestamp_ms

    def add_bad(self, letter: DeadLetter, now: float) -> None:
        """Add a message that is no row."""
        message = letter.message
        if not self.rows_seen:
            self.since, self.first_ms = now, message.timestamp_ms
        self.bad.append(letter)
        self.rows_seen += 1
        self.end, self.last_ms = message.offset + 1, message.timestamp_ms
