"""Worker processes: several servers that accept connections from one listening socket.

The parent binds the port, so a port in use is an error, and a worker that dies takes no waiting
connection along. The parent restarts a worker that ends.
"""

import logging
import os
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import connection, parent_process
from multiprocessing.connection import Connection
from typing import Any

from dualstream.service.metrics.multiprocess import MetricsDirectory, forget_worker
from dualstream.service.server.app import create_app
from dualstream.service.server.serve import (
    check_certificate,
    listening_line,
    make_server,
    ready_line,
)
from dualstream.service.server.worker_forkserver import forks
from dualstream.service.settings import Settings

log = logging.getLogger("dualstream.workers")

BACKLOG = 2048
LOOK_S = 0.1
# A worker that ends sooner than this after its start is not started again at once.
SHORT_LIFE_S = 2.0
# Snapshots are written, and retries of an append end, within this time after the last request.
MAX_HANG_S = 30.0


def serve_by_workers(settings: Settings, say: Callable[[str], None]) -> None:
    """Serve with `settings.workers` processes until interrupted.

    Raises UnsafeBinding, ValueError for settings that no worker can serve, OSError.
    """
    if settings.adopt:
        raise ValueError("--adopt needs a single worker; start it without --workers")
    check_certificate(settings)
    create_app(settings)
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    with (
        tempfile.TemporaryDirectory(prefix="dualstream-workers-") as shared,
        socket.create_server((settings.host, settings.port), family=family, backlog=BACKLOG) as at,
    ):
        say(listening_line(settings, *at.getsockname()[:2]))
        pool = _WorkerPool(settings, at, shared)
        requested: list[int] = []
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, _: requested.append(number))
        try:
            is_announced = False
            while not requested:
                pool.look()
                if not is_announced and pool.durability is not None:
                    is_announced = True
                    say(ready_line(settings, pool.durability, settings.workers))
        finally:
            pool.stop()
    # End by the received signal, as a single server does.
    signal.signal(requested[0], signal.SIG_DFL)
    os.kill(os.getpid(), requested[0])


class _WorkerPool:
    """The workers, by number.

    shared   the directory of their metrics
    """

    def __init__(self, settings: Settings, at: socket.socket, shared: str) -> None:
        self._settings, self._socket, self._shared = settings, at, shared
        self._workers = [self._started(number) for number in range(settings.workers)]

    @property
    def durability(self) -> str | None:
        """Durability of the store, once every worker is ready."""
        durabilities = [worker.durability for worker in self._workers]
        return durabilities[0] if all(durabilities) else None

    def look(self) -> None:
        """Wait a moment for messages of workers, and restart those that have ended."""
        ends = [worker.process.sentinel for worker in self._workers]
        pipes = [worker.pipe for worker in self._workers if worker.durability is None]
        connection.wait([*ends, *pipes], timeout=LOOK_S)
        for number, worker in enumerate(self._workers):
            worker.read_ready()
            if worker.process.exitcode is not None:
                log.warning(
                    "a worker ended with exit code %s; starting another", worker.process.exitcode
                )
                if time.monotonic() - worker.started_at < SHORT_LIFE_S:
                    time.sleep(LOOK_S)
                forget_worker(self._shared, number)
                # If the fork server was killed, too, the next look starts a new one.
                with suppress(EOFError, OSError):
                    self._workers[number] = self._started(number)
                    worker.pipe.close()

    def stop(self) -> None:
        """Stop every worker gracefully, and kill it after a timeout."""
        for worker in self._workers:
            with suppress(ProcessLookupError):
                worker.process.terminate()
        by = time.monotonic() + self._settings.stop_timeout_s + MAX_HANG_S
        for worker in self._workers:
            worker.process.join(max(0.0, by - time.monotonic()))
            if worker.process.exitcode is None:
                log.error("a worker did not end within its timeout; killing it")
                worker.process.kill()
                worker.process.join()

    def _started(self, number: int) -> "_Worker":
        receiving, sending = forks.Pipe(duplex=False)
        metrics_dir = MetricsDirectory(self._shared, number)
        process = forks.Process(
            target=_work, args=(self._settings, self._socket, sending, metrics_dir)
        )
        process.start()
        sending.close()
        return _Worker(process, receiving)


class _Worker:
    """A worker process and the pipe on which it reports that it is ready."""

    def __init__(self, process: Any, pipe: Connection) -> None:
        self.process, self.pipe = process, pipe
        self.started_at = time.monotonic()
        self.durability: str | None = None

    def read_ready(self) -> None:
        with suppress(EOFError, OSError):
            if self.durability is None and self.pipe.poll():
                self.durability = self.pipe.recv()


def _work(
    settings: Settings, at: socket.socket, sending: Connection, metrics_dir: MetricsDirectory
) -> None:
    """The main function of a worker."""
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    threading.Thread(
        target=_end_with_parent,
        args=(metrics_dir.directory,),
        name="parent-watcher",
        daemon=True,
    ).start()
    server = make_server(settings, metrics_dir)
    server.on_ready = sending.send
    with suppress(KeyboardInterrupt):
        server.run(sockets=[at])


def _end_with_parent(shared: str) -> None:
    """End the worker when its parent is killed, and remove the shared directory."""
    parent = parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    shutil.rmtree(shared, ignore_errors=True)
    os.kill(os.getpid(), signal.SIGTERM)
