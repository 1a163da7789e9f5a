"""HTTP/1.1 protocol with limits of heads, timeouts, and errors as problem documents.

Based on uvicorn's protocol, which parses pipelined requests as they arrive and serves them one at a
time. Malformed HTTP, an oversized head or a timeout is answered with a problem document, after the
responses to the client's earlier requests. Then the connection closes.
"""

import asyncio
import weakref
from collections import deque
from http import HTTPStatus
from typing import Any

import httptools
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from dualstream.service.http.body_memory import CONNECTION
from dualstream.service.http.connection_limits import EVENT_STREAM, Checkpoint, Connections, State
from dualstream.service.http.short_request import (
    MAX_BODY_BYTES,
    MAX_PATH_BYTES,
    OF_PROXIES,
    ShortRequest,
    ShortRequests,
    is_usual,
    route_of,
)
from dualstream.wire.problem_json import MEDIA_TYPE, Problem

MAX_HEADERS = 256
_FRAMING = (b"content-length", b"transfer-encoding")
PARSED_AT_ONCE = 4096
"""Bytes that are parsed at once, except of a body of known length: up to 230 requests."""
PIECE_OVERHEAD = 64
"""Bytes that a piece of a body takes in addition to its own."""


class _Flow(FlowControl):
    """Pauses reading while pipelined requests or unparsed bytes wait, which limits their memory."""

    def __init__(self, transport: asyncio.Transport, pipeline: deque[Any]) -> None:
        super().__init__(transport)
        self._pipeline = pipeline
        self.unparsed = b""

    def resume_reading(self) -> None:
        if not self._pipeline and not self.unparsed:
            super().resume_reading()


