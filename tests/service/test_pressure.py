"""What comes to a server with too much to do is refused at once; ordinary load never is."""

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
import uvicorn
from uvicorn.server import ServerState

from service.first_bytes import FirstBytes
from service.holding_back import HOLD_S
from service.idleness import Idleness
from service.journal.protocol import OutcomeUnknown
from service.pressure import FEW, LEARN, PREDICT, SHORT, WHILE_S, Pressure
from service.receiving import LONG, refusing_by
from tests.service.conftest import SPEC, assert_problem
from tests.service.test_receiving import digests, request

LEARNING, PREDICTING, HEALTH = "/models/m/learn", "/models/m/predict", "/livez"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def pressure_of(clock: Clock, **given: float) -> tuple[Pressure, list[str]]:
    refused: list[str] = []
    told = {"most": 1000, "patience_s": 0.05, "timeout_s": 10.0} | given
    made = Pressure(on_refusal=refused.append, clock=clock, **told)  # type: ignore[arg-type]
    return made, refused


class Asks:
    """A connection."""

    refused_in = 0


def enter(pressure: Pressure, count: int) -> list[int]:
    return [pressure.enter(asyncio.Future()) for _ in range(count)]


def leave(pressure: Pressure, numbers: list[int]) -> None:
    for number in numbers:
        pressure.leave(number)


@pytest.mark.anyio
async def test_learning_is_refused_before_predicting_and_health_never():
    clock = Clock()
    pressure, refused = pressure_of(clock)
    numbers = enter(pressure, FEW - 1)
    clock.now = 0.2
    assert pressure.admits(LEARNING)  # however long they wait, they are few
    await asyncio.sleep(0)
    numbers += enter(pressure, 1)
    # Predictions find twice as many as they may in a rush, but there is none of them yet.
    assert not pressure.admits(LEARNING) and not pressure.admits("/models/m/labels")
    assert pressure.admits(PREDICTING) and pressure.admits(HEALTH) and pressure.admits("/metrics")
    numbers += enter(pressure, FEW)
    assert not pressure.admits(PREDICTING) and not pressure.admits("/predict")
    assert not pressure.admits("/v2/models/m/infer") and pressure.admits(HEALTH)
    assert refused == [LEARN, LEARN, PREDICT, PREDICT, PREDICT]
    leave(pressure, numbers)
    assert pressure.waiting == 0 and pressure.oldest_s == 0.0


@pytest.mark.anyio
async def test_the_queue_is_short_until_those_refused_may_all_wait():
    clock, clients = Clock(), [Asks() for _ in range(1000)]
    pressure, _ = pressure_of(clock)
    numbers = enter(pressure, FEW)
    clock.now = 0.1
    assert not pressure.rush and not pressure.admits(LEARNING, clients[0]) and pressure.rush
    leave(pressure, numbers)
    for number in range(3):
        # So many others, or the same ones so often: what counts is how many there are.
        for client in clients:
            pressure.admits(LEARNING, client)
            await asyncio.sleep(0)
        enter(pressure, SHORT - pressure.waiting)
        assert not any(pressure.admits(LEARNING, client) for client in clients)
        assert pressure.admits(PREDICTING)
        clock.now += 0.75 * WHILE_S
        pressure.look()
        assert pressure.rush
        clock.now += 0.75 * WHILE_S
        pressure.look()
        assert pressure.rush, number
    few = clients[: FEW - SHORT]
    assert not any(pressure.admits(LEARNING, client) for _ in range(10) for client in few)
    clock.now += 2 * WHILE_S
    pressure.look()
    assert not pressure.rush
    await asyncio.sleep(0)
    assert all(pressure.admits(LEARNING, client) for client in few)
    await asyncio.sleep(0)


def short_of(pressure: Pressure) -> int:
    """How many may wait in the rush that there is."""
    numbers, before = [], pressure.waiting
    while not pressure.refuses(LEARN):
        numbers += enter(pressure, 1)
    leave(pressure, numbers)
    return before + len(numbers)


