"""A connection: pipelined requests, limits of heads, bodies behind upgrades, backpressure."""

import asyncio
import gc
import socket
import weakref
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvicorn
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.server import ServerState

from dualstream.service.api import health
from dualstream.service.http.body_memory import BodyMemory
from dualstream.service.http.connection_limits import EVENT_STREAM, Connections, Limits, State
from dualstream.service.http.protocol import MAX_HEADERS, protocol_of
from dualstream.service.http.send import PIECE_BYTES as PIECE, send_json as answer_json
from dualstream.service.server.serve import UNSENT_BYTES, keep_few_unsent
from dualstream.wire.problem_json import Problem

GET = b"GET /x HTTP/1.1\r\nhost: a\r\n\r\n"
HEAD_BYTES = 64 * 1024


class Line:
    """A transport: what was written to it, and whether it reads."""

    def __init__(self) -> None:
        self.written, self.is_reading, self.is_closed, self.unread = b"", True, False, 0
        self.writes: list[bytes] = []

    def get_extra_info(self, name: str) -> Any:
        return ("127.0.0.1", 1) if name in ("sockname", "peername") else None

    def write(self, data: bytes) -> None:
        self.written += data
        self.writes.append(data)

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    def get_write_buffer_size(self) -> int:
        return self.unread

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    abort = close

    @property
    def answers(self) -> int:
        return self.written.count(b"HTTP/1.1 200")


class World:
    """A server without sockets, which counts what its connections do."""

    def __init__(self, app: Any) -> None:
        self.served: list[str] = []
        self.done: Counter[str] = Counter()

        async def counted(scope: Any, receive: Any, send: Any) -> None:
            self.served.append(scope["path"])
            await app(scope, receive, send)

        self.config = uvicorn.Config(counted, lifespan="off", ws="none", log_level="critical")
        limits = Limits(HEAD_BYTES, 10.0, 10.0, 10.0)
        self.open = Connections(1000, limits, lambda reason: self.done.update([reason]), lambda: 0)
        self.protocol = protocol_of(self.open)

    def connect(self) -> tuple[Any, Line]:
        one, line = self.protocol(self.config, ServerState(), {}), Line()
        one.connection_made(line)
        return one, line


async def answer(scope: Any, receive: Any, send: Any) -> None:
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"1")]}
    )
    await send({"type": "http.response.body", "body": b"1"})


async def parsed(one: Any) -> None:
    """Until all that was read is parsed."""
    while one.flow.unparsed:
        await asyncio.sleep(0)


def run(got: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(got(), 60))


def test_head_and_body_leave_in_one_write():
    async def got() -> None:
        one, line = World(answer).connect()
        one.data_received(GET * 3)
        while line.answers < 3:
            await asyncio.sleep(0)
        assert [write[:15] + write[-5:] for write in line.writes] == [
            b"HTTP/1.1 200 OK\r\n\r\n1"
        ] * 3

    run(got)


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /x HTTP/1.1\r\n\r\n", b"400"),
        (b"GET /x HTTP/1.1\r\nhost: a\r\nHost: a\r\n\r\n", b"400"),
        (b"GET /x HTTP/1.0\r\n\r\n", b"200"),
        (b"GET /x HTTP/1.1\r\nHost:\r\n\r\n", b"200"),
        *(
            (b"POST /x HTTP/1.1\r\nhost: a\r\n" + codings + b"\r\n\r\n1\r\n1\r\n0\r\n\r\n", status)
            for codings, status in (
                (b"transfer-encoding: chunked", b"200"),
                (b"Transfer-Encoding:  Chunked ", b"200"),
                (b"transfer-encoding: gzip, chunked", b"501"),
                (b"transfer-encoding: gzip\r\ntransfer-encoding: chunked", b"501"),
            )
        ),
    ],
)
def test_hosts_and_transfer_codings_that_rfc_9112_refuses(head, status):
    async def got() -> None:
        world = World(answer)
        one, line = world.connect()
        one.data_received(head)
        while not line.written:
            await asyncio.sleep(0)
        assert line.written.split()[1] == status
        assert line.is_closed == (status != b"200" or b"HTTP/1.0" in head)
        assert world.served == ["/x"] * (status == b"200")

    run(got)


