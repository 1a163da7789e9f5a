"""Cache of feature names and text values that repeat from row to row.

A row's features come mostly in the order of the previous row, and most texts repeat. So the cache
stores the position of each name in the text, the name that followed it last time, and each name's
text values with their indices. A repeated name or text is compared, eight bytes at a time, rather
than hashed and looked up again.

A cache is one integer array, initially zero, valid for one text: STEPS steps from name to name
(step 0 is the begin of a row), then a table of names, then one of texts.
"""

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba.extending import intrinsic

from dualstream.solvers.jit import DISABLED, I8, RO_U1, U1, Bytes, kernel, types
from dualstream.solvers.rows.text.tokens import LONGEST_NAME

# A step: position of a name and of its lead (`"name": `), bytes of the lead and of the name, the
# name's index (below 0 while unknown), the next step, and the last object with the name.
LEAD, LEAD_BYTES, NAME_BYTES, PLACE, NEXT, LAST_OBJECT, STEP_NUMBERS = range(7)
STEPS = 1024
LAST_STEP = STEPS - 1
"""Step of any name for which there is no room; never stored."""
_NAME_SLOTS = 4096
_TEXT_SLOTS = 4096
SHORT = 24
"""Texts of fewer bytes are cached."""
# A text: its step and its length in one number, its bytes in three, its index.
_WHICH, _TEXT_PLACE, _TEXT_NUMBERS = 0, 4, 5

_COUNT = STEPS * STEP_NUMBERS
"""Position of the number of steps, without step 0."""
CHANGES = _COUNT + 1
"""Position of the number of changes to the cache."""
_NAMES = CHANGES + 1
_TEXTS = _NAMES + _NAME_SLOTS
# Names without a step, of the present object: the object and a hash of the name.
_REST = _TEXTS + _TEXT_SLOTS * _TEXT_NUMBERS
_REST_SLOTS = 16384
_MAX_REST = 8192
"""Maximum number of such names of an object; others are left to the exact parser."""
_REST_COUNT = _REST + 2 * _REST_SLOTS
"""Position of the object that was counted last, and of its number of such names."""
MEMO_NUMBERS = _REST_COUNT + 2

_ONES = 0x0101010101010101
_HIGH_BITS = -0x7F7F7F7F7F7F7F80
_QUOTES, _SLASHES, _SPACES = 0x22 * _ONES, 0x5C * _ONES, 0x20 * _ONES
_FACTOR, _SECOND, _THIRD = 0x2545F4914F6CDD1D, 0x1B873593CC9E2D51, 0x369DEA0F31A53F85


def _word_at(typing: Any, text: Any, offset: Any) -> Any:
    """Eight bytes of a text as one number, little-endian."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        first = builder.gep(array.data, [arguments[1]])
        i64 = ir.IntType(64)
        word = builder.load(builder.bitcast(first, i64.as_pointer()))
        word.align = 1
        return word

    return types.int64(text, types.int64), generate


def _plain_word_at(text: Bytes, offset: int) -> Any:
    assert 0 <= offset <= len(text) - 8
    return np.frombuffer(text[offset : offset + 8].tobytes(), "<i8")[0]


def _trailing_zeros(typing: Any, word: Any) -> Any:
    """Number of trailing zero bits; 64 for 0."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.int64), generate


def _plain_trailing_zeros(word: int) -> int:
    word = int(word)
    return (word & -word).bit_length() - 1 if word else 64


word_at: Any = _plain_word_at if DISABLED else intrinsic(_word_at)
trailing_zeros: Any = _plain_trailing_zeros if DISABLED else intrinsic(_trailing_zeros)


@kernel(inner=True)
def first_stop(word: int, ascii_only: bool) -> int:
    """The first of eight bytes that ends a string or is not of the common form; else 8.

    A quote, a backslash, a control character; with `ascii_only` also non-ASCII bytes. The bits of
    the first one are correct; higher bits may be wrong.
    """
    quotes, slashes = word ^ _QUOTES, word ^ _SLASHES
    stops = (quotes - _ONES) & ~quotes | (slashes - _ONES) & ~slashes | (word - _SPACES) & ~word
    if ascii_only:
        stops |= word
    return int(trailing_zeros(stops & _HIGH_BITS) >> 3)


