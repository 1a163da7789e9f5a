"""The field `segments` of a specification: columns by whose values metrics are kept apart."""

from collections.abc import Mapping
from typing import Any

from dualstream.solvers.errors import InvalidSpec
from dualstream.solvers.rows.columns.spec import name_of
from dualstream.solvers.spec_fields import SEGMENTS, Spec
from dualstream.wire.text_values import nfc

MAX_COLUMNS = 4
KINDS = ("category", "boolean")
"""Types of columns that have segments."""


def read_segments(spec: Mapping[str, Any], columns: Spec | None) -> list[str] | None:
    """The names of the columns; None without any. Raises InvalidSpec."""
    value = spec.get(SEGMENTS)
    if value is None or value == []:
        return None
    if columns is None:
        allowed = "left out, or given with `columns`, which make rows flat"
        raise InvalidSpec(f"/{SEGMENTS}", value, allowed)
    if not isinstance(value, list | tuple) or len(value) > MAX_COLUMNS:
        allowed = f"a list of at most {MAX_COLUMNS} columns of `columns.types`"
        raise InvalidSpec(f"/{SEGMENTS}", value, allowed)
    names: list[str] = []
    for at, name in enumerate(value):
        names.append(_checked(name, f"/{SEGMENTS}/{at}", columns["types"], names))
    return names


def _checked(name: Any, field: str, types: Mapping[str, Any], before: list[str]) -> str:
    segmented = [one for one, kind in types.items() if name_of(kind) in KINDS]
    shown = ", ".join(segmented[:20]) or "`columns.types` has none"
    allowed = f"a column of type category or boolean ({shown})"
    if not isinstance(name, str):
        raise InvalidSpec(field, name, allowed)
    composed = nfc(name)
    kind = name_of(types[composed]) if composed in types else None
    if kind not in KINDS:
        is_of = f"; {composed} is a column of type {kind}" if kind else ""
        hint = ": declare one with few values as a category" if kind == "number" else ""
        raise InvalidSpec(field, name, allowed + is_of + hint)
    if composed in before:
        raise InvalidSpec(field, name, "a column that is not listed twice")
    return composed
