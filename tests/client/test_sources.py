"""Batches of sources by the client: learned once, whatever is lost on the way."""

import asyncio

import httpx
import pytest

from dualstream.client import AsyncClient, BadInput, Client, Refused, Source

SPEC = {"algorithm": "sgd", "features": {"kind": "indexed", "dim": 4}}
NAME = "kafka/a b%2F\"'\\?#;="


class LosesAnswers(httpx.HTTPTransport):
    """Performs every first request, and loses its answer."""

    losing = True

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        response = super().handle_request(request)
        self.losing = not self.losing
        if not self.losing:
            response.read()
            raise httpx.ReadError("planted")
        return response


def test_a_batch_whose_answer_is_lost_is_learned_once(shared_server):
    http = httpx.Client(base_url=shared_server.url, transport=LosesAnswers())
    with Client(http=http) as client:
        client.create("sources-1", SPEC)
        got = client.learn(
            "sources-1", [[1, 0, 0, 0]] * 3, [1, 0, 1], source=Source(NAME, 5, 9, first=True)
        )
        assert (got.duplicate, got.count, got.source.name, got.source.next) == (True, 0, NAME, 10)
        got = client.learn("sources-1", [1, 0, 0, 0], 1, source=Source(NAME, 10, 10, lag=3))
        assert (got.duplicate, got.seq) == (True, 4)
        [cursor] = client.sources("sources-1")
        assert (cursor.name, cursor.next, cursor.rows, cursor.lag) == (NAME, 11, 4, 3)
        client.forget_source("sources-1", NAME)
        assert client.sources("sources-1") == []
        assert client.get("sources-1").samples == 4
        client.delete("sources-1")


def test_both_clients_have_sources(shared_server):
    x, y = [[1, 0, 0, 0], ["bad"], [0, 1, 0, 0]], [1, 1, 0]

    async def learn() -> None:
        async with AsyncClient(shared_server.url) as client:
            await client.create("sources-2", SPEC)
            source = Source("s", "a", next="b", first=True)
            got = await client.learn("sources-2", x, y, source=source, scores=True)
            assert (got.count, got.rejected, got.source.next) == (2, 1, "b")
            assert [score is None for score in got.scores] == [False, True, False]
            assert (await client.learn("sources-2", x, y, source=source)).duplicate
            with pytest.raises(Refused) as moved:
                await client.learn("sources-2", x, y, source=Source("s", "c", next="d"))
            assert moved.value.kind == "source-moved" and moved.value.problem["cursor"] == "b"
            assert (await client.set_source("sources-2", "s", 7)).next == 7
            got = await client.learn("sources-2", [], [], source=Source("s", 7, 8))
            assert (got.count, got.duplicate, got.source.next) == (0, False, 9)
            [cursor] = await client.sources("sources-2")
            assert (cursor.rows, cursor.refused) == (2, 1)
            await client.delete("sources-2")

    asyncio.run(learn())


def test_what_cannot_be_sent():
    with Client("http://127.0.0.1:9", patience_s=0) as client:
        for source in (Source("é", 1, 2), Source("s", 2, 1), Source("s", "a"), Source("", 1, 2)):
            with pytest.raises(BadInput):
                client.learn("m", {"a": 1}, 1, source=source)
        with pytest.raises(BadInput, match="either a key or a source"):
            client.learn("m", {"a": 1}, 1, key="k", source=Source("s", 1, 2))
