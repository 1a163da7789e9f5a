"""What the columns of a table are: reserved names, and features by the names of all others."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dualstream.service.codecs.row_schema import LONGEST_NAME, BadRow, RowSchema
from dualstream.wire.problems import Problem

MAX_COLUMNS = 65_536
RESERVED = {"y": "y", "label": "y", "weight": "weight", "id": "id"}


@dataclass(frozen=True, slots=True)
class TableColumns:
    """Places of columns in the table, from 0; labels and ids only where they are asked for."""

    names: Sequence[str]
    features: list[int]
    y: int | None = None
    weight: int | None = None
    id: int | None = None


def columns_of(door: RowSchema, names: Sequence[str], labelled: bool) -> TableColumns:
    """Which column is what. Raises Problem 422 for names that the model cannot take.

    Where features are indexed, a column's name is an index from 1, as in an object of JSON.
    """
    if len(names) > MAX_COLUMNS:
        raise _refused(f"{len(names)} columns are more than {MAX_COLUMNS}")
    reserved: dict[str, int] = {}
    features: list[int] = []
    for place, name in enumerate(names):
        role = RESERVED.get(name)
        if role is None:
            features.append(place)
            _check_name(door, name)
        elif role in reserved:
            raise _refused(f"the columns {names[reserved[role]]!r} and {name!r} mean the same")
        else:
            reserved[role] = place
    if not door.is_hashed:
        _check_once(names[place] for place in features)
    if labelled and "y" not in reserved:
        raise _refused("no column is called y or label")
    if not labelled:  # whatever these columns hold
        reserved = {role: place for role, place in reserved.items() if role == "weight"}
    return TableColumns(names, features, **reserved)


def _check_name(door: RowSchema, name: str) -> None:
    if len(name) > LONGEST_NAME:
        raise _refused(f"the name of a column has at most {LONGEST_NAME} characters")
    if not door.is_hashed:
        try:
            door.place(name)
        except BadRow as bad:
            raise _refused(f"column {name[:50]!r}: {bad.reason}") from None


def _check_once(indices: Iterable[str]) -> None:
    seen: set[str] = set()
    for index in indices:
        if index in seen:
            raise _refused(f"index {index} is the name of two columns")
        seen.add(index)


def _refused(reason: str) -> Problem:
    return Problem(422, "invalid-body", reason)
