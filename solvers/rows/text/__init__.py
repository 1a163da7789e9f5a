"""Kernels that parse rows from text: LIBSVM, JSON, CSV and Vowpal Wabbit.

tokens.py       shared: numbers, names, labels, the end of a row
name_cache.py   cache of names and text values that were parsed before
name_order.py   order of new names by the entries of rows
json.py         samples in lines or in a list, and columns
csv.py          records of fields
vw.py           lines of Vowpal Wabbit's format
libsvm.py       LIBSVM text to columns
flat/           flat rows of models with `columns`, in JSON and CSV
count_lines.py  number of lines

Except for LIBSVM, each parser reads the common forms only. It stops at the first line that is not,
and returns where; the service parses that line with a slower, complete parser.
"""

from collections.abc import Collection

import numpy as np

from dualstream.solvers.jit import Indices
from dualstream.solvers.rows.text.count_lines import count_lines
from dualstream.solvers.rows.text.csv import (
    FEATURE,
    LABEL,
    NOTHING,
    WEIGHT,
    byte_kinds,
    read_records,
)
from dualstream.solvers.rows.text.json import (
    COMMA,
    ENDED,
    LINE_FEED,
    STOPPED,
    WEIGHT as WEIGHT_COLUMN,
    X as X_COLUMN,
    Y as Y_COLUMN,
    read_column,
    read_samples,
)
from dualstream.solvers.rows.text.name_cache import MEMO_NUMBERS
from dualstream.solvers.rows.text.name_order import order_by_entries
from dualstream.solvers.rows.text.tokens import (
    LABELS,
    LONGEST_NAME,
    MAX_ROW_NAMES,
    NO_LABELS,
    NUMBERS,
    PLACES,
    POWERS_OF_TEN,
    add_indices,
    label_slot,
    slot_of,
)
from dualstream.solvers.rows.text.vw import read_examples

__all__ = [
    "COMMA",
    "ENDED",
    "FEATURE",
    "LABEL",
    "LABELS",
    "LINE_FEED",
    "LONGEST_NAME",
    "MAX_ROW_NAMES",
    "MEMO_NUMBERS",
    "NOTHING",
    "NO_LABELS",
    "NUMBERS",
    "PLACES",
    "POWERS_OF_TEN",
    "IndexTable",
    "STOPPED",
    "WEIGHT",
    "WEIGHT_COLUMN",
    "X_COLUMN",
    "Y_COLUMN",
    "byte_kinds",
    "count_lines",
    "label_slot",
    "order_by_entries",
    "read_column",
    "read_examples",
    "read_records",
    "read_samples",
    "slot_of",
]


class IndexTable:
    """A set of indices that kernels can look up."""

    def __init__(self) -> None:
        self.slots: Indices = np.zeros(2, np.int32)
        self._count = 0

    def add(self, indices: Collection[int]) -> None:
        """Add these indices. A concurrent reader of `slots` sees some of them."""
        new = np.array(sorted(indices), np.int64)
        self._count += len(new)
        if 2 * self._count > len(self.slots):
            used = ~self.slots[self.slots != 0].astype(np.int64)
            slots = np.zeros(1 << (4 * self._count).bit_length(), np.int32)
            add_indices(slots, used)
            add_indices(slots, new)
            self.slots = slots
        else:
            add_indices(self.slots, new)