@kernel(inline=True)
def string_end(text: RO_U1, start: int, ascii_only: bool) -> tuple[int, int]:
    """End of the string whose first byte is at `start`, and a hash of its bytes.

    Returns the position of its quote, or -1 for strings with escapes, of more than LONGEST_NAME
    bytes, near the text's end, or with non-ASCII bytes if only ASCII is known to be valid.
    """
    p = start
    most = min(start + LONGEST_NAME, text.shape[0] - 8)
    mixed: Any = np.int64(0)
    while p <= most:
        word = word_at(text, p)
        k = first_stop(word, ascii_only)
        if k < 8:
            p += k
            if text[p] != 34 or p - start > LONGEST_NAME:
                return -1, 0
            mixed = (mixed ^ (word & ((np.int64(1) << (8 * k)) - 1))) * _FACTOR
            return p, int(mixed ^ (mixed >> 52))
        mixed = (mixed ^ word) * _FACTOR
        mixed ^= mixed >> 32
        p += 8
    return -1, 0


@kernel(inline=True)
def is_same(text: RO_U1, a: int, b: int, count: int) -> bool:
    """Whether the bytes at a equal those at b, before a."""
    if a + count + 8 > text.shape[0]:  # too near the text's end to compare words
        same = 0
        while same < count and a + same < text.shape[0] and text[a + same] == text[b + same]:
            same += 1
        return bool(same == count)
    while count >= 8:
        if word_at(text, a) != word_at(text, b):
            return False
        a += 8
        b += 8
        count -= 8
    differing = word_at(text, a) ^ word_at(text, b)
    return bool(differing & ((np.int64(1) << (8 * count)) - 1) == 0)


@kernel(inner=True)
def is_new_name(mixed: int, object_at: int, memo: I8) -> bool:
    """Whether a name without a step, with this hash, is the first such name of its object.

    Not for every name: another one may have the same hash, or the object too many names.
    """
    if memo[_REST_COUNT] != object_at:
        memo[_REST_COUNT], memo[_REST_COUNT + 1] = object_at, 0
    memo[_REST_COUNT + 1] += 1
    if memo[_REST_COUNT + 1] > _MAX_REST:
        return False
    slot: Any = mixed >> 16 & (_REST_SLOTS - 1)
    while memo[_REST + 2 * slot] == object_at:
        if memo[_REST + 2 * slot + 1] == mixed:
            return False
        slot = (slot + 1) & (_REST_SLOTS - 1)
    memo[_REST + 2 * slot], memo[_REST + 2 * slot + 1] = object_at, mixed
    return True


@kernel(inner=True)
def find_step(text: RO_U1, p: int, ascii_only: bool, before: int, object_at: int, memo: I8) -> int:
    """The step of the name whose quote is at p, which follows step `before`; -1 if it is not a
    name, or not certain to be the first of its kind in the object that begins at `object_at`.

    The step's lead is moved to p.
    """
    end, mixed = string_end(text, p + 1, ascii_only)
    size = end - p - 1
    if size <= 0:
        return -1
    slot: Any = _NAMES + (mixed & (_NAME_SLOTS - 1))
    step = memo[slot]
    while step > 0:
        at = step * STEP_NUMBERS
        if memo[at + NAME_BYTES] == size and is_same(text, p, memo[at + LEAD], size + 2):
            break
        slot = slot + 1 if slot + 1 < _TEXTS else _NAMES
        step = memo[slot]
    after = end + 1
    while text[after] == 32 or text[after] == 9 or text[after] == 13:
        after += 1
    if text[after] != 58:
        return -1
    after += 1
    while text[after] == 32 or text[after] == 9 or text[after] == 13:
        after += 1
    if step == 0:
        step = memo[_COUNT] + 1
        if step < LAST_STEP:
            memo[_COUNT] = memo[slot] = step
            memo[CHANGES] += 1
        else:
            step = LAST_STEP
        memo[step * STEP_NUMBERS + PLACE] = -1
    at = step * STEP_NUMBERS
    if step == LAST_STEP:
        if not is_new_name(mixed, object_at, memo):
            return -1
    elif memo[at + LAST_OBJECT] == object_at:
        return -1
    memo[at + LAST_OBJECT] = object_at
    memo[at + LEAD], memo[at + LEAD_BYTES], memo[at + NAME_BYTES] = p, after - p, size
    memo[before * STEP_NUMBERS + NEXT] = step
    return int(step)


