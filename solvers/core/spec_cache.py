"""Specifications that many models have: what follows from one is worked out once."""

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, TypeVar

T = TypeVar("T")


class FixedSpec(dict[str, Any]):
    """A specification that nobody changes any more, to be given to all models that have it."""

    __slots__ = ("follows",)

    def __init__(self, spec: Mapping[str, Any]) -> None:
        super().__init__(spec)
        self.follows: dict[object, Any] = {}


class WorkedOut:
    """What follows from a specification: shared by all models that have it, changed by nobody."""

    __slots__ = ()


def worked_out_once(work: Callable[[Mapping[str, Any]], T]) -> Callable[[Mapping[str, Any]], T]:
    """The function of a specification, which a FixedSpec remembers; its result is not changed."""

    @wraps(work)
    def remembered(spec: Mapping[str, Any]) -> T:
        if type(spec) is not FixedSpec:
            return work(spec)
        follows = spec.follows
        try:
            return follows[work]  # type: ignore[no-any-return]
        except KeyError:
            pass
        found = follows[work] = work(spec)
        return found

    return remembered
