"""However many bodies are half sent, what they hold together has a bound."""

import asyncio
import gzip
import json
from itertools import product

import pytest

from dualstream.service.http.body_memory import (
    CANDIDATES,
    CONNECTION,
    GRACE_S,
    SLOW_BYTES_PER_S,
    BodyMemory,
    body_of,
    release_body,
)
from dualstream.service.http.send import PIECE_BYTES as PIECE_OF_ANSWER, send_in_pieces
from dualstream.wire.chunking.chunks import CHUNK_BYTES
from dualstream.wire.problem_json import Problem
from tests.service.conftest import assert_problem

MOST = 1_000_000
PIECE = b" " * 50_000
PLAIN = {"algorithm": "dual_ascent", "features": {"kind": "indexed", "dim": 5}}
ROWS_GO_TO = ["/models/m/learn", "/models/m/predict", "/models/m/labels"]


class Sender:
    """Someone who sends a body to an application in this process piece by piece."""

    def __init__(self, client, path: str, *headers: tuple[bytes, bytes]) -> None:
        self._client, self.said = client, []
        self._pieces = client.portal.call(self._make_queue)
        scope = {"type": "http", "method": "POST", "path": path, "query_string": b""}
        scope |= {"headers": list(headers), "raw_path": path.encode(), "root_path": ""}
        scope |= {"scheme": "http", "server": ("test", 80), "client": ("test", 1)}
        self._ends = client.portal.start_task_soon(client.app, scope, self._pieces.get, self._send)

    async def _make_queue(self) -> asyncio.Queue:
        return asyncio.Queue()

    async def _send(self, message: dict) -> None:
        self.said.append(message)

    def send(self, piece: bytes, more: bool = True) -> None:
        """Until the application has taken it."""
        message = {"type": "http.request", "body": piece, "more_body": more}
        self._client.portal.call(self._pieces.put, message)
        self._client.portal.call(self._taken)

    async def _taken(self) -> None:
        while not self._ends.done() and not self._pieces.empty():
            await asyncio.sleep(0)
        await asyncio.sleep(0.001)

    def leave(self) -> None:
        self._client.portal.call(self._pieces.put, {"type": "http.disconnect"})
        self._ends.result(timeout=60)

    @property
    def is_answered(self) -> bool:
        return self._ends.done()

    def problem(self) -> tuple[int, str]:
        self._ends.result(timeout=60)
        head, *bodies = self.said
        headers = dict(head["headers"])
        assert head["status"] != 503 or int(headers[b"retry-after"]) >= 1
        got = json.loads(b"".join(bytes(body["body"]) for body in bodies))
        return head["status"], got["type"].rpartition("/")[2]


@pytest.mark.parametrize(
    ("path", "is_packed"),
    # What the framework reads is not inflated.
    [*product(ROWS_GO_TO, [False, True]), ("/models/m/rollback", False)],
)
def test_many_half_sent_bodies_hold_no_more_than_their_bound(serve, path, is_packed):
    client = serve()
    client.app.bodies.limit = MOST
    client.put("/models/m", json=PLAIN)
    packed = gzip.compress(2 * PIECE, 0)[: len(PIECE) + 20]  # as good as half of it comes out
    headers = [(b"content-type", b"application/json")]
    headers += [(b"content-encoding", b"gzip")] * is_packed
    senders = [Sender(client, path, *headers) for _ in range(30)]
    for _ in range(1 if is_packed else 2):
        for one in senders:
            one.send(packed if is_packed else PIECE)
            assert client.app.bodies.used <= MOST
    refused: list[Sender] = []
    while len(refused) < 30 - MOST // len(PIECE):  # what is packed is inflated in a thread
        refused = [one for one in senders if one.is_answered]
        assert client.app.bodies.used <= MOST
    assert {one.problem() for one in refused} == {(503, "too-many-bytes")}
    assert client.app.bodies.used > 0
    # Who sends one at once needs no room, and who leaves gives his back.
    assert client.post("/models/m/learn", json={"x": {"1": 1}, "y": 1}).status_code == 200
    for one in senders:
        if not one.is_answered:
            one.leave()
    assert client.app.bodies.used == 0 and not client.app.bodies.open
    last = Sender(client, path, headers[0])
    last.send(PIECE)
    last.send(b"{}", more=False)
    assert last.problem()[0] == 422


