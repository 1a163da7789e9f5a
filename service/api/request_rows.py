"""Rows of request bodies: parsed, in a thread if they are long, and as journal requests."""

import asyncio
import hashlib
from collections import Counter
from urllib.parse import urlencode

from dualstream.service.codecs import ListedRows, ParsedRows, RowSchema, parse_body
from dualstream.service.http.request_head import Head, stored_key
from dualstream.service.models.deps import Counters
from dualstream.service.models.model import Model
from dualstream.service.replica.requests import Request

# A longer body is parsed in a thread, so that the event loop serves other requests.
INLINE_BYTES = 64 * 1024
# Flat rows are read in Python: a byte of text takes up to a microsecond.
INLINE_FLAT_BYTES = 8 * 1024
# More rows with ids are encoded in a thread: each is encoded on its own. So are more features.
INLINE_PARTS = 100
INLINE_FEATURES = 20_000


def is_parsed_inline(schema: RowSchema, body: bytes) -> bool:
    """Whether the event loop parses the body: it is short."""
    if schema.columns is None:
        return len(body) <= INLINE_BYTES
    return len(body) * (1 + schema.columns.least_features / 10) <= INLINE_FLAT_BYTES


async def parse(model: Model, head: Head, body: bytes, labelled: bool) -> ParsedRows:
    """Parse the rows of a body. Raises Problem 400, 413, 415, 422."""
    arguments = (model.row_schema, head.content_type, body)
    if is_parsed_inline(model.row_schema, body):
        return parse_body(*arguments, labelled=labelled)
    return await asyncio.to_thread(parse_body, *arguments, labelled=labelled)


def count_refused(counters: Counters, model: Model, parsed: ParsedRows) -> None:
    """Count the rows that are refused, and for which declared column of flat rows."""
    if not parsed.errors:
        return
    counters.saw_refused(model.record.id, len(parsed.errors))
    reader = model.row_schema.columns
    if reader is not None:
        columns = [reader.column_at(error.pointer) for error in parsed.errors]
        counters.saw_refused_columns(model.record.id, Counter(filter(None, columns)))


async def request_of(
    parsed: ParsedRows, key: bytes | None, fingerprint: bytes | None, is_whole: bool = False
) -> Request:
    """The journal request of these rows, with the stored `key` if there is one."""
    rows = parsed.rows
    arguments = (rows, key, fingerprint, parsed.batch_names, is_whole)
    if isinstance(rows, ListedRows):
        if len(rows.ids) > INLINE_PARTS or len(rows.indices) > INLINE_FEATURES:
            return await asyncio.to_thread(Request.of, *arguments)
    return Request.of(*arguments)


def key_of(head: Head, query: dict[str, str], body: bytes) -> tuple[bytes | None, bytes | None]:
    """The stored Idempotency-Key of a request and its fingerprint. Raises Problem 422."""
    key = stored_key(head.idempotency_key)
    return key, fingerprint_of(head, query, body) if key else None


def fingerprint_of(head: Head, query: dict[str, str], body: bytes, what: str = "") -> bytes:
    """16 bytes that distinguish a repeated request from another request with the same key.

    `what` describes a body that is only a part of the request's body, such as a chunk.
    """
    options = urlencode(sorted((name, value) for name, value in query.items() if name != "scores"))
    digest = hashlib.sha256(f"{head.content_type or ''}\0{options}\0{what}".encode())
    digest.update(body)
    return digest.digest()[:16]
