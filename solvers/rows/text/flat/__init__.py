"""Kernels that read flat rows: objects and records whose columns a specification declares.

layout.py    what the kernels know of each column
reference.py a pointer to the arrays that kernels share
features.py  features of a row, missing values, crosses
values.py    values by the types of their columns
times.py     times and their parts
words.py     words of texts
roles.py     label, weight, id
escapes.py   escapes in texts
json.py      objects in lines or in a list
csv.py       records of fields
"""

from dualstream.solvers.rows.text.flat.csv import read_flat_records
from dualstream.solvers.rows.text.flat.json import AT_NUMBERS, read_flat_objects
from dualstream.solvers.rows.text.flat.layout import (
    FULL,
    LATEST,
    LONGEST_NOTES,
    NOTE_NUMBERS,
    SCRATCH_BYTES,
    UNKNOWN,
)
from dualstream.solvers.rows.text.flat.words import SPAN_NUMBERS

__all__ = [
    "AT_NUMBERS",
    "FULL",
    "LATEST",
    "LONGEST_NOTES",
    "NOTE_NUMBERS",
    "SCRATCH_BYTES",
    "SPAN_NUMBERS",
    "UNKNOWN",
    "read_flat_objects",
    "read_flat_records",
]
