"""How much memory an object takes, with all that it holds."""

from array import array
from collections.abc import Iterable, Mapping, Sized
from functools import cache
from itertools import chain, islice
from sys import getsizeof
from types import ModuleType
from typing import Any

import numpy as np

LOOKED_AT = 64
"""Of a longer list or dict so many items are looked at, and the others taken to be like them."""
ARRAY_BYTES = 112
"""What an array takes beside its numbers."""
LARGE = 512
"""Smaller texts and numbers are counted wherever they are met: to remember them costs more."""

_NOTHING = frozenset((type(None), bool))
_PLAIN = frozenset((str, bytes, bytearray, int, float, array, np.float64, np.int64))


def bytes_of(*roots: Any) -> int:
    """Bytes of these objects and of what they refer to, each counted once.

    Classes, functions and modules count nothing: everyone shares them. The arrays' numbers are
    exact, what long lists hold is estimated; so the cost is bounded, some 100 us for a learner.
    """
    return _Walk().bytes_of(roots)


class _Walk:
    def __init__(self) -> None:
        # What was seen stays alive meanwhile, so that no id is used twice.
        self._seen: dict[int, object] = {}

    def bytes_of(self, found: Iterable[Any]) -> int:
        """Of all that was not seen yet."""
        total = 0
        for one in found:
            kind: Any = type(one)
            if kind in _NOTHING:
                continue
            is_plain = kind in _PLAIN
            size = getsizeof(one) if is_plain else 0
            if is_plain and size < LARGE:
                total += size
            elif id(one) not in self._seen and (is_plain or not _is_shared(kind)):
                self._seen[id(one)] = one
                total += size if is_plain else self._with_parts(one)
        return total

    def _with_parts(self, one: Any) -> int:
        if isinstance(one, np.ndarray):
            return ARRAY_BYTES + (one.nbytes if one.base is None else self.bytes_of([one.base]))
        size = getsizeof(one)
        if isinstance(one, Mapping):
            return size + self._like_the_first(one, chain.from_iterable(one.items()), 2)
        if isinstance(one, Iterable) and isinstance(one, Sized):
            return size + self._like_the_first(one, one, 1)
        return size + self.bytes_of(_fields(one))

    def _like_the_first(self, container: Sized, parts: Iterable[object], each: int) -> int:
        count = len(container)
        if count <= LOOKED_AT:
            return self.bytes_of(parts)
        return self.bytes_of(islice(parts, each * LOOKED_AT)) * count // LOOKED_AT


@cache
def _is_shared(kind: Any) -> bool:
    """Whether objects of this type are classes, modules, or can be called."""
    is_called = any("__call__" in base.__dict__ for base in kind.__mro__)
    return is_called or issubclass(kind, type | ModuleType)


def _fields(one: Any) -> Iterable[object]:
    """What an object's attributes hold."""
    if hasattr(one, "__dict__"):
        yield from vars(one).values()
    kind: Any = type(one)
    for name in _slots(kind):
        yield getattr(one, name, None)


@cache
def _slots(kind: Any) -> tuple[str, ...]:
    found: list[str] = []
    for base in kind.__mro__:
        slots = base.__dict__.get("__slots__", ())
        found += (slots,) if isinstance(slots, str) else slots
    return tuple(name for name in found if name not in ("__dict__", "__weakref__"))
