"""What every way to learn does with rows: read them, submit them, tell what became of them."""

import asyncio
import hashlib
from urllib.parse import urlencode

from dualstream.service.api.http import Head
from dualstream.service.api.responses import LeftOut, answer_again, answer_new, first_answer
from dualstream.service.codecs import ListedRows, ParsedRows, parse_body
from dualstream.service.models.model import Model
from dualstream.service.replica.receipts import Receipt
from dualstream.service.replica.requests import Request
from dualstream.wire.problems import key_reused
from dualstream.wire.schemas import Learned

# A longer body is read in a thread, so that others are answered meanwhile.
INLINE_BYTES = 64 * 1024
# Rows with ids are encoded one by one.
INLINE_PARTS = 100


async def parse(model: Model, head: Head, body: bytes, labelled: bool) -> ParsedRows:
    """The rows of a body. Raises Problem 400, 413, 415, 422."""
    asked = (model.row_schema, head.content_type, body)
    if len(body) <= INLINE_BYTES:
        return parse_body(*asked, labelled=labelled)
    return await asyncio.to_thread(parse_body, *asked, labelled=labelled)


async def request_of(
    parsed: ParsedRows, key: bytes | None, fingerprint: bytes | None, is_whole: bool = False
) -> Request:
    """What is submitted of these rows, under the stored `key` if there is one."""
    asked = (parsed.rows, key, fingerprint, parsed.batch_names, is_whole)
    if isinstance(parsed.rows, ListedRows) and len(parsed.rows.ids) > INLINE_PARTS:
        return await asyncio.to_thread(Request.of, *asked)
    return Request.of(*asked)


def fingerprint_of(head: Head, query: dict[str, str], body: bytes, what: str = "") -> bytes:
    """16 bytes that tell a repeated request from another one under the same key.

    What is not a whole body says `what` it is.
    """
    asked = urlencode(sorted((name, value) for name, value in query.items() if name != "scores"))
    digest = hashlib.sha256(f"{head.content_type or ''}\0{asked}\0{what}".encode())
    digest.update(body)
    return digest.digest()[:16]


async def learned_of(
    model: Model, parsed: ParsedRows, request: Request, receipt: Receipt, wants_scores: bool
) -> tuple[Learned, bool]:
    """What became of the rows; whether it is the first answer to a key's request once more.

    Raises Problem 422 for a key of another request, and RowsRefused where no row was taken.
    """
    if receipt.placed.conflict:
        raise key_reused()
    if receipt.scores is not None:
        model.mark_names_journalled(parsed, receipt)
        return answer_new(model, parsed, receipt, wants_scores), False
    answer = first_answer(model, receipt)
    left = LeftOut(request, answer)
    if left.keys:
        left.explain(await model.known(left.keys))
    return answer_again(model, parsed, receipt, wants_scores, left), answer is not None
