"""Rows that are observed: as requests of `learn`, by the same code, to another route."""

import json
from collections.abc import Callable

import httpx
import pytest

from dualstream.client import BadInput, Client, Refused, RowFile, Source
from tests.client.support import flat


class Recorder:
    """Answers each request as the server does, if the rows with `bad` in them are refused."""

    def __init__(self) -> None:
        self.requests: list[httpx.Request] = []

    def client(self) -> Client:
        transport = httpx.MockTransport(self.answer)
        return Client(http=httpx.Client(base_url="http://x", transport=transport), patience_s=0.0)

    def answer(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        if request.method == "GET":
            return httpx.Response(200, json={"sources": []})
        lines = [line for line in request.content.split(b"\n") if line]
        if request.headers["content-type"] == "text/csv":
            lines = lines[1:]
        errors = [
            {"index": index, "line": index + 2, "reason": "no"}
            for index, line in enumerate(lines)
            if b"bad" in line
        ]
        good = len(lines) - len(errors)
        answer = {"model": "m", "seq": 9, "count": good, "rejected": len(errors)}
        answer |= {"learned": good, "mistakes": 0, "loss": 0.5, "duplicate": False}
        if request.url.path.endswith("/observe"):
            answer |= {"learned": 0, "mistakes": None, "loss": None}
        if "dualstream-source" in request.headers:
            answer["source"] = {"name": "s", "next": 0}
        return httpx.Response(200, json=answer | ({"errors": errors} if errors else {}))


def requests_of(call: Callable[[Client], object]) -> list[tuple[str, dict[str, str], bytes]]:
    network = Recorder()
    call(network.client())
    names = ("idempotency-key", "dualstream-source", "content-type")
    return [
        (
            str(one.url.copy_with(path="/", query=one.url.query)),
            {name: one.headers[name] for name in names if name in one.headers},
            one.content,
        )
        for one in network.requests
        if one.method == "POST"
    ]


ROW = {"card": "a", "at": "2026-05-06T09:30:00Z", "amount": 3.5}


def test_what_is_observed_is_sent_as_what_is_learned(subtests, tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("card,amount\na,1\nb,2\n")
    file = RowFile(str(path), "text/csv")
    for name, x, options in [
        ("one", ROW, {"ids": "i", "key": "k"}),
        ("many", [ROW, ROW], {"ids": ["i", "j"], "key": "k", "rows_per_request": 1}),
        ("array", [[1, 2]], {"names": ["card", "amount"], "key": "k"}),
        ("batch", [ROW], {"source": Source("s", 4, 5)}),
        ("one of a batch", ROW, {"source": Source("s", 4, 4)}),
        ("table", flat(10), {"key": "k"}),
        ("table of a source", flat(10), {"source": "s", "offset": 7}),
    ]:
        with subtests.test(name):
            sent = requests_of(lambda client, x=x, more=options: client.observe("m", x, **more))
            assert sent == requests_of(
                lambda client, x=x, more=options: client.learn("m", x, **more)
            )
    with subtests.test("file"):
        sent = requests_of(lambda client: client.observe_file("m", file))
        assert len(sent) == 1 and sent == requests_of(lambda client: client.learn_file("m", file))
    with subtests.test("lines"):
        batch = Source("s", 0, 1)
        sent = requests_of(lambda client: client.observe_lines("m", b"{}\n{}", source=batch))
        learned = requests_of(lambda client: client.learn_lines("m", b"{}\n{}", source=batch))
        assert len(sent) == 1 and sent == learned


def test_observed_rows_go_to_their_route():
    network = Recorder()
    client = network.client()
    client.observe("m", [ROW])
    client.observe("m", ROW)
    client.observe_lines("m", b"", source=Source("s", 0, 1))
    assert [one.url.raw_path for one in network.requests] == [b"/models/m/observe"] * 3
    many = "\n".join(json.dumps({"x": ROW} | {"id": "bad" * (n % 2)}) for n in range(4))
    got = client.observe_lines("m", many.encode(), source=Source("s", 2, 5))
    assert (got.learned, got.count, got.rejected) == (0, 2, 2)


def test_errors_of_observed_files_have_the_index_in_the_file(tmp_path):
    path = tmp_path / "rows.csv"
    rows = [f"{'bad' if n % 1000 == 999 else 'a'},{n:0400}" for n in range(6000)]
    path.write_text("\n".join(["card,amount", *rows]))
    network = Recorder()
    got = network.client().observe_file("m", RowFile(str(path), "text/csv"))
    assert (got.chunks, got.count, got.rejected, got.learned) == (3, 5994, 6, 0)
    assert [error["index"] for error in got.errors] == [999, 1999, 2999, 3999, 4999, 5999]
    assert [error["line"] for error in got.errors] == [1001, 2001, 3001, 4001, 5001, 6001]


def test_refusals_are_raised_and_what_cannot_be_sent_is_not():
    problem = {"type": "/problems/nothing-to-observe", "detail": "no history", "status": 409}
    network = httpx.MockTransport(lambda _: httpx.Response(409, json=problem))
    with Client(http=httpx.Client(base_url="http://x", transport=network)) as client:
        with pytest.raises(Refused) as refused:
            client.observe("m", [ROW])
        assert refused.value.kind == "nothing-to-observe"
        for more in ({"key": "k", "source": Source("s", 1, 2)}, {"offset": 3}, {"ids": ["a", "b"]}):
            with pytest.raises(BadInput):
                client.observe("m", [ROW], **more)
