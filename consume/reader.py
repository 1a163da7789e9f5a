"""Interface of a reader: messages of the partitions of a log, each with its offset."""

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import NamedTuple

from msgspec import Struct

from dualstream.client import BadInput
from dualstream.wire.plural import plural
from dualstream.wire.sources import check_name

Headers = Sequence[tuple[str, bytes | None]]


class Message(Struct, frozen=True, gc=False):
    """A message of one partition. `timestamp_ms` is since 1970; `headers` of an entry of a Redis
    stream are its fields.
    """

    source: str
    """Name of the partition, as the model's cursors have it: kafka/clicks/0."""
    offset: int
    value: bytes | None
    key: bytes | None = None
    timestamp_ms: int | None = None
    headers: Headers = ()
    id: str | None = None
    """The offset as the source writes it, if not as a number."""

    @property
    def position(self) -> int | str:
        """The offset as the source writes it."""
        return self.offset if self.id is None else self.id

    @property
    def size(self) -> int:
        """Bytes of the value."""
        return len(self.value or b"")


class Record(NamedTuple):
    """A message to write."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()


class Bounds(NamedTuple):
    """Offset of the oldest message that the log keeps, and of the next one to be written.

    `gone` is the number of messages before the oldest one, which the log no longer has.
    """

    first: int
    end: int
    gone: int = 0


def lost_cursor(cursor: int | str | None, bounds: Bounds) -> str:
    """What is read again if the server no longer has the cursor."""
    gone = f"; up to {plural(bounds.gone, 'message')} gone before it" * bool(bounds.gone)
    return (
        f"the server no longer has the cursor, which was {cursor}; continues at the first"
        f" message{gone}"
    )


def without_user(url: str) -> str:
    """The URL without user and password."""
    return re.sub(r"://[^/]*@", "://", url)


def check_source(source: str, what: str) -> None:
    """Raise BadInput, which begins with `what`, for a name that no cursor can have."""
    try:
        check_name(source)
    except ValueError:
        raise BadInput(f"{what} must have up to 250 printable ASCII characters") from None


class ReaderError(Exception):
    """The source cannot be read; the message says why and what to do."""


class Reader(ABC):
    """Reads the partitions that it is assigned. One method is called at a time; only
    `commit` is called during `read`, too.

    Offsets are numbers, which grow with each message.
    """

    epoch = 1
    """Changes whenever partitions are assigned or revoked. All of them must then be started."""
    reads_ahead = False
    """May a thread call `read` while the server learns? Then it returns at once after 0 seconds."""

    @abstractmethod
    def assigned(self) -> Collection[str]:
        """The partitions of this process."""

    @abstractmethod
    def bounds(self, source: str) -> Bounds | None:
        """Ask for the bounds of a partition. None while the log does not answer."""

    def is_new(self, source: str) -> bool:
        """Was the partition added after this process began to read?"""
        return False

    @abstractmethod
    def start(self, source: str, offset: int) -> None:
        """Read a partition from this offset, also if it is read already."""

    @abstractmethod
    def read(self, rows: int, seconds: float) -> list[Message]:
        """Up to `rows` messages of started partitions, after at most `seconds`.

        The messages of a partition are in the order of their offsets; offsets may have gaps.
        """

    @abstractmethod
    def lost(self) -> Collection[str]:
        """Partitions whose next offset is not in the log, once; they must be started again."""

    @abstractmethod
    def lag(self, source: str, offset: int) -> int | None:
        """Messages from this offset on, as last known, without asking; None if unknown."""

    def cursor(self, offset: int) -> int | str:
        """The cursor of the model that stands for this offset, as the server stores it."""
        return offset

    def outside(self, source: str, offset: int, bounds: Bounds) -> str:
        """What is wrong with a cursor that is not in the log."""
        if offset < bounds.first:
            lost = f"the log begins at {bounds.first}: {bounds.first - offset} offsets are gone"
        else:
            lost = f"the log ends at {bounds.end}: it was truncated or made again"
        return f"{source}: the model's cursor is {offset}, but {lost}"

    @abstractmethod
    def is_at_end(self, source: str) -> bool:
        """Has `read` returned all messages of the partition that there are?"""

    @abstractmethod
    def keep_alive(self, seconds: float) -> None:
        """Wait without reading. The process stays in its group; partitions may change."""

    @abstractmethod
    def close(self) -> None:
        """Leave the group."""


class StreamReader(Reader):
    """Reader of a log of one partition, which is never another one."""

    def __init__(self, source: str) -> None:
        self.source = source
        self._is_lost = self._is_at_end = False

    def assigned(self) -> Sequence[str]:
        return [self.source]

    def lost(self) -> Sequence[str]:
        is_lost, self._is_lost = self._is_lost, False
        return [self.source] if is_lost else []

    def is_at_end(self, source: str) -> bool:
        return self._is_at_end
