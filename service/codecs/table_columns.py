"""Columns of CSV and Arrow tables: y or label, weight, id; every other column is a feature.

Of a model with `columns` all columns are features: its ColumnReader knows the label among them.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from dualstream.service.codecs.parsed_rows import ParsedRows
from dualstream.service.codecs.row_schema import LONGEST_NAME, BadRow, RowSchema, refuse_duplicates
from dualstream.wire.problem_json import Problem, quoted

MAX_COLUMNS = 65_536
FAR = 100.0
"""Weights with a median above this, or below its inverse, are probably values of a feature."""
RESERVED = {"y": "y", "label": "y", "weight": "weight", "id": "id"}


@dataclass(frozen=True, slots=True)
class TableColumns:
    """Positions of columns in the table, from 0; `y` and `id` only in labelled tables."""

    names: Sequence[str]
    features: list[int]
    y: int | None = None
    weight: int | None = None
    id: int | None = None


def columns_of(
    schema: RowSchema, names: Sequence[str], labelled: bool, left_out: Collection[str] = ()
) -> TableColumns:
    """Assign roles to columns. Raises Problem 422 for invalid or duplicate names.

    For indexed features a column's name is an index from 1, as in a JSON object. Columns `left_out`
    are no features.
    """
    names = [schema.composed(name) for name in names]
    if len(names) > MAX_COLUMNS:
        raise _refused(f"the table has {len(names)} columns; the limit is {MAX_COLUMNS}")
    roles = RESERVED if schema.columns is None else {}
    reserved: dict[str, int] = {}
    features: list[int] = []
    for column, name in enumerate(names):
        role = roles.get(name)
        if role is None and name in left_out:
            continue
        if role is None:
            _check_name(schema, name, column)
            features.append(column)
        elif role in reserved:
            raise _refused(
                f"the columns {names[reserved[role]]!r} and {name!r} have the same role; keep one"
            )
        else:
            reserved[role] = column
    _check_unique(names[column] for column in features)
    if labelled and roles and "y" not in reserved:
        raise _refused("the label column is missing; name it y or label")
    if not labelled:  # labels and ids are ignored
        reserved = {role: column for role, column in reserved.items() if role == "weight"}
    return TableColumns(names, features, **reserved)


def with_warnings(schema: RowSchema, parsed: ParsedRows, names: Collection[str]) -> ParsedRows:
    """The rows of a table with these columns; with a warning if its weights look like a feature."""
    name = "weight" if schema.columns is None else schema.columns.weight
    if name == "weight" and name in names and len(parsed.row_indices):
        median = float(np.median(parsed.rows.weights))
        if not 1 / FAR <= median <= FAR:
            parsed.warnings = [
                "the column 'weight' is the weight of each row, not a feature; its median"
                f" {median:g} is far from 1, so rename the column if it is a feature"
            ]
    return parsed


class _PandasMetadata(msgspec.Struct):
    index_columns: list[Any] = []


def pandas_index(metadata: Mapping[bytes, bytes]) -> set[str]:
    """Names of the columns that pandas made of a table's index, from Arrow metadata."""
    try:
        written = metadata.get(b"pandas", b"{}")
        columns = msgspec.json.decode(written, type=_PandasMetadata).index_columns
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return set()
    return {name for name in columns if isinstance(name, str)}


def _check_name(schema: RowSchema, name: str, column: int) -> None:
    if not name:
        raise _refused(
            f"column {column + 1} has no name; name it or leave it out (pandas: index=False)"
        )
    if len(name) > LONGEST_NAME:
        raise _refused(
            f"column names must have at most {LONGEST_NAME} characters, got {quoted(name)}"
        )
    if not schema.is_hashed:
        try:
            schema.index(name)
        except BadRow as bad:
            raise _refused(f"column {name[:50]!r}: {bad.reason}") from None


def _check_unique(names: Iterable[str]) -> None:
    try:
        refuse_duplicates(names, "/x/")
    except BadRow as bad:
        raise _refused(f"column {bad.reason}") from None


def _refused(reason: str) -> Problem:
    return Problem(422, "invalid-body", reason)
