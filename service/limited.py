"""A connection that can be seen to stand still, and that ends with a word.

HTTP that cannot be read, a head that is too long, a client that takes too long: each is told so as
a problem, behind the answers to what the same client had asked before, and the connection closes.
"""

import asyncio
from http import HTTPStatus
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from service.connections import Connections, Sight, Waits
from service.errors import MEDIA_TYPE, Problem


class LimitedProtocol(HttpToolsProtocol):
    """One connection."""

    open: Connections | None = None
    """All connections, this one among them; None: nothing limits them."""
    seen: Sight | None = None
    # The request that is served, of several that came one behind the other.
    _served: Any = None
    # Requests that have begun, and bytes of bodies that have come.
    _begun = _arrived = 0
    # Whether the parser has seen the beginning of a message and not its end; and of its head.
    _is_within = _in_head = False
    # Bytes of the data at hand, since the message began, and since its body last brought some.
    _size = _fed = _outside = 0
    # Why nothing more is read here; and what is said of it, once all before it are answered.
    _wrong: Problem | None = None
    _last_words: bytes | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self.open is not None:
            self.open.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        # uvicorn tells the request that came last, which need not be the one that is served.
        if self._served is not None and not self._served.response_complete:
            self._served.disconnected = True
            self._served.message_event.set()
        super().connection_lost(exc)
        if self.open is not None:
            self.open.discard(self)

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._served = cycle
        super()._start_asgi_task(cycle, app)

    def waits_for(self) -> Waits:
        """What the connection waits for, as it is now."""
        if self.flow.write_paused or self.transport.is_closing():
            return Waits.READER
        if self._in_head:
            return Waits.HEAD
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            return Waits.BODY if self._is_within else Waits.IDLE
        waits_for_us = self.flow.read_paused or cycle.waiting_for_100_continue
        return Waits.BODY if cycle.more_body and not waits_for_us else Waits.ANSWER

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

    def data_received(self, data: bytes) -> None:
        """As uvicorn does it, which would write a line to the log for each that it cannot read."""
        if self._last_words is not None or self.transport.is_closing():
            return
        self._unset_keepalive_if_required()
        arrived, self._size = self._arrived, len(data)
        self._fed += self._size
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # to what is not spoken here; the request itself is answered
        except httptools.HttpParserError:
            self.send_400_response("")
            return
        self._outside = self._outside + self._size if self._arrived == arrived else 0
        if self.open is None or not self._is_within:
            return
        # A head that has not come to its end yet, or trailers and the like that have none.
        so_far = self._fed if self._in_head else self._outside
        if so_far > self.open.limits.head_bytes:
            self._refuse_head()
            self.send_400_response("")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = self._is_within = True
        self._begun += 1
        self._fed = self._size

    def on_headers_complete(self) -> None:
        self._in_head = False
        if self.open is not None and self._fed > self.open.limits.head_bytes:
            # So much has come, though not of this head alone.
            size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
            if size > self.open.limits.head_bytes:
                self._refuse_head()
                raise ValueError("the head is too long")
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._arrived += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._is_within = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        if self._last_words is None:
            super().on_response_complete()
            return
        if not self.pipeline:
            self.transport.write(self._last_words)
            self.transport.close()
        super().on_response_complete()
        self.flow.pause_reading()

    def _refuse_head(self) -> None:
        assert self.open is not None
        most = self.open.limits.head_bytes
        detail = f"the path and the headers are longer than {most} bytes"
        self._wrong = Problem(431, "head-too-large", detail)
        self.open.closed("large-head")

    def send_400_response(self, msg: str) -> None:
        """Say why nothing more can be read, behind all answers that are due, and end."""
        problem = self._wrong or Problem(400, "malformed-request", "this is no HTTP request")
        words = self._told(problem)
        cycle, self._in_head, self._is_within = self.cycle, False, False
        is_due = cycle is not None and not cycle.response_complete
        if is_due and cycle.more_body:
            if self.pipeline:  # nothing has been done of it
                self.pipeline.popleft()
            else:
                # The application hears that the rest will not come, and nobody hears what it says.
                words = b"" if cycle.response_started else words
                cycle.disconnected = True
                cycle.message_event.set()
                is_due = False
        if is_due:
            self._last_words = words
            self.flow.pause_reading()
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
