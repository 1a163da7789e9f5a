"""Open-loop load: requests are sent when due, however long answers take.

A generator that waits for an answer before it sends again leaves out the requests that a slow
answer delays (coordinated omission). Here each request has a due time, and latency counts from it,
including the time in which no connection was free. The generator's own delay, its slip, is recorded
separately: it is not latency of the server.
"""

import gc
import re
import select
import socket
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

SILENCE_S = 30.0
"""A server that answers nothing for so long is given up."""
PROBE_S = 0.02
_SIZE = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_REFUSED = b"HTTP/1.1 503"
_ACK = re.compile(rb'"model":"([^"]+)","seq":(\d+),"count":')


@dataclass
class Drive:
    """Results of a run: latencies and slips in seconds, unordered, and the seqs of learns.

    If requests may be refused, `refusals` has the latencies of refused requests, and `unsent`
    counts requests that were due while every connection was waiting. `probes` has the latencies of
    the probe.
    """

    latencies: list[float] = field(default_factory=list)
    slips: list[float] = field(default_factory=list)
    acks: list[int] = field(default_factory=list)
    refusals: list[float] = field(default_factory=list)
    unsent: int = 0
    probes: list[float] = field(default_factory=list)
    models: list[str] = field(default_factory=list)
    """Of each learn, which model answered."""

    @property
    def latencies_ms(self) -> list[float]:
        return [1000.0 * seconds for seconds in self.latencies]

    def latency_ms(self, share: float) -> float:
        return float(1000.0 * np.quantile(self.latencies, share))

    def slip_ms(self, share: float) -> float:
        return float(1000.0 * np.quantile(self.slips, share))


@dataclass(slots=True)
class _Connection:
    socket: socket.socket
    free_since: float = 0.0
    due: float = 0.0
    received: bytes = b""
    refusal_size: int = 0


def post(target: str, body: bytes, content_type: str = "application/json") -> bytes:
    """The bytes of a POST request."""
    head = f"POST {target} HTTP/1.1\r\nHost: bench\r\nContent-Type: {content_type}\r\n"
    return head.encode() + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


def get(target: str) -> bytes:
    """The bytes of a GET request."""
    return f"GET {target} HTTP/1.1\r\nHost: bench\r\n\r\n".encode()


def drive(
    url: str,
    requests: Sequence[bytes],
    rate: float,
    seconds: float,
    connections: int,
    may_refuse: bool = False,
    probe: bytes | None = None,
) -> Drive:
    """Send requests in turn, at `rate` per second.

    If the server `may_refuse`, a request that finds no free connection is not sent; else it waits.
    With `probe`, this request is sent every PROBE_S on a connection of its own.

    Raises RuntimeError for an unexpected refusal, or if no answer comes for GIVE_UP_S.
    """
    with (
        _connected(url, connections + (probe is not None)) as (connected, epoll),
        _no_collections(),
    ):
        probing = _Probing(connected, probe) if probe is not None else None
        total = int(rate * seconds)
        return _Driving(requests, rate, total, connected, epoll, may_refuse, probing).run()


