"""Escapes in the texts of flat JSON rows."""

from dualstream.solvers.jit import RO_U1, U1, kernel
from dualstream.solvers.rows.text.flat.layout import LONGEST_TEXT, NOT_MINE
from dualstream.solvers.rows.text.flat.words import put_code_point
from dualstream.solvers.rows.text.tokens import digit

_CONTROLS = 32


@kernel(inner=True)
def hex_at(text: RO_U1, p: int) -> int:
    """The number of four hexadecimal digits at p, or -1."""
    number = 0
    for k in range(4):
        c = int(text[p + k])
        d = digit(text[p + k])
        if 65 <= c <= 70 or 97 <= c <= 102:
            d = (c | 32) - 87
        elif not 0 <= d <= 9:
            return -1
        number = number << 4 | d
    return number


@kernel
def is_composed(code: int) -> bool:
    """Is a text of ASCII and of such characters always in NFC? For the common scripts."""
    if 0x20 <= code < 0x300 or 0x391 <= code <= 0x3FF:  # Latin, Greek
        return True
    if 0x400 <= code <= 0x482 or 0x48A <= code <= 0x52F:  # Cyrillic
        return True
    if 0x5D0 <= code <= 0x5EA or 0x621 <= code <= 0x64A:  # Hebrew, Arabic: letters
        return True
    if 0x2010 <= code <= 0x2027 or 0x2030 <= code <= 0x205E or 0x20A0 <= code <= 0x20BF:
        return True  # dashes, quotes, currencies
    if 0x3001 <= code <= 0x3029 or 0x3041 <= code <= 0x3096 or 0x30A1 <= code <= 0x30FF:
        return True  # kana
    if 0x4E00 <= code <= 0x9FFF or 0xAC00 <= code <= 0xD7A3:  # Han, Hangul
        return True
    return 0xFF01 <= code <= 0xFFEE or 0x1F300 <= code <= 0x1FAFF  # wide forms, emoji


@kernel(inner=True)
def escaped_code(text: RO_U1, p: int) -> tuple[int, int]:
    """Code point of the escape whose backslash is at p, and its bytes; or NOT_MINE."""
    c = text[p + 1]
    if c == 34 or c == 92 or c == 47:
        return int(c), 2
    if c == 110:
        return 10, 2
    if c == 116:
        return 9, 2
    if c == 114:
        return 13, 2
    if c != 117:
        return NOT_MINE, 2
    code = hex_at(text, p + 2)
    if 0xD800 <= code < 0xDC00 and text[p + 6] == 92 and text[p + 7] == 117:
        low = hex_at(text, p + 8)
        if not 0xDC00 <= low < 0xE000:
            return NOT_MINE, 12
        code = 0x10000 + ((code - 0xD800) << 10) + low - 0xDC00
        return (code if is_composed(code) else NOT_MINE), 12
    return (code if is_composed(code) else NOT_MINE), 6


@kernel
def decoded(text: RO_U1, start: int, ascii_only: bool, out: U1) -> tuple[int, int]:
    """Write the string that begins at `start`, of any length and with escapes, to `out`.

    Returns the position of its quote and its length, or NOT_MINE. A quote follows it in `out`. A
    text with \\u escapes and other bytes than ASCII may not be composed.
    """
    p = start
    at = 0
    has_code = has_other = False
    last = text.shape[0] - 12  # an escape may be read without a look at the end
    while at < LONGEST_TEXT and p < last:
        c = text[p]
        if c == 34:
            out[at] = 34
            return (NOT_MINE if has_code and has_other else p), at
        if c < _CONTROLS or (c > 127 and ascii_only):
            return NOT_MINE, 0
        has_other = has_other or c > 127
        if c == 92:
            code, size = escaped_code(text, p)
            if code < 0:
                return NOT_MINE, 0
            has_code = has_code or size > 2
            at = put_code_point(code, out, at)
            p += size
            continue
        out[at] = c
        at += 1
        p += 1
    return NOT_MINE, 0
