"""Decoder of the record format: bytes to rows and controls. `record/format.py` has the layout."""

import math
from collections.abc import Iterator
from itertools import pairwise
from struct import error as StructError
from typing import Any, NoReturn

import msgspec
import numpy as np
import numpy.typing as npt
from google_crc32c import value as crc32c

from dualstream.service.journal.record import format as f
from dualstream.service.journal.record.parts import Parts, find_parts
from dualstream.solvers.rows.served_parts import joined_parts
from dualstream.solvers.rows.shared_ones import shared_ones


def decode(body: bytes) -> list[tuple[f.Header, f.Rows | f.Control | None]]:
    """Decode each part of a body: (header, content); content is None for an empty part.

    Raises UnknownRecord, CorruptRecord.
    """
    parts = _parts(body)
    decoded = map(parts.found, range(len(parts)))
    return [(part.header, _content(body, part)) for part in decoded]


def decode_merged(body: bytes) -> tuple[Parts, list[f.Rows | f.Control]]:
    """Decode a body, with consecutive rows merged: (headers of the parts, blocks).

    Rows are merged as long as they have the same kind of label. The records of the blocks are
    those of the parts, in the same order. For rows without text this is much faster than `decode`.

    Raises UnknownRecord, CorruptRecord.
    """
    parts = _parts(body)
    blocks: list[f.Rows | f.Control] = []
    run: list[f.Rows] = []
    for content in _contents(body, parts):
        if run and (isinstance(content, f.Control) or _label_kind(content) != _label_kind(run[0])):
            blocks.append(_merged_rows(run))
            run = []
        if isinstance(content, f.Control):
            blocks.append(content)
        else:
            run.append(content)
    if run:
        blocks.append(_merged_rows(run))
    return parts, blocks


def _parts(body: bytes) -> Parts:
    """Find the parts; verify their checksums and flags. Raises UnknownRecord, CorruptRecord."""
    parts, end = find_parts(body)
    if end < len(body):
        _raise_error_at(body, end)
    return parts


def _raise_error_at(body: bytes, at: int) -> NoReturn:
    """Raise why the part at this offset is damaged or unknown."""
    if body[at] != f.VERSION:
        raise f.UnknownRecord(f"record version {body[at]}")
    try:
        layout = f.WIDE_HEADER if body[at + 1] & f.WIDE else f.NARROW_HEADER
        _, flags, columns, length, _ = layout.unpack_from(body, at)
    except (IndexError, StructError):
        raise f.CorruptRecord(f"the part at byte {at} is truncated") from None
    start, end = at + layout.size, at + length - 4
    if end < start or end + 4 > len(body):
        raise f.CorruptRecord(f"the part at byte {at} ends outside its body")
    if f.CHECKSUM.unpack_from(body, end)[0] != crc32c(body[at:end]):
        raise f.CorruptRecord(f"the part at byte {at} has a wrong checksum")
    if flags & ~f.KNOWN_FLAGS:
        raise f.UnknownRecord(f"record flags {flags:#x}")
    reader = _Reader(body, start, end)
    if flags & f.KEY:
        key = reader.take(reader.number(2))
        if not key:
            raise f.CorruptRecord("a key has no kind")
        if key[0] not in f.KEY_KINDS:
            raise f.UnknownRecord(f"key kind {key[0]}")
    if flags & f.FINGERPRINT:
        reader.take(f.FINGERPRINT_BYTES)
    raise f.CorruptRecord(f"the part at byte {at} cannot be read")


def _contents(body: bytes, parts: Parts) -> Iterator[f.Rows | f.Control]:
    """Contents in order; runs of plain parts are decoded together."""
    for first, stop, is_plain in parts.runs():
        if is_plain:
            rows = parts.rows(first, stop)
            if rows is not None:
                yield rows
            continue
        for number in range(first, stop):
            content = _content(body, parts.found(number))
            if content is not None:
                yield content


def _label_kind(rows: f.Rows) -> type:
    return list if isinstance(rows.labels, list) else type(rows.labels)


def _content(body: bytes, part: f.Found) -> f.Rows | f.Control | None:
    reader = _Reader(body, part.start, part.end)
    try:
        if part.flags & f.CONTROL:
            content: f.Rows | f.Control | None = _control(reader, part)
        elif part.header.count:
            content = _rows(reader, part.columns, part.header.count)
        else:
            content = None
    except UnicodeDecodeError as error:
        raise f.CorruptRecord("a text is not UTF-8") from error
    if reader.at != part.end:
        raise f.CorruptRecord(f"a part has {part.end - reader.at} bytes too many")
    return content


