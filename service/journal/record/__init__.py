"""The record codec, version 1: rows and controls as bytes.

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
                    3 sample id, 4 label, 5 refit, 6 pause), the key itself
      fingerprint   when flagged: 16 bytes
      content       the columns of `count` rows, or a control, or nothing when count is 0
      u32       CRC32C of all bytes before it

    columns of rows: bits of the u16, and their content, in this order
      0-1   row lengths  0, 1, 2: count u8, u16, u32; 3: one u32 >= 1, the length of every row
      2-3   indices      0, 1, 2: u8, u16, u32 each; 3: none, a row's are 0 .. length - 1
                         (3 not together with values 0, so that bytes bound the memory of a row)
      4-5   values       0: none, all are 1; 1: float32; 2: float64
      6-8   labels       0: none; 1: bits, row i in bit i % 8 of byte i // 8, set for +1 and clear
                         for -1; 2: float32; 3: float64; 4: classes
      9-10  weights      0: none, all are 1; 1: float32; 2: float64
      11    ids          text list of count; empty text where a row has none
      12    served score float64 each
      13    served seq   int64 each
      14    names        u32 m, m u32 indices, text list of m
      15    unknown
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

from dualstream.service.journal.record.decode import decode, decode_merged
from dualstream.service.journal.record.encode import encode_control, encode_opening, encode_rows
from dualstream.service.journal.record.format import (
    ROW_KINDS,
    Control,
    CorruptRecord,
    Header,
    KeyKind,
    RecordError,
    Rows,
    UnknownRecord,
    holds_control,
    make_key,
)
from dualstream.service.journal.record.parts import Parts

__all__ = [
    "Control",
    "CorruptRecord",
    "Header",
    "KeyKind",
    "Parts",
    "ROW_KINDS",
    "RecordError",
    "Rows",
    "UnknownRecord",
    "decode",
    "decode_merged",
    "encode_control",
    "encode_opening",
    "encode_rows",
    "holds_control",
    "make_key",
]
