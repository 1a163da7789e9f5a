"""Encoder of the record format: rows and controls to bytes. `record/format.py` has the layout."""

import hashlib
from collections.abc import Mapping, Sequence
from struct import error as StructError, pack, unpack
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from google_crc32c import extend as extended_crc32c, value as crc32c

from dualstream.service.journal.record import format as f

Ints = Sequence[int] | npt.NDArray[np.integer[Any]]
Floats = Sequence[float] | npt.NDArray[np.floating[Any]]
Piece = bytes | npt.NDArray[np.uint8]
"""Bytes of a part; arrays are copied only when the pieces are joined."""

# Up to this many numbers in a row, Python lists are faster than NumPy.
SHORT_ROW = 64
_LONG_PART = 65_536
"""Parts of this many bytes are checksummed in pieces, which saves one copy."""


def encode_rows(
    indptr: Ints,
    indices: Ints,
    values: Floats | None = None,
    labels: Floats | Sequence[str] | None = None,
    *,
    weights: Floats | None = None,
    ids: Sequence[str] | None = None,
    served_scores: Floats | None = None,
    served_seqs: Ints | None = None,
    served_parts: Sequence[Sequence[float]] | npt.NDArray[np.float64] | None = None,
    earlier: Sequence[f.EarlierLabels] | None = None,
    names: Sequence[tuple[int, str]] = (),
    key: bytes | None = None,
    fingerprint: bytes | None = None,
    continues: bool = False,
) -> bytes:
    """Encode len(indptr) - 1 >= 1 rows as one part.

    Row i is indices[indptr[i]:indptr[i + 1]], so a slice of a longer indptr selects a slice of the
    rows; the other columns have one item per row of the slice. values None means all 1.

    Raises ValueError for an index outside 0 .. 2**31 - 1 and for a row or text that is too long.
    """
    columns, content = _rows(indptr, indices, values, labels, weights, earlier)
    if ids is not None or served_scores is not None or served_seqs is not None or names:
        kind, column = _rare(ids, served_scores, served_seqs, names)
        columns |= kind
        content.append(column)
    if served_parts is not None:
        columns |= f.SERVED_PARTS
        content.append(_served_parts(served_parts))
    return _part(0, columns, len(indptr) - 1, content, key, fingerprint, continues)


def encode_sample(
    indptr: Ints,
    indices: Ints,
    values: Floats,
    labels: Floats | Sequence[str] | None,
    *,
    weights: Floats | None,
    names: Sequence[tuple[int, str]],
    key: bytes,
    continues: bool,
    served_scores: Floats | None = None,
    served_parts: Sequence[Sequence[float]] | npt.NDArray[np.float64] | None = None,
) -> tuple[bytes, bytes]:
    """Encode one row with a key of its own; also return its fingerprint.

    The fingerprint is of the row alone: names are only journalled by the worker that sees them
    first, and a repeated request has other scores.
    """
    columns, content = _rows(indptr, indices, values, labels, weights)
    plain = _part(0, columns, 1, content, None, None, False)
    fingerprint = hashlib.sha256(plain).digest()[: f.FINGERPRINT_BYTES]
    if names or served_scores is not None:
        kind, column = _rare(None, served_scores, None, names)
        columns |= kind
        content.append(column)
    if served_parts is not None:
        columns |= f.SERVED_PARTS
        content.append(_served_parts(served_parts))
    return _part(0, columns, 1, content, key, fingerprint, continues), fingerprint


def _rows(
    indptr: Ints,
    indices: Ints,
    values: Floats | None,
    labels: Floats | Sequence[str] | None,
    weights: Floats | None,
    earlier: Sequence[f.EarlierLabels] | None = None,
) -> tuple[int, list[Piece]]:
    """The columns that most rows have; see `encode_rows`."""
    count = len(indptr) - 1
    if count < 1:
        raise ValueError("a part of rows needs at least one row; use encode_opening for none")
    start, end = int(indptr[0]), int(indptr[count])
    column: Piece
    content: list[Piece]
    if count == 1 and end - start <= SHORT_ROW:
        columns, column = _few(_listed(indices, start, end), _listed(values, start, end))
        content = [column]
    else:
        columns, content = _many(
            np.asarray(indptr, np.int64),
            _whole(indices[start:end]),
            None if values is None else np.asarray(values[start:end], np.float64),
        )
    if labels is not None:
        kind, column = _labels(labels)
        if earlier is not None and any(earlier):
            content += [bytes((kind,)), column]
            kind, column = f.LABELS_REPLACING, _earlier_labels(earlier)
        columns |= kind << f.LABELS_SHIFT
        content.append(column)
    if weights is not None:
        kind, column = _floats(weights)
        columns |= kind << f.WEIGHTS_SHIFT
        content.append(column)
    return columns, content


