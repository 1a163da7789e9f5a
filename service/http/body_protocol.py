"""HTTP request bodies without copies: bytes of long bodies bypass uvicorn's parser.

uvicorn copies the bytes of a body five times. A body of known length needs no parser: its bytes go
to the application in the pieces in which they were read.
"""

import asyncio
import weakref
from typing import Any

from dualstream.service.http.body_memory import CONNECTION
from dualstream.service.http.connection_limits import Connections
from dualstream.service.http.protocol import LimitedProtocol

LONG_BODY_BYTES = 64 * 1024
"""Longer bodies bypass the parser."""
MAX_BUFFERED = 512 * 1024
"""Bytes of a long body that are read before the application asks for them."""


class Pieces:
    """List of received pieces, in place of uvicorn's bytearray; joined when read."""

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
    """Protocol of one connection; `protocol_of` binds it to the server's connections."""

    # Overload period in which a request of this connection was refused; see admission control.
    refused_in = 0
    # Does the current body bypass the parser?
    _bypasses_parser = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # Weak, because a reference cycle is freed only by the garbage collector.
        self._weak_self = weakref.proxy(self)

    def on_headers_complete(self) -> None:
        if self._replays_head:
            return
        headers = dict(self.headers)
        self.scope[CONNECTION] = self._weak_self  # type: ignore[literal-required]
        super().on_headers_complete()
        is_coded = b"transfer-encoding" in headers
        self._remaining = 0 if is_coded else int(headers.get(b"content-length", b"0"))
        self._bypasses_parser = self._remaining > LONG_BODY_BYTES

    def on_body(self, body: bytes) -> None:
        if self._remaining:
            self._remaining -= len(body)
            cycle: Any = self.cycle
            if self._bypasses_parser:
                self._buffer(cycle, body)
                return
        super().on_body(body)

    def _buffer(self, cycle: Any, piece: bytes) -> None:
        """Buffer a piece for the application, up to MAX_BUFFERED.

        Waking the application costs as much as reading a piece, so reading goes on until then.
        """
        self._body_bytes += len(piece)
        if cycle.response_complete:
            return
        if not cycle.body:
            cycle.body = Pieces()
        cycle.body += piece
        if len(cycle.body) >= MAX_BUFFERED:
            self.flow.pause_reading()
        cycle.message_event.set()

    def _feed(self, data: bytes) -> bytes:
        if not self._bypasses_parser:
            return super()._feed(data)
        left = self._remaining
        self.on_body(data if len(data) <= left else data[:left])
        if not self._remaining:
            # The old parser still expects the body: the next request needs a new one.
            self._bypasses_parser = False
            self.on_message_complete()
            self._new_parser()
        return data[left:]


def protocol_of(connections: Connections) -> type[BodyProtocol]:
    """Protocol class for uvicorn, bound to the server's connections."""
    return type("Protocol", (BodyProtocol,), {"open_connections": connections})
