"""One HTTP request of the client: headers, decoding of the response, retries with backoff.

Nothing here does I/O: a generator yields actions, and `Client` or `AsyncClient` performs them.
"""

import os
import random
import sys
import time
from collections.abc import AsyncIterator, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar
from urllib.parse import quote
from uuid import uuid4

import httpx
import msgspec

from dualstream.client.errors import BadInput, Refused, Unreachable
from dualstream.client.proxies import ADVICE
from dualstream.client.responses import Event

T = TypeVar("T")

JSON = "application/json"
NDJSON = "application/x-ndjson"
ARROW = "application/vnd.apache.arrow.stream"
LONGEST_KEY = 255
API_KEY_NAME = "DUALSTREAM_API_KEY"
RETRIED = (408, 421, 425, 429, 502, 503, 504)
NOT_DONE = (421, 425, 429, 503)
"""Of these, the answers to requests that were not performed."""
FIRST_WAIT_S, LONGEST_WAIT_S = 0.1, 2.0


# -- actions ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Call(Generic[T]):
    """An idempotent request."""

    method: str
    path: str
    answer: Any
    """Type of the response; None for an empty one, bytes for one that is not JSON."""
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""

    def request(self) -> dict[str, Any]:
        """The arguments of httpx' `request`."""
        # httpx encodes text as ASCII; idempotency keys are UTF-8.
        fields = {**self.headers, **trace_headers()}
        headers = [(name.encode(), value.encode()) for name, value in fields.items()]
        return {
            "method": self.method,
            "url": self.path,
            "params": self.query,
            "headers": headers,
            "content": self.body,
        }

    def read(self, status: int, headers: Mapping[str, str], body: bytes) -> T:
        """Decode the response.

        Raises Refused for an error of the server, and Unreachable if the response is not the
        server's: gateways answer 404, a redirect or a page while they do not reach it.
        """
        media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
        if status >= 300:
            problem = _problem(body)
            if "problems/" not in str(problem.get("type")):
                if status == 413:
                    raise Refused(_too_large(len(self.body)), status)
                location = headers.get("location")
                raise self._foreign(
                    f"status {status}, {f'to {location}' if location else media_type}"
                )
            raise Refused(problem, status)
        if media_type == "text/html":
            raise self._foreign(f"status {status}, {media_type}")
        try:
            decoded: Any = body if self.answer is bytes else None
            if self.answer not in (None, bytes):
                decoded = msgspec.json.decode(body, type=self.answer)
        except (msgspec.DecodeError, UnicodeDecodeError) as wrong:
            raise self._foreign(str(wrong)) from None
        read: T = decoded
        return read

    def _foreign(self, what: str) -> Unreachable:
        return Unreachable(
            f"the answer to {self.method} {self.path} is not from Dualstream ({what});"
            " check the URL and the gateways before the server"
        )


@dataclass(frozen=True)
class Wait:
    """A pause before a retry: why, and for how long retries go on."""

    seconds: float
    reason: str
    left_s: float


@dataclass(frozen=True)
class Next:
    """The next item of an iterator; None after the last one."""

    items: Iterator[Any] | AsyncIterator[Any]
    reads_file: bool = False
    """AsyncClient fetches it in a thread, because reading a file blocks."""


Action: TypeAlias = Call[Any] | Wait | Next
# A generator of actions that returns T. It is sent the result of each action (of a Call an
# httpx.Response), or the exception that the action raised is thrown into it.
Steps: TypeAlias = Generator[Action, Any, T]


def send(call: Call[T], patience_s: float, proxy: str = "") -> Steps[T]:
    """Send a call; retry until `patience_s` after the first failure. Errors name the proxy.

    Raises Refused, Unreachable, and BadInput for an invalid URL, parameter or header.
    """
    failures, deadline, cause = 0, 0.0, None
    through = f" through the proxy {proxy}; {ADVICE}" if proxy else ""
    may_be_done = False  # an attempt whose response was lost may have succeeded
    while True:
        retry_after_s = 0.0
        try:
            response: httpx.Response = yield call
        except (httpx.UnsupportedProtocol, httpx.LocalProtocolError, UnicodeEncodeError) as wrong:
            raise BadInput(str(wrong)) from wrong
        except httpx.TransportError as failure:
            may_be_done = may_be_done or not isinstance(failure, httpx.ConnectError)
            why = str(failure) or type(failure).__name__
            reason, cause = f"no answer: {why}{through}", failure
        else:
            try:
                return _answer(call, response)
            except Refused as refused:
                is_deletion = call.method == "DELETE" and call.answer is None
                if is_deletion and may_be_done and refused.status == 404:
                    return call.read(204, {}, b"")  # an earlier attempt deleted it
                raise
            except Unreachable as away:
                reason, retry_after_s, cause = f"{away}{through}", away.retry_after_s, None
                may_be_done = may_be_done or response.status_code not in NOT_DONE
        now = time.monotonic()
        failures += 1
        deadline = deadline or now + patience_s
        if now >= deadline:
            times = f", tried {failures} times" if failures > 1 else ""
            raise Unreachable(f"{reason}{times}", retry_after_s) from cause
        backoff_s = min(FIRST_WAIT_S * 2 ** (failures - 1), LONGEST_WAIT_S)
        jitter = random.uniform(0.5, 1.0)  # noqa: S311 - spreads clients; nothing is secret
        left_s = deadline - now
        yield Wait(min(max(backoff_s * jitter, retry_after_s), left_s), reason, left_s)


