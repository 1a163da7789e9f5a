"""Cache of values derived from a specification, shared by all models with that specification."""

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Self, TypeVar

T = TypeVar("T")


class FixedSpec(dict[str, Any]):
    """An immutable specification, shared by all models that have it."""

    __slots__ = ("derived",)

    def __init__(self, spec: Mapping[str, Any]) -> None:
        super().__init__(spec)
        self.derived: dict[object, Any] = {}

    def __deepcopy__(self, memo: object) -> "FixedSpec":
        return self


class SharedDerived:
    """Immutable value derived from a specification, shared by all models that have it."""

    __slots__ = ()

    def __deepcopy__(self, memo: object) -> Self:
        return self


def derived_once(work: Callable[[Mapping[str, Any]], T]) -> Callable[[Mapping[str, Any]], T]:
    """Decorator: memoize a function of a specification in its FixedSpec. Results must not be
    changed."""

    @wraps(work)
    def cached(spec: Mapping[str, Any]) -> T:
        if type(spec) is not FixedSpec:
            return work(spec)
        derived = spec.derived
        try:
            return derived[work]  # type: ignore[no-any-return]
        except KeyError:
            pass
        value = derived[work] = work(spec)
        return value

    return cached
