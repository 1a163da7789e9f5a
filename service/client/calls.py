"""One call: what is sent to a route, and as what its answer is read."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import msgspec

from service.client.errors import BadInput, Refused

T = TypeVar("T")

JSON = "application/json"
NDJSON = "application/x-ndjson"
LONGEST_KEY = 255
API_KEY_NAME = "DUALSTREAM_API_KEY"


@dataclass(frozen=True)
class Call(Generic[T]):
    """A request that may be sent again without harm, since whatever it does it does once."""

    method: str
    path: str
    answer: Any
    """The type of the answer; None where there is none, bytes where it is no JSON."""
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""

    def raw_headers(self) -> list[tuple[bytes, bytes]]:
        """The headers in UTF-8, as keys have it."""
        return [(name.encode(), value.encode()) for name, value in self.headers.items()]

    def read(self, status: int, body: bytes) -> T:
        """The answer. Raises Refused for a problem, or what is not Dualstream's."""
        if status >= 400:
            raise Refused(_problem(body), status)
        try:
            found: Any = body if self.answer is bytes else None
            if self.answer not in (None, bytes):
                found = msgspec.json.decode(body, type=self.answer)
        except (msgspec.DecodeError, UnicodeDecodeError) as wrong:
            detail = f"the answer to {self.method} {self.path} is none of Dualstream's: {wrong}"
            raise Refused({"detail": detail}, status) from None
        read: T = found
        return read


def model_path(model: str, *steps: str) -> str:
    """The path of a route of a model."""
    return "/".join(["/models", *(quote(step, safe="") for step in (model, *steps))])


def asked(**given: Any) -> dict[str, str]:
    """A query of what is not None; flags only where they are true."""
    return {
        name: "true" if value is True else str(value)
        for name, value in given.items()
        if value is not None and value is not False
    }


def with_key(key: str) -> dict[str, str]:
    """The header of an idempotency key. Raises BadInput."""
    encoded = key.encode()
    if not 1 <= len(encoded) <= LONGEST_KEY or any(ord(c) < 32 or ord(c) == 127 for c in key):
        limits = f"1 to {LONGEST_KEY} bytes of UTF-8 without control characters"
        raise BadInput(f"a key has {limits}, got {len(encoded)} bytes")
    return {"idempotency-key": key}


def with_api_key(headers: Mapping[str, str] | None, api_key: str | None) -> dict[str, str]:
    """The headers, and the one that shows a key of the server's. Raises BadInput."""
    # As httpx does with proxies: what a process is told from outside, unless its caller says more.
    key = os.environ.get(API_KEY_NAME) if api_key is None else api_key  # noqa: TID251
    given = dict(headers or {})
    if not key or any(name.lower() == "authorization" for name in given):
        return given
    if not key.isascii() or not key.isprintable() or " " in key:
        raise BadInput("an API key has printable ASCII characters alone, and no space")
    return {"authorization": f"Bearer {key}", **given}


def encoded(told: Any) -> bytes:
    """A JSON body. Raises BadInput for what JSON cannot hold."""
    try:
        return msgspec.json.encode(told)
    except (TypeError, UnicodeEncodeError, OverflowError) as wrong:
        raise BadInput(str(wrong)) from None


def _problem(body: bytes) -> dict[str, Any]:
    try:
        told = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {}
    return told if isinstance(told, dict) else {}
