"""ColumnPlan: the columns of a specification as arrays, which the kernels of flat rows read.

The plan has nodes for the declared columns, and gets one for each other name when a kernel first
meets it. A name that may give the feature of another column is left to ColumnReader, and so is all
that a kernel cannot read exactly as ColumnReader does.
"""

import threading
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from dualstream.solvers.jit import Bytes, Floats, Indices, Ints
from dualstream.solvers.rows.columns import spec
from dualstream.solvers.rows.columns.inputs import Inputs
from dualstream.solvers.rows.columns.letters import letters
from dualstream.solvers.rows.columns.reader import missing_numbers
from dualstream.solvers.rows.hashing import hash_names
from dualstream.solvers.rows.text.flat import layout
from dualstream.solvers.rows.text.flat.times import AGE, HOUR, MONTH_DAY, WEEKDAY, YEAR_DAY
from dualstream.wire.text_values import nfc

_KINDS = {
    "number": layout.NUMBER,
    "boolean": layout.BOOLEAN,
    "category": layout.CATEGORY,
    "text": layout.WORDS,
    "time": layout.TIME,
    "ignore": layout.IGNORED,
    "label": layout.LABEL,
    "weight": layout.WEIGHT,
    "id": layout.ID,
}
_PARTS = {
    "hour": HOUR,
    "weekday": WEEKDAY,
    "month_day": MONTH_DAY,
    "year_day": YEAR_DAY,
    "age": AGE,
}
_TEXTS = 1 << 18
"""Bytes of names in a plan; names beyond them are left to ColumnReader."""
_ROW = 0
"""The owner of the names of a row."""


class NoPlan(Exception):
    """The columns are too many, or named so that kernels cannot read them."""


