"""Steps that all learn routes share: parse rows, build the journal request, format the answer."""

import asyncio
import hashlib
from urllib.parse import urlencode

from dualstream.service.api.http import Head
from dualstream.service.api.responses import SkippedRows, answer_new, answer_repeat, first_answer
from dualstream.service.codecs import ListedRows, ParsedRows, parse_body
from dualstream.service.models.model import Model
from dualstream.service.replica.requests import Receipt, Request
from dualstream.wire.problems import key_reused
from dualstream.wire.schemas import Learned

# A longer body is parsed in a thread, so that the event loop serves other requests.
INLINE_BYTES = 64 * 1024
# More rows with ids are encoded in a thread: each is encoded on its own.
INLINE_PARTS = 100


async def parse(model: Model, head: Head, body: bytes, labelled: bool) -> ParsedRows:
    """Parse the rows of a body. Raises Problem 400, 413, 415, 422."""
    requested = (model.row_schema, head.content_type, body)
    if len(body) <= INLINE_BYTES:
        return parse_body(*requested, labelled=labelled)
    return await asyncio.to_thread(parse_body, *requested, labelled=labelled)


async def request_of(
    parsed: ParsedRows, key: bytes | None, fingerprint: bytes | None, is_whole: bool = False
) -> Request:
    """The journal request of these rows, with the stored `key` if there is one."""
    requested = (parsed.rows, key, fingerprint, parsed.batch_names, is_whole)
    if isinstance(parsed.rows, ListedRows) and len(parsed.rows.ids) > INLINE_PARTS:
        return await asyncio.to_thread(Request.of, *requested)
    return Request.of(*requested)


def fingerprint_of(head: Head, query: dict[str, str], body: bytes, what: str = "") -> bytes:
    """16 bytes that distinguish a repeated request from another request with the same key.

    `what` describes a body that is only a part of the request's body, such as a chunk.
    """
    requested = urlencode(
        sorted((name, value) for name, value in query.items() if name != "scores")
    )
    digest = hashlib.sha256(f"{head.content_type or ''}\0{requested}\0{what}".encode())
    digest.update(body)
    return digest.digest()[:16]


async def learned_of(
    model: Model, parsed: ParsedRows, request: Request, receipt: Receipt, wants_scores: bool
) -> tuple[Learned, bool]:
    """The answer to a learn, and whether it repeats the first answer to the same key.

    Raises Problem 422 if the key was used with another request, RowsRefused if no row was accepted.
    """
    if receipt.placed.conflict:
        raise key_reused()
    if receipt.scores is not None:
        model.mark_names_journalled(parsed, receipt)
        return answer_new(model, parsed, receipt, wants_scores), False
    answer = first_answer(model, receipt)
    skipped = SkippedRows(request, answer)
    if skipped.keys:
        skipped.explain(await model.known(skipped.keys))
    return answer_repeat(model, parsed, receipt, wants_scores, skipped), answer is not None