@pytest.mark.anyio
async def test_the_queue_is_longer_where_the_event_loop_waits_for_the_store():
    clock, shares = Clock(), [0.9] * 8 + [0.1] + [0.0] * 8
    idle = iter([*shares, 0.1])
    pressure = Pressure(1000, 0.05, 1000.0, lambda kind: None, clock, lambda: next(idle))
    numbers = enter(pressure, FEW)
    clock.now = 0.1
    assert pressure.refuses(LEARN)
    leave(pressure, numbers)
    found = []
    for _ in shares:
        pressure.look()
        found.append(short_of(pressure))
    # The first look tells of the time before the rush.
    doubled = [min(SHORT * 2**k, FEW) for k in range(8)]
    assert found == doubled + [FEW] + [max(FEW // 2**k, SHORT) for k in range(1, 9)]
    clock.now += 2 * WHILE_S
    pressure.look()
    assert not pressure.rush


def test_idleness_is_what_a_thread_slept():
    told = Idleness()
    assert told.share() is None
    time.sleep(0.02)
    slept = told.share()
    began = time.thread_time()
    while time.thread_time() - began < 0.02:
        pass
    worked = told.share()
    if slept is None or worked is None:
        pytest.skip("the kernel does not tell")
    assert slept > worked


@pytest.mark.anyio
async def test_many_that_wait_but_not_long_are_served_up_to_a_number():
    clock = Clock()
    pressure, _ = pressure_of(clock, most=400)
    numbers = enter(pressure, 399)
    assert pressure.admits(LEARNING)
    assert not pressure.admits(LEARNING)
    other, _ = pressure_of(clock, most=400)
    numbers = enter(other, FEW)
    clock.now = 0.06
    leave(other, numbers)
    enter(other, FEW)
    assert not other.admits(LEARNING)  # nobody has waited long, but those before them have
    await asyncio.sleep(0)


@pytest.mark.anyio
async def test_what_arrives_in_one_turn_of_the_loop_waits_too():
    clock = Clock()
    pressure, refused = pressure_of(clock, most=300)
    assert sum(pressure.admits(LEARNING) for _ in range(1000)) == 300
    assert sum(pressure.admits(PREDICTING) for _ in range(1000)) == 300
    assert refused.count(LEARN) == 700 and refused.count(PREDICT) == 700
    slow, _ = pressure_of(clock)
    assert all(slow.admits(LEARNING) for _ in range(FEW))
    await asyncio.sleep(0)
    clock.now += 0.06
    await asyncio.sleep(0)
    assert sum(slow.admits(LEARNING) for _ in range(1000)) == FEW  # that turn took long
    await asyncio.sleep(0)


@pytest.mark.anyio
async def test_who_waits_too_long_is_told_that_the_outcome_is_unknown():
    clock = Clock()
    pressure, _ = pressure_of(clock, timeout_s=1.0)
    first, second = asyncio.Future(), asyncio.Future()
    pressure.enter(first)
    clock.now = 0.5
    pressure.enter(second)
    clock.now = 1.2
    pressure.give_up()
    assert isinstance(first.exception(), OutcomeUnknown) and not second.done()


class Stubborn(Pressure):
    """Refuses all of models, in a rush or not."""

    def __init__(self, is_rush: bool) -> None:
        super().__init__(1, 1.0, 1.0, lambda kind: None, Clock())
        self.rush = {LEARN, PREDICT} if is_rush else set()

    def admits(self, path: str, client: object = None) -> bool:
        return not path.startswith("/models/")

    def refuses(self, kind: str, client: object = None) -> bool:
        return True


@pytest.fixture(scope="module", params=[False, True], ids=["calm", "rush"])
def port(request) -> Iterator[int]:
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        digests, http=refusing_by(Stubborn(request.param)), lifespan="off", log_level="error"
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listening])))
    thread.start()
    yield listening.getsockname()[1]
    server.should_exit = True
    thread.join()


def answers(connection: socket.socket, count: int) -> list[tuple[int, bytes]]:
    """Statuses and bodies, in order."""
    received, found = b"", []
    while len(found) < count:
        head, end, rest = received.partition(b"\r\n\r\n")
        size = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]) if end else 0
        if end and len(rest) >= size:
            found.append((int(head.split(b" ")[1]), rest[:size]))
            received = rest[size:]
            continue
        some = connection.recv(1 << 16)
        assert some, received
        received += some
    return found


