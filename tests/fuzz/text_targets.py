"""Fuzzing targets for request bodies.

The first byte of an input chooses the model and whether labels are required.
"""

import zlib
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.ipc
import zstandard

from dualstream.service.codecs import (
    ParsedRows,
    RowSchema,
    arrow as arrow_rows,
    as_batch,
    parse_body,
    parse_chunk,
)
from dualstream.service.codecs.csv import RecordReader
from dualstream.service.codecs.decompress import Inflating
from dualstream.service.codecs.ndjson import SampleReader
from dualstream.service.codecs.table_columns import columns_of
from dualstream.service.codecs.vw import ExampleReader
from dualstream.solvers import Batch
from dualstream.wire.chunking import chunks
from dualstream.wire.chunking.chunks import MARK
from dualstream.wire.problem_json import Problem
from tests.service.codecs.line_strategies import SCHEMAS, assert_same, outcome
from tests.service.codecs.support import ARROW, CSV, NDJSON, VW
from tests.solvers.rows.text.plain_libsvm import assert_parsed_alike
from tests.wire.support import cut_until, said

JSON, LIBSVM = "application/json", "text/x-libsvm"
REFUSALS = (400, 413, 415, 422)
LIMIT = 1 << 20
MAX_ROWS = 1 << 14
"""Of an Arrow stream that is read here: a million is accepted, and takes plain Python too long."""


def shown_apart(data: bytes) -> tuple[RowSchema, bool, bytes]:
    """The model, whether rows are labelled, the body."""
    first = data[0] if data else 0
    return SCHEMAS[first % len(SCHEMAS)], bool(first & 128), data[1:]


def checked(schema: RowSchema, media: str, body: bytes, labelled: bool) -> ParsedRows | None:
    """Parsed rows, checked for their invariants; None if the whole body is refused."""
    try:
        parsed = parse_body(schema, media, body, labelled=labelled)
    except Problem as problem:
        assert problem.status in REFUSALS, problem
        return None
    positions = sorted([*parsed.row_indices, *(error.index for error in parsed.errors)])
    assert positions == list(range(parsed.count))
    b = as_batch([parsed.rows])
    assert len(b) == len(parsed.row_indices) and b.dim == schema.dim
    # The constructor checks pointers, order, bounds and finite numbers.
    Batch(b.indptr, b.indices, b.values, b.labels, b.weights, b.dim, b.classes)
    if labelled:
        assert np.isfinite(b.labels).all()
        if schema.task == "binary":
            assert set(b.labels.tolist()) <= {-1.0, 1.0}
    for position, name in parsed.names:
        assert 0 <= position < schema.dim and isinstance(name, str)
    return parsed


def libsvm(data: bytes) -> None:
    """The kernel equals a reader in plain Python."""
    schema, labelled, body = shown_apart(data)
    checked(schema, LIBSVM, body, labelled)
    assert_parsed_alike(body, labelled)


def ndjson(data: bytes) -> None:
    """The bulk kernel equals the reader of single lines."""
    schema, labelled, body = shown_apart(data)
    checked(schema, NDJSON, body, labelled)
    assert_same(SampleReader, schema, body, labelled)


def vw(data: bytes) -> None:
    """The bulk kernel equals the reader of single lines."""
    schema, labelled, body = shown_apart(data)
    checked(schema, VW, body, labelled)
    checked(schema, VW + "; tag=id", body, labelled)
    assert_same(ExampleReader, schema, body, labelled)


def csv(data: bytes) -> None:
    """The bulk kernel equals the reader of single records."""
    schema, labelled, body = shown_apart(data)
    if checked(schema, CSV, body, labelled) is None or not body.strip():
        return
    body = body.removeprefix(MARK)
    reader = RecordReader(schema, body, labelled)
    if not (labelled and reader.columns.id is not None or reader.has_long_names):
        assert_same(RecordReader, schema, body, labelled)


def json(data: bytes) -> None:
    """Each sample equals the same sample alone on a line."""
    schema, labelled, body = shown_apart(data)
    parsed = checked(schema, JSON, body, labelled)
    if parsed is None:
        return
    lines = [body]
    with suppress(msgspec.ValidationError):
        lines = msgspec.json.decode(body, type=_Samples).samples
    if parsed.single or len(lines) != 1 or lines[0] is not body:
        # Line ends are in no token of JSON.
        text = b"\n".join(bytes(line).translate(_ONE_LINE) for line in lines)
        assert_alike(parsed, checked(schema, NDJSON, text, labelled))


class _Samples(msgspec.Struct):
    samples: list[msgspec.Raw]


_ONE_LINE = bytes.maketrans(b"\n\r", b"  ")


