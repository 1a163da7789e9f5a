"""Short requests of hostile clients, and of clients whose store or connection fails."""

import asyncio
import gc
import time
import weakref
from collections import Counter
from typing import Any

import pytest

from dualstream.service.http.api_keys import new_key
from dualstream.service.http.connection_limits import State
from dualstream.service.http.overload import MAX_WAITING, REFUSE_AFTER_S
from dualstream.service.http.short_request import route_of
from dualstream.service.models.creation import create
from dualstream.service.models.model import Model
from dualstream.service.observability.logs import REQUEST_ID
from dualstream.service.observability.tracing import SPAN
from tests.service.api.wire import (
    Paused,
    answered,
    body_of,
    comparable,
    put,
    request,
    run,
    serving,
    wrap,
)
from tests.service.conftest import SPEC

GOOD = b'{"x":{"1":1},"y":1}'
LEARN = request("POST", "/models/m/learn", GOOD)
BAD = b"GET /predict HTTP/1.1\r\nhost:\r\n\r\n"
"""The shortest request that is refused at once."""


@pytest.fixture
def store(tmp_path) -> str:
    return f"sqlite:///{tmp_path / 'a.db'}"


def test_a_body_is_read_after_the_answer_to_an_earlier_request(store):
    """Nothing limits the time of a connection that does not read: it waits for the server."""

    async def main() -> None:
        async with serving(store) as server:
            await server.ask(put("m", SPEC))
            one, line = server.connect()
            one.data_received(LEARN + LEARN[: -len(GOOD)])
            assert line.is_paused
            await answered(line, 1)
            while line.is_paused:
                await asyncio.sleep(0)
            assert one.state() is State.BODY
            one.data_received(GOOD)
            _, second = await answered(line, 2)
            assert body_of(second)["seq"] == 2

    run(main)


def test_pipelined_requests_that_are_refused_at_once_do_not_nest(store):
    """Else one client's RecursionError is the answer to others, whose rows are learned."""

    async def main() -> None:
        async with serving(store) as server:
            await server.ask(put("m", SPEC))
            one, line = server.connect()
            other, its_line = server.connect()
            one.data_received(LEARN)
            other.data_received(LEARN)
            one.data_received(128 * BAD)
            first, *others = await answered(line, 129)
            [answer] = await answered(its_line, 1)
            assert {body_of(answer)["seq"], body_of(first)["seq"]} == {1, 2}
            assert all(answer.startswith(b"HTTP/1.1 422") for answer in others)
            assert one.state() is State.IDLE

    run(main)


@pytest.mark.parametrize("target", ["x=1:1#a", "#a"])
def test_a_fragment_is_no_part_of_a_short_request(store, target):
    async def main() -> None:
        async with serving(store) as server:
            await server.ask(put("m", SPEC))
            target_of_model = f"/models/m/predict?{target}"
            short = request("GET", target_of_model)
            by_asgi = request("GET", target_of_model, headers=[("x-unusual", "1")])
            answers = [comparable(answer) for answer in await server.ask(short, by_asgi)]
            assert answers[0] == answers[1]

    run(main)


def test_long_paths_are_not_cached(store):
    async def main() -> None:
        async with serving(store) as server:
            before = route_of.cache_info()
            [answer] = await server.ask(request("GET", f"/models/{'m' * 20_000}/predict?x=1:1"))
            assert answer.startswith(b"HTTP/1.1 422") and route_of.cache_info() == before

    run(main)


@pytest.mark.parametrize("rows", ["samples", "list", "columns"])
def test_all_rows_of_a_short_request_count_for_the_rate(store, rows):
    key, stored = new_key("few", "learn", rows=40)
    many = b",".join([GOOD] * 30)
    body = {
        "samples": b'{"samples":[%b]}' % many,
        "list": b"[%b]" % many,
        "columns": b'{"x":[%b],"y":[%b]}' % (b",".join([b"{}"] * 30), b",".join([b"1"] * 30)),
    }[rows]

    async def main() -> None:
        async with serving(store, keys=stored.line()) as server:
            await create(server.app._registry, "m", SPEC)
            by_key = [("authorization", f"Bearer {key}")]
            bad = request("POST", "/models/m/learn", b"{}", by_key)
            statuses = {answer.split()[1] for answer in await server.ask(*[bad] * 50)}
            assert statuses == {b"422"}  # rows that are refused do not count, as by ASGI
            one, began = request("POST", "/models/m/learn", body, by_key), time.monotonic()
            predict = request("GET", "/models/m/predict?x=1:1&min_seq=0", b"", by_key)
            rows = 0
            for requests, rows_of_one in ([one] * 10, 30), ([predict] * 60, 1):
                answers = await server.ask(*requests)
                results = Counter(answer.split()[1] for answer in answers)
                assert results.keys() <= {b"200", b"429"} and results[b"429"]
                rows += rows_of_one * results[b"200"]
            # At most the rate, what a second holds, and what the last request owes.
            assert 30 <= rows <= 40 * (1 + time.monotonic() - began) + 29

    run(main)