class _Reader:
    """Sequential reader of body[at:end]; raises CorruptRecord if there are not enough bytes."""

    __slots__ = ("at", "body", "end")

    def __init__(self, body: bytes, at: int, end: int):
        self.body, self.at, self.end = body, at, end

    def take(self, size: int) -> bytes:
        return self.body[self._skip(size) : self.at]

    def number(self, width: int) -> int:
        return int.from_bytes(self.take(width), "little")

    def array(self, dtype: np.dtype[Any], count: int) -> npt.NDArray[Any]:
        return np.frombuffer(self.body, dtype, count, self._skip(count * dtype.itemsize))

    def width(self) -> int:
        width = self.number(1)
        if width not in (1, 2, 4):
            raise f.UnknownRecord(f"width {width}")
        return width

    def text(self) -> str:
        return self.take(self.number(1)).decode()

    def texts(self, count: int) -> list[str]:
        width = self.width()
        texts = []
        for size in self.array(f.UNSIGNED[width >> 1], count).tolist():
            texts.append(self.take(size).decode())
        return texts

    def _skip(self, size: int) -> int:
        at = self.at
        if size > self.end - at:
            raise f.CorruptRecord(f"a column of {size} bytes where only {self.end - at} are left")
        self.at = at + size
        return at


def _rows(reader: _Reader, columns: int, count: int) -> f.Rows:
    indptr = _indptr(reader, columns >> f.LENGTHS_SHIFT & 3, count)
    nnz = int(indptr[-1])
    kind = columns >> f.INDICES_SHIFT & 3
    value_kind = columns >> f.VALUES_SHIFT & 3
    if kind == f.INDICES_RUN:
        if not value_kind or nnz > reader.end - reader.at:
            raise f.CorruptRecord("implicit indices without values")
        starts = np.repeat(indptr[:-1], np.diff(indptr))
        indices = (np.arange(nnz, dtype=np.int64) - starts).astype(np.int32)
    else:
        indices = _checked_indices(reader.array(f.UNSIGNED[kind], nnz))
    values = _floats(reader, value_kind, nnz)
    label_kind, earlier = columns >> f.LABELS_SHIFT & 7, None
    if label_kind == f.LABELS_REPLACING:
        labels = _labels(reader, reader.number(1), count)
        earlier = _earlier_labels(reader, count, type(labels))
    else:
        labels = _labels(reader, label_kind, count)
    return f.Rows(
        indptr,
        indices,
        shared_ones(nnz) if values is None else values,
        labels,
        _floats(reader, columns >> f.WEIGHTS_SHIFT & 3, count),
        reader.texts(count) if columns & f.IDS else None,
        reader.array(f.FLOAT64, count).astype(np.float64) if columns & f.SERVED_SCORE else None,
        reader.array(f.INT64, count).astype(np.int64) if columns & f.SERVED_SEQ else None,
        _names(reader) if columns & f.NAMES else (),
        served_parts=_served_parts(reader, count) if columns & f.SERVED_PARTS else None,
        earlier=earlier,
    )


def _indptr(reader: _Reader, kind: int, count: int) -> npt.NDArray[np.int64]:
    if kind == f.LENGTHS_EQUAL:
        length = reader.number(4)
        if not length or count * length > reader.end - reader.at:
            raise f.CorruptRecord(f"{count} rows of {length} numbers")
        return np.arange(0, (count + 1) * length, length, dtype=np.int64)
    lengths = reader.array(f.UNSIGNED[kind], count)
    if count == 1:
        return np.array((0, lengths[0]), np.int64)
    indptr = np.zeros(count + 1, np.int64)
    np.cumsum(lengths, out=indptr[1:])
    return indptr


def _floats(reader: _Reader, kind: int, count: int) -> npt.NDArray[np.float64] | None:
    if kind == 0:
        return None
    if kind == 3:
        raise f.UnknownRecord("column of floats of kind 3")
    with np.errstate(invalid="ignore"):  # signalling NaNs, which only damaged bytes contain
        return reader.array(f.FLOAT32 if kind == 1 else f.FLOAT64, count).astype(np.float64)


