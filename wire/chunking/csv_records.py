"""CSV records: where they end, and which delimiter the header shows.

Client and server both ask here, so that a long body is split where its reader ends a record.
"""

import re

from dualstream.wire.chunking.buffer import ChunkBuffer

DELIMITERS = ",;\t|"
"""Delimiters that the parameter `delimiter` of text/csv may name."""
_DETECTED = b";\t"
"""Delimiters besides the comma that are found from a header."""

_REST_OF_QUOTED = re.compile(rb'[^"]*+(?:""[^"]*+)*+"')
"""Text of a quoted field, which may contain delimiters, line ends and doubled quotes."""
_LINE_ENDS = re.compile(rb"[\r\n]*")
_QUOTED = re.compile(rb'"[^"]*"?')


class RecordChunker:
    """Chunker of CSV: quotes may contain line ends, and every chunk gets the header."""

    has_lines = True
    size = 1

    def __init__(self, delimiter: str = "") -> None:
        self._delimiter = delimiter.encode()
        self._header = b""

    def end_of(self, buffer: ChunkBuffer, size: int) -> int:
        text = buffer.joined()
        return record_end(text, 0, size, self._delimiter or delimiter_of(text))

    def carried_into(self, buffer: ChunkBuffer, end: int) -> bytes:
        if self._header:
            return self._header
        text = bytes(buffer.between(0, end))
        self._delimiter = self._delimiter or delimiter_of(text)
        start = len(text) - len(text.lstrip(b"\r\n"))
        self._header = text[start : record_end(text, start, start, self._delimiter)]
        return b""


def delimiter_of(text: bytes) -> bytes:
    """The delimiter of a text whose header has only `;` or only tabs; else a comma."""
    counts = _counts(_first_line(text))
    signs = [sign for sign in _DETECTED if counts[sign]]
    return bytes(signs) if len(signs) == 1 and not counts[ord(",")] else b","


def doubt_of_delimiter(text: bytes) -> str:
    """The sign in the header that may be the delimiter, although the comma is read as one."""
    counts = _counts(_first_line(text))
    commas = counts[ord(",")]
    for sign in _DETECTED if commas else b";\t|":
        if counts[sign] > 0 and counts[sign] >= commas:
            return chr(sign)
    return ""


def _first_line(text: bytes) -> bytes:
    start = len(_LINE_ENDS.match(text).group())  # type: ignore[union-attr]
    end = text.find(b"\n", start)
    return text[start : len(text) if end < 0 else end]


def _counts(header: bytes) -> dict[int, int]:
    """How often each delimiter occurs outside quotes."""
    plain = _QUOTED.sub(b"", header)
    return {sign: plain.count(sign) for sign in DELIMITERS.encode()}


def record_end(text: bytes | bytearray, start: int, target: int, delimiter: bytes) -> int:
    """End of the last CSV record that ends within `target`, or else of the next one.

    A record begins at `start`. 0 if more bytes are needed.
    """
    opening, closing = delimiter + b"\n", delimiter + b"\r\n"
    p, end = start, 0
    while True:
        quote = text.find(b'"', p)
        stop = len(text) if quote < 0 else quote
        end = text.rfind(b"\n", p, min(stop, target)) + 1 or end
        if stop >= target:
            end = end or text.find(b"\n", max(p, target), stop) + 1
            if end or quote < 0:
                return end
        if quote < 0:
            return 0
        p = quote + 1
        if quote == start or text[quote - 1] in opening:  # it opens a field
            p = quoted_end(text, quote)
            if not 0 < p < len(text):
                return end
            if text[p] not in closing:  # an invalid record ends with its line
                p = text.find(b"\n", p)
                if p < 0:
                    return end


def quoted_end(text: bytes | bytearray, start: int) -> int:
    """Offset after the closing quote of the CSV field that opens at `start`; -1 if unclosed."""
    match = _REST_OF_QUOTED.match(text, start + 1)
    return -1 if match is None else match.end()
