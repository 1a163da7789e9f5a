"""The specification field `intervals`."""

from collections.abc import Mapping
from typing import Any

from dualstream.solvers.errors import InvalidSpec
from dualstream.solvers.spec_fields import INTERVALS, Spec, read_number, read_object

MAX_LEVELS = 5
_COVERAGE = f"/{INTERVALS}/coverage"
_LEVEL = "a number above 0 and below 1"
_LEVELS = f"{_LEVEL}, or a list of 1 to {MAX_LEVELS} different ones"


def read_intervals(spec: Mapping[str, Any]) -> Spec | None:
    """The field with its levels as floats; None if it is missing or null. Raises InvalidSpec."""
    if spec.get(INTERVALS) is None:
        return None
    field = read_object(spec[INTERVALS], f"/{INTERVALS}", ("coverage",), "an object with coverage")
    coverage = field.get("coverage")
    if not isinstance(coverage, list | tuple):
        return {"coverage": _level(field, _COVERAGE, "coverage", _LEVELS)}
    if not 1 <= len(coverage) <= MAX_LEVELS:
        raise InvalidSpec(_COVERAGE, list(coverage), _LEVELS)
    named = {str(index): level for index, level in enumerate(coverage)}
    levels = [_level(named, f"{_COVERAGE}/{index}", index, _LEVEL) for index in named]
    if len(set(levels)) < len(levels):
        raise InvalidSpec(_COVERAGE, list(coverage), _LEVELS)
    return {"coverage": levels}


def _level(fields: Mapping[str, Any], pointer: str, name: str, allowed: str) -> float:
    level = read_number(fields, pointer.rpartition("/")[0], name, 0.0, 0.0, 1.0, allowed)
    if level in (0.0, 1.0):
        raise InvalidSpec(pointer, fields.get(name), allowed)
    return level


def levels_of(spec: Mapping[str, Any]) -> list[float]:
    """The levels of a resolved specification, in the order in which it lists them."""
    coverage = spec[INTERVALS]["coverage"]
    return coverage if isinstance(coverage, list) else [coverage]
