"""Short requests get the answers that the ASGI routes give, alone and many at once."""

import asyncio
import json
import random
import re
import time
from collections import Counter
from typing import Any
from urllib.parse import quote

import pytest

from dualstream.service.api import short_requests
from dualstream.service.http.api_keys import new_key
from dualstream.service.http.connection_limits import State
from dualstream.service.journal import open_journal
from dualstream.service.journal.protocol import Appended, AppendRequest
from dualstream.service.models.creation import create
from tests.service.api.wire import (
    Server,
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
from tests.service.features.guard.support import GUARDED, samples

UNUSUAL = (("x-unusual", "1"),)
"""A header with which a request makes an ASGI cycle."""
MODELS: dict[str, Any] = {
    "binary": SPEC | {"features": {"kind": "indexed", "dim": 6}},
    "named": {"algorithm": "sgd", "features": "hashed"},
    "number": {"algorithm": "sgd", "task": "regression", "features": "hashed"},
    "classes": {"algorithm": "sgd", "task": "multiclass", "features": "hashed"},
    "yes-or-no": {"algorithm": "sgd", "features": "hashed", "labels": ["no", "yes"]},
    "flat": {"algorithm": "sgd", "columns": {"label": "clicked", "types": {"site": "category"}}},
    "default": {"columns": {"types": {"site": "category"}, "id": "meta.id"}},
}
VALUES = [
    "0", "1", "-0.0", "1.5", "1e3", "1e100", "1.0000001e100", "-1e308", "1e400", "9007199254740993",
    "true", "false", "null", '"1"', '"oslo"', '"Ä"', '"Ä"', '"\\u0041"', '""', "[]", "{}",
    "[1]", "NaN", "Infinity", "01", "1.", ".5", "1" * 30, '"' + "x" * 1100 + '"', '"\\ud800"',
]  # fmt: skip
NAMES = [
    "1",
    "2",
    "5",
    "6",
    "7",
    "0",
    "a",
    "b",
    "site",
    "clicked",
    "id",
    "y",
    "x",
    "Ä",
    "\\u0061",
    "",
]
LABELS = ["0", "1", "-1", "true", "false", '"yes"', '"no"', '"cat"', '"dog"', "2.5", "null", '"1"']
WHOLE = [
    b"", b" ", b"\n", b"{}", b"[]", b"null", b"1", b'"x"', b"{", b"}", b"\xff", b'{"x":',
    b"\xef\xbb\xbf{}",
    b'{"x":{"1":1},"y":1}{"x":{"1":1},"y":1}', b'{"x":{"1":1},"y":1}\n{"x":{"1":2},"y":0}',
    b'[{"x":{"1":1},"y":1}]', b'{"samples":[{"x":{"1":1},"y":1}]}',
    b'{"x":[{"1":1},{"1":2}],"y":[1,0]}',
    b'{"samples":1}', b'[{"clicked":1,"a":2}]', b'{"x":[1,2,3,4,5],"y":1}', b'{"x":[1,2],"y":1}',
]  # fmt: skip
QUERIES = ["x=1:1", "x=1:.5,3:2", "x=9:1", "x=", "x.a=1", "x.a=oslo&x.b=2", "x.site=b",
           "x=1:1&x.a=1", "", "y=1", "x=1:1&min_seq=0", "x=1:1&explain=true", "x=1:1&x=2:1",
           "x.%C3=1", "x.a=%FF", "x=1:1&version=none", "x=1:1&min_seq=x"]  # fmt: skip


GOOD_LABELS = {
    "binary": "0 1 -1 true",
    "number": "2.5 -1 0 1e3",
    "classes": '"cat" "dog" 1 true',
    "yes-or-no": '"yes" "no"',
}


def good_row(chance: random.Random, model: str) -> bytes:
    """A row that the model takes."""
    label = chance.choice(GOOD_LABELS.get(model, "0 1 true false").split())
    x = {name: float(chance.choice(VALUES[:5])) for name in chance.sample(NAMES[:3], 2)}
    if model in ("flat", "default"):
        role = "clicked" if model == "flat" else "y"
        row = {"site": chance.choice("abÄ"), **x, role: json.loads(label)}
    else:
        row = {"x": x, "y": json.loads(label)}
    if chance.random() < 0.2:
        row["meta.id" if model == "default" else "id"] = f"{{{chance.randrange(40)}}}"
    return json.dumps(row, ensure_ascii=chance.random() < 0.5).encode()


def odd_row(chance: random.Random) -> bytes:
    """A row, mostly one that some of the models take."""
    if chance.random() < 0.1:
        return chance.choice(WHOLE)
    few = VALUES[:4] if chance.random() < 0.6 else VALUES
    names = NAMES[:6] if chance.random() < 0.7 else NAMES
    fields = [f'"{chance.choice(names)}":{chance.choice(few)}' for _ in range(chance.randrange(5))]
    label = chance.choice(LABELS[:6] if chance.random() < 0.7 else LABELS)
    if chance.random() < 0.5:
        pieces = [*fields, f'"clicked":{label}' if chance.random() < 0.6 else f'"y":{label}']
    else:
        pieces = ['"x":{' + ",".join(fields) + "}"]
        if chance.random() < 0.9:
            pieces.append(f'"y":{label}')
    if chance.random() < 0.1:
        pieces.append(f'"id":{chance.choice(["1", chr(34) + "a" + chr(34), "null", "1.5"])}')
    if chance.random() < 0.1:
        pieces.append(f'"weight":{chance.choice(VALUES[:6])}')
    chance.shuffle(pieces)
    space = chance.choice(["", "", " ", "\n", "\r\n\t"])
    text = ("{" + f",{space}".join(pieces) + space + "}").encode()
    if chance.random() < 0.05:  # damage it
        at = chance.randrange(len(text))
        text = text[:at] + bytes([chance.randrange(256)]) + text[at + chance.randrange(3) :]
    return text


def odd_request(chance: random.Random, kinds: str = "learn learn predict get any key") -> tuple:
    """Method, target, body and headers."""
    kind, model = (
        chance.choice(kinds.split()),
        chance.choice([*MODELS, *MODELS, "none", "a.b", "~"]),
    )
    headers: list[tuple[str, str]] = []
    if chance.random() < 0.1:
        headers.append(("x-request-id", chance.choice(["mine", "bad id", "é", "i" * 200])))
    if chance.random() < 0.1:
        headers.append(("accept", chance.choice(["*/*", "application/json", "text/html"])))
    if kind == "get":
        return "GET", f"/models/{model}/predict?{chance.choice(QUERIES)}", b"", headers
    if kind == "any":
        named = f"model={quote(model)}&" if chance.random() < 0.9 else ""
        return "GET", f"/predict?{named}{chance.choice(QUERIES)}", b"", headers
    if kind == "key":
        keys = [f"k{chance.randrange(1000)}"] * 15 + ["é", "k" * 256, "\x80"]
        headers.append(("idempotency-key", chance.choice(keys)))
    action = "predict" if kind == "predict" else "learn"
    row = good_row(chance, model) if chance.random() < 0.5 else odd_row(chance)
    return "POST", f"/models/{model}/{action}", row, headers


async def compare(one: Server, other: Server, requests: list[tuple]) -> Counter[bytes]:
    """Send each request to both servers, as a short one and by ASGI. Returns their statuses."""
    statuses: Counter[bytes] = Counter()
    for method, target, body, headers in requests:
        [short] = await one.ask(request(method, target, body, headers))
        [by_asgi] = await other.ask(request(method, target, body, [*headers, *UNUSUAL]))
        assert comparable(short) == comparable(by_asgi), (method, target, body, headers)
        statuses[short.split()[1]] += 1
    return statuses


def test_2000_odd_requests_get_the_answers_of_the_asgi_routes(tmp_path):
    async def got() -> None:
        chance = random.Random(7)
        async with (
            serving(f"sqlite:///{tmp_path / 'one.db'}") as one,
            serving(f"sqlite:///{tmp_path / 'other.db'}") as other,
        ):
            for model, spec in MODELS.items():
                await one.ask(put(model, spec))
                await other.ask(put(model, spec))
            one.by_asgi.clear()
            statuses = await compare(one, other, [odd_request(chance) for _ in range(2000)])
            assert not one.by_asgi and len(other.by_asgi) == 2000 + len(MODELS)
            assert statuses[b"200"] > 600 and statuses[b"422"] > 300 and statuses[b"400"] > 20
            for model in MODELS:
                target = request("GET", f"/models/{model}?digest=true")
                views = [body_of((await server.ask(target))[0]) for server in (one, other)]
                assert views[0]["state_digest"] == views[1]["state_digest"] and views[0]["seq"]

    run(got)


OF_KEYS = (
    b"idempotency-replayed: true",
    b"idempotency-key-reused",
    b'"duplicates":',
    b"another sample",
)


async def digest_of(server: Server, model: str) -> str:
    [answer] = await server.ask(request("GET", f"/models/{model}?digest=true"))
    return body_of(answer)["state_digest"]


class Counted:
    """A journal that counts the parts of each append."""

    def __init__(self, journal: Any) -> None:
        self._journal, self.parts = journal, []

    async def append(self, request: AppendRequest) -> Appended:
        self.parts.append(len(request.parts))
        return await self._journal.append(request)


def is_joined(body: bytes) -> bool:
    """Is it one row, so that the rows of all requests are learned in their order?"""
    apart = (b'"samples"', b'"y":[')
    return body[:1] == b"{" and not any(mark in body for mark in apart)


@pytest.mark.parametrize("kinds", ["learn", "learn key key key"])
def test_requests_at_once_get_the_answers_of_requests_one_by_one(tmp_path, kinds):
    """Also beside bad rows, which leave the group, and in groups that are parsed by kernels."""

    async def got() -> None:
        chance = random.Random(8)
        learns = []
        while len(learns) < 1500:
            one_more = odd_request(chance, kinds)
            if learns and chance.random() < 0.2:
                again = chance.choice(learns[-50:])
                one_more = (*again[:3], chance.choice([again, one_more])[3])
            if is_joined(one_more[2]):
                learns.append(one_more)
        predictions = [odd_request(chance, "predict get any") for _ in range(500)]
        async with (
            serving(f"sqlite:///{tmp_path / 'one.db'}") as one,
            serving(f"sqlite:///{tmp_path / 'other.db'}") as other,
        ):
            for model, spec in MODELS.items():
                await one.ask(put(model, spec))
                await other.ask(put(model, spec))
            seen: Counter[bytes] = Counter()
            for requests in (learns, predictions):
                while requests:
                    count = chance.choice([1, 2, 5, 30, 200])
                    together, requests = requests[:count], requests[count:]
                    short = await one.ask(*(request(*each) for each in together))
                    for each, answer in zip(together, short, strict=True):
                        *line, headers = each
                        [by_asgi] = await other.ask(request(*line, [*headers, *UNUSUAL]))
                        assert comparable(answer) == comparable(by_asgi), each
                        seen.update(mark for mark in OF_KEYS if mark in answer)
            assert all(seen[mark] > 10 for mark in OF_KEYS if kinds != "learn"), seen
            assert all([await digest_of(one, m) == await digest_of(other, m) for m in MODELS])

    run(got)


def test_rows_with_keys_and_ids_share_an_append(tmp_path):
    keyed = [
        request("POST", "/models/m/learn", b'{"x":{"1":%d},"y":1}' % n, [("idempotency-key", key)])
        for n, key in enumerate(["a", "b", "c", "d", "a", "\x80"])
    ]
    named = [
        request("POST", "/models/m/learn", b'{"x":{"1":1},"y":%d,"id":"%b"}' % (y, id_))
        for y, id_ in ((1, b"a"), (1, b"b"), (1, b"a"), (0, b"a"))
    ]

    async def got() -> None:
        async with serving(f"sqlite:///{tmp_path / 'a.db'}") as server:
            await server.ask(put("m", SPEC))
            counted = wrap(server, Counted)
            answers = await server.ask(*keyed, keyed[1], request("POST", "/models/m/learn", GOOD))
            statuses = [answer.split()[1] for answer in answers]
            assert statuses == [b"200"] * 4 + [b"422"] * 2 + [b"200"] * 2
            assert b"idempotency-replayed: true" in answers[6]
            assert body_of(answers[6]) == body_of(answers[1]) | {"duplicate": True}
            learned = [body_of(answer)["seq"] for answer in (*answers[:4], answers[7])]
            assert learned == [1, 2, 3, 4, 5]
            results = [body_of(answer) for answer in await server.ask(*named)]
            assert [result.get("seq") for result in results] == [6, 7, 6, None]
            assert results[2]["duplicates"] == [{"index": 0, "seq": 6}]
            assert results[3]["errors"][0]["pointer"] == "/id"
            assert counted.parts == [7, 4]

    run(got)


def test_rows_of_a_paused_model_and_rows_that_are_refused_when_learned(tmp_path):
    spec = {"algorithm": "sgd", "task": "regression", "features": {"kind": "indexed", "dim": 5}}

    async def got() -> None:
        async with (
            serving(f"sqlite:///{tmp_path / 'one.db'}") as one,
            serving(f"sqlite:///{tmp_path / 'other.db'}") as other,
        ):
            for server in (one, other):
                await server.ask(put("m", GUARDED), put("n", spec))
                rows = json.dumps({"samples": [*samples(0, 203), *samples(203, 403, bad=True)]})
                await server.ask(request("POST", "/models/m/learn", rows.encode()))
                while True:
                    view = body_of((await server.ask(request("GET", "/models/m")))[0])
                    if (view["paused"] or {}).get("is_settled"):
                        break
                    await asyncio.sleep(0.01)
            row = json.dumps(samples(500, 501)[0]).encode()
            huge = b'{"x":[1e100,1e100,1e100,1e100,1e100],"y":-1e100}'
            requests = [
                ("POST", "/models/m/learn", row, ()),
                ("POST", "/models/m/predict", row.replace(b'"y"', b'"weight"'), ()),
                *[("POST", "/models/n/learn", huge, ())] * 2,
            ]
            await compare(one, other, requests)
            together = await one.ask(*(request(*each) for each in requests[:1] * 3))
            assert [body_of(each)["rejected"] for each in together] == [1, 1, 1]
            assert all(b"paused: the row waits" in each for each in together)
            assert len({body_of(each)["seq"] for each in together}) == 3

    run(got)


KEYS = {
    "reader": new_key("reader", "predict"),
    "producer": new_key("producer", "learn", ("m*",)),
    "others": new_key("others", "learn", ("x*",)),
    "few-rows": new_key("few-rows", "learn", rows=5),
    "few": new_key("few", "learn", requests=5),
}
GOOD = b'{"x":{"1":1},"y":1}'


def by(name: str) -> tuple[str, str]:
    return ("authorization", f"Bearer {KEYS[name][0]}")


def test_keys_are_checked_as_for_the_asgi_routes(tmp_path):
    keys = ";".join(key.line() for _, key in KEYS.values())

    async def got() -> None:
        async with (
            serving(f"sqlite:///{tmp_path / 'one.db'}", keys=keys) as one,
            serving(f"sqlite:///{tmp_path / 'other.db'}", keys=keys) as other,
        ):
            for server in (one, other):
                await create(server.app._registry, "m", SPEC)
            headers = [(), [("authorization", "Bearer ds_wrong")], [("authorization", "Basic x")]]
            headers += [[by(name)] for name in ("reader", "producer", "others")]
            requests = [
                (method, target, GOOD if method == "POST" else b"", some)
                for some in headers
                for method, target in (
                    ("POST", "/models/m/learn"),
                    ("POST", "/models/other/learn"),
                    ("GET", "/models/m/predict?x=1:1"),
                    ("GET", "/predict?model=m&x=1:1"),
                    ("GET", "/predict?x=1:1"),
                )
            ]
            statuses = await compare(one, other, requests)
            assert set(statuses) == {b"200", b"401", b"403", b"404", b"422"}

    run(got)


@pytest.mark.parametrize("name", ["few-rows", "few"])
def test_rate_limits_count_rows_that_are_learned_together(name, tmp_path):
    keys = KEYS[name][1].line()

    async def got() -> None:
        async with serving(f"sqlite:///{tmp_path / 'a.db'}", keys=keys) as server:
            await create(server.app._registry, "m", SPEC)
            began = time.monotonic()
            learn = request("POST", "/models/m/learn", GOOD, [by(name)])
            answers = await server.ask(*[learn] * 60)
            statuses = Counter(answer.split()[1] for answer in answers)
            assert set(statuses) == {b"200", b"429"}
            assert statuses[b"200"] <= 5 * (3 + time.monotonic() - began)
            model = server.app._registry.find("m")
            assert model.replica.learner.samples == statuses[b"200"]

    run(got)


def ids_of(answers: list[bytes]) -> list[int]:
    return [int(re.search(rb"x-request-id: n(\d+)", answer)[1]) for answer in answers]


def test_pipelined_requests_are_answered_in_order_however_they_arrive(tmp_path):
    async def got() -> None:
        chance = random.Random(3)
        async with serving(f"sqlite:///{tmp_path / 'a.db'}") as server:
            await server.ask(put("m", SPEC))
            for _ in range(20):
                count = chance.choice([1, 3, 40])
                sent = b""
                for number in range(count):
                    headers = [("x-request-id", f"n{number}")]
                    headers += UNUSUAL if chance.random() < 0.3 else ()
                    headers += [("idempotency-key", "k")] if chance.random() < 0.1 else []
                    body = chance.choice([GOOD, GOOD, b"{", b""])
                    kind = chance.choice(
                        [("POST", "learn"), ("POST", "predict"), ("GET", "predict?x=1:1")]
                    )
                    body = body if kind[0] == "POST" else b""
                    sent += request(kind[0], f"/models/m/{kind[1]}", body, headers)
                one, line = server.connect()
                while sent:
                    size = chance.choice([1, 7, 100, 5000])
                    one.data_received(sent[:size])
                    sent = sent[size:]
                    if chance.random() < 0.1:
                        await asyncio.sleep(0)
                assert ids_of(await answered(line, count)) == list(range(count))
                assert one.state() is State.IDLE and not line.is_closed

    run(got)


def test_a_connection_that_ends_while_its_row_is_learned(tmp_path):
    learn = request("POST", "/models/m/learn", GOOD)

    async def got() -> None:
        async with serving(f"sqlite:///{tmp_path / 'a.db'}") as server:
            await server.ask(put("m", SPEC))
            gone, line = server.connect()
            gone.data_received(learn)
            assert gone.state() is State.ANSWER
            line.close()
            gone.connection_lost(None)
            half, its_line = server.connect()
            half.data_received(learn)
            assert half.eof_received()  # it stays for the answer
            [answer] = await answered(its_line, 1)
            assert b"\r\nconnection: close\r\n" in answer and its_line.is_closed
            cut, cut_line = server.connect()
            cut.data_received(learn[:-3])
            assert cut.state() is State.BODY and not cut.eof_received()
            assert cut_line.written.startswith(b"HTTP/1.1 400") and cut_line.is_closed
            broken, broken_line = server.connect()
            broken.data_received(learn + b"nonsense\r\n\r\n")
            first, second = await answered(broken_line, 2)
            assert first.startswith(b"HTTP/1.1 200") and second.startswith(b"HTTP/1.1 400")
            stopped, stopped_line = server.connect()
            stopped.data_received(learn)
            stopped.shutdown()
            assert not stopped_line.is_closed
            await answered(stopped_line, 1)
            assert stopped_line.is_closed
            server.app.drain()
            [drained] = await server.ask(learn)
            assert b"\r\nconnection: close\r\n" in drained
            assert server.app._registry.find("m").replica.learner.samples == 5

    run(got)


@pytest.mark.parametrize("has_keys", [False, True])
def test_a_model_that_is_replaced_while_its_rows_wait_learns_them(tmp_path, has_keys):
    keys = [[("idempotency-key", f"{n}")] if has_keys else [] for n in range(20)]

    async def got() -> None:
        async with serving(f"sqlite:///{tmp_path / 'a.db'}") as server:
            await server.ask(put("m", SPEC), put("n", SPEC))
            await server.ask(request("POST", "/models/m/learn", GOOD))
            # As another process does it: this one notices it by its append.
            journal = await open_journal(f"sqlite:///{tmp_path / 'a.db'}")
            before = await journal.get("m")
            await journal.delete("m", before.incarnation)
            await journal.create("m", before.spec, before.spec)
            learns = [request("POST", "/models/m/learn", GOOD, key) for key in keys]
            answers = await server.ask(*learns)
            assert sorted(body_of(answer)["seq"] for answer in answers) == list(range(1, 21))
            await journal.close()

    run(got)


@pytest.mark.parametrize(
    ("headers", "is_short"),
    [
        ([], True),
        ([("connection", "Keep-Alive"), ("accept", "*/*"), ("user-agent", "x")], True),
        ([("connection", ""), ("x-forwarded-for", "1.2.3.4"), ("x-real-ip", "1.2.3.4")], True),
        ([("connection", "close")], False),
        ([("connection", "upgrade"), ("upgrade", "h2c")], False),
        ([("accept", "application/x-NDJSON")], False),
        ([("content-encoding", "gzip")], False),
        ([("dualstream-source", "a; next=1")], False),
        ([("origin", "https://example.org")], False),
        ([("expect", "100-continue")], False),
        ([("accept", "*/*"), ("accept", "application/x-ndjson")], False),
        ([("content-type", "text/csv")], False),
    ],
)
def test_a_head_with_anything_unusual_makes_an_asgi_cycle(headers, is_short, tmp_path):
    async def got() -> None:
        async with serving(f"sqlite:///{tmp_path / 'a.db'}") as server:
            for target in ("/models/m/learn", "/models/m/predict"):
                await server.ask(request("POST", target, GOOD, headers))
            assert len(server.by_asgi) == (0 if is_short else 2)
            long = b'{"x":{"1":1},' + b" " * 16 * 1024 + b'"y":1}'
            await server.ask(request("POST", "/models/m/learn", long))
            await server.ask(request("POST", "/models/m/learn?atomic=true", GOOD))
            await server.ask(request("POST", "/models/m%20/learn", GOOD))
            assert len(server.by_asgi) == (3 if is_short else 5)

    run(got)


def test_many_or_long_rows_are_parsed_in_groups_of_limited_size(tmp_path, monkeypatch):
    """Else the event loop serves nothing while hundreds of escaped rows are parsed."""
    parsed, parse = [], short_requests.parse_chunk

    def noted(schema: Any, kind: str, body: bytes, *, labelled: bool) -> Any:
        parsed.append((body.count(b"\n") + 1, len(body)))
        return parse(schema, kind, body, labelled=labelled)

    monkeypatch.setattr(short_requests, "parse_chunk", noted)

    async def got() -> None:
        async with serving(f"sqlite:///{tmp_path / 'a.db'}") as server:
            await server.ask(put("m", SPEC))
            long = b'{"x":{"1":1},' + b" " * 10_000 + b'"y":1}'
            for body, count in ((GOOD, 280), (long, 30)):
                for action in ("learn", "predict"):
                    await server.ask(*[request("POST", f"/models/m/{action}", body)] * count)
        rows, sizes = zip(*parsed, strict=True)
        assert sum(rows) == 2 * (280 + 30)
        assert max(rows) <= short_requests.MAX_GROUP_ROWS
        assert max(sizes) <= short_requests.MAX_GROUP_BYTES + len(long)

    run(got)
