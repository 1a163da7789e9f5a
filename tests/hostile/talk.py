"""Raw HTTP: exact bytes to send, and the bytes that come back."""

import asyncio
import re
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

PATIENCE_S = 60.0
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) [^\r\n]*\r\n")
GONE = (ConnectionError, BrokenPipeError, TimeoutError)


@dataclass(frozen=True)
class Target:
    """A server, its model with indexed features, and its limit for slow clients."""

    host: str
    port: int
    model: str
    head_s: float
    body_s: float

    @property
    def learn(self) -> bytes:
        return f"/models/{self.model}/learn".encode()


@dataclass
class Heard:
    """All bytes received on one connection; `is_closed` if the server closed it."""

    data: bytes = b""
    is_closed: bool = False
    statuses: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.statuses = [int(status) for status in _STATUS.findall(self.data)]

    @property
    def outcome(self) -> str:
        """Status codes, and whether the connection was closed after them."""
        got = [*map(str, dict.fromkeys(self.statuses)), *(["closed"] if self.is_closed else [])]
        return ", ".join(got) or "open"


async def talk(target: Target, sent: bytes, patience_s: float = PATIENCE_S) -> Heard:
    """Send everything, then read until the server closes or the time is over."""
    reader, writer = await asyncio.open_connection(target.host, target.port)
    heard, is_closed = bytearray(), False

    async def listen() -> None:
        while piece := await reader.read(65536):
            heard.extend(piece)

    async def send() -> None:
        with suppress(*GONE):
            for first in range(0, len(sent), 65536):
                writer.write(sent[first : first + 65536])
                await writer.drain()

    sending = asyncio.create_task(send())
    try:
        await asyncio.wait_for(listen(), patience_s)
        is_closed = True
    except TimeoutError:
        pass
    except ConnectionError:
        is_closed = True
    finally:
        sending.cancel()
        writer.close()
    return Heard(bytes(heard), is_closed)


async def drip(
    target: Target, begin: bytes, more: bytes, every_s: float, until: Callable[[], bool]
) -> tuple[Heard, float]:
    """Begin, then send a little repeatedly until the server closes; returns the seconds."""
    began = time.monotonic()
    reader, writer = await asyncio.open_connection(target.host, target.port)
    heard, is_closed = bytearray(), False
    try:
        writer.write(begin)
        while not until():
            with suppress(TimeoutError):
                piece = await asyncio.wait_for(reader.read(65536), every_s)
                heard.extend(piece)
                if not piece:
                    is_closed = True
                    break
            if more:
                writer.write(more)
    except ConnectionError:
        is_closed = True
    finally:
        writer.close()
    return Heard(bytes(heard), is_closed), time.monotonic() - began


async def refuse_to_read(
    target: Target, sent: bytes, until: Callable[[], bool]
) -> tuple[Heard, float]:
    """Request much and read nothing until the server closes."""
    began, loop = time.monotonic(), asyncio.get_running_loop()
    line = socket.socket()
    line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    line.setblocking(False)
    is_closed = False
    try:
        await loop.sock_connect(line, (target.host, target.port))
        with suppress(TimeoutError):
            await asyncio.wait_for(loop.sock_sendall(line, sent), 5)
        while not until() and not is_closed:
            await asyncio.sleep(0.2)
            # Sending to a closed peer is answered by a reset.
            is_closed = line.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0
            if not is_closed:
                with suppress(BlockingIOError):
                    line.send(b"G")
    except ConnectionError:
        is_closed = True
    finally:
        line.close()
    return Heard(is_closed=is_closed), time.monotonic() - began


def request(
    method: bytes, path: bytes, body: bytes = b"", *headers: bytes, close: bool = True
) -> bytes:
    """A request as bytes, with the length of its body."""
    lines = [method + b" " + path + b" HTTP/1.1", b"host: server", *headers]
    if body:
        lines.append(b"content-length: %d" % len(body))
    if close:
        lines.append(b"connection: close")
    return b"\r\n".join(lines) + b"\r\n\r\n" + body
