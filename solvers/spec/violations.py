"""All errors of a specification at once, from a reader that stops at the first one.

After an error the field is removed, so that its default applies, and the specification is read
again. Fields whose meaning depends on a removed field are not judged.
"""

from collections.abc import Callable, Mapping
from typing import Any

from dualstream.solvers.errors import InvalidSpec
from dualstream.solvers.spec.algorithms import ALGORITHMS

MAX_VIOLATIONS = 100
"""Maximum number of errors that are listed."""
MAX_DEPTH = 8
"""Levels of a specification that can have fields."""
MAX_READ_FIELDS = 8000
"""Limit of the work: fields and elements of the specification times how often it is read."""

_OTHERS: Mapping[str, Any] = {"task": "regression", "features": {"kind": "indexed", "dim": 1000}}
"""In place of defaults that an algorithm does not have."""
# With another value of the field, these fields of the same object mean something else.
_DEPENDENT: Mapping[str, frozenset[str]] = {
    "algorithm": frozenset().union(*(one.fields for one in ALGORITHMS.values())) - {"seed"},
    "task": frozenset(
        (
            *("algorithm", "loss", "labels", "refit", "members", "guard", "history", "lags"),
            *("costs", "alert_rate"),
        )
    ),
    "loss": frozenset(("costs",)),
    "features": frozenset(("map", "basis")),
}


def with_all_violations(
    first: InvalidSpec, spec: Mapping[str, Any], read: Callable[[Mapping[str, Any]], Any]
) -> InvalidSpec:
    """`first` with `violations`: it and the other errors of `spec`, in the order of `read`."""
    size = _size(spec)
    if size > MAX_READ_FIELDS:
        return first
    left = _copied(spec)
    errors: dict[str, InvalidSpec] = {}
    removed: set[str] = set()
    unclear: set[str] = set()
    error: InvalidSpec | None = first
    for _ in range(MAX_READ_FIELDS // (1 + size)):
        if error is None or len(errors) >= MAX_VIOLATIONS:
            break
        for one in error.violations:
            # An error around a removed field may come from the removal.
            is_clear = not any(_lies_under(pointer, {one.field}) for pointer in removed)
            if is_clear and not _lies_under(one.field, unclear):
                errors.setdefault(one.field, one)
        unclear = unclear.union(*(_unclear_after(one.field) for one in error.violations))
        # A list, because every field is removed.
        if not all([_remove(left, one.field, removed) for one in error.violations]):
            break
        error = _first_error(left, read)
    first.violations = tuple(errors.values())[:MAX_VIOLATIONS] or (first,)
    return first


def _first_error(
    spec: Mapping[str, Any], read: Callable[[Mapping[str, Any]], Any]
) -> InvalidSpec | None:
    try:
        read(spec)
    except InvalidSpec as error:
        return error
    return None


def _size(value: Any) -> int:
    """Number of fields and elements, counted up to MAX_READ_FIELDS."""
    count, left = 0, [value]
    while left and count <= MAX_READ_FIELDS:
        one = left.pop()
        if isinstance(one, Mapping):
            count += len(one)
            left += [] if len(one) > MAX_READ_FIELDS else one.values()
        elif isinstance(one, list | tuple):
            count += len(one)
            left += [] if len(one) > MAX_READ_FIELDS else one
    return count


def _copied(value: Any, depth: int = MAX_DEPTH) -> Any:
    if not depth:
        return value
    if isinstance(value, Mapping):
        return {name: _copied(one, depth - 1) for name, one in value.items()}
    return [_copied(one, depth - 1) for one in value] if isinstance(value, list | tuple) else value


def _lies_under(pointer: str, owners: set[str]) -> bool:
    return any(pointer == owner or pointer.startswith(f"{owner}/") for owner in owners)


def _unclear_after(pointer: str) -> set[str]:
    """Pointers that cannot be judged after an error at `pointer`."""
    if pointer.startswith(("/columns", "/history")):
        return {"/history"}
    owner, _, name = pointer.rpartition("/")
    if name in ("kind", "dim") and owner.endswith("/features"):
        owner, _, name = owner.rpartition("/")
    return {f"{owner}/{other}" for other in _DEPENDENT.get(name, ())}


def _remove(spec: Any, pointer: str, removed: set[str]) -> bool:
    """Remove the field at `pointer`, or the nearest one around it that was not removed before.

    An element of a list becomes an empty object, because the others keep their indices. False: no
    field is left to remove.
    """
    owner, _, name = pointer.rpartition("/")
    if name == "kind":
        return bool(owner) and _remove(spec, owner, removed)
    other = f"{pointer}=other"
    if name in _OTHERS and name not in _at(spec, owner) and other not in removed:
        removed.add(other)
        _at(spec, owner)[name] = _OTHERS[name]
        return True
    while pointer:
        owner, _, name = pointer.rpartition("/")
        holder = _at(spec, owner)
        if pointer not in removed:
            removed.add(pointer)
            if isinstance(holder, dict) and name in holder:
                del holder[name]
                return True
            if isinstance(holder, list) and name.isdecimal() and int(name) < len(holder):
                holder[int(name)] = {}
                return True
        pointer = owner
    return False


def _at(spec: Any, pointer: str) -> Any:
    """The value at a pointer; None if nothing is there."""
    value = spec
    for name in pointer.split("/")[1:]:
        if isinstance(value, dict):
            value = value.get(name)
        elif isinstance(value, list) and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        else:
            return None
    return value
