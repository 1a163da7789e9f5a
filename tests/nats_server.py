"""nats-server with JetStream for tests: on a free port, in a folder of the test."""

import asyncio
import shutil
import socket
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nats

from tests.ports import free_port

UNPACKED = Path(__file__).parent.parent / ".cache/nats/usr/sbin/nats-server"
"""Where tests/fetch_tool.sh nats puts it."""
START_S = 30.0


class NatsServer:
    """One nats-server process; `url` is its address."""

    def __init__(self, folder: Path, *flags: str) -> None:
        program = shutil.which("nats-server") or (str(UNPACKED) if UNPACKED.exists() else None)
        if program is None:
            raise RuntimeError("no nats-server: run tests/fetch_tool.sh nats")
        self._port = free_port()
        self.url = f"nats://127.0.0.1:{self._port}"
        folder.mkdir(exist_ok=True)
        path = ("-a", "127.0.0.1", "-p", str(self._port), "-js", "-sd", str(folder))
        self._command = [program, *path, "-l", str(folder / "nats.log"), *flags]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(self._command)
        deadline = time.monotonic() + START_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self._port), timeout=1).close()
                return
            except OSError:
                assert self._process.poll() is None and time.monotonic() < deadline
                time.sleep(0.01)

    def kill(self) -> None:
        """kill -9."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(timeout=30)
            self._process = None

    def ask(self, call: Callable[[Any], Awaitable[Any]]) -> Any:
        """What `call` returns, which is given the JetStream context."""

        async def asked() -> Any:
            client = await nats.connect(self.url)
            try:
                return await call(client.jetstream(timeout=START_S))
            finally:
                await client.close()

        return asyncio.run(asked())

    def create(self, name: str, **config: Any) -> str:
        """Create a stream of the subjects NAME.>; returns its URL."""
        self.ask(lambda js: js.add_stream(name=name, subjects=[f"{name}.>"], **config))
        return f"{self.url}/{name}"

    def send(self, name: str, values: Iterable[bytes], **headers: str) -> None:
        """Add messages, and wait until they are stored."""

        async def send(js: Any) -> None:
            for value in values:
                await js.publish(f"{name}.a", value, headers=headers or None)

        self.ask(send)


@contextmanager
def running_nats(folder: Path, *flags: str) -> Iterator[NatsServer]:
    """A server for the duration of a with block."""
    server = NatsServer(folder, *flags)
    server.start()
    try:
        yield server
    finally:
        server.kill()
