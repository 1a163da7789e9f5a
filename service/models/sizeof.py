"""How much memory an object takes, with all that it holds; and what a process keeps of it."""

import ctypes
from array import array
from collections.abc import Iterable, Mapping, Sized
from functools import cache
from itertools import chain, islice
from sys import getsizeof
from types import ModuleType
from typing import Any

import numpy as np

from dualstream.solvers import FixedSpec, WorkedOut, are_shared_ones, make_learner, width_of

LOOKED_AT = 64
"""Of a longer list or dict so many items are looked at, and the others taken to be like them."""
ARRAY_BYTES = 112
"""What an array takes beside its numbers."""
LARGE = 512
"""Smaller texts and numbers are counted wherever they are met: to remember them costs more."""

_OF_NO_SIZE = frozenset((type(None), bool))
_ALONE = frozenset((str, bytes, bytearray, int, float, array, np.float64, np.int64))

# The C library's names for what it gives back to the kernel, and what it asks of it for one block.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
KEPT_BYTES, LARGE_BLOCK_BYTES = 8 << 20, 4 << 20


def keep_freed_blocks() -> None:
    """Let what is freed be used again, rather than given back and asked for anew page by page.

    Each megabyte that the kernel clears takes as long as to learn hundreds of rows. By itself the
    GNU C library keeps twice its largest block so far, and blocks of bodies come and go together.
    Other C libraries stay as they are.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_TRIM_THRESHOLD, KEPT_BYTES)
        set_option(_MMAP_THRESHOLD, LARGE_BLOCK_BYTES)


WIDE, NARROWER = 1 << 12, 6
"""A learner of so many features is not built to be measured, but one of 2^NARROWER times fewer."""


def bytes_before_rows(spec: Mapping[str, Any]) -> int:
    """About what a learner of a resolved specification takes before its first row.

    What a wide one takes is told from two narrow ones: its arrays are as long as it is wide.
    """
    features = spec["features"]
    width = width_of(features)
    if width < WIDE:
        return bytes_of(make_learner(spec))
    sizes = []
    for shift in (NARROWER, NARROWER - 1):
        narrow = (
            {"dim": features["dim"] >> shift}
            if features["kind"] == "indexed"
            else {"bits": features["bits"] - shift}
        )
        fewer = features | narrow
        sizes.append((width_of(fewer), bytes_of(make_learner({**spec, "features": fewer}))))
    (first, size), (second, larger) = sizes
    return size + (larger - size) * (width - first) // (second - first)


def bytes_of(*roots: Any) -> int:
    """Bytes of these objects and of what they refer to, each counted once.

    Classes, functions, modules, fixed specifications and what follows from them count nothing:
    everyone shares them. The
    arrays' numbers are exact, what long lists hold is estimated; so the cost is bounded, some 30 us
    for a learner. What knows better says so by its `bytes_held`.
    """
    # What was seen stays alive meanwhile, so that no id is used twice.
    return _bytes_of(roots, {})


# What objects of a type are, here. What is plain, a text or a number, refers to nothing.
_NOTHING, _PLAIN, _ARRAY, _MAPPING, _LISTED, _OBJECT, _KNOWING = range(7)


_Kind = tuple[int, tuple[str, ...], bool]
"""What it is, its slots, and whether there is a `__dict__`."""


@cache
def _kind_of(kind: Any) -> _Kind:
    if kind in _OF_NO_SIZE or _is_shared(kind):
        is_ = _NOTHING
    elif kind in _ALONE:
        is_ = _PLAIN
    elif issubclass(kind, np.ndarray):
        is_ = _ARRAY
    elif hasattr(kind, "bytes_held"):
        is_ = _KNOWING
    elif issubclass(kind, Mapping):
        is_ = _MAPPING
    else:
        is_ = _LISTED if issubclass(kind, Iterable) and issubclass(kind, Sized) else _OBJECT
    return is_, _slots(kind), any("__dict__" in base.__dict__ for base in kind.__mro__)


def _bytes_of(found: Iterable[Any], seen: dict[int, object]) -> int:
    """Of all that was not seen yet."""
    total = 0
    for one in found:
        of: Any = type(one)
        kind = _kind_of(of)
        is_ = kind[0]
        if is_ == _NOTHING:
            continue
        if is_ == _PLAIN:
            size = getsizeof(one)
            if size >= LARGE:
                if id(one) in seen:
                    continue
                seen[id(one)] = one
            total += size
        elif id(one) not in seen:
            seen[id(one)] = one
            total += _with_parts(one, kind, seen)
    return total


def _with_parts(one: Any, kind: _Kind, seen: dict[int, object]) -> int:
    is_, slots, has_dict = kind
    if is_ == _ARRAY:
        if one.base is None:
            return ARRAY_BYTES + int(one.nbytes)
        return ARRAY_BYTES + (0 if are_shared_ones(one) else _bytes_of((one.base,), seen))
    size = getsizeof(one)
    if is_ == _KNOWING:
        return size + int(one.bytes_held)
    if is_ == _MAPPING:
        return size + _like_the_first(one, chain.from_iterable(one.items()), 2, seen)
    if is_ == _LISTED:
        return size + _like_the_first(one, one, 1, seen)
    if has_dict:
        size += _bytes_of(vars(one).values(), seen)
    if slots:
        size += _bytes_of([getattr(one, name, None) for name in slots], seen)
    return size


def _like_the_first(
    container: Sized, parts: Iterable[object], each: int, seen: dict[int, object]
) -> int:
    count = len(container)
    if count <= LOOKED_AT:
        return _bytes_of(parts, seen) if count else 0
    return _bytes_of(islice(parts, each * LOOKED_AT), seen) * count // LOOKED_AT


def _is_shared(kind: Any) -> bool:
    """Whether objects of this type are classes, modules, or can be called; or what many share."""
    is_called = any("__call__" in base.__dict__ for base in kind.__mro__)
    return is_called or issubclass(kind, type | ModuleType | FixedSpec | WorkedOut)


def _slots(kind: Any) -> tuple[str, ...]:
    found: list[str] = []
    for base in kind.__mro__:
        slots = base.__dict__.get("__slots__", ())
        found += (slots,) if isinstance(slots, str) else slots
    return tuple(name for name in found if name not in ("__dict__", "__weakref__"))
