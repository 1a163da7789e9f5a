"""Ids of requests, the access log and spans: the outermost layer of the application.

A client may send `X-Request-ID`; otherwise the server makes one. The response, a problem document
and each log line of the request have it. If tracing is on, each sampled request has a span.
"""

import logging
import os
import time
from collections.abc import Callable
from itertools import count
from typing import Any, Literal

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dualstream.service.observability.logs import REQUEST_ID
from dualstream.service.observability.tracing import SPAN, RequestSpan, Tracing

access = logging.getLogger("dualstream.access")

AccessLog = Literal["off", "sampled", "all"]
SAMPLE = 100
"""The sampled log has one request of this number, and all that failed in the server."""
SLOW_S = 1.0
"""A request that takes longer is logged as slow, unless it is an event stream or an upload."""
MAX_ID = 128
_NOTE = "dualstream.note"
_CLOSE = (b"connection", b"close")


class Note:
    """What is known of a request until its line is written.

    A route sets `rows`, and `is_long` of a request that may take long without being slow.
    """

    __slots__ = ("began", "is_long", "number", "request_id", "rows", "span")

    def __init__(self, number: int, request_id: str, span: RequestSpan | None) -> None:
        self.number, self.request_id, self.span = number, request_id, span
        self.rows: int | None = None
        self.is_long = False
        self.began = time.perf_counter()


def note_of(scope: Scope) -> Note:
    """The note of a request that the log has begun."""
    note: Note = scope[_NOTE]
    return note


def note_rows(scope: Scope, rows: int) -> None:
    """Set the number of rows of the request."""
    note = scope.get(_NOTE)
    if note is not None:
        note.rows = rows


def note_long(scope: Scope) -> None:
    """The request may take long without being slow."""
    note = scope.get(_NOTE)
    if note is not None:
        note.is_long = True


class RequestLog:
    """ASGI middleware. While the server drains, its responses close their connections.

    requirement_of      (method, path, query) -> route and models of a request; see access.py
    """

    def __init__(
        self, app: ASGIApp, access_log: AccessLog, requirement_of: Callable[[str, str, bytes], Any]
    ) -> None:
        self._app = app
        self._requirement_of = requirement_of
        self._is_logged = access_log != "off"
        self._every = 1 if access_log == "all" else SAMPLE
        self._numbers = count(1)
        self._prefix = os.urandom(6).hex()
        self.is_draining = False
        self.tracing: Tracing | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        note = self.begin(scope)
        REQUEST_ID.set(note.request_id)
        SPAN.set(note.span)
        id_header = (b"x-request-id", note.request_id.encode())
        status = sent = 0

        async def send_named(message: Message) -> None:
            nonlocal status, sent
            if message["type"] == "http.response.start":
                status = message["status"]
                added = (id_header, _CLOSE) if self.is_draining else (id_header,)
                message["headers"] = [*message["headers"], *added]
            else:
                sent += len(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, receive, send_named)
        finally:
            self.end(scope, note, status, sent, time.perf_counter() - note.began)

    def begin(self, scope: Scope) -> Note:
        """Number a request, and begin its span if it is sampled."""
        number = next(self._numbers)
        request_id = _client_id(scope) or f"{self._prefix}-{number:x}"
        tracing = self.tracing
        span = None if tracing is None else tracing.begin(scope["method"], scope["headers"])
        scope[_NOTE] = note = Note(number, request_id, span)
        return note

    def end(self, scope: Scope, note: Note, status: int, sent: int, seconds: float) -> None:
        """Write the line of a request that took `seconds`, and end its span, if it has them."""
        span = note.span
        is_slow = seconds >= SLOW_S and not note.is_long
        is_logged = self._is_logged and (status >= 500 or note.number % self._every == 0)
        if is_slow or is_logged or span is not None:
            needs = self._requirement_of(scope["method"], scope["path"], scope["query_string"])
            model = needs.models[0] if needs.models else None
            if is_slow or is_logged:
                _write(scope, model, note, status, sent, seconds, is_slow)
            if span is not None:
                _end_span(span, scope, needs.route, model, note.rows, status, note.request_id)


def _end_span(
    span: RequestSpan,
    scope: Scope,
    route: str | None,
    model: str | None,
    rows: int | None,
    status: int,
    request_id: str,
) -> None:
    method = scope["method"]
    attributes = {
        "http.request.method": method,
        "http.route": route,
        "http.response.status_code": status or None,
        "url.path": scope["path"],
        "dualstream.model": model,
        "dualstream.rows": rows,
        "dualstream.request_id": request_id,
    }
    span.end(f"{method} {route}" if route else method, attributes, status >= 500)


def _client_id(scope: Scope) -> str | None:
    """The id that the client sent, if it is of 1 to MAX_ID visible ASCII characters."""
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            is_id = 0 < len(value) <= MAX_ID and all(32 < byte < 127 for byte in value)
            return value.decode() if is_id else None
    return None


def _write(
    scope: Scope,
    model: str | None,
    note: Note,
    status: int,
    sent: int,
    seconds: float,
    is_slow: bool,
) -> None:
    client = scope.get("client")
    key = scope.get("auth")
    fields = {
        "request_id": note.request_id,
        "method": scope["method"],
        "path": scope["path"],
        "status": status or None,
        "duration_ms": round(seconds * 1000, 3),
        "request_bytes": _length(scope),
        "response_bytes": sent,
        "model": model,
        "rows": note.rows,
        "client": client[0] if client else None,
        "key": None if key is None else key.name,
    }
    level = logging.WARNING if is_slow else logging.INFO
    what = "slow request" if is_slow else "request" if status else "request left by its client"
    access.log(level, what, extra=fields)


def _length(scope: Scope) -> int | None:
    for name, value in scope["headers"]:
        if name == b"content-length":
            return int(value)
    return None
