"""Runs the application under uvicorn and says, once, where it is and what it promises."""

import asyncio
import gc
import socket
from collections.abc import Callable
from typing import Any

import uvicorn

from service.api.health import without_password
from service.api.hot import HotPath
from service.app import create_app
from service.settings import Settings

GARBAGE_THRESHOLD = 20_000


def serve(settings: Settings, say: Callable[[str], None]) -> None:
    """Serve until interrupted. Raises UnsafeBinding."""
    app = create_app(settings)
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        log_level="warning",
        access_log=False,
        server_header=False,
        ws="none",
        proxy_headers=False,
    )
    _Server(config, app, settings, say).run()


class _Server(uvicorn.Server):
    def __init__(
        self, config: uvicorn.Config, app: HotPath, settings: Settings, say: Callable[[str], None]
    ) -> None:
        super().__init__(config)
        self._app = app
        self._settings = settings
        self._say = say
        self._announcing: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._announcing = asyncio.create_task(self._announce())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._announcing is not None:
            self._announcing.cancel()
        await super().shutdown(sockets)

    async def _announce(self) -> None:
        startup = self._app.startup
        store = without_password(self._settings.store)
        host, port = _address(self.servers[0])
        shown = f"[{host}]" if ":" in host else host
        self._say(f"Dualstream listens on http://{shown}:{port}")
        await startup.finished.wait()
        # What was loaded stays: a collection that walks through it again would stop the event loop.
        gc.collect()
        gc.freeze()
        # A request makes few cycles and many short-lived objects: look for cycles less often.
        gc.set_threshold(GARBAGE_THRESHOLD, 20, 20)
        self._say(f"ready · store {store} · durability {startup.durability.decode()}")


def _address(server: Any) -> tuple[str, int]:
    host, port = server.sockets[0].getsockname()[:2]
    return host, port
