"""Which parser reads a body: by its media type, and by whether the model has `columns`."""

from collections.abc import Callable

from dualstream.service.codecs import flat_rows
from dualstream.service.codecs.arrow import parse_arrow
from dualstream.service.codecs.csv import parse_csv
from dualstream.service.codecs.flat_arrow import parse_flat_arrow
from dualstream.service.codecs.json_bulk import parse_quickly
from dualstream.service.codecs.json_exact import parse_exactly
from dualstream.service.codecs.libsvm import parse_libsvm
from dualstream.service.codecs.media_type import media_type
from dualstream.service.codecs.ndjson import parse_ndjson
from dualstream.service.codecs.parsed_rows import ParsedRows, check_rows, without_long_rows
from dualstream.service.codecs.record_reader import FEW_BYTES
from dualstream.service.codecs.row_schema import RowSchema
from dualstream.service.codecs.vw import parse_vw
from dualstream.wire.chunking.chunks import MARK, check_is_plain
from dualstream.wire.problem_json import Problem, quoted


def parse_json(schema: RowSchema, body: bytes, labelled: bool, waiting: bool = False) -> ParsedRows:
    """As `parse_exactly`, faster for bodies of many rows; flat rows if the model has `columns`."""
    if schema.columns is not None:
        return flat_rows.parse_flat_json(schema, body, labelled, waiting)
    if len(body) >= FEW_BYTES and not waiting:
        parsed = parse_quickly(schema, body, labelled)
        if parsed is not None:
            return parsed
    return parse_exactly(schema, body, labelled, waiting)


PARSERS: dict[str, Callable[[RowSchema, bytes, bool, dict[str, str]], ParsedRows]] = {
    "application/json": lambda schema, body, labelled, _: parse_json(schema, body, labelled),
    "application/x-ndjson": lambda schema, body, labelled, _: parse_ndjson(schema, body, labelled),
    "text/csv": parse_csv,
    "text/x-vw": parse_vw,
    "application/vnd.apache.arrow.stream": lambda schema, body, labelled, _: parse_arrow(
        schema, body, labelled
    ),
    "text/x-libsvm": lambda schema, body, labelled, _: parse_libsvm(schema, body, labelled),
}


FLAT_PARSERS: dict[str, Callable[[RowSchema, bytes, bool, dict[str, str]], ParsedRows]] = {
    "application/json": PARSERS["application/json"],
    "application/x-ndjson": lambda schema, body, labelled, _: flat_rows.parse_flat_ndjson(
        schema, body, labelled
    ),
    "text/csv": flat_rows.parse_flat_csv,
    "application/vnd.apache.arrow.stream": lambda schema, body, labelled, _: parse_flat_arrow(
        schema, body, labelled
    ),
}
"""The same for models with `columns`."""


def parse_body(
    schema: RowSchema, content_type: str | None, body: bytes, *, labelled: bool
) -> ParsedRows:
    """Parse a whole body; with `labelled` every row needs a label.

    Raises Problem 415 for an unsupported media type, 400 for a malformed body, 413 for too many
    rows.
    """
    kind, parameters = media_type(content_type)
    is_text = kind.startswith("text/") or kind == "application/x-ndjson"
    if kind != "application/json":  # a compressed body is no JSON: parse_exactly checks it then
        check_is_plain(body, is_text)
    if is_text:
        body = body.removeprefix(MARK)
    parsed = _parse(schema, kind, parameters, body, labelled)
    check_rows(parsed.count, schema.limits.rows)
    return parsed


def parse_chunk(
    schema: RowSchema, content_type: str | None, body: bytes, *, labelled: bool
) -> ParsedRows:
    """As `parse_body`, for a chunk of an upload: no limit of rows, no byte order mark."""
    return _parse(schema, *media_type(content_type), body, labelled)


def _parse(
    schema: RowSchema, kind: str, parameters: dict[str, str], body: bytes, labelled: bool
) -> ParsedRows:
    parser = PARSERS.get(kind) if schema.columns is None else FLAT_PARSERS.get(kind)
    if parser is None and kind in PARSERS:
        raise flat_rows.refuse_other_format(kind)
    if parser is None:
        accepted = ", ".join(PARSERS)
        raise Problem(
            415,
            "unsupported-media-type",
            f"content type {quoted(kind)} is not supported; send {accepted}",
        )
    return without_long_rows(schema, parser(schema, body, labelled, parameters))
