"""How bytes come in: uvicorn's protocol, without its five copies of the bytes of a long body.

Of a body of a stated length the bytes behind its head need no parser: they go to the application
in the pieces in which they were read. A request that comes to a server with too much to do is
answered here, from its head: no task is made of it, and its body is passed over. Once that is so
for many, those that came whole are answered from their bytes (`first_bytes.py`), with no parser,
and what refuses them is held back for a moment (`holding_back.py`).
"""

from typing import Any

import httptools

from service.api.http import answer_problem
from service.connections import Connections
from service.first_bytes import FirstBytes, refusal
from service.holding_back import HoldingBack
from service.limited import LimitedProtocol
from service.pressure import Pressure, kind_of, overloaded

LONG = 64 * 1024
"""Bytes of a body that is worth it."""


class Pieces:
    """Bytes that came in, in place of the bytearray in which uvicorn joins them."""

    __slots__ = ("_pieces", "_size")

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size = 0

    def __iadd__(self, piece: bytes) -> "Pieces":
        self._pieces.append(piece)
        self._size += len(piece)
        return self

    def __len__(self) -> int:
        return self._size

    def __bytes__(self) -> bytes:
        return self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)


class BodyProtocol(LimitedProtocol):
    """One connection."""

    pressure: Pressure | None = None
    """Says which requests are not served; None: all are."""
    first_bytes = FirstBytes()
    holding_back = HoldingBack()
    refused_in = 0
    held_until = 0.0
    # A refusal that is held back.
    _held: bytes | None = None
    # Bytes of the body at hand that are still to come, where it is long and its length stated.
    _left = 0
    # When a request was answered at once, by the loop's clock.
    _used_at = float("-inf")

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        if self.pressure is None or self.pressure.admits(cycle.scope["path"], self):
            super()._start_asgi_task(cycle, app)
        elif self.flow.write_paused:  # whoever asks does not read: this waits until he does
            super()._start_asgi_task(cycle, _refuse)
        else:
            self._refuse(cycle)

    def _refuse(self, cycle: Any) -> None:
        path = cycle.scope["path"]
        kind = kind_of(path)
        assert kind is not None
        head, body = refusal(kind, path, self.server_state.default_headers)
        if not cycle.keep_alive:
            head += b"connection: close\r\n"
        is_head = cycle.scope["method"] == "HEAD"
        self.transport.write(head + b"\r\n" + (b"" if is_head else body))
        cycle.response_started = cycle.response_complete = True
        if not cycle.keep_alive:
            self.transport.close()
        if self.pipeline:  # of which each would be refused within the one before
            self.loop.call_soon(self.on_response_complete)
        else:
            self.on_response_complete()

    def _is_answered_at_once(self, data: bytes) -> bool:
        """Answer a request that came whole, where nothing of an earlier one is under way."""
        cycle = self.cycle
        is_free = cycle is None or (cycle.response_complete and not self.pipeline)
        if not is_free or self._is_within or self.flow.write_paused:
            return False
        found = self.first_bytes.read(data, self.server_state.default_headers)
        if found is None:
            return False
        self._used_at = now = self.loop.time()
        if found.kind is None:
            self.transport.write(found.answer)
        elif self.pressure is not None and self.pressure.refuses(found.kind, self):
            self._held = found.answer
            self.holding_back.hold(self, now, self.loop)
        else:
            return False
        self.server_state.total_requests += 1
        self._begun += 1
        if self.timeout_keep_alive_task is None:
            self._wait_for_next(self.timeout_keep_alive)
        return True

    def let_go(self) -> None:
        """Send the refusal that is held back, if one is."""
        answer, self._held = self._held, None
        self.held_until = 0.0
        if answer is not None and not self.transport.is_closing():
            self.transport.write(answer)

    def shutdown(self) -> None:
        self.let_go()
        super().shutdown()

    def _wait_for_next(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(
            seconds, self.timeout_keep_alive_handler
        )

    def timeout_keep_alive_handler(self) -> None:
        # What is answered at once leaves the timer as it is, which takes longer than the answer.
        left = self._used_at + self.timeout_keep_alive - self.loop.time()
        if left > 0.0 and not self.transport.is_closing():
            self._wait_for_next(left)
        else:
            super().timeout_keep_alive_handler()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        # A body that was passed over has stopped the timer that closes idle connections.
        if self.cycle.response_complete and not self.transport.is_closing():
            self._unset_keepalive_if_required()
            self._wait_for_next(self.timeout_keep_alive)

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        given = dict(self.headers)
        size = int(given.get(b"content-length", b"0"))
        is_plain = b"transfer-encoding" not in given and b"upgrade" not in given
        self._left = size if size > LONG and is_plain else 0

    def on_body(self, body: bytes) -> None:
        if self._left:
            self._left -= len(body)
            cycle: Any = self.cycle
            if not cycle.body:
                cycle.body = Pieces()
        super().on_body(body)

    def data_received(self, data: bytes) -> None:
        if self._held is not None:  # answers keep the order of their requests
            self.let_go()
        left = self._left
        if not left:
            pressure = self.pressure
            if pressure is None or not pressure.is_rush or not self._is_answered_at_once(data):
                super().data_received(data)
            return
        self._unset_keepalive_if_required()
        self.on_body(data if len(data) <= left else data[:left])
        if self._left:
            return
        # The parser has seen the head alone, and would take what follows for the body.
        self.on_message_complete()
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        if len(data) > left:
            super().data_received(data[left:])


async def _refuse(scope: Any, _: Any, send: Any) -> None:
    kind = kind_of(scope["path"])
    assert kind is not None
    await answer_problem(send, overloaded(kind), scope["path"])


def refusing_by(pressure: Pressure, connections: Connections | None = None) -> type[BodyProtocol]:
    """Connections of a server whose requests are refused as these say."""
    given = {"pressure": pressure, "first_bytes": FirstBytes(), "holding_back": HoldingBack()}
    given["open"] = connections
    return type("RefusingProtocol", (BodyProtocol,), given)
