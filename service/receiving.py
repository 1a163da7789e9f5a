"""How bytes come in: uvicorn's protocol, without its five copies of the bytes of a long body.

Of a long body of a stated length the bytes behind its head need no parser: they go to the
application in the pieces in which they were read. So does any body of a request that asks for an
upgrade: none is made here, and the parser would take the body for the next request.

A request that comes to a server with too much to do is answered here, from its head: no task is
made of it, and its body is passed over. Once that is so for many, those that came whole are
answered from their bytes (`first_bytes.py`), with no parser, and what refuses them is held back for
a moment (`holding_back.py`).
"""

import asyncio
import weakref
from typing import Any

import httptools

from service.api.http import answer_problem
from service.bodies import CONNECTION
from service.connections import Connections
from service.errors import Problem
from service.first_bytes import FirstBytes, refusal
from service.holding_back import HoldingBack
from service.limited import LimitedProtocol
from service.pressure import SOON, Pressure, kind_of, overloaded
from service.taking_turns import FEW, TakingTurns

LONG = 64 * 1024
"""Bytes of a body that is worth it."""
MOST_HELD = 512 * 1024
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

    pressure: Pressure | None = None
    """Says which requests are not served; None: all are."""
    first_bytes = FirstBytes()
    holding_back = HoldingBack()
    refused_in = 0
    held_until = 0.0
    # A refusal that is held back.
    _held: bytes | None = None
    # Whether the body at hand passes the parser by.
    _is_counted = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # As its requests know it: without a ring, which only the collector of rings would free.
        self._itself = weakref.proxy(self)

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        pressure = self.pressure
        if (
            pressure is not None
            and pressure.arrived >= FEW
            and not cycle.scope["path"].endswith(SOON)
            and not self.turns.may_begin(self.loop)
        ):
            self._begin_in_turn(cycle, app)
        else:
            self._begin(cycle, app)

    def _begin(self, cycle: Any, app: Any) -> None:
        if self.pressure is None or self.pressure.admits(cycle.scope["path"], self):
            super()._begin(cycle, app)
        elif self.flow.write_paused:  # whoever asks does not read: this waits until he does
            super()._begin(cycle, _refuse)
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
        self.on_response_complete()

    def _is_answered_at_once(self, data: bytes) -> bool:
        """Answer a request that came whole, where nothing of an earlier one is under way."""
        cycle = self.cycle
        is_free = cycle is None or (cycle.response_complete and not self.pipeline)
        if not is_free or self._rest or self._is_within or self.flow.write_paused:
            return False
        found = self.first_bytes.read(data, self.server_state.default_headers)
        if found is None:
            return False
        now = self.loop.time()
        if found.kind is None:
            self.transport.write(found.answer)
        elif self.pressure is not None and self.pressure.refuses(found.kind, self):
            self._held = found.answer
            self.holding_back.hold(self, now, self.loop)
        else:
            return False
        self.server_state.total_requests += 1
        self._begun += 1
        self._idle_from(now)
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
        self._idle_since = None
        self._arrived += len(piece)
        if cycle.response_complete:
            return
        if not cycle.body:
            cycle.body = Pieces()
        cycle.body += piece
        if len(cycle.body) >= MOST_HELD:
            self.flow.pause_reading()
        cycle.message_event.set()

    def data_received(self, data: bytes) -> None:
        if self._held is not None:  # answers keep the order of their requests
            self.let_go()
        pressure = self.pressure
        if pressure is None or not pressure.rush or not self._is_answered_at_once(data):
            super().data_received(data)

    def _feed(self, data: bytes) -> None:
        if not self._is_counted:
            super()._feed(data)
            return
        left = self._left
        self.on_body(data if len(data) <= left else data[:left])
        if self._left:
            return
        # The parser has seen the head alone, and would take what follows for the body.
        self._is_counted = False
        self.on_message_complete()
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        if len(data) > left:
            super()._feed(data[left:])


async def _refuse(scope: Any, _: Any, send: Any) -> None:
    kind = kind_of(scope["path"])
    assert kind is not None
    await answer_problem(send, overloaded(kind), scope["path"])


def refusing_by(pressure: Pressure, connections: Connections | None = None) -> type[BodyProtocol]:
    """Connections of a server whose requests are refused as these say."""
    given = {"pressure": pressure, "first_bytes": FirstBytes(), "holding_back": HoldingBack()}
    given |= {"open": connections, "turns": TakingTurns()}
    return type("RefusingProtocol", (BodyProtocol,), given)
