"""Runs the application under uvicorn and says, once, where it is and what it promises."""

import asyncio
import gc
import socket
from collections.abc import Callable

import uvicorn

from service.api.health import without_password
from service.api.hot import HotPath
from service.app import create_app
from service.receiving import BodyProtocol
from service.settings import Settings
from service.telemetry.sharing import Sharing

GARBAGE_THRESHOLD = 20_000


def serve(settings: Settings, say: Callable[[str], None]) -> None:
    """Serve until interrupted. Raises UnsafeBinding."""
    server = make_server(settings)

    server.on_listening = lambda host, port: say(listening_line(host, port))
    server.on_ready = lambda durability: say(ready_line(settings, durability))
    server.run()


def listening_line(host: str, port: int) -> str:
    """How it is said where the server is."""
    return f"Dualstream listens on http://{f'[{host}]' if ':' in host else host}:{port}"


def ready_line(settings: Settings, durability: str, workers: int = 1) -> str:
    """How it is said what the server promises."""
    line = f"ready · store {without_password(settings.store)} · durability {durability}"
    return line if workers == 1 else f"{line} · {workers} workers"


def make_server(settings: Settings, sharing: Sharing | None = None) -> "Server":
    """A server that was not started yet. Raises UnsafeBinding."""
    app = create_app(settings, sharing=sharing)
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        http=BodyProtocol,
        log_level="warning",
        access_log=False,
        server_header=False,
        ws="none",
        proxy_headers=False,
    )
    return Server(config, app)


class Server(uvicorn.Server):
    """uvicorn's, which tells when it listens and when the application is ready."""

    def __init__(self, config: uvicorn.Config, app: HotPath) -> None:
        super().__init__(config)
        self._app = app
        self.on_listening: Callable[[str, int], None] = lambda host, port: None
        self.on_ready: Callable[[str], None] = lambda durability: None
        self._announcing: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._announcing = asyncio.create_task(self._announce())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._announcing is not None:
            self._announcing.cancel()
        self._app.stop_streams()
        await super().shutdown(sockets)

    async def _announce(self) -> None:
        startup = self._app.startup
        self.on_listening(*self.servers[0].sockets[0].getsockname()[:2])
        await startup.finished.wait()
        # What was loaded stays: a collection that walks through it again would stop the event loop.
        gc.collect()
        gc.freeze()
        # A request makes few cycles and many short-lived objects: look for cycles less often.
        gc.set_threshold(GARBAGE_THRESHOLD, 20, 20)
        self.on_ready(startup.durability.decode())
