"""The record format, version 1: rows and controls as bytes.

The body of an entry is a sequence of parts; concatenated bodies are a body again. A part delimits
itself; numbers are little-endian; text is UTF-8. Equal rows give equal bytes, so a fingerprint of
the bytes identifies the rows.

    part
      u8        version = 1
      u8        flags: 1 control, 2 key, 4 fingerprint, 8 continues, 16 wide; others unknown
      u16       columns (below); 0 in a control and in an empty part
      u16 | u32 bytes of the whole part, the checksum included (u32 when wide)
      u8 | u32  count of records (u32 when wide); 1 in a control
      key           when flagged: u16 bytes of what follows; u8 kind (1 request, 2 chunk,
                    3 sample id, 4 label, 5 refit, 6 pause, 7 id of an observed row),
                  the key itself
      fingerprint   when flagged: 16 bytes
      content       the columns of `count` rows, or a control, or nothing when count is 0
      u32       CRC32C of all bytes before it

    columns of rows: bits of the u16, and their content, in this order
      0-1   row lengths  0, 1, 2: count u8, u16, u32; 3: one u32 >= 1, the length of every row
      2-3   indices      0, 1, 2: u8, u16, u32 each; 3: none, a row's are 0 .. length - 1
                         (3 not together with values 0, so that bytes bound the memory of a row)
      4-5   values       0: none, all are 1; 1: float32; 2: float64
      6-8   labels       0: none; 1: bits, row i in bit i % 8 of byte i // 8, set for +1 and clear
                         for -1; 2: float32; 3: float64; 4: classes; 5: labels that replace
                         others: u8 kind (1 to 4), the labels; u8 number of labels before of each
                         row, u8 kind (1 to 4), these labels, int64 seq of each; a row's newest
                         first. A seq below 0 counts back from the row's own seq
      9-10  weights      0: none, all are 1; 1: float32; 2: float64
      11    ids          text list of count; empty text where a row has none
      12    served score float64 each
      13    served seq   int64 each
      14    names        u32 m, m u32 indices, text list of m; each index is of a feature of
                         the rows, and the name belongs to the first row that has it
      15    served parts: u8 m, m float64 of each row; of classes the loss, log-loss and mistake
                         (1 or 0) as served, of a portfolio the scores of its members
    Indices count from 0. float32 is used if it is exact. Each column takes the first kind
    that fits all its numbers; row lengths take 3 if more than 4 rows have equal length.

    text list of n   u8 width w (1, 2, 4), n lengths of w bytes, the texts one after the other
    classes          u8 width w, number of classes in w bytes, text list of them in order of
                     first use, count numbers of classes of w bytes each

    control
      u8 kind's bytes, kind
      u32 bytes of the map, the map as msgpack with sorted keys
      u8 number of arrays; each, sorted by name: u8 name's bytes, name, u8 dimensions,
      u32 per dimension, float64 in C order

A version, flag, column or kind of key that this version does not know raises UnknownRecord with its
name; any other invalid part raises CorruptRecord. Kinds of controls are open: the code that applies
a control raises UnknownRecord for kinds that it does not know.
"""

from collections.abc import Sequence
from enum import IntEnum
from struct import Struct
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

VERSION = 1

CONTROL, KEY, FINGERPRINT, CONTINUES, WIDE = 1, 2, 4, 8, 16
KNOWN_FLAGS = 31

NARROW_HEADER = Struct("<BBHHB")
WIDE_HEADER = Struct("<BBHII")
CHECKSUM = Struct("<I")
FINGERPRINT_BYTES = 16

LENGTHS_SHIFT, INDICES_SHIFT, VALUES_SHIFT, LABELS_SHIFT, WEIGHTS_SHIFT = 0, 2, 4, 6, 9
LENGTHS_EQUAL, INDICES_RUN = 3, 3
LABELS_BITS, LABELS_FLOAT32, LABELS_FLOAT64, LABELS_CLASSES, LABELS_REPLACING = 1, 2, 3, 4, 5
IDS, SERVED_SCORE, SERVED_SEQ, NAMES = 1 << 11, 1 << 12, 1 << 13, 1 << 14
SERVED_PARTS = 1 << 15

