"""The record codec: encodes and decodes rows and controls. format.py specifies the bytes."""

from dualstream.service.journal.record.decode import decode, decode_merged
from dualstream.service.journal.record.encode import (
    encode_control,
    encode_opening,
    encode_rows,
    encode_sample,
)
from dualstream.service.journal.record.format import (
    ROW_KINDS,
    Control,
    CorruptRecord,
    EarlierLabels,
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
    "EarlierLabels",
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
    "encode_sample",
    "holds_control",
    "make_key",
]
