"""Runs the application under uvicorn, and announces its address and durability."""

import asyncio
import gc
import logging
import math
import signal
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import Context
from types import FrameType
from typing import Any

import uvicorn

from dualstream import __version__
from dualstream.service.http.connection_limits import MAX_CONNECTIONS, connection_limit
from dualstream.service.http.protocol import protocol_of
from dualstream.service.metrics.multiprocess import MetricsDirectory
from dualstream.service.server import compile_kernels as kernels
from dualstream.service.server.app import Application, create_app
from dualstream.service.server.malloc import keep_freed_blocks
from dualstream.service.server.start_checks import check_certificate, listen
from dualstream.service.server.stop_signals import handle_stop_signals
from dualstream.service.settings import Settings, without_password

log = logging.getLogger("dualstream.server")

TICK_S = 0.5
"""Interval at which the Date header is updated."""
GARBAGE_THRESHOLD = 20_000
UNSENT_BYTES = 64 * 1024
"""Bytes of a response that the kernel accepts beyond those in flight."""


def serve(settings: Settings, say: Callable[[str], None]) -> None:
    """Serve until interrupted. Raises UnsafeBinding, and ValueError for bad settings.

    settings  as `check_settings` accepts them
    """
    server = make_server(settings)

    compiling: list[asyncio.Task[None]] = []

    def on_ready(durability: str) -> None:
        say(ready_line(settings, durability))
        log_start(settings, durability)
        # Its end is that of the event loop.
        compiling.append(asyncio.create_task(kernels.Background().run()))

    server.on_listening = lambda host, port: say(listening_line(settings, host, port))
    server.on_ready = on_ready
    with listen(settings) as listening:
        server.run(sockets=[listening])


def listening_line(settings: Settings, host: str, port: int) -> str:
    """The line that announces the address."""
    scheme = "http" if settings.ssl_certfile is None else "https"
    return f"Dualstream listens on {scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def ready_line(settings: Settings, durability: str, workers: int = 1) -> str:
    """The line that announces the store and its durability."""
    line = f"ready · store {without_password(settings.store)} · durability {durability}"
    return line if workers == 1 else f"{line} · {workers} workers"


def log_start(settings: Settings, durability: str) -> None:
    """Log version, store, durability, and the settings that differ from their defaults."""
    log.info(
        "started",
        extra={
            "version": __version__,
            "store": without_password(settings.store),
            "durability": durability,
            "settings": settings.changed(),
        },
    )


def make_server(
    settings: Settings,
    metrics_dir: MetricsDirectory | None = None,
    listens_when_ready: bool = False,
) -> "Server":
    """A server, not started yet. Raises UnsafeBinding, and ValueError for bad settings."""
    check_certificate(settings)
    keep_freed_blocks()
    kernels.log_compilation()
    app = create_app(settings, metrics_dir, listens_when_ready)
    app.connections.limit = connection_limit()
    if app.connections.limit < MAX_CONNECTIONS:
        log.warning(
            "at most %d connections are open at once, by the limit of open files; raise ulimit -n",
            app.connections.limit,
        )
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        http=protocol_of(
            app.connections,
            app.short_requests,
            trusts_proxies=settings.forwarded_allow_ips is not None,
        ),
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        ws="none",
        ssl_certfile=settings.ssl_certfile,
        ssl_keyfile=settings.ssl_keyfile,
        # Requests that then still wait for the store are abandoned.
        timeout_graceful_shutdown=math.ceil(settings.stop_timeout_s) + 1,
        # These headers set the client's address, so only trusted proxies may send them.
        proxy_headers=settings.forwarded_allow_ips is not None,
        forwarded_allow_ips=settings.forwarded_allow_ips,
    )
    return Server(config, app, settings.drain_s, settings.stop_timeout_s)


