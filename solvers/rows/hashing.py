"""Feature hashing (the hashing trick): named features to indices of a row.

The index of a name is MurmurHash3 x86 32 of its UTF-8 bytes, seed 0, modulo 2^bits (Appleby's
reference code, MurmurHash3.cpp; Weinberger et al., "Feature hashing for large scale multitask
learning", 2009, without their sign). A number is the value at the index of its name. A string is
the feature `name=text` with value 1. A bool is its name with value 1 or 0. Hashing has no state.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate

import numpy as np

from dualstream.solvers.jit import I8, RO_I8, RO_U1, Ints, kernel
from dualstream.solvers.rows.text.tokens import hash_bytes

MAX_BITS = 28


def hash_names(names: Sequence[str], bits: int) -> Ints:
    """Indices (n,), from 0, of these names in rows of width 2^bits."""
    encoded = [name.encode("utf-8", "surrogatepass") for name in names]
    ends = np.zeros(len(encoded) + 1, np.int64)
    ends[1:] = list(accumulate(map(len, encoded)))
    indices = np.empty(len(encoded), np.int64)
    hash_all(np.frombuffer(b"".join(encoded), np.uint8), ends, indices)
    indices &= (1 << bits) - 1
    return indices


class NameIndices(dict[str, int]):
    """Cache of name -> index for rows of width 2^bits: `indices[name]`.

    At most `remembered` names are cached, which bounds the memory of an unbounded set of names.
    """

    def __init__(self, bits: int, remembered: int = 262_144) -> None:
        super().__init__()
        self.bits = bits
        self.remembered = remembered

    def __missing__(self, name: str) -> int:
        if len(self) >= self.remembered:
            self.clear()
        # A quarter of the time of hash_names with one name.
        text = np.frombuffer(bytearray(name.encode("utf-8", "surrogatepass")), np.uint8)
        index = self[name] = hash_bytes(text, len(text)) & ((1 << self.bits) - 1)
        return index


def hash_row(
    features: Mapping[str, float | bool | str], index_of: NameIndices
) -> tuple[list[int], list[float]]:
    """Increasing indices and values of a row of named features, without zeros.

    Values at one index are added in the order of the features. Nothing is checked: an invalid
    number comes out unchanged, or as an invalid sum.
    """
    row: dict[int, float] = {}
    for name, value in features.items():
        if isinstance(value, str):
            index, number = index_of[f"{name}={value}"], 1.0
        else:
            index, number = index_of[name], float(value)
        row[index] = row[index] + number if index in row else number
    return sorted_row(row)


def sorted_row(row: Mapping[int, float]) -> tuple[list[int], list[float]]:
    """Increasing indices and values of a row, without zeros."""
    indices = sorted(row)
    values = [row[index] for index in indices]
    if 0.0 in values:
        indices = [index for index in indices if row[index] != 0.0]
        values = [number for number in values if number != 0.0]
    return indices, values


@kernel
def hash_all(text: RO_U1, ends: RO_I8, out: I8) -> None:
    """hash_bytes of each piece of `text`; out (n,) in [0, 2^32).

    text (m,) uint8 holds the pieces one after the other; piece i is ends[i]:ends[i+1], ends (n +
    1,).
    """
    for i in range(out.shape[0]):
        out[i] = hash_bytes(text[ends[i] : ends[i + 1]], ends[i + 1] - ends[i])