@pytest.mark.parametrize("piece", [1 << 20, 700])
def test_a_refused_body_is_passed_over_and_the_connection_goes_on(port: int, piece: int):
    sizes = [10, LONG + 5, 0, 3 * LONG, 17, 100]
    paths = ["/0", "/models/1/learn", "/models/2/predict", "/models/3/learn", "/4", "/5"]
    # More in one piece than could be refused within each other.
    paths += [f"/models/{k}/learn" for k in range(6, 2000)] + ["/last"]
    sizes += [0] * (len(paths) - len(sizes))
    chunked = [k in (1, 4) for k in range(len(paths))]
    requests = [
        request(path, b"x" * size, is_chunked)
        for path, size, is_chunked in zip(paths, sizes, chunked, strict=True)
    ]
    stream = b"".join(requests)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        pieces = range(0, len(stream), piece)

        def send() -> None:
            for at in pieces:
                connection.sendall(stream[at : at + piece])

        sending = threading.Thread(target=send)
        sending.start()
        found = answers(connection, len(paths))
        sending.join()
    for path, (status, body) in zip(paths, found, strict=True):
        if path.startswith("/models"):
            assert status == 503 and b"/problems/overloaded" in body and path.encode() in body
        else:
            assert status == 200 and body.startswith(path.encode() + b" ")


# Heads, each with the bytes that follow it; with a parser or without, the answers are the same.
HEADS = {
    "plain": ("content-length: 3", b"abc"),
    "no body": ("host: x", b""),
    "other case": ("CONTENT-Length:3\r\nConnection: Keep-Alive", b"abc"),
    "leading zeros": ("content-length: 0003", b"abc"),
    "two lengths": ("content-length: 3\r\ncontent-length: 3", b"abc"),
    "two that differ": ("content-length: 3\r\ncontent-length: 4", b"abc"),
    "a list of lengths": ("content-length: 3, 3", b"abc"),
    "signed": ("content-length: +3", b"abc"),
    "space before the colon": ("content-length : 3", b"abc"),
    "folded": ("content-length:\r\n 3", b"abc"),
    "folded into another": ("x: y\r\n content-length: 3", b"abc"),
    "bare LF": ("x: y\ncontent-length: 3", b"abc"),
    "bare CR": ("x: y\rz\r\ncontent-length: 3", b"abc"),
    "a length that goes on": ("content-length: 3\r\n 4", b"abc"),
    "chunked": ("transfer-encoding: chunked", b"3\r\nabc\r\n0\r\n\r\n"),
    "chunked with a length": ("content-length: 5\r\nTransfer-Encoding: chunked", b"0\r\n\r\n"),
    "expects": ("content-length: 3\r\nexpect: 100-continue", b"abc"),
    "closes": ("content-length: 3\r\nconnection: close", b"abc"),
    "upgrades": ("content-length: 3\r\nupgrade: h2c\r\nconnection: upgrade", b"abc"),
    "too long": ("x: " + 5000 * "y" + "\r\ncontent-length: 3", b"abc"),
    "shorter than told": ("content-length: 4", b"abc"),
    "longer than told": ("content-length: 3", b"abcGET /more HTTP/1.1\r\n\r\n"),
}
LINES = (
    "POST /models/m/learn HTTP/1.1",
    "POST /models/m/labels?a=b HTTP/1.1",
    "POST /models/m%20/predict HTTP/1.1",
    "POST /models/m/learn HTTP/1.0",
    "HEAD /models/m/predict HTTP/1.1",
    "PUT /models/m/learn HTTP/1.1",
)


@pytest.mark.parametrize("head", HEADS)
def test_what_is_answered_at_once_is_what_the_parser_would_say(head: str):
    lines, body = HEADS[head]
    told: dict[str, list[bytes]] = {}
    for name in ("calm", "rush"):
        config = uvicorn.Config(
            digests, http=refusing_by(Stubborn(name == "rush")), log_level="critical"
        )
        told[name] = [said(config, f"{line}\r\n{lines}\r\n\r\n".encode() + body) for line in LINES]
    assert told["calm"] == told["rush"]


def said(config: uvicorn.Config, data: bytes) -> bytes:
    """All that a connection answers to these bytes and a request behind them."""

    async def talk() -> bytes:
        protocol = config.http_protocol_class(config, ServerState(), {})
        written = Written()
        protocol.connection_made(written)
        for some in (data, b"GET /next HTTP/1.1\r\n\r\n"):
            if not written.is_closing():
                protocol.data_received(some)
            for _ in range(20):
                await asyncio.sleep(0)
        protocol.connection_lost(None)
        return written.bytes

    if not config.loaded:
        config.load()
    return asyncio.run(talk())


