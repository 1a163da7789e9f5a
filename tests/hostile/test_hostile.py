"""A few of each hostile client: answered or closed, and other clients lose nothing."""

import asyncio

import httpx
import pytest

from dualstream.service.cli.demo.server_process import ServerProcess
from tests.hostile.attacks import ATTACKS
from tests.hostile.talk import Target, request, talk

LIMIT_S = 0.5
SECONDS = 2.0
SPEC = {"algorithm": "dual_ascent", "features": {"kind": "indexed", "dim": 5}}
ENVIRONMENT = {"HOSTILE_TIMEOUT_S": str(LIMIT_S)}


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    with (folder / "log").open("w") as log:
        with ServerProcess(
            f"sqlite:///{folder / 'h.db'}",
            ["--keep-alive-s", "1", "--log-level", "error"],
            env=ENVIRONMENT,
            stderr=log,
            module="tests.hostile.server",
        ) as running:
            httpx.put(f"{running.url}/models/m", json=SPEC).raise_for_status()
            host, _, port = running.url.removeprefix("http://").partition(":")
            yield Target(host, int(port), "m", LIMIT_S, LIMIT_S)
    # No attack caused an internal error.
    assert (folder / "log").read_text() == ""


def test_every_hostile_client_is_answered_or_closed(target):
    async def all_at_once() -> list:
        runs = [one.run(one, target, one.few, SECONDS) for one in ATTACKS.values()]
        return await asyncio.gather(*runs, asyncio.create_task(calm(target)))

    model = f"http://{target.host}:{target.port}/models/m"
    before = httpx.get(model).json()["samples"]
    *result, learned = asyncio.run(all_at_once())
    for (name, attack), outcomes in zip(ATTACKS.items(), result, strict=True):
        assert outcomes.total() >= attack.few and set(outcomes) <= attack.ends, (name, outcomes)
    assert httpx.get(model).json()["samples"] == before + learned > before


async def calm(target: Target) -> int:
    """Learn during the attack, each row with a key until it is answered; returns the count."""
    async with httpx.AsyncClient(base_url=f"http://{target.host}:{target.port}") as client:
        for number in range(20):
            row, key = {"x": {"1": number}, "y": number % 2}, {"idempotency-key": str(number)}
            while True:
                try:
                    answer = await client.post("/models/m/learn", json=row, headers=key, timeout=30)
                except httpx.TransportError:  # closed as idle, to free a connection
                    continue
                assert answer.status_code == 200, answer.text
                break
            await asyncio.sleep(0.1)
    return number + 1


def test_what_was_asked_before_garbage_is_answered_first(target):
    row = request(b"POST", target.learn, b'{"x": {"1": 1}, "y": 1}', close=False)
    heard = asyncio.run(talk(target, row * 3 + b"\x00garbage"))
    assert heard.statuses == [200, 200, 200, 400] and heard.is_closed
    assert heard.data.rstrip().endswith(b"}") and b"/problems/malformed-request" in heard.data
    # A head above the limit is refused also in one piece.
    for size, status in ((60_000, 200), (70_000, 431)):
        query = request(b"GET", b"/livez", b"", b"x: " + b"a" * size)
        assert asyncio.run(talk(target, query)).statuses == [status]
    for method in (b"GET", b"POST"):  # an upgrade to an unknown protocol is ignored
        upgrade = (b"connection: upgrade", b"upgrade: websocket")
        got = asyncio.run(talk(target, request(method, b"/livez", b"", *upgrade))).statuses
        assert got == [200 if method == b"GET" else 405]


def test_a_connection_that_is_idle_after_an_answer_is_closed(target):
    heard = asyncio.run(talk(target, request(b"GET", b"/livez", close=False) + b"\r\n" * 100))
    assert heard.statuses == [200] and heard.is_closed


@pytest.mark.parametrize("settings", [(), (b"http2-settings: AAEAAEAAAAIAAAABAAMAAABk",)])
def test_the_body_of_a_request_that_asks_for_an_upgrade_is_no_request(target, settings):
    url = f"http://{target.host}:{target.port}/models/victim"
    httpx.delete(url)
    assert httpx.put(url, json=SPEC).status_code == 201
    tokens = b"connection: " + b", ".join([b"Upgrade", *(b"HTTP2-Settings" for _ in settings)])
    upgrade = (tokens, b"upgrade: h2c", *settings)
    inner = request(b"DELETE", b"/models/victim", close=False)
    last = request(b"GET", b"/models/victim")
    for size in (0, 120_000):
        body = inner + b" " * size
        smuggling = request(b"POST", b"/models/m/predict", body, *upgrade, close=False)
        assert asyncio.run(talk(target, smuggling + last)).statuses == [400, 200]
    row = b'{"x": {"1": 1}, "y": 1}'
    rows = (row, b'{"samples": [' + b", ".join([row] * 5000) + b"]}")
    for count, body in zip((1, 5000), rows, strict=True):
        learning = request(b"POST", b"/models/victim/learn", body, *upgrade, close=False)
        heard = asyncio.run(talk(target, learning + last))
        assert heard.statuses == [200, 200] and b'"count":%d,' % count in heard.data
    assert httpx.get(url).json()["samples"] == 5001
    coded = (*upgrade, b"transfer-encoding: chunked")
    for body, status in ((inner, 400), (row, 200)):
        head = request(b"POST", b"/models/victim/learn", b"", *coded, close=False)
        chunked = head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
        assert asyncio.run(talk(target, chunked + last)).statuses == [status, 200]
    assert httpx.get(url).json()["samples"] == 5002


def test_a_key_of_one_model_says_nothing_of_another(target):
    url = f"http://{target.host}:{target.port}"
    with httpx.Client(base_url=url, headers={"idempotency-key": "of-both"}) as client:
        for model in ("a", "b"):
            assert client.put(f"/models/{model}", json=SPEC).status_code == 201
        rows = {"a": {"x": {"1": 1}, "y": 1}, "b": {"x": {"2": 1}, "y": 0}}
        first = {model: client.post(f"/models/{model}/learn", json=rows[model]) for model in rows}
        for model, other in (("a", "b"), ("b", "a")):
            again = client.post(f"/models/{model}/learn", json=rows[model])
            assert again.headers["idempotency-replayed"] == "true"
            assert again.json() == first[model].json() | {"duplicate": True}
            assert client.post(f"/models/{model}/learn", json=rows[other]).status_code == 422
            assert client.get(f"/models/{model}").json()["samples"] == 1
