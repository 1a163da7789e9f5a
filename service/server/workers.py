"""Worker processes: several servers that accept connections from one listening socket.

The parent imports everything, binds the port and forks the workers, so there is no other process
that a worker depends on. The parent starts no threads, which would not survive a fork. It replaces
a worker that ends; a worker ends when its parent is gone.
"""

import gc
import logging
import os
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import connection, get_context
from multiprocessing.connection import Connection
from typing import Any

from dualstream.service.metrics.multiprocess import MetricsDirectory, forget_worker, make_shared
from dualstream.service.server import compile_kernels as kernels, serve
from dualstream.service.server.app import create_app
from dualstream.service.server.start_checks import listen
from dualstream.service.server.stop_signals import STOP_SIGNALS, handle_stop_signals
from dualstream.service.settings import Settings

log = logging.getLogger("dualstream.workers")

LOOK_S = 0.1
SHORT_LIFE_S = 10.0
"""A worker that ends sooner than this after its start has had a short life."""
FIRST_PAUSE_S, MAX_PAUSE_S = 0.1, 5.0
"""Pause before a start after a short life. It doubles with each further short life."""
MAX_SHORT_LIVES = 10
"""Short lives in a row after which the service ends, if no worker lives longer."""
# Snapshots are written, and retries of an append end, within this time after the last request.
MAX_HANG_S = 30.0

_forks = get_context("fork")


class WorkersKeepEnding(RuntimeError):
    """Every worker ends soon after its start."""


def serve_by_workers(settings: Settings, say: Callable[[str], None]) -> None:
    """Serve with `settings.workers` processes until interrupted.

    settings  as `check_settings` accepts them

    Raises UnsafeBinding, ValueError for settings that no worker can serve, OSError,
    WorkersKeepEnding.
    """
    create_app(settings)
    with listen(settings) as listening:
        say(serve.listening_line(settings, *listening.getsockname()[:2]))
        requested: list[int] = []
        handle_stop_signals(lambda number, _: requested.append(number))
        # Objects that exist now stay in memory that the workers share.
        gc.collect()
        gc.freeze()
        pool = _WorkerPool(settings, listening)
        compiling = kernels.Background()
        try:
            is_announced = False
            while not requested:
                pool.look()
                if not is_announced and pool.durability is not None:
                    is_announced = True
                    say(serve.ready_line(settings, pool.durability, settings.workers))
                    serve.log_start(settings, pool.durability)
                    compiling.begin()
                compiling.is_running()
        finally:
            compiling.end()
            if not requested:
                requested.append(signal.SIGTERM)
            pool.stop(requested)


class ShortLives:
    """Counts short lives in a row, and says how long to wait before the next start."""

    def __init__(self) -> None:
        self.count = 0

    def pause_after(self, life_s: float) -> float:
        """Seconds to wait before the next start, after a worker that lived for `life_s`."""
        if life_s >= SHORT_LIFE_S:
            self.count = 0
            return 0.0
        self.count += 1
        return float(min(MAX_PAUSE_S, FIRST_PAUSE_S * 2 ** min(self.count - 1, 10)))


@dataclass(slots=True)
class _Slot:
    """A worker number: its process, if one runs, and when to start the next."""

    number: int
    worker: "_Worker | None" = None
    start_at: float = 0.0


