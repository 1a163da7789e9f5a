"""Reader of NATS JetStream streams.

A consumer in the server's memory, without acknowledgements, delivers the messages from the model's
cursor on. After an error, or a delivery that was lost, another consumer begins at the next message.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from datetime import datetime
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote, urlsplit, urlunsplit

from nats.aio.client import Client as NatsClient
from nats.errors import Error as NatsError
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from nats.js.errors import APIError, NotFoundError, ServerError, ServiceUnavailableError

from dualstream.client import BadInput
from dualstream.consume.reader import (
    Bounds,
    Message,
    ReaderError,
    StreamReader,
    check_source,
    without_user,
)

T = TypeVar("T")

ANSWER_S, START_S = 2.0, 10.0
"""Seconds to wait for an answer, and at the start for a server that is away."""
PAUSE_S, MIN_WAIT_S = 0.1, 0.02
READ_BYTES, FIRST_MESSAGES = 4 << 20, 64
"""About the bytes of one read, and its maximum messages while their size is unknown."""
FORGOTTEN_S = 300.0
"""Time after which the server forgets a consumer that is not read."""
QUIET_S = 60.0
"""Seconds before the same error is logged again."""


class NatsStream(NamedTuple):
    """Address of a stream: URL of the server, and the stream's name."""

    server: str
    name: str

    @property
    def source(self) -> str:
        """Name of the stream in the model's cursors."""
        return f"nats/{self.name}"


def parse_nats(url: str) -> NatsStream:
    """Server and name of nats://HOST:PORT/STREAM, or of tls://. Raises BadInput."""
    parts = urlsplit(url)
    name = unquote(parts.path.removeprefix("/"))
    if not parts.hostname or not name or "/" in name or parts.query or parts.fragment:
        raise BadInput(f"a stream is {parts.scheme}://HOST:PORT/STREAM, got {without_user(url)}")
    stream = NatsStream(urlunsplit(parts._replace(path="")), name)
    check_source(stream.source, f"the name of the stream {name!r}")
    return stream


