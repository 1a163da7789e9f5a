"""An application behind connections without sockets: requests and answers as bytes."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from dualstream.service.http.protocol import protocol_of
from dualstream.service.journal.protocol import Appended, AppendRequest
from dualstream.service.server.app import create_app
from dualstream.service.settings import Settings


class Line:
    """The transport of one connection."""

    def __init__(self) -> None:
        self.written, self.is_closed, self.is_paused = b"", False, False

    def get_extra_info(self, name: str) -> Any:
        return ("127.0.0.1", 1) if name in ("sockname", "peername") else None

    def write(self, data: bytes) -> None:
        self.written += data

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    abort = close

    def answers(self) -> list[bytes]:
        """Whole answers so far; the last piece may be incomplete."""
        found, rest = [], self.written
        while match := re.match(rb"(?s)HTTP.*?content-length: (\d+)\r\n.*?\r\n\r\n", rest):
            end = match.end() + int(match[1])
            if end > len(rest):
                break
            found.append(rest[:end])
            rest = rest[end:]
        return found


class Server:
    """A ready application, and its connections.

    by_asgi     paths of the requests that made an ASGI cycle
    """

    def __init__(self, app: Any) -> None:
        self.app = app
        self.by_asgi: list[str] = []

        async def counted(scope: Any, receive: Any, send: Any) -> None:
            self.by_asgi.append(scope["path"])
            await app(scope, receive, send)

        self.config = uvicorn.Config(counted, lifespan="off", ws="none", log_level="critical")
        self.state = ServerState()
        self.protocol = protocol_of(app.connections, app.short_requests)

    def connect(self) -> tuple[Any, Line]:
        one, line = self.protocol(self.config, self.state, {}), Line()
        one.connection_made(line)
        return one, line

    async def ask(self, *requests: bytes) -> list[bytes]:
        """The answers to requests that arrive at once, each on a connection of its own."""
        lines = []
        for request in requests:
            one, line = self.connect()
            lines.append(line)
            one.data_received(request)
        async with asyncio.timeout(60):
            while not all(line.answers() for line in lines):
                await asyncio.sleep(0.0005 if len(lines) > 1 else 0)
        return [line.answers()[0] for line in lines]


@asynccontextmanager
async def serving(store: str, **settings: Any) -> AsyncIterator[Server]:
    app = create_app(Settings(store=store, **settings))
    async with app._fastapi.router.lifespan_context(app._fastapi):
        await app.startup.finished.wait()
        yield Server(app)


def wrap(server: Server, wrapper: Callable[[Any], Any]) -> Any:
    """Let the server append by a wrapper of its journal, which is returned."""
    journal = server.app._registry.journal
    wrapped = wrapper(SimpleNamespace(append=journal.append))
    journal.append = wrapped.append
    return wrapped


class Paused:
    """A journal whose appends to the model m wait until they are released."""

    def __init__(self, journal: Any) -> None:
        self._journal = journal
        self.released = asyncio.Event()
        self.waits = asyncio.Event()

    async def append(self, request: AppendRequest) -> Appended:
        if request.model == "m":
            self.waits.set()
            await self.released.wait()
        return await self._journal.append(request)


def request(
    method: str, target: str, body: bytes = b"", headers: Sequence[tuple[str, str]] = ()
) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", "host: a"]
    if method != "GET":
        lines += ["content-type: application/json", f"content-length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def put(model: str, spec: Any) -> bytes:
    return request("PUT", f"/models/{model}", json.dumps(spec).encode())


def comparable(answer: bytes) -> bytes:
    """The answer without its time, request id and chain, which no other answer has."""
    answer = re.sub(rb'etag: "(\d+)-[0-9a-f]{8}"', rb"etag: \1", answer)
    answer = re.sub(rb"x-request-id: [0-9a-f]{12}-[0-9a-f]+\r\n", b"x-request-id: ID\r\n", answer)
    answer = re.sub(rb'"request_id":"[0-9a-f]{12}-[0-9a-f]+"', b'"request_id":"ID"', answer)
    answer = re.sub(rb"content-length: \d+\r\n", b"", answer)  # ids differ in length
    return re.sub(rb"date: [^\r]*\r\n", b"", answer)


async def answered(line: Line, count: int) -> list[bytes]:
    async with asyncio.timeout(60):
        while len(line.answers()) < count:
            await asyncio.sleep(0)
    return line.answers()


def run(main: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(main(), 120))


def body_of(answer: bytes) -> Any:
    return json.loads(answer.partition(b"\r\n\r\n")[2])
