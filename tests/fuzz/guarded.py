"""Kernels whose arrays refuse negative indices.

A negative index counts from the end, in Python and in compiled kernels, and passes bounds checks.
No kernel here uses one on purpose. Works only with NUMBA_DISABLE_JIT=1.
"""

import sys
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from dualstream.solvers import jit as _jit

_ROOMS = ("dualstream.",)
_get, _set = np.ndarray.__getitem__, np.ndarray.__setitem__


class OutOfBounds(Exception):
    """A kernel used an index outside its array."""


class Guarded(np.ndarray):
    """An array whose indices must count from the beginning."""

    def __getitem__(self, key: Any) -> Any:
        _check(self, key)
        return _get(self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        _check(self, key)
        _set(self, key, value)


def _check(array: np.ndarray, key: Any) -> None:
    if type(key) is int or isinstance(key, np.integer):
        if not 0 <= key < array.shape[0]:
            raise OutOfBounds(f"index {key} of {array.shape[0]}")
    elif isinstance(key, slice):
        for end in (key.start, key.stop):
            if end is not None and not 0 <= end <= array.shape[0]:
                raise OutOfBounds(f"slice to {end} of {array.shape[0]}")
    elif isinstance(key, tuple):
        for part, size in zip(key, array.shape, strict=False):
            if isinstance(part, int | np.integer) and not 0 <= part < size:
                raise OutOfBounds(f"index {part} of {size}")


def guarded(function: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel with guarded arrays."""

    def guard(*args: Any) -> Any:
        return function(*[a.view(Guarded) if type(a) is np.ndarray else a for a in args])

    return guard


def guard_kernels() -> int:
    """Guard every imported kernel, and the tables that kernels read; returns their number.

    Call it once, after all imports.
    """
    assert _jit.DISABLED, "compiled kernels cannot be guarded"
    np.seterr(all="ignore")
    modules = [m for name, m in list(sys.modules.items()) if (name + ".").startswith(_ROOMS)]
    result: dict[int, Callable[..., Any]] = {}
    for module in modules:
        for name, value in list(vars(module).items()):
            if is_kernel(value):
                kernel = result.setdefault(id(value), guarded(value.__wrapped__))
                setattr(module, name, kernel)
            elif type(value) is np.ndarray and _is_of(module):
                setattr(module, name, value.view(Guarded))
    return len(result)


def is_kernel(value: Any) -> bool:
    """Is it the result of the kernel decorator without compilation?"""
    return isinstance(value, FunctionType) and value.__code__ in _QUIET


_QUIET = {const for const in _jit._as_python.__code__.co_consts if hasattr(const, "co_code")}


def _is_of(module: ModuleType) -> bool:
    return module.__name__.startswith(
        (
            "dualstream.solvers.rows.text",
            "dualstream.solvers.rows.text.libsvm",
            "dualstream.service.journal.record.kernels",
        )
    )