class _WorkerPool:
    """The workers, by number."""

    def __init__(self, settings: Settings, listening: socket.socket) -> None:
        self._settings, self._listening = settings, listening
        self._shared = make_shared()
        # Only this process has the writing end. It closes when this process ends in any way.
        self._alive, self._alive_writer = os.pipe()
        self._short_lives = ShortLives()
        self._slots = [_Slot(number) for number in range(settings.workers)]

    @property
    def durability(self) -> str | None:
        """Durability of the store, once every worker is ready."""
        durabilities = [slot.worker.durability if slot.worker else None for slot in self._slots]
        return durabilities[0] if all(durabilities) else None

    def look(self) -> None:
        """Wait a moment for messages of workers, and replace those that have ended.

        Raises WorkersKeepEnding.
        """
        for slot in self._slots:
            if slot.worker is None and slot.start_at <= time.monotonic():
                self._start(slot)
        workers = [slot.worker for slot in self._slots if slot.worker is not None]
        ends = [worker.process.sentinel for worker in workers]
        pipes = [worker.pipe for worker in workers if not worker.pipe.closed]
        connection.wait([*ends, *pipes], timeout=LOOK_S)
        for slot in self._slots:
            if slot.worker is None:
                continue
            slot.worker.read_ready()
            if slot.worker.process.exitcode is not None:
                ended, slot.worker = slot.worker, None
                ended.close_pipe()
                forget_worker(self._shared, slot.number)
                why = f"a worker ended with exit code {ended.process.exitcode}"
                self._retry_later(slot, why, time.monotonic() - ended.started_at)

    def _start(self, slot: _Slot) -> None:
        receiving, sending = _forks.Pipe(duplex=False)
        metrics_dir = MetricsDirectory(self._shared, slot.number)
        # One worker answers probes in any case, also while the store is away.
        waits = any(one.worker is not None and one.worker.listens for one in self._slots)
        process = _forks.Process(
            target=self._run_worker,
            args=(sending, metrics_dir, waits),
            name=f"worker-{slot.number}",
        )
        # A signal that arrives before the worker has its own handlers ends it.
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            process.start()
        except OSError as error:  # too many processes, or no memory
            receiving.close()
            self._retry_later(slot, f"a worker cannot be started: {error}", 0.0)
        else:
            slot.worker = _Worker(process, receiving, listens=not waits)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
            sending.close()

    def _retry_later(self, slot: _Slot, why: str, life_s: float) -> None:
        """Log why the slot is empty and set the time of its next start."""
        pause_s = self._short_lives.pause_after(life_s)
        slot.start_at = time.monotonic() + pause_s
        log.warning("%s; starting another in %.1f s", why, pause_s)
        if self._short_lives.count >= MAX_SHORT_LIVES and not self._has_long_life():
            raise WorkersKeepEnding(
                f"{self._short_lives.count} workers in a row ended within {SHORT_LIFE_S:.0f} s of "
                f"their start; stopping. Last: {why}; its error is in the log above"
            )

    def _has_long_life(self) -> bool:
        """Has a worker that still runs lived for longer than a short life?"""
        since = time.monotonic() - SHORT_LIFE_S
        return any(slot.worker and slot.worker.started_at < since for slot in self._slots)

    def stop(self, requested: list[int]) -> None:
        """Send the signals to every worker, also those that arrive now. Kill it after a timeout."""
        by, sent = time.monotonic() + _max_stop_s(self._settings), 0
        while (running := self._running()) and time.monotonic() < by:
            for number in requested[sent:]:
                sent += 1
                for process in running:
                    os.kill(process.pid, number)
            connection.wait([process.sentinel for process in running], timeout=LOOK_S)
        for process in running:
            log.error("a worker did not end within its timeout; killing it")
            process.kill()
            process.join()
        shutil.rmtree(self._shared, ignore_errors=True)

    def _running(self) -> list[Any]:
        """Processes that have not ended."""
        workers = [slot.worker for slot in self._slots if slot.worker is not None]
        return [worker.process for worker in workers if worker.process.is_alive()]

    def _run_worker(
        self, sending: Connection, metrics_dir: MetricsDirectory, listens_when_ready: bool
    ) -> None:
        """The main function of a worker."""
        os.close(self._alive_writer)
        # The parent alone gets signals of the terminal, and sends each of them once.
        os.setsid()
        for number in STOP_SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        max_stop_s = _max_stop_s(self._settings)
        threading.Thread(
            target=_end_with_parent,
            args=(self._alive, metrics_dir, max_stop_s),
            name="parent-watcher",
            daemon=True,
        ).start()
        server = serve.make_server(self._settings, metrics_dir, listens_when_ready)
        server.on_ready = sending.send
        with suppress(KeyboardInterrupt):
            server.run(sockets=[self._listening])


def _max_stop_s(settings: Settings) -> float:
    """Time in seconds that a worker may take to stop."""
    return settings.drain_s + settings.stop_timeout_s + MAX_HANG_S


class _Worker:
    """A worker process and the pipe on which it reports that it is ready."""

    def __init__(self, process: Any, pipe: Connection, listens: bool) -> None:
        self.process, self.pipe = process, pipe
        self.listens = listens
        """Does it accept connections? Each does once it is ready."""
        self.started_at = time.monotonic()
        self.durability: str | None = None

    def read_ready(self) -> None:
        """Read the message, if it is there. Nothing else comes after it."""
        with suppress(EOFError, OSError):
            if self.pipe.closed or not self.pipe.poll():
                return
            self.durability = self.pipe.recv()
            self.listens = True
        self.close_pipe()

    def close_pipe(self) -> None:
        self.pipe.close()


def _end_with_parent(alive: int, metrics_dir: MetricsDirectory, max_stop_s: float) -> None:
    """End this worker when its parent has ended, and remove the shared directory."""
    os.read(alive, 1)  # returns when the last writing end is closed
    metrics_dir.remove()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(max_stop_s)
    os.kill(os.getpid(), signal.SIGKILL)