class _Probing:
    """Sends one request every PROBE_S on the last connection; late ones are left out."""

    def __init__(self, connections: dict[int, _Connection], request: bytes) -> None:
        self.descriptor = next(reversed(connections))
        self._connection = connections[self.descriptor]
        self._request = request
        self._is_asked = False
        self.due = time.perf_counter() + PROBE_S

    def send_due(self, now: float) -> None:
        if now < self.due:
            return
        if not self._is_asked:
            self._connection.due = self.due
            self._connection.socket.sendall(self._request)
            self._is_asked = True
        self.due += PROBE_S * (1 + (now - self.due) // PROBE_S)

    def receive(self, done: Drive) -> None:
        if _receive(self._connection, done, False):
            done.probes.append(time.perf_counter() - self._connection.due)
            self._is_asked = False


class _Driving:
    """A run: requests that are due are sent before anything else is done."""

    def __init__(
        self,
        requests: Sequence[bytes],
        rate: float,
        total: int,
        connections: dict[int, _Connection],
        epoll: select.epoll,
        may_refuse: bool,
        probing: _Probing | None,
    ) -> None:
        self._may_refuse = may_refuse
        self._requests, self._rate, self._total = requests, rate, total
        self._held, self._epoll = connections, epoll
        self._probing = probing
        probed = None if probing is None else probing.descriptor
        self._idle = deque(made for descriptor, made in connections.items() if descriptor != probed)
        self._sent = 0
        self._drive = Drive()
        self._begins = self._due = time.perf_counter() + 0.05

    def run(self) -> Drive:
        done, heard, probing = self._drive, self._begins, self._probing
        probed = None if probing is None else probing.descriptor
        while len(done.latencies) + len(done.refusals) + done.unsent < self._total:
            now = self._send_due()
            may_send = (self._idle or self._may_refuse) and self._sent < self._total
            wakes = self._due if may_send else now + 1.0
            if probing is not None:
                probing.send_due(now)
                wakes = min(wakes, probing.due)
            select.select([self._epoll], [], [], max(0.0, wakes - now))
            for descriptor, _ in self._epoll.poll(0):
                if probing is not None and descriptor == probed:
                    probing.receive(done)
                    continue
                connection = self._held[descriptor]
                status = _receive(connection, done, self._may_refuse)
                if status:
                    heard = connection.free_since = time.perf_counter()
                    kept = done.latencies if status == 200 else done.refusals
                    kept.append(heard - connection.due)
                    self._idle.append(connection)
                # Many answers may arrive at once: a request that is due does not wait for them.
                self._send_due()
            if now - heard > SILENCE_S:
                raise RuntimeError(f"no answer for {SILENCE_S:.0f} s")
        return done

    def _send_due(self) -> float:
        """Send due requests while connections are free; returns the time afterwards."""
        now = time.perf_counter()
        while self._due <= now and self._idle and self._sent < self._total:
            connection = self._idle.popleft()
            connection.due = self._due
            connection.socket.sendall(self._requests[self._sent % len(self._requests)])
            now = time.perf_counter()
            self._drive.slips.append(now - max(connection.due, connection.free_since))
            self._advance()
        while self._may_refuse and self._due <= now and self._sent < self._total:
            self._drive.unsent += 1
            self._advance()
        return now

    def _advance(self) -> None:
        self._sent += 1
        self._due = self._begins + self._sent / self._rate


@contextmanager
def _connected(url: str, count: int) -> Iterator[tuple[dict[int, _Connection], select.epoll]]:
    host, port = url.removeprefix("http://").split(":")
    connections: dict[int, _Connection] = {}
    with select.epoll() as epoll:
        try:
            for _ in range(count):
                made = socket.create_connection((host, int(port)))
                made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connections[made.fileno()] = _Connection(made)
                epoll.register(made, select.EPOLLIN)
            yield connections, epoll
        finally:
            for connection in connections.values():
                connection.socket.close()


@contextmanager
def _no_collections() -> Iterator[None]:
    """Garbage collection off: a collection would delay a request."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _receive(connection: _Connection, run: Drive, may_refuse: bool) -> int:
    """Status of the answer, 0 while incomplete. Raises RuntimeError for a refusal."""
    received = connection.socket.recv(1 << 16)
    if not received:
        raise RuntimeError("the server closed a connection")
    if may_refuse and received[:12] == _REFUSED and len(received) == connection.refusal_size:
        return 503  # as the last one: all have the same length
    connection.received += received
    head, end, body = connection.received.partition(b"\r\n\r\n")
    if not end:
        return 0
    size = _SIZE.search(head)
    if size is None:
        raise RuntimeError(f"an answer has no content-length: {head!r}")
    if len(body) < int(size[1]):
        return 0
    if may_refuse and head.startswith(_REFUSED):
        connection.refusal_size = len(connection.received)
        connection.received = b""
        return 503
    if not head.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(f"refused: {body.decode()}")
    seq = _ACK.search(body)
    if seq is not None:
        run.models.append(seq[1].decode())
        run.acks.append(int(seq[2]))
    connection.received = b""
    return 200