class NatsReader(StreamReader):
    """Reads one stream.

    Raises ReaderError if no server answers at the start, or the stream does not exist.
    """

    def __init__(
        self,
        stream: NatsStream,
        log: Callable[[str], None],
        user: str | None = None,
        password: str | None = None,
    ) -> None:
        super().__init__(stream.source)
        self._name, self._log = stream.name, log
        self._runner = asyncio.Runner()
        self._client = NatsClient()
        self._context = self._client.jetstream(timeout=ANSWER_S)
        self._next: int | None = None
        """Next sequence number to read; None until `start`, and after messages were lost."""
        self._pull: Any = None
        """Subscription of the server's consumer, or None."""
        self._consumer = ""
        self._created: datetime | None = None
        """Time at which the stream was created, as last reported."""
        self._read_created: datetime | None = None
        """That of the stream of the consumer."""
        self._is_stale = False
        """Is another consumer to begin at `_next`?"""
        self._message_bytes = READ_BYTES // FIRST_MESSAGES
        self._delivered = 0
        """Messages that this consumer has delivered."""
        self._end: int | None = None
        self._trouble, self._said, self._is_started = "", dict[str, float](), False
        try:
            self._connect(stream.server, user, password)
            if self._call(self._bounds) is None:
                raise ReaderError(f"{self.source}: JetStream does not answer: {self._trouble}")
        except BaseException:
            self.close()
            raise
        self._is_started = True

    def _connect(self, server: str, user: str | None, password: str | None) -> None:
        async def on_error(error: Exception) -> None:
            # At the start, a server's refusal says more than the broken connection after it.
            if self._is_started or not self._trouble or isinstance(error, NatsError):
                self._note(error)

        connecting = self._client.connect(
            server,
            user=user,
            password=password,
            error_cb=on_error,
            max_reconnect_attempts=-1,
            reconnect_time_wait=1,
        )
        where = without_user(server)
        try:
            self._runner.run(asyncio.wait_for(connecting, START_S))
        except TimeoutError:
            raise ReaderError(f"no NATS server answers at {where}: {self._trouble}") from None
        except (OSError, NatsError, ValueError) as wrong:
            raise BadInput(f"{where}: {wrong}") from None

    def _note(self, error: Exception) -> None:
        """Log an error, unless it was logged a short time ago."""
        self._trouble, now = str(error).removeprefix("nats: "), time.monotonic()
        is_said = now - self._said.get(self._trouble, -QUIET_S) < QUIET_S
        if not is_said and self._is_started:
            self._said[self._trouble] = now
            self._log(f"NATS: {self._trouble}")

    # -- the stream --------------------------------------------------------------------------------

    def bounds(self, source: str) -> Bounds | None:
        """First sequence number, and the one after the last. None while NATS does not answer."""
        return self._call(self._bounds)

    async def _bounds(self) -> Bounds:
        try:
            about = await self._context.stream_info(self._name)
        except NotFoundError:
            raise ReaderError(f"the stream {self._name!r} does not exist; create it") from None
        self._created, state = about.created, about.state
        first = max(1, state.first_seq)  # a stream that never had a message begins at 0
        return Bounds(first, state.last_seq + 1, first - 1)

    def start(self, source: str, offset: int) -> None:
        """Read from this sequence number."""
        self._next, self._is_stale, self._read_created = offset, True, None
        self._is_lost = self._is_at_end = False

    def lag(self, source: str, offset: int) -> int | None:
        """Sequence numbers up to the end, as last known."""
        return None if self._end is None else max(0, self._end - offset)

    # -- messages ----------------------------------------------------------------------------------

    def read(self, rows: int, seconds: float) -> list[Message]:
        """Up to `rows` messages, after at most `seconds`."""
        self._is_at_end = False
        if self._next is None or not self._client.is_connected:
            self._runner.run(asyncio.sleep(PAUSE_S))
            return []
        start = self._next
        messages = self._call(lambda: self._fetched(start, rows, max(seconds, MIN_WAIT_S)))
        if messages is None:
            self._is_stale = True
            self._runner.run(asyncio.sleep(PAUSE_S))
        return messages or []

    async def _fetched(self, start: int, rows: int, seconds: float) -> list[Message]:
        """The next messages; none if some were lost, or if there are none."""
        if self._is_stale:
            await self._subscribe(start)
            if self._is_lost:
                return []
        count = max(1, min(rows, READ_BYTES // self._message_bytes))
        try:
            received = await self._pull.fetch(count, seconds)
        except TimeoutError:
            await self._check_consumer()
            return []
        messages: list[Message] = []
        for one in received:
            about = one.metadata
            if about.sequence.consumer != self._delivered + 1:
                self._is_stale = True  # a delivery was lost
                break
            self._delivered += 1
            messages.append(self._message(one, about))
            self._end = about.sequence.stream + 1 + about.num_pending
            self._is_at_end = not about.num_pending
        numbers = [message.offset for message in messages]
        for before, number in zip([start - 1, *numbers], numbers, strict=False):
            if number > before + 1 and (await self._bounds()).first > before + 1:
                self._lose()
                return []
        if numbers:
            self._next = numbers[-1] + 1
            self._message_bytes = max(1, sum(one.size for one in messages) // len(messages))
        return messages

    async def _subscribe(self, start: int) -> None:
        """Let the server make a consumer, unless messages were lost."""
        await self._unsubscribe()
        bounds = await self._bounds()
        if not bounds.first <= start <= bounds.end:
            self._lose()
            return
        if self._read_created not in (None, self._created):
            raise ReaderError(
                f"{self.source}: the stream was deleted and made again, so the cursor {start} is"
                " not one of its numbers; forget it with `dualstream sources MODEL --forget"
                f" {self.source}`"
            )
        self._read_created = self._created
        config = ConsumerConfig(
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=start,
            ack_policy=AckPolicy.NONE,
            inactive_threshold=FORGOTTEN_S,
            mem_storage=True,
        )
        self._pull = await self._context.pull_subscribe("", stream=self._name, config=config)
        assert config.name is not None
        self._consumer, self._delivered, self._is_stale = config.name, 0, False

    async def _unsubscribe(self) -> None:
        """Delete the server's consumer, if there is one."""
        pull, self._pull = self._pull, None
        if pull is not None:
            with suppress(NatsError, OSError):  # the server may have forgotten it
                await pull.unsubscribe()
                await self._context.delete_consumer(self._name, self._consumer)

    async def _check_consumer(self) -> None:
        """After no message: is the consumer alive, with nothing left to deliver?"""
        about = await self._pull.consumer_info()
        if about.delivered.consumer_seq != self._delivered:
            self._is_stale = True
        self._is_at_end = not self._is_stale and not about.num_pending
        if self._is_at_end:
            self._end = self._next

    def _lose(self) -> None:
        self._is_lost, self._next = True, None

    def _message(self, one: Any, about: Any) -> Message:
        headers = tuple((name, value.encode()) for name, value in (one.headers or {}).items())
        time_ms = round(about.timestamp.timestamp() * 1000)
        offset, key = about.sequence.stream, one.subject.encode()
        return Message(self.source, offset, one.data, key, time_ms, headers)

    def _call(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T | None:
        """The answer; None while NATS does not answer. Raises ReaderError for other errors."""
        try:
            return self._runner.run(call())
        except (NotFoundError, ServerError, ServiceUnavailableError, TimeoutError) as away:
            self._note(away)
        except APIError as wrong:
            raise ReaderError(f"{self.source} cannot be read: {wrong.description}") from None
        except (NatsError, OSError) as away:
            self._note(away)
        return None

    def keep_alive(self, seconds: float) -> None:
        """Wait, and count the messages that are added."""
        self._runner.run(asyncio.sleep(seconds))
        if self._client.is_connected and (bounds := self._call(self._bounds)) is not None:
            self._end = bounds.end

    def close(self) -> None:
        """Delete the consumer, and close the connection."""

        async def close() -> None:
            if self._client.is_connected:
                await self._unsubscribe()
            await self._client.close()

        with suppress(OSError, NatsError):  # the connection may be broken
            self._runner.run(asyncio.wait_for(close(), ANSWER_S))
        self._runner.close()
