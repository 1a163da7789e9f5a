"""The loop of `dualstream consume` behind gateways, which answer for the server."""

from collections.abc import Iterator

import httpx
import pytest

from dualstream.client import Client
from dualstream.consume.server import ModelServer
from tests.consume.fakes import FakeLog, FakeReader
from tests.consume.support import A, Letters, consumer, row
from tests.service.conftest import shared_server
from tests.service.server.nginx import balancing

__all__ = ["shared_server"]

SPEC = {"algorithm": "dual_ascent", "features": {"kind": "hashed", "bits": 10}}
PAGE = {"headers": {"content-type": "text/html"}, "text": "<html></html>"}


@pytest.fixture
def client(shared_server) -> Iterator[Client]:
    with Client(shared_server.url) as client:
        client.create("clicks", SPEC)
        yield client
        client.delete("clicks")


def model_of(transport: httpx.BaseTransport) -> ModelServer:
    http = httpx.Client(base_url="http://gateway", transport=transport)
    return ModelServer(Client(http=http, patience_s=0.0), "clicks")


def test_it_waits_while_a_gateway_answers_for_the_server(client, shared_server):
    """Before and after the server has learned the rows."""
    pages = [
        httpx.Response(404, **PAGE),
        httpx.Response(307, headers={"location": "/login"}),
        httpx.Response(200, **PAGE),
        httpx.Response(408),
        httpx.Response(421),
        httpx.Response(425),
        httpx.Response(403, **PAGE),
        httpx.Response(404, json={"message": "no route"}),
    ]
    left, said = list(pages), list[str]()

    def answer(request: httpx.Request) -> httpx.Response:
        is_learned = len(left) % 2 == 0
        if not left or is_learned:
            request.url = request.url.copy_with(
                host="127.0.0.1", port=int(shared_server.url.rpartition(":")[2])
            )
            with httpx.HTTPTransport() as to_server:
                passed = to_server.handle_request(request)
                passed.read()
        return left.pop() if left else passed

    values = [row(n) for n in range(12)]
    reader = FakeReader(FakeLog(**{A: values}))
    reader.rebalance(A)
    one = consumer(reader, model_of(httpx.MockTransport(answer)), log=said.append)
    one.run(until_end=True)
    assert client.get("clicks").samples == 12 and not left
    assert one.counters.waits == len(pages) and one.counters.refused == 0
    assert any("(status 404, text/html); check the URL and the gateways" in line for line in said)


def test_a_body_that_a_gateway_refuses_is_halved_down_to_a_dead_letter(
    client, shared_server, tmp_path
):
    values = [row(n) for n in range(60)]
    values[17] = values[17].replace(b'"n"', b'"' + b"z" * 100_000 + b'"')
    reader, dead = FakeReader(FakeLog(**{A: values})), Letters()
    reader.rebalance(A)
    port = int(shared_server.url.rpartition(":")[2])
    with balancing(tmp_path, [port], max_body="1k") as nginx:
        one = consumer(reader, model_of(nginx), dead=dead, max_rows=50, max_bytes=1_000_000)
        one.run(until_end=True)
    ((_, offset, reason),) = dead.written
    assert offset == 17 and reason.startswith("a gateway before the server refuses a request of 10")
    assert client.get("clicks").samples == 59
    assert [one.next for one in client.sources("clicks")] == [60]
