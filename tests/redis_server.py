"""redis-server for tests: on a free port, in a temporary directory, removed afterwards."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from tests.ports import free_port

UNPACKED = Path(__file__).parent.parent / ".cache" / "redis"
"""Where tests/fetch_tool.sh redis puts Debian's packages."""


class NoRedis(Exception):
    """No redis-server is installed."""


class RedisServer:
    """One redis-server process; `options` are its configuration, such as appendfsync="always"."""

    def __init__(self, directory: str, **options: str) -> None:
        self.directory = directory
        self.port = 0
        self.options = {"appendonly": "yes", "appendfsync": "everysec", "save": ""} | options
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it, on its former port if there is one; return when it answers.

        Retries like a service manager if the process ends.

        Raises NoRedis.
        """
        port = self.port
        for _ in range(10):  # a free port may be taken before the server binds it
            self.port = port or free_port()
            if self._answers():
                return
        raise RuntimeError(f"redis-server does not start: see {self.directory}/log")

    def kill(self) -> None:
        """kill -9."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM, as a service manager stops it."""
        self._end(signal.SIGTERM)

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def end_child(self) -> None:
        """End the child process that saves or rewrites the log, as the server itself does."""
        (child,) = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        os.kill(int(child), signal.SIGUSR1)

    def _first_arguments(self) -> list[str]:
        return []

    def _answers(self) -> bool:
        program, environment = _program()
        arguments = [program, *self._first_arguments()]
        arguments += ["--port", str(self.port), "--bind", "127.0.0.1"]
        arguments += ["--dir", self.directory, "--logfile", f"{self.directory}/log"]
        for name, value in self.options.items():
            arguments += [f"--{name}", *(value.split() or [value])]
        # A process group of its own, so that a child that rewrites the log is killed with it.
        self._process = subprocess.Popen(arguments, env=environment, process_group=0)
        while self._process.poll() is None:
            if _is_served_by(self.pid, self.port):
                return True
            time.sleep(0.005)
        return False

    def _end(self, signal_number: int) -> None:
        if self._process is not None:
            os.killpg(self.pid, signal_number)
            self._process.wait(timeout=30)
            self._process = None


@contextmanager
def running_redis(**options: str) -> Iterator[RedisServer]:
    """A redis-server for the duration of a with block.

    Raises NoRedis.
    """
    with tempfile.TemporaryDirectory(prefix="dualstream-redis-") as directory:
        server = RedisServer(directory, **options)
        server.start()
        try:
            yield server
        finally:
            server.kill()


@contextmanager
def redis_or_skip(**options: str) -> Iterator[RedisServer]:
    """`running_redis` for a test: skips without redis-server, fails in CI."""
    try:
        _program()
    except NoRedis as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
    with running_redis(**options) as server:
        yield server


def cut_stream(client: redis.Redis, stream: str, seq: int) -> None:
    """Replace a stream by its entries up to `seq`. Valkey sets no last id below a deleted one."""
    entries = client.xrange(stream, "-", f"{seq}-0")
    client.delete(stream)
    for entry, fields in entries:
        client.xadd(stream, fields, id=entry)


def _program() -> tuple[str, dict[str, str]]:
    result = shutil.which("redis-server")
    if result:
        return result, dict(os.environ)
    unpacked = UNPACKED / "usr" / "bin" / "redis-server"
    if not unpacked.exists():
        raise NoRedis("no redis-server: run tests/fetch_tool.sh redis, or install Redis 7 or newer")
    libraries = ":".join(str(path) for path in (UNPACKED / "usr" / "lib").glob("*-linux-gnu"))
    return str(unpacked), os.environ | {"LD_LIBRARY_PATH": libraries}


def _is_served_by(pid: int, port: int) -> bool:
    """Does this process answer, with its data loaded? Another server may have taken the port."""
    try:
        with (
            socket.create_connection(("127.0.0.1", port), timeout=1) as connection,
            connection.makefile("rb") as answers,
        ):
            connection.sendall(b"PING\r\nINFO server\r\n")
            if not answers.readline().startswith(b"+PONG"):
                return False
            size = int(answers.readline().removeprefix(b"$"))
            return b"process_id:%d\r\n" % pid in answers.read(size)
    except (OSError, ValueError):
        return False
