"""Answers that need no parser: in a rush, to requests that came whole, from their bytes.

A refusal has to cost far less than what is refused; the parser, its callbacks and what uvicorn
makes of a request take several times as long as the rest of it. Only what is plain to see is
answered so. What is not goes to the parser, as everything does when there is no rush.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from service.errors import MEDIA_TYPE
from service.pressure import kind_of, overloaded

Headers = Sequence[tuple[bytes, bytes]]

LONGEST_HEAD = 4096
MOST_HEADS = 1024
_LINE = re.compile(
    rb"(?:GET /livez|POST (/models/[A-Za-z0-9][A-Za-z0-9._-]{0,127}/(?:learn|labels|predict))"
    rb"(?:\?[!-~]*)?) HTTP/1\.1\r\n"
)
_LENGTH = re.compile(rb"\r\ncontent-length: ?([0-9]{1,9})\r\n")
# By each of these a request may end elsewhere, or want more of an answer, than it seems.
_UNCLEAR = (b"transfer-encoding", b"upgrade", b"expect", b"origin", b"\n ", b"\n\t")
LIVES = b'{"alive":true}'
"""The body of an answer to /livez."""


class AtOnce(NamedTuple):
    """What a request is answered at once, if at all.

    kind       what it is refused as; None where it is served, whatever waits
    body_size  of the request
    answer     head and body
    """

    kind: str | None
    body_size: int
    answer: bytes


class FirstBytes:
    """Tells requests by their bytes. Clients send the same heads over and over: they are kept.

    They may hold API keys; so, as the answers hold the time, for the second that it tells.
    """

    def __init__(self) -> None:
        self._kept: dict[bytes, AtOnce | None] = {}
        self._kept_for: Headers = ()

    def read(self, data: bytes, headers: Headers) -> AtOnce | None:
        """What to answer the one request that these bytes are from the first to the last.

        None where they are not, or are not plain. `headers` are those of all answers.
        """
        end = data.find(b"\r\n\r\n", 0, LONGEST_HEAD)
        if end < 0:
            return None
        if headers is not self._kept_for or len(self._kept) >= MOST_HEADS:
            self._kept.clear()
            self._kept_for = headers
        head = data[:end]
        if head in self._kept:
            found = self._kept[head]
        else:
            found = self._kept[head] = _read(head + b"\r\n", headers)
        return found if found is not None and len(data) == end + 4 + found.body_size else None


def _read(head: bytes, headers: Headers) -> AtOnce | None:
    line = _LINE.match(head)
    size = -1 if line is None else _body_size(head[line.end() - 2 :].lower())
    if line is None or size < 0:
        return None
    if line[1] is None:
        told = [*headers, (b"content-length", b"%d" % len(LIVES)), _JSON]
        return AtOnce(None, size, b"HTTP/1.1 200 OK\r\n%b\r\n%b" % (_lines(told), LIVES))
    path = line[1].decode()
    kind = kind_of(path)
    assert kind is not None
    return AtOnce(kind, size, b"\r\n".join(refusal(kind, path, headers)))


def _body_size(head: bytes) -> int:
    """By the header lines in lower case, each with the ends of line around it.

    Negative where they do not make it plain.
    """
    lines = head.count(b"\r\n")
    if head.count(b"\n") != lines or head.count(b"\r") != lines:
        return -1
    if any(text in head for text in _UNCLEAR):
        return -1
    if b"connection" in head and b"\r\nconnection: keep-alive\r\n" not in head:
        return -1
    told = head.count(b"content-length")
    found = _LENGTH.search(head)
    if told == 0:
        return 0
    return int(found[1]) if found is not None and told == 1 else -1


def refusal(kind: str, path: str, headers: Headers) -> tuple[bytes, bytes]:
    """Head and body of the answer to a request that comes to a server with too much to do.

    The empty line between them is left out, so that lines can be added to the head.
    """
    problem = overloaded(kind)
    body = problem.body(path)
    told = [
        *headers,
        (b"content-type", MEDIA_TYPE.encode()),
        (b"content-length", b"%d" % len(body)),
        *((name.encode(), value.encode()) for name, value in problem.headers().items()),
    ]
    return b"HTTP/1.1 503 Service Unavailable\r\n" + _lines(told), body


def _lines(headers: Headers) -> bytes:
    return b"".join(b"%b: %b\r\n" % pair for pair in headers)


_JSON = (b"content-type", b"application/json")
