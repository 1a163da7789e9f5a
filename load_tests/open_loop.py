"""Requests that are sent when they are due, whatever the answers take.

A generator that waits for an answer before it sends again leaves out the requests that a slow
answer would have met (coordinated omission). Here each has its time: latency counts from it,
time in which no connection was free included. How late the generator itself was, its slip, is
recorded, too: it is no latency of the server.
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
_SIZE = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_ACK = re.compile(rb'"seq":(\d+),"count":')


@dataclass
class Drive:
    """What a run came to: latencies and slips in seconds, in no order, and the seqs of learns."""

    latencies: list[float] = field(default_factory=list)
    slips: list[float] = field(default_factory=list)
    acks: list[int] = field(default_factory=list)

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


def post(target: str, body: bytes, content_type: str = "application/json") -> bytes:
    """The bytes of a request."""
    head = f"POST {target} HTTP/1.1\r\nHost: bench\r\nContent-Type: {content_type}\r\n"
    return head.encode() + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


def drive(
    url: str,
    requests: Sequence[bytes],
    rate: float,
    seconds: float,
    connections: int,
    spins: bool = False,
) -> Drive:
    """Send requests in turn, so many a second.

    spins   look for answers and dues all the time: it has a core for itself

    Raises RuntimeError where one is refused, or nothing is answered for long.
    """
    run, total = Drive(), int(rate * seconds)
    with _connected(url, connections) as (held, epoll), _no_collections():
        idle = deque(held.values())
        begins = heard = time.perf_counter() + 0.05
        sent = 0
        while len(run.latencies) < total:
            now = time.perf_counter()
            due = begins + sent / rate
            while sent < total and idle and due <= now:
                connection = idle.popleft()
                connection.due = due
                connection.socket.sendall(requests[sent % len(requests)])
                now = time.perf_counter()
                run.slips.append(now - max(due, connection.free_since))
                sent += 1
                due = begins + sent / rate
            if not spins:
                may_send = idle and sent < total
                select.select([epoll], [], [], max(0.0, due - now) if may_send else 1.0)
            for descriptor, _ in epoll.poll(0):
                connection = held[descriptor]
                if _receive(connection, run):
                    heard = connection.free_since = time.perf_counter()
                    run.latencies.append(heard - connection.due)
                    idle.append(connection)
            if now - heard > SILENCE_S:
                raise RuntimeError(f"no answer for {SILENCE_S:.0f} s")
    return run


@contextmanager
def _connected(url: str, count: int) -> Iterator[tuple[dict[int, _Connection], select.epoll]]:
    host, port = url.removeprefix("http://").split(":")
    held: dict[int, _Connection] = {}
    with select.epoll() as epoll:
        try:
            for _ in range(count):
                made = socket.create_connection((host, int(port)))
                made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                held[made.fileno()] = _Connection(made)
                epoll.register(made, select.EPOLLIN)
            yield held, epoll
        finally:
            for connection in held.values():
                connection.socket.close()


@contextmanager
def _no_collections() -> Iterator[None]:
    """A collection would be a slip."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _receive(connection: _Connection, run: Drive) -> bool:
    """Whether the answer is whole now. Raises RuntimeError where it refuses."""
    received = connection.socket.recv(1 << 16)
    if not received:
        raise RuntimeError("the server closed a connection")
    connection.received += received
    head, end, body = connection.received.partition(b"\r\n\r\n")
    if not end:
        return False
    size = _SIZE.search(head)
    if size is None:
        raise RuntimeError(f"an answer does not tell its length: {head!r}")
    if len(body) < int(size[1]):
        return False
    if not head.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(f"refused: {body.decode()}")
    seq = _ACK.search(body)
    if seq is not None:
        run.acks.append(int(seq[1]))
    connection.received = b""
    return True
