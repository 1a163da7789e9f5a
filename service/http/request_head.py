"""Request heads of the plain ASGI endpoints: headers, query, idempotency keys, sources."""

from functools import lru_cache
from urllib.parse import parse_qsl, unquote_to_bytes

import msgspec
from starlette.requests import Request
from starlette.types import Scope

from dualstream.service.codecs import LONGEST_KEY, is_key
from dualstream.service.codecs.decompress import content_encoding
from dualstream.service.journal.record import KeyKind, make_key
from dualstream.wire.problem_json import Problem, beginning, quoted
from dualstream.wire.sources import HEADER, Source, parse_source

NDJSON = b"application/x-ndjson"
MIN_WEIGHT = 0.001
"""Lowest weight of a media type in `Accept`; 0 means: not acceptable."""
_JSON_KINDS = ("application/json", "application/*", "*/*")
_REPLACEMENT = "\ufffd"
"""In place of bytes that are not UTF-8 in a decoded path."""
_SINGLE = frozenset(
    (
        b"authorization",
        b"content-encoding",
        b"content-type",
        b"dualstream-source",
        b"idempotency-key",
        b"inference-header-content-length",
        b"last-event-id",
    )
)
"""Headers that a request has once: another value gives it another meaning."""
_TRUTHS = {"true": True, "1": True, "false": False, "0": False}


class Head(msgspec.Struct):
    """The request headers that learn and predict use."""

    content_type: str | None = None
    content_length: int | None = None
    idempotency_key: bytes | None = None
    content_encoding: str | None = None
    """None for an uncompressed body."""
    wants_lines: bool = False
    """Whether the client accepts NDJSON."""
    source: bytes | None = None
    """Dualstream-Source."""


def repeated_header(scope: Scope) -> Problem | None:
    """Problem 400 if a header of `_SINGLE` is repeated."""
    names = [name for name, _ in scope["headers"]]
    if len(set(names)) == len(names):
        return None
    for name in names:
        if name in _SINGLE and names.count(name) > 1:
            detail = f"the header {name.decode().title()} is repeated; send it once"
            return Problem(400, "malformed-request", detail)
    return None


def read_head(scope: Scope) -> Head:
    """The headers of a request. Raises Problem 415 for an unknown content encoding."""
    head = Head()
    for name, value in scope["headers"]:
        if name == b"content-type":
            head.content_type = value.decode("latin-1")
        elif name == b"content-length":
            head.content_length = int(value)
        elif name == b"idempotency-key":
            head.idempotency_key = value
        elif name == b"dualstream-source":
            head.source = value
        elif name == b"content-encoding":
            head.content_encoding = content_encoding(value.decode("latin-1"))
        elif name == b"accept":
            head.wants_lines |= NDJSON in value.lower() and prefers_lines(value)
    return head


@lru_cache(64)
def prefers_lines(accept: bytes) -> bool:
    """Does an `Accept` header name NDJSON, with at least the weight that it gives JSON?"""
    weights: dict[str, float] = {}
    for choice in accept.decode("latin-1").lower().split(","):
        kind, *parameters = (part.strip() for part in choice.split(";"))
        named = dict(pair.partition("=")[::2] for pair in parameters)
        try:
            weights[kind] = float(named.get("q", "1"))
        except ValueError:
            weights[kind] = 0.0
    of_json = [weights[kind] for kind in _JSON_KINDS if kind in weights]
    return weights.get(NDJSON.decode(), 0.0) >= max(next(iter(of_json), 0.0), MIN_WEIGHT)


def read_query(scope: Scope, allowed: tuple[str, ...], named: str | None = None) -> dict[str, str]:
    """The query's parameters: those in `allowed`, and those that begin with `named`.

    Raises Problem 422 for an unknown or repeated parameter, or bytes that are not UTF-8.
    """
    if not scope["query_string"]:
        return {}
    query: dict[str, str] = {}
    try:
        text = scope["query_string"].decode()
        pairs = parse_qsl(text, keep_blank_values=True, errors="strict")
    except UnicodeDecodeError:
        detail = "the query is not UTF-8; send the bytes of UTF-8 as %XX"
        raise Problem(422, "invalid-query", detail) from None
    for name, value in pairs:
        if name in query:
            raise Problem(
                422, "invalid-query", f"query parameter {beginning(name)} is repeated; send it once"
            )
        if name not in allowed and not (named and name.startswith(named)):
            known = ", ".join((*allowed, f"{named}NAME") if named else allowed) or "none"
            detail = f"unknown query parameter {quoted(name)}; known: {known}"
            raise Problem(422, "invalid-query", detail)
        query[name] = value
    return query


async def check_query(request: Request) -> None:
    """Raises Problem 422 for a query parameter that the FastAPI route does not declare."""
    if request.scope["query_string"]:
        declared = request.scope["route"].dependant.query_params
        read_query(request.scope, tuple(parameter.alias for parameter in declared))


def read_flag(query: dict[str, str], name: str) -> bool:
    """The value of a boolean parameter; false if absent. Raises Problem 422."""
    value = query.get(name, "false")
    if value not in _TRUTHS:
        raise Problem(422, "invalid-query", f"{name} must be true or false, got {quoted(value)}")
    return _TRUTHS[value]


def read_count(query: dict[str, str], name: str) -> int:
    """The value of a non-negative integer parameter; 0 if absent. Raises Problem 422."""
    value = query.get(name, "0")
    if not (value.isascii() and value.isdigit() and len(value) <= 19):
        raise Problem(
            422, "invalid-query", f"{name} must be an integer of at least 0, got {quoted(value)}"
        )
    return int(value)


def read_key(idempotency_key: bytes | None) -> str | None:
    """The Idempotency-Key as text. Raises Problem 422."""
    if idempotency_key is None:
        return None
    try:
        text = idempotency_key.decode()
    except UnicodeDecodeError:
        text = ""
    if not is_key(text):
        detail = (
            f"Idempotency-Key must be 1 to {LONGEST_KEY} bytes of UTF-8 without control characters"
        )
        raise Problem(422, "invalid-idempotency-key", detail)
    return text


def stored_key(idempotency_key: bytes | None) -> bytes | None:
    """The Idempotency-Key as the journal stores it. Raises Problem 422."""
    text = read_key(idempotency_key)
    return None if text is None else make_key(KeyKind.REQUEST, text)


def read_source(head: Head) -> Source | None:
    """The Dualstream-Source of the request. Raises Problem 422."""
    if head.source is None:
        return None
    try:
        source = parse_source(head.source)
    except ValueError as wrong:
        raise invalid_source(str(wrong)) from None
    if head.idempotency_key is not None:
        raise invalid_source("it makes the request idempotent by itself; leave out Idempotency-Key")
    return source


def invalid_source(reason: str) -> Problem:
    """422 for a Dualstream-Source that cannot be used."""
    return Problem(422, "invalid-source", f"{HEADER}: {reason}")


def stored_key_of(header: str | None) -> bytes | None:
    """`stored_key` of the header that FastAPI reads. Raises Problem 422."""
    return None if header is None else stored_key(header.encode("latin-1"))


def path_problem(scope: Scope) -> Problem | None:
    """Problem 422 if the path is not UTF-8 after %-decoding."""
    if _REPLACEMENT not in scope["path"]:
        return None
    try:
        unquote_to_bytes(scope["raw_path"]).decode()
    except UnicodeDecodeError:
        detail = "the path is not UTF-8; send the bytes of UTF-8 as %XX"
        return Problem(422, "invalid-request", detail)
    return None  # the client sent the replacement character itself
