"""Several server processes on one port.

The port is bound once, by the process that watches over the others, and each of them takes
connections from that one socket: so that a port in use is refused, and a worker that dies takes no
waiting connection along. A worker that ends by itself is started again.
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
from multiprocessing import connection, forkserver, get_context, parent_process
from multiprocessing.connection import Connection
from typing import Any

from dualstream.service.metrics.multiprocess import Sharing, forget_worker
from dualstream.service.server.app import create_app
from dualstream.service.server.serve import (
    check_certificate,
    listening_line,
    make_server,
    ready_line,
)
from dualstream.service.settings import Settings

log = logging.getLogger("dualstream.workers")

BACKLOG = 2048
LOOK_S = 0.1
# A worker that ends sooner than this after its start is not started again at once.
SHORT_LIFE_S = 2.0
# Snapshots are written, and an append of unknown outcome ends, within this after the last request.
MAX_HANG_S = 30.0


def serve_by_workers(settings: Settings, say: Callable[[str], None]) -> None:
    """Serve with `settings.workers` processes until interrupted.

    Raises UnsafeBinding, ValueError for settings that no worker could serve with, OSError.
    """
    if settings.adopt:
        raise ValueError("one worker adopts a store: start it without --workers")
    check_certificate(settings)
    create_app(settings)
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    with (
        tempfile.TemporaryDirectory(prefix="dualstream-workers-") as shared,
        socket.create_server((settings.host, settings.port), family=family, backlog=BACKLOG) as at,
    ):
        say(listening_line(settings, *at.getsockname()[:2]))
        pool = _WorkerPool(settings, at, shared)
        asked: list[int] = []
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, _: asked.append(number))
        try:
            is_announced = False
            while not asked:
                pool.look()
                if not is_announced and pool.durability is not None:
                    is_announced = True
                    say(ready_line(settings, pool.durability, settings.workers))
        finally:
            pool.stop()
    # As a single server does: ends by the signal that it was sent.
    signal.signal(asked[0], signal.SIG_DFL)
    os.kill(os.getpid(), asked[0])


class _WorkerPool:
    """The workers, by their number.

    shared   the directory by which they tell the same metrics
    """

    def __init__(self, settings: Settings, at: socket.socket, shared: str) -> None:
        self._settings, self._socket, self._shared = settings, at, shared
        self._workers = [self._started(number) for number in range(settings.workers)]

    @property
    def durability(self) -> str | None:
        """What the store keeps, once every worker is ready."""
        durabilities = [worker.durability for worker in self._workers]
        return durabilities[0] if all(durabilities) else None

    def look(self) -> None:
        """Hear the workers for a moment, and start those again that have ended."""
        ends = [worker.process.sentinel for worker in self._workers]
        pipes = [worker.pipe for worker in self._workers if worker.durability is None]
        connection.wait([*ends, *pipes], timeout=LOOK_S)
        for number, worker in enumerate(self._workers):
            worker.read_ready()
            if worker.process.exitcode is not None:
                log.warning("a worker ended with %s; starting another", worker.process.exitcode)
                if time.monotonic() - worker.started_at < SHORT_LIFE_S:
                    time.sleep(LOOK_S)
                forget_worker(self._shared, number)
                # Whoever forks them may have been killed, too, and is another one at the next look.
                with suppress(EOFError, OSError):
                    self._workers[number] = self._started(number)
                    worker.pipe.close()

    def stop(self) -> None:
        """Let every worker finish what is under way, and wait for it, if not for ever."""
        for worker in self._workers:
            with suppress(ProcessLookupError):
                worker.process.terminate()
        by = time.monotonic() + self._settings.stop_timeout_s + MAX_HANG_S
        for worker in self._workers:
            worker.process.join(max(0.0, by - time.monotonic()))
            if worker.process.exitcode is None:
                log.error("a worker has not ended in time; killing it")
                worker.process.kill()
                worker.process.join()

    def _started(self, number: int) -> "_Worker":
        receiving, sending = forks.Pipe(duplex=False)
        sharing = Sharing(self._shared, number)
        process = forks.Process(target=_work, args=(self._settings, self._socket, sending, sharing))
        process.start()
        sending.close()
        return _Worker(process, receiving)


class _Worker:
    """A process, and the pipe on which it sending that it is ready."""

    def __init__(self, process: Any, pipe: Connection) -> None:
        self.process, self.pipe = process, pipe
        self.started_at = time.monotonic()
        self.durability: str | None = None

    def read_ready(self) -> None:
        with suppress(EOFError, OSError):
            if self.durability is None and self.pipe.poll():
                self.durability = self.pipe.recv()


def _work(settings: Settings, at: socket.socket, sending: Connection, sharing: Sharing) -> None:
    """A worker's whole life."""
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    threading.Thread(
        target=_end_with_parent, args=(sharing.directory,), name="parent-watcher", daemon=True
    ).start()
    server = make_server(settings, sharing)
    server.on_ready = sending.send
    with suppress(KeyboardInterrupt):
        server.run(sockets=[at])


def _end_with_parent(shared: str) -> None:
    """Nobody would stop, or start again, a worker whose parent was killed, nor clean up."""
    parent = parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    shutil.rmtree(shared, ignore_errors=True)
    os.kill(os.getpid(), signal.SIGTERM)


forks = get_context("forkserver")
forks.set_forkserver_preload(["dualstream.service.server.workers"])


def begin() -> None:
    """Let that process begin to import, while this one does the same."""
    forkserver.ensure_running()