def test_of_an_upload_counts_what_is_not_learned_yet(serve):
    client = serve()
    client.app.bodies.limit = 6 * CHUNK_BYTES
    client.put("/models/m", json=PLAIN)
    one = Sender(client, "/models/m/learn", (b"content-type", b"application/x-ndjson"))
    lines = b'{"x": {"1": 1}, "y": 1}\n' * (CHUNK_BYTES // 24)
    for _ in range(12):
        one.send(lines)
        while client.app.bodies.used > 4 * CHUNK_BYTES:
            client.get("/livez")
    assert not one.is_answered
    one.send(b"", more=False)
    one._ends.result(timeout=60)
    assert one.said[0]["status"] == 200 and client.app.bodies.used == 0


def test_the_limit_follows_from_the_largest_body_and_fits_uploads(serve):
    for largest, limit in ((2**26, 2**31), (2**24, 2**29), (1000, 2**27)):
        assert serve(max_body_bytes=largest).app.bodies.limit == limit


def test_one_alone_always_has_room(serve):
    client = serve()
    client.app.bodies.limit = 10
    client.put("/models/m", json=PLAIN)
    one = Sender(client, "/models/m/learn")
    one.send(b'{"x": {"1": 1}, ')
    one.send(b'"y": 1}', more=False)
    one._ends.result(timeout=60)
    assert one.said[0]["status"] == 200
    assert_problem(client.post("/models/m/learn", content=b"{"), 400, "malformed-body")


class World:
    """BodyMemory, at a time of the test's."""

    def __init__(self, most: int) -> None:
        self.now = 0.0
        self.bodies = BodyMemory(most, lambda: self.now)

    def scope(self) -> dict:
        scope: dict = {}
        self.bodies.track(scope)
        return scope


async def _waits_for_ever() -> dict:
    await asyncio.Event().wait()
    raise AssertionError


def test_slowest_connection_is_closed_for_a_quick_one():
    async def got() -> None:
        world = World(100)
        scopes = [world.scope() for _ in range(4)]
        waiting = []
        for number, scope in enumerate(scopes):
            body_of(scope).reserve(25)
            waiting.append(asyncio.create_task(body_of(scope).receive(_waits_for_ever)))
            body_of(scope)._moved = 100 * number + (SLOW_BYTES_PER_S * 100 if number == 3 else 0)
        await asyncio.sleep(0)
        newest = body_of(world.scope())
        with pytest.raises(Problem, match="have reached 100 bytes") as full:  # nobody is slow yet
            newest.reserve(1)
        assert full.value.status == 503 and full.value.headers() == {"retry-after": "1"}
        world.now += GRACE_S
        for number in range(3):
            newest.reserve(25)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert [one.done() for one in waiting] == [n <= number for n in range(4)]
            with pytest.raises(Problem, match="have reached 100 bytes"):
                waiting[number].result()
            assert not waiting[number].cancelled() and world.bodies.used == 100
            with pytest.raises(Problem):
                body_of(scopes[number]).reserve(1)
            release_body(scopes[number])
        with pytest.raises(Problem):  # the last one sends quickly
            newest.reserve(25)
        waiting[3].cancel()
        await asyncio.wait([waiting[3]])
        assert waiting[3].cancelled(), "who is cancelled by others is told so"
        release_body(scopes[3])
        newest.release(1000)
        assert world.bodies.used == 0 and list(world.bodies.open) == [newest]

    asyncio.run(got())


class Line:
    """A connection whose client reads nothing."""

    def __init__(self) -> None:
        self.reads, self.is_ended = asyncio.Event(), False

    def close_slow(self) -> None:
        self.is_ended = True
        self.reads.set()


def test_connection_that_does_not_read_its_answer_is_closed_first():
    async def got() -> None:
        world, line, sent = World(10 * PIECE_OF_ANSWER), Line(), []
        scope = world.scope() | {CONNECTION: line}

        async def send(message: dict) -> None:
            sent.append(message)
            if len(sent) == 3:
                await line.reads.wait()

        body_of(scope).reserve(12)
        got = {"type": "http.response.body", "body": bytes(8 * PIECE_OF_ANSWER)}
        sending = asyncio.create_task(send_in_pieces(send, got, scope))
        while len(sent) < 3:
            await asyncio.sleep(0)
        assert world.bodies.used == 8 * PIECE_OF_ANSWER, "in place of its body"
        newest = body_of(world.scope())
        with pytest.raises(Problem):
            newest.reserve(3 * PIECE_OF_ANSWER)
        assert not line.is_ended
        world.now += 100.0
        newest.reserve(3 * PIECE_OF_ANSWER)
        assert line.is_ended and world.bodies.used == 3 * PIECE_OF_ANSWER
        await sending
        # An answer is shown whatever is held: what it tells of is done.
        body_of(scope := world.scope()).reserve_response(20 * PIECE_OF_ANSWER)
        assert world.bodies.used == 23 * PIECE_OF_ANSWER
        release_body(scope)

    asyncio.run(got())


def test_what_came_long_ago_does_not_make_a_body_quick():
    async def got() -> None:
        world, pieces = World(100), asyncio.Queue()
        body = body_of(world.scope())
        for seconds, size in ((1.0, 10 * SLOW_BYTES_PER_S), (0.5, 0), (0.5, 0)):
            waiting = asyncio.create_task(body.receive(pieces.get))
            await asyncio.sleep(0)
            assert body.rate() is None or seconds < 1.0
            world.now += seconds
            pieces.put_nowait({"body": bytes(size)})
            await waiting
            assert body.rate() is None, "while the server waits for nothing"
        waiting = asyncio.create_task(body.receive(pieces.get))
        await asyncio.sleep(0)
        assert 4 * SLOW_BYTES_PER_S < body.rate() < 6 * SLOW_BYTES_PER_S, "2 s for 10 s' worth"
        world.now += 30.0
        assert body.rate() < SLOW_BYTES_PER_S / 10
        waiting.cancel()
        await asyncio.wait([waiting])

    asyncio.run(got())


def test_slow_connection_is_selected_among_many_quick_ones():
    async def got() -> None:
        world = World(10_000)
        scopes = [world.scope() for _ in range(5 * CANDIDATES)]
        for scope in scopes:
            body_of(scope).reserve(10)
        slow = asyncio.create_task(body_of(scopes[-1]).receive(_waits_for_ever))
        await asyncio.sleep(0)
        world.now += GRACE_S
        newest, tries = body_of(world.scope()), 0
        while not slow.done():
            tries += 1
            try:
                newest.reserve(10_000 - len(scopes) * 10 + 1)
            except Problem:
                assert tries < 6
            await asyncio.sleep(0)
        assert tries == 5 and isinstance(slow.exception(), Problem)

    asyncio.run(got())
