"""What comes to a server with too much to do is refused at once; ordinary load never is."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
import uvicorn

from service.journal.protocol import OutcomeUnknown
from service.pressure import FEW, LEARN, PREDICT, Pressure
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


@pytest.mark.anyio
async def test_learning_is_refused_before_predicting_and_health_never():
    clock = Clock()
    pressure, refused = pressure_of(clock)
    waiting = [asyncio.Future() for _ in range(2 * FEW)]
    numbers = [pressure.enter(future) for future in waiting[: FEW - 1]]
    clock.now = 0.2
    assert pressure.admits(LEARNING)  # however long they wait, they are few
    await asyncio.sleep(0)
    numbers.append(pressure.enter(waiting[FEW - 1]))
    assert not pressure.admits(LEARNING) and not pressure.admits("/models/m/labels")
    assert pressure.admits(PREDICTING) and pressure.admits(HEALTH) and pressure.admits("/metrics")
    numbers += [pressure.enter(future) for future in waiting[FEW:]]
    assert not pressure.admits(PREDICTING) and not pressure.admits("/predict")
    assert pressure.admits(HEALTH)
    assert refused == [LEARN, LEARN, PREDICT, PREDICT]
    for number in numbers:
        pressure.leave(number)
    assert pressure.admits(LEARNING) and pressure.waiting == 0 and pressure.oldest_s == 0.0


@pytest.mark.anyio
async def test_many_that_wait_but_not_long_are_served_up_to_a_number():
    pressure, _ = pressure_of(Clock(), most=400)
    for _ in range(399):
        pressure.enter(asyncio.Future())
    assert pressure.admits(LEARNING)
    assert not pressure.admits(LEARNING)


@pytest.mark.anyio
async def test_what_arrives_in_one_turn_of_the_loop_waits_too():
    clock = Clock()
    pressure, refused = pressure_of(clock, most=300)
    assert sum(pressure.admits(LEARNING) for _ in range(1000)) == 300
    assert sum(pressure.admits(PREDICTING) for _ in range(1000)) == 300
    assert refused.count(LEARN) == 700 and refused.count(PREDICT) == 700
    clock.now = 0.06
    await asyncio.sleep(0)
    assert sum(pressure.admits(LEARNING) for _ in range(1000)) == FEW  # that turn took long
    await asyncio.sleep(0)
    assert sum(pressure.admits(LEARNING) for _ in range(1000)) == 300


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
    """Admits what its path says."""

    def __init__(self) -> None:
        super().__init__(1, 1.0, 1.0, lambda kind: None, Clock())

    def admits(self, path: str) -> bool:
        return not path.startswith("/refused")


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        digests, http=refusing_by(Stubborn()), lifespan="off", log_level="error"
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
    paths = ["/0", "/refused/1/learn", "/refused/2/predict", "/refused/3/learn", "/4", "/5"]
    # More in one piece than could be refused within each other.
    paths += [f"/refused/{k}/learn" for k in range(6, 2000)] + ["/last"]
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
        if path.startswith("/refused"):
            assert status == 503 and b"/problems/overloaded" in body and path.encode() in body
        else:
            assert status == 200 and body.startswith(path.encode() + b" ")


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
        assert client.get(HEALTH).status_code == 200
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
