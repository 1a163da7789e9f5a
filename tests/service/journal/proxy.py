"""A TCP proxy that breaks connections at a chosen moment."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


class Proxy:
    """Forwards bytes in both directions.

    target    local port to which new connections go
    swallow   number of times to drop the connection instead of returning the server's next bytes
    halve     number of times to return the first half of them before dropping the connection
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self.swallow = 0
        self.halve = 0
        self.port = 0
        self._serving: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def stop(self) -> None:
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            answers, requests = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.close()
            return
        forward = asyncio.create_task(_pass(reader, requests))
        try:
            while chunk := await answers.read(1 << 16):
                if self.swallow:
                    self.swallow -= 1
                    break
                if self.halve:
                    self.halve -= 1
                    writer.write(chunk[: len(chunk) // 2])
                    break
                writer.write(chunk)
        except OSError:
            pass
        finally:
            forward.cancel()
            for stream in (requests, writer):
                stream.close()
                with suppress(OSError):
                    await stream.wait_closed()


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while chunk := await reader.read(1 << 16):
            writer.write(chunk)
    writer.close()


@asynccontextmanager
async def running_proxy(port: int) -> AsyncIterator[Proxy]:
    """A proxy in front of `port` of this machine."""
    proxy = Proxy(port)
    server = await asyncio.start_server(proxy.accept, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        await proxy.stop()
        await server.wait_closed()
