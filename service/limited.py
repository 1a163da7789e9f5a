"""A connection that can be seen to stand still, that takes turns, and that ends with a word.

HTTP that cannot be read, a head that is too long, a client that takes too long: each is told so as
a problem, behind the answers to what the same client had asked before, and the connection closes.

What was read and is more than one request is kept, and nothing more is read, until that is taken up
piece by piece (`taking_turns.py`): so the work in a turn of the event loop does not depend on how
much clients send, and one that does not read its answers is not asked what else it wants.
"""

import asyncio
from http import HTTPStatus
from typing import Any

import httptools
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from service.connections import LISTENS, Connections, Sight, Waits
from service.errors import MEDIA_TYPE, Problem
from service.taking_turns import TakingTurns

SHARE = 1024
"""Bytes that are few: taken up at once, whatever they are."""
HEAD_SHARE = 4096
"""Of a head that is longer so many at a time."""
CHUNKS_LEAST, CHUNKS_SHARE = 1024, 16 * 1024
"""And of a body whose end is not known, as it comes in chunks; requests may follow it."""
MOST_HEADERS = 256
_END = b"\r\n\r\n"


class _Flow(FlowControl):
    """Nothing is read while it is held, whoever wants more."""

    is_held = False

    def hold(self) -> None:
        self.is_held = True
        self.pause_reading()

    def release(self, is_wanted: bool) -> None:
        """Read on, at once where more `is_wanted`, else as soon as somebody asks for more."""
        self.is_held = False
        if is_wanted:
            self.resume_reading()

    def resume_reading(self) -> None:
        if not self.is_held:
            super().resume_reading()


