"""Memory accounting: bytes of a model in memory."""

from array import array
from collections.abc import Iterable, Mapping, Sized
from functools import cache
from itertools import chain, islice
from sys import getsizeof
from types import ModuleType
from typing import Any

import numpy as np

from dualstream.solvers import make_learner
from dualstream.solvers.history.spec import table_bytes
from dualstream.solvers.nonlinear.spec import ROW_BYTES, most_rows, widest_ring
from dualstream.solvers.portfolio.presets import members_of
from dualstream.solvers.rows import intercept
from dualstream.solvers.rows.shared_ones import are_shared_ones
from dualstream.solvers.spec_cache import FixedSpec, SharedDerived

SAMPLED_ITEMS = 64
"""Items of a longer list or dict that are measured. The rest is extrapolated."""
ARRAY_BYTES = 112
"""Size of a NumPy array without its numbers."""
SHARED_BYTES = 512
"""Smaller strings and numbers are counted at each reference: remembering them costs more."""

_OF_NO_SIZE = frozenset((type(None), bool))
_ALONE = frozenset((str, bytes, bytearray, int, float, array, np.float64, np.int64))

WIDE, NARROWER = 1 << 12, 6
"""Features from which a learner is not built to be measured, and the shift to narrow ones."""


def bytes_before_rows(spec: Mapping[str, Any]) -> int:
    """Estimate the bytes of a learner of a resolved specification before its first row.

    The size of a wide learner is extrapolated from two narrow ones, because its arrays are as
    long as it is wide.
    """
    if groups := spec.get("history"):
        without = {name: value for name, value in spec.items() if name != "history"}
        return bytes_before_rows(without) + table_bytes(groups, spec["task"])
    features = spec["features"]
    width = intercept.width_of(features)
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
        sizes.append(
            (intercept.width_of(fewer), bytes_of(make_learner({**spec, "features": fewer})))
        )
    (first, size), (second, larger) = sizes
    return size + (larger - size) * (width - first) // (second - first)


def ring_bytes(spec: Mapping[str, Any]) -> int:
    """Bytes that boosted trees with `memory: large` in a resolved specification take, at most."""
    members = members_of(spec) if spec["algorithm"] == "portfolio" else [spec]
    size = 0
    for one in members:
        if one.get("algorithm") == "boosted" and "memory" in one:
            columns = widest_ring(spec["features"], one.get("lags", spec.get("lags", 0)))
            rows = min(one["window"], most_rows("large", columns))
            size += rows * (columns + one["trees"] + ROW_BYTES)
    return size


def bytes_of(*roots: Any) -> int:
    """Bytes of these objects and of all that they refer to, each counted once.

    Classes, functions, modules, fixed specifications and what is computed from them count
    nothing: all models share them. NumPy arrays are exact, long lists are extrapolated. So the
    cost is bounded, about 30 us for a learner. An object with an attribute `bytes_held`
    reports its own size.
    """
    # `seen` keeps the objects alive, so that no id is used twice.
    return _bytes_of(roots, {})


# Kinds of objects. Plain ones are strings and numbers, which refer to nothing.
_NOTHING, _PLAIN, _ARRAY, _MAPPING, _LISTED, _OBJECT, _SIZED = range(7)


_Kind = tuple[int, tuple[str, ...], bool]
"""What an object is, its slots, and whether it has a `__dict__`."""


@cache
def _kind_of(kind: Any) -> _Kind:
    if kind in _OF_NO_SIZE or _is_shared(kind):
        is_ = _NOTHING
    elif kind in _ALONE:
        is_ = _PLAIN
    elif issubclass(kind, np.ndarray):
        is_ = _ARRAY
    elif hasattr(kind, "bytes_held"):
        is_ = _SIZED
    elif issubclass(kind, Mapping):
        is_ = _MAPPING
    else:
        is_ = _LISTED if issubclass(kind, Iterable) and issubclass(kind, Sized) else _OBJECT
    return is_, _slots(kind), any("__dict__" in base.__dict__ for base in kind.__mro__)


def _bytes_of(objects: Iterable[Any], seen: dict[int, object]) -> int:
    """Bytes of the objects that are not in `seen`."""
    total = 0
    for one in objects:
        of: Any = type(one)
        kind = _kind_of(of)
        is_ = kind[0]
        if is_ == _NOTHING:
            continue
        if is_ == _PLAIN:
            size = getsizeof(one)
            if size >= SHARED_BYTES:
                if id(one) in seen:
                    continue
                seen[id(one)] = one
            total += size
        elif id(one) not in seen:
            seen[id(one)] = one
            total += _bytes_of_object(one, kind, seen)
    return total


def _bytes_of_object(one: Any, kind: _Kind, seen: dict[int, object]) -> int:
    is_, slots, has_dict = kind
    if is_ == _ARRAY:
        if one.base is None:
            return ARRAY_BYTES + int(one.nbytes)
        return ARRAY_BYTES + (0 if are_shared_ones(one) else _bytes_of((one.base,), seen))
    size = getsizeof(one)
    if is_ == _SIZED:
        return size + int(one.bytes_held)
    if is_ == _MAPPING:
        return size + _extrapolated(one, chain.from_iterable(one.items()), 2, seen)
    if is_ == _LISTED:
        return size + _extrapolated(one, one, 1, seen)
    if has_dict:
        size += _bytes_of(vars(one).values(), seen)
    if slots:
        size += _bytes_of([getattr(one, name, None) for name in slots], seen)
    return size


def _extrapolated(
    container: Sized, parts: Iterable[object], each: int, seen: dict[int, object]
) -> int:
    count = len(container)
    if count <= SAMPLED_ITEMS:
        return _bytes_of(parts, seen) if count else 0
    return _bytes_of(islice(parts, each * SAMPLED_ITEMS), seen) * count // SAMPLED_ITEMS


def _is_shared(kind: Any) -> bool:
    """Is this a type of classes, modules, callables, or of objects that models share?"""
    is_called = any("__call__" in base.__dict__ for base in kind.__mro__)
    return is_called or issubclass(kind, type | ModuleType | FixedSpec | SharedDerived)


def _slots(kind: Any) -> tuple[str, ...]:
    names: list[str] = []
    for base in kind.__mro__:
        slots = base.__dict__.get("__slots__", ())
        names += (slots,) if isinstance(slots, str) else slots
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))
