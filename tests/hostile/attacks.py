"""Hostile clients: each attack with its permitted outcomes.

An attack runs for some seconds with `many` or `few` connections and counts its outcomes: status
codes, and whether the connection was closed. The outcome `borne` is a connection that the server
should have closed long before.
"""

import asyncio
import gzip
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import count

import zstandard

from tests.hostile.talk import Heard, Target, drip, refuse_to_read, request, talk

MARGIN_S = 4.0
"""Beyond the limit, for a server that looks once a second and has others to serve."""
PATIENCE_S = 60.0
"""For a server that is busy, before a connection that it has not closed is given up."""
AGAIN_S = 0.5
"""From an end to the next beginning."""
JSON = b"content-type: application/json"
Outcomes = Counter[str]


@dataclass(frozen=True)
class Attack:
    """One kind of attack.

    many, few   concurrent connections, in full and in `make test`
    per_s       attempts a second in all, if the harm is not in the connections
    ends        permitted outcomes
    """

    does: str
    run: Callable[["Attack", Target, int, float], Awaitable[Outcomes]]
    many: int
    few: int
    ends: frozenset[str]
    per_s: float = 0.0
    pieces: Callable[[], Iterable[bytes]] = tuple


async def crowd(
    many: int, seconds: float, one: Callable[[Callable[[], bool]], Awaitable[str | None]]
) -> Outcomes:
    """`count` concurrent attackers, each repeated until the time is over and `count` have ended."""
    result: Outcomes = Counter()
    over_at = time.monotonic() + seconds
    gate = asyncio.Semaphore(200)  # of connects at once

    def is_over() -> bool:
        late_s = time.monotonic() - over_at
        return late_s >= 0.0 and (result.total() >= many or late_s >= PATIENCE_S)

    async def again() -> None:
        while not is_over():
            async with gate:
                await asyncio.sleep(0)
            outcome = await one(is_over)
            if outcome is not None:
                result[outcome] += 1
            await asyncio.sleep(AGAIN_S)

    await asyncio.gather(*(again() for _ in range(many)))
    return result


def judged(heard: Heard, lived_s: float, limit_s: float) -> str | None:
    """None if the time ran out, `borne` for a connection that lived beyond the limit."""
    if heard.is_closed:
        return heard.outcome
    return "borne" if lived_s > limit_s + MARGIN_S else None


async def _drips(attack: Attack, target: Target, many: int, seconds: float) -> Outcomes:
    begin, more = (piece.replace(b"LEARN", target.learn) for piece in attack.pieces())
    limit_s = target.body_s if b"POST" in begin else target.head_s

    async def one(is_over: Callable[[], bool]) -> str | None:
        every_s = min(1.0, limit_s / 4)
        return judged(*await drip(target, begin, more, every_s, is_over), limit_s)

    return await crowd(many, seconds, one)


async def _never_reads(attack: Attack, target: Target, many: int, seconds: float) -> Outcomes:
    query = request(b"GET", b"/openapi.json", close=False) * 200

    async def one(is_over: Callable[[], bool]) -> str | None:
        # A client must read 1,024 bytes per period; bytes in socket buffers count as read.
        return judged(*await refuse_to_read(target, query, is_over), 2 * target.body_s)

    return await crowd(many, seconds, one)


async def _sends(attack: Attack, target: Target, many: int, seconds: float) -> Outcomes:
    """Send the pieces in turn, `per_s` a second, each at least once."""
    pieces = [piece.replace(b"LEARN", target.learn) for piece in attack.pieces()]
    pause_s, over_at = many / attack.per_s, time.monotonic() + seconds
    result: Outcomes = Counter()
    numbers = count()

    async def again() -> None:
        while (number := next(numbers)) < len(pieces) or time.monotonic() < over_at:
            began = time.monotonic()
            heard = await talk(target, pieces[number % len(pieces)])
            result[heard.outcome] += 1
            await asyncio.sleep(pause_s - (time.monotonic() - began))

    await asyncio.gather(*(again() for _ in range(many)))
    return result


