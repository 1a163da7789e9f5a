"""Table of letters by which kernels find words, made with Python's own functions.

The kernels thus agree with `words_of` on what a word is and on lower case. The table has what is
certain for each character alone; texts with other characters are left to `words_of`.
"""

import re
from functools import cache
from unicodedata import category, is_normalized

import numpy as np

from dualstream.solvers.jit import Indices
from dualstream.solvers.rows.text.flat.words import LETTERS, MARK

_FINAL_FORM = "\N{GREEK CAPITAL LETTER SIGMA}"
"""Its lower case depends on the characters around it."""
_MARKS_BELOW = 0x10000
"""Marks beyond this continue no word: see `words_of`."""


@cache
def letters() -> Indices:
    """letters (LETTERS,) int32: see solvers/rows/text/flat/words.py."""
    table = np.zeros(LETTERS, np.int32)
    characters = [chr(code) for code in range(LETTERS)]
    for code, lower in enumerate([one.lower() for one in characters]):
        if len(lower) != 1 or characters[code] == _FINAL_FORM:
            table[code] = -1
    for word in re.finditer(
        r"\w", "".join(one.lower() for one in characters if table[ord(one)] == 0)
    ):
        table[ord(word.group())] = ord(word.group())
    for code in range(_MARKS_BELOW):
        if category(characters[code]) in ("Mn", "Mc"):
            table[code] = code + MARK
    for code, one in enumerate(characters):
        lower = one.lower()
        if lower != one and table[code] >= 0:
            table[code] = table[ord(lower)] if is_normalized("NFC", lower) else -1
    table.flags.writeable = False
    return table
