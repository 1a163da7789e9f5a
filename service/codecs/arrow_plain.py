"""Arrow streams of float64 columns, read from their bytes: of a hundred columns no object is made.

Where a table has anything else, or a row that is no usual one, it is left to `arrow_rows.py`, which
also tells what the columns of a schema are when it is met first.
"""

from dataclasses import dataclass
from functools import lru_cache
from struct import error as StructError
from types import ModuleType
from typing import Any

import numpy as np

from service.codecs.column_names import TableColumns
from service.codecs.door import LARGEST, Door
from service.codecs.intake import Intake
from service.cuts.arrow_messages import (
    END,
    RECORDS,
    is_big_endian,
    message_at,
    plain_records,
)
from solvers import Batch
from solvers.text import read_full, read_numbers

MOST_ROWS = 1 << 22
MOST_CELLS = 1 << 25
"""Of one body: bools take a bit each, and would come out a hundred times as long."""
LONGEST_SCHEMA = 1 << 20
_MOST_SHARED = 1 << 18


@dataclass(frozen=True, slots=True)
class PlainTable:
    """What the columns of a schema are to a model; places of columns are those in the schema."""

    schema: bytes
    """The message that tells it, with which the stream begins."""
    labelled: bool
    columns: int
    features: np.ndarray
    """(d,) int64, by their places in a row."""
    places: np.ndarray
    """(d,) int32, increasing."""
    y: int | None
    has_whole_y: bool
    weight: int | None


def remember_schema(
    pa: ModuleType, door: Door, body: bytes, schema: Any, columns: TableColumns, labelled: bool
) -> bool:
    """Let bodies of this schema be read by `parse_plain`, if they can be; whether that is new."""
    message = message_at(body, 0)
    is_usual = not labelled or (
        columns.id is None
        and (door.task == "regression" or (door.task == "binary" and not door.class_names))
    )
    if message is None or message.end > LONGEST_SCHEMA or door.is_hashed or not is_usual:
        return False
    types = schema.types
    numbers = [*columns.features, *([] if columns.weight is None else [columns.weight])]
    if not types or not all(kind in (pa.float64(), pa.int64()) for kind in types):
        return False  # without a column no byte tells of a row
    if not all(types[place] == pa.float64() for place in numbers) or is_big_endian(message):
        return False
    places = np.array([door.place(columns.names[at]) for at in columns.features], np.int32)
    order = np.argsort(places)
    known = door.plain_table
    door.plain_table = table = PlainTable(
        body[: message.end],
        labelled,
        len(types),
        np.array(columns.features, np.int64)[order],
        places[order],
        columns.y if labelled else None,
        labelled and types[columns.y] == pa.int64(),
        columns.weight,
    )
    return known is None or (known.schema, known.labelled) != (table.schema, table.labelled)


def parse_plain(door: Door, body: bytes, labelled: bool) -> Intake | None:
    """The rows of a body of the schema that was met last, None where it is not plain."""
    table = door.plain_table
    if table is None or table.labelled != labelled or not body.startswith(table.schema):
        return None
    try:
        batches = _batches(body, table)
    except (StructError, IndexError):
        return None
    return None if batches is None else _rows(door, body, table, batches)


def _batches(body: bytes, table: PlainTable) -> list[tuple[int, np.ndarray]] | None:
    """Of each record batch the rows, and where its columns begin, in numbers of eight bytes."""
    found = []
    p = len(table.schema)
    while p < len(body):
        message = message_at(body, p)
        if message is None or message.end > len(body):
            return None
        if message.kind == END:
            break
        if message.kind != RECORDS:
            return None
        plain = plain_records(message, table.columns)
        if plain is None:
            return None
        starts = np.array(plain[1:], np.int64)
        if np.any(starts % 8):
            return None
        found.append((plain[0], starts // 8))
        p = message.end
    return found


def _rows(
    door: Door, body: bytes, table: PlainTable, batches: list[tuple[int, np.ndarray]]
) -> Intake | None:
    n = sum(rows for rows, _ in batches)
    if n > MOST_ROWS or n * table.columns > MOST_CELLS:
        return None
    numbers = np.frombuffer(body, np.float64, len(body) // 8)
    whole = np.frombuffer(body, np.int64, len(body) // 8)
    entries = _full_rows(numbers, table, batches, n) or _usual_rows(numbers, table, batches, n)
    if entries is None:
        return None
    labels, weights = np.zeros(n), np.ones(n)
    first = 0
    for rows, starts in batches:
        for place, column, of in (
            (table.y, labels, whole if table.has_whole_y else numbers),
            (table.weight, weights, numbers),
        ):
            if place is not None:
                column[first : first + rows] = of[starts[place] : starts[place] + rows]
        first += rows
    if table.y is not None and not _are_labels(door, labels):
        return None
    if not np.all((weights >= 0) & (weights <= LARGEST)):
        return None
    if table.y is not None and door.task == "binary":
        labels = np.where(labels == 1.0, 1.0, -1.0)
    indptr, indices, values = entries
    no_entries = Batch(
        np.zeros(n + 1, np.int64), indices[:0], values[:0], labels, weights, door.dim
    )
    # The kernel has looked at each number.
    return Intake(no_entries.with_rows(indptr, indices, values, door.dim), range(n))


def _full_rows(
    numbers: np.ndarray, table: PlainTable, batches: list[tuple[int, np.ndarray]], n: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Pointers, indices and values of rows none of whose numbers is 0, None where one is."""
    d = len(table.places)
    values = np.empty(n * d)
    first = 0
    for rows, starts in batches:
        if not read_full(numbers, starts[table.features], first, rows, values):
            return None
        first += rows
    if n * d <= _MOST_SHARED:
        indices = _shared_places(table.places.tobytes(), 1 << n.bit_length())[: n * d]
    else:
        indices = np.tile(table.places, n)
    return np.arange(n + 1) * d, indices, values


@lru_cache(4)
def _shared_places(places: bytes, rows: int) -> np.ndarray:
    """The places of so many rows, for all bodies of an upload."""
    return np.tile(np.frombuffer(places, np.int32), rows)


def _usual_rows(
    numbers: np.ndarray, table: PlainTable, batches: list[tuple[int, np.ndarray]], n: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """The same of rows that may hold zeros, None where a number is none that a row may have."""
    d = len(table.places)
    indptr = np.zeros(n + 1, np.int64)
    indices, values = np.empty(n * d, np.int32), np.empty(n * d)
    first = 0
    for rows, starts in batches:
        done = read_numbers(
            numbers, starts[table.features], table.places, first, rows, indptr, indices, values
        )
        if done < rows:
            return None
        first += rows
    return indptr, indices[: indptr[n]], values[: indptr[n]]


def _are_labels(door: Door, labels: np.ndarray) -> bool:
    if door.task == "regression":
        return bool(np.all(np.abs(labels) <= LARGEST))
    return bool(np.all((labels == 1.0) | (labels == 0.0) | (labels == -1.0)))