class _Response:
    """The transport, as one response sees it: head and body leave in one write.

    uvicorn writes the head and then the body. Each write is a system call and a packet that wakes
    the client. A head without a body after it leaves in the next event-loop iteration.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head = b""
        self._flush: asyncio.Handle | None = None

    def write(self, data: bytes) -> None:
        if self._flush is None:
            self._head = data
            self._flush = self._loop.call_soon(self.flush)
        else:
            head, self._head = self._head, b""
            self._flush.cancel()
            self._transport.write(head + data if head else data)

    def flush(self) -> None:
        """Write the head if it waits for the body."""
        if self._head:
            self._transport.write(self._head)
            self._head = b""

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def close(self) -> None:
        self.flush()
        self._transport.close()


class _Pieces:
    """List of received pieces, in place of uvicorn's bytearray, which copies each of them.

    The length is the memory of the pieces, with what Python adds to each.
    """

    __slots__ = ("_pieces", "_size")

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size = 0

    def __iadd__(self, piece: bytes) -> "_Pieces":
        self._pieces.append(piece)
        self._size += len(piece) + PIECE_OVERHEAD
        return self

    def __len__(self) -> int:
        return self._size

    def __bytes__(self) -> bytes:
        return self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)


def _without_chunks(cycle: Any, app: Any) -> Any:
    """`app` for HTTP/1.0, which has no chunks: the connection's end ends a body of unknown length.

    uvicorn closes every HTTP/1.0 connection after its response.
    """

    async def run(scope: Any, receive: Any, send: Any) -> None:
        has_length = True

        async def send_plain(message: Any) -> None:
            nonlocal has_length
            if message["type"] == "http.response.start":
                has_length = any(name == b"content-length" for name, _ in message["headers"])
                if not has_length:
                    cycle.chunked_encoding = False
            elif not has_length:
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await app(scope, receive, send_plain)

    return run


def _body_length(version: str, headers: list[tuple[bytes, bytes]]) -> int:
    """Content-Length of a request; 0 without one, and for a chunked body.

    Raises Problem for a host or a transfer coding that RFC 9112 (3.2, 6.1) refuses.
    """
    hosts = length = 0
    codings = []
    for name, value in headers:
        if name == b"host":
            hosts += 1
        elif name == b"content-length":
            length = int(value)
        elif name == b"transfer-encoding":
            codings.append(value)
    if version == "1.1" and hosts != 1:
        detail = f"an HTTP/1.1 request needs one Host header, and has {hosts}"
        raise Problem(400, "malformed-request", detail)
    if not codings:
        return length
    if b",".join(codings).strip().lower() != b"chunked":
        detail = "the only Transfer-Encoding is chunked; compress a body with Content-Encoding"
        raise Problem(501, "unsupported-transfer-encoding", detail)
    return 0


class HttpProtocol(HttpToolsProtocol):
    """Protocol of one connection; `protocol_of` binds it to the server's connections."""

    flow: _Flow
    open_connections: Connections
    """All connections of the process."""
    short_requests: ShortRequests | None = None
    ignored_headers: frozenset[bytes] = frozenset()
    checkpoint: Checkpoint | None = None
    # Overload period in which a request of this connection was refused; see admission control.
    refused_in = 0
    # The request that is being answered. `cycle` is the one that was parsed last.
    _answering: Any = None
    # Number of requests begun, and bytes of bodies received.
    _requests = _body_bytes = 0
    # Is the parser inside a message, or inside its head?
    _in_message = _in_head = False
    # Bytes of heads, chunk sizes and trailers since the message or the last piece of its body.
    _overhead = 0
    # Bytes of the head's headers.
    _head_bytes = 0
    # Bytes of a body of known length still to arrive; 0 for a chunked body.
    _remaining = 0
    # Does the parser get the framing of a head that another parser has read?
    _replays_head = False
    # Will unparsed bytes be parsed in the next event-loop iteration?
    _is_parsing_due = False
    # The error that ends reading; and its response, sent after those to earlier requests.
    _error: Problem | None = None
    _final_response: bytes | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = _Flow(transport, self.pipeline)
        # Weak, because a reference cycle is freed only by the garbage collector.
        self._weak_self = weakref.proxy(self)
        self.open_connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        # uvicorn notifies the request that was parsed last, which may still be queued.
        if self._answering is not None and not self._answering.response_complete:
            self._answering.disconnected = True
            self._answering.message_event.set()
        self.pipeline.clear()
        self.flow.unparsed = b""
        super().connection_lost(exc)
        if isinstance(self.cycle, ShortRequest):
            self.cycle.connection = None  # a reference cycle
        self.open_connections.discard(self)

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        if isinstance(cycle, ShortRequest):
            # Not here: the answers of pipelined requests that are refused at once would nest.
            self.loop.call_soon(self._start_short, cycle)
            return
        self._answering = cycle
        cycle.transport = _Response(self.transport, self.loop)
        if cycle.scope["http_version"] == "1.0":
            app = _without_chunks(cycle, app)
        super()._start_asgi_task(cycle, app)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Does the connection stay open for responses after the client has closed its side?

        An event stream has no last response. asyncio cannot close one side of TLS.
        """
        if self._in_message:
            self._error = Problem(400, "malformed-request", "the connection ended in a request")
            self.send_400_response("")
        cycle: Any = self.cycle
        is_over = cycle is None or cycle.response_complete or self.scheme == "https"
        if is_over or self.state() is State.EVENTS or self.transport.is_closing():
            return False
        if self._final_response is None:
            cycle.keep_alive = False
        return True

    def state(self) -> State:
        """What the connection waits for now."""
        if self.flow.write_paused or self.transport.is_closing():
            return State.READER
        answering = self._answering
        is_busy = answering is not None and not answering.response_complete
        if is_busy and EVENT_STREAM in answering.scope:
            return State.EVENTS
        if self.flow.read_paused:
            return State.ANSWER
        if self._in_head:
            return State.HEAD
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            return State.BODY if self._in_message else State.IDLE
        is_sending = cycle.more_body and not cycle.waiting_for_100_continue
        return State.BODY if is_sending else State.ANSWER

    def progress(self) -> tuple[int, int]:
        """Number of requests begun; a number that grows with bytes received or read."""
        return self._requests, self._body_bytes - self.transport.get_write_buffer_size()

    def terminate(self, problem: Problem | None) -> None:
        """Close the connection; send `problem` first, unless the client does not read."""
        if self.state() is State.READER:
            self.transport.abort()
        elif problem is None:
            self.transport.close()
        else:
            self._error = problem
            self.send_400_response("")

    def close_slow(self) -> None:
        """Close the connection, because the response that the client does not read uses memory."""
        self.open_connections.count_closed("room")
        self.terminate(None)

    def data_received(self, data: bytes) -> None:
        self.flow.unparsed += data
        if not self._is_parsing_due and not self.pipeline:
            self._parse()

    def _parse(self) -> None:
        """Parse what has been read, until requests wait or other connections should be served."""
        flow = self.flow
        self._is_parsing_due = False
        while flow.unparsed:
            if self._final_response is not None or self.transport.is_closing():
                flow.unparsed = b""
                return
            size = max(PARSED_AT_ONCE, self._remaining)
            piece, flow.unparsed = flow.unparsed[:size], flow.unparsed[size:]
            flow.unparsed = self._feed(piece) + flow.unparsed
            if flow.unparsed and (self.pipeline or not self._remaining):
                flow.pause_reading()
                self._parse_soon()
                return
        cycle = self.cycle
        if flow.read_paused and (cycle is None or len(cycle.body) <= HIGH_WATER_LIMIT):
            flow.resume_reading()

    def _parse_soon(self) -> None:
        """Go on parsing in the next event-loop iteration, unless requests wait."""
        if self.flow.unparsed and not self.pipeline and not self._is_parsing_due:
            self._is_parsing_due = True
            self.loop.call_soon(self._parse)

    def _feed(self, data: bytes) -> bytes:
        """Parse data; return the rest. Unlike uvicorn, logs nothing about malformed input."""
        self._overhead += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            rest: bytes = data[upgrade.args[0] :]
            return rest if self._ignore_upgrade() else b""
        except httptools.HttpParserError:
            self.send_400_response("")
            return b""
        if self._in_message and self._overhead > self.open_connections.limits.head_bytes:
            self._refuse_head()
            self.send_400_response("")
        return b""

    def _ignore_upgrade(self) -> bool:
        """Read the body after a head with `Upgrade` as HTTP/1.1. False: the head is not valid.

        The parser takes all that follows such a head for another protocol. No upgrade is
        supported, so a new parser gets the head's framing without the upgrade, and then the rest.
        """
        framing = [pair for pair in self.headers if pair[0] in _FRAMING]
        lines = b"".join(b"%b: %b\r\n" % pair for pair in framing)
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._replays_head = True
        try:
            self.parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n" % lines)
        except httptools.HttpParserError:
            self.send_400_response("")
            return False
        finally:
            self._replays_head = False
        return True

    def on_message_begin(self) -> None:
        if self._replays_head:
            return
        super().on_message_begin()
        self._in_head = self._in_message = True
        self._requests += 1
        self._overhead = self._head_bytes = 0

    def on_url(self, url: bytes) -> None:
        if not self._replays_head:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._replays_head:
            return
        if len(self.headers) == MAX_HEADERS:
            self._refuse_head(f"the request has more than {MAX_HEADERS} headers")
            raise ValueError("too many headers")
        self._head_bytes += len(name) + len(value) + 4
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._replays_head:
            return
        self._in_head, self._overhead = False, 0
        if len(self.url) + self._head_bytes > self.open_connections.limits.head_bytes:
            self._refuse_head()
            raise ValueError("the head is too long")
        try:
            self._remaining = _body_length(self.parser.get_http_version(), self.headers)
        except Problem as problem:
            self._error = problem
            raise
        short = self._short_request()
        if short is None:
            self.scope[CONNECTION] = self._weak_self  # type: ignore[literal-required]
            super().on_headers_complete()
            return
        earlier: Any = self.cycle
        self.cycle = short  # type: ignore[assignment]
        if earlier is None or earlier.response_complete:
            short.is_next = True
        else:
            self.flow.pause_reading()
            waiting: deque[Any] = self.pipeline
            waiting.appendleft((short, None))

    def _short_request(self) -> ShortRequest | None:
        """The request whose head is read, if it needs no ASGI cycle."""
        parser = self.parser
        if self.short_requests is None or self._remaining > MAX_BODY_BYTES:
            return None
        method, (path, _, query) = parser.get_method(), self.url.partition(b"?")
        if len(path) > MAX_PATH_BYTES or b"#" in self.url:
            return None
        route = route_of(method, path)
        if route is None or (query and method == b"POST") or parser.get_http_version() != "1.1":
            return None
        headers = dict(self.headers)
        is_once = len(headers) == len(self.headers)
        if not is_once or not is_usual(headers, method == b"POST", self.ignored_headers):
            return None
        if self.flow.write_paused:  # a cycle waits until the client reads
            return None
        scope: Any = self.scope
        scope["method"], scope["path"] = method.decode(), path.decode("latin-1")
        scope["raw_path"], scope["query_string"] = path, query
        return ShortRequest(self, scope, route, headers)

    def _start_short(self, request: ShortRequest) -> None:
        """Let a short request be answered: all before it are, and its body may be there."""
        request.is_next = True
        if request.more_body:
            self.flow.resume_reading()
        elif self.short_requests is not None and not self.transport.is_closing():
            self.short_requests.add(request)

    def answer_short(self, request: ShortRequest, status: int, headers: bytes, body: bytes) -> None:
        """Send the answer to a short request, and serve the next request."""
        request.response_complete = True
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        common = b"".join([b"%b: %b\r\n" % pair for pair in self.server_state.default_headers])
        last = b"" if request.keep_alive else b"connection: close\r\n"
        self.transport.write(b"".join((STATUS_LINE[status], common, headers, last, b"\r\n", body)))
        if not request.keep_alive:
            self.transport.close()
        self._serve_next()

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        self._overhead = 0
        if self._remaining:
            self._remaining -= len(body)
        cycle: Any = self.cycle
        if cycle.response_complete:
            return
        if isinstance(cycle, ShortRequest):
            cycle.body += body
            return
        if not cycle.body:
            cycle.body = _Pieces()
        cycle.body += body
        if len(cycle.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        cycle.message_event.set()

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return  # the parser reports the end of a body that it skips
        self._in_message = False
        super().on_message_complete()
        cycle: Any = self.cycle
        if isinstance(cycle, ShortRequest) and cycle.is_next and not cycle.response_complete:
            self._start_short(cycle)

    def on_response_complete(self) -> None:
        # Without uvicorn's timer per request: `Connections` closes idle connections.
        self.server_state.total_requests += 1
        self._answering.transport.flush()
        self._answering.body = b""  # frees the buffer if the application answered early
        self._serve_next()

    def _serve_next(self) -> None:
        """Serve the next request after an answer, or send the error that ends the connection."""
        if self.transport.is_closing():
            return
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
            self._parse_soon()
        elif self._final_response is not None:
            self.transport.write(self._final_response)
            self.transport.close()
        else:
            self._parse_soon()
            self.flow.resume_reading()

    def _refuse_head(self, detail: str = "") -> None:
        limit = self.open_connections.limits.head_bytes
        detail = detail or f"the path and headers are longer than {limit} bytes"
        self._error = Problem(431, "head-too-large", detail)
        self.open_connections.count_closed("large-head")

    def send_400_response(self, msg: str) -> None:
        """Send the error after the responses to earlier requests, and close."""
        problem = self._error or Problem(400, "malformed-request", "the request is not valid HTTP")
        response = self._error_response(problem)
        cycle: Any = self.cycle
        self._in_head = self._in_message = False
        is_due = cycle is not None and not cycle.response_complete
        if is_due and cycle.more_body:
            if self.pipeline:  # the application has not started it
                self.pipeline.popleft()
            else:
                # The application gets a disconnect, and its response is dropped.
                cycle.transport.flush()
                response = b"" if cycle.response_started else response
                cycle.disconnected = True
                cycle.message_event.set()
                is_due = False
        if is_due:
            self._final_response = response
            return
        self.transport.write(response)
        self.transport.close()

    def _error_response(self, problem: Problem) -> bytes:
        status, body = HTTPStatus(problem.status), problem.body("/")
        headers: list[Any] = [
            *self.server_state.default_headers,
            (b"content-type", MEDIA_TYPE.encode()),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
        ]
        head = b"".join(b"%b: %b\r\n" % pair for pair in headers)
        return b"HTTP/1.1 %d %b\r\n%b\r\n%b" % (status, status.phrase.encode(), head, body)


def protocol_of(
    connections: Connections,
    short_requests: ShortRequests | None = None,
    trusts_proxies: bool = False,
) -> type[HttpProtocol]:
    """Protocol class for uvicorn, bound to the server's connections."""
    bound = {
        "open_connections": connections,
        "short_requests": short_requests,
        "ignored_headers": frozenset() if trusts_proxies else OF_PROXIES,
    }
    return type("Protocol", (HttpProtocol,), bound)
