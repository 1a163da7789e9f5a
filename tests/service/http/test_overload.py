"""What comes to a server with too much to do is refused at once; ordinary load never is."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from dualstream.service.http.overload import (
    BURST,
    LEARN,
    MAX_WAIT_S,
    MIN_QUEUE,
    OVERLOAD_QUEUE,
    PERIOD_S,
    PREDICT,
    REFUSE_AFTER_S,
    AdmissionControl,
    IdleShare,
    kind_of,
)
from dualstream.service.models.waiting_requests import Ticket, WaitingRequests
from dualstream.service.server import app
from tests.service.conftest import SPEC, assert_problem
from tests.service.http.support import request

LEARNING, PREDICTING, HEALTH = "/models/m/learn", "/models/m/predict", "/livez"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Control(AdmissionControl):
    """Admission control with its waiting requests."""

    def __init__(self, clock: Clock, max_waiting: int = 1000, **options: object) -> None:
        self.requests, self.refused = WaitingRequests(10.0, clock), []
        super().__init__(
            self.requests, self.refused.append, clock, max_waiting, MAX_WAIT_S, **options
        )


class Connection:
    """The client of a request."""

    refused_in = 0


def enter(admission: Control, count: int) -> list[Ticket]:
    return [admission.requests.enter() for _ in range(count)]


def leave(admission: Control, tickets: list[Ticket]) -> None:
    for ticket in tickets:
        admission.requests.leave(ticket)


@pytest.mark.anyio
async def test_learning_is_refused_before_predicting():
    clock = Clock()
    admission = Control(clock)
    numbers = enter(admission, MIN_QUEUE - 1)
    clock.now = 0.2
    assert admission.admits(LEARN)  # however long they wait, they are few
    numbers += enter(admission, 1)
    # Predictions find twice as many as they may during an overload, but there is none of them yet.
    assert not admission.admits(LEARN) and admission.admits(PREDICT)
    numbers += enter(admission, MIN_QUEUE)
    assert not admission.admits(PREDICT)
    assert admission.refused == [LEARN, PREDICT]
    leave(admission, numbers)
    assert len(admission.requests) == 0 and admission.requests.oldest_s == 0.0


@pytest.mark.anyio
async def test_the_queue_is_short_until_those_refused_may_all_wait():
    clock, clients = Clock(), [Connection() for _ in range(1000)]
    admission = Control(clock)
    numbers = enter(admission, MIN_QUEUE)
    clock.now = 0.1
    assert (
        not admission.overloaded_kinds
        and not admission.admits(LEARN, clients[0])
        and admission.overloaded_kinds
    )
    leave(admission, numbers)
    for number in range(3):
        # So many others, or the same ones so often: what counts is how many there are.
        for client in clients:
            admission.admits(LEARN, client)
        enter(admission, OVERLOAD_QUEUE - len(admission.requests))
        assert not any(admission.admits(LEARN, client) for client in clients)
        assert admission.admits(PREDICT)
        clock.now += 0.75 * PERIOD_S
        admission.update()
        assert admission.overloaded_kinds
        clock.now += 0.75 * PERIOD_S
        admission.update()
        assert admission.overloaded_kinds, number
    few = clients[: MIN_QUEUE - OVERLOAD_QUEUE]
    assert not any(admission.admits(LEARN, client) for _ in range(10) for client in few)
    clock.now += 2 * PERIOD_S
    admission.update()
    assert not admission.overloaded_kinds
    assert all(admission.admits(LEARN, client) for client in few)


def short_of(admission: Control) -> int:
    """How many may wait during the present overload."""
    numbers, before = [], len(admission.requests)
    while not admission.refuses(LEARN):
        numbers += enter(admission, 1)
    leave(admission, numbers)
    return before + len(numbers)


@pytest.mark.anyio
async def test_the_queue_is_longer_where_the_event_loop_waits_for_the_store():
    clock, shares = Clock(), [0.9] * 8 + [0.1] + [0.0] * 8
    idle = iter([*shares, 0.1])
    admission = Control(clock, idle=lambda: next(idle))
    numbers = enter(admission, MIN_QUEUE)
    clock.now = 0.1
    assert admission.refuses(LEARN)
    leave(admission, numbers)
    results = []
    for _ in shares:
        admission.update()
        results.append(short_of(admission))
    # The first update tells of the time before the overload.
    doubled = [min(OVERLOAD_QUEUE * 2**k, MIN_QUEUE) for k in range(8)]
    assert results == doubled + [MIN_QUEUE] + [
        max(MIN_QUEUE // 2**k, OVERLOAD_QUEUE) for k in range(1, 9)
    ]
    clock.now += 2 * PERIOD_S
    admission.update()
    assert not admission.overloaded_kinds


def test_idleness_is_what_a_thread_slept():
    got, started = IdleShare(), time.monotonic()
    assert got.share() is None
    time.sleep(0.02)
    again = time.monotonic()
    slept = got.share()
    slept_s = time.monotonic() - started
    began = time.thread_time()
    while time.thread_time() - began < 0.02:
        pass
    worked = got.share()
    worked_s = time.monotonic() - again
    if slept is None or worked is None:
        pytest.skip("the kernel does not tell")
    # Half of the 0.02 s at least, however long the thread waited for a core.
    assert slept >= 0.01 / slept_s and worked <= 1.0 - 0.01 / worked_s


@pytest.mark.anyio
async def test_many_that_wait_but_not_long_are_served_up_to_a_number():
    clock = Clock()
    admission = Control(clock, max_waiting=400)
    enter(admission, 399)
    assert admission.admits(LEARN)
    enter(admission, 1)
    assert not admission.admits(LEARN)
    other = Control(clock, max_waiting=400)
    numbers = enter(other, MIN_QUEUE)
    clock.now = 0.06
    leave(other, numbers)
    enter(other, MIN_QUEUE)
    assert not other.admits(LEARN)  # nobody has waited long, but those before them have


@pytest.mark.anyio
async def test_a_wait_of_long_ago_predicts_nothing():
    clock = Clock()
    admission = Control(clock)
    for quiet_s, is_refused in ((PERIOD_S / 2, True), (3 * PERIOD_S, False)):
        slow = enter(admission, 1)
        clock.now += 2.0
        leave(admission, slow)
        clock.now += quiet_s
        admission.update()
        numbers = enter(admission, MIN_QUEUE)
        assert admission.admits(LEARN) != is_refused
        leave(admission, numbers)
        for _ in range(20):
            clock.now += PERIOD_S
            admission.update()
        assert not admission.overloaded_kinds
    assert admission.refused == [LEARN]


@pytest.mark.anyio
async def test_predictions_that_arrive_together_are_waits_too():
    clock = Clock()
    admission = Control(clock, max_waiting=300)
    assert sum(admission.admits(PREDICT) for _ in range(1000)) == 600
    assert not admission.admits(LEARN)
    assert admission.refused.count(PREDICT) == 400 and admission.refused.count(LEARN) == 1
    slow = Control(clock)
    assert all(slow.admits(PREDICT) for _ in range(2 * MIN_QUEUE))
    clock.now += 0.11
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert sum(slow.admits(PREDICT) for _ in range(1000)) == 2 * MIN_QUEUE  # those before took long
    await asyncio.sleep(0)


def test_health_metrics_and_models_are_never_refused():
    for path in (HEALTH, "/readyz", "/metrics", "/models", "/models/m", "/models/m/events"):
        assert kind_of("GET", path) is None, path


def test_a_refusal_comes_a_moment_later_and_before_the_body_is_parsed(serve, monkeypatch):
    client = serve()
    client.put("/models/m", json=SPEC)
    monkeypatch.setattr(client.app.admission, "admits", lambda kind, client: kind != LEARN)
    began = time.monotonic()
    answer = client.post(LEARNING, content=b"no JSON")
    assert time.monotonic() - began >= REFUSE_AFTER_S
    got = assert_problem(answer, 503, "overloaded")
    assert got["instance"] == LEARNING and int(answer.headers["retry-after"]) >= 1
    assert client.post(PREDICTING, json={"x": [1, 0, 0, 0, 2]}).status_code == 200
    assert client.get(HEALTH).status_code == 200
    monkeypatch.undo()
    assert client.post(LEARNING, content=b"no JSON").status_code == 400


def test_a_server_that_is_stuck_refuses_answers_and_gives_up(serve, monkeypatch):
    monkeypatch.setattr(app, "MAX_WAITING", 1)
    client = serve(request_timeout_s=60.0)
    client.put("/models/m", json=SPEC)
    waiting = client.app._registry.waiting
    row, key = {"x": [1, 0, 0, 0, 2], "y": 1}, {"idempotency-key": "k"}
    journal = client.app._registry.journal
    append, go_on = journal.append, threading.Event()

    async def stuck(*args):
        await asyncio.to_thread(go_on.wait, 60)  # ends, too, if an assertion fails
        return await append(*args)

    journal.append = stuck
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(client.post, LEARNING, json=row, headers=key)
        while not len(waiting):
            assert not first.done()
        answer = client.post(LEARNING, json=row)
        assert_problem(answer, 503, "overloaded")
        assert client.post(PREDICTING, json={"x": row["x"]}).status_code == 200
        lives = client.get(HEALTH)
        assert lives.status_code == 200
        waiting.timeout_s = 0.01
        got = assert_problem(first.result(), 503, "outcome-unknown")
    assert got["outcome"] == "unknown"
    waiting.timeout_s, journal.append = 60.0, append
    go_on.set()
    got = client.post(LEARNING, json=row, headers=key).json()
    assert got["duplicate"] and got["seq"] == 1
    assert 'dualstream_shed_requests_total{kind="learn"} 1.0' in client.get("/metrics").text


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

    result = await asyncio.gather(*(one() for _ in range(connections)))
    return [status for statuses in result for status in statuses]


@pytest.mark.anyio
async def test_256_clients_that_wait_for_their_answers_are_never_refused(shared_server):
    async with httpx.AsyncClient(base_url=shared_server.url, timeout=60) as client:
        assert (await client.put("/models/crowd", json=SPEC)).status_code == 201
        assert set(await _closed_loop(shared_server.url, 256, 5)) == {200}
        assert (await client.get("/models/crowd")).json()["seq"] == 256 * 5
        await client.delete("/models/crowd")


@pytest.mark.anyio
async def test_predictions_that_are_joined_are_a_burst_until_they_are_answered():
    clock = Clock()
    admission = Control(clock)
    for _ in range(BURST):
        assert admission.admits(PREDICT, is_joined=True)
    await asyncio.sleep(0)
    clock.now = 3.0
    admission.end_burst()
    assert admission._burst_s == 3.0 and admission._arrived == 0
