"""HTTP/1.1 connection with limits: size of a head, slow clients, errors as problem documents.

uvicorn's protocol, which parses pipelined requests as they arrive and serves them one at a time.
Malformed HTTP, an oversized head or a slow client is answered with a problem document after the
answers to the client's earlier requests, and the connection closes.
"""

import asyncio
from collections import deque
from http import HTTPStatus
from typing import Any

import httptools
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from dualstream.service.transport.connections import LISTENS, Connections, Sight, Waits
from dualstream.wire.problems import MEDIA_TYPE, Problem

MAX_HEADERS = 256


class _Flow(FlowControl):
    """Reads nothing more while pipelined requests wait, so that few of them are in memory."""

    def __init__(self, transport: asyncio.Transport, pipeline: deque[Any]) -> None:
        super().__init__(transport)
        self._pipeline = pipeline

    def resume_reading(self) -> None:
        if not self._pipeline:
            super().resume_reading()


class LimitedProtocol(HttpToolsProtocol):
    """One connection."""

    open: Connections
    """All connections, this one among them."""
    seen: Sight | None = None
    # The request that is being answered. `cycle` is the one that was parsed last.
    _served: Any = None
    # Requests that have begun, and bytes of bodies that have arrived.
    _begun = _arrived = 0
    # Whether the parser has seen the beginning of a message and not its end; and of its head.
    _is_within = _in_head = False
    # Bytes of heads, chunk sizes and trailers since the message or a part of its body began.
    _overhead = 0
    # Why nothing more is read; and the error to send once earlier requests are answered.
    _wrong: Problem | None = None
    _last_words: bytes | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = _Flow(transport, self.pipeline)
        self.open.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        # uvicorn notifies the request that was parsed last, which may still be queued.
        if self._served is not None and not self._served.response_complete:
            self._served.disconnected = True
            self._served.message_event.set()
        self.pipeline.clear()
        super().connection_lost(exc)
        self.open.discard(self)

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._served = cycle
        super()._start_asgi_task(cycle, app)

    def waits_for(self) -> Waits:
        """What the connection waits for, as it is now."""
        if self.flow.write_paused or self.transport.is_closing():
            return Waits.READER
        served = self._served
        if served is not None and not served.response_complete and LISTENS in served.scope:
            return Waits.LISTENS
        if self.flow.read_paused:
            return Waits.ANSWER
        if self._in_head:
            return Waits.HEAD
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            return Waits.BODY if self._is_within else Waits.IDLE
        is_sending = cycle.more_body and not cycle.waiting_for_100_continue
        return Waits.BODY if is_sending else Waits.ANSWER

    def progress(self) -> tuple[int, int]:
        """How many requests have begun; and what grows as a body comes, or an answer is read."""
        return self._begun, self._arrived - self.transport.get_write_buffer_size()

    def end(self, problem: Problem | None) -> None:
        """Close it, with a refusal where one can still be told; at once where nobody reads."""
        if self.waits_for() is Waits.READER:
            self.transport.abort()
        elif problem is None:
            self.transport.close()
        else:
            self._wrong = problem
            self.send_400_response("")

    def make_room(self) -> None:
        """Close it, as what it does not read takes memory that others need."""
        self.open.closed("room")
        self.end(None)

    def data_received(self, data: bytes) -> None:
        while data and self._last_words is None and not self.transport.is_closing():
            data = self._feed(data)

    def _feed(self, data: bytes) -> bytes:
        """Parse some of it; what is left. Unlike uvicorn's own this logs nothing of bad input."""
        self._overhead += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            # No other protocol is supported: the request is answered as it is, and what follows is
            # its body if it has one, or the next request.
            rest: bytes = data[upgrade.args[0] :]
            return rest
        except httptools.HttpParserError:
            self.send_400_response("")
            return b""
        if self._is_within and self._overhead > self.open.limits.head_bytes:
            self._refuse_head()
            self.send_400_response("")
        return b""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = self._is_within = True
        self._begun += 1
        self._overhead = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(self.headers) == MAX_HEADERS:
            self._refuse_head(f"there are more than {MAX_HEADERS} headers")
            raise ValueError("too many headers")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head, self._overhead = False, 0
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > self.open.limits.head_bytes:
            self._refuse_head()
            raise ValueError("the head is too long")
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._arrived += len(body)
        self._overhead = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._is_within = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        # Without uvicorn's timer for each request: `Connections` closes idle connections.
        self.server_state.total_requests += 1
        self._served.body = b""  # an early answer leaves what has arrived of it
        if self.transport.is_closing():
            return
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        elif self._last_words is not None:
            self.transport.write(self._last_words)
            self.transport.close()
        else:
            self.flow.resume_reading()

    def _refuse_head(self, detail: str = "") -> None:
        most = self.open.limits.head_bytes
        detail = detail or f"the path and the headers are longer than {most} bytes"
        self._wrong = Problem(431, "head-too-large", detail)
        self.open.closed("large-head")

    def send_400_response(self, msg: str) -> None:
        """Say why nothing more can be read, after all answers that are due, and close."""
        problem = self._wrong or Problem(400, "malformed-request", "this is no HTTP request")
        words, cycle = self._told(problem), self.cycle
        self._in_head = self._is_within = False
        is_due = cycle is not None and not cycle.response_complete
        if is_due and cycle.more_body:
            if self.pipeline:  # it was not started
                self.pipeline.popleft()
            else:
                # The application is notified that the rest will not come, and cannot answer.
                words = b"" if cycle.response_started else words
                cycle.disconnected = True
                cycle.message_event.set()
                is_due = False
        if is_due:
            self._last_words = words
            return
        self.transport.write(words)
        self.transport.close()

    def _told(self, problem: Problem) -> bytes:
        status, body = HTTPStatus(problem.status), problem.body("/")
        told: list[Any] = [
            *self.server_state.default_headers,
            (b"content-type", MEDIA_TYPE.encode()),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
        ]
        head = b"".join(b"%b: %b\r\n" % pair for pair in told)
        return b"HTTP/1.1 %d %b\r\n%b\r\n%b" % (status, status.phrase.encode(), head, body)
