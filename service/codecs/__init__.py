"""Codecs: request bodies of any supported media type -> ParsedRows."""

from dualstream.service.codecs.media_type import media_type
from dualstream.service.codecs.parsed_rows import (
    ListedRows,
    ParsedRows,
    Rows,
    as_batch,
    check_rows,
    class_texts,
    label_columns,
    without_rows,
)
from dualstream.service.codecs.parsers import PARSERS, parse_body, parse_chunk, parse_json
from dualstream.service.codecs.query import parse_named_row, parse_query_row
from dualstream.service.codecs.row_schema import LONGEST_KEY, RowLimits, RowSchema, is_key

__all__ = [
    "RowSchema",
    "ParsedRows",
    "LONGEST_KEY",
    "PARSERS",
    "ListedRows",
    "RowLimits",
    "Rows",
    "class_texts",
    "label_columns",
    "as_batch",
    "check_rows",
    "is_key",
    "media_type",
    "parse_body",
    "parse_chunk",
    "parse_json",
    "parse_named_row",
    "parse_query_row",
    "without_rows",
]
