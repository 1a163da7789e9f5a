"""Parser of line and record formats: a compiled kernel, and an exact reader for unusual records.

A record is a line; a CSV record may span lines inside quotes. An invalid record is refused on its
own, with its line number. Blank records are skipped, except in CSV of one column.
"""

import numpy as np

from dualstream.service.codecs.parsed_rows import ParsedRows, RowsBuilder
from dualstream.service.codecs.row_buffer import RowArrays
from dualstream.service.codecs.row_schema import BadRow, RowSchema
from dualstream.solvers.rows.text.count_lines import count_lines
from dualstream.wire.problem_json import RowError

FEW_BYTES = 1536
"""Shorter bodies are parsed to lists, which are faster than arrays there."""
# Extra bytes for names: a CSV column is named once, and may have many texts (NAME=TEXT).
_MORE_NAMES = 1 << 20


class Reader:
    """Reader of the records of one body: exact, and with a kernel."""

    start = 0
    """Byte offset of the first record."""
    blanks = b" \t\r"
    """A record of these bytes only is blank."""
    skips_blank = True
    """Are blank records no rows?"""

    def __init__(self, schema: RowSchema, body: bytes, labelled: bool) -> None:
        self.schema, self.labelled = schema, labelled
        self.body = body if body.endswith(b"\n") else body + b"\n"

    def end_of(self, start: int) -> int:
        """Byte offset of the line feed that ends the record at `start`."""
        return self.body.index(b"\n", start)

    def add_row(self, builder: RowsBuilder, index: int, start: int, end: int) -> None:
        """Parse any valid record and add row `index`. Raises BadRow, and adds nothing then."""
        raise NotImplementedError

    def max_entries(self) -> int:
        """Upper bound of features: a byte and a separator each."""
        return len(self.body) // 2 + 1

    def new_arrays(self) -> RowArrays:
        """Arrays that have room for all records."""
        size = len(self.body)
        rows = count_lines(self.body)
        entries = self.max_entries()
        return RowArrays(self.schema, self.labelled, rows, entries, size + _MORE_NAMES)

    def run_kernel(self, arrays: RowArrays, text: np.ndarray, ascii_only: bool) -> bool:
        """Parse records into the arrays; returns True if it stopped at one that it cannot parse.

        With `ascii_only` it stops at other bytes, because the text is not valid UTF-8 as a whole
        (or has none).
        """
        raise NotImplementedError


def parse_records(reader: Reader) -> ParsedRows:
    """Parse a body."""
    if len(reader.body) >= FEW_BYTES:
        parsed = parse_quickly(reader)
        if parsed is not None:
            return parsed
    return parse_slowly(reader)


def parse_quickly(reader: Reader) -> ParsedRows | None:
    """As `parse_slowly`, with the kernel where possible; None if it leaves rows with ids."""
    schema, labelled = reader.schema, reader.labelled
    body = reader.body
    arrays = reader.new_arrays()
    arrays.at[:2] = reader.start, body.count(b"\n", 0, reader.start)
    text = np.frombuffer(body, np.uint8)
    ascii_only = body.isascii() or not schema.takes_bytes_of(body[reader.start :])
    errors: list[RowError] = []
    while reader.run_kernel(arrays, text, ascii_only):
        start, line, index = arrays.at[:3].tolist()
        end = reader.end_of(start)
        is_row = not reader.skips_blank or bool(body[start:end].strip(reader.blanks))
        builder = RowsBuilder(schema, labelled)
        try:
            if is_row:
                reader.add_row(builder, index, start, end)
        except BadRow as bad:
            errors.append(RowError(index, bad.pointer, bad.reason, line + 1))
        else:
            if builder.listed.ids and not arrays.has_ids:
                return None
            if is_row:
                arrays.add(text, builder.listed, index)
        arrays.at[:3] = end + 1, line + body.count(b"\n", start, end + 1), index + is_row
    return arrays.parsed_rows(errors)


def parse_slowly(reader: Reader) -> ParsedRows:
    """Parse record by record with the exact reader."""
    body = reader.body
    builder = RowsBuilder(reader.schema, reader.labelled)
    index, start = 0, reader.start
    line = body.count(b"\n", 0, start)
    while start < len(body):
        end = reader.end_of(start)
        if not reader.skips_blank or body[start:end].strip(reader.blanks):
            try:
                reader.add_row(builder, index, start, end)
            except BadRow as bad:
                builder.refuse(index, bad.pointer, bad.reason, line + 1)
            index += 1
        line += body.count(b"\n", start, end + 1)
        start = end + 1
    return builder.build()
