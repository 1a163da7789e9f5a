"""`vw` export: a model file of Vowpal Wabbit, for `vw -t -i FILE`.

The layout is the one that version 9 writes with `--predict_only_model`; later versions read it too.
All numbers are little-endian:

    version text | id text | 'm' | min and max label float32 | bits uint32 | three unused uint32 |
    options text | 4 | checksum uint32 | 0 uint8 | (index uint32, weight float32), increasing

where a text is its length in bytes, uint32, and then the zero-terminated text. The checksum is the
MurmurHash3 of each field between the version and itself, seeded by that of the field before.
Features have the indices of Vowpal Wabbit's parser: an index is itself, and a name has, with
`--hash all`, the same MurmurHash3 as here. VW's constant, the intercept, is at CONSTANT modulo
2^bits, so bits are chosen such that all indices are below it.
"""

import struct

import numpy as np

from dualstream.solvers.errors import NotExpressible
from dualstream.solvers.export.linear import one_weight_a_feature
from dualstream.solvers.export.source import Source

CONSTANT = 11650396
_VERSION = "9.0.0"
_MAX_BITS = 30
_NO_LIMIT = float(np.finfo(np.float32).max)
"""Predictions are clipped to the range of labels in the file."""


def write(source: Source) -> bytes:
    """Raises NotExpressible."""
    rows = one_weight_a_feature(source.form)
    if source.spec["task"] == "multiclass":
        raise NotExpressible("a Vowpal Wabbit file has one score; this model has one per class")
    (row,) = rows
    indices, weights = row.places.astype(np.int64), row.weights
    if source.is_hashed:
        bits, options = int(source.spec["features"]["bits"]), " --hash all"
    else:
        indices = indices + 1
        bits, options = _bits_for(source.form.dim), ""
    if row.intercept == 0.0:
        options += " --noconstant"
    else:
        constant = CONSTANT % (1 << bits)
        if constant in indices:
            raise NotExpressible(
                f"the feature at index {constant + (1 if source.is_hashed else 0)} is used,"
                " where Vowpal Wabbit has its constant: choose other `bits`"
            )
        indices, weights = np.append(indices, constant), np.append(weights, row.intercept)
    with np.errstate(over="ignore"):
        singles = weights.astype("<f4")
    if not np.all(np.isfinite(singles)):
        raise NotExpressible("a weight is too large for the float32 of Vowpal Wabbit")
    return _header(bits, options) + _table(indices, singles)


def _bits_for(dim: int) -> int:
    """The smallest bits for which all indices, from 1 to dim, are below the constant."""
    for bits in range(1, _MAX_BITS + 1):
        if dim < CONSTANT % (1 << bits):
            return bits
    raise NotExpressible(f"Vowpal Wabbit has its constant at index {CONSTANT}, within the features")


def _header(bits: int, options: str) -> bytes:
    fields = [
        *_text(""),
        b"m",
        struct.pack("<f", -_NO_LIMIT),
        struct.pack("<f", _NO_LIMIT),
        struct.pack("<I", bits),
        *(struct.pack("<I", 0) for _ in range(3)),
        *_text(options),
    ]
    checksum = 0
    for field in fields:
        checksum = _murmur3(field, checksum)
    return b"".join([*_text(_VERSION), *fields, struct.pack("<II", 4, checksum), b"\0"])


def _text(text: str) -> tuple[bytes, bytes]:
    encoded = text.encode() + b"\0"
    return struct.pack("<I", len(encoded)), encoded


def _table(indices: np.ndarray, weights: np.ndarray) -> bytes:
    order = np.argsort(indices)
    table = np.empty(len(order), np.dtype([("index", "<u4"), ("weight", "<f4")]))
    table["index"], table["weight"] = indices[order], weights[order]
    return table.tobytes()


def _murmur3(data: bytes, seed: int) -> int:
    """MurmurHash3 x86 32 (Appleby); rows/hashing.py has it for many texts and seed 0."""
    h, mask = seed, 0xFFFFFFFF
    for begin in range(0, len(data), 4):
        piece = data[begin : begin + 4]
        k = int.from_bytes(piece, "little") * 0xCC9E2D51 & mask
        h ^= (k << 15 | k >> 17) * 0x1B873593 & mask
        if len(piece) == 4:
            h = ((h << 13 | h >> 19) * 5 + 0xE6546B64) & mask
    h ^= len(data)
    h = (h ^ h >> 16) * 0x85EBCA6B & mask
    h = (h ^ h >> 13) * 0xC2B2AE35 & mask
    return h ^ h >> 16
