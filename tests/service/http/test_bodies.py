"""Requests over a socket, in pieces of any size, with short and long bodies."""

import asyncio
import hashlib
import random
import socket
import threading
import time
from collections.abc import Iterator

import pytest
import uvicorn
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT

from dualstream.service.http.connection_limits import Connections, Limits
from dualstream.service.http.protocol import protocol_of
from tests.service.http.support import request


async def digests(scope, receive, send):
    """Answers with the path and the digest of the body; of /early, before it has come."""
    digest, goes_on = hashlib.sha256(), scope["path"] != "/early"
    while goes_on:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        digest.update(message["body"])
        goes_on = message["more_body"]
    got = f"{scope['path']} {digest.hexdigest()}".encode()
    length = [(b"content-length", b"%d" % len(got))]
    await send({"type": "http.response.start", "status": 200, "headers": length})
    await send({"type": "http.response.body", "body": got})


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    listening = socket.create_server(("127.0.0.1", 0))
    limits = Limits(64 * 1024, 60.0, 60.0, 60.0)
    protocol = protocol_of(Connections(100, limits, lambda reason: None, time.monotonic))
    config = uvicorn.Config(digests, http=protocol, lifespan="off", log_level="error")
    server = uvicorn.Server(config)
    run = lambda: asyncio.run(server.serve(sockets=[listening]))  # noqa: E731
    thread = threading.Thread(target=run)
    thread.start()
    yield listening.getsockname()[1]
    server.should_exit = True
    thread.join()


def test_pipelined_bodies_arrive_as_they_were_sent(port):
    rng = random.Random(5)
    sizes = [
        0,
        1,
        HIGH_WATER_LIMIT - 1,
        HIGH_WATER_LIMIT,
        HIGH_WATER_LIMIT + 1,
        3 * HIGH_WATER_LIMIT,
        1_000_000,
        17,
        5 * HIGH_WATER_LIMIT,
        0,
    ]
    bodies = [rng.randbytes(size) for size in sizes]
    sent = [(f"/{number}", body, number % 4 == 3) for number, body in enumerate(bodies)]
    stream = b"".join(request(*one) for one in sent)
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        at = 0
        while at < len(stream):
            size = rng.choice((1, 100, 4096, 70_000, 400_000))
            connection.sendall(stream[at : at + size])
            at += size
        got = read_answers(connection, len(sent))
    assert got == [f"{path} {hashlib.sha256(body).hexdigest()}" for path, body, _ in sent]


def test_an_answer_before_the_body_has_come_leaves_the_connection_good(port):
    body = bytes(4 * HIGH_WATER_LIMIT)
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(request("/early", body)[: -2 * HIGH_WATER_LIMIT])
        empty = hashlib.sha256().hexdigest()
        assert read_answers(connection, 1) == [f"/early {empty}"]
        connection.sendall(body[: 2 * HIGH_WATER_LIMIT] + request("/next", b"x"))
        assert read_answers(connection, 1) == [f"/next {hashlib.sha256(b'x').hexdigest()}"]


def read_answers(connection: socket.socket, count: int) -> list[str]:
    text, got = b"", []
    while len(got) < count:
        head, end, rest = text.partition(b"\r\n\r\n")
        size = 0
        if end:
            assert head.startswith(b"HTTP/1.1 200"), head
            size = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        if end and len(rest) >= size:
            got.append(rest[:size].decode())
            text = rest[size:]
        else:
            more = connection.recv(65536)
            assert more, "the server has closed the connection"
            text += more
    return got
