"""However much a connection sends at once, little of it is taken up in a turn of the event loop."""

import asyncio
import gc
import socket
import weakref
from collections import Counter
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.server import ServerState

from service.api.http import PIECE, answer as answer_json
from service.bodies import Bodies
from service.connections import LISTENS, Connections, Limits, Waits
from service.errors import Problem
from service.limited import HEAD_SHARE, MOST_HEADERS
from service.pressure import Pressure
from service.receiving import MOST_HELD, refusing_by
from service.server import UNSENT_BYTES, keep_few_unsent
from service.taking_turns import AT_ONCE, FEW

GET = b"GET /x HTTP/1.1\r\n\r\n"
HEAD_BYTES = 64 * 1024


class Line:
    """A transport: what was written to it, and whether it reads."""

    def __init__(self) -> None:
        self.written, self.is_reading, self.is_closed, self.unread = b"", True, False, 0

    def get_extra_info(self, name: str) -> Any:
        return ("127.0.0.1", 1) if name in ("sockname", "peername") else None

    def write(self, data: bytes) -> None:
        self.written += data

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
        pressure = Pressure(10_000, 1e9, 1e9, lambda kind: None, lambda: 0.0)
        limits = Limits(HEAD_BYTES, 10.0, 10.0)
        self.open = Connections(1000, limits, lambda reason: self.done.update([reason]), lambda: 0)
        self.protocol = refusing_by(pressure, self.open)

    def connect(self) -> tuple[Any, Line]:
        one, line, done = self.protocol(self.config, ServerState(), {}), Line(), self.done
        feed, header = one._feed, one.on_header

        def counted_feed(data: bytes) -> None:
            done["shares"] += 1
            done["longest"] = max(done["longest"], len(data))
            feed(data)

        def counted_header(name: bytes, value: bytes) -> None:
            done["headers"] += 1
            header(name, value)

        one._feed, one.on_header = counted_feed, counted_header
        one.connection_made(line)
        return one, line


async def answer(scope: Any, receive: Any, send: Any) -> None:
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"1")]}
    )
    await send({"type": "http.response.body", "body": b"1"})


def run(told: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(told(), 60))


def test_of_many_requests_at_once_one_is_taken_up_after_the_other():
    async def told() -> None:
        world = World(answer)
        one, line = world.connect()
        paths = [f"/{number}" for number in range(1000)]
        sent = [b"GET %b HTTP/1.1\r\n\r\n" % path.encode() for path in paths]
        one.data_received(b"".join(sent))
        assert one._begun == 1 and not line.is_reading
        while line.answers < 1000:
            begun = one._begun
            await asyncio.sleep(0)
            if one._begun < 900:  # the last ones are few
                assert one._begun <= begun + 1 and one._begun <= line.answers + 1
                assert not line.is_reading, "nothing more is read before that is answered"
        assert world.served == paths and line.is_reading and not line.is_closed
        one.data_received(GET)
        while line.answers == 1000:
            await asyncio.sleep(0)

    run(told)


def test_many_who_send_much_share_each_turn():
    async def told() -> None:
        world = World(answer)
        lines = []
        for number in range(50):
            one, line = world.connect()
            one.data_received(GET * (20 if number % 2 else 100))
            lines.append((line, 20 if number % 2 else 100))
        await asyncio.sleep(0)
        while any(line.answers < count for line, count in lines):
            before = len(world.served)
            await asyncio.sleep(0)
            assert len(world.served) - before <= AT_ONCE + 1 or before <= 50
        assert world.served == ["/x"] * 25 * 120

    run(told)


def test_who_does_not_read_is_not_asked_what_else_he_wants():
    async def told() -> None:
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

    run(told)


