"""HTTP request bodies: uvicorn's protocol, without its five copies of the bytes of a long body.

The bytes of a long body of a stated length need no parser: they go to the application in the pieces
in which they were read. So does any body of a request that asks for an upgrade: none is made here,
and the parser would take the body for the next request.
"""

import asyncio
import weakref
from typing import Any

import httptools

from dualstream.service.transport.body_memory import CONNECTION
from dualstream.service.transport.connections import Connections
from dualstream.service.transport.http_protocol import LimitedProtocol
from dualstream.wire.problems import Problem

LONG = 64 * 1024
"""Bytes of a body that is worth it."""
MAX_HELD = 512 * 1024
"""Of a long body so much comes in before the application has asked for it, and no more is read."""


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

    refused_in = 0
    # Bytes of the body at hand that are still to come, where its length is stated.
    _left = 0
    # Whether the body at hand passes the parser by.
    _is_counted = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # As its requests know it: without a ring, which only the collector of rings would free.
        self._itself = weakref.proxy(self)

    def on_headers_complete(self) -> None:
        given, skips_body = dict(self.headers), self.parser.should_upgrade()
        is_coded = b"transfer-encoding" in given
        if skips_body and is_coded:
            # Nobody but the parser could find its end.
            detail = "a request that asks for an upgrade has to state the length of its body"
            self._wrong = Problem(400, "malformed-request", detail)
            raise ValueError("an upgrade, and a body of no stated length")
        self.scope[CONNECTION] = self._itself  # type: ignore[literal-required]
        super().on_headers_complete()
        self._left = 0 if is_coded else int(given.get(b"content-length", b"0"))
        self._is_counted = self._left > (0 if skips_body else LONG)

    def on_body(self, body: bytes) -> None:
        if self._left:
            self._left -= len(body)
            cycle: Any = self.cycle
            if self._is_counted:
                self._hold(cycle, body)
                return
        super().on_body(body)

    def on_message_complete(self) -> None:
        # The parser says so, too, of a body that it skips and that is yet to be counted.
        if not self._left:
            super().on_message_complete()

    def _hold(self, cycle: Any, piece: bytes) -> None:
        """Give the application what came: each time that it is woken costs as much as to read it.

        So reading goes on until it is, as far as more has come by then, up to a limit.
        """
        self._arrived += len(piece)
        if cycle.response_complete:
            return
        if not cycle.body:
            cycle.body = Pieces()
        cycle.body += piece
        if len(cycle.body) >= MAX_HELD:
            self.flow.pause_reading()
        cycle.message_event.set()

    def _feed(self, data: bytes) -> bytes:
        if not self._is_counted:
            return super()._feed(data)
        left = self._left
        self.on_body(data if len(data) <= left else data[:left])
        if not self._left:
            # The parser has seen the head alone, and would take what follows for the body.
            self._is_counted = False
            self.on_message_complete()
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return data[left:]


def protocol_of(connections: Connections) -> type[BodyProtocol]:
    """The protocol class of a server with these connections."""
    return type("Protocol", (BodyProtocol,), {"open": connections})
