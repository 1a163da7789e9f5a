"""Requests over a socket, in pieces of any size; bytes of long bodies pass the parser by."""

import asyncio
import hashlib
import logging
import random
import socket
import threading
from collections.abc import Iterator

import pytest
import uvicorn
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from service.answering import answered_whole
from service.receiving import LONG, BodyProtocol


async def digests(scope, receive, send):
    """Answers with the path and the digest of the body; of /early, before it has come."""
    digest, goes_on = hashlib.sha256(), scope["path"] != "/early"
    while goes_on:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        digest.update(message["body"])
        goes_on = message["more_body"]
    told = f"{scope['path']} {digest.hexdigest()}".encode()
    length = [(b"content-length", b"%d" % len(told))]
    if scope["path"].endswith("1") and answered_whole(send, 200, length, told):
        return
    await send({"type": "http.response.start", "status": 200, "headers": length})
    await send({"type": "http.response.body", "body": told})


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(digests, http=BodyProtocol, lifespan="off", log_level="error")
    server = uvicorn.Server(config)
    run = lambda: asyncio.run(server.serve(sockets=[listening]))  # noqa: E731
    thread = threading.Thread(target=run)
    thread.start()
    yield listening.getsockname()[1]
    server.should_exit = True
    thread.join()


def request(path: str, body: bytes, is_chunked: bool = False) -> bytes:
    if not is_chunked:
        return b"POST %b HTTP/1.1\r\ncontent-length: %d\r\n\r\n%b" % (
            path.encode(),
            len(body),
            body,
        )
    head = b"POST %b HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n" % path.encode()
    return head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)


def test_pipelined_bodies_arrive_as_they_were_sent(port):
    rng = random.Random(5)
    sizes = [0, 1, LONG - 1, LONG, LONG + 1, 3 * LONG, 1_000_000, 17, 5 * LONG, 0]
    bodies = [rng.randbytes(size) for size in sizes]
    sent = [(f"/{number}", body, number % 4 == 3) for number, body in enumerate(bodies)]
    stream = b"".join(request(*one) for one in sent)
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        at = 0
        while at < len(stream):
            size = rng.choice((1, 100, 4096, 70_000, 400_000))
            connection.sendall(stream[at : at + size])
            at += size
        told = read_answers(connection, len(sent))
    assert told == [f"{path} {hashlib.sha256(body).hexdigest()}" for path, body, _ in sent]


def test_an_answer_before_the_body_has_come_leaves_the_connection_good(port):
    body = bytes(4 * LONG)
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(request("/early", body)[: -2 * LONG])
        empty = hashlib.sha256().hexdigest()
        assert read_answers(connection, 1) == [f"/early {empty}"]
        connection.sendall(body[: 2 * LONG] + request("/next", b"x"))
        assert read_answers(connection, 1) == [f"/next {hashlib.sha256(b'x').hexdigest()}"]


class Written:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.is_closed = False

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    def close(self) -> None:
        self.is_closed = True


def cycle_of(method: str, keeps_alive: bool) -> tuple[RequestResponseCycle, Written, list[bool]]:
    """A request that is served, its transport, and how often its answer was complete."""
    transport, done = Written(), []
    cycle = RequestResponseCycle(
        {"type": "http", "method": method},  # type: ignore[arg-type]
        transport,  # type: ignore[arg-type]
        FlowControl(transport),  # type: ignore[arg-type]
        logging.getLogger(),
        logging.getLogger(),
        False,
        [(b"date", b"now"), (b"server", b"uvicorn")],
        asyncio.Event(),
        False,
        keeps_alive,
        lambda: done.append(True),
    )
    return cycle, transport, done


@pytest.mark.parametrize("keeps_alive", [True, False])
def test_an_answer_in_one_write_is_what_uvicorn_writes(keeps_alive):
    headers = [(b"content-type", b"text/plain"), (b"content-length", b"4")]
    whole, at_once, done = cycle_of("POST", keeps_alive)
    assert answered_whole(whole.send, 200, headers, b"told")
    usual, written, usually_done = cycle_of("POST", keeps_alive)
    asyncio.run(sent(usual, headers))
    assert at_once.writes == [b"".join(written.writes)] and len(written.writes) == 2
    assert at_once.is_closed == written.is_closed == (not keeps_alive)
    assert whole.response_complete and whole.message_event.is_set()
    assert done == usually_done == [True]
    assert not answered_whole(whole.send, 200, headers, b"told")  # it is answered


async def sent(cycle: RequestResponseCycle, headers: list[tuple[bytes, bytes]]) -> None:
    await cycle.send({"type": "http.response.start", "status": 200, "headers": headers})
    await cycle.send({"type": "http.response.body", "body": b"told"})


def test_answers_without_a_body_or_to_who_does_not_read_are_left_to_uvicorn():
    headers = [(b"content-length", b"4")]
    heads, transport, _ = cycle_of("HEAD", True)
    assert not answered_whole(heads.send, 200, headers, b"told")
    slow, transport, _ = cycle_of("POST", True)
    slow.flow.write_paused = True
    assert not answered_whole(slow.send, 200, headers, b"told")

    async def watched(message: object) -> None:
        await slow.send(message)  # type: ignore[arg-type]

    assert not answered_whole(watched, 200, headers, b"told") and not transport.writes


def read_answers(connection: socket.socket, count: int) -> list[str]:
    text, told = b"", []
    while len(told) < count:
        head, end, rest = text.partition(b"\r\n\r\n")
        size = 0
        if end:
            assert head.startswith(b"HTTP/1.1 200"), head
            size = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        if end and len(rest) >= size:
            told.append(rest[:size].decode())
            text = rest[size:]
        else:
            more = connection.recv(65536)
            assert more, "the server has closed the connection"
            text += more
    return told