@kernel(inline=True)
def next_step(text: RO_U1, p: int, ascii_only: bool, before: int, object_at: int, memo: I8) -> int:
    """Like `find_step`, but faster if the name is the one that followed `before` last time."""
    step = memo[before * STEP_NUMBERS + NEXT]
    if 0 < step < LAST_STEP:
        at = step * STEP_NUMBERS
        if memo[at + LAST_OBJECT] != object_at:
            if is_same(text, p, memo[at + LEAD], memo[at + LEAD_BYTES]):
                memo[at + LAST_OBJECT] = object_at
                return int(step)
    return int(find_step(text, p, ascii_only, before, object_at, memo))


@kernel(inline=True)
def first_bytes(word: int, count: int) -> int:
    """The first `count` of eight bytes, zeros for the others; none for count < 0, all for count >=
    8."""
    kept = min(max(count, 0), 8)
    return int(word & ((np.int64(1) << (8 * (kept & 7))) - 1)) if kept < 8 else word


@kernel(inline=True)
def short_text(text: RO_U1, start: int, ascii_only: bool) -> tuple[int, int, int, int]:
    """Length of the string that begins at `start`, and its bytes as three numbers.

    SHORT for a length of SHORT or more. There is no branch on the text, because which of many texts
    comes next is unpredictable.
    """
    if start + SHORT > text.shape[0]:
        return SHORT, 0, 0, 0
    a, b, c = word_at(text, start), word_at(text, start + 8), word_at(text, start + 16)
    size = first_stop(a, ascii_only)
    size += first_stop(b, ascii_only) if size == 8 else 0
    size += first_stop(c, ascii_only) if size == 16 else 0
    return size, first_bytes(a, size), first_bytes(b, size - 8), first_bytes(c, size - 16)


@kernel(inline=True)
def text_slot(step: int, size: int, a: int, b: int, c: int, memo: I8) -> int:
    """Slot of this text of a step in the cache, or of the text that it would replace."""
    mixed: Any = np.int64(a) * _FACTOR + np.int64(b) * _SECOND + np.int64(c) * _THIRD
    mixed = (mixed ^ (mixed >> 32)) * _FACTOR + (np.int64(step) << 16 | size) * _SECOND
    return int(_TEXTS + (mixed >> 40 & (_TEXT_SLOTS - 1)) * _TEXT_NUMBERS)


@kernel(inline=True)
def find_text(step: int, size: int, a: int, b: int, c: int, slot: int, memo: I8) -> int:
    """The index of this text of a step, -1 if it is not cached."""
    differing = memo[slot + _WHICH] ^ (step << 16 | size)
    differing |= memo[slot + 1] ^ a | memo[slot + 2] ^ b | memo[slot + 3] ^ c
    return int(memo[slot + _TEXT_PLACE]) if differing == 0 else -1


@kernel(inner=True)
def store_text(
    step: int, size: int, a: int, b: int, c: int, slot: int, index: int, memo: I8
) -> None:
    """Cache the index of a text, replacing another one."""
    memo[slot + _WHICH] = step << 16 | size
    memo[slot + 1], memo[slot + 2], memo[slot + 3] = a, b, c
    memo[slot + _TEXT_PLACE] = index
    memo[CHANGES] += 1


@kernel(inner=True)
def copy_bytes(text: RO_U1, start: int, end: int, out: U1, at: int) -> int:
    """out[at:] = text[start:end]; returns its end in out."""
    for k in range(end - start):
        out[at + k] = text[start + k]
    return at + end - start


@kernel(inner=True)
def forget_since(memo: I8, changes: int) -> None:
    """Clear the cache if it changed since: the names of a row that failed to parse are not
    stored.
    """
    if memo[CHANGES] > changes:
        for k in range(_REST):
            memo[k] = 0
