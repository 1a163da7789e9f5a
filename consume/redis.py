"""Reader of a Redis stream, and the stream as a dead-letter queue.

One read is a transaction of XINFO STREAM and XRANGE, so the reader notices when entries after its
position were trimmed before it read them. Streams have no groups here: the model's cursor decides.
"""

import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote, urlsplit, urlunsplit

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    ClusterDownError,
    ConnectionError as NoConnection,
    RedisError,
    ResponseError,
    TimeoutError as NoAnswer,
    TryAgainError,
)
from redis.retry import Retry

from dualstream.client import BadInput
from dualstream.consume.dead_letters import DeadLetter
from dualstream.consume.entries import SOURCE, entry_cursor, entry_id, offset_of
from dualstream.consume.reader import (
    Bounds,
    Message,
    ReaderError,
    StreamReader,
    check_source,
    without_user,
)

T = TypeVar("T")

ANSWER_S = START_S = 10.0
"""Seconds to wait for an answer, and at the start for a Redis that is away."""
PAUSE_S, MIN_BLOCK_S = 0.1, 0.01
"""Pause after no answer, and the shortest wait for an entry."""
READ_BYTES = 4 << 20
"""About the bytes of the entries of one read."""
MIN_OFFSET = 1
"""Offset of 0-1, the smallest id of an entry."""
_FIRST_ENTRIES = 64
"""Maximum entries of the first read, when their size is unknown."""
_ABSENT = "no such key"
_AWAY = (NoConnection, NoAnswer, ClusterDownError, TryAgainError)
_BUSY = ("BUSY", "UNKILLABLE")
"""Beginnings of errors of a server that runs a script."""


class Stream(NamedTuple):
    """Address of a stream: the URL of its database, and its name."""

    database: str
    name: str

    @property
    def source(self) -> str:
        """Name of the stream in the model's cursors."""
        return SOURCE + self.name


class Info(NamedTuple):
    """What XINFO STREAM says: offsets as in `Bounds`, and the entries ever added and kept."""

    first: int
    end: int
    added: int
    length: int


def parse_stream(url: str) -> Stream:
    """Database and name of redis://HOST:PORT/DB/STREAM. Raises BadInput."""
    parts = urlsplit(url)
    database, _, name = parts.path.removeprefix("/").partition("/")
    if not (parts.hostname and database.isdigit() and name) or parts.fragment:
        raise BadInput(f"a stream is {parts.scheme}://HOST:PORT/DB/STREAM, got {without_user(url)}")
    stream = Stream(urlunsplit(parts._replace(path=f"/{database}")), unquote(name))
    check_source(stream.source, f"the name of the stream {stream.name!r}")
    return stream


def connect(stream: Stream, password: str | None) -> Any:
    """A client for the stream's database; `password` is used if the URL has none. Raises BadInput.

    Answers with entries stay lists of names and texts: a dict loses repeated names.
    """
    try:
        client = Redis.from_url(
            stream.database,
            password=password,
            protocol=2,
            socket_timeout=ANSWER_S,
            socket_connect_timeout=ANSWER_S,
            retry=Retry(NoBackoff(), 0),
        )
    except (ValueError, TypeError) as wrong:
        raise BadInput(f"{without_user(stream.database)}: {wrong}") from None
    for command in ("XINFO STREAM", "XRANGE", "XREAD"):
        client.set_response_callback(command, lambda answer, **options: answer)
    return client