@pytest.mark.parametrize("method", [b"GET", b"HEAD"])
def test_a_head_does_not_wait_for_a_late_body(method):
    async def got() -> None:
        may_go_on = asyncio.Event()

        async def late(scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await may_go_on.wait()
            await send({"type": "http.response.body", "body": b"1"})

        one, line = World(late).connect()
        one.data_received(method + b" /x HTTP/1.1\r\nhost: a\r\n\r\n")
        while not line.written.endswith(b"\r\n\r\n"):
            await asyncio.sleep(0)
        may_go_on.set()
        while one.state() is not State.IDLE:
            await asyncio.sleep(0)
        assert line.written.endswith(b"1\r\n1\r\n0\r\n\r\n" if method == b"GET" else b"\r\n\r\n")

    run(got)


def test_an_error_follows_a_head_without_a_body():
    """The head of the earlier answer still waited for a body when the error was due."""

    async def got() -> None:
        async def headed(scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 204, "headers": []})
            await send({"type": "http.response.body", "body": b""})

        one, line = World(headed).connect()
        one.data_received(GET + b"nonsense\r\n\r\n")
        while not line.is_closed:
            await asyncio.sleep(0)
        first, second = line.written.index(b" 204 "), line.written.index(b" 400 ")
        assert first < second

    run(got)


def test_pipelined_requests_are_answered_in_order_one_at_a_time():
    async def got() -> None:
        under_way, most = 0, 0

        async def slow(scope: Any, receive: Any, send: Any) -> None:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            await asyncio.sleep(0)
            await answer(scope, receive, send)
            under_way -= 1

        world = World(slow)
        one, line = world.connect()
        paths = [f"/{number}" for number in range(1000)]
        one.data_received(
            b"".join(b"GET %b HTTP/1.1\r\nhost: a\r\n\r\n" % path.encode() for path in paths)
        )
        while line.answers < 999:
            assert not line.is_reading, "nothing more is read while requests wait"
            assert one.state() is State.ANSWER
            await asyncio.sleep(0)
        while line.answers < 1000:
            await asyncio.sleep(0)
        assert world.served == paths and most == 1 and line.is_reading and not line.is_closed
        one.data_received(GET)
        while line.answers == 1000:
            await asyncio.sleep(0)

    run(got)


def test_of_many_pipelined_requests_few_are_in_memory():
    async def got() -> None:
        goes_on = asyncio.Event()

        async def slow(scope: Any, receive: Any, send: Any) -> None:
            await goes_on.wait()
            await answer(scope, receive, send)

        world = World(slow)
        one, line = world.connect()
        one.data_received(GET * 10_000)
        for _ in range(100):
            await asyncio.sleep(0)
        assert 0 < len(one.pipeline) < 500 and not line.is_reading
        goes_on.set()
        while line.answers < 10_000:
            assert len(one.pipeline) < 500
            await asyncio.sleep(0)
        assert len(world.served) == 10_000 and line.is_reading
        # Behind a request in many pieces comes the next one, and a part of a third.
        post = b"POST /x HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"
        one.data_received(post + b"1\r\nx\r\n" * 10_000 + b"0\r\n\r\n" + GET + GET[:9])
        while line.answers < 10_002:
            await asyncio.sleep(0)
        one.data_received(GET[9:])
        while line.answers < 10_003:
            await asyncio.sleep(0)
        assert line.is_reading and one.state() is State.IDLE

    run(got)


def test_stream_with_pipelined_requests_stops_reading_and_closes():
    async def got() -> None:
        ended = []

        async def stream(scope: Any, receive: Any, send: Any) -> None:
            while (message := await receive())["type"] == "http.request":
                pass
            ended.append(message["type"])

        one, line = World(stream).connect()
        one.data_received(GET * 3)
        for _ in range(5):
            await asyncio.sleep(0)
        assert not line.is_reading and not ended
        line.close()
        one.connection_lost(None)
        for _ in range(5):
            await asyncio.sleep(0)
        assert ended == ["http.disconnect"], "and none of the others began"

    run(got)


