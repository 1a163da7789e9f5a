"""Words of flat rows: words and runs of words of a text, in lower case, and how often each occurs.

What letters are comes from a table: letters[code point] is the code point of its lower case, with
MARK for marks, which continue a word; 0 for what separates words; -1 for what Python must read. The
columns package makes it with Python's own functions.
"""

from dualstream.solvers.jit import RO_I4, RO_U1, U1, kernel
from dualstream.solvers.rows.text.flat import layout
from dualstream.solvers.rows.text.flat.features import COLON, joined_index
from dualstream.solvers.rows.text.tokens import LONGEST_NAME

MARK = 1 << 24
LETTERS = 1 << 17
"""Code points of the table."""
LONGEST_WORD = 100
"""Maximum characters of a word; the rest of a longer one does not count."""
MAX_WORDS = 2048
"""Maximum words of a text; more are left to Python."""
LOWERED_AT = layout.LONGEST_TEXT
"""Where the words are in `scratch`."""

# Layout of `spans`: begin and end of each word; a table of features; of each feature the begin and
# length of its words, and its slot in the table.
TABLE_SLOTS = 16_384
TABLE_AT = 2 * MAX_WORDS
FOUND_AT = TABLE_AT + TABLE_SLOTS
SPAN_NUMBERS = FOUND_AT + 3 * 3 * MAX_WORDS


@kernel(inner=True)
def code_point(text: RO_U1, p: int) -> tuple[int, int]:
    """The code point at p of valid UTF-8, and its bytes."""
    c = int(text[p])
    if c < 0x80:
        return c, 1
    if c < 0xE0:
        return (c & 31) << 6 | (int(text[p + 1]) & 63), 2
    if c < 0xF0:
        return (c & 15) << 12 | (int(text[p + 1]) & 63) << 6 | (int(text[p + 2]) & 63), 3
    high = (c & 7) << 18 | (int(text[p + 1]) & 63) << 12
    return high | (int(text[p + 2]) & 63) << 6 | (int(text[p + 3]) & 63), 4


@kernel(inner=True)
def put_code_point(code: int, out: U1, at: int) -> int:
    """Write a code point as UTF-8 to out[at:]; its end."""
    if code < 0x80:
        out[at] = code
        return at + 1
    if code < 0x800:
        out[at] = 0xC0 | code >> 6
        out[at + 1] = 0x80 | (code & 63)
        return at + 2
    if code < 0x10000:
        out[at] = 0xE0 | code >> 12
        out[at + 1] = 0x80 | (code >> 6 & 63)
        out[at + 2] = 0x80 | (code & 63)
        return at + 3
    out[at] = 0xF0 | code >> 18
    out[at + 1] = 0x80 | (code >> 12 & 63)
    out[at + 2] = 0x80 | (code >> 6 & 63)
    out[at + 3] = 0x80 | (code & 63)
    return at + 4


@kernel(inner=True)
def split_words(text: RO_U1, start: int, end: int, letters: RO_I4, out: layout.OUT) -> int:
    """Write the words of a text to `scratch`, a space between two, and where each is to `spans`.

    Returns the number of words, or NOT_MINE. A mark after a letter whose case changed may be
    composed with it.
    """
    scratch, spans = out.scratch, out.spans
    count = 0
    size = -1  # characters of the word, below 0 between words
    is_changed = has_mark = False
    at = LOWERED_AT
    p = start
    while p <= end:
        code = 32
        letter = 0
        step = 1
        if p < end:
            code, step = code_point(text, p)
            letter = letters[code] if code < letters.shape[0] else -1
        p += step
        if letter < 0:
            return layout.NOT_MINE
        if letter == 0 or (letter >= MARK and size < 0):
            if size >= 0:
                if is_changed and has_mark:
                    return layout.NOT_MINE
                spans[2 * count + 1] = at
                count += 1
                scratch[at] = 32
                at += 1
                size = -1
                is_changed = has_mark = False
            continue
        if size < 0:
            if count >= MAX_WORDS:
                return layout.NOT_MINE
            spans[2 * count] = at
            size = 0
        if letter >= MARK:
            has_mark = True
            letter -= MARK
        is_changed = is_changed or letter != code
        if size < LONGEST_WORD:
            at = put_code_point(letter, scratch, at)
        size += 1
        # The rest of an ASCII word, the most common.
        while p < end and size < LONGEST_WORD and text[p] < 128:
            letter = letters[text[p]]
            if not 0 < letter < 128:
                break
            is_changed = is_changed or letter != text[p]
            scratch[at] = letter
            at += 1
            p += 1
            size += 1
    return count


@kernel(inline=True)
def is_span(count: int, start: int, length: int, out: layout.OUT) -> bool:
    """Is a feature found before of the words scratch[start:start + length]?"""
    at = FOUND_AT + 3 * count
    if out.spans[at + 1] != length:
        return False
    first = out.spans[at]
    for k in range(length):
        if out.scratch[first + k] != out.scratch[start + k]:
            return False
    return True


@kernel(inner=True)
def put_words(node: int, text: RO_U1, start: int, end: int, nnz: int, out: layout.OUT) -> int:
    """Add the words of a text and their runs; the number of features then, or why not."""
    if end - start > layout.LONGEST_TEXT:
        return layout.NOT_MINE
    at = layout.NODES_AT + node * layout.FIELDS
    cached, ngrams = out.plan[at + layout.FIRST], out.plan[at + layout.OPTION] // 2
    counts = out.plan[at + layout.OPTION] % 2 == 0
    count = split_words(text, start, end, out.letters, out)
    if count < 0:
        return layout.NOT_MINE
    if nnz + ngrams * count > out.indices.shape[0]:
        return layout.FULL
    spans = out.spans
    slots = 64  # as few as serve this text: they stay in the fastest cache
    while slots < 2 * ngrams * count:
        slots *= 2
    end_of_table = TABLE_AT + slots
    n_words = 0
    result = nnz
    for run in range(ngrams):
        for word in range(count - run):
            first, last = spans[2 * word], spans[2 * (word + run) + 1]
            if out.plan[at + layout.NAME_BYTES] + 1 + last - first > LONGEST_NAME:
                result = layout.NOT_MINE
                break
            index = joined_index(node, cached, COLON, out.scratch, first, last, out)
            if index < 0:
                result = layout.NOT_MINE
                break
            slot = TABLE_AT + ((index * 0x9E3779B1 >> 12) & (slots - 1))
            while spans[slot] != 0:
                before = spans[slot] - 1
                if out.indices[nnz + before] == index and is_span(before, first, last - first, out):
                    break
                slot = slot + 1 if slot + 1 < end_of_table else TABLE_AT
            if spans[slot] != 0:
                if counts:
                    out.values[nnz + spans[slot] - 1] += 1.0
                continue
            entry = FOUND_AT + 3 * n_words
            spans[entry], spans[entry + 1], spans[entry + 2] = first, last - first, slot
            out.indices[nnz + n_words] = index
            out.values[nnz + n_words] = 1.0
            n_words += 1
            spans[slot] = n_words
        if result < 0:
            break
    for entry in range(n_words):
        spans[spans[FOUND_AT + 3 * entry + 2]] = 0
    return result if result < 0 else nnz + n_words