def test_rows_that_are_joined_have_neither_span_nor_id_of_an_earlier_request(store, monkeypatch):
    contexts: list[Any] = []
    submit = Model.submit

    async def watched(model: Model, *args: Any) -> Any:
        contexts.append((REQUEST_ID.get(), SPAN.get()))
        return await submit(model, *args)

    class Span:
        def child(self, name: str) -> "Span":
            return self

        def is_recording(self) -> bool:
            return True

        def end(self, *_: Any) -> None: ...

    class Tracing:
        def begin(self, method: str, headers: list[tuple[bytes, bytes]]) -> Span | None:
            return Span() if (b"traceparent", b"t") in headers else None

    async def main() -> None:
        async with serving(store) as server:
            await server.ask(put("m", SPEC))
            server.app._requests.tracing = Tracing()
            for more in ([], [("x-unusual", "1")]):
                headers = [("x-request-id", "first"), ("traceparent", "t"), *more]
                one, line = server.connect()
                one.data_received(request("POST", "/models/m/learn", GOOD, headers) + LEARN)
                await answered(line, 2)
                one.data_received(LEARN)
                await answered(line, 3)
            ids = [request_id for request_id, _ in contexts]
            assert ids == ["first", None, None] * 2
            assert [span is not None for _, span in contexts] == [True, False, False] * 2

    monkeypatch.setattr(Model, "submit", watched)
    run(main)


def test_a_connection_that_ends_is_freed_without_the_garbage_collector(store):
    """Whatever its last request waits for: its body, an answer, an earlier request."""
    whole, head = LEARN, LEARN[: -len(GOOD)]
    keyed = request("POST", "/models/m/learn", GOOD, [("idempotency-key", "k")])
    by_asgi = request("POST", "/models/m/learn", GOOD, [("x-unusual", "1")])
    pipelines = [
        [whole], [head], [keyed], [whole, whole], [whole, head], [keyed, whole, whole],
        [by_asgi, whole], [by_asgi, head], [whole, BAD], [BAD], [whole, b"nonsense\r\n\r\n"],
    ]  # fmt: skip

    async def main() -> None:
        async with serving(store) as server:
            await server.ask(put("m", SPEC))
            await server.ask(*[LEARN] * 3)
            open_connections = len(server.app.connections)
            gc.collect()
            gc.disable()
            for pipeline in pipelines:
                for iterations in (0, 1, 3, 50):
                    one, line = server.connect()
                    one.data_received(b"".join(pipeline))
                    for _ in range(iterations):
                        await asyncio.sleep(0)
                    line.close()
                    one.connection_lost(None)
                    freed = weakref.ref(one)
                    del one
                    async with asyncio.timeout(60):
                        while freed() is not None:
                            await asyncio.sleep(0.001)
            assert len(server.app.connections) == open_connections
            while server.app._registry.waiting:
                await asyncio.sleep(0.001)

    try:
        run(main)
    finally:
        gc.enable()


def test_a_request_counts_once_while_it_waits(store):
    """Also one that is submitted alone, next to the others of its group."""
    keyed = request("POST", "/models/m/learn", b'{"x":{"1":1},"y":1,"id":"a"}')

    async def main() -> None:
        async with serving(store) as server:
            await server.ask(put("m", SPEC))
            paused = wrap(server, Paused)
            asking = asyncio.create_task(server.ask(*[LEARN] * 10, *[keyed] * 10))
            await paused.waits.wait()
            assert len(server.app._registry.waiting) == 20
            paused.released.set()
            await asking
            assert len(server.app._registry.waiting) == 0

    run(main)


def test_requests_refused_under_overload_are_counted_once(store):
    async def main() -> None:
        async with serving(store) as server:
            await server.ask(put("m", SPEC))
            paused = wrap(server, Paused)
            asking = asyncio.create_task(server.ask(*[LEARN] * 600))
            await paused.waits.wait()
            await asyncio.sleep(REFUSE_AFTER_S)
            paused.released.set()
            statuses = Counter(answer.split()[1] for answer in await asking)
            assert set(statuses) == {b"200", b"503"} and statuses[b"200"] <= MAX_WAITING
            [scraped] = await server.ask(request("GET", "/metrics"))
            names = ("dualstream_shed_requests_total", "dualstream_request_duration_seconds_count")
            lines = [line for line in scraped.decode().splitlines() if line.startswith(names)]
            counts = dict(line.rsplit(" ", 1) for line in lines)
            shed = 'dualstream_shed_requests_total{kind="learn"}'
            assert float(counts[shed]) == statuses[b"503"]
            assert not [name for name in counts if 'status="503"' in name]

    run(main)