def keep_few_unsent(listening: Iterable[Any]) -> None:
    """Limit the unsent bytes that the kernel buffers per connection.

    By default the kernel buffers up to 4 MB for each slow reader. No limit of this server
    counts this memory, and filling and freeing it delays all other clients.
    """
    option = getattr(socket, "TCP_NOTSENT_LOWAT", None)
    for one in listening:
        if option is not None and one.family in (socket.AF_INET, socket.AF_INET6):
            one.setsockopt(socket.IPPROTO_TCP, option, UNSENT_BYTES)


class Server(uvicorn.Server):
    """uvicorn.Server with callbacks for listening and ready.

    After SIGTERM or SIGHUP it serves on for `drain_s`, so that balancers find it not ready before
    it refuses connections. A second signal, or SIGINT (Ctrl-C), stops it at once.
    """

    def __init__(
        self, config: uvicorn.Config, app: Application, drain_s: float, stop_timeout_s: float
    ) -> None:
        super().__init__(config)
        self._app = app
        self._drain_s = drain_s
        self._is_draining = False
        self._stop_timeout_s = stop_timeout_s
        self.on_listening: Callable[[str, int], None] = lambda host, port: None
        self.on_ready: Callable[[str], None] = lambda durability: None
        self._announcing: asyncio.Task[None] | None = None
        self._leaving = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals until the process ends. uvicorn ends it by the signal instead."""
        handle_stop_signals(self.handle_exit)
        yield

    async def main_loop(self) -> None:
        """Run until shutdown. A signal wakes this loop; that of uvicorn polls instead."""
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                await asyncio.wait_for(self._leaving.wait(), TICK_S)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        may_drain = sig != signal.SIGINT and self._drain_s > 0 and not self._is_draining
        if may_drain and self._loop is not None and self.started and not self.should_exit:
            self._is_draining = True
            # Not in the context of the request that the signal interrupts: its id is in the log.
            self._loop.call_soon_threadsafe(self._drain, context=Context())
            return
        super().handle_exit(sig, frame)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._leaving.set)

    def _drain(self) -> None:
        """Serve on for `drain_s`, then stop as by a second signal."""
        log.info("draining", extra={"seconds": self._drain_s})
        self._app.drain()
        asyncio.get_running_loop().call_later(self._drain_s, self.handle_exit, signal.SIGTERM, None)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        # Before the server listens: a collection walks through all imported modules, which takes
        # half a second. Later ones leave out what is frozen.
        gc.collect()
        gc.freeze()
        # Requests make few reference cycles and many short-lived objects: collect less often.
        gc.set_threshold(GARBAGE_THRESHOLD, 20, 20)
        self._loop = asyncio.get_running_loop()
        # A signal ends a start that waits for the store.
        starting = asyncio.create_task(super().startup(sockets))
        leaving = asyncio.create_task(self._leaving.wait())
        await asyncio.wait((starting, leaving), return_when=asyncio.FIRST_COMPLETED)
        leaving.cancel()
        if starting.done():
            starting.result()
        else:
            starting.cancel()
            # uvicorn logs the end of such a start as an error, with a traceback.
            self.lifespan.logger.disabled = True
        if self.started:
            for server in self.servers:
                keep_few_unsent(server.sockets)
            self._announcing = asyncio.create_task(self._announce())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._announcing is not None:
            self._announcing.cancel()
        log.info("stopping")
        self._app.drain()
        self._app.stop_streams()
        leaving = asyncio.get_running_loop().call_later(self._stop_timeout_s, self._leave)
        try:
            await super().shutdown(sockets)
        finally:
            leaving.cancel()
            log.info("stopped")

    def _leave(self) -> None:
        """Close connections that still send or do not read."""
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    async def _announce(self) -> None:
        startup = self._app.startup
        self.on_listening(*self.servers[0].sockets[0].getsockname()[:2])
        await startup.finished.wait()
        # Collections leave out what was loaded, too. None comes first: it blocks the event loop.
        gc.freeze()
        self.on_ready(startup.durability.decode())
