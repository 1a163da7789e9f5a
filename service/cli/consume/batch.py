"""A batch of one partition: consecutive offsets, with their rows and bad messages."""

from dataclasses import dataclass, field
from typing import NamedTuple

from dualstream.service.cli.consume.dead_letters import DeadLetter
from dualstream.service.cli.consume.reader import Message


class Row(NamedTuple):
    """A message and its row as a line of JSON."""

    message: Message
    line: bytes


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

    def add(self, row: Row, now: float) -> None:
        """Add a good message."""
        self.rows.append(row)
        self.size += len(row[1]) + 1
        self._pass(row[0], now)

    def add_bad(self, letter: DeadLetter, now: float) -> None:
        """Add a message that is no row."""
        self.bad.append(letter)
        self._pass(letter.message, now)

    def _pass(self, message: Message, now: float) -> None:
        if not self.rows_seen:
            self.since, self.first_ms = now, message.timestamp_ms
        self.rows_seen += 1
        self.end = message.offset + 1
        self.last_ms = message.timestamp_ms