def _labels(reader: _Reader, kind: int, count: int) -> npt.NDArray[np.float64] | list[str] | None:
    if kind == 0:
        return None
    if kind == f.LABELS_BITS:
        packed = reader.array(f.UNSIGNED[0], (count + 7) // 8)
        bits = np.unpackbits(packed, count=count, bitorder="little")
        return bits.astype(np.float64) * 2.0 - 1.0
    if kind in (f.LABELS_FLOAT32, f.LABELS_FLOAT64):
        return _floats(reader, kind - 1, count)
    if kind == f.LABELS_CLASSES:
        return _classes(reader, count)
    raise f.UnknownRecord(f"labels of kind {kind}")


def _earlier_labels(reader: _Reader, count: int, kind: type) -> list[f.EarlierLabels]:
    ends = np.cumsum(reader.array(f.UNSIGNED[0], count), dtype=np.int64).tolist()
    labels = _labels(reader, reader.number(1), ends[-1]) if ends[-1] else None
    if labels is None or type(labels) is not kind:
        raise f.CorruptRecord("labels replace none, or labels of another kind")
    seqs = reader.array(f.INT64, ends[-1]).tolist()
    pairs = list(zip(seqs, labels if isinstance(labels, list) else labels.tolist(), strict=True))
    return [pairs[begin:end] for begin, end in pairwise([0, *ends])]


def _classes(reader: _Reader, count: int) -> list[str]:
    width = reader.width()
    classes = reader.texts(reader.number(width))
    numbers = reader.array(f.UNSIGNED[width >> 1], count)
    if numbers.max() >= len(classes):
        raise f.CorruptRecord(f"class {numbers.max()} of {len(classes)}")
    return [classes[number] for number in numbers.tolist()]


def _served_parts(reader: _Reader, count: int) -> npt.NDArray[np.float64]:
    width = reader.number(1)
    return reader.array(f.FLOAT64, width * count).astype(np.float64).reshape(count, width)


def _names(reader: _Reader) -> tuple[tuple[int, str], ...]:
    count = reader.number(4)
    indices = _checked_indices(reader.array(f.UNSIGNED[2], count))
    return tuple(zip(indices.tolist(), reader.texts(count), strict=True))


def _control(reader: _Reader, part: f.Found) -> f.Control:
    if part.header.count != 1 or part.columns:
        raise f.CorruptRecord("a control is one record without columns")
    kind = reader.text()
    try:
        fields = msgspec.msgpack.decode(reader.take(reader.number(4)), type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise f.CorruptRecord(f"the map of control {kind!r}: {error}") from error
    arrays = {}
    for _ in range(reader.number(1)):
        name = reader.text()
        shape = tuple(reader.number(4) for _ in range(reader.number(1)))
        arrays[name] = _array(reader, shape)
    return f.Control(kind, fields, arrays)


def _array(reader: _Reader, shape: tuple[int, ...]) -> npt.NDArray[np.float64]:
    if len(shape) > 32:
        raise f.CorruptRecord(f"an array of {len(shape)} dimensions")
    numbers = reader.array(f.FLOAT64, math.prod(shape)).astype(np.float64)
    try:
        return numbers.reshape(shape)
    except ValueError as error:  # size 0 with huge dimensions
        raise f.CorruptRecord(f"an array of shape {shape}") from error


def _checked_indices(indices: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
    """Indices as int32.

    Raises CorruptRecord.
    """
    if indices.dtype.itemsize == 4 and len(indices) and indices.max() > f.MAX_INDEX:
        raise f.CorruptRecord(f"an index above {f.MAX_INDEX}")
    return indices.astype(np.int32)


def _merged_rows(runs: list[f.Rows]) -> f.Rows:
    """Concatenate rows with the same kind of label; missing columns get their default.

    Defaults: weight 1, id empty, no earlier labels, served score and parts NaN, served seq
    -1.
    """
    if len(runs) == 1:
        return runs[0]
    ends = np.cumsum([len(rows.indices) for rows in runs])
    indptr = [runs[0].indptr] + [
        rows.indptr[1:] + before for rows, before in zip(runs[1:], ends, strict=False)
    ]
    return f.Rows(
        np.concatenate(indptr),
        np.concatenate([rows.indices for rows in runs]),
        np.concatenate([rows.values for rows in runs]),
        _joined_labels(runs),
        _joined([rows.weights for rows in runs], runs, 1.0),
        _joined_ids(runs),
        _joined([rows.served_scores for rows in runs], runs, np.nan),
        _joined([rows.served_seqs for rows in runs], runs, -1),
        tuple(pair for rows in runs for pair in rows.names),
        _joined_name_starts(runs),
        joined_parts([rows.served_parts for rows in runs], [len(rows) for rows in runs]),
        _joined_earlier(runs),
    )


def _joined_name_starts(runs: list[f.Rows]) -> tuple[int, ...]:
    starts: list[int] = []
    first = 0
    for rows in runs:
        starts += [first] * len(rows.names)
        first += len(rows)
    return tuple(starts)


def _joined_labels(runs: list[f.Rows]) -> npt.NDArray[np.float64] | list[str] | None:
    if runs[0].labels is None:
        return None
    if isinstance(runs[0].labels, list):
        return [label for rows in runs for label in rows.labels or ()]
    return np.concatenate([rows.labels for rows in runs])


def _joined_earlier(runs: list[f.Rows]) -> list[f.EarlierLabels] | None:
    if all(rows.earlier is None for rows in runs):
        return None
    return [labels for rows in runs for labels in rows.earlier or [()] * len(rows)]


def _joined_ids(runs: list[f.Rows]) -> list[str] | None:
    if all(rows.ids is None for rows in runs):
        return None
    return [text for rows in runs for text in rows.ids or [""] * len(rows)]


def _joined(columns: list[Any], runs: list[f.Rows], default: float) -> Any:
    if all(column is None for column in columns):
        return None
    dtype = np.int64 if isinstance(default, int) else np.float64
    return np.concatenate(
        [
            np.full(len(rows), default, dtype) if column is None else column
            for column, rows in zip(columns, runs, strict=True)
        ]
    )
