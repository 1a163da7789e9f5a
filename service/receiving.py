"""How bytes come in: uvicorn's protocol, without its five copies of the bytes of a long body.

Of a body of a stated length the bytes behind its head need no parser: they go to the application
in the pieces in which they were read. A request that comes to a server with too much to do is
answered here, from its head: no task is made of it, and its body is passed over.
"""

from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from service.errors import MEDIA_TYPE
from service.pressure import Pressure, kind_of, overloaded

LONG = 64 * 1024
"""Bytes of a body that is worth it."""


_REFUSED = b"HTTP/1.1 503 Service Unavailable\r\n"


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


class BodyProtocol(HttpToolsProtocol):
    """One connection."""

    pressure: Pressure | None = None
    """Says which requests are not served; None: all are."""
    # Bytes of the body at hand that are still to come, where it is long and its length stated.
    _left = 0

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        if self.pressure is None or self.pressure.admits(cycle.scope["path"]):
            super()._start_asgi_task(cycle, app)
        else:
            self._refuse(cycle)

    def _refuse(self, cycle: Any) -> None:
        path = cycle.scope["path"]
        kind = kind_of(path)
        assert kind is not None
        problem = overloaded(kind)
        body = problem.body(path)
        told = [
            *self.server_state.default_headers,
            (b"content-type", MEDIA_TYPE.encode()),
            (b"content-length", b"%d" % len(body)),
            *((name.encode(), value.encode()) for name, value in problem.headers().items()),
        ]
        if not cycle.keep_alive:
            told.append((b"connection", b"close"))
        head = b"".join(b"%b: %b\r\n" % pair for pair in told)
        is_head = cycle.scope["method"] == "HEAD"
        self.transport.write(_REFUSED + head + b"\r\n" + (b"" if is_head else body))
        cycle.response_started = cycle.response_complete = True
        if not cycle.keep_alive:
            self.transport.close()
        if self.pipeline:  # of which each would be refused within the one before
            self.loop.call_soon(self.on_response_complete)
        else:
            self.on_response_complete()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        # A body that was passed over has stopped the timer that closes idle connections.
        if self.cycle.response_complete and not self.transport.is_closing():
            self._unset_keepalive_if_required()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

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
        left = self._left
        if not left:
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


def refusing_by(pressure: Pressure) -> type[BodyProtocol]:
    """Connections of a server whose requests are refused as this one says."""
    return type("RefusingProtocol", (BodyProtocol,), {"pressure": pressure})