@pytest.mark.anyio
async def test_a_refusal_in_a_rush_is_held_back_a_moment():
    config = uvicorn.Config(digests, http=refusing_by(Stubborn(True)), log_level="critical")
    config.load()

    def connect() -> tuple[Any, Written]:
        protocol, written = config.http_protocol_class(config, ServerState(), {}), Written()
        protocol.connection_made(written)
        return protocol, written

    asked = request(LEARNING, b"x")
    first, told = connect()
    for _ in range(2):
        told.bytes = b""
        first.data_received(asked)
        assert not told.bytes
        while not told.bytes:
            await asyncio.sleep(0.001)
        assert told.bytes.startswith(b"HTTP/1.1 503") and told.bytes.count(b"/problems/") == 1
    told.bytes = b""
    for count in range(3):  # the next request lets go of what the one before is owed
        first.data_received(asked)
        assert told.bytes.count(b"/problems/") == count
    first.shutdown()
    assert told.bytes.count(b"/problems/") == 3 and told.is_closing()
    second, untold = connect()
    second.data_received(asked)
    untold.close()
    second.connection_lost(None)
    await asyncio.sleep(2 * HOLD_S)
    assert not untold.bytes and told.bytes.count(b"/problems/") == 3


class Written(asyncio.Transport):
    """What was written, until it was closed."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes, self._is_closed = b"", False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.bytes += bytes(data)

    def close(self) -> None:
        self._is_closed = True

    def is_closing(self) -> bool:
        return self._is_closed

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


def test_a_server_that_is_stuck_refuses_answers_and_gives_up(serve):
    client = serve(max_in_flight=1, request_timeout_s=0.5)
    client.put("/models/m", json=SPEC)
    row, key = {"x": [1, 0, 0, 0, 2], "y": 1}, {"idempotency-key": "k"}
    journal = client.app._catalog.journal
    append, go_on = journal.append, threading.Event()

    async def stuck(*given):
        await asyncio.to_thread(go_on.wait)
        return await append(*given)

    journal.append = stuck
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(client.post, LEARNING, json=row, headers=key)
        while client.app.pressure.waiting == 0:
            assert not first.done()
        answer = client.post(LEARNING, json=row)
        assert_problem(answer, 503, "overloaded")
        assert client.post(PREDICTING, json={"x": row["x"]}).status_code == 200
        lives = client.get(HEALTH)
        assert lives.status_code == 200
        at_once = FirstBytes().read(f"GET {HEALTH} HTTP/1.1\r\nhost: x\r\n\r\n".encode(), [])
        head, _, body = at_once.answer.partition(b"\r\n\r\n")
        assert body == lives.content and len(head.splitlines()) == 1 + len(lives.headers)
        assert all(f"{name}: {value}".encode() in head for name, value in lives.headers.items())
        told = assert_problem(first.result(), 503, "outcome-unknown")
    assert told["outcome"] == "unknown"
    journal.append = append
    go_on.set()
    told = client.post(LEARNING, json=row, headers=key).json()
    assert told["duplicate"] and told["seq"] == 1
    assert 'dualstream_shed_total{kind="learn"} 1.0' in client.get("/metrics").text


async def _closed_loop(url: str, connections: int, requests: int) -> list[int]:
    body = b'{"x":[1,0,0,0,2],"y":1}'
    host, port = url.removeprefix("http://").split(":")
    message = request("/models/crowd/learn", body)

    async def one() -> list[int]:
        reader, writer = await asyncio.open_connection(host, int(port))
        statuses = []
        for _ in range(requests):
            writer.write(message)
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            await reader.readexactly(int(head.partition(b"content-length: ")[2].split(b"\r")[0]))
            statuses.append(int(head.split(b" ")[1]))
        writer.close()
        return statuses

    found = await asyncio.gather(*(one() for _ in range(connections)))
    return [status for statuses in found for status in statuses]


@pytest.mark.anyio
async def test_256_clients_that_wait_for_their_answers_are_never_refused(shared_server):
    async with httpx.AsyncClient(base_url=shared_server.url, timeout=60) as client:
        assert (await client.put("/models/crowd", json=SPEC)).status_code == 201
        assert set(await _closed_loop(shared_server.url, 256, 5)) == {200}
        assert (await client.get("/models/crowd")).json()["seq"] == 256 * 5
        await client.delete("/models/crowd")