class LimitedProtocol(HttpToolsProtocol):
    """One connection."""

    open: Connections | None = None
    """All connections, this one among them; None: nothing limits them."""
    seen: Sight | None = None
    turns = TakingTurns()
    flow: _Flow
    # What was read and is not taken up, from where on it is not; and whether it waits for its turn.
    _rest = b""
    _rest_at = 0
    _has_turn = False
    # Bytes of the body at hand that are still to come, where its length is stated.
    _left = 0
    # The request that is served, of several that came one behind the other.
    _served: Any = None
    # Requests that have begun, and bytes of bodies that have come.
    _begun = _arrived = 0
    # Whether the parser has seen the beginning of a message and not its end; and of its head.
    _is_within = _in_head = False
    # Bytes of the data at hand, since the message began, and since its body last brought some.
    _size = _fed = _outside = 0
    # Since when nobody asks anything, by the loop's clock; None: somebody does.
    _idle_since: float | None = None
    # Why nothing more is read here; and what is said of it, once all before it are answered.
    _wrong: Problem | None = None
    _last_words: bytes | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = _Flow(transport)
        if self.open is not None:
            self.open.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        # uvicorn tells the request that came last, which need not be the one that is served.
        if not self._is_free:
            self._served.disconnected = True
            self._served.message_event.set()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        self._rest = b""
        if self.open is not None:
            self.open.discard(self)

    @property
    def _is_free(self) -> bool:
        """Whether no request is being served."""
        return self._served is None or self._served.response_complete

    def _begin(self, cycle: Any, app: Any) -> None:
        """Serve this request now."""
        self._served = cycle
        super()._start_asgi_task(cycle, app)

    _start_asgi_task = _begin

    def _begin_in_turn(self, cycle: Any, app: Any) -> None:
        """Serve this request when its turn comes, though none stands before it here."""
        self.pipeline.append((cycle, app))
        self._wait_for_turn()

    def waits_for(self) -> Waits:
        """What the connection waits for, as it is now."""
        if self.flow.write_paused or self.transport.is_closing():
            return Waits.READER
        if not self._is_free and LISTENS in self._served.scope:
            return Waits.LISTENS
        if self._rest or self._has_turn:
            return Waits.ANSWER
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

    def make_room(self) -> None:
        """Close it, as what it does not read takes memory that others need."""
        if self.open is not None:
            self.open.closed("room")
        self.end(None)

    def data_received(self, data: bytes) -> None:
        if self._last_words is not None or self.transport.is_closing():
            return
        if len(data) <= SHARE and not self._rest and not self.pipeline:
            self._feed(data)
            return
        self._rest, self._rest_at = self._rest[self._rest_at :] + data, 0
        if self.pipeline or self._has_turn:
            self.flow.hold()
        else:
            self._take_share()

    def go_on(self) -> None:
        """Take up the next of what was sent: a request that waits, or what was read behind it."""
        self._has_turn = False
        if self.transport.is_closing():
            self._rest = b""
        elif self.pipeline and self._is_free:
            self._begin(*self.pipeline.pop())
            if self._rest and not self.pipeline and self.cycle.more_body:
                self._wait_for_turn()  # its body goes on in what was read meanwhile
        elif self._rest:
            self._take_share()
        if not (self._rest or self.pipeline or self._last_words or self.transport.is_closing()):
            cycle = self.cycle
            self.flow.release(cycle is None or len(cycle.body) <= HIGH_WATER_LIMIT)
            self._wait_for_next()

    def _take_share(self) -> None:
        """Give the parser what is little work of what was read, and keep what is left of it."""
        while self._rest:
            rest, begin = self._rest, self._rest_at
            self._rest_at = stop = self._share_ends(rest, begin)
            if stop == len(rest):
                self._rest = b""
            self._feed(rest[begin:stop])
            if not self._left:  # what is left of such a body is no work
                break
        if self._rest:
            self.flow.hold()
            cycle = self.cycle
            is_taken = cycle is None or cycle.response_complete or cycle.more_body
            if is_taken and not self.pipeline:  # else this goes on when that is answered
                self._wait_for_turn()

    def _share_ends(self, rest: bytes, begin: int) -> int:
        if self._left:
            return min(len(rest), begin + self._left)
        if len(rest) - begin <= SHARE:
            return len(rest)
        if self._is_within and not self._in_head:
            most, first = CHUNKS_SHARE, CHUNKS_LEAST
        else:
            most, first = HEAD_SHARE, 0
        end = rest.find(_END, begin + first, begin + most)
        return min(len(rest), begin + most) if end < 0 else end + len(_END)

    def _wait_for_turn(self) -> None:
        if not self._has_turn:
            self._has_turn = True
            self.turns.wait(self, self.loop)

    def _wait_for_next(self) -> None:
        """Give an idle connection as long as it may be idle, unless its time runs already."""
        if self._idle_since is None and not self._is_within:
            if self.cycle is not None and self.cycle.response_complete:
                self._idle_from(self.loop.time())

    def _idle_from(self, now: float) -> None:
        # A timer that runs is left as it is: to stop it and set another one takes longer than this.
        self._idle_since = now
        if self.timeout_keep_alive_task is None:
            self._look_in(self.timeout_keep_alive)

    def _look_in(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(
            seconds, self.timeout_keep_alive_handler
        )

    def timeout_keep_alive_handler(self) -> None:
        self.timeout_keep_alive_task = None
        if self._idle_since is None or self.transport.is_closing():
            return
        left = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if left > 0.0:
            self._look_in(left)
        else:
            self.transport.close()

    def _feed(self, data: bytes) -> None:
        """As uvicorn does it, which would write a line to the log for each that it cannot read."""
        arrived, self._size = self._arrived, len(data)
        self._fed += self._size
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            # To what is not spoken here: it is answered as it is, and what follows is its body if
            # it has one, or the next request.
            if upgrade.args[0] < len(data):
                self._feed(data[upgrade.args[0] :])
            return
        except httptools.HttpParserError:
            self.send_400_response("")
            return
        self._outside = self._outside + self._size if self._arrived == arrived else 0
        if self.open is None or not self._is_within:
            return
        # A head that has not come to its end yet, or trailers and the like that have none.
        so_far = self._fed if self._in_head else self._outside
        if so_far > self.open.limits.head_bytes or len(self.headers) > MOST_HEADERS:
            self._refuse_head()
            self.send_400_response("")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._idle_since = None
        self._in_head = self._is_within = True
        self._begun += 1
        self._fed, self._outside = self._size, 0

    def on_headers_complete(self) -> None:
        self._in_head = False
        if self.open is not None and (
            self._fed > self.open.limits.head_bytes or len(self.headers) > MOST_HEADERS
        ):
            # So much has come, though not of this head alone.
            size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
            if size > self.open.limits.head_bytes or len(self.headers) > MOST_HEADERS:
                self._refuse_head()
                raise ValueError("the head is too long")
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._idle_since = None
        self._arrived += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._is_within = False
        super().on_message_complete()
        # A body that was passed over has stopped the timer that closes idle connections.
        if self.cycle.response_complete and not self.transport.is_closing():
            self._wait_for_next()

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        if self.pipeline or self._rest:
            self._wait_for_turn()
        elif self._last_words is not None:
            self.transport.write(self._last_words)
            self.transport.close()
        else:
            self.flow.resume_reading()
            self._idle_from(self.loop.time())

    def _refuse_head(self) -> None:
        assert self.open is not None
        most = self.open.limits.head_bytes
        detail = f"the path and the headers are longer than {most} bytes"
        if len(self.headers) > MOST_HEADERS:
            detail = f"there are more than {MOST_HEADERS} headers"
        self._wrong = Problem(431, "head-too-large", detail)
        self.open.closed("large-head")

    def send_400_response(self, msg: str) -> None:
        """Say why nothing more can be read, behind all answers that are due, and end."""
        problem = self._wrong or Problem(400, "malformed-request", "this is no HTTP request")
        words = self._told(problem)
        cycle, self._in_head, self._is_within = self.cycle, False, False
        self._rest = b""
        is_due = cycle is not None and not cycle.response_complete
        if is_due and cycle.more_body:
            if self.pipeline:  # nothing has been done of it
                self.pipeline.popleft()
                is_due = bool(self.pipeline) or not self._is_free
            else:
                # The application hears that the rest will not come, and nobody hears what it says.
                words = b"" if cycle.response_started else words
                cycle.disconnected = True
                cycle.message_event.set()
                is_due = False
        if is_due:
            self._last_words = words
            self.flow.hold()
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