class ColumnPlan:
    """Arrays of one model's columns, for features hashed to 2^bits.

    Takes the same arguments as ColumnReader. Raises NoPlan.
    """

    def __init__(
        self,
        columns: Mapping[str, Any],
        crosses: list[Any],
        inputs: Inputs,
        computed: Collection[str],
        bits: int,
    ) -> None:
        self._bits = bits
        self._inputs, self._computed = inputs, frozenset(computed)
        self._types: Mapping[str, Any] = columns["types"]
        self._roles = {columns[role]: role for role in ("label", "weight", "id")}
        self._roles.pop(None, None)
        self._ignored = spec.Ignored(columns["ignore"], self._types)
        self._unknown: str = columns["unknown"]
        declared = (*self._types, *self._roles)
        self._has_explicit = not any(name == "x" or name.startswith("x.") for name in declared)
        self._lock = threading.Lock()
        self._used = len(layout.CONSTANTS)
        self.texts: Bytes = np.zeros(_TEXTS, np.uint8)
        self.texts[: self._used] = np.frombuffer(layout.CONSTANTS, np.uint8)
        joined = spec.crossed_columns(columns, crosses)
        size = layout.NODES_AT + (layout.MAX_NODES + len(joined)) * layout.FIELDS
        self.values: Ints = np.zeros(size + 4 * len(joined), np.int64)
        self._next, self._next_cross = 1, layout.MAX_NODES
        self._first: dict[str, int] = {}
        """The first node of each column."""
        self._names: dict[int, str] = {_ROW: ""}
        all_crossed = sorted({name for names in [*joined, inputs.keys] for name in names})
        self._crossed = {name: at + 1 for at, name in enumerate(all_crossed)}
        self.values[layout.NULL_IS_MISSING] = None in columns["missing"]
        self.values[layout.INDICATES] = columns["missing_indicator"]
        self._add_declared()
        missing: dict[int, list[str | float | None]] = {_ROW: columns["missing"]}
        missing |= {self._first[name]: some for name, some in spec.own_missing(self._types).items()}
        self.missing_numbers = self._add_missing(missing)
        self._add_crosses(joined)
        has_words = layout.WORDS in map(self._kind_of, self._types)
        self.letters: Indices = letters() if has_words else np.zeros(1, np.int32)

    def add(self, owner: int, key: str) -> bool:
        """Add the node of a name in the object `owner`; False if there is no room."""
        with self._lock:
            return self._add(owner, key) > 0

    def owned_objects(self) -> tuple[object, ...]:
        """Objects that no other model shares, for memory accounting."""
        return self.values, self.texts, self._names, self._first

    def node_of(self, name: str) -> int:
        """The node of a column of the row; 0 if there is no room."""
        with self._lock:
            encoded = np.frombuffer(name.encode() or b" ", np.uint8)
            slot = layout.node_slot(self.values, self.texts, _ROW, encoded, 0, len(name.encode()))
            return int(self.values[layout.SLOTS_AT + slot]) or self._add(_ROW, name)

    def _add(self, owner: int, key: str) -> int:
        around = self._names[owner]
        name = f"{around}.{nfc(key)}" if owner != _ROW else nfc(key)
        encoded, text = key.encode(), np.frombuffer(key.encode() or b" ", np.uint8)
        slot = layout.node_slot(self.values, self.texts, owner, text, 0, len(encoded))
        if self.values[layout.SLOTS_AT + slot]:
            return int(self.values[layout.SLOTS_AT + slot])
        kind = self._kind_of(name)
        at, begin = self._put(encoded), self._put(name.encode())
        more = self._nodes_of(kind, name)
        if at is None or begin is None or self._next + 1 + len(more) > layout.MAX_NODES:
            return 0
        node = self._new_node(name, begin, kind, name)
        field = layout.NODES_AT + node * layout.FIELDS
        self.values[field + layout.OWNER] = owner
        self.values[field + layout.KEY : field + layout.KEY_BYTES + 1] = at, len(encoded)
        self.values[field + layout.OPENS] = self._opens(owner, name)
        self.values[field + layout.FIRST] = self._next
        self.values[field + layout.OPTION] = self._option(kind, name)
        self.values[field + layout.INPUT] = index = self._input_of(name)
        if index and not self.values[field + layout.CROSS]:
            self.values[field + layout.CROSS] = -1
        for one in more:
            start = self._put(one.encode())
            crossed = one.removesuffix(".sin") if kind == layout.TIME else ""
            self._new_node(one, begin if start is None else start, layout.OTHER, crossed)
        # Last, because another thread may be reading.
        self.values[layout.SLOTS_AT + slot] = node
        return node

    def _new_node(self, name: str, begin: int, kind: int, crossed: str) -> int:
        node = self._next
        self._next += 1
        self._fill(node, name, begin, kind)
        field = layout.NODES_AT + node * layout.FIELDS
        self.values[field + layout.CROSS] = self._crossed.get(crossed, 0)
        self._names[node] = name
        return node

    def _fill(self, node: int, name: str, begin: int, kind: int) -> None:
        at, values = layout.NODES_AT + node * layout.FIELDS, self.values
        values[at + layout.OWNER], values[at + layout.KEY_BYTES] = -1, -1
        values[at + layout.NAME] = begin
        values[at + layout.NAME_BYTES] = len(name.encode())
        values[at + layout.KIND] = kind
        values[at + layout.INDEX] = int(hash_names([name], self._bits)[0])
        values[at + layout.SAME] = self._first.setdefault(name, node)

    def _put(self, text: bytes) -> int | None:
        """Append to `texts`; None if there is no room."""
        begin, end = self._used, self._used + len(text)
        if end > len(self.texts):
            return None
        self.texts[begin:end] = np.frombuffer(text, np.uint8)
        self._used = end
        return begin

    def _kind_of(self, name: str) -> int:
        if not 1 <= len(name) <= spec.LONGEST_NAME:
            return layout.OTHER
        if name in self._roles:
            return _KINDS[self._roles[name]]
        if name in self._computed:
            return layout.OTHER
        if name in self._inputs.keys and self._types[name] == "ignore":
            return layout.KEY_ALONE
        if name in self._ignored or (name not in self._types and self._unknown == "ignore"):
            return layout.IGNORED
        if self._may_repeat(name):
            return layout.OTHER
        if name not in self._types:
            return layout.INFERRED if self._unknown == "infer" else layout.OTHER
        kind = self._types[name]
        is_known = all(part in _PARTS for part in spec.parts_of(kind))
        return _KINDS.get(spec.name_of(kind), layout.OTHER) if is_known else layout.OTHER

    def _may_repeat(self, name: str) -> bool:
        """May the features of this column have names that other columns give, too?"""
        if "=" in name:
            return True
        for other, kind in self._types.items():
            sign = {"text": ":", "time": "."}.get(spec.name_of(kind))
            if sign is not None and other != name and name.startswith(other + sign):
                return True
        return False

    def _opens(self, owner: int, name: str) -> bool:
        """Is an object with this name one of columns?"""
        if name in self._ignored and name not in self._inputs.keys:
            return True
        is_explicit = owner == _ROW and name == "x" and self._has_explicit
        return not is_explicit and name not in self._types and name not in self._roles

    def _nodes_of(self, kind: int, name: str) -> list[str]:
        """Names of the nodes without a key that a column has."""
        if kind == layout.WORDS:
            return [name]
        if kind != layout.TIME:
            return []
        nodes: list[str] = []
        for part in spec.parts_of(self._types[name]):
            full = f"{name}.{part}"
            is_one = part in ("weekday", "age")
            nodes += [full] if is_one else [f"{full}.sin", f"{full}.cos"]
        return nodes

    def _option(self, kind: int, name: str) -> int:
        if kind == layout.WORDS:
            option = self._types[name]
            return 2 * int(option["ngrams"]) + int(option["weights"] == "presence")
        if kind == layout.TIME:
            parts = spec.parts_of(self._types[name])
            return sum(_PARTS[part] << 3 * at for at, part in enumerate(parts))
        return 0

    def _input_of(self, name: str) -> int:
        """Index in a row of a column's time or number as an input; 0 for other columns."""
        if name in self._inputs.times:
            return self._inputs.index_of_time(name)
        return self._inputs.index_of_value(name) if name in self._inputs.values else 0

    def _add_missing(self, missing: Mapping[int, list[str | float | None]]) -> Floats:
        """Add the texts and numbers that stand for missing values, by node; return the numbers."""
        values = self.values
        texts = [(n, one) for n, some in missing.items() for one in some if isinstance(one, str)]
        numbers = [(n, one) for n, some in missing.items() for one in missing_numbers(some)]
        if max(len(texts), len(numbers)) > layout.MAX_MISSING:
            raise NoPlan
        for at, (node, text) in enumerate(texts):
            begin = self._put(text.encode())
            if begin is None:
                raise NoPlan
            first = layout.MISSING_AT + 3 * at
            values[first : first + 3] = begin, self._used, node
        values[layout.MISSING_TEXTS] = len(texts)
        for at, (node, _) in enumerate(numbers):
            values[layout.MISSING_NUMBERS_AT + at] = node
        return np.array([number for _, number in numbers], np.float64)

    def _add_declared(self) -> None:
        declared = [name for name, kind in self._types.items() if kind != "ignore"]
        if len(declared) > layout.MAX_NODES // 2 or len(self._crossed) > layout.MAX_CROSSED:
            raise NoPlan
        for at, name in enumerate(declared):
            node = self._add(_ROW, name)
            if node == 0:
                raise NoPlan
            self.values[layout.DECLARED_AT + at] = node
            self.values[layout.DECLARED] = at + 1

    def _add_crosses(self, crosses: list[tuple[str, ...]]) -> None:
        if len({"*".join(names) for names in crosses}) < len(crosses):
            raise NoPlan
        at = layout.NODES_AT + (layout.MAX_NODES + len(crosses)) * layout.FIELDS
        for name, crossed in self._crossed.items():
            first = at
            for names in crosses:
                if names[0] != name:
                    continue
                full = "*".join(names)
                begin = self._put(full.encode())
                if begin is None:
                    raise NoPlan
                self._fill(self._next_cross, full, begin, layout.OTHER)
                columns = [self._crossed[one] for one in names]
                self.values[at : at + 4] = [self._next_cross, *columns, 0][:4]
                self._next_cross += 1
                at += 4
            of = layout.CROSSES_AT + 3 * crossed
            is_key = name in self._inputs.keys
            key = self._inputs.index_of_key(name) if is_key else 0
            self.values[of : of + 3] = first, at, key
