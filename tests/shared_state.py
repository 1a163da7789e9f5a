"""What of an object can be changed: two models of one specification share nothing of it."""

from collections.abc import Iterable, Mapping
from dataclasses import is_dataclass
from types import ModuleType
from typing import Any

import numpy as np

from dualstream.solvers.profile.names import ColumnNames
from dualstream.solvers.spec_cache import FixedSpec, SharedDerived

_SHARED = ModuleType | FixedSpec | SharedDerived | ColumnNames


def changeable(*roots: Any) -> dict[int, Any]:
    """Mutable state that objects refer to, by id. Specifications never change."""
    result: dict[int, Any] = {}
    left = list(roots)
    while left:
        one = left.pop()
        is_shared = callable(one) or isinstance(
            one, ModuleType | FixedSpec | SharedDerived | ColumnNames
        )
        is_spec = isinstance(one, dict) and not one.keys().isdisjoint(("algorithm", "kind"))
        if id(one) in result or one is None or is_shared or is_spec:
            continue
        if isinstance(one, np.ndarray):
            if one.flags.writeable and one.size:
                result[id(one)] = one
            left.append(one.base)
            continue
        parts = list(getattr(one, "__dict__", {}).values())
        for kind in type(one).__mro__:
            slots = kind.__dict__.get("__slots__", ())
            parts += [getattr(one, name, None) for name in slots if not name.startswith("__")]
        if isinstance(one, Mapping):
            parts += [*one.keys(), *one.values()]
        elif isinstance(one, Iterable) and not isinstance(one, str | bytes):
            parts += list(one)
        is_frozen = is_dataclass(one) and one.__dataclass_params__.frozen  # type: ignore[attr-defined]
        if not isinstance(one, str | bytes | int | float | tuple | frozenset) and not is_frozen:
            result[id(one)] = one
        left += parts
    return result