def _answer(call: Call[T], response: httpx.Response) -> T:
    """Decode a response. Raises Refused, and Unreachable for a status that may pass."""
    if response.status_code not in RETRIED:
        return call.read(response.status_code, response.headers, response.content)
    try:
        retry_after_s = float(response.headers.get("retry-after", "0"))
    except ValueError:
        retry_after_s = 0.0
    reason = _problem(response.content).get("detail") or f"status {response.status_code}"
    raise Unreachable(f"the server is unavailable: {reason}", retry_after_s)


# -- parts of a request ----------------------------------------------------------------------------


def model_path(model: str, *steps: str) -> str:
    """The path of a route of a model. Raises BadInput for names that are not Unicode."""
    return "/".join(["/models", *(quote(_utf8(step), safe="") for step in (model, *steps))])


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as wrong:
        raise BadInput(f"{text!r:.80} is not valid Unicode: {wrong.reason}") from None


def query_of(**parameters: Any) -> dict[str, str]:
    """Query parameters: those that are not None, and flags only if they are true."""
    return {
        name: "true" if value is True else str(value)
        for name, value in parameters.items()
        if value is not None and value is not False
    }


def new_key() -> str:
    """A new idempotency key."""
    return uuid4().hex


def with_key(key: str) -> dict[str, str]:
    """The header of an idempotency key. Raises BadInput."""
    encoded = _utf8(key)
    if not 1 <= len(encoded) <= LONGEST_KEY or any(ord(c) < 32 or ord(c) == 127 for c in key):
        limits = f"1 to {LONGEST_KEY} bytes of UTF-8 without control characters"
        raise BadInput(f"an idempotency key must have {limits}, got {len(encoded)} bytes")
    return {"idempotency-key": key}


def with_api_key(headers: Mapping[str, str] | None, api_key: str | None) -> dict[str, str]:
    """Add the API key as `authorization`. Raises BadInput."""
    # The environment, unless the caller passes a key; httpx reads proxies in the same way.
    key = os.environ.get(API_KEY_NAME) if api_key is None else api_key  # noqa: TID251
    fields = dict(headers or {})
    if not key or any(name.lower() == "authorization" for name in fields):
        return fields
    if not key.isascii() or not key.isprintable() or " " in key:
        raise BadInput("an API key must have printable ASCII characters only, without spaces")
    return {"authorization": f"Bearer {key}", **fields}


def trace_headers() -> dict[str, str]:
    """Headers that name the program's current OpenTelemetry span, such as `traceparent`."""
    if "opentelemetry.trace" not in sys.modules:  # then the program has no span
        return {}
    from opentelemetry import propagate

    headers: dict[str, str] = {}
    propagate.inject(headers)
    return headers


def encoded(document: Any) -> bytes:
    """Encode a JSON body. Raises BadInput for values that JSON cannot represent."""
    try:
        return msgspec.json.encode(document)
    except (TypeError, UnicodeEncodeError, OverflowError) as wrong:
        raise BadInput(str(wrong)) from None


def _too_large(size: int) -> dict[str, Any]:
    """The problem of a body that a gateway refuses, as if the server had."""
    detail = (
        f"a gateway before the server refuses a request of {size:,} bytes; raise its limit, such"
        " as client_max_body_size of nginx, or send fewer rows in a request"
    )
    return {"type": "/problems/body-too-large", "status": 413, "detail": detail}


def _problem(body: bytes) -> dict[str, Any]:
    try:
        problem = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {}
    return problem if isinstance(problem, dict) else {}


# -- server-sent events ----------------------------------------------------------------------------


class EventReader:
    """Parser of server-sent events, line by line; comments (keep-alives) are skipped."""

    def __init__(self) -> None:
        self._fields: dict[str, str] = {}

    def line(self, text: str) -> Event | None:
        """Parse a line; returns an event if the line ends one."""
        if text:
            name, _, value = text.partition(":")
            self._fields[name] = value.removeprefix(" ")
            return None
        fields, self._fields = self._fields, {}
        if "data" not in fields:
            return None
        data = msgspec.json.decode(fields["data"])
        return Event(kind=fields.get("event", ""), id=fields.get("id", ""), data=data)
