"""Compressed bodies are what they hold: up to a limit, whole, or refused."""

import asyncio
import gzip
import json
import random
import time
import tracemalloc

import pytest
import zstandard
from hypothesis import given, strategies as st

from dualstream.service.codecs.decompress import Inflating
from dualstream.service.http import request_body
from dualstream.service.http.body_memory import BodyMemory, release_body
from dualstream.service.http.request_head import Head
from dualstream.wire.problem_json import Problem
from tests.fuzzing import examples
from tests.service.conftest import SPEC, assert_problem

LIMIT = 1 << 20
COMPRESS = {"gzip": gzip.compress, "zstd": zstandard.compress}
ENCODINGS = sorted(COMPRESS)
BODY = json.dumps({"samples": [{"x": {"1": k / 7}, "y": k % 2} for k in range(50)]}).encode()


def inflated(encoding: str, chunks: list[bytes], limit: int = LIMIT) -> bytes | int:
    """What the chunks hold, or the status of their refusal."""
    inflating = Inflating(encoding, limit)
    try:
        kept = b"".join(piece for chunk in chunks for piece in inflating.pieces(chunk))
        inflating.finish()
    except Problem as problem:
        return problem.status
    return kept


@given(st.data())
@examples(25)
def test_any_cut_and_any_number_of_members_hold_the_same(data):
    encoding = data.draw(st.sampled_from(ENCODINGS))
    random_ = random.Random(data.draw(st.integers(0, 2**32)))
    size = st.sampled_from([0, 1, 100, 70_000, 300_000])
    parts = [
        random_.randbytes(n // 2) + bytes(n - n // 2)
        for n in data.draw(st.lists(size, min_size=1, max_size=3))
    ]
    sent = b"".join(COMPRESS[encoding](part) for part in parts)
    cuts = sorted(random_.randint(0, len(sent)) for _ in range(data.draw(st.integers(0, 5))))
    chunks = [sent[a:b] for a, b in zip([0, *cuts], [*cuts, len(sent)], strict=True)]
    assert inflated(encoding, chunks) == b"".join(parts)
    short = sent[: -data.draw(st.integers(1, 4))]
    assert inflated(encoding, [short]) == 400, "cut short"
    whole = sum(map(len, parts))
    assert inflated(encoding, chunks, whole) == b"".join(parts)
    if whole:
        assert inflated(encoding, chunks, whole - 1) == 413


@given(st.sampled_from(ENCODINGS), st.binary(max_size=60))
@examples(60)
def test_any_bytes_are_inflated_or_refused(encoding, sent):
    for given_ in (sent, COMPRESS[encoding](BODY)[:-4] + sent, COMPRESS[encoding](BODY) + sent):
        assert inflated(encoding, [given_]) == BODY or inflated(encoding, [given_]) in (400, b"")


def test_a_frame_that_holds_less_than_it_says_is_damaged_however_it_comes():
    frame = bytes.fromhex("28b52ffd205c010000")  # it says 92 bytes, and holds none
    for sent in (frame, frame + zstandard.compress(BODY), zstandard.compress(BODY) + frame):
        for step in (1, 3, len(sent)):
            pieces = [sent[at : at + step] for at in range(0, len(sent), step)]
            assert inflated("zstd", pieces) == 400
    skippable = bytes.fromhex("502a4d1803000000616263")
    assert inflated("zstd", [skippable + zstandard.compress(BODY)]) == BODY


def bomb(encoding: str) -> bytes:
    """256 MiB of zeros in a few bytes."""
    if encoding == "gzip":
        return gzip.compress(bytes(1 << 20), 9) * 256
    return zstandard.ZstdCompressor(write_content_size=False).compress(bytes(1 << 28))


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_bomb_is_refused_while_it_is_inflated(encoding):
    sent = bomb(encoding)
    tracemalloc.start()
    try:
        assert inflated(encoding, [sent]) == 413
        assert tracemalloc.get_traced_memory()[1] < 24 * LIMIT
    finally:
        tracemalloc.stop()


def post(client, body: bytes, encoding: str, **headers):
    given_ = {"content-type": "application/json", "content-encoding": encoding} | headers
    return client.post("/models/m/learn", content=body, headers=given_)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_compressed_request_is_the_same_request(model, encoding):
    headers = {"idempotency-key": "k"}
    first = post(model, COMPRESS[encoding](BODY), encoding.upper(), **headers)
    assert first.status_code == 200 and first.json()["learned"] == 50
    again = post(model, BODY, "identity", **headers)
    assert again.headers["idempotency-replayed"] == "true"
    assert again.json() == first.json() | {"duplicate": True}
    other = post(model, COMPRESS[encoding](BODY.replace(b"7.0", b"8.0")), encoding, **headers)
    assert_problem(other, 422, "idempotency-key-reused")
    rows = COMPRESS[encoding](b'{"x": {"1": 1}}')
    head = {"content-encoding": encoding}
    got = model.post("/models/m/predict", content=rows, headers=head).json()
    assert got["score"] == model.get("/models/m/predict?x=1:1").json()["score"]
    spec = COMPRESS[encoding](json.dumps(SPEC).encode())
    assert model.put("/models/m", content=spec, headers=head).status_code == 200


def test_what_cannot_be_inflated_is_refused(serve):
    client = serve(max_body_bytes=1000)
    client.put("/models/m", json=SPEC)
    good = b'{"x": {"1": 1}, "y": 1}'
    for encoding in ENCODINGS:
        sent = COMPRESS[encoding](good)
        assert post(client, sent, encoding).status_code == 200
        assert_problem(post(client, good, encoding), 400, "malformed-body")
        assert_problem(post(client, sent[:-3], encoding), 400, "malformed-body")
        assert_problem(post(client, b"", encoding), 400, "malformed-body")
        large = COMPRESS[encoding](good + b" " * 1000)
        got = assert_problem(post(client, large, encoding), 413, "body-too-large")
        assert len(large) < 1000 and "1000 bytes" in got["detail"]
    for encoding in ("br", "deflate", "gzip, gzip"):
        got = assert_problem(post(client, good, encoding), 415, "unsupported-media-type")
        assert encoding in got["detail"] and "gzip or zstd" in got["detail"]
    assert client.get("/models/m").json()["samples"] == 2


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_little_comes_out_of_a_bomb_at_a_time_and_of_one_body_after_another(encoding, monkeypatch):
    given_, under_way, sizes, steps = bomb(encoding), 0, [], []
    real, step = Inflating.pieces, request_body._step

    def watched(inflating, chunk):
        for piece in real(inflating, chunk):
            sizes.append(len(piece))
            yield piece

    def counted(pieces):
        nonlocal under_way
        under_way += 1
        some = step(pieces)
        steps.append((under_way, len(some[0])))
        under_way -= 1
        return some

    monkeypatch.setattr(Inflating, "pieces", watched)
    monkeypatch.setattr(request_body, "_step", counted)
    head = Head(content_encoding=encoding)
    bodies = BodyMemory(2**40, time.monotonic)

    async def refused() -> None:
        async def receive():
            return {"type": "http.request", "body": given_, "more_body": False}

        scope: dict = {}
        bodies.track(scope)
        with pytest.raises(Problem, match="when decompressed"):
            await request_body.read_body(receive, head, 16 * LIMIT, scope)
        assert bodies.used <= 4 * 17 * LIMIT
        release_body(scope)

    async def all_at_once() -> None:
        await asyncio.gather(*(refused() for _ in range(4)))

    asyncio.run(all_at_once())
    assert bodies.used == 0
    assert max(sizes) <= LIMIT and max(size for _, size in steps) < 2 * LIMIT
    assert {number for number, _ in steps} == {1}, "one body after the other"


def test_members_that_hold_nothing_are_gone_through_in_steps():
    pieces = Inflating("gzip", LIMIT).pieces(gzip.compress(b"") * 1000)
    results, is_over = [], False
    while not is_over:
        some, is_over = request_body._step(pieces)
        results.append(some)
    assert len(results) > 3 and not any(results)