def assert_alike(one: ParsedRows, other: ParsedRows | None) -> None:
    """Equal rows to the bit, and equal refusals."""
    assert other is not None
    (bits, positions, errors), (bits_there, places_there, errors_there) = (
        outcome(one),
        outcome(other),
    )
    assert (bits, positions) == (bits_there, places_there)
    assert [index for index, *_ in errors] == [index for index, *_ in errors_there]


def arrow(data: bytes) -> None:
    """Reading by columns equals reading by rows."""
    schema, labelled, body = shown_apart(data)
    if _rows_shown(body) > MAX_ROWS:
        return
    if checked(schema, ARROW, body, labelled) is None:
        return
    with pa.ipc.open_stream(pa.py_buffer(body)) as reader:
        columns = columns_of(schema, reader.schema.names, labelled)
        tables = [(batch, columns) for batch in reader]
    if columns.id is None:
        quick = arrow_rows.parse_quickly(pa, schema, tables, labelled)
        slow = arrow_rows.parse_slowly(schema, tables, labelled)
        assert outcome(quick) == outcome(slow)


def _rows_shown(body: bytes) -> int:
    """Row count in the head, which is unbounded without columns; 0 if it is no stream."""
    try:
        with pa.ipc.open_stream(pa.py_buffer(body)) as reader:
            return sum(batch.num_rows for batch in reader)
    except (pa.ArrowException, OSError, EOFError, ValueError):
        return 0


def inflation(data: bytes) -> None:
    """Decompression in one piece, in many, and by the libraries is equal and respects the limit."""
    encoding, step, body = ("gzip", "zstd")[data[:1] < b"\x80"], 1 + len(data) // 7, data[1:]
    pieces = [body[at : at + step] for at in range(0, len(body), step)]
    result, in_pieces = inflated(encoding, [body]), inflated(encoding, pieces)
    try:
        true: bytes | None = _plainly(body, _INFLATERS[encoding]) if body else None
    except (zlib.error, zstandard.ZstdError, EOFError):
        true = None
    if true is not None and len(true) > LIMIT:
        assert result in (400, 413) and in_pieces in (400, 413)
        return
    # Which of the strange frames that hold nothing are good depends, for its library, on how they
    # come; what comes out does not.
    assert len({kept for kept in (result, in_pieces, true) if isinstance(kept, bytes)}) <= 1
    if encoding == "gzip":
        assert isinstance(result, bytes) == isinstance(in_pieces, bytes) == (true is not None)


def inflated(encoding: str, pieces: list[bytes]) -> bytes | int:
    """The decompressed pieces, or the status of the refusal."""
    inflating = Inflating(encoding, LIMIT)
    result = bytearray()
    try:
        for piece in pieces:
            for kept in inflating.pieces(piece):
                result += kept
                assert len(kept) <= 9 * LIMIT and len(result) <= LIMIT
        inflating.finish()
    except Problem as problem:
        assert problem.status in (400, 413), problem
        return problem.status
    return bytes(result)


def _plainly(body: bytes, inflater: Callable[[], Any]) -> bytes:
    """All members, or frames, of a body, each decompressed in one piece."""
    result = b""
    while body:
        one = inflater()
        result += one.decompress(body)
        if not one.eof:
            raise EOFError
        body = one.unused_data
    return result


def _of_gzip() -> Any:
    return zlib.decompressobj(wbits=31)


def _of_zstd() -> Any:
    return zstandard.ZstdDecompressor(max_window_size=8 << 20).decompressobj()


_INFLATERS = {"gzip": _of_gzip, "zstd": _of_zstd}
_CUT = [LIBSVM, NDJSON, VW, CSV, ARROW]


def cutting(data: bytes) -> None:
    """A long body equals its chunks, however it is received, and they have all its rows."""
    first, body = data[0] if data else 0, data[1:]
    kind, longest = _CUT[first % len(_CUT)], 64 if first & 128 else 1 << 16
    size = chunks.CHUNK_BYTES
    chunks.CHUNK_BYTES = 32
    try:
        whole, is_good = cut_until(kind, [body], longest)
        for step in (1 + len(body) // 5, 7):
            pieces = [body[at : at + step] for at in range(0, len(body), step)]
            assert cut_until(kind, pieces, longest) == (whole, is_good)
    finally:
        chunks.CHUNK_BYTES = size
    if not is_good:
        return
    assert [chunk.number for chunk in whole] == list(range(len(whole)))
    assert [chunk.ends for chunk in whole][-1:] == ([len(body)] if whole else [])
    if kind == ARROW:
        return
    schema, rows, errors = SCHEMAS[kind != LIBSVM], 0, []
    try:
        for chunk in whole:
            count, bad = said(parse_chunk(schema, kind, chunk.body, labelled=True))
            errors += [(i + rows, pointer, why, n + chunk.line) for i, pointer, why, n in bad]
            rows += count
        assert (rows, errors) == said(parse_body(schema, kind, body, labelled=True))
    except Problem as problem:  # an unusable header
        assert kind == CSV and problem.status in REFUSALS, problem
