"""A batch of one partition, the steps before it is learned, and what became of its rows."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from dualstream.consume.dead_letters import PAUSED, DeadLetter, reasons
from dualstream.consume.reader import Message
from dualstream.wire.schemas import Learned

Row = tuple[Message, bytes]
"""A message and its row as a line of JSON."""
UNLISTED = "refused; the server lists the reasons of the first 100 rows of a batch"


def span(rows: Sequence[Row]) -> tuple[str, int, int]:
    """Source, first and last offset: equal for the same rows that are taken again."""
    return rows[0][0].source, rows[0][0].offset, rows[-1][0].offset


class CursorMove(NamedTuple):
    """A move of a source's cursor from `start` to `end`, by the batch of the rows between them.

    lag     rows of the source after them; None if unknown
    first   does the batch begin a new source?
    """

    source: str
    start: int
    end: int
    lag: int | None = None
    first: bool = False


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


@dataclass(slots=True)
class Outcome:
    """Counts of rows that were posted, see `Counters`, and dead letters of the refused ones.

    `refused` also counts rows whose reason is not known, which have no dead letter.
    """

    learned: int = 0
    duplicates: int = 0
    paused: int = 0
    refused: int = 0
    letters: list[DeadLetter] = field(default_factory=list)

    def refuse(self, rows: Sequence[Row], reason: str) -> None:
        """Add rows that are refused for the same reason."""
        self.refused += len(rows)
        self.letters += [DeadLetter(message, reason) for message, _ in rows]

    def add(self, other: "Outcome") -> None:
        """Add the outcome of other rows."""
        self.learned += other.learned
        self.duplicates += other.duplicates
        self.paused += other.paused
        self.refused += other.refused
        self.letters += other.letters


def outcome_of(rows: Sequence[Row], answer: Learned) -> Outcome:
    """The outcome of these rows by the server's answer, which lists the first errors only."""
    errors = reasons(answer.errors or ())
    refused = [(index, reason) for index, reason in errors if not reason.startswith(PAUSED)]
    paused, rejected = len(errors) - len(refused), answer.rejected or 0
    duplicates = answer.left_out()
    if answer.duplicate and not duplicates:  # the batch, and not each row by its id
        duplicates = len(rows) - rejected
    if rejected > len(errors) and isinstance(answer.scores, list):
        left = {index for index, _ in errors} | {one.index for one in answer.duplicates or ()}
        refused += [
            (index, UNLISTED)
            for index, score in enumerate(answer.scores)
            if score is None and index not in left
        ]
    letters = [DeadLetter(rows[index][0], reason) for index, reason in refused]
    learned = answer.count if answer.learned is None else answer.learned
    return Outcome(learned, duplicates, paused, rejected - paused, letters)