def _garbage() -> Iterator[bytes]:
    rng = random.Random(7)
    good = request(b"GET", b"/livez", close=False)
    for _ in range(20):
        yield rng.randbytes(rng.randint(1, 4000))
        yield good * rng.randint(1, 30) + b"\x16\x03" + rng.randbytes(200)
    yield b"GET / HTTP/9.9\r\n\r\n"
    learn = b"POST LEARN HTTP/1.1\r\nhost: server\r\n"
    yield learn + b"transfer-encoding: chunked\r\n\r\nzz\r\n"
    yield good + learn + b"content-length: 5\r\ncontent-length: 6\r\n\r\n{}"
    yield learn + b"content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"
    yield learn + b"content-length: -1\r\n\r\n"
    yield "GET /mod\u00e9les HTTP/1.1\r\nhost: server\r\n\r\n".encode()


def _heads() -> Iterator[bytes]:
    begin = b"GET /livez HTTP/1.1\r\nhost: server\r\n"
    yield begin + b"x: " + b"a" * 4_000_000
    yield begin + b"".join(b"x-%d: y\r\n" % n for n in range(200_000))
    yield b"GET /" + b"a" * 1_000_000 + b" HTTP/1.1\r\nhost: server\r\n\r\n"
    yield begin + b"a" * 100_000 + b": 1\r\n\r\n"
    yield request(b"GET", b"/livez", b"", b"authorization: Bearer " + b"k" * 200_000)
    # After a chunked body: endless trailers, and one chunk that is all extension.
    chunked = b"POST LEARN HTTP/1.1\r\nhost: server\r\ntransfer-encoding: chunked\r\n\r\n"
    yield chunked + b"1\r\n{\r\n0\r\n" + b"x: y\r\n" * 200_000
    yield chunked + b"1;" + b"e" * 1_000_000


PATHS = (
    *("../../etc/passwd", "%2e%2e/%2e%2e/etc/passwd", "..%2f..%2fetc%2fpasswd", "....//etc", "."),
    *("%00", "m%00", "m%00.json", "%0d%0aset-cookie:%20a=b", "%ff%fe", "%c0%ae%c0%ae", "%", "%zz"),
    *("%D0%BC%D0%BE%D0%B4%D0%B5%D0%BB%D1%8C", "%E6%A8%A1%E5%9E%8B", "%F0%9F%A4%96", "a%CC%81"),
    *("a" * 129, "a" * 8000, "-m", "_m", "a b", "a;b", "a'--", '";DROP TABLE models;--', "{}", "*"),
)


def _paths() -> Iterator[bytes]:
    for path in PATHS:
        for method, front, back in (
            (b"GET", b"/models/", b""),
            (b"PUT", b"/models/", b""),
            (b"DELETE", b"/models/", b""),
            (b"GET", b"/models/", b"/versions/"),
            (b"GET", b"/static/", b""),
            (b"GET", b"/predict?x=1:1&model=", b""),
        ):
            query = front + path.encode() + back + (path.encode() if back else b"")
            yield request(method, query.replace(b" ", b"%20"), b"{}" if method == b"PUT" else b"")


def _injections() -> Iterator[bytes]:
    evil = b"a%0d%0ax-injected:%201%0d%0a%0d%0a<script>"
    for path in (b"/models/" + evil, b"/static/" + evil, b"/models/m/export?format=" + evil):
        yield request(b"GET", path)
    for header in (b"idempotency-key: a\x0bb", b"accept: a\x00b", b"if-none-match: \x7f"):
        yield request(b"POST", b"LEARN", b'{"x": {"1": 1}, "y": 1}', JSON, header)
    yield request(b"GET", b"/livez", b"", b"x: a\r\n x-injected: 1")
    yield request(b"GET", b"/livez", b"", b"x : 1")
    yield request(b"GET", b"/livez", b"", b"x: a\rx-injected: 1")
    yield request(b"POST", b"LEARN", b"{}", b"content-type: a\\r\\nx-injected: 1")