def encode_opening(key: bytes, fingerprint: bytes | None = None) -> bytes:
    """Encode the empty part that opens a request whose first row has a key of its own."""
    return _part(0, 0, 0, [], key, fingerprint, False)


def encode_control(
    kind: str,
    fields: Mapping[str, Any] | None = None,
    arrays: Mapping[str, npt.NDArray[np.float64]] | None = None,
    *,
    key: bytes | None = None,
    fingerprint: bytes | None = None,
    continues: bool = False,
) -> bytes:
    """Encode a control as a part with one record. `fields` is any mapping that msgpack encodes.

    Raises ValueError for a name over 255 bytes, and for more than 255 arrays or dimensions.
    """
    mapping = msgspec.msgpack.encode(fields or {}, order="sorted")
    pieces = [_short_text(kind), pack("<I", len(mapping)), mapping]
    named = sorted((arrays or {}).items())
    pieces.append(_byte(len(named)))
    for name, array in named:
        shape = np.shape(array)
        pieces += (_short_text(name), _byte(len(shape)), pack(f"<{len(shape)}I", *shape))
        pieces.append(np.ascontiguousarray(array, f.FLOAT64).tobytes())
    return _part(f.CONTROL, 0, 1, pieces, key, fingerprint, continues)


def _part(
    flags: int,
    columns: int,
    count: int,
    content: Sequence[Piece],
    key: bytes | None,
    fingerprint: bytes | None,
    continues: bool,
) -> bytes:
    if fingerprint is not None:
        if len(fingerprint) != f.FINGERPRINT_BYTES:
            raise ValueError(f"a fingerprint has 16 bytes, not {len(fingerprint)}")
        flags |= f.FINGERPRINT
        content = [fingerprint, *content]
    if key is not None:
        if not key or key[0] not in f.KEY_KINDS:
            raise ValueError(f"a key begins with the byte of its kind, not {key[:1]!r}")
        flags |= f.KEY
        content = [pack("<H", len(key)), key, *content]
    if continues:
        flags |= f.CONTINUES
    size = 11 + sum(map(len, content))  # narrow header and checksum
    if size <= 0xFFFF and count <= 0xFF:
        head = f.NARROW_HEADER.pack(f.VERSION, flags, columns, size, count)
    elif size < 2**32 - 8:
        head = f.WIDE_HEADER.pack(f.VERSION, flags | f.WIDE, columns, size + 5, count)
    else:
        raise ValueError("a part must be smaller than 4 GiB")
    if size < _LONG_PART:
        body = _joined((head, *content))
        return body + f.CHECKSUM.pack(crc32c(body))
    checksum = crc32c(head)
    for piece in content:
        checksum = extended_crc32c(checksum, piece)
    return _joined((head, *content, f.CHECKSUM.pack(checksum)))


def _joined(pieces: Sequence[Piece]) -> bytes:
    return b"".join([piece if isinstance(piece, bytes) else piece.data for piece in pieces])


def _listed(numbers: Any, start: int, end: int) -> Any:
    """A slice as a list of Python numbers; None is returned as it is."""
    if numbers is None:
        return None
    numbers = numbers[start:end]
    return numbers.tolist() if isinstance(numbers, np.ndarray) else list(numbers)


