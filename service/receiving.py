"""How bytes come in: uvicorn's protocol, without its five copies of the bytes of a long body.

Of a body of a stated length the bytes behind its head need no parser: they go to the application
in the pieces in which they were read.
"""

from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

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


class BodyProtocol(HttpToolsProtocol):
    """One connection."""

    # Bytes of the body at hand that are still to come, where it is long and its length stated.
    _left = 0

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