def test_connection_that_does_not_read_is_not_read_from():
    async def got() -> None:
        world = World(answer)
        one, line = world.connect()
        one.data_received(GET * 500)
        for _ in range(6):
            await asyncio.sleep(0)
        one.pause_writing()
        so_far = len(world.served)
        for _ in range(100):
            await asyncio.sleep(0)
        assert len(world.served) <= so_far + 1 and not line.is_reading
        one.resume_writing()
        while line.answers < 500:
            await asyncio.sleep(0)

    run(got)


@pytest.mark.parametrize("end", [b"", b"\r\n"])
def test_a_head_of_many_lines_is_refused(end):
    async def got() -> None:
        world = World(answer)
        for begin in (
            b"GET /x HTTP/1.1\r\nhost: a\r\n",
            b"POST /x HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n",
        ):
            one, line = world.connect()
            if begin.startswith(b"POST"):  # as trailers
                begin += b"\r\n1\r\nx\r\n0\r\n"
            one.data_received(begin + b"a:b\r\n" * 40_000 + end)
            while not line.is_closed:
                await asyncio.sleep(0)
            assert b" 431 " in line.written
        assert f"more than {MAX_HEADERS} headers".encode() in line.written
        assert world.done["large-head"] == 2

    run(got)


@pytest.mark.parametrize("begin", ["head", "trailers", "chunk"])
def test_a_line_without_an_end_is_refused(begin):
    async def got() -> None:
        chunked = b"POST /x HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"
        sent = {
            "head": b"GET /x HTTP/1.1\r\nhost: a\r\nx: ",
            "trailers": chunked + b"1\r\nx\r\n0\r\nx: ",
            "chunk": chunked + b"1;x=",
        }[begin]
        one, line = World(answer).connect()
        one.data_received(sent)
        for number in range(HEAD_BYTES // 1000 + 2):
            assert not line.is_closed, number
            one.data_received(b"a" * 1000)
            if line.is_closed:
                break
        assert number == HEAD_BYTES // 1000 and b" 431 " in line.written

    run(got)


def test_a_body_in_chunks_is_not_read_ahead_of_the_application():
    async def got() -> None:
        goes_on, size = asyncio.Event(), 0

        async def slow(scope: Any, receive: Any, send: Any) -> None:
            nonlocal size
            await goes_on.wait()
            more = True
            while more:
                message = await receive()
                size += len(message["body"])
                more = message["more_body"]
            await answer(scope, receive, send)

        one, line = World(slow).connect()
        one.data_received(b"POST /x HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n")
        sent = 0
        while line.is_reading:
            one.data_received(b"1\r\nx\r\n" * 20_000)
            sent += 20_000
            await parsed(one)
        assert sent <= 20_000
        one.data_received(b"0\r\n\r\n")
        goes_on.set()
        while not line.answers:
            await asyncio.sleep(0)
        assert size == sent

    run(got)


def test_an_answered_request_keeps_nothing_of_its_body():
    async def got() -> None:
        one, line = World(answer).connect()
        for size in (50_000, 8 * HIGH_WATER_LIMIT):
            head = b"POST /x HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % size
            answers = line.answers
            one.data_received(head + bytes(40_000))
            while line.answers == answers:
                await asyncio.sleep(0)
            assert not one.cycle.body
            one.data_received(bytes(size - 40_000))
            assert not one.cycle.body and line.is_reading and one.state() is State.IDLE

    run(got)


def test_an_error_follows_the_answers_to_earlier_requests():
    async def got() -> None:
        may_answer, wrong = asyncio.Event(), Problem(408, "too-slow", "too slow")

        async def slow(scope: Any, receive: Any, send: Any) -> None:
            await may_answer.wait()
            await answer(scope, receive, send)

        post = b"POST /y HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n\r\n"
        world = World(slow)
        lines = []
        for sent in (GET, GET * 2, GET + post):  # the last of these has not begun
            one, line = world.connect()
            one.data_received(sent)
            await asyncio.sleep(0)
            one.terminate(wrong)
            one.data_received(GET)
            assert not line.written and not line.is_closed
            lines.append(line)
        may_answer.set()
        while not all(line.is_closed for line in lines):
            await asyncio.sleep(0)
        assert [line.answers for line in lines] == [1, 2, 1]
        assert all(line.written.count(b"HTTP/1.1 408") == 1 for line in lines)
        assert all(line.written.endswith(b"}\n") for line in lines)
        one, line = world.connect()
        one.data_received(post)
        one.terminate(wrong)
        assert line.is_closed and line.written.startswith(b"HTTP/1.1 408")

    run(got)


def test_a_connection_that_is_gone_is_free_at_once():
    async def got() -> None:
        world, gone = World(answer), []
        for sent in (
            GET,
            GET * 3,
            b"POST /y HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\n1",
            b"\0\r\n\r\n",
        ):
            one = world.protocol(world.config, ServerState(), {})
            one.connection_made(Line())
            one.data_received(sent)
            for _ in range(10):
                await asyncio.sleep(0)
            one.connection_lost(None)
            await asyncio.sleep(0)
            gone.append(weakref.ref(one))
        del one
        assert [result() for result in gone] == [None] * 4, "without a collector of rings"

    gc.collect()
    gc.disable()
    try:
        run(got)
    finally:
        gc.enable()


def test_connection_of_a_stream_can_be_evicted():
    async def got() -> None:
        async def stream(scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            scope[EVENT_STREAM] = True
            while (await receive())["type"] != "http.disconnect":
                pass

        world = World(stream)
        for sent in (GET, 100 * GET):  # whatever else it asks for
            one, line = world.connect()
            one.data_received(sent)
            assert one.state() is State.ANSWER
            while not line.answers:
                await asyncio.sleep(0)
            assert one.state() is State.EVENTS
            one.close_slow()
            assert line.is_closed
            one.connection_lost(None)
        assert world.done["room"] == 2

    run(got)


def test_long_answer_waits_for_its_reader():
    async def got() -> None:
        body = bytes(10 * PIECE + 1)

        async def app(scope: Any, receive: Any, send: Any) -> None:
            BodyMemory(2**30, lambda: 0.0).track(scope)
            await answer_json(send, body, [], scope)

        world = World(app)
        one, line = world.connect()
        one.data_received(GET)
        for pieces in range(1, 11):
            while line.written.count(0) < pieces * PIECE:
                await asyncio.sleep(0)
            one.pause_writing()
            for _ in range(10):
                await asyncio.sleep(0)
            assert line.written.count(0) == pieces * PIECE
            one.resume_writing()
        while line.written.count(0) < len(body):
            await asyncio.sleep(0)
        assert one._is_free


def test_long_body_is_read_ahead_up_to_a_limit():
    async def got() -> None:
        goes_on, sizes = asyncio.Event(), []

        async def read(scope: Any, receive: Any, send: Any) -> None:
            await goes_on.wait()
            message = {"more_body": True}
            while message["more_body"]:
                message = await receive()
                sizes.append(len(message["body"]))
            await answer(scope, receive, send)

        one, line = World(read).connect()
        piece, left = b"x" * HIGH_WATER_LIMIT, 8
        head = b"POST /x HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n"
        one.data_received(head % (left * len(piece)))
        while line.is_reading:
            one.data_received(piece)
            left -= 1
        assert left == 7
        goes_on.set()
        while not line.answers:
            await asyncio.sleep(0)
            if left and line.is_reading:
                one.data_received(piece)
                left -= 1
        assert sum(sizes) == 8 * len(piece) and max(sizes) == len(piece)

    run(got)


@pytest.mark.skipif(
    not hasattr(socket, "TCP_NOTSENT_LOWAT"), reason="the system has no such option"
)
def test_the_kernel_takes_little_of_what_is_not_read():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        keep_few_unsent([listening])
        with socket.create_connection(listening.getsockname()):
            got, _ = listening.accept()
            got.setblocking(False)
            taken = 0
            with got, pytest.raises(BlockingIOError):
                while taken < 16 * UNSENT_BYTES:
                    taken += got.send(bytes(4096))


def test_body_of_a_pipelined_request_is_read():
    async def got() -> None:
        goes_on = asyncio.Event()

        async def read(scope: Any, receive: Any, send: Any) -> None:
            if scope["path"] == "/x":
                await goes_on.wait()
            body, more = b"", True
            while more:
                message = await receive()
                body, more = body + message["body"], message["more_body"]
            assert body == b"12345" * (scope["path"] == "/y")
            await answer(scope, receive, send)

        world = World(read)
        one, line = world.connect()
        one.data_received(GET + b"POST /y HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\n")
        await asyncio.sleep(0)
        one.data_received(b"12345" + GET)  # while the first one is being answered
        goes_on.set()
        while line.answers < 3:
            await asyncio.sleep(0)
        assert world.served == ["/x", "/y", "/x"] and line.is_reading

    run(got)


def test_a_head_is_not_too_large_for_what_came_before_it():
    """A connection that has asked a hundred times, each time for little, and then brings a body."""
    world = World(reads(bodies := []))
    head = b"POST /y HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\n\r\n"

    async def got() -> None:
        one, line = world.connect()
        for number in range(1, 2 + 2 * HEAD_BYTES // len(GET)):
            one.data_received(GET)
            while line.answers < number:
                await asyncio.sleep(0)
        one.data_received(head)
        one.data_received(b"abc")
        while line.answers < number + 1:
            assert not line.is_closed, line.written[-300:]
            await asyncio.sleep(0)
        assert bodies == [b"abc"]

    run(got)


def test_what_follows_an_upgrade_that_is_not_spoken_is_the_next_request():
    async def got() -> None:
        world = World(answer)
        one, line = world.connect()
        upgrade = (
            b"GET /%d HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"
        )
        one.data_received(b"".join(upgrade % number for number in range(40)) + GET)
        while line.answers < 41:
            await asyncio.sleep(0)
        assert world.served == [*(f"/{number}" for number in range(40)), "/x"]

    run(got)


UPGRADE = b"POST /y HTTP/1.1\r\nhost: a\r\nconnection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\n"


def reads(bodies: list[bytes]) -> Any:
    """An application that keeps the bodies that come to /y, and answers."""

    async def read(scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", scope["path"] == "/y"
        while more:
            message = await receive()
            body, more = body + message["body"], message["more_body"]
        if scope["path"] == "/y":
            bodies.append(body)
        await answer(scope, receive, send)

    return read


def of_length(body: bytes) -> bytes:
    return b"content-length: %d\r\n\r\n%b" % (len(body), body)


def in_chunks(body: bytes) -> bytes:
    """A chunked body of two chunks, the second with an extension, and a trailer."""
    chunks = b"".join(b"%x;a=b\r\n%b\r\n" % (len(one), one) for one in (body[:7], body[7:]) if one)
    return b"transfer-encoding: chunked\r\n\r\n%b0\r\nt: 1\r\n\r\n" % chunks


@pytest.mark.parametrize("framed", [of_length, in_chunks])
@pytest.mark.parametrize("body", [b"", GET, GET * 6000 + b"GET"], ids=["none", "small", "long"])
def test_body_of_an_upgrade_is_no_request_however_it_is_split(body: bytes, framed: Any):
    sent = UPGRADE + framed(body) + GET
    few = (1, 90, 200, 2000, 70_000, len(sent) - 20)
    cut = [[sent[:at], sent[at:]] for at in (range(1, len(sent)) if len(sent) < 1000 else few)]
    byte_by_byte = [sent[at : at + 1] for at in range(len(sent))] if len(sent) < 1000 else [sent]

    async def got() -> None:
        for pieces in ([sent], byte_by_byte, *cut):
            bodies: list[bytes] = []
            world = World(reads(bodies))
            one, line = world.connect()
            for piece in pieces:
                one.data_received(piece)
                await asyncio.sleep(0)
            while line.answers < 2:
                await asyncio.sleep(0)
            assert bodies == [body] and world.served == ["/y", "/x"]
            assert line.is_reading and not line.is_closed

    run(got)


def test_bodies_of_pipelined_upgrades_are_read_in_order():
    async def got() -> None:
        bodies: list[bytes] = []
        world = World(reads(bodies))
        one, line = world.connect()
        sent = [GET * (number % 3) for number in range(60)]
        requests = [UPGRADE + (in_chunks if len(one) % 2 else of_length)(one) for one in sent]
        one.data_received(b"".join(one + GET for one in requests))
        while line.answers < 120:
            await asyncio.sleep(0)
        assert bodies == sent and world.served == ["/y", "/x"] * 60

    run(got)


@pytest.mark.parametrize("protocol", [b"h2c", b"websocket", b"TLS/1.2, HTTP/1.1", b"foo/2"])
@pytest.mark.parametrize("body", [b"", b"transfer-encoding: chunked\r\n", b"content-length: 3\r\n"])
def test_upgrade_is_ignored_for_every_protocol_and_body(protocol: bytes, body: bytes):
    framed = {b"": b"", b"t": b"3\r\nabc\r\n0\r\n\r\n", b"c": b"abc"}[body[:1]]
    head = b"%b /y HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: %b\r\n%b\r\n"

    async def got() -> None:
        bodies: list[bytes] = []
        world = World(reads(bodies))
        sent = head % (b"POST" if body else b"GET", protocol, body) + framed
        one, line = world.connect()
        one.data_received(sent + GET)
        while line.answers < 2:
            await asyncio.sleep(0)
        assert bodies == [b"abc" if body else b""] and world.served == ["/y", "/x"]

    run(got)


@pytest.mark.parametrize(
    ("framing", "status"),
    [
        (b"transfer-encoding: gzip\r\n", b"501"),
        (b"transfer-encoding: chunked\r\ncontent-length: 3\r\n", b"400"),
    ],
)
def test_upgrade_with_a_body_without_length_is_refused(framing: bytes, status: bytes):
    async def got() -> None:
        world = World(reads([]))
        one, line = world.connect()
        one.data_received(UPGRADE + framing + b"\r\n" + GET + GET)
        while not line.is_closed:
            await asyncio.sleep(0)
        assert b"HTTP/1.1 " + status in line.written and "/x" not in world.served

    run(got)


@pytest.mark.parametrize("length", [[], [(b"content-length", b"3")]])
@pytest.mark.parametrize("method", [b"GET", b"HEAD"])
def test_http_1_0_gets_no_chunks(length: Any, method: bytes):
    async def in_pieces(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": length})
        for piece in (b"ab", b"c", b""):
            await send({"type": "http.response.body", "body": piece, "more_body": bool(piece)})

    async def got() -> None:
        one, line = World(in_pieces).connect()
        one.data_received(method + b" /x HTTP/1.0\r\nconnection: keep-alive\r\n\r\n")
        while not line.is_closed:
            await asyncio.sleep(0)
        head, _, body = line.written.partition(b"\r\n\r\n")
        assert b"transfer-encoding" not in head and b"connection: close" in head
        assert body == (b"abc" if method == b"GET" else b"")

    run(got)


def test_empty_lines_do_not_make_an_idle_connection_live_longer():
    async def got() -> None:
        one, line = World(answer).connect()
        one.data_received(GET)
        while not line.answers:
            await asyncio.sleep(0)
        stands = one.state(), one.progress()
        assert stands[0] is State.IDLE
        one.data_received(b"\r\n" * 1000)
        assert (one.state(), one.progress()) == stands
        one.data_received(b"G")
        assert one.state() is State.HEAD

    run(got)


def test_a_connection_serves_the_next_request_after_a_route_has_failed(
    shared_client, monkeypatch, caplog
):
    def fail(*_: Any) -> None:
        raise LookupError("planted")

    monkeypatch.setattr(health, "numeric_identity", fail)

    async def got() -> None:
        one, line = World(shared_client.app).connect()
        one.data_received(2 * GET.replace(b"/x", b"/readyz?verbose"))
        while line.written.count(b"/problems/internal-error") < 2 and not line.is_closed:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not line.is_closed

    run(got)
    assert [str(one.exc_info[1]) for one in caplog.records if one.exc_info] == ["planted"] * 2
