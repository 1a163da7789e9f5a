"""Letters of the kernels against Python's own: lower case, words, composed characters."""

from unicodedata import combining, decomposition, normalize

import pytest

from dualstream.solvers.rows.columns.letters import letters
from dualstream.solvers.rows.columns.values import words_of
from dualstream.solvers.rows.text.flat.escapes import is_composed
from dualstream.solvers.rows.text.flat.words import LETTERS, MARK


def test_escapes_that_are_decoded_are_never_composed_with_others():
    results = [code for code in range(0x110000) if is_composed(code)]
    seconds = set()
    for code in range(0x110000):
        parts = decomposition(chr(code)).split()
        if len(parts) == 2 and parts[0][0] != "<":
            seconds.add(int(parts[1], 16))
    assert len(results) > 30_000
    for code in results:
        one = chr(code)
        assert normalize("NFC", one) == one and not combining(one) and code not in seconds, code


@pytest.mark.parametrize("before", ["", "a"])
def test_the_table_agrees_with_words_of(before):
    table = letters().tolist()
    for code in range(LETTERS):
        if 0xD800 <= code < 0xE000 or table[code] < 0 or normalize("NFC", chr(code)) != chr(code):
            continue
        letter = table[code]
        is_letter = 0 < letter < MARK or (letter >= MARK and bool(before))
        word = before + chr(letter % MARK) if is_letter else before
        result = words_of("text", before + chr(code))
        assert [normalize("NFC", one) for one in result] == [
            normalize("NFC", one) for one in [word] if one
        ], hex(code)