def _few(indices: list[int], values: list[float] | None) -> tuple[int, bytes]:
    """Row length, indices and values of one short row: same bytes as `_many`, faster."""
    size = len(indices)
    kind, column = (0, b"") if values is None else _few_floats(values)
    columns = kind << f.VALUES_SHIFT
    head = bytes((size,))
    if kind and indices[-1] == size - 1 and indices == list(range(size)):
        return columns | f.INDICES_RUN << f.INDICES_SHIFT, head + column
    # Rows are usually sorted, so the last index tells the narrowest kind that can succeed.
    last = indices[-1] if size else 0
    if last <= 0xFF:
        try:
            return columns, head + bytes(indices) + column
        except ValueError:
            pass
    if last <= 0xFFFF:
        try:
            return columns | 1 << f.INDICES_SHIFT, head + pack(f"<{size}H", *indices) + column
        except StructError:
            pass
    if min(indices) < 0 or max(indices) > f.MAX_INDEX:
        raise ValueError(f"an index lies in 0 .. {f.MAX_INDEX}")
    return columns | 2 << f.INDICES_SHIFT, head + pack(f"<{size}I", *indices) + column


def _many(
    indptr: npt.NDArray[np.int64], indices: npt.NDArray[Any], values: npt.NDArray[np.float64] | None
) -> tuple[int, list[Piece]]:
    """Row lengths, indices and values of any number of rows."""
    lengths = np.diff(indptr)
    are_equal = lengths[0] > 0 and bool((lengths == lengths[0]).all())
    kind, column = (0, b"") if values is None else _many_floats(values)
    columns = kind << f.VALUES_SHIFT
    content: list[Piece] = [column]
    if kind and _is_run(lengths, indices, are_equal):
        columns |= f.INDICES_RUN << f.INDICES_SHIFT
    else:
        if len(indices) and indices.min() < 0:
            raise ValueError(f"an index lies in 0 .. {f.MAX_INDEX}")
        narrow, index_column = _unsigned(indices, f.MAX_INDEX)
        columns |= narrow << f.INDICES_SHIFT
        content = [index_column, column]
    if len(lengths) > 4 and are_equal:
        return columns | f.LENGTHS_EQUAL, [pack("<I", int(lengths[0])), *content]
    narrow, length_column = _unsigned(lengths, 2**32 - 1)
    return columns | narrow << f.LENGTHS_SHIFT, [length_column, *content]


def _whole(numbers: Ints) -> npt.NDArray[Any]:
    """Convert to an array of 32-bit or 64-bit integers."""
    if isinstance(numbers, np.ndarray) and numbers.dtype == np.int32:
        return numbers
    return np.asarray(numbers, np.int64)


def _is_run(lengths: npt.NDArray[np.int64], indices: npt.NDArray[Any], are_equal: bool) -> bool:
    """Are the indices of each row 0 .. length - 1?"""
    if indices[0] != 0 or indices[lengths[lengths > 0][0] - 1] != lengths[lengths > 0][0] - 1:
        return False
    if are_equal:
        run = np.arange(lengths[0], dtype=indices.dtype)
        return bool((indices.reshape(len(lengths), -1) == run).all())
    starts = np.cumsum(lengths) - lengths
    return bool((indices == np.arange(len(indices)) - np.repeat(starts, lengths)).all())


def _unsigned(numbers: npt.NDArray[Any], most: int) -> tuple[int, bytes]:
    """Encode numbers >= 0 in the narrowest of u8, u16, u32: (0, 1 or 2, the column)."""
    largest = int(numbers.max()) if len(numbers) else 0
    if largest > most:
        raise ValueError(f"{largest} is above the maximum {most}")
    kind = 0 if largest < 1 << 8 else 1 if largest < 1 << 16 else 2
    return kind, numbers.astype(f.UNSIGNED[kind]).tobytes()


def _floats(numbers: Floats) -> tuple[int, Piece]:
    if len(numbers) <= SHORT_ROW:
        return _few_floats(_listed(numbers, 0, len(numbers)))
    return _many_floats(np.asarray(numbers, np.float64))


def _few_floats(numbers: list[float]) -> tuple[int, bytes]:
    """(0, nothing) if all are 1; (1, float32) if exact; else (2, float64)."""
    size = len(numbers)
    if numbers.count(1.0) == size:
        return 0, b""
    layout = f"<{size}f"
    try:
        column = pack(layout, *numbers)
    except OverflowError:
        return 2, pack(f"<{size}d", *numbers)
    if list(unpack(layout, column)) == numbers:
        return 1, column
    return 2, pack(f"<{size}d", *numbers)