UNSIGNED: tuple[np.dtype[Any], ...] = (np.dtype("<u1"), np.dtype("<u2"), np.dtype("<u4"))
FLOAT32, FLOAT64, INT64 = np.dtype("<f4"), np.dtype("<f8"), np.dtype("<i8")

MAX_INDEX = 2**31 - 1


def holds_control(body: bytes) -> bool:
    """Is the first part of a body a control?"""
    return len(body) > 1 and bool(body[1] & CONTROL)


class RecordError(Exception):
    """A body that cannot be read."""

    is_journalled = False
    """True if the caller's own append is in the journal despite the error."""


class CorruptRecord(RecordError):
    """The bytes are damaged."""


class UnknownRecord(RecordError):
    """A newer version wrote the record; the message names what is unknown."""


class KeyKind(IntEnum):
    """First byte of a stored key. Users reach only REQUEST and SAMPLE."""

    REQUEST = 1
    CHUNK = 2
    SAMPLE = 3
    LABEL = 4
    REFIT = 5
    PAUSE = 6
    OBSERVED = 7


KEY_KINDS = frozenset(int(kind) for kind in KeyKind)
ROW_KINDS = (KeyKind.SAMPLE, KeyKind.LABEL)
"""Kinds of keys that belong to a row, by its id."""
OPENING_KINDS = (KeyKind.REQUEST, KeyKind.CHUNK)


def make_key(kind: KeyKind, key: str) -> bytes:
    """A stored key: the kind byte and the key."""
    return bytes((kind,)) + key.encode()


class Header(msgspec.Struct, frozen=True, gc=False):
    """Header of a part. `key` is the kind byte and the key."""

    count: int
    key: bytes | None = None
    fingerprint: bytes | None = None
    continues: bool = False


class Found(msgspec.Struct, gc=False):
    """A part of a body; its content is body[start:end]."""

    header: Header
    flags: int
    columns: int
    start: int
    end: int


EarlierLabels = Sequence[tuple[int, float | str]]
"""Labels that a row was learned with before, newest first, each with the seq of its record.

A seq below 0 counts back from the row's own seq.
"""


class Rows(msgspec.Struct, frozen=True, eq=False):
    """Rows in CSR layout; columns that are not present are None.

    indptr  (n + 1,) int64, from 0   indices (nnz,) int32, from 0   values (nnz,) float64
    labels  (n,) float64, or n class texts; None for observed rows
    weights (n,) float64; None if all are 1
    ids     n texts, empty for rows without an id
    served_scores (n,) float64       served_seqs (n,) int64
    served_parts  (n, m) float64, as in Batch
    names   (index, name) pairs of new features
    name_starts   first row of the part that brings each name; empty if all rows are one part
    earlier       n lists of labels before; empty for rows that are learned for the first time
    """

    indptr: npt.NDArray[np.int64]
    indices: npt.NDArray[np.int32]
    values: npt.NDArray[np.float64]
    labels: npt.NDArray[np.float64] | list[str] | None = None
    weights: npt.NDArray[np.float64] | None = None
    ids: list[str] | None = None
    served_scores: npt.NDArray[np.float64] | None = None
    served_seqs: npt.NDArray[np.int64] | None = None
    names: tuple[tuple[int, str], ...] = ()
    name_starts: tuple[int, ...] = ()
    served_parts: npt.NDArray[np.float64] | None = None
    earlier: list[EarlierLabels] | None = None

    def __len__(self) -> int:
        return len(self.indptr) - 1


class Control(msgspec.Struct, frozen=True, eq=False):
    """A record that is not a sample: refit, rollback, unlearn, pause ..."""

    kind: str
    fields: dict[str, Any] = {}
    arrays: dict[str, npt.NDArray[np.float64]] = {}
