"""Bytes of any accepted format -> Intake (good rows as a Batch, bad rows with their reasons).

door.py        what a model takes: width, labels; one row's checks
intake.py      what a body holds; rows on their way to a Batch
limiting.py    how many rows, and how many non-zeros a row, are taken
json_rows.py   application/json: one sample, a list of samples, columns; row by row
json_lists.py  the same of many rows, by kernels
ndjson.py      application/x-ndjson: one sample a line
csv_rows.py    text/csv with a header
arrow_rows.py  application/vnd.apache.arrow.stream, where pyarrow is installed
vw.py          text/x-vw: lines of Vowpal Wabbit's format
libsvm.py      text/x-libsvm
query.py       the x=3:1,11:0.5 of GET predict
messages.py    what producers write into the input of a store
"""

from collections.abc import Callable
from functools import lru_cache

from dualstream.service.codecs.arrow import parse_arrow
from dualstream.service.codecs.csv import parse_csv
from dualstream.service.codecs.json_bulk import parse_json
from dualstream.service.codecs.libsvm import parse_libsvm
from dualstream.service.codecs.limits import check_rows, without_long_rows
from dualstream.service.codecs.ndjson import parse_ndjson
from dualstream.service.codecs.parsed_rows import (
    ListedRows,
    ParsedRows,
    Rows,
    as_batch,
    class_texts,
    labels_and_classes,
)
from dualstream.service.codecs.query import parse_named_row, parse_query_row
from dualstream.service.codecs.redis_messages import parse_messages
from dualstream.service.codecs.row_schema import (
    LONGEST_KEY,
    LONGEST_NAME,
    MAX_NONZEROS,
    RowLimits,
    RowSchema,
    is_key,
)
from dualstream.service.codecs.vw import parse_vw
from dualstream.wire.chunking import CHUNK_BYTES, CUTTERS, MARK, Chunk, check_is_plain, chunks_of
from dualstream.wire.problems import Problem

__all__ = [
    "CHUNK_BYTES",
    "CUTTERS",
    "Chunk",
    "RowSchema",
    "ParsedRows",
    "LONGEST_KEY",
    "LONGEST_NAME",
    "MAX_NONZEROS",
    "PARSERS",
    "ListedRows",
    "RowLimits",
    "Rows",
    "class_texts",
    "labels_and_classes",
    "as_batch",
    "check_rows",
    "chunks_of",
    "is_key",
    "media_type",
    "parse_body",
    "parse_chunk",
    "parse_messages",
    "parse_json",
    "parse_named_row",
    "parse_query_row",
]

PARSERS: dict[str, Callable[[RowSchema, bytes, bool, dict[str, str]], ParsedRows]] = {
    "application/json": lambda door, body, labelled, _: parse_json(door, body, labelled),
    "application/x-ndjson": lambda door, body, labelled, _: parse_ndjson(door, body, labelled),
    "text/csv": parse_csv,
    "text/x-vw": parse_vw,
    "application/vnd.apache.arrow.stream": lambda door, body, labelled, _: parse_arrow(
        door, body, labelled
    ),
    "text/x-libsvm": lambda door, body, labelled, _: parse_libsvm(door, body, labelled),
}


@lru_cache(64)
def media_type(content_type: str | None) -> tuple[str, dict[str, str]]:
    """The type and its parameters; a body without a type is taken as JSON.

    Raises Problem 415 for a charset other than UTF-8.
    """
    if not content_type:
        return "application/json", {}
    kind, *given = content_type.lower().split(";")
    pairs = (parameter.strip().partition("=") for parameter in given)
    parameters = {name: value.strip('"') for name, _, value in pairs}
    charset = parameters.get("charset", "utf-8")
    if charset not in ("utf-8", "us-ascii"):
        reason = f"charset={charset} is not accepted, send UTF-8"
        raise Problem(415, "unsupported-media-type", reason)
    return kind.strip(), parameters


def parse_body(
    door: RowSchema, content_type: str | None, body: bytes, *, labelled: bool
) -> ParsedRows:
    """Read `body` for the model behind `door`; with `labelled` every row needs a label.

    Raises Problem: 415 for an unknown content type, 400 for a body that is not of its type, 413 for
    too many rows.
    """
    kind, _ = media_type(content_type)
    check_is_plain(body)
    if kind.startswith("text/") or kind == "application/x-ndjson":
        body = body.removeprefix(MARK)
    intake = parse_chunk(door, content_type, body, labelled=labelled)
    check_rows(intake.count, door.limits.rows)
    return intake


def parse_chunk(
    door: RowSchema, content_type: str | None, body: bytes, *, labelled: bool
) -> ParsedRows:
    """As `parse_body`, of any number of rows; no byte order mark is passed over."""
    kind, parameters = media_type(content_type)
    parser = PARSERS.get(kind)
    if parser is None:
        accepted = ", ".join(PARSERS)
        raise Problem(415, "unsupported-media-type", f"{kind} is not accepted, send {accepted}")
    return without_long_rows(door, parser(door, body, labelled, parameters))