@pytest.mark.parametrize("end", [b"", b"\r\n"])
def test_a_head_of_many_lines_is_refused_before_it_is_read(end):
    async def told() -> None:
        world = World(answer)
        for begin in (
            b"GET /x HTTP/1.1\r\n",
            b"POST /x HTTP/1.1\r\ntransfer-encoding: chunked\r\n",
        ):
            one, line = world.connect()
            if begin.startswith(b"POST"):  # as trailers
                begin += b"\r\n1\r\nx\r\n0\r\n"
            one.data_received(begin + b"a:b\r\n" * 40_000 + end)
            while not line.is_closed:
                await asyncio.sleep(0)
            assert b"431" in line.written and b"more than 256 headers" in line.written
        assert world.done["headers"] < 2 * (MOST_HEADERS + 4096 // 5)
        assert world.done["longest"] <= 4 * HEAD_SHARE and world.done["large-head"] == 2

    run(told)


def test_chunks_are_taken_up_in_turns_and_not_read_ahead_of_the_application():
    async def told() -> None:
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

        world = World(slow)
        one, line = world.connect()
        one.data_received(b"POST /x HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n")
        sent = 0
        while line.is_reading:
            one.data_received(b"1\r\nx\r\n" * 20_000)
            sent += 20_000
            shares = world.done["shares"]
            for _ in range(100):
                await asyncio.sleep(0)
                assert world.done["shares"] <= shares + 1
                shares = world.done["shares"]
        assert HIGH_WATER_LIMIT < sent <= HIGH_WATER_LIMIT + 20_000
        one.data_received(b"0\r\n\r\n")
        goes_on.set()
        while not line.answers:
            await asyncio.sleep(0)
        assert size == sent and world.done["longest"] <= 16 * 1024

    run(told)


def test_a_body_of_a_stated_length_waits_for_no_turn():
    async def told() -> None:
        async def read(scope: Any, receive: Any, send: Any) -> None:
            message = await receive()
            assert len(message["body"]) == 50_000 and not message["more_body"]
            await answer(scope, receive, send)

        world = World(read)
        one, line = world.connect()
        head = b"POST /x HTTP/1.1\r\ncontent-length: 50000\r\n\r\n"
        one.data_received(head + b"\r\n\r\n\r\n" * 8333 + b"xx")
        assert not one._rest and world.done["shares"] == 2
        for _ in range(3):
            await asyncio.sleep(0)
        assert line.answers == 1

    run(told)


def test_of_many_who_come_together_few_begin_at_once_that_take_long():
    async def told() -> None:
        world = World(answer)
        lines, asked = [], [b"/models/m", b"/models/m/learn", b"/livez", b"/openapi.json"] * 30
        for path in asked:
            one, line = world.connect()
            one.data_received(b"GET %b HTTP/1.1\r\n\r\n" % path)
            lines.append(line)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        quick = ["/models/m/learn", "/livez"] * 30
        assert [path for path in world.served if path in quick] == quick
        assert 0 < len(world.served) - len(quick) <= 2 * FEW + AT_ONCE
        while len(world.served) < len(asked):
            before = len(world.served)
            await asyncio.sleep(0)
            assert len(world.served) <= before + AT_ONCE
        assert sorted(world.served) == sorted(path.decode() for path in asked)
        while any(line.answers != 1 for line in lines):
            await asyncio.sleep(0)

    run(told)


def test_who_waits_for_a_turn_may_send_on_or_go():
    async def told() -> None:
        async def read(scope: Any, receive: Any, send: Any) -> None:
            more = True
            while more:
                message = await receive()
                more = message["more_body"]
            await answer(scope, receive, send)

        world = World(read)
        for _ in range(4 * FEW):
            world.connect()[0].data_received(GET)
        (sends, line), (goes, _), (errs, wrong) = (world.connect() for _ in range(3))
        post = b"POST /y HTTP/1.1\r\ncontent-length: 4\r\n\r\n"
        for one in (sends, goes, errs):
            one.data_received(post)
            assert not one.cycle.response_complete and one.waits_for() is Waits.ANSWER
        sends.data_received(b"12")
        sends.data_received(b"34" + GET)
        goes.connection_lost(None)
        errs.end(Problem(408, "too-slow", "too slow"))
        while line.answers < 2:
            await asyncio.sleep(0)
        assert world.served.count("/y") == 1 and world.served[-1] == "/x"
        assert wrong.is_closed and b" 408 " in wrong.written

    run(told)


def test_a_connection_that_is_gone_is_free_at_once():
    async def told() -> None:
        world, gone = World(answer), []
        for sent in (
            GET,
            GET * 3,
            b"POST /y HTTP/1.1\r\ncontent-length: 9\r\n\r\n1",
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
        assert [found() for found in gone] == [None] * 4, "without a collector of rings"

    gc.collect()
    gc.disable()
    try:
        run(told)
    finally:
        gc.enable()


def test_who_listens_to_a_stream_can_make_room():
    async def told() -> None:
        async def stream(scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            scope[LISTENS] = True
            while (await receive())["type"] != "http.disconnect":
                pass

        world = World(stream)
        for sent in (GET, 100 * GET):  # whatever else it asks for
            one, line = world.connect()
            one.data_received(sent)
            assert one.waits_for() is Waits.ANSWER
            while not line.answers:
                await asyncio.sleep(0)
            assert one.waits_for() is Waits.LISTENS
            one.make_room()
            assert line.is_closed
            one.connection_lost(None)
        assert world.done["room"] == 2

    run(told)


def test_a_long_answer_waits_for_who_reads_it():
    async def told() -> None:
        body = bytes(10 * PIECE + 1)

        async def app(scope: Any, receive: Any, send: Any) -> None:
            Bodies(2**30, lambda: 0.0).may_be_held_for(scope)
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


def test_a_long_body_comes_in_before_it_is_asked_for_up_to_a_limit():
    """Each time that the application is woken costs as much as to read what came."""

    async def told() -> None:
        asked, sizes = asyncio.Event(), []

        async def read(scope: Any, receive: Any, send: Any) -> None:
            await asked.wait()
            message = {"more_body": True}
            while message["more_body"]:
                message = await receive()
                sizes.append(len(message["body"]))
            await answer(scope, receive, send)

        one, line = World(read).connect()
        size, piece = 3 * MOST_HELD, b"x" * (MOST_HELD // 4)
        one.data_received(b"POST /x HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % size)
        for number in range(4):
            assert line.is_reading, number
            one.data_received(piece)
            await asyncio.sleep(0)
        assert not line.is_reading, "a whole piece of work is there"
        asked.set()
        left = 8
        while not line.answers:
            await asyncio.sleep(0)
            while left and line.is_reading:  # all that has come by then
                one.data_received(piece)
                left -= 1
        assert sizes == [MOST_HELD] * 3

    run(told)


@pytest.mark.skipif(
    not hasattr(socket, "TCP_NOTSENT_LOWAT"), reason="the system has no such option"
)
def test_the_kernel_takes_little_of_what_is_not_read():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        keep_few_unsent([listening])
        with socket.create_connection(listening.getsockname()):
            told, _ = listening.accept()
            told.setblocking(False)
            taken = 0
            with told, pytest.raises(BlockingIOError):
                while taken < 16 * UNSENT_BYTES:
                    taken += told.send(bytes(4096))


def test_a_body_whose_head_came_behind_another_request_is_read():
    async def told() -> None:
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
        one.data_received(GET + b"POST /y HTTP/1.1\r\ncontent-length: 5\r\n\r\n")
        await asyncio.sleep(0)
        one.data_received(b"12345" + GET)  # while the first one is being answered
        goes_on.set()
        while line.answers < 3:
            await asyncio.sleep(0)
        assert world.served == ["/x", "/y", "/x"] and line.is_reading

    run(told)


def test_a_head_is_not_too_large_for_what_came_before_it():
    """A connection that has asked a hundred times, each time for little, and then brings a body."""
    world = World(reads(bodies := []))
    head = b"POST /y HTTP/1.1\r\ncontent-length: 3\r\n\r\n"

    async def told() -> None:
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

    run(told)


def test_what_follows_an_upgrade_that_is_not_spoken_is_the_next_request():
    async def told() -> None:
        world = World(answer)
        one, line = world.connect()
        upgrade = b"GET /%d HTTP/1.1\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"
        one.data_received(b"".join(upgrade % number for number in range(40)) + GET)
        while line.answers < 41:
            await asyncio.sleep(0)
        assert world.served == [*(f"/{number}" for number in range(40)), "/x"]

    run(told)


UPGRADE = b"POST /y HTTP/1.1\r\nconnection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\n"


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


@pytest.mark.parametrize("body", [b"", GET, GET * 6000 + b"GET"], ids=["none", "small", "long"])
def test_a_body_behind_an_upgrade_is_no_request_wherever_its_bytes_are_cut(body: bytes):
    sent = UPGRADE + b"content-length: %d\r\n\r\n%b" % (len(body), body) + GET
    few = (1, 90, 200, 2000, 70_000, len(sent) - 20)
    cut = [[sent[:at], sent[at:]] for at in (range(1, len(sent)) if len(sent) < 1000 else few)]
    byte_by_byte = [sent[at : at + 1] for at in range(len(sent))] if len(sent) < 1000 else [sent]

    async def told() -> None:
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

    run(told)


def test_bodies_behind_upgrades_that_come_together_are_each_read_in_turn():
    async def told() -> None:
        bodies: list[bytes] = []
        world = World(reads(bodies))
        one, line = world.connect()
        sent = [GET * (number % 3) for number in range(60)]
        asked = [UPGRADE + b"content-length: %d\r\n\r\n%b" % (len(one), one) for one in sent]
        one.data_received(b"".join(one + GET for one in asked))
        while line.answers < 120:
            await asyncio.sleep(0)
        assert bodies == sent and world.served == ["/y", "/x"] * 60

    run(told)


def test_a_body_without_a_stated_length_behind_an_upgrade_is_refused():
    async def told() -> None:
        world = World(answer)
        one, line = world.connect()
        chunked = b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(GET), GET)
        one.data_received(GET + UPGRADE + chunked + GET)
        while not line.is_closed:
            await asyncio.sleep(0)
        assert world.served == ["/x"] and line.written.count(b"HTTP/1.1 ") == 2
        assert b"HTTP/1.1 400" in line.written and b"/problems/malformed-request" in line.written

    run(told)


def test_empty_lines_do_not_make_an_idle_connection_live_longer():
    async def told() -> None:
        world = World(answer)
        for sent in (GET, GET * 40):
            one, line = world.connect()
            one.data_received(sent)
            while line.answers < len(sent) // len(GET):
                await asyncio.sleep(0)
            since, timer = one._idle_since, one.timeout_keep_alive_task
            assert timer is not None
            for empty in (b"\r\n", b"\r\n" * 1000):
                one.data_received(empty)
                while one._rest:
                    await asyncio.sleep(0)
            assert one.timeout_keep_alive_task is timer and not timer.cancelled()
            assert one._idle_since == since
            one.data_received(b"G")
            assert one._idle_since is None

    run(told)


class Hands:
    """An event loop whose clock a test turns, and whose timers it sets off."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.now = 0.0
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.cancelled = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    def time(self) -> float:
        return self.now

    def call_later(self, seconds: float, then: Callable[[], None]) -> Any:
        self.timers.append((self.now + seconds, then))
        return SimpleNamespace(cancel=self.cancel)

    def cancel(self) -> None:
        self.cancelled += 1

    def set_off(self) -> None:
        """The only timer, when it is due."""
        [(self.now, then)] = self.timers
        self.timers.clear()
        then()


def test_an_idle_connection_is_closed_as_long_after_its_last_answer_with_one_timer_for_all():
    async def told() -> None:
        one, line = World(answer).connect()
        one.loop = hands = Hands()
        for asked in range(4):
            hands.now = float(asked)
            one.data_received(GET)
            while line.answers <= asked:
                await asyncio.sleep(0)
        assert [due for due, _ in hands.timers] == [5.0]
        hands.set_off()
        assert not line.is_closed and [due for due, _ in hands.timers] == [8.0]
        one.data_received(b"\r\n")
        hands.set_off()
        assert line.is_closed and not hands.timers and not hands.cancelled

    run(told)


def test_a_connection_whose_request_is_under_way_is_not_idle():
    async def told() -> None:
        may_answer = asyncio.Event()

        async def slow(scope: Any, receive: Any, send: Any) -> None:
            await may_answer.wait()
            await answer(scope, receive, send)

        one, line = World(slow).connect()
        one.loop = hands = Hands()
        may_answer.set()
        one.data_received(GET)
        while line.answers < 1:
            await asyncio.sleep(0)
        may_answer.clear()
        one.data_received(GET)
        await asyncio.sleep(0)
        hands.set_off()
        assert not line.is_closed and not hands.timers
        hands.now = 60.0
        may_answer.set()
        while line.answers < 2:
            await asyncio.sleep(0)
        assert [due for due, _ in hands.timers] == [65.0]
        one.connection_lost(OSError())
        assert hands.cancelled == 1

    run(told)
