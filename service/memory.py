"""How much memory an object takes, with all that it holds."""

import sys
from array import array
from collections.abc import Iterable, Mapping, Sized
from itertools import islice
from types import ModuleType
from typing import Any

import numpy as np

LOOKED_AT = 64
"""Of a longer list or dict so many items are looked at, and the others taken to be like them."""
ARRAY_BYTES = 112
"""What an array takes beside its numbers."""


def bytes_of(*roots: object) -> int:
    """Bytes of these objects and of what they refer to, each counted once.

    Classes, functions and modules count nothing: everyone shares them. The arrays' numbers are
    exact, what long lists hold is estimated; so the cost is bounded, some 50 us for a learner.
    """
    return _Walk().bytes_of(roots)


class _Walk:
    def __init__(self) -> None:
        self._seen: set[int] = set()
        # What was seen stays alive meanwhile, so that no id is used twice.
        self._kept: list[object] = []

    def bytes_of(self, found: Iterable[object]) -> int:
        """Of all that was not seen yet."""
        total = 0
        for one in found:
            if id(one) not in self._seen and not _is_shared(one):
                self._seen.add(id(one))
                self._kept.append(one)
                total += self._own(one)
        return total

    def _own(self, one: object) -> int:
        if isinstance(one, np.ndarray):
            if one.base is not None:
                return ARRAY_BYTES + self.bytes_of([one.base])
            return ARRAY_BYTES + one.nbytes
        size = sys.getsizeof(one)
        if isinstance(one, str | bytes | bytearray | int | float | array):
            return size
        if isinstance(one, Mapping):
            return size + self._like_the_first(one, (part for pair in one.items() for part in pair))
        if isinstance(one, Iterable) and isinstance(one, Sized):
            return size + self._like_the_first(one, one)
        return size + self.bytes_of(_fields(one))

    def _like_the_first(self, container: Sized, parts: Iterable[object]) -> int:
        count = len(container)
        looked_at = min(count, LOOKED_AT)
        if not looked_at:
            return 0
        each = 2 if isinstance(container, Mapping) else 1
        return self.bytes_of(islice(parts, each * looked_at)) * count // looked_at


def _is_shared(one: Any) -> bool:
    return one is None or isinstance(one, bool | type | ModuleType) or callable(one)


def _fields(one: object) -> Iterable[object]:
    """What an object's attributes hold."""
    yield from vars(one).values() if hasattr(one, "__dict__") else ()
    for kind in type(one).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__"):
                yield getattr(one, name, None)