class RedisReader(StreamReader):
    """Reads one stream.

    Raises ReaderError if Redis does not answer at the start, or the key is no stream.
    """

    def __init__(self, stream: Stream, password: str | None, log: Callable[[str], None]) -> None:
        super().__init__(stream.source)
        self._name = stream.name
        self._log: Callable[[str], None] = lambda line: None
        self._client = connect(stream, password)
        self._next: int | None = None
        """Next offset to read; None until `start`, and after entries were lost."""
        self._rank: int | None = None
        """Number of entries that were ever added before `_next`; None if unknown."""
        self._has_next = False
        """Did the stream have an entry with the offset `_next` at the start?"""
        self._added = 0
        """Number of entries that were ever added, as last known."""
        self._read: list[int] = []
        """Offsets of the entries that were read, from `_learned` on."""
        self._learned = 0
        """Offset of the last `lag`."""
        self._entry_bytes = READ_BYTES // _FIRST_ENTRIES
        self._trouble = ""
        deadline = time.monotonic() + START_S
        while (info := self._call(self._info)) is None:
            if time.monotonic() > deadline:
                where = without_user(stream.database)
                raise ReaderError(f"no Redis answers at {where}: {self._trouble}")
            time.sleep(PAUSE_S)
        self._log = log
        if not info.end:
            log(f"{self.source}: the stream has no entries yet; waiting for the first one")

    # -- the stream --------------------------------------------------------------------------------

    def bounds(self, source: str) -> Bounds | None:
        """Offsets of the first entry, and after the last one. None while Redis does not answer."""
        info = self._call(self._info)
        if info is None:
            return None
        return Bounds(info.first, info.end, info.added - info.length)

    def start(self, source: str, offset: int) -> None:
        """Read from this offset."""
        self._next, self._learned, self._read = offset, offset, []
        self._rank, self._is_lost, self._is_at_end = None, False, False
        self._has_next = False
        info = self._call(self._info)
        if info is None:
            return
        self._added = info.added
        self._has_next = offset == info.first and info.length > 0
        if offset in (info.first, info.end):
            self._rank = info.added - (info.length if offset == info.first else 0)
        elif offset <= MIN_OFFSET:
            self._rank = 0

    def lag(self, source: str, offset: int) -> int | None:
        """Entries from this offset on, as last known.

        Unknown in the middle of a stream: Redis does not count the entries there. From its first
        entry, and once its end was reached, they are counted.
        """
        self._learned = offset
        if self._rank is None:
            return None
        unlearned = len(self._read) - bisect_left(self._read, offset)
        return max(0, self._added - self._rank) + unlearned

    def cursor(self, offset: int) -> str:
        """The largest id before this offset."""
        return entry_cursor(offset)

    def outside(self, source: str, offset: int, bounds: Bounds) -> str:
        """What is wrong with a cursor that is not in the stream."""
        cursor = entry_cursor(offset)
        if offset < bounds.first:
            return (
                f"{source}: the model's cursor is {cursor}, but the stream begins at"
                f" {entry_id(bounds.first)}: it was trimmed, or deleted and made again, so entries"
                " between them may be lost"
            )
        return (
            f"{source}: the model's cursor is {cursor}, but the stream ends at"
            f" {entry_cursor(bounds.end)}: it was deleted, or Redis has lost its last entries"
        )

    # -- entries -----------------------------------------------------------------------------------

    def read(self, rows: int, seconds: float) -> list[Message]:
        """Up to `rows` entries, after at most `seconds`."""
        messages = self._entries(rows)
        if messages or self._is_lost:
            return messages
        if not self._is_at_end:  # not started, or no answer
            time.sleep(PAUSE_S)
        elif self._call(lambda: self._is_added(max(seconds, MIN_BLOCK_S))):
            return self._entries(rows)
        return []

    def _is_added(self, seconds: float) -> bool:
        """Wait for the next entry, and at most `seconds`."""
        assert self._next is not None
        after = {self._name: entry_cursor(self._next)}
        return bool(self._client.xread(after, count=1, block=round(1000 * seconds)))

    def _entries(self, rows: int) -> list[Message]:
        """The next entries at once; none if they were lost, or Redis does not answer."""
        start, self._is_at_end = self._next, False
        if start is None:
            return []
        count = max(1, min(rows, READ_BYTES // self._entry_bytes))
        answer = self._call(lambda: self._info_and_entries(start, count))
        if answer is None:
            return []
        info, entries = answer
        is_gone = start < info.first and (self._has_next or not self._is_whole(info))
        if is_gone or start > info.end or info.added < self._added:
            self._is_lost, self._next = True, None
            return []
        rank = info.added - info.length if start <= info.first else self._rank
        self._added, self._is_at_end = info.added, len(entries) < count
        self._rank = None if rank is None else rank + len(entries)
        if self._is_at_end:
            self._rank = info.added
        if not entries:
            return []
        messages = [self._message(*entry) for entry in entries]
        self._next, self._has_next = messages[-1].offset + 1, False
        size = sum(len(text) for _, fields in entries for text in fields)
        self._entry_bytes = max(1, size // len(entries))
        del self._read[: bisect_left(self._read, self._learned)]
        self._read += [message.offset for message in messages]
        return messages

    def _is_whole(self, info: Info) -> bool:
        """Are all entries from `_next` on kept, if none before it is?

        A stream that was deleted and made again counts from 0, so its numbers do not fit.
        """
        return self._rank is not None and info.added - self._rank == info.length

    def _message(self, id_: bytes, fields: Sequence[bytes]) -> Message:
        text = id_.decode()
        names = [name.decode(errors="surrogateescape") for name in fields[::2]]
        pairs = tuple(zip(names, fields[1::2], strict=True))
        time_ms = int(text.partition("-")[0])
        return Message(self.source, offset_of(text), None, None, time_ms, pairs, text)

    def _info(self) -> Info:
        try:
            return _parse_info(self._client.xinfo_stream(self._name))
        except ResponseError as wrong:
            if _ABSENT not in str(wrong):
                raise
            return Info(0, 0, 0, 0)

    def _info_and_entries(self, start: int, count: int) -> tuple[Info, list[Any]]:
        with self._client.pipeline() as transaction:
            transaction.xinfo_stream(self._name)
            transaction.xrange(self._name, entry_id(start), count=count)
            info, entries = transaction.execute(raise_on_error=False)
        if isinstance(info, ResponseError) and _ABSENT in str(info):
            return Info(0, 0, 0, 0), []
        for answer in (info, entries):
            if isinstance(answer, Exception):
                raise answer
        return _parse_info(info), entries

    def _call(self, call: Callable[[], T]) -> T | None:
        """The answer; None while Redis does not answer, which is logged once.

        Raises ReaderError for an error that waiting does not mend.
        """
        try:
            answer = call()
        except AuthenticationError as wrong:
            raise ReaderError(f"{self.source}: Redis refuses the password: {wrong}") from None
        except RedisError as wrong:
            trouble = str(wrong)
            if not isinstance(wrong, _AWAY) and not trouble.startswith(_BUSY):
                raise ReaderError(f"{self.source} cannot be read: {trouble}") from None
            if trouble != self._trouble:
                self._log(f"Redis does not answer: {trouble}")
            self._trouble = trouble
            return None
        if self._trouble:
            self._trouble = ""
            self._log("Redis answers")
        return answer

    def keep_alive(self, seconds: float) -> None:
        """Wait, and count the entries that are added."""
        time.sleep(seconds)
        info = self._call(self._info)
        if info is not None:  # fewer are those of another stream, which `read` finds
            self._added = max(self._added, info.added)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


def _parse_info(answer: Sequence[Any]) -> Info:
    """Raises ReaderError for a Redis before 7, which does not count added entries."""
    fields = dict(zip(answer[::2], answer[1::2], strict=True))
    if b"entries-added" not in fields:
        raise ReaderError("this Redis is too old to read streams from; use Redis 7 or newer")
    last, first = offset_of(fields[b"last-generated-id"].decode()), fields[b"first-entry"]
    end = last + 1 if last else 0
    begin = offset_of(first[0].decode()) if first else end
    return Info(begin, end, fields[b"entries-added"], fields[b"length"])


class RedisLetters:
    """Dead-letter stream: dead.source, dead.id, dead.reason, then the fields of the entry.

    Raises ReaderError if the stream cannot be read.
    """

    def __init__(self, stream: Stream, password: str | None) -> None:
        self._name = stream.name
        self._client = connect(stream, password)
        try:
            self._client.xlen(stream.name)
        except RedisError as wrong:
            raise ReaderError(f"the stream {stream.name!r} cannot be written: {wrong}") from None

    def write(self, letters: Sequence[DeadLetter]) -> None:
        """Add them. Raises OSError."""
        try:
            with self._client.pipeline() as transaction:
                for message, reason in letters:
                    origin = ("dead.source", message.source, "dead.id", message.position)
                    fields = [
                        text
                        for name, value in message.headers
                        for text in (name.encode(errors="surrogateescape"), value or b"")
                    ]
                    arguments = (*origin, "dead.reason", reason, *fields)
                    transaction.execute_command("XADD", self._name, "*", *arguments)
                transaction.execute()
        except RedisError as wrong:
            raise OSError(f"cannot write to the stream {self._name!r}: {wrong}") from None