def _many_floats(numbers: npt.NDArray[np.float64]) -> tuple[int, Piece]:
    """As `_few_floats`; float64 columns are not copied."""
    if not len(numbers) or (numbers[0] == 1.0 and bool((numbers == 1.0).all())):
        return 0, b""
    with np.errstate(all="ignore"):
        # The first few numbers usually decide.
        if bool((numbers[:SHORT_ROW].astype(f.FLOAT32) == numbers[:SHORT_ROW]).all()):
            single = numbers.astype(f.FLOAT32)
            if bool((single == numbers).all()):
                return 1, single.tobytes()
    whole = np.ascontiguousarray(numbers.astype(f.FLOAT64, copy=False))
    return 2, whole.view(np.uint8)


def _labels(labels: Floats | Sequence[str]) -> tuple[int, Piece]:
    if len(labels) == 1:
        label = labels[0]
        if label == 1.0:
            return f.LABELS_BITS, b"\x01"
        if label == -1.0:
            return f.LABELS_BITS, b"\x00"
    if isinstance(labels[0], str):
        return f.LABELS_CLASSES, _classes(labels)  # type: ignore[arg-type]
    numbers = np.asarray(labels, np.float64)
    if bool((np.abs(numbers) == 1.0).all()):
        return f.LABELS_BITS, np.packbits(numbers > 0, bitorder="little").tobytes()
    kind, column = _many_floats(numbers)
    return kind + 1, column  # LABELS_FLOAT32 or LABELS_FLOAT64


def _earlier_labels(rows: Sequence[f.EarlierLabels]) -> bytes:
    seqs, labels = zip(*(pair for row in rows for pair in row), strict=True)
    kind, column = _labels(labels)
    return _joined((bytes(map(len, rows)) + bytes((kind,)), column, pack(f"<{len(seqs)}q", *seqs)))


def _classes(labels: Sequence[str]) -> bytes:
    classes = {label: number for number, label in enumerate(dict.fromkeys(labels))}
    numbers = np.fromiter((classes[label] for label in labels), np.int64, len(labels))
    width = _width(len(classes))
    column = numbers.astype(f.UNSIGNED[width >> 1]).tobytes()
    return bytes((width,)) + len(classes).to_bytes(width, "little") + _texts(classes) + column


def _texts(texts: Any) -> bytes:
    """Encode a text list."""
    encoded = [text.encode() for text in texts]
    sizes = [len(text) for text in encoded]
    width = _width(max(sizes, default=0))
    lengths = np.array(sizes, f.UNSIGNED[width >> 1]).tobytes()
    return bytes((width,)) + lengths + b"".join(encoded)


def _width(largest: int) -> int:
    """Width of a number in bytes: 1, 2 or 4."""
    return 1 if largest < 1 << 8 else 2 if largest < 1 << 16 else 4


def _served_parts(served_parts: Sequence[Sequence[float]] | npt.NDArray[np.float64]) -> bytes:
    parts = np.asarray(served_parts, f.FLOAT64)
    return _byte(parts.shape[1]) + parts.tobytes()


def _rare(
    ids: Sequence[str] | None,
    served_scores: Floats | None,
    served_seqs: Ints | None,
    names: Sequence[tuple[int, str]],
) -> tuple[int, bytes]:
    columns, pieces = 0, []
    if ids is not None:
        columns |= f.IDS
        pieces.append(_texts(ids))
    if served_scores is not None:
        columns |= f.SERVED_SCORE
        pieces.append(np.asarray(served_scores, f.FLOAT64).tobytes())
    if served_seqs is not None:
        columns |= f.SERVED_SEQ
        pieces.append(np.asarray(served_seqs, f.INT64).tobytes())
    if names:
        columns |= f.NAMES
        pieces.append(pack(f"<I{len(names)}I", len(names), *(index for index, _ in names)))
        pieces.append(_texts([name for _, name in names]))
    return columns, b"".join(pieces)


def _short_text(text: str) -> bytes:
    encoded = text.encode()
    return _byte(len(encoded)) + encoded


def _byte(number: int) -> bytes:
    if number > 0xFF:
        raise ValueError(f"at most 255, not {number}")
    return bytes((number,))