def _nested(deep: int = 100_000) -> Iterator[bytes]:
    for begin, end in ((b"[", b"]"), (b'{"x":', b"}"), (b'{"samples":[', b"]}")):
        body = begin * deep + b"1" + end * deep
        for path in (b"LEARN", b"/models/m/predict", b"/models/m/labels", b"/models/m/rollback"):
            yield request(b"POST", path, body, JSON)
        yield request(b"PUT", b"/models/nested", body, JSON)
        yield request(b"POST", b"/specs/resolve", body, JSON)
        yield request(b"POST", b"/v2/models/m/infer", body, JSON)


def _bombs() -> Iterator[bytes]:
    """64 MiB of one letter, four times the limit of a body, compressed as far as possible."""
    plain = b" " * 2**26
    gzipped, packed = gzip.compress(plain), zstandard.ZstdCompressor().compress(plain)
    twice = gzip.compress(gzipped)
    for encoding, body in ((b"gzip", gzipped), (b"zstd", packed), (b"gzip", twice)):
        for media in (b"application/json", b"application/x-ndjson", b"text/csv"):
            headers = (b"content-encoding: " + encoding, b"content-type: " + media)
            yield request(b"POST", b"LEARN", body, *headers)


CLOSED = frozenset(["closed"])
REFUSED = frozenset(f"{status}, closed" for status in (400, 404, 405, 413, 415, 422))
ANSWERED = frozenset(["200, closed", "200, 400, closed", *REFUSED])

ATTACKS = {
    "slow heads": Attack(
        "a byte of a head each second",
        _drips,
        *(1000, 20),
        ends=frozenset(["408, closed", "closed"]),
        pieces=lambda: (b"GET /livez HTTP/1.1\r\nhost: server\r\nx: ", b"a"),
    ),
    "slow bodies": Attack(
        "a byte of a body each second",
        _drips,
        *(1000, 20),
        ends=frozenset(["408, closed", "closed"]),
        pieces=lambda: (
            b"POST LEARN HTTP/1.1\r\nhost: server\r\ncontent-length: 1000000\r\n\r\n",
            b" ",
        ),
    ),
    "slow chunks": Attack(
        "a chunk of a byte each second",
        _drips,
        *(1000, 20),
        ends=frozenset(["408, closed", "closed"]),
        pieces=lambda: (
            b"POST LEARN HTTP/1.1\r\nhost: server\r\ncontent-type: text/csv\r\n"
            b"transfer-encoding: chunked\r\n\r\n",
            b"1\r\n1\r\n",
        ),
    ),
    "answers never read": Attack("ask 200 times and read nothing", _never_reads, 100, 5, CLOSED),
    "idle connections": Attack(
        "connect and send nothing", _drips, 10_000, 100, CLOSED, pieces=lambda: (b"", b"")
    ),
    "garbage": Attack(
        "bytes that are no HTTP, alone and after requests",
        _sends,
        *(20, 4),
        ends=frozenset(["400, closed", "200, 400, closed", "closed"]),
        per_s=200,
        pieces=_garbage,
    ),
    "huge heads": Attack(
        "paths, headers, trailers of up to 4 MB",
        _sends,
        *(10, 4),
        ends=frozenset(["431, closed", "closed"]),
        per_s=20,
        pieces=_heads,
    ),
    "tricks in ids": Attack(
        "`../`, `%00`, very long ids, other alphabets",
        _sends,
        *(20, 4),
        ends=REFUSED,
        per_s=200,
        pieces=_paths,
    ),
    "header injection": Attack(
        "line ends in paths, keys and headers",
        _sends,
        *(20, 4),
        ends=ANSWERED,
        per_s=200,
        pieces=_injections,
    ),
    "nesting bombs": Attack(
        "JSON 100,000 deep", _sends, *(4, 4), ends=REFUSED, per_s=10, pieces=_nested
    ),
    "compression bombs": Attack(
        "64 MiB in 6 to 65 kB", _sends, *(4, 4), ends=REFUSED, per_s=4, pieces=_bombs
    ),
}
