"""Short requests: learn of one row and predictions whose heads say nothing unusual.

Such a request makes no ASGI cycle. uvicorn's protocol holds a `ShortRequest` in place of its own
`RequestResponseCycle`, and `ShortRequests` (api/short_requests.py) answers it, together with those
of other connections.
"""

from functools import lru_cache
from typing import Any, NamedTuple, Protocol

MAX_BODY_BYTES = 16 * 1024
"""A longer body is read by the ASGI application."""
MAX_PATH_BYTES = 256
"""Longer than that of any model. The routes of thousands of paths are cached."""
LEARN, PREDICT = "learn", "predict"
_USUAL = frozenset(
    (
        b"accept",
        b"accept-encoding",
        b"accept-language",
        b"authorization",
        b"baggage",
        b"connection",
        b"content-length",
        b"content-type",
        b"date",
        b"host",
        b"idempotency-key",
        b"traceparent",
        b"tracestate",
        b"user-agent",
        b"x-request-id",
    )
)
"""Headers that a short request may have, each once."""
OF_PROXIES = frozenset(
    (
        b"forwarded",
        b"via",
        b"x-forwarded-for",
        b"x-forwarded-host",
        b"x-forwarded-port",
        b"x-forwarded-proto",
        b"x-forwarded-scheme",
        b"x-real-ip",
        b"x-scheme",
    )
)
"""Headers that say something only if proxies are trusted."""
_JSON = (b"application/json", b"application/json; charset=utf-8")


class Route(NamedTuple):
    """The action and the model of a path; the model is empty if the query names it."""

    action: str
    model_id: str


@lru_cache(4096)
def route_of(method: bytes, path: bytes) -> Route | None:
    """The route of a short request; None for all others."""
    if method == b"GET" and path == b"/predict":
        return Route(PREDICT, "")
    folder, _, action = path.rpartition(b"/")
    model_id = folder.removeprefix(b"/models/")
    if model_id == folder or not model_id or b"/" in model_id or b"%" in model_id:
        return None
    if (method, action) in ((b"POST", b"learn"), (b"POST", b"predict"), (b"GET", b"predict")):
        return Route(action.decode(), model_id.decode("latin-1"))
    return None


def is_usual(headers: dict[bytes, bytes], is_post: bool, ignored: frozenset[bytes]) -> bool:
    """Do the headers ask for nothing but a JSON answer to a JSON body, on a connection that stays?

    ignored     headers that say nothing here
    """
    if not headers.keys() <= _USUAL and not headers.keys() <= _USUAL | ignored:
        return False
    if headers.get(b"connection", b"").lower() not in (b"", b"keep-alive"):
        return False
    if b"ndjson" in headers.get(b"accept", b"").lower():
        return False
    if is_post:
        return headers.get(b"content-type") in _JSON and b"content-length" in headers
    return headers.get(b"content-length", b"0") == b"0"


class ShortRequest:
    """A short request from its head to its answer; for uvicorn a request-response cycle.

    scope, route, headers   of its head
    body                    its bytes so far
    query                   parameters of GET, once they are read
    """

    __slots__ = (
        "body",
        "connection",
        "disconnected",
        "headers",
        "is_next",
        "keep_alive",
        "more_body",
        "query",
        "response_complete",
        "response_started",
        "route",
        "scope",
    )
    waiting_for_100_continue = False

    def __init__(
        self, connection: Any, scope: Any, route: Route, headers: dict[bytes, bytes]
    ) -> None:
        self.connection: Any = connection
        self.scope, self.route, self.headers = scope, route, headers
        self.body = b""
        self.query: dict[str, str] | None = None
        self.keep_alive = self.more_body = True
        self.response_started = self.response_complete = self.disconnected = False
        self.is_next = False
        """Are all earlier requests of the connection answered?"""

    # uvicorn sets the event of a cycle whose client has left, and its transport is flushed then.
    message_event = transport = property(lambda self: self)

    def set(self) -> None:
        """There is no event: nothing waits for the body."""

    def flush(self) -> None:
        """There is nothing to flush: an answer leaves in one write."""

    def answer(self, status: int, headers: bytes, body: bytes) -> None:
        """Send the answer, if the client is still there. Each header is a line."""
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.answer_short(self, status, headers, body)


class ShortRequests(Protocol):
    """Answers short requests."""

    def add(self, request: ShortRequest) -> None:
        """Answer a request whose body is there, now or later. Never raises."""
